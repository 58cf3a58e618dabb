//! One record of a node's log (`docs/format/log.md`): term, kind, length and checksums, then the
//! payload of that kind (O-65).
//!
//! A record is made of lines of 64 bytes at multiples of 64. The first is the header with
//! a checksum of its own; each other line is a tag and 63 bytes of payload. No line of a
//! whole record is all zeros, and a segment is filled with zeros before it is used. So a
//! write that a crash interrupted leaves whole lines of zeros, and only it does: a header
//! that is neither zeros nor right, a tag that is neither zero nor right, or a payload
//! with all its tags and a wrong checksum were written whole and are damaged.

use crate::body::{self, u32_at, u64_at};
use crate::segment::Generation;
use crate::{Format, FormatError, crc32c};
use ebb_model::{Command, Incarnation, LogIndex};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;

/// Where a record belongs, and what was known when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Of the segment it was written to.
    pub generation: Generation,
    pub group: GroupId,
    /// Number of the record in the node's log, markers included, without gaps.
    pub position: Position,
    /// All records up to this one were on the medium when this one was written. It is how
    /// damage to an older record is told from a write that never arrived.
    pub synced: Position,
    pub term: Term,
    /// Of a command: its own. Of a marker: that of the last command before it.
    pub index: LogIndex,
}

/// Counts the records of a node's log, from 1 and without gaps, across segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

/// The partition whose log a record belongs to; several share one stream of segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

/// The reign of the leader that wrote a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term(pub u64);

/// `C` is a borrowed command where it is only written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload<C = Command> {
    Command(C),
    /// Commands up to `upto` are about to be promised: the sync that follows is waited for.
    Forced {
        upto: LogIndex,
    },
    /// The first record of every run of a node and of every segment. Commands above the
    /// header's index that stand before it are void. Under the same `boot_id` everything
    /// that was written is there; under another, commands behind the last
    /// [`Payload::Forced`] were never promised and are cut.
    Start {
        boot_id: u128,
        incarnation: Incarnation,
        /// As the last [`Payload::Forced`] said, whose segment may be gone.
        forced: LogIndex,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub header: RecordHeader,
    pub payload: Payload,
    /// Bytes to the next record, a multiple of [`LINE_BYTES`].
    pub consumed: usize,
}

/// What stands at a position of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded {
    Record(Box<Record>),
    /// A line of zeros: the log ends here, unless [`later`] finds that it once went on.
    End,
    /// Lines are missing: an interrupted write, unless [`later`] finds that it was once whole.
    Torn(FormatError),
    /// Damage, or a whole record that cannot be understood. It must never be cut or skipped.
    Corrupt(FormatError),
}

/// Appends the record to `out`, which stays as it was after an error. Records encoded one
/// after the other into a buffer stay aligned in it.
pub fn encode<C: Borrow<Command>>(
    header: &RecordHeader,
    payload: &Payload<C>,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let (kind, bytes) = write_payload(payload)?;
    let start = out.len();
    out.resize(start + record_bytes(bytes.len()), 0);
    let (head, lines) = out[start..].split_at_mut(LINE_BYTES);
    for (line, content) in lines.chunks_exact_mut(LINE_BYTES).zip(bytes.chunks(CONTENT_BYTES)) {
        line[0] = TAG;
        line[1..=content.len()].copy_from_slice(content);
    }
    head[LENGTH_AT..GENERATION_AT].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    head[GENERATION_AT..GROUP_AT].copy_from_slice(&header.generation.0.to_le_bytes());
    head[GROUP_AT..POSITION_AT].copy_from_slice(&header.group.0.to_le_bytes());
    head[POSITION_AT..SYNCED_AT].copy_from_slice(&header.position.0.to_le_bytes());
    head[SYNCED_AT..TERM_AT].copy_from_slice(&header.synced.0.to_le_bytes());
    head[TERM_AT..INDEX_AT].copy_from_slice(&header.term.0.to_le_bytes());
    head[INDEX_AT..PAYLOAD_CRC_AT].copy_from_slice(&header.index.0.to_le_bytes());
    head[PAYLOAD_CRC_AT..KIND_AT].copy_from_slice(&crc32c(lines).to_le_bytes());
    head[KIND_AT] = kind;
    head[VERSION_AT] = VERSION;
    let crc = crc32c(&head[LENGTH_AT..]);
    head[..LENGTH_AT].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Reads the record at the beginning of `bytes`, which reach to the end of the segment.
pub fn decode(bytes: &[u8]) -> Decoded {
    match frame(bytes) {
        Frame::Whole(whole) => match read_payload(&whole) {
            Ok(payload) => {
                let consumed = LINE_BYTES + whole.lines.len();
                Decoded::Record(Box::new(Record { header: whole.header, payload, consumed }))
            }
            Err(error) => Decoded::Corrupt(error),
        },
        Frame::Zeros => Decoded::End,
        Frame::Torn => Decoded::Torn(FormatError::Truncated {
            format: Format::Record,
            offset: bytes.len() as u64,
            what: "an interrupted write",
        }),
        Frame::Damaged(error) => Decoded::Corrupt(error),
    }
}

/// Headers of the whole records in `bytes` that were written under `generation` and
/// behind `after`. `bytes` begin at a record's position, whole or not.
///
/// A reader asks this wherever a log seems to end, zeros included, because a block that
/// the device lost reads as zeros. A crash may keep later writes and lose earlier ones, so
/// a hit proves damage only if its `synced` covers what is missing, or if nothing but the
/// last write can be missing because the machine never went down.
pub fn later(
    bytes: &[u8],
    generation: Generation,
    after: Position,
) -> impl Iterator<Item = RecordHeader> {
    (0..bytes.len()).step_by(LINE_BYTES).filter_map(move |at| {
        let rest = &bytes[at..];
        // Cheap first: most of what is searched is zeros.
        if rest.len() < LINE_BYTES
            || u32_at(rest, GENERATION_AT) != generation.0
            || u64_at(rest, POSITION_AT) <= after.0
        {
            return None;
        }
        match frame(rest) {
            Frame::Whole(whole) => Some(whole.header),
            Frame::Zeros | Frame::Torn | Frame::Damaged(_) => None,
        }
    })
}

/// Bytes of a record whose payload, with nothing in front, has `payload_bytes`.
pub(crate) const fn record_bytes(payload_bytes: usize) -> usize {
    LINE_BYTES + payload_bytes.div_ceil(CONTENT_BYTES) * LINE_BYTES
}

/// Records begin at multiples of this and consist of such lines. A processor and its
/// devices move memory in units of this size, so that even a page that is being written
/// while the next record is copied into it reaches the medium in whole lines.
pub const LINE_BYTES: usize = 64;

/// Longest payload: a page of installed names or the attributes of one change fit with
/// room to spare. File data does not go through the log.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 20) + (64 << 10);

/// Longest record.
pub const MAX_RECORD_BYTES: usize = record_bytes(MAX_PAYLOAD_BYTES);

/// Longest [`Payload::Forced`] or [`Payload::Start`]: a boot id of 19 bytes, an incarnation of
/// 3 and an index of 10 fit one line of content.
pub const MARKER_BYTES: usize = record_bytes(CONTENT_BYTES);

/// Of a line: the tag stands before them.
const CONTENT_BYTES: usize = LINE_BYTES - 1;
const TAG: u8 = 0xEB;

/// `crc32c u32 | length u32 | generation u32 | group u32 | position u64 | synced u64 |
///  term u64 | index u64 | crc32c of the other lines u32 | kind u8 | version u8 | zeros 10`
pub(crate) const LENGTH_AT: usize = 4;
const GENERATION_AT: usize = 8;
const GROUP_AT: usize = 12;
const POSITION_AT: usize = 16;
const SYNCED_AT: usize = 24;
const TERM_AT: usize = 32;
const INDEX_AT: usize = 40;
pub(crate) const PAYLOAD_CRC_AT: usize = 48;
pub(crate) const KIND_AT: usize = 52;
const VERSION_AT: usize = 53;

const VERSION: u8 = 1;

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
    forced: LogIndex,
}

/// Hardly a command has more.
const USUAL_BYTES: usize = 256;

fn write_payload<C: Borrow<Command>>(payload: &Payload<C>) -> Result<(u8, Vec<u8>), FormatError> {
    let format = Format::Record;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let kind = match payload {
        Payload::Command(command) => {
            body::append(format, command.borrow(), &mut bytes)?;
            COMMAND
        }
        &Payload::Forced { upto } => {
            body::append(format, &Forced { upto }, &mut bytes)?;
            FORCED
        }
        &Payload::Start { boot_id, incarnation, forced } => {
            body::append(format, &Start { boot_id, incarnation, forced }, &mut bytes)?;
            START
        }
    };
    if bytes.len() > MAX_PAYLOAD_BYTES {
        return Err(FormatError::TooLong {
            format,
            len_bytes: bytes.len() as u64,
            max_bytes: MAX_PAYLOAD_BYTES as u64,
        });
    }
    Ok((kind, bytes))
}

enum Frame<'a> {
    Whole(Whole<'a>),
    Zeros,
    Torn,
    Damaged(FormatError),
}

/// A record whose checksums are right, its payload not yet understood.
struct Whole<'a> {
    header: RecordHeader,
    kind: u8,
    version: u8,
    payload_bytes: usize,
    lines: &'a [u8],
}

fn frame(bytes: &[u8]) -> Frame<'_> {
    let format = Format::Record;
    let Some((head, rest)) = bytes.split_at_checked(LINE_BYTES) else {
        return if is_zeros(bytes) { Frame::Zeros } else { Frame::Torn };
    };
    if is_zeros(head) {
        return Frame::Zeros;
    }
    if crc32c(&head[LENGTH_AT..]) != u32_at(head, 0) {
        return Frame::Damaged(FormatError::Checksum {
            format,
            offset: 0,
            what: "a record's header",
        });
    }
    let payload_bytes = u32_at(head, LENGTH_AT) as usize;
    if payload_bytes > MAX_PAYLOAD_BYTES {
        let what = format!("no record has a length of {payload_bytes} bytes");
        return Frame::Damaged(FormatError::Invalid { format, offset: LENGTH_AT as u64, what });
    }
    let Some(lines) = rest.get(..record_bytes(payload_bytes) - LINE_BYTES) else {
        let what = format!("a payload of {payload_bytes} bytes goes past the end of the segment");
        return Frame::Damaged(FormatError::Invalid { format, offset: LENGTH_AT as u64, what });
    };
    if crc32c(lines) != u32_at(head, PAYLOAD_CRC_AT) {
        if lines.chunks_exact(LINE_BYTES).any(is_zeros) {
            return Frame::Torn;
        }
        return Frame::Damaged(FormatError::Checksum {
            format,
            offset: LINE_BYTES as u64,
            what: "a record's payload",
        });
    }
    let header = RecordHeader {
        generation: Generation(u32_at(head, GENERATION_AT)),
        group: GroupId(u32_at(head, GROUP_AT)),
        position: Position(u64_at(head, POSITION_AT)),
        synced: Position(u64_at(head, SYNCED_AT)),
        term: Term(u64_at(head, TERM_AT)),
        index: LogIndex(u64_at(head, INDEX_AT)),
    };
    Frame::Whole(Whole {
        header,
        kind: head[KIND_AT],
        version: head[VERSION_AT],
        payload_bytes,
        lines,
    })
}

pub(crate) fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn read_payload(whole: &Whole<'_>) -> Result<Payload, FormatError> {
    let format = Format::Record;
    if whole.version != VERSION {
        return Err(FormatError::Version { format, found: whole.version, known: VERSION });
    }
    let mut bytes: Vec<u8> = Vec::with_capacity(whole.lines.len());
    for line in whole.lines.chunks_exact(LINE_BYTES) {
        bytes.extend_from_slice(&line[1..]);
    }
    bytes.truncate(whole.payload_bytes);
    let offset = LINE_BYTES as u64;
    Ok(match whole.kind {
        COMMAND => Payload::Command(body::read(format, offset, &bytes)?),
        FORCED => {
            let Forced { upto } = body::read(format, offset, &bytes)?;
            Payload::Forced { upto }
        }
        START => {
            let Start { boot_id, incarnation, forced } = body::read(format, offset, &bytes)?;
            Payload::Start { boot_id, incarnation, forced }
        }
        kind => {
            return Err(FormatError::Invalid {
                format,
                offset: KIND_AT as u64,
                what: format!("record kind {kind} is not known"),
            });
        }
    })
}
