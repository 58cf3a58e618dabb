//! The header of a log segment file (`docs/format/log.md`).

use crate::body::{bytes_at, u32_at};
use crate::{Format, FormatError, crc32c};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    pub generation: Generation,
    pub volume: VolumeId,
    /// Length of the file, from the header to the end of the last record's space. 0 in segments
    /// written before 2026-11-25.
    pub len_bytes: u64,
}

/// Number of one use of a segment file, from 1 and growing. A recycled file gets a new generation,
/// so records of its earlier use are never read as its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(pub u32);

/// The volume of a node's files. Drawn at random when the volume is created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u128);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Records begin here, 4 KiB on, so no write of a record shares a block with the header.
pub const SEGMENT_HEADER_BYTES: usize = 4096;

pub fn encode(header: &SegmentHeader) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEGMENT_HEADER_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[VERSION, 0, 0, 0]);
    out.extend_from_slice(&header.generation.0.to_le_bytes());
    out.extend_from_slice(&header.volume.0.to_le_bytes());
    out.extend_from_slice(&header.len_bytes.to_le_bytes());
    out.resize(CRC_AT, 0);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    debug_assert_eq!(out.len(), SEGMENT_HEADER_BYTES);
    out
}

/// Decodes the first [`SEGMENT_HEADER_BYTES`] of a segment; more bytes can follow.
pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, FormatError> {
    let format = Format::Segment;
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
        return Err(FormatError::Foreign { format });
    }
    let Some(header) = bytes.get(..SEGMENT_HEADER_BYTES) else {
        return Err(FormatError::Truncated {
            format,
            offset: bytes.len() as u64,
            what: "the header",
        });
    };
    if crc32c(&header[..CRC_AT]) != u32_at(header, CRC_AT) {
        return Err(FormatError::Checksum { format, offset: 0, what: "the header" });
    }
    if header[VERSION_AT] != VERSION {
        return Err(FormatError::Version { format, found: header[VERSION_AT], known: VERSION });
    }
    Ok(SegmentHeader {
        generation: Generation(u32_at(header, GENERATION_AT)),
        volume: VolumeId(u128::from_le_bytes(bytes_at(header, VOLUME_AT))),
        len_bytes: u64::from_le_bytes(bytes_at(header, LENGTH_AT)),
    })
}

/// `magic 8 | version u8 | zeros 3 | generation u32 | volume u128 | length u64 | zeros | crc32c
/// u32`
const MAGIC: &[u8; 8] = b"EBBLOG\0\x01";
const VERSION: u8 = 1;
const VERSION_AT: usize = 8;
const GENERATION_AT: usize = 12;
const VOLUME_AT: usize = 16;
const LENGTH_AT: usize = 32;
pub(crate) const CRC_AT: usize = SEGMENT_HEADER_BYTES - 4;
