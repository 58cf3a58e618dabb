use ebb_format::FormatError;
use ebb_format::backup::{self, Backup, Part};
use ebb_model::{ClusterId, Incarnation, LogIndex, Time};
use proptest::prelude::*;

fn sample() -> Backup {
    Backup {
        cluster: ClusterId(0xabcd << 80 | 7),
        incarnation: Incarnation(3),
        backing: "s3://bucket/prefix".into(),
        index: LogIndex(4711),
        made: Time::from_secs(1_800_000_000),
        run: 0xfeed,
        encryption: None,
        parts: vec![
            Part { len_bytes: 8 << 20, crc32c: 0xe306_9283 },
            Part { len_bytes: 60, crc32c: 1 },
        ],
    }
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    let encrypted =
        Backup { encryption: Some("{ \"format\": 1 }\n".into()), parts: Vec::new(), ..sample() };
    vec![
        ("plain".into(), backup::encode(&sample()).to_vec()),
        ("encrypted".into(), backup::encode(&encrypted).to_vec()),
    ]
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let backup = backup::decode(bytes).ok()?;
    Some((format!("{backup:?}"), backup::encode(&backup).to_vec()))
}

proptest! {
    #[test]
    fn a_backup_is_read_as_it_was_written(
        cluster: u128,
        incarnation: u64,
        backing: String,
        index: u64,
        secs: i64,
        run: u64,
        encryption: Option<String>,
        parts in prop::collection::vec((1..=backup::MAX_PART_BYTES as u32, any::<u32>()), 0..9),
    ) {
        let parts = parts.into_iter().map(|(len_bytes, crc32c)| Part { len_bytes, crc32c }).collect();
        let (cluster, incarnation, index, made) = (ClusterId(cluster), Incarnation(incarnation), LogIndex(index), Time::from_secs(secs));
        let written = Backup { cluster, incarnation, backing, index, made, run, encryption, parts };
        prop_assert_eq!(backup::decode(&backup::encode(&written)), Ok(written));
    }

    /// White space can change; the decoded value cannot.
    #[test]
    fn a_flipped_bit_never_gives_another_backup(bit: prop::sample::Index) {
        let mut bytes = backup::encode(&sample()).to_vec();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(backup) = backup::decode(&bytes) {
            prop_assert_eq!(backup, sample());
        }
    }
}

/// Truncation and a later version are reported as such; an impossible length of a part is invalid.
#[test]
fn what_is_wrong_is_told_apart() {
    let whole = backup::encode(&sample());
    let cut = backup::decode(&whole[..30]).expect_err("it is short");
    assert!(
        matches!(cut, FormatError::Truncated { offset: 30, .. })
            && cut.to_string().starts_with("backup"),
        "{cut}"
    );
    assert!(matches!(
        backup::decode(b"{\"format\": 9}"),
        Err(FormatError::Version { found: 9, known: 1, .. })
    ));
    for len_bytes in [0, backup::MAX_PART_BYTES as u32 + 1] {
        let wrong =
            backup::encode(&Backup { parts: vec![Part { len_bytes, crc32c: 0 }], ..sample() });
        assert!(matches!(backup::decode(&wrong), Err(FormatError::Invalid { .. })));
    }
}
