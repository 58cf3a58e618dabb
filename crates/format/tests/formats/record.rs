use crate::golden::named;
use crate::samples::{self, Draw};
use ebb_format::FormatError;
use ebb_format::record::{self, Decoded, GroupId, MAX_PAYLOAD_BYTES, MAX_RECORD_BYTES, Payload, RecordHeader, Term};
use ebb_format::segment::Generation;
use ebb_model::*;
use proptest::prelude::*;

fn header(index: u64) -> RecordHeader {
    RecordHeader { group: GroupId(3), term: Term(7), index: LogIndex(index), generation: Generation(5) }
}

fn encoded(header: &RecordHeader, payload: &Payload) -> Vec<u8> {
    let mut out = Vec::new();
    record::encode(header, payload, &mut out).expect("samples fit");
    out
}

fn forced(index: u64) -> Vec<u8> {
    encoded(&header(index), &Payload::Forced { upto: LogIndex(index - 1) })
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    named(Draw(1).payloads().iter().map(|payload| (samples::payload_name(payload), encoded(&header(42), payload))))
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let Decoded::Record(record) = record::decode(bytes) else { return None };
    Some((format!("{:?} {:?}", record.header, record.payload), encoded(&record.header, &record.payload)))
}

proptest! {
    /// Records one after the other come back as they were, and behind them is the end.
    #[test]
    fn a_log_is_read_as_it_was_written(seed: u64, group: u32, term: u64, first in 1..u64::MAX / 2, generation: u32) {
        let payloads = Draw(seed).payloads();
        let header = |at: usize| RecordHeader {
            group: GroupId(group), term: Term(term), index: LogIndex(first + at as u64), generation: Generation(generation),
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
        prop_assert_eq!(record::decode(&log[offset..]), Decoded::EndOfLog);
    }

    /// Any flipped bit, in length, checksum, content or padding, makes the record torn,
    /// or, where its length becomes zero, the end of the log: never another record.
    #[test]
    fn a_flipped_bit_is_noticed(seed: u64, pick: prop::sample::Index, bit: prop::sample::Index) {
        let payloads = Draw(seed).payloads();
        let mut bytes = encoded(&header(9), pick.get(&payloads));
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(matches!(record::decode(&bytes), Decoded::Torn(_) | Decoded::EndOfLog));
    }

    /// An interrupted write of any length is torn or nothing, never a record.
    #[test]
    fn a_torn_write_is_noticed(seed: u64, pick: prop::sample::Index, keep: prop::sample::Index, zeros: bool) {
        let payloads = Draw(seed).payloads();
        let whole = encoded(&header(9), pick.get(&payloads));
        // Cut before the payload's last byte: its tail may be zero, and the padding is.
        let mut bytes = whole[..keep.index(whole.len() - 9)].to_vec();
        if zeros {
            bytes.resize(whole.len() + 64, 0);
        }
        let decoded = record::decode(&bytes);
        prop_assert!(matches!(decoded, Decoded::Torn(_) | Decoded::EndOfLog) || bytes.starts_with(&whole), "{decoded:?}");
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!matches!(record::decode(&bytes), Decoded::Record(_)));
    }
}

/// Situation: record 11 of 10, 11, 12 is damaged. Danger: the log is cut there and 12 is
/// lost in silence. Expectation: 12 is found behind it.
#[test]
fn a_later_record_is_found_behind_damage() {
    let records = [forced(10), forced(11), forced(12)];
    let mut log = records.concat();
    log[records[0].len() + 20] ^= 1;
    let rest = &log[records[0].len()..];
    assert!(matches!(record::decode(rest), Decoded::Torn(FormatError::Checksum { .. })));
    assert_eq!(record::find(rest, Generation(5), LogIndex(10)), Some(records[1].len()));
}

/// Situation: the device lost a whole block, which reads as zeros. Danger: it looks like
/// the end of the log. Expectation: the record behind it is found.
#[test]
fn a_later_record_is_found_behind_zeros() {
    let mut log = vec![0; 4096];
    log.extend(forced(12));
    assert_eq!(record::decode(&log), Decoded::EndOfLog);
    assert_eq!(record::find(&log, Generation(5), LogIndex(10)), Some(4096));
}

/// Situation: a recycled segment whose new records end in the middle of old ones.
/// Danger: an old record is taken for proof of damage. Expectation: it is not.
#[test]
fn what_an_earlier_life_left_proves_nothing() {
    let old = RecordHeader { generation: Generation(4), ..header(30) };
    let log = [vec![0xff; 64], encoded(&old, &Payload::Forced { upto: LogIndex(1) }), forced(10)].concat();
    assert_eq!(record::find(&log, Generation(5), LogIndex(10)), None);
}

/// Situation: a record by a later version of ebb. Danger: it is taken for a torn tail and cut.
/// Expectation: corrupt, with both versions named.
#[test]
fn a_later_version_is_not_cut() {
    let mut bytes = forced(10);
    bytes[33] = 2;
    reseal(&mut bytes);
    assert!(matches!(record::decode(&bytes), Decoded::Corrupt(FormatError::Version { found: 2, known: 1, .. })));
    let mut bytes = forced(10);
    bytes[32] = 9;
    reseal(&mut bytes);
    assert!(matches!(record::decode(&bytes), Decoded::Corrupt(FormatError::Invalid { offset: 32, .. })));
}

#[test]
fn a_record_that_is_too_long_is_refused_and_leaves_the_buffer_alone() {
    let value = Bytes::from(vec![1; MAX_PAYLOAD_BYTES]);
    let mutation = Mutation::SetXattr { ino: Ino(1), name: Bytes::new(), value, mode: XattrMode::Set };
    let tx = TxId { session: SessionId(1), slot: 0, sequence: 1 };
    let stamp = Stamp { time: Time::default(), version: Version(1) };
    let payload = Payload::Command(Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
    let mut out = forced(10);
    let before = out.clone();
    assert!(matches!(record::encode(&header(11), &payload, &mut out), Err(FormatError::TooLong { .. })));
    assert_eq!(out, before);
}

/// Situation: damage makes the length larger than any record. Expectation: torn, and
/// not a read or an allocation of that size.
#[test]
fn a_length_beyond_all_records_is_torn() {
    let mut bytes = vec![0; MAX_RECORD_BYTES + 64];
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(record::decode(&bytes), Decoded::Torn(FormatError::Invalid { .. })));
}

/// Gives altered bytes a checksum that fits.
fn reseal(bytes: &mut [u8]) {
    let crc = ebb_format::crc32c(&[&bytes[..4], &bytes[8..]].concat());
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

use bytes::Bytes;
