//! SEEK_DATA and SEEK_HOLE: bytes in the store file or in the object are data, zeros are holes.

use super::ByteMap;
use ebb_model::{BLOCK_BYTES, Ino};

impl ByteMap<'_> {
    /// The first byte of data at `offset` or behind it; `None` if there is none.
    pub fn seek_data(self, ino: Ino, offset: u64, size_bytes: u64) -> Option<u64> {
        let mut at = offset;
        while at < size_bytes {
            let block = at / BLOCK_BYTES;
            if self.is_present(ino, block) {
                return Some(at);
            }
            let zeros_from = block * BLOCK_BYTES + self.object_bytes(ino, block);
            if at < zeros_from {
                return Some(at);
            }
            // Behind a hole, or behind the valid part of the object, only present blocks are data.
            let hole = self.content.next_hole(ino, block).filter(|run| run.contains(&block));
            let next = match hole {
                Some(run) if run.end < self.content.object_blocks(ino) => run.end,
                _ => self.present(ino, block..u64::MAX).next()?.0,
            };
            at = next.saturating_mul(BLOCK_BYTES);
        }
        None
    }

    /// The first byte of a hole at `offset` or behind it; the end of the file counts as one. `None`
    /// if `offset` is at the end or behind it.
    pub fn seek_hole(self, ino: Ino, offset: u64, size_bytes: u64) -> Option<u64> {
        let mut at = offset;
        if at >= size_bytes {
            return None;
        }
        let object_blocks = self.content.object_blocks(ino);
        while at < size_bytes {
            let block = at / BLOCK_BYTES;
            if self.is_present(ino, block) {
                at = (block + 1) * BLOCK_BYTES;
                continue;
            }
            let zeros_from = block * BLOCK_BYTES + self.object_bytes(ino, block);
            if at >= zeros_from {
                return Some(at);
            }
            // The object's bytes are data up to the next hole, or to its last block.
            let hole = self.content.next_hole(ino, block);
            let border = hole.map_or(u64::MAX, |run| run.start).min(object_blocks - 1);
            at = if border > block { border * BLOCK_BYTES } else { zeros_from };
            if border <= block && !zeros_from.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        Some(at.min(size_bytes))
    }
}
