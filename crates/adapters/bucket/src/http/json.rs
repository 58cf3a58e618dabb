//! JSON replies. Any input yields a value or `None`: depth and size are bounded.

use super::MAX_PARTS;
use serde_json::Value;

pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
    (parts(bytes) <= MAX_PARTS).then(|| serde_json::from_slice(bytes).ok()).flatten()
}

/// An upper bound of the number of values: each one follows one of these characters, even if some
/// are inside strings.
fn parts(bytes: &[u8]) -> usize {
    let (mut parts, mut in_text, mut escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => parts += 1,
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beyond_the_limit_are_rejected() {
        let listing = |items: usize| format!("[{}\"a,,\\\",,\"]", "0,".repeat(items));
        assert_eq!(parts(listing(3).as_bytes()), 5);
        assert_eq!(parse(listing(3).as_bytes()).unwrap()[3], "a,,\",,");
        assert!(parse(listing(MAX_PARTS - 2).as_bytes()).is_some());
        assert_eq!(parse(listing(MAX_PARTS).as_bytes()), None);
    }
}
