//! Percent-encoding, byte by byte.

use std::fmt::Write;

/// Percent-encodes all but what RFC 3986 leaves unreserved; that form both travels and is
/// signed. `/` stays in paths.
pub(crate) fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte as char)
            }
            b'/' if keep_slash => out.push('/'),
            _ => write!(out, "%{byte:02X}").expect("writing to a String"),
        }
    }
    out
}

/// Sorted and encoded, as signatures want it; sent the same way.
pub(crate) fn encode_query(pairs: &[(&str, String)]) -> String {
    let mut pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false)))
        .collect();
    pairs.sort();
    pairs.join("&")
}

/// The inverse; `None` where the text is no encoding of UTF-8. `plus_is_blank`: as in forms.
pub(crate) fn decode(text: &str, plus_is_blank: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                (digit(rest.next())? * 16 + digit(rest.next())?) as u8
            }
            b'+' if plus_is_blank => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(out, "{byte:02x}").expect("writing to a String");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_byte_by_byte() {
        assert_eq!(encode("../a//b c+é/", true), "../a//b%20c%2B%C3%A9/");
        assert_eq!(encode("a/b", false), "a%2Fb");
        assert_eq!(
            encode_query(&[("prefix", "a b".into()), ("list-type", "2".into())]),
            "list-type=2&prefix=a%20b"
        );
    }

    #[test]
    fn encoded_names_are_decoded_or_refused() {
        assert_eq!(decode("a%2Bb+c%C3%A9/", true).as_deref(), Some("a+b cé/"));
        assert_eq!(decode("a+b", false).as_deref(), Some("a+b"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(bad, true), None);
        }
    }
}
