//! Read-only plans for the node: sources of a read, preparations of a write, candidates of
//! eviction.

use super::ByteMap;
use crate::blocks::{runs, touched_blocks, whole_blocks};
use ebb_model::{BLOCK_BYTES, Ino, Planted};
use std::ops::Range;

/// The source of a range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrigin {
    /// In the store file.
    Local,
    /// In the backing object, at the same offset; its blocks must be filled first.
    Remote,
    /// A hole: zeros.
    Zero,
}

/// A run of bytes with one source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    pub origin: ByteOrigin,
    pub range: Range<u64>,
}

/// Makes an absent block present: its first `object_bytes` are the object's at the same offset, the
/// rest is zeros. The store file's former bytes there are undefined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub block: u64,
    pub object_bytes: u64,
}

impl Fill {
    /// The bytes of the block.
    pub fn range(&self) -> Range<u64> {
        self.block * BLOCK_BYTES..(self.block + 1) * BLOCK_BYTES
    }
}

/// A block that is zeroed in part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edge {
    /// These present bytes are to be overwritten.
    Present { bytes: Range<u64>, dirty: bool },
    /// The object has bytes there: the block must be filled first.
    Missing(Fill),
}

impl ByteMap<'_> {
    /// Segments of `range` in a file of `size_bytes`, in order and without gaps, cut at the end of
    /// the file. Written bytes take precedence over the object's (O-81).
    pub fn plan_read(self, ino: Ino, range: Range<u64>, size_bytes: u64) -> Vec<Segment> {
        let end = range.end.min(size_bytes);
        let valid_bytes = self.content.valid_bytes(ino);
        let blocks = range.start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let mut present = self.present(ino, blocks).map(|(block, _)| block).peekable();
        let mut segments = Vec::<Segment>::new();
        let mut push = |origin, range: Range<u64>| match segments.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.origin == origin => last.range.end = range.end,
            _ => segments.push(Segment { origin, range }),
        };
        let mut at = range.start;
        while at < end {
            let block = at / BLOCK_BYTES;
            let block_end = (block + 1).saturating_mul(BLOCK_BYTES).min(end);
            if present.next_if_eq(&block).is_some() {
                push(ByteOrigin::Local, at..block_end);
                at = block_end;
                continue;
            }
            self.assert_clean(ino, block);
            if self.is_hole(ino, block) && !Planted::HoleReadsObject.is_on() {
                push(ByteOrigin::Zero, at..block_end);
            } else {
                let border = valid_bytes.clamp(at, block_end);
                push(ByteOrigin::Remote, at..border);
                push(ByteOrigin::Zero, border..block_end);
            }
            at = block_end;
        }
        segments
    }

    /// The fills of the absent blocks among `blocks`.
    pub fn fills(self, ino: Ino, blocks: Range<u64>) -> Vec<Fill> {
        let mut present = self.present(ino, blocks.clone()).map(|(block, _)| block).peekable();
        let absent = blocks.filter(|block| present.next_if_eq(block).is_none());
        absent.map(|block| Fill { block, object_bytes: self.object_bytes(ino, block) }).collect()
    }

    /// Partly covered absent blocks, at most two, to be filled before the write: writes can start
    /// anywhere (O-40). The paper records writes beside the object and merges them (O-81); here
    /// writes happen in place. Bytes that the write replaces are not fetched.
    pub fn missing_for_write(self, ino: Ino, offset: u64, len_bytes: u64) -> Vec<Fill> {
        let touched = touched_blocks(offset, len_bytes);
        let whole = whole_blocks(offset, len_bytes);
        let mut partial = vec![touched.start, touched.end.saturating_sub(1)];
        partial.dedup();
        partial.retain(|block| {
            touched.contains(block) && !whole.contains(block) && !self.is_present(ino, *block)
        });
        let fill = |block: u64| {
            let object_bytes = self.object_bytes(ino, block);
            let start = block * BLOCK_BYTES;
            let replaced =
                offset <= start && offset.saturating_add(len_bytes) >= start + object_bytes;
            Fill { block, object_bytes: if replaced { 0 } else { object_bytes } }
        };
        partial.into_iter().map(fill).collect()
    }

    /// The blocks that zeroing a range changes in part, at most two.
    pub fn edges(self, ino: Ino, range: &Range<u64>) -> Vec<Edge> {
        let mut blocks = vec![range.start / BLOCK_BYTES, range.end / BLOCK_BYTES];
        blocks.dedup();
        let edge = |block: u64| {
            let start = block * BLOCK_BYTES;
            let bytes = range.start.max(start)..range.end.min(start + BLOCK_BYTES);
            if bytes.is_empty() || bytes == (start..start + BLOCK_BYTES) {
                return None;
            }
            if let Some(state) = self.block(ino, block) {
                return Some(Edge::Present { bytes, dirty: state.dirty });
            }
            let object_bytes = self.object_bytes(ino, block);
            (start + object_bytes > bytes.start)
                .then_some(Edge::Missing(Fill { block, object_bytes }))
        };
        blocks.into_iter().filter_map(edge).collect()
    }

    /// Runs of present blocks.
    pub fn resident_runs(self, ino: Ino, blocks: Range<u64>) -> Vec<Range<u64>> {
        runs(self.present(ino, blocks).map(|(block, _)| block))
    }

    /// Runs of dirty blocks.
    pub fn dirty_runs(self, ino: Ino, blocks: Range<u64>) -> Vec<Range<u64>> {
        self.content.dirty_runs(ino, blocks)
    }

    /// Whether the object has exactly these bytes at the same offset, cached or not. A block with a
    /// void checksum can differ.
    pub fn is_as_in_object(self, ino: Ino, range: Range<u64>) -> bool {
        let blocks = touched_blocks(range.start, range.end - range.start);
        let hole = self.content.next_hole(ino, blocks.start);
        range.end <= self.content.valid_bytes(ino)
            && !self.is_exposed(ino)
            && hole.is_none_or(|hole| hole.start >= blocks.end)
            && self.present(ino, blocks).all(|(_, state)| !state.dirty && state.sum.is_some())
    }

    /// Runs of clean blocks of one chunk: its eviction makes them absent.
    pub fn clean_runs(self, ino: Ino, chunk: u64) -> Vec<Range<u64>> {
        runs(
            self.chunk_blocks(ino, chunk).filter(|(_, state)| !state.dirty).map(|(block, _)| block),
        )
    }
}
