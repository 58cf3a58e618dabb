//! Base64 (RFC 4648), as keys and signatures of the stores are written.

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |n: usize| u32::from(group.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for n in 0..4 {
            let digit = STANDARD[(bits >> (18 - 6 * n) & 63) as usize] as char;
            out.push(if n > group.len() { '=' } else { digit });
        }
    }
    out
}

/// As stores write the CRC-32C of a body.
pub(crate) fn crc32c(body: &[u8]) -> String {
    encode(&crc_fast::crc32_iscsi(body).to_be_bytes())
}

/// For URLs: `-` and `_`, without padding.
pub(crate) fn encode_url(bytes: &[u8]) -> String {
    encode(bytes).trim_end_matches('=').replace('+', "-").replace('/', "_")
}

/// `None` where it is not Base64. White space counts for nothing, padding may be left out.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    let digits = text.trim_end().trim_end_matches('=');
    for byte in digits.bytes().filter(|b| !b.is_ascii_whitespace()) {
        let value = STANDARD.iter().position(|digit| *digit == byte)? as u32;
        bits = bits << 6 | value;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    // A single digit at the end, or bits behind the last byte, are no encoding of anything.
    (held < 6 && bits & ((1 << held) - 1) == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_examples() {
        for (plain, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(plain.as_bytes()), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(encode_url(&[0xfb, 0xff]), "-_8");
        for bad in ["A", "Zg=x", "Zh", "Z-g", "é"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_decoded_or_refused(text: String) {
            if let Some(bytes) = decode(&text) {
                prop_assert!(bytes.len() <= text.len());
            }
        }
    }
}
