use ebb_format::FormatError;
use ebb_format::head::{self, Head};
use ebb_model::ClusterId;
use ebb_model::{IdEpoch, IdMark, Incarnation, Time};
use proptest::prelude::*;

fn sample() -> Head {
    Head {
        cluster: ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        incarnation: Incarnation(12),
        ids: IdMark { epoch: IdEpoch(3), below: 5 << 20 | 7 },
        node: 0xfeed << 112 | 1,
        run: 0xbeef,
        owner: "host \"a\", pid 7, /var/lib/ebb".into(),
        address: String::new(),
        started: Time::from_secs(1_795_000_000),
        term_secs: 30,
        beat: 99,
        released: false,
        members: Vec::new(),
    }
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    let released = Head { released: true, ..sample() };
    let listens = Head { address: "ebb://host:7170/volume".into(), ..sample() };
    let side_by_side = Head { members: vec!["logs over s3://other/prefix/".into()], ..sample() };
    let heads = [
        ("held", sample()),
        ("released", released),
        ("listens", listens),
        ("side-by-side", side_by_side),
    ];
    heads.map(|(name, head)| (name.into(), head::encode(&head).to_vec())).into()
}

pub fn meaning(bytes: &[u8]) -> Option<String> {
    Some(format!("{:?}", head::decode(bytes).ok()?))
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let head = head::decode(bytes).ok()?;
    Some((format!("{head:?}"), head::encode(&head).to_vec()))
}

proptest! {
    #[test]
    fn a_head_is_read_as_it_was_written(ids: (u128, u128, u64), incarnation: u64, mark: (u16, u32), owner: String, address: String, times: (i64, u32, u64), released: bool, members: Vec<String>) {
        let head = Head {
            cluster: ClusterId(ids.0),
            incarnation: Incarnation(incarnation),
            ids: IdMark { epoch: IdEpoch(mark.0), below: mark.1 },
            node: ids.1,
            run: ids.2,
            owner,
            address,
            started: Time::from_secs(times.0),
            term_secs: times.1,
            beat: times.2,
            released,
            members,
        };
        prop_assert_eq!(head::decode(&head::encode(&head)), Ok(head));
    }

    /// White space can change; the decoded value cannot.
    #[test]
    fn a_flipped_bit_never_gives_another_head(bit: prop::sample::Index) {
        let mut bytes = head::encode(&sample()).to_vec();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(head) = head::decode(&bytes) {
            prop_assert_eq!(head, sample());
        }
    }

    #[test]
    fn any_text_is_answered(text: String) {
        prop_assert!(head::decode(text.as_bytes()).is_err());
    }
}

#[test]
fn it_reads_well() {
    let text = String::from_utf8(head::encode(&sample()).to_vec()).expect("JSON is UTF-8");
    assert!(text.contains("\"cluster\": \"01234567-89ab-cdef-0011-223344556677\""), "{text}");
    assert!(text.ends_with("}\n"));
}

/// Every kind of invalid text has its own error.
#[test]
fn what_is_wrong_is_told_apart() {
    let whole = String::from_utf8(head::encode(&sample()).to_vec()).expect("JSON is UTF-8");
    let error = |text: &str| head::decode(text.as_bytes()).expect_err("it is wrong");
    assert!(matches!(error(&whole[..40]), FormatError::Truncated { offset: 40, .. }));
    assert!(matches!(error(""), FormatError::Truncated { offset: 0, .. }));
    assert!(matches!(error("{\"format\": 3}"), FormatError::Version { found: 3, known: 2, .. }));
    assert!(matches!(
        error(&whole.replace("\"incarnation\": 12", "\"incarnation\": 13")),
        FormatError::Checksum { .. }
    ));
    assert!(error("{\"format\": 1}").to_string().contains("missing field"));
    assert!(matches!(error("{\n  \"format\": x}"), FormatError::Invalid { offset: 14, .. }));
    assert!(error("[]").to_string().starts_with("volume head: invalid"));
}

/// Release 0.1.0 wrote no mark: its incarnation was the epoch of its ids, so a new owner begins
/// with the next epoch. Its last incarnation leaves none.
#[test]
fn a_head_of_release_0_1_0_leaves_the_next_epoch() {
    for (incarnation, epoch) in [("12", 13), ("65534", 65_535), ("65535", 65_535)] {
        let head = head::decode(of_0_1_0(incarnation).as_bytes()).unwrap();
        assert_eq!(head.ids, IdMark { epoch: IdEpoch(epoch), below: 1 });
    }
}

/// A head with ids of the other format is refused.
#[test]
fn a_head_has_the_ids_of_its_format() {
    let whole = String::from_utf8(head::encode(&sample()).to_vec()).unwrap();
    let old = whole.replace("\"format\": 2", "\"format\": 1");
    assert!(head::decode(old.as_bytes()).is_err());
    let new = of_0_1_0("12").replace("\"format\":1", "\"format\":2");
    assert!(head::decode(new.as_bytes()).is_err());
}

fn of_0_1_0(incarnation: &str) -> String {
    let members = format!(
        "{{\"format\":1,\"cluster\":\"{}\",\"incarnation\":{incarnation},\"node\":\"{:032x}\",\
         \"run\":\"{:016x}\",\"owner\":\"\",\"started_secs\":0,\"term_secs\":30,\"beat\":0,\
         \"released\":true",
        sample().cluster,
        7,
        8
    );
    let sum = ebb_format::crc32c(format!("{members}}}").as_bytes());
    format!("{members},\"crc32c\":\"{sum:08x}\"}}")
}

/// A later version of the same format can add members.
#[test]
fn unknown_members_are_skipped() {
    let whole = String::from_utf8(head::encode(&sample()).to_vec()).expect("JSON is UTF-8");
    let more = whole.replacen('{', "{ \"snapshot\": \"x\",", 1);
    assert_eq!(head::decode(more.as_bytes()), Ok(sample()));
}

#[test]
fn cluster_ids_have_one_spelling() {
    assert_eq!(ClusterId::parse("01234567-89ab-cdef-0011-223344556677"), Some(sample().cluster));
    for wrong in [
        "",
        "0123",
        "0123456789abcdef0011223344556677",
        "01234567-89AB-cdef-0011-223344556677",
        "+1234567-89ab-cdef-0011-223344556677",
    ] {
        assert_eq!(ClusterId::parse(wrong), None, "{wrong}");
    }
}
