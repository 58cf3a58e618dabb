//! Base64 (RFC 4648), as keys and signatures of the stores are written.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose};

/// Stores and users write it with and without padding.
const STANDARD: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The CRC-32C of a body in the format of stores.
pub(crate) fn crc32c(body: &[u8]) -> String {
    encode(&crc_fast::crc32_iscsi(body).to_be_bytes())
}

/// For URLs: `-` and `_`, without padding.
pub(crate) fn encode_url(bytes: &[u8]) -> String {
    general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// `None` if the text is not Base64. White space is ignored, and padding is optional.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_examples() {
        for (plain, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(plain.as_bytes()), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(decode("Zm9v\n Yg"), Some(b"foob".to_vec()));
        assert_eq!(encode_url(&[0xfb, 0xff]), "-_8");
        for bad in ["A", "Zg=x", "Zh", "Z-g", "é"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
