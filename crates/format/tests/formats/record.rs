use crate::golden::named;
use crate::samples::{self, Draw};
use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::record::{
    self, Decoded, Encoded, FORCED_BYTES, GroupId, GroupTail, LINE_BYTES, MAX_GROUPS,
    MAX_PAYLOAD_BYTES, Payload, Position, RecordHeader, Start, Term, replicated_start_bytes,
    start_bytes,
};
use ebb_format::segment::Generation;
use ebb_model::*;
use proptest::prelude::*;

/// Of a marker.
fn header(position: u64) -> RecordHeader {
    RecordHeader {
        generation: Generation(5),
        group: GroupId::LOCAL,
        position: Position(position),
        synced: Position(position / 2),
        term: Term(7),
        index: LogIndex(0),
    }
}

/// The header of a record with this payload.
fn header_of(payload: &Payload, position: u64) -> RecordHeader {
    let index = LogIndex(position - 1);
    match payload {
        Payload::Command(_) => RecordHeader { group: GroupId(3), index, ..header(position) },
        Payload::Step(_) | Payload::Base(_) => {
            RecordHeader { group: GroupId(3), index, ..header(position) }
        }
        Payload::Promise(_) => {
            RecordHeader { group: GroupId(3), term: Term(0), ..header(position) }
        }
        Payload::Local(_) => RecordHeader { index, ..header(position) },
        Payload::Forced { .. } | Payload::Start(_) => header(position),
    }
}

fn is_of_partition(payload: &Payload) -> bool {
    header_of(payload, 1).group != GroupId::LOCAL
}

fn encoded(header: &RecordHeader, payload: &Payload) -> Vec<u8> {
    let mut out = Vec::new();
    record::encode(header, payload, &mut out).expect("samples fit");
    out
}

fn forced(position: u64) -> Vec<u8> {
    encoded(&header(position), &Payload::Forced { upto: Position(position - 1) })
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    named(
        Draw(1).payloads().iter().map(|payload| {
            (samples::payload_name(payload), encoded(&header_of(payload, 42), payload))
        }),
    )
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let Decoded::Record(record) = record::decode(bytes) else { return None };
    Some((
        format!("{:?} {:?}", record.header, record.payload),
        encoded(&record.header, &record.payload),
    ))
}

proptest! {
    /// Consecutive records decode to the same values, and the end follows them.
    #[test]
    fn a_log_is_read_as_it_was_written(seed: u64, partition in 1..u32::MAX, term: u64, first in 1..u64::MAX / 2, generation: u32) {
        let payloads = Draw(seed).payloads();
        let header = |at: usize| RecordHeader {
            generation: Generation(generation),
            group: GroupId(if is_of_partition(&payloads[at]) { partition } else { 0 }),
            position: Position(first + at as u64), synced: Position(first - 1), term: Term(term), index: LogIndex(first + at as u64),
        };
        let mut log = Vec::new();
        for (at, payload) in payloads.iter().enumerate() {
            record::encode(&header(at), payload, &mut log).expect("samples fit");
        }
        log.resize(log.len() + 4096, 0);
        let mut offset = 0;
        for (at, payload) in payloads.iter().enumerate() {
            let Decoded::Record(record) = record::decode(&log[offset..]) else { panic!("record {at} is not read") };
            prop_assert_eq!(record.header, header(at));
            prop_assert_eq!(&record.payload, payload);
            offset += record.consumed;
        }
        prop_assert_eq!(record::decode(&log[offset..]), Decoded::End);
    }

    /// Any flipped bit, in header, tags, content or padding, is damage. Danger: it counts as a torn
    /// write, and recovery cuts an acknowledged command.
    #[test]
    fn a_flipped_bit_is_damage(seed: u64, pick: prop::sample::Index, bit: prop::sample::Index) {
        let payloads = Draw(seed).payloads();
        let mut bytes = encoded(&header_of(pick.get(&payloads), 9), pick.get(&payloads));
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(matches!(record::decode(&bytes), Decoded::Corrupt(_)));
    }

    /// A write without some of its lines is torn or absent. Danger: it counts as damage, and a node
    /// does not start after an ordinary power cut.
    #[test]
    fn missing_lines_are_an_interrupted_write(seed: u64, pick: prop::sample::Index, lost: u64) {
        let payloads = Draw(seed).payloads();
        let mut bytes = encoded(&header_of(pick.get(&payloads), 9), pick.get(&payloads));
        let mut any = false;
        for (at, line) in bytes.chunks_exact_mut(LINE_BYTES).enumerate() {
            if lost >> (at % 64) & 1 == 1 {
                line.fill(0);
                any = true;
            }
        }
        match record::decode(&bytes) {
            Decoded::Record(_) => prop_assert!(!any),
            Decoded::Torn(_) => prop_assert!(any && lost & 1 == 0),
            Decoded::End => prop_assert!(lost & 1 == 1),
            Decoded::Corrupt(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!matches!(record::decode(&bytes), Decoded::Record(_)));
        prop_assert_eq!(record::later(&bytes, Generation(5), Position(0)).count(), 0);
    }
}

/// Situation: record 11 of 10, 11, 12 did not arrive. Danger: recovery does not check whether 11
/// was complete. Expectation: `later` finds 12 with its header.
#[test]
fn a_later_record_is_found_behind_zeros() {
    let mut log = [forced(11), forced(12)].concat();
    log[..LINE_BYTES].fill(0);
    assert_eq!(record::decode(&log), Decoded::End);
    let later: Vec<_> = record::later(&log, Generation(5), Position(10)).collect();
    assert_eq!(later, vec![header(12)]);
}

/// Situation: bytes of another generation, or of an earlier position, follow the end. Danger: they
/// count as proof of damage. Expectation: `later` ignores them.
#[test]
fn other_records_prove_nothing() {
    let old = RecordHeader { generation: Generation(4), ..header(30) };
    let log = [vec![0xff; 64], encoded(&old, &Payload::Forced { upto: Position(1) }), forced(10)]
        .concat();
    assert_eq!(record::later(&log, Generation(5), Position(10)).count(), 0);
}

/// Situation: a newer release has written a record of leases. Danger: it is skipped, or taken for
/// damage, and what its writer has promised is forgotten. Expectation: a later version is reported.
#[test]
fn a_reserved_kind_is_of_a_newer_release() {
    for version in [2, 3, 4] {
        let mut bytes = forced(10);
        (bytes[52], bytes[53]) = (7, version);
        reseal(&mut bytes);
        assert!(matches!(
            record::decode(&bytes),
            Decoded::Corrupt(FormatError::Version { found: 4, known: 3, .. })
        ));
    }
}

/// Situation: records of a replicated group and of groups that are not. Danger: a release that
/// knows version 2 only reads past a promise, or a log without replicated groups gets bytes that
/// such a release refuses. Expectation: promises, steps, bases, and starts that name a replicated
/// group have version 3, and all others version 2. Another version of a kind is reported.
#[test]
fn version_3_marks_replicated_groups_only() {
    for payload in Draw(5).payloads() {
        let mut bytes = encoded(&header_of(&payload, 10), &payload);
        let is_of_consensus =
            matches!(payload, Payload::Promise(_) | Payload::Step(_) | Payload::Base(_));
        let is_replicated_start = matches!(&payload, Payload::Start(start)
            if start.groups.iter().any(|tail| tail.is_replicated));
        let version = if is_of_consensus || is_replicated_start { 3 } else { 2 };
        assert_eq!(bytes[53], version, "{payload:?}");
        if matches!(payload, Payload::Start(_)) {
            continue;
        }
        bytes[53] = 5 - version;
        reseal(&mut bytes);
        assert!(matches!(
            record::decode(&bytes),
            Decoded::Corrupt(FormatError::Version { found, known, .. })
                if found == 5 - version && known == version
        ));
    }
}

/// Situation: consensus brings a command's bytes. Danger: they differ from those of a command that
/// the log has encoded itself. Expectation: the same record.
#[test]
fn an_encoded_command_has_the_bytes_of_the_command() {
    for payload in Draw(6).payloads() {
        let Payload::Command(command) = &payload else { continue };
        let bytes = record::encode_command(command).expect("samples fit");
        assert_eq!(record::decode_command(&bytes).as_ref(), Ok(command));
        let header = header_of(&payload, 10);
        let mut out = Vec::new();
        record::encode_replicated(&header, Encoded::Command(&bytes), &mut out).expect("it fits");
        assert_eq!(out, encoded(&header, &payload));
    }
}

/// Situation: the kind or the group of a record is another one, with the right checksum. Danger: a
/// command about this disk is applied to a partition, or a partition's to this disk. Expectation:
/// damage.
#[test]
fn record_of_another_group_is_damage() {
    for payload in Draw(3).payloads() {
        let right = header_of(&payload, 10);
        let mut bytes = encoded(&right, &payload);
        let other = if right.group == GroupId::LOCAL { 1u32 } else { 0 };
        bytes[12..16].copy_from_slice(&other.to_le_bytes());
        reseal(&mut bytes);
        assert!(matches!(
            record::decode(&bytes),
            Decoded::Corrupt(FormatError::Invalid { offset: 12, .. })
        ));
    }
}

/// Situation: a record by another version of ebb. Danger: recovery cuts it as a torn tail.
/// Expectation: corrupt, with both versions named.
#[test]
fn another_version_is_not_cut() {
    let mut bytes = forced(10);
    for version in [1, 3] {
        bytes[53] = version;
        reseal(&mut bytes);
        assert!(matches!(
            record::decode(&bytes),
            Decoded::Corrupt(FormatError::Version { found, known: 2, .. }) if found == version
        ));
    }
    let mut bytes = forced(10);
    bytes[52] = 9;
    reseal(&mut bytes);
    assert!(matches!(
        record::decode(&bytes),
        Decoded::Corrupt(FormatError::Invalid { offset: 52, .. })
    ));
}

#[test]
fn a_record_that_is_too_long_is_refused_and_leaves_the_buffer_alone() {
    let value = Bytes::from(vec![1; MAX_PAYLOAD_BYTES]);
    let mutation =
        Mutation::SetXattr { ino: Ino(1), name: Bytes::new(), value, mode: XattrMode::Set };
    let tx = TxId { session: SessionId(1), slot: 0, sequence: 1 };
    let stamp = Stamp { time: Time::default(), version: Version(1) };
    let payload: Payload =
        Payload::Command(Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
    let mut out = forced(10);
    let before = out.clone();
    assert!(matches!(
        record::encode(&header_of(&payload, 11), &payload, &mut out),
        Err(FormatError::TooLong { .. })
    ));
    assert_eq!(out, before);
}

/// The log reserves space for markers, so the longest must not exceed it.
#[test]
fn markers_are_as_long_as_they_say() {
    let logs = [1, 2, 3, 17, MAX_GROUPS].map(|groups| [(groups, false), (groups, groups > 1)]);
    for (groups, is_replicated) in logs.into_iter().flatten() {
        let tail = |at: usize| GroupTail {
            group: GroupId(if at == 0 { 0 } else { u32::MAX - (groups - at) as u32 }),
            term: Term(u64::MAX),
            index: LogIndex(u64::MAX),
            is_replicated: is_replicated && at > 0,
        };
        let start = Payload::Start(Start {
            boot_id: u128::MAX,
            incarnation: Incarnation(u64::MAX),
            forced: Position(u64::MAX),
            cut: Position(u64::MAX),
            groups: (0..groups).map(tail).collect(),
        });
        let most = match is_replicated {
            false => start_bytes(groups),
            true => replicated_start_bytes(groups),
        };
        let len_bytes = encoded(&header(1), &start).len();
        assert!(len_bytes <= most && most < len_bytes + 2 * LINE_BYTES, "{len_bytes} of {most}");
    }
    assert_eq!(
        encoded(&header(1), &Payload::Forced { upto: Position(u64::MAX) }).len(),
        FORCED_BYTES
    );
}

/// Situation: a header with a valid checksum and an impossible length. Expectation: damage, without
/// a read or an allocation of that length.
#[test]
fn a_length_beyond_the_segment_is_damage() {
    for length in [1000, u32::MAX] {
        let mut bytes = forced(10);
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        reseal(&mut bytes);
        assert!(matches!(
            record::decode(&bytes),
            Decoded::Corrupt(FormatError::Invalid { offset: 4, .. })
        ));
    }
}

/// Recomputes the checksum of a changed header.
fn reseal(bytes: &mut [u8]) {
    let crc = ebb_format::crc32c(&bytes[4..LINE_BYTES]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}
