//! Blocks of a file: the ones that a range of bytes touches or covers, and sets of them, stored as
//! runs.

use crate::tree::Tree;
use ebb_model::{BLOCK_BYTES, CHUNK_BYTES, Ino, MAX_FILE_BYTES};
use std::ops::Range;

/// No block of a file has this number or a higher one.
pub const MAX_BLOCKS: u64 = MAX_FILE_BYTES.div_ceil(BLOCK_BYTES);

pub const BLOCKS_PER_CHUNK: u64 = CHUNK_BYTES / BLOCK_BYTES;

/// Blocks that a write covers completely. The last block of a file counts only with all of its 64
/// KiB.
pub fn whole_blocks(offset: u64, len_bytes: u64) -> Range<u64> {
    let first = offset.div_ceil(BLOCK_BYTES);
    let end = offset.saturating_add(len_bytes) / BLOCK_BYTES;
    first..end.max(first)
}

/// Blocks that a write covers at least in part.
pub fn touched_blocks(offset: u64, len_bytes: u64) -> Range<u64> {
    if len_bytes == 0 {
        return 0..0;
    }
    offset / BLOCK_BYTES..offset.saturating_add(len_bytes).div_ceil(BLOCK_BYTES)
}

/// Groups ascending numbers into runs.
pub fn runs(blocks: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs = Vec::<Range<u64>>::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == block => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

/// The parts of `range` outside `runs`, which are in order and do not overlap.
pub(crate) fn gaps(
    range: Range<u64>,
    runs: impl IntoIterator<Item = Range<u64>>,
) -> Vec<Range<u64>> {
    let (mut at, mut gaps) = (range.start, Vec::new());
    for run in runs {
        if run.start > at {
            gaps.push(at..run.start.min(range.end));
        }
        at = at.max(run.end);
        if at >= range.end {
            break;
        }
    }
    gaps.push(at..range.end);
    gaps.retain(|gap| gap.start < gap.end);
    gaps
}

/// A set of blocks of files.
///
/// Law: runs of a file neither overlap nor touch, and none is empty.
///
/// Maps inode and end to the first block. The run of a block is the first one with an end behind
/// it.
#[derive(Clone, Default)]
pub struct BlockRuns(Tree<(Ino, u64), u64>);

impl BlockRuns {
    pub fn memory_bytes(&self) -> usize {
        self.0.bytes()
    }

    pub fn contains(&self, ino: Ino, block: u64) -> bool {
        self.next(ino, block).is_some_and(|run| run.contains(&block))
    }

    /// The first run that ends behind `block`.
    pub fn next(&self, ino: Ino, block: u64) -> Option<Range<u64>> {
        let ((_, end), first) =
            self.0.range((ino, block.checked_add(1)?)..=(ino, u64::MAX)).next()?;
        Some(first..end)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ino, Range<u64>)> {
        self.0.iter().map(|((ino, end), first)| (ino, first..end))
    }

    /// The runs of a file, in order.
    pub fn of(&self, ino: Ino) -> impl Iterator<Item = Range<u64>> {
        self.0.range((ino, 0)..=(ino, u64::MAX)).map(|((_, end), first)| first..end)
    }

    /// Returns the number of newly added blocks.
    pub fn insert(&mut self, ino: Ino, blocks: Range<u64>) -> u64 {
        if blocks.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = blocks;
        let mut there = 0;
        // Runs that touch it on either end merge with it.
        while let Some(run) = self.next(ino, start.saturating_sub(1)).filter(|run| run.start <= end)
        {
            self.0.remove(&(ino, run.end));
            (start, end) = (start.min(run.start), end.max(run.end));
            there += run.end - run.start;
        }
        self.0.insert(&(ino, end), &start);
        end - start - there
    }

    /// Returns the number of removed blocks.
    pub fn remove(&mut self, ino: Ino, blocks: Range<u64>) -> u64 {
        let mut there = 0;
        if blocks.is_empty() {
            return there;
        }
        while let Some(run) = self.next(ino, blocks.start).filter(|run| run.start < blocks.end) {
            self.0.remove(&(ino, run.end));
            there += run.end.min(blocks.end) - run.start.max(blocks.start);
            if run.start < blocks.start {
                self.0.insert(&(ino, blocks.start), &run.start);
            }
            if run.end > blocks.end {
                self.0.insert(&(ino, run.end), &blocks.end);
            }
        }
        there
    }
}
