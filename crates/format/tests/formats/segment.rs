use ebb_format::FormatError;
use ebb_format::segment::{self, Generation, SEGMENT_HEADER_BYTES, SegmentHeader, VolumeId};
use proptest::prelude::*;

pub fn golden() -> Vec<(String, Vec<u8>)> {
    let header = SegmentHeader {
        generation: Generation(0x0102_0304),
        volume: VolumeId(0x0708 << 112 | 9),
        len_bytes: 0x0a0b_0c0d,
    };
    vec![("header".into(), segment::encode(&header))]
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let header = segment::decode(bytes).ok()?;
    Some((format!("{header:?}"), segment::encode(&header)))
}

proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(generation: u32, volume: u128, len_bytes: u64) {
        let header = SegmentHeader { generation: Generation(generation), volume: VolumeId(volume), len_bytes };
        let mut bytes = segment::encode(&header);
        prop_assert_eq!(bytes.len(), SEGMENT_HEADER_BYTES);
        bytes.extend([1, 2, 3]);
        prop_assert_eq!(segment::decode(&bytes), Ok(header));
    }

    #[test]
    fn a_flipped_bit_is_noticed(volume: u128, bit in 0..SEGMENT_HEADER_BYTES * 8) {
        let header = SegmentHeader { generation: Generation(1), volume: VolumeId(volume), len_bytes: 1 << 20 };
        let mut bytes = segment::encode(&header);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(segment::decode(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(segment::decode(&bytes).is_err());
    }
}

#[test]
fn what_is_wrong_is_told_apart() {
    let header =
        SegmentHeader { generation: Generation(1), volume: VolumeId(3), len_bytes: 1 << 20 };
    let whole = segment::encode(&header);
    assert!(matches!(
        segment::decode(&whole[..100]),
        Err(FormatError::Truncated { offset: 100, .. })
    ));
    assert!(matches!(segment::decode(&[]), Err(FormatError::Truncated { offset: 0, .. })));
    assert!(matches!(
        segment::decode(&[0; SEGMENT_HEADER_BYTES]),
        Err(FormatError::Foreign { .. })
    ));
    let mut later = whole.clone();
    later[8] = 2;
    let crc = ebb_format::crc32c(&later[..SEGMENT_HEADER_BYTES - 4]).to_le_bytes();
    later[SEGMENT_HEADER_BYTES - 4..].copy_from_slice(&crc);
    assert!(matches!(
        segment::decode(&later),
        Err(FormatError::Version { found: 2, known: 1, .. })
    ));
}
