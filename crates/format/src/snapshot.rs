//! A snapshot of a partition as a stream (`docs/format/snapshot.md`): a header, frames
//! that each carry one value, and an end. Neither side does I/O: the writer returns bytes to
//! write, the reader is fed bytes as they come.
//!
//! Law: every checksum continues the one before it, so a frame that is changed, lost,
//! doubled or out of place is noticed at that frame, and a stream that stops early has no end.

use crate::body::{self, bytes_at, u32_at, u64_at};
use crate::checksum::crc32c_of;
use crate::record::{GroupId, Term};
use crate::segment::VolumeId;
use crate::{Format, FormatError};
use bytes::{Buf, Bytes, BytesMut};
use ebb_model::{LogIndex, Version};
use serde::{Deserialize, Serialize};

/// What the snapshot is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotHeader {
    pub volume: VolumeId,
    pub group: GroupId,
    /// Term and index of the last command that is in the snapshot.
    pub term: Term,
    pub index: LogIndex,
    /// The last version that the partition had given out.
    pub version: Version,
}

/// Longest content of a frame.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// Makes the pieces of a stream, to be written in the order in which they are returned.
pub struct SnapshotWriter {
    crc: u32,
    frames: u64,
}

impl SnapshotWriter {
    /// The writer and the stream's first bytes.
    pub fn new(header: &SnapshotHeader) -> (SnapshotWriter, Bytes) {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&header.group.0.to_le_bytes());
        out.extend_from_slice(&header.volume.0.to_le_bytes());
        out.extend_from_slice(&header.term.0.to_le_bytes());
        out.extend_from_slice(&header.index.0.to_le_bytes());
        out.extend_from_slice(&header.version.0.to_le_bytes());
        let crc = crc32c_of(&[&out]);
        out.extend_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        (SnapshotWriter { crc, frames: 0 }, out.into())
    }

    /// A frame that carries `content` as it is.
    pub fn frame(&mut self, content: &[u8]) -> Result<Bytes, FormatError> {
        let mut out = Vec::with_capacity(FRAME_PREFIX_BYTES + content.len());
        out.extend_from_slice(&[0; FRAME_PREFIX_BYTES]);
        out.extend_from_slice(content);
        self.seal(out)
    }

    /// A frame that carries one value, to be read by [`Frame::value`].
    pub fn value<T: Serialize>(&mut self, value: &T) -> Result<Bytes, FormatError> {
        let mut out = vec![0; FRAME_PREFIX_BYTES];
        body::append(Format::Snapshot, value, &mut out)?;
        self.seal(out)
    }

    /// The stream's last bytes.
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

/// What a reader finds next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    Header(SnapshotHeader),
    Frame(Frame),
    /// The stream is whole. Only now may what was read be used.
    End {
        frames: u64,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Of the content, from the beginning of the stream.
    pub offset: u64,
    pub content: Bytes,
}

impl Frame {
    pub fn value<'a, T: Deserialize<'a>>(&'a self) -> Result<T, FormatError> {
        body::read(Format::Snapshot, self.offset, &self.content)
    }
}

/// Takes a stream apart. After an error it gives the same error for ever.
pub struct SnapshotReader {
    buffer: BytesMut,
    /// Of the first byte in `buffer`, from the beginning of the stream.
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

    /// Takes in more of the stream. [`SnapshotReader::next_part`] is then called until it gives
    /// `None`, which bounds what is held here to one frame and one push.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next part, or `None` until more has been pushed.
    pub fn next_part(&mut self) -> Result<Option<Part>, FormatError> {
        let result = self.advance();
        if let Err(error) = &result {
            self.state = State::Failed(error.clone());
        }
        result
    }

    /// To be called when there is no more to push: an error unless the end was read.
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
        if self.buffer.len() < HEADER_BYTES {
            return Ok(None);
        }
        let bytes = self.take(HEADER_BYTES);
        let crc = u32_at(&bytes, HEADER_CRC_AT);
        if crc32c_of(&[&bytes[..HEADER_CRC_AT]]) != crc {
            return Err(FormatError::Checksum { format, offset: 0, what: "the header" });
        }
        if bytes[VERSION_AT] != VERSION {
            return Err(FormatError::Version { format, found: bytes[VERSION_AT], known: VERSION });
        }
        self.state = State::Frames { crc, frames: 0 };
        Ok(Some(Part::Header(SnapshotHeader {
            group: GroupId(u32_at(&bytes, 12)),
            volume: VolumeId(u128::from_le_bytes(bytes_at(&bytes, 16))),
            term: Term(u64_at(&bytes, 32)),
            index: LogIndex(u64_at(&bytes, 40)),
            version: Version(u64_at(&bytes, 48)),
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

/// `magic 8 | version u8 | zeros 3 | group u32 | volume u128 | term u64 | index u64 | version u64 |
/// crc32c u32`
pub(crate) const HEADER_BYTES: usize = 60;
pub(crate) const HEADER_CRC_AT: usize = 56;
const MAGIC: &[u8; 8] = b"EBBSNAP\x01";
const VERSION: u8 = 1;
const VERSION_AT: usize = 8;

/// `length u32 | crc32c u32`, then the content.
pub(crate) const FRAME_PREFIX_BYTES: usize = 8;
/// `END_MARK u32 | crc32c u32 | frames u64`
const END_BYTES: usize = 16;
const END_MARK: u32 = u32::MAX;

/// Behind a prefix that begins with `length`.
pub(crate) fn content_bytes(length: u32) -> usize {
    if length == END_MARK { size_of::<u64>() } else { length as usize }
}

/// Checksum of a frame, which continues `before`, that of the frame or header before it.
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

/// The content of a frame that holds a value.
pub fn content_of<T: Serialize>(value: &T) -> Result<Vec<u8>, FormatError> {
    let mut content = Vec::new();
    body::append(Format::Snapshot, value, &mut content)?;
    Ok(content)
}

/// The value that the content of a frame holds.
pub fn value_of<'a, T: Deserialize<'a>>(content: &'a [u8]) -> Result<T, FormatError> {
    body::read(Format::Snapshot, 0, content)
}
