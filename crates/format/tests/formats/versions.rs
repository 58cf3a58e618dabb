use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::rpc;
use ebb_format::versions::{MAX_BYTES, Versions, no_common_version};
use proptest::prelude::*;

fn versions(lowest: u8, highest: u8) -> Versions {
    Versions::new(lowest, highest).unwrap()
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    // Never another encoding: every release must read the first message of every other one.
    [("one", versions(17, 17)), ("several", versions(17, 23)), ("all", versions(1, 255))]
        .map(|(name, versions)| (name.into(), versions.encode().to_vec()))
        .into()
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let versions = Versions::decode(bytes).ok()?;
    Some((format!("{versions:?}"), versions.encode().to_vec()))
}

proptest! {
    #[test]
    fn versions_are_read_as_they_were_written(lowest in 1..=255u8, more: u8) {
        let versions = versions(lowest, lowest.saturating_add(more));
        prop_assert_eq!(Versions::decode(&versions.encode()), Ok(versions));
    }

    #[test]
    fn a_flipped_bit_of_versions_is_noticed(bit in 0..13 * 8usize) {
        let mut bytes = versions(17, 20).encode().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Versions::decode(&bytes).is_err());
    }

    /// The naive model: all versions that both sets have.
    #[test]
    fn common_version_is_the_highest_of_both(a in 1..=255u8, b in 1..=255u8, c in 1..=255u8, d in 1..=255u8) {
        let (one, other) = (versions(a.min(b), a.max(b)), versions(c.min(d), c.max(d)));
        let expected = (a.min(b)..=a.max(b)).filter(|version| (c.min(d)..=c.max(d)).contains(version)).max();
        prop_assert_eq!(one.common(other), expected);
        prop_assert_eq!(other.common(one), expected);
    }

    #[test]
    fn any_first_message_is_answered(bytes: Vec<u8>) {
        prop_assert!(Versions::decode(&bytes).is_err());
    }
}

/// Situation: the first frame is of release 0.1.0, of another program, short, long, or impossible.
/// Expectation: each has its own error; bytes of later releases behind the checksum are skipped.
#[test]
fn first_messages_are_told_apart() {
    let whole = versions(17, 17).encode().to_vec();
    let of_0_1_0 = Versions::decode(&[16, 1, 0, 0]).unwrap_err();
    assert!(matches!(of_0_1_0, FormatError::Version { found: 16, known: rpc::VERSION, .. }));
    assert!(matches!(Versions::decode(b"\0GET"), Err(FormatError::Foreign { .. })));
    for len in 0..whole.len() {
        assert!(matches!(Versions::decode(&whole[..len]), Err(FormatError::Truncated { .. })));
    }
    let longer = |len: usize| [&whole[..], &vec![7; len - whole.len()]].concat();
    assert_eq!(Versions::decode(&longer(MAX_BYTES)), Ok(versions(17, 17)));
    assert!(matches!(
        Versions::decode(&longer(MAX_BYTES + 1)),
        Err(FormatError::TooLong { max_bytes: 64, .. })
    ));
    for range in [[0, 0], [0, 17], [18, 17]] {
        let mut bytes = [b"\0EBBRPC", &range[..]].concat();
        let crc = ebb_format::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        assert!(matches!(Versions::decode(&bytes), Err(FormatError::Invalid { offset: 7, .. })));
    }
    assert!(Versions::new(0, 3).is_none() && Versions::new(4, 3).is_none());
    // No message of any version can be one, nor the other way round.
    assert!(rpc::decode(Bytes::from(whole)).is_err());
}

#[test]
fn peers_without_a_common_version_get_one_line() {
    assert_eq!(
        no_common_version(versions(18, 20)),
        "the peer speaks protocol version 18 to 20, and this ebb 17: install the same release of \
         ebb on both machines"
    );
}
