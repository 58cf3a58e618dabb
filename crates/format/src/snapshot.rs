//! A snapshot of a group's state as a stream (`docs/format/snapshot.md`): a header, frames of
//! one value each, and an end mark. Neither direction does I/O: the writer returns bytes to
//! write, the reader is fed bytes as they arrive.
//!
//! Laws:
//! - Every checksum continues the one before it, so a changed, lost, repeated or reordered frame is
//!   detected at that frame.
//! - A truncated stream has no end mark, and without one nothing of the stream is valid.

use crate::body::{self, bytes_at, u32_at, u64_at};
use crate::checksum::crc32c_of;
use crate::record::{GroupId, Position, Term};
use crate::segment::VolumeId;
use crate::{Format, FormatError};
use bytes::{Buf, Bytes, BytesMut};
use ebb_model::{LogIndex, Version};
use serde::{Deserialize, Serialize};

/// Identity and position of the state in the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotHeader {
    pub volume: VolumeId,
    pub group: GroupId,
    /// Term and index of the last command that the snapshot includes.
    pub term: Term,
    pub index: LogIndex,
    /// The snapshot includes the group's commands up to this position of the log, and none behind
    /// it.
    pub position: Position,
    /// The last version that the partition had assigned; 0 of [`GroupId::LOCAL`].
    pub version: Version,
}

/// Longest content of a frame.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// Encodes a stream. The caller writes the returned byte strings in order.
pub struct SnapshotWriter {
    crc: u32,
    frames: u64,
}

impl SnapshotWriter {
    /// Returns the writer and the stream's first bytes.
    pub fn new(header: &SnapshotHeader) -> (SnapshotWriter, Bytes) {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&header.group.0.to_le_bytes());
        out.extend_from_slice(&header.volume.0.to_le_bytes());
        out.extend_from_slice(&header.term.0.to_le_bytes());
        out.extend_from_slice(&header.index.0.to_le_bytes());
        out.extend_from_slice(&header.position.0.to_le_bytes());
        out.extend_from_slice(&header.version.0.to_le_bytes());
        let crc = crc32c_of(&[&out]);
        out.extend_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        (SnapshotWriter { crc, frames: 0 }, out.into())
    }

    /// Encodes a frame with raw `content`.
    pub fn frame(&mut self, content: &[u8]) -> Result<Bytes, FormatError> {
        let mut out = Vec::with_capacity(FRAME_PREFIX_BYTES + content.len());
        out.extend_from_slice(&[0; FRAME_PREFIX_BYTES]);
        out.extend_from_slice(content);
        self.seal(out)
    }

    /// Encodes a frame with one value, to be decoded by [`Frame::value`].
    pub fn value<T: Serialize>(&mut self, value: &T) -> Result<Bytes, FormatError> {
        let mut out = vec![0; FRAME_PREFIX_BYTES];
        body::append(Format::Snapshot, value, &mut out)?;
        self.seal(out)
    }

    /// The end mark: the stream's last bytes.
    pub fn end(self) -> Bytes {
        let mut out = Vec::with_capacity(END_BYTES);
        out.extend_from_slice(&END_MARK.to_le_bytes());
        let frames = self.frames.to_le_bytes();
        let crc = chained(self.crc, &END_MARK.to_le_bytes(), &frames);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&frames);
        out.into()
    }

    fn seal(&mut self, mut out: Vec<u8>) -> Result<Bytes, FormatError> {
        let len = out.len() - FRAME_PREFIX_BYTES;
        if len > MAX_FRAME_BYTES {
            return Err(FormatError::TooLong {
                format: Format::Snapshot,
                len_bytes: len as u64,
                max_bytes: MAX_FRAME_BYTES as u64,
            });
        }
        let length = (len as u32).to_le_bytes();
        self.crc = chained(self.crc, &length, &out[FRAME_PREFIX_BYTES..]);
        self.frames += 1;
        out[..4].copy_from_slice(&length);
        out[4..FRAME_PREFIX_BYTES].copy_from_slice(&self.crc.to_le_bytes());
        Ok(out.into())
    }
}

/// The next decoded part of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    Header(SnapshotHeader),
    Frame(Frame),
    /// The stream is complete. Only now is it valid to use the decoded values.
    End {
        frames: u64,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Offset of the content from the beginning of the stream.
    pub offset: u64,
    pub content: Bytes,
}

impl Frame {
    pub fn value<'a, T: Deserialize<'a>>(&'a self) -> Result<T, FormatError> {
        body::read(Format::Snapshot, self.offset, &self.content)
    }
}

/// Decodes a stream. After an error every call returns the same error.
pub struct SnapshotReader {
    buffer: BytesMut,
    /// Stream offset of the first byte in `buffer`.
    offset: u64,
    state: State,
}

enum State {
    Header,
    Frames { crc: u32, frames: u64 },
    Ended,
    Failed(FormatError),
}

impl SnapshotReader {
    #[allow(
        clippy::new_without_default,
        reason = "a reader of nothing is not a meaningful default"
    )]
    pub fn new() -> SnapshotReader {
        SnapshotReader { buffer: BytesMut::new(), offset: 0, state: State::Header }
    }

    /// Appends bytes of the stream. The caller then calls [`SnapshotReader::next_part`] until it
    /// returns `None`, which bounds the buffer to one frame and one push.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next part; `None` until more bytes are pushed.
    pub fn next_part(&mut self) -> Result<Option<Part>, FormatError> {
        let result = self.advance();
        if let Err(error) = &result {
            self.state = State::Failed(error.clone());
        }
        result
    }

    /// Ends the input. Returns an error unless the end mark was decoded.
    pub fn finish(self) -> Result<(), FormatError> {
        match self.state {
            State::Ended if self.buffer.is_empty() => Ok(()),
            State::Ended => Err(trailing(self.offset)),
            State::Failed(error) => Err(error),
            State::Header | State::Frames { .. } => Err(FormatError::Truncated {
                format: Format::Snapshot,
                offset: self.offset + self.buffer.len() as u64,
                what: "the stream, before its end mark",
            }),
        }
    }

    fn advance(&mut self) -> Result<Option<Part>, FormatError> {
        match &self.state {
            State::Header => self.header(),
            &State::Frames { crc, frames } => self.frame(crc, frames),
            State::Ended if self.buffer.is_empty() => Ok(None),
            State::Ended => Err(trailing(self.offset)),
            State::Failed(error) => Err(error.clone()),
        }
    }

    fn header(&mut self) -> Result<Option<Part>, FormatError> {
        let format = Format::Snapshot;
        if !self.buffer.starts_with(&MAGIC[..self.buffer.len().min(MAGIC.len())]) {
            return Err(FormatError::Foreign { format });
        }
        if self.buffer.len() <= VERSION_AT {
            return Ok(None);
        }
        let is_old = self.buffer[VERSION_AT] == VERSION_0_1_0;
        let header_bytes = if is_old { HEADER_BYTES_0_1_0 } else { HEADER_BYTES };
        if self.buffer.len() < header_bytes {
            return Ok(None);
        }
        let bytes = self.take(header_bytes);
        let (fields, crc) = bytes.split_at(header_bytes - CRC_BYTES);
        let crc = u32_at(crc, 0);
        if crc32c_of(&[fields]) != crc {
            return Err(FormatError::Checksum { format, offset: 0, what: "the header" });
        }
        if !is_old && bytes[VERSION_AT] != VERSION {
            return Err(FormatError::Version { format, found: bytes[VERSION_AT], known: VERSION });
        }
        self.state = State::Frames { crc, frames: 0 };
        let (group, position, version_at) = match is_old {
            true => (GroupId::PARTITION, Position(0), POSITION_AT),
            false => {
                let position = Position(u64_at(&bytes, POSITION_AT));
                (GroupId(u32_at(&bytes, GROUP_AT)), position, POSITION_AT + 8)
            }
        };
        Ok(Some(Part::Header(SnapshotHeader {
            group,
            volume: VolumeId(u128::from_le_bytes(bytes_at(&bytes, 16))),
            term: Term(u64_at(&bytes, 32)),
            index: LogIndex(u64_at(&bytes, 40)),
            position,
            version: Version(u64_at(&bytes, version_at)),
        })))
    }

    fn frame(&mut self, before: u32, frames: u64) -> Result<Option<Part>, FormatError> {
        let format = Format::Snapshot;
        let at = self.offset;
        if self.buffer.len() < FRAME_PREFIX_BYTES {
            return Ok(None);
        }
        let length = u32_at(&self.buffer, 0);
        let content_bytes = content_bytes(length);
        if content_bytes > MAX_FRAME_BYTES {
            return Err(FormatError::Invalid {
                format,
                offset: at,
                what: format!("no frame has a length of {length} bytes"),
            });
        }
        if self.buffer.len() < FRAME_PREFIX_BYTES + content_bytes {
            return Ok(None);
        }
        let prefix = self.take(FRAME_PREFIX_BYTES);
        let offset = self.offset;
        let content = self.take(content_bytes);
        let crc = u32_at(&prefix, 4);
        if chained(before, &prefix[..4], &content) != crc {
            return Err(FormatError::Checksum {
                format,
                offset: at,
                what: "a frame and all before it",
            });
        }
        if length != END_MARK {
            self.state = State::Frames { crc, frames: frames + 1 };
            return Ok(Some(Part::Frame(Frame { offset, content })));
        }
        let stated = u64_at(&content, 0);
        if stated != frames {
            let what = format!("the end counts {stated} frames where there are {frames}");
            return Err(FormatError::Invalid { format, offset, what });
        }
        self.state = State::Ended;
        Ok(Some(Part::End { frames }))
    }

    fn take(&mut self, len: usize) -> Bytes {
        self.offset += len as u64;
        self.buffer.copy_to_bytes(len)
    }
}

/// `magic 8 | version u8 | zeros 3 | group u32 | volume u128 | term u64 | index u64 | position u64 |
/// version u64 | crc32c u32`
pub(crate) const HEADER_BYTES: usize = HEADER_CRC_AT + CRC_BYTES;
pub(crate) const HEADER_CRC_AT: usize = 64;
const CRC_BYTES: usize = 4;
const MAGIC: &[u8; 8] = b"EBBSNAP\x01";
const VERSION: u8 = 2;
const VERSION_AT: usize = 8;
const GROUP_AT: usize = 12;
const POSITION_AT: usize = 48;

/// Release 0.1.0 had one group, with number 0, and no position in the header. Its backups stay
/// readable.
const VERSION_0_1_0: u8 = 1;
const HEADER_BYTES_0_1_0: usize = HEADER_BYTES - 8;

/// `length u32 | crc32c u32`, then the content.
pub(crate) const FRAME_PREFIX_BYTES: usize = 8;
/// `END_MARK u32 | crc32c u32 | frames u64`
const END_BYTES: usize = 16;
const END_MARK: u32 = u32::MAX;

/// Length of the content behind a prefix with this `length`.
pub(crate) fn content_bytes(length: u32) -> usize {
    if length == END_MARK { size_of::<u64>() } else { length as usize }
}

/// Checksum of a frame. It continues `before`, the checksum of the preceding frame or header.
pub(crate) fn chained(before: u32, length: &[u8], content: &[u8]) -> u32 {
    crc32c_of(&[&before.to_le_bytes(), length, content])
}

fn trailing(offset: u64) -> FormatError {
    FormatError::Invalid {
        format: Format::Snapshot,
        offset,
        what: "bytes follow the end mark".into(),
    }
}

/// Encodes the content of a frame with one value.
pub fn content_of<T: Serialize>(value: &T) -> Result<Vec<u8>, FormatError> {
    let mut content = Vec::new();
    body::append(Format::Snapshot, value, &mut content)?;
    Ok(content)
}

/// Decodes the content of a frame with one value.
pub fn value_of<'a, T: Deserialize<'a>>(content: &'a [u8]) -> Result<T, FormatError> {
    body::read(Format::Snapshot, 0, content)
}
