//! Extents as a stream of values.

use super::{Block, Extents, FileMap};
use ebb_model::Ino;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtentItem {
    /// Comes before its blocks.
    File {
        ino: Ino,
        map: FileMap,
    },
    /// Blocks without a gap.
    Run {
        ino: Ino,
        first: u64,
        blocks: Vec<Block>,
    },
    Hole {
        ino: Ino,
        first: u64,
        end: u64,
    },
}

/// Longest run in one item: a chunk's worth.
const RUN_BLOCKS: usize = 256;

impl Extents {
    pub fn items(&self) -> impl Iterator<Item = ExtentItem> {
        let files = self.files().map(|(ino, map)| ExtentItem::File { ino, map: map.clone() });
        let mut blocks = self.blocks.iter().peekable();
        let runs = std::iter::from_fn(move || {
            let (&(ino, first), state) = blocks.next()?;
            let mut run = vec![*state];
            while run.len() < RUN_BLOCKS
                && let Some((_, state)) = blocks.next_if(|(at, _)| **at == (ino, first + run.len() as u64))
            {
                run.push(*state);
            }
            Some(ExtentItem::Run { ino, first, blocks: run })
        });
        let holes = self.holes.iter().map(|(ino, run)| ExtentItem::Hole { ino, first: run.start, end: run.end });
        files.chain(runs).chain(holes)
    }

    /// Takes one value of a snapshot. Counters are taken as they are: [`Extents::check`] at the end.
    pub fn restore(&mut self, item: ExtentItem) {
        match item {
            ExtentItem::File { ino, map } => {
                self.resident_blocks = self.resident_blocks.saturating_add(map.resident);
                self.dirty_blocks = self.dirty_blocks.saturating_add(map.dirty);
                self.files.insert(ino, map);
            }
            ExtentItem::Run { ino, first, blocks } => {
                for (at, block) in (first..u64::MAX).zip(blocks) {
                    self.blocks.insert((ino, at), block);
                }
            }
            ExtentItem::Hole { ino, first, end } => self.holes.insert(ino, first..end),
        }
    }
}
