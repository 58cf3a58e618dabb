use ebb_format::FormatError;
use ebb_format::encryption::{self, FILE_HEADER_BYTES, FileHeader, WRAPPED_KEY_BYTES, WrappedKey};
use proptest::prelude::*;

fn sample_key() -> WrappedKey {
    WrappedKey(std::array::from_fn(|at| at as u8 * 3))
}

const SAMPLE_HEADER: FileHeader = FileHeader { first_unit: 0xbead << 112 | 5 };

pub fn golden_key() -> Vec<(String, Vec<u8>)> {
    vec![("key".into(), encryption::encode_key(&sample_key()).to_vec())]
}

pub fn reread_key(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let key = encryption::decode_key(bytes).ok()?;
    Some((format!("{key:?}"), encryption::encode_key(&key).to_vec()))
}

pub fn golden_header() -> Vec<(String, Vec<u8>)> {
    vec![("header".into(), encryption::encode_header(&SAMPLE_HEADER).to_vec())]
}

pub fn reread_header(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let header = encryption::decode_header(bytes).ok()?;
    Some((format!("{header:?}"), encryption::encode_header(&header).to_vec()))
}

proptest! {
    #[test]
    fn a_key_is_read_as_it_was_written(key in prop::array::uniform32(any::<u8>()), more in prop::array::uniform32(any::<u8>())) {
        let mut wrapped = [7; WRAPPED_KEY_BYTES];
        wrapped[..32].copy_from_slice(&key);
        wrapped[32..64].copy_from_slice(&more);
        prop_assert_eq!(encryption::decode_key(&encryption::encode_key(&WrappedKey(wrapped))), Ok(WrappedKey(wrapped)));
    }

    #[test]
    fn a_flipped_bit_never_gives_another_key(bit: prop::sample::Index) {
        let mut bytes = encryption::encode_key(&sample_key()).to_vec();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(key) = encryption::decode_key(&bytes) {
            prop_assert_eq!(key, sample_key());
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written(first_unit: u128) {
        let header = FileHeader { first_unit };
        let bytes = [&encryption::encode_header(&header)[..], &[1, 2, 3]].concat();
        prop_assert_eq!(encryption::decode_header(&bytes), Ok(header));
    }

    #[test]
    fn a_flipped_bit_of_a_header_is_noticed(first_unit: u128, bit in 0..FILE_HEADER_BYTES * 8) {
        let mut bytes = encryption::encode_header(&FileHeader { first_unit });
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(encryption::decode_header(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..100), text: String) {
        prop_assert!(encryption::decode_header(&bytes).is_err());
        prop_assert!(encryption::decode_key(text.as_bytes()).is_err());
    }
}

#[test]
fn what_is_wrong_is_told_apart() {
    let whole = encryption::encode_header(&SAMPLE_HEADER);
    assert!(matches!(
        encryption::decode_header(&whole[..20]),
        Err(FormatError::Truncated { offset: 20, .. })
    ));
    assert!(matches!(
        encryption::decode_header(&[0; FILE_HEADER_BYTES]),
        Err(FormatError::Foreign { .. })
    ));
    let mut later = whole;
    later[8] = 2;
    let crc = ebb_format::crc32c(&later[..FILE_HEADER_BYTES - 4]).to_le_bytes();
    later[FILE_HEADER_BYTES - 4..].copy_from_slice(&crc);
    assert!(matches!(
        encryption::decode_header(&later),
        Err(FormatError::Version { found: 2, known: 1, .. })
    ));
    let key = encryption::encode_key(&sample_key());
    assert!(matches!(
        encryption::decode_key(&key[..30]),
        Err(FormatError::Truncated { offset: 30, .. })
    ));
    assert!(matches!(
        encryption::decode_key(b"{\"format\": 9}"),
        Err(FormatError::Version { found: 9, known: 1, .. })
    ));
}
