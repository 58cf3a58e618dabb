//! One record of a partition's log (`docs/format/log.md`).

use crate::body::{self, u32_at, u64_at};
use crate::checksum::crc32c_of;
use crate::segment::Generation;
use crate::{Format, FormatError};
use ebb_model::{Command, Incarnation, LogIndex};
use serde::{Deserialize, Serialize};

/// Where a record belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    pub group: GroupId,
    pub term: Term,
    pub index: LogIndex,
    /// Of the segment it was written to; anything else there is left from the segment's earlier life.
    pub generation: Generation,
}

/// The partition whose log a record belongs to; several share one stream of segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

/// The reign of the leader that wrote a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term(pub u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    Command(Command),
    /// All records up to `upto`, and the data files that they speak of, were synced
    /// before this was written.
    Forced {
        upto: LogIndex,
    },
    /// The first record of every run of a node. Under the same `boot_id` everything that
    /// was written is there; under another, records behind the last [`Payload::Forced`]
    /// were never promised and are cut.
    Start {
        boot_id: u128,
        incarnation: Incarnation,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub header: RecordHeader,
    pub payload: Payload,
    /// Bytes to the next record, a multiple of [`RECORD_ALIGN`].
    pub consumed: usize,
}

/// What stands at a position of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded {
    Record(Box<Record>),
    /// Zeros, as a fresh segment is filled with.
    EndOfLog,
    /// Not a whole record: an interrupted write, what an earlier life of the segment
    /// left, or damage. [`find`] tells them apart: if a later record proves that this
    /// one was whole once, it is damage; otherwise the log ends here.
    Torn(FormatError),
    /// A whole record that cannot be understood. It must never be cut or skipped.
    Corrupt(FormatError),
}

/// Appends the record to `out`, which stays as it was after an error. Records encoded one
/// after the other into a buffer stay aligned in it.
pub fn encode(header: &RecordHeader, payload: &Payload, out: &mut Vec<u8>) -> Result<(), FormatError> {
    let start = out.len();
    let result = append(header, payload, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Reads the record at the beginning of `bytes`, which reach to the end of the segment or
/// hold at least [`MAX_RECORD_BYTES`]: a record that goes past them counts as torn.
pub fn decode(bytes: &[u8]) -> Decoded {
    match frame(bytes) {
        Frame::Whole { header, kind, payload, consumed } => match read_payload(kind, payload) {
            Ok(payload) => Decoded::Record(Box::new(Record { header, payload, consumed })),
            Err(error) => Decoded::Corrupt(error),
        },
        Frame::Empty => Decoded::EndOfLog,
        Frame::Torn(error) => Decoded::Torn(error),
    }
}

/// Position of the first whole record in `bytes` that was written under `generation` and
/// behind `after`. `bytes` begin at a record's position, whole or not.
///
/// The reader asks this wherever a log seems to end, zeros included: a block that the
/// device lost reads as zeros. What a hit means depends on the run that wrote it:
/// - same boot: nothing written can be missing, so the log is damaged;
/// - another boot: the device may have kept later blocks and lost earlier ones that were
///   not forced, so only a [`Payload::Forced`] that covers the gap proves damage.
pub fn find(bytes: &[u8], generation: Generation, after: LogIndex) -> Option<usize> {
    (0..bytes.len()).step_by(RECORD_ALIGN).find(|&at| {
        let rest = &bytes[at..];
        // Cheap first: most of what is searched is zeros or the inside of other records.
        rest.len() >= HEADER_BYTES
            && u32_at(rest, GENERATION_AT) == generation.0
            && u64_at(rest, INDEX_AT) > after.0
            && matches!(frame(rest), Frame::Whole { .. })
    })
}

/// `length u32 | crc32c u32 | group u32 | term u64 | index u64 | generation u32 | kind u8`
const HEADER_BYTES: usize = 33;
const LENGTH_AT: usize = 0;
const CRC_AT: usize = 4;
const GROUP_AT: usize = 8;
const TERM_AT: usize = 12;
const INDEX_AT: usize = 20;
const GENERATION_AT: usize = 28;
const KIND_AT: usize = 32;

/// What follows the checksum: `length` counts from here, without padding.
const BODY_AT: usize = GROUP_AT;

/// Records begin at multiples of this.
pub const RECORD_ALIGN: usize = 8;

/// Longest payload: a page of installed names or the attributes of one change fit with
/// room to spare. File data does not go through the log.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 20) + (64 << 10);

/// Longest record with its padding.
pub const MAX_RECORD_BYTES: usize = (HEADER_BYTES + MAX_PAYLOAD_BYTES).next_multiple_of(RECORD_ALIGN);

const PAYLOAD_VERSION: u8 = 1;

const COMMAND: u8 = 1;
const FORCED: u8 = 2;
const START: u8 = 3;

#[derive(Serialize, Deserialize)]
struct Forced {
    upto: LogIndex,
}

#[derive(Serialize, Deserialize)]
struct Start {
    boot_id: u128,
    incarnation: Incarnation,
}

fn append(header: &RecordHeader, payload: &Payload, out: &mut Vec<u8>) -> Result<(), FormatError> {
    let start = out.len();
    out.extend_from_slice(&[0; BODY_AT]);
    out.extend_from_slice(&header.group.0.to_le_bytes());
    out.extend_from_slice(&header.term.0.to_le_bytes());
    out.extend_from_slice(&header.index.0.to_le_bytes());
    out.extend_from_slice(&header.generation.0.to_le_bytes());
    out.push(match payload {
        Payload::Command(_) => COMMAND,
        Payload::Forced { .. } => FORCED,
        Payload::Start { .. } => START,
    });
    out.push(PAYLOAD_VERSION);
    match payload {
        Payload::Command(command) => body::append(Format::Record, command, out)?,
        Payload::Forced { upto } => body::append(Format::Record, &Forced { upto: *upto }, out)?,
        Payload::Start { boot_id, incarnation } => {
            body::append(Format::Record, &Start { boot_id: *boot_id, incarnation: *incarnation }, out)?
        }
    }
    let payload_bytes = out.len() - start - HEADER_BYTES;
    if payload_bytes > MAX_PAYLOAD_BYTES {
        return Err(FormatError::TooLong { format: Format::Record, len_bytes: payload_bytes as u64, max_bytes: MAX_PAYLOAD_BYTES as u64 });
    }
    let length = (out.len() - start - BODY_AT) as u32;
    out.resize(start + (out.len() - start).next_multiple_of(RECORD_ALIGN), 0);

    let record = &mut out[start..];
    record[LENGTH_AT..CRC_AT].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(record);
    record[CRC_AT..BODY_AT].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Of everything but itself: a flipped bit of the length or the padding shows as well.
fn checksum(record: &[u8]) -> u32 {
    crc32c_of(&[&record[..CRC_AT], &record[BODY_AT..]])
}

enum Frame<'a> {
    Whole { header: RecordHeader, kind: u8, payload: &'a [u8], consumed: usize },
    Empty,
    Torn(FormatError),
}

/// A record up to its checksum, its payload not yet understood.
fn frame(bytes: &[u8]) -> Frame<'_> {
    let truncated = || FormatError::Truncated { format: Format::Record, offset: bytes.len() as u64, what: "a record" };
    if bytes.len() < BODY_AT {
        return if bytes.iter().all(|&byte| byte == 0) { Frame::Empty } else { Frame::Torn(truncated()) };
    }
    let length = u32_at(bytes, LENGTH_AT) as usize;
    if length == 0 {
        return Frame::Empty;
    }
    if !(HEADER_BYTES - BODY_AT..=HEADER_BYTES - BODY_AT + MAX_PAYLOAD_BYTES).contains(&length) {
        let what = format!("no record has a length of {length} bytes");
        return Frame::Torn(FormatError::Invalid { format: Format::Record, offset: LENGTH_AT as u64, what });
    }
    let end = BODY_AT + length;
    let consumed = end.next_multiple_of(RECORD_ALIGN);
    let Some(record) = bytes.get(..consumed) else {
        return Frame::Torn(truncated());
    };
    if checksum(record) != u32_at(record, CRC_AT) {
        return Frame::Torn(FormatError::Checksum { format: Format::Record, offset: 0, what: "a record" });
    }
    let header = RecordHeader {
        group: GroupId(u32_at(record, GROUP_AT)),
        term: Term(u64_at(record, TERM_AT)),
        index: LogIndex(u64_at(record, INDEX_AT)),
        generation: Generation(u32_at(record, GENERATION_AT)),
    };
    Frame::Whole { header, kind: record[KIND_AT], payload: &record[HEADER_BYTES..end], consumed }
}

fn read_payload(kind: u8, payload: &[u8]) -> Result<Payload, FormatError> {
    let format = Format::Record;
    let Some((&version, bytes)) = payload.split_first() else {
        return Err(FormatError::Invalid { format, offset: HEADER_BYTES as u64, what: "a record without payload".into() });
    };
    if version != PAYLOAD_VERSION {
        return Err(FormatError::Version { format, found: version, known: PAYLOAD_VERSION });
    }
    let offset = HEADER_BYTES as u64 + 1;
    Ok(match kind {
        COMMAND => Payload::Command(body::read(format, offset, bytes)?),
        FORCED => {
            let Forced { upto } = body::read(format, offset, bytes)?;
            Payload::Forced { upto }
        }
        START => {
            let Start { boot_id, incarnation } = body::read(format, offset, bytes)?;
            Payload::Start { boot_id, incarnation }
        }
        _ => return Err(FormatError::Invalid { format, offset: KIND_AT as u64, what: format!("record kind {kind} is not known") }),
    })
}
