//! One record of a node's log (`docs/format/log.md`): a header with term, kind, length and
//! checksums, and the payload (O-65).
//!
//! A record consists of lines of 64 bytes at multiples of 64. The first line is the header with a
//! checksum of its own; each other line is a tag and 63 bytes of payload. A segment is filled with
//! zeros before use, and no line of a complete record is all zeros. These rules separate a torn
//! write from damage:
//! - A crash leaves whole lines of zeros in an interrupted write, and nothing else does.
//! - A non-zero header with a wrong checksum, a tag that is neither zero nor `TAG`, or a payload
//!   with all tags and a wrong checksum was written completely and is damaged.

use crate::body::{self, u32_at, u64_at};
use crate::segment::Generation;
use crate::{Format, FormatError, crc32c};
use ebb_model::{Command, Incarnation, LocalCommand, LogIndex};
pub use ebb_model::{GroupId, Position, Term};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;

/// Position of a record in the logs, and the durable prefix at the time of the write.
///
/// Laws: `synced < position`; positions have no gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Generation of the segment that holds the record.
    pub generation: Generation,
    /// Of a marker: [`GroupId::LOCAL`].
    pub group: GroupId,
    /// Number of the record in the node's log, markers included.
    pub position: Position,
    /// All records up to this one were durable when this record was written. Damage to them is
    /// corruption, not a write that never arrived.
    pub synced: Position,
    /// Term of the group. Of a marker: of the run. Of a promise: 0. Of a base: of the snapshot.
    pub term: Term,
    /// Index of the command in its group. Of a marker and of a promise: 0. Of a base: of the
    /// snapshot.
    pub index: LogIndex,
}

/// `C` and `L` are references where the payload is only written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload<C = Command, L = LocalCommand> {
    /// Of a partition's group.
    Command(C),
    /// Of [`GroupId::LOCAL`].
    Local(L),
    /// Records up to `upto` are about to be acknowledged as durable: a sync follows and is
    /// awaited.
    Forced {
        upto: Position,
    },
    Start(Start),
    /// A promise of a replica: its identity, its hard state, or its removal. The content belongs to
    /// consensus. Of a replicated group, as the following two.
    Promise(Vec<u8>),
    /// An entry of the group that is no command. The content belongs to consensus.
    Step(Vec<u8>),
    /// The group goes on from a snapshot.
    Base(Base),
}

/// A snapshot that a replicated group goes on from. Index and term are in the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base<B = Vec<u8>> {
    /// The base belongs to a checkpoint: the entries behind its index stay. Otherwise the snapshot
    /// was installed, and all earlier entries are void.
    pub is_checkpoint: bool,
    /// The content belongs to consensus.
    pub content: B,
}

/// The content of a record of a replicated group, encoded by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoded<'a> {
    /// By [`encode_command`].
    Command(&'a [u8]),
    Promise(&'a [u8]),
    Step(&'a [u8]),
    Base(&'a Base<&'a [u8]>),
}

/// The first record of every run of a node and of every segment. Records behind `cut` and before
/// this one are void, in all groups. Under the same `boot_id` every written byte is present. Under
/// another one, recovery cuts records after the last [`Payload::Forced`]: they were never
/// acknowledged as durable.
///
/// Law: `forced <= cut`, and `cut` is below the position of the record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start {
    pub boot_id: u128,
    pub incarnation: Incarnation,
    /// `upto` of the last [`Payload::Forced`], whose segment can be deleted already.
    pub forced: Position,
    pub cut: Position,
    /// All groups of the log, by id, beginning with [`GroupId::LOCAL`].
    pub groups: Vec<GroupTail>,
}

/// The state of a group at the cut of a [`Start`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTail {
    pub group: GroupId,
    /// Of the group's next command, or lower than that. Of a replicated group: of its last entry.
    pub term: Term,
    /// Of the group's last command or entry; 0 if it has none.
    pub index: LogIndex,
    /// Consensus gives term and index of the group's entries. A start with such a group has version
    /// 3; version 2 has no field for this.
    #[serde(skip)]
    pub is_replicated: bool,
}

/// The golden files keep this text of version 2, which has no flag.
impl fmt::Debug for GroupTail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupTail { group, term, index, is_replicated } = self;
        let mut fields = out.debug_struct("GroupTail");
        fields.field("group", group).field("term", term).field("index", index);
        if *is_replicated {
            fields.field("is_replicated", is_replicated);
        }
        fields.finish()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub header: RecordHeader,
    pub payload: Payload,
    /// Bytes up to the next record, a multiple of [`LINE_BYTES`].
    pub consumed: usize,
}

/// The result of decoding at one position of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded {
    Record(Box<Record>),
    /// A line of zeros: the end of the log, unless [`later`] finds a later record.
    End,
    /// Lines are missing: an interrupted write, unless [`later`] proves that it was once complete.
    Torn(FormatError),
    /// Damage, or a complete record that this version cannot decode. Never cut or skip it.
    Corrupt(FormatError),
}

/// Appends the record to `out`; on error `out` is unchanged. Consecutive records stay aligned
/// within the buffer.
pub fn encode<C: Borrow<Command>, L: Borrow<LocalCommand>>(
    header: &RecordHeader,
    payload: &Payload<C, L>,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let encoded = match payload {
        Payload::Promise(content) => Encoded::Promise(content),
        Payload::Step(content) => Encoded::Step(content),
        Payload::Base(Base { is_checkpoint, content }) => {
            let base = Base { is_checkpoint: *is_checkpoint, content: &content[..] };
            return encode_replicated(header, Encoded::Base(&base), out);
        }
        Payload::Command(_) | Payload::Local(_) | Payload::Forced { .. } | Payload::Start(_) => {
            let (kind, version, bytes) = write_payload(payload)?;
            return append(header, kind, version, &bytes, out);
        }
    };
    encode_replicated(header, encoded, out)
}

/// Appends a record of a replicated group to `out`, as [`encode`] does.
pub fn encode_replicated(
    header: &RecordHeader,
    encoded: Encoded<'_>,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    match encoded {
        Encoded::Command(bytes) => append(header, COMMAND, VERSION, bytes, out),
        Encoded::Promise(bytes) => append(header, PROMISE, REPLICATED_VERSION, bytes, out),
        Encoded::Step(bytes) => append(header, STEP, REPLICATED_VERSION, bytes, out),
        Encoded::Base(base) => {
            let bytes = [&[u8::from(base.is_checkpoint)], base.content].concat();
            append(header, BASE, REPLICATED_VERSION, &bytes, out)
        }
    }
}

/// The payload of a command's record.
pub fn encode_command(command: &Command) -> Result<Vec<u8>, FormatError> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    body::append(Format::Record, command, &mut bytes)?;
    Ok(bytes)
}

/// The command of such a payload.
pub fn decode_command(bytes: &[u8]) -> Result<Command, FormatError> {
    body::read(Format::Record, 0, bytes)
}

fn append(
    header: &RecordHeader,
    kind: u8,
    version: u8,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    if bytes.len() > MAX_PAYLOAD_BYTES {
        return Err(FormatError::TooLong {
            format: Format::Record,
            len_bytes: bytes.len() as u64,
            max_bytes: MAX_PAYLOAD_BYTES as u64,
        });
    }
    assert!(is_of_group(kind, header.group), "kind {kind} in group {}", header.group.0);
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
    head[VERSION_AT] = version;
    let crc = crc32c(&head[LENGTH_AT..]);
    head[..LENGTH_AT].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Decodes the record at the start of `bytes`, which extend to the end of the segment.
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

/// Headers of the complete records in `bytes` with this `generation` and a position `> after`.
/// `bytes` start at a position of a record, complete or not.
///
/// A reader calls this wherever a log seems to end, zeros included, since a block that the device
/// lost reads as zeros. A crash can keep later writes and lose earlier ones. So a hit proves damage
/// in two cases only:
/// - its `synced` covers the missing position;
/// - the machine never went down, so at most the last write can be missing.
pub fn later(
    bytes: &[u8],
    generation: Generation,
    after: Position,
) -> impl Iterator<Item = RecordHeader> {
    (0..bytes.len()).step_by(LINE_BYTES).filter_map(move |at| {
        let rest = &bytes[at..];
        // Cheap comparisons first: most of the searched bytes are zeros.
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

/// Length of a record whose encoded payload has `payload_bytes`, without the tags.
pub(crate) const fn record_bytes(payload_bytes: usize) -> usize {
    LINE_BYTES + payload_bytes.div_ceil(CONTENT_BYTES) * LINE_BYTES
}

/// Alignment and unit of records. Processors and devices move memory in units of this size. So a
/// cached page under writeback, into which the next record is copied, reaches the medium in whole
/// lines.
pub const LINE_BYTES: usize = 64;

/// Longest payload: a batch of installed names, or the extended attributes of one inode, 512 KiB
/// each, with room to spare for keys and links. A record fits a message between nodes, of 1 MiB +
/// 64 KiB. File data does not pass through the log.
pub const MAX_PAYLOAD_BYTES: usize = 768 << 10;

/// Longest record.
pub const MAX_RECORD_BYTES: usize = record_bytes(MAX_PAYLOAD_BYTES);

/// Longest [`Payload::Forced`]: a position of 10 bytes fits one line.
pub const FORCED_BYTES: usize = record_bytes(CONTENT_BYTES);

/// Longest [`Start`] of a log with so many groups: a boot id of 19 bytes, three numbers of 10 and
/// the number of groups of 2; of each group an id of 5 bytes and two numbers of 10.
pub const fn start_bytes(groups: usize) -> usize {
    record_bytes(19 + 3 * 10 + 2 + groups * (5 + 2 * 10))
}

/// The same of a log with a replicated group: a flag for each group.
pub const fn replicated_start_bytes(groups: usize) -> usize {
    record_bytes(19 + 3 * 10 + 2 + groups * (5 + 2 * 10 + 1))
}

/// Most groups of one log. A [`Start`] lists all of them.
pub const MAX_GROUPS: usize = 256;

/// Payload bytes of a line, which follow its tag.
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

/// Version 1 had one group, and counted forced records by its indices (release 0.1.0).
const VERSION: u8 = 2;

/// Of promises, steps, bases, and of starts in a log with a replicated group. A reader that knows
/// version 2 only stops there: to skip one would lose a promise.
const REPLICATED_VERSION: u8 = 3;

const COMMAND: u8 = 1;
const FORCED: u8 = 2;
const START: u8 = 3;
const PROMISE: u8 = 4;
const STEP: u8 = 5;
const BASE: u8 = 6;
const LOCAL: u8 = 8;

/// Reserved for leases, which a newer release writes with the next version. A reader stops there.
const RESERVED: u8 = 7;

/// The payload of a [`Start`] of version 3.
#[derive(Serialize, Deserialize)]
struct ReplicatedStart {
    boot_id: u128,
    incarnation: Incarnation,
    forced: Position,
    cut: Position,
    groups: Vec<(GroupTail, bool)>,
}

#[derive(Serialize, Deserialize)]
struct Forced {
    upto: Position,
}

/// Whether records of this kind can be of the group.
fn is_of_group(kind: u8, group: GroupId) -> bool {
    (group == GroupId::LOCAL) != matches!(kind, COMMAND | PROMISE | STEP | BASE)
}

/// Initial capacity; most commands are shorter.
const USUAL_BYTES: usize = 256;

fn write_payload<C: Borrow<Command>, L: Borrow<LocalCommand>>(
    payload: &Payload<C, L>,
) -> Result<(u8, u8, Vec<u8>), FormatError> {
    let format = Format::Record;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let (kind, version) = match payload {
        Payload::Command(command) => {
            body::append(format, command.borrow(), &mut bytes)?;
            (COMMAND, VERSION)
        }
        Payload::Local(command) => {
            body::append(format, command.borrow(), &mut bytes)?;
            (LOCAL, VERSION)
        }
        &Payload::Forced { upto } => {
            body::append(format, &Forced { upto }, &mut bytes)?;
            (FORCED, VERSION)
        }
        Payload::Start(start) => {
            assert!(is_in_order(&start.groups), "the groups of a start are in order");
            let version = match start.groups.iter().any(|tail| tail.is_replicated) {
                false => {
                    body::append(format, start, &mut bytes)?;
                    VERSION
                }
                true => {
                    let &Start { boot_id, incarnation, forced, cut, .. } = start;
                    let groups = start.groups.iter().map(|tail| (*tail, tail.is_replicated));
                    let groups = groups.collect();
                    let start = ReplicatedStart { boot_id, incarnation, forced, cut, groups };
                    body::append(format, &start, &mut bytes)?;
                    REPLICATED_VERSION
                }
            };
            (START, version)
        }
        Payload::Promise(_) | Payload::Step(_) | Payload::Base(_) => {
            unreachable!("its content is encoded already")
        }
    };
    Ok((kind, version, bytes))
}

/// Records of release 0.1.0, which are only read.
pub mod release_0_1_0 {
    use super::{COMMAND, FORCED, Format, Frame, START, body, frame};
    use crate::FormatError;
    use ebb_model::{Command, LogIndex};

    const VERSION: u8 = 1;

    pub struct Record {
        /// Of the command. Of the start of a run or a segment: commands with higher indices before
        /// it are void.
        pub index: LogIndex,
        /// `None` for the start of a run or a segment, and for a marker, which voids nothing.
        pub command: Option<Command>,
        /// Bytes up to the next record.
        pub consumed: usize,
    }

    /// The record at the start of `bytes`; `None` where the log ends or a write was interrupted.
    pub fn decode(bytes: &[u8]) -> Result<Option<Record>, FormatError> {
        let format = Format::Record;
        let whole = match frame(bytes) {
            Frame::Whole(whole) => whole,
            Frame::Zeros | Frame::Torn => return Ok(None),
            Frame::Damaged(error) => return Err(error),
        };
        if whole.version != VERSION {
            return Err(FormatError::Version { format, found: whole.version, known: VERSION });
        }
        let command = match whole.kind {
            COMMAND => Some(body::read(format, super::LINE_BYTES as u64, &whole.payload())?),
            FORCED | START => None,
            kind => {
                let what = format!("record kind {kind} is not supported");
                return Err(FormatError::Invalid { format, offset: super::KIND_AT as u64, what });
            }
        };
        let consumed = super::LINE_BYTES + whole.lines.len();
        Ok(Some(Record { index: whole.header.index, command, consumed }))
    }
}

enum Frame<'a> {
    Whole(Whole<'a>),
    Zeros,
    Torn,
    Damaged(FormatError),
}

/// A record whose checksums match; its payload is not decoded yet.
struct Whole<'a> {
    header: RecordHeader,
    kind: u8,
    version: u8,
    payload_bytes: usize,
    lines: &'a [u8],
}

impl Whole<'_> {
    /// The payload without tags and filling.
    fn payload(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::with_capacity(self.lines.len());
        for line in self.lines.chunks_exact(LINE_BYTES) {
            bytes.extend_from_slice(&line[1..]);
        }
        bytes.truncate(self.payload_bytes);
        bytes
    }
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
    let known = match whole.kind {
        PROMISE | STEP | BASE => REPLICATED_VERSION,
        START if whole.version == REPLICATED_VERSION => REPLICATED_VERSION,
        RESERVED => {
            let (found, known) = (REPLICATED_VERSION + 1, REPLICATED_VERSION);
            return Err(FormatError::Version { format, found, known });
        }
        _ => VERSION,
    };
    if whole.version != known {
        return Err(FormatError::Version { format, found: whole.version, known });
    }
    let mut bytes = whole.payload();
    let offset = LINE_BYTES as u64;
    let payload = match whole.kind {
        COMMAND => Payload::Command(body::read(format, offset, &bytes)?),
        LOCAL => Payload::Local(body::read(format, offset, &bytes)?),
        FORCED => {
            let Forced { upto } = body::read(format, offset, &bytes)?;
            Payload::Forced { upto }
        }
        START => Payload::Start(read_start(whole.version, &bytes)?),
        PROMISE => Payload::Promise(bytes),
        STEP => Payload::Step(bytes),
        BASE => {
            let is_checkpoint = match bytes.first() {
                Some(0) => false,
                Some(1) => true,
                _ => {
                    let what = "a base is neither installed nor of a checkpoint".into();
                    return Err(FormatError::Invalid { format, offset, what });
                }
            };
            bytes.remove(0);
            Payload::Base(Base { is_checkpoint, content: bytes })
        }
        kind => {
            return Err(FormatError::Invalid {
                format,
                offset: KIND_AT as u64,
                what: format!("record kind {kind} is not supported"),
            });
        }
    };
    if !is_of_group(whole.kind, whole.header.group) {
        let what = format!("record kind {} in group {}", whole.kind, whole.header.group.0);
        return Err(FormatError::Invalid { format, offset: GROUP_AT as u64, what });
    }
    Ok(payload)
}

fn read_start(version: u8, bytes: &[u8]) -> Result<Start, FormatError> {
    let (format, offset) = (Format::Record, LINE_BYTES as u64);
    let start: Start = match version {
        REPLICATED_VERSION => {
            let start: ReplicatedStart = body::read(format, offset, bytes)?;
            let ReplicatedStart { boot_id, incarnation, forced, cut, groups } = start;
            let with = |(tail, is_replicated)| GroupTail { is_replicated, ..tail };
            let groups: Vec<GroupTail> = groups.into_iter().map(with).collect();
            if !groups.iter().any(|tail| tail.is_replicated) {
                let what = "a start record of version 3 without a replicated group".into();
                return Err(FormatError::Invalid { format, offset, what });
            }
            Start { boot_id, incarnation, forced, cut, groups }
        }
        _ => body::read(format, offset, bytes)?,
    };
    if !is_in_order(&start.groups) || start.groups[0].is_replicated {
        let what = "the groups of a start record are not in order".into();
        return Err(FormatError::Invalid { format, offset, what });
    }
    Ok(start)
}

/// The law of [`Start::groups`].
fn is_in_order(groups: &[GroupTail]) -> bool {
    groups.len() <= MAX_GROUPS
        && groups.first().is_some_and(|first| first.group == GroupId::LOCAL)
        && groups.is_sorted_by(|one, next| one.group < next.group)
}
