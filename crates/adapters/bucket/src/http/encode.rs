//! Percent-encoding, byte by byte.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::fmt::Write;

/// All bytes except those that RFC 3986 leaves unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');

/// Percent-encodes all but unreserved bytes; that form both travels and is signed. `/` stays in
/// paths.
pub(crate) fn encode(text: &str, keep_slash: bool) -> String {
    let set = if keep_slash { RESERVED_IN_PATHS } else { RESERVED };
    utf8_percent_encode(text, set).to_string()
}

/// Sorted and encoded, as signatures require; sent in the same form.
pub(crate) fn encode_query(pairs: &[(&str, String)]) -> String {
    let mut pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false)))
        .collect();
    pairs.sort();
    pairs.join("&")
}

/// The inverse; `None` if the text is no encoding of UTF-8. `plus_is_blank`: as in forms.
pub(crate) fn decode(text: &str, plus_is_blank: bool) -> Option<String> {
    let is_encoded = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    // The crate leaves a `%` that begins no encoding as it is.
    if !text.split('%').skip(1).all(is_encoded) {
        return None;
    }
    let blanks = if plus_is_blank { text.replace('+', " ") } else { text.to_owned() };
    Some(percent_decode_str(&blanks).decode_utf8().ok()?.into_owned())
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
