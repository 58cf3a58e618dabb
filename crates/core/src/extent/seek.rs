//! SEEK_DATA and SEEK_HOLE: bytes in the store file or in the object are data, zeros are holes.

use super::Extents;
use ebb_model::{BLOCK_BYTES, Ino};

impl Extents {
    /// The first byte of data at `offset` or behind it; `None` if there is none.
    pub fn seek_data(&self, ino: Ino, offset: u64, size_bytes: u64) -> Option<u64> {
        let mut at = offset;
        while at < size_bytes {
            let block = at / BLOCK_BYTES;
            if self.blocks.contains_key(&(ino, block)) {
                return Some(at);
            }
            let zeros_from = block * BLOCK_BYTES + self.object_bytes(ino, block);
            if at < zeros_from {
                return Some(at);
            }
            // Behind a hole, or behind the valid part of the object, only present blocks are data.
            let next = match self.holes.next(ino, block).filter(|run| run.contains(&block)) {
                Some(run) if run.end < self.object_blocks(ino) => run.end,
                _ => self
                    .blocks
                    .range((ino, block)..=(ino, u64::MAX))
                    .next()
                    .map(|((_, block), _)| block)?,
            };
            at = next.saturating_mul(BLOCK_BYTES);
        }
        None
    }

    /// The first byte of a hole at `offset` or behind it; the end of the file counts as one. `None`
    /// if `offset` is at the end or behind it.
    pub fn seek_hole(&self, ino: Ino, offset: u64, size_bytes: u64) -> Option<u64> {
        let mut at = offset;
        if at >= size_bytes {
            return None;
        }
        let object_blocks = self.object_blocks(ino);
        while at < size_bytes {
            let block = at / BLOCK_BYTES;
            if self.blocks.contains_key(&(ino, block)) {
                at = (block + 1) * BLOCK_BYTES;
                continue;
            }
            let zeros_from = block * BLOCK_BYTES + self.object_bytes(ino, block);
            if at >= zeros_from {
                return Some(at);
            }
            // The object's bytes are data up to the next hole, or to its last block.
            let border = self
                .holes
                .next(ino, block)
                .map_or(u64::MAX, |run| run.start)
                .min(object_blocks - 1);
            at = if border > block { border * BLOCK_BYTES } else { zeros_from };
            if border <= block && !zeros_from.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        Some(at.min(size_bytes))
    }
}
