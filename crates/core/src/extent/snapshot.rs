//! Extents as a sequence of items, for snapshots.

use super::{Block, Extents, FileExtents, ObjectBytes};
use ebb_model::{Ino, PackRange};
use serde::{Deserialize, Serialize};

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtentItem {
    /// Precedes the file's blocks.
    File {
        ino: Ino,
        map: FileExtents,
    },
    /// Consecutive blocks.
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
    /// Precedes the file's blocks.
    Packed {
        ino: Ino,
        range: PackRange,
    },
    Exposed {
        ino: Ino,
    },
}

/// Longest run in one item: the blocks of one chunk.
const RUN_BLOCKS: usize = 256;

impl Extents {
    /// All items, in an order determined by the state.
    pub fn items(&self) -> impl Iterator<Item = ExtentItem> {
        let files = self.files().map(|(ino, map)| ExtentItem::File { ino, map });
        let packed = self.packed_files().map(|(range, ino)| ExtentItem::Packed { ino, range });
        let mut blocks = self.blocks.iter().peekable();
        let runs = std::iter::from_fn(move || {
            let ((ino, first), state) = blocks.next()?;
            let mut run = vec![state];
            while run.len() < RUN_BLOCKS
                && let Some((_, state)) =
                    blocks.next_if(|(at, _)| *at == (ino, first + run.len() as u64))
            {
                run.push(state);
            }
            Some(ExtentItem::Run { ino, first, blocks: run })
        });
        let holes = self.holes.iter().map(|(ino, run)| ExtentItem::Hole {
            ino,
            first: run.start,
            end: run.end,
        });
        let exposed = self.exposed().map(|ino| ExtentItem::Exposed { ino });
        files.chain(packed).chain(runs).chain(holes).chain(exposed)
    }

    /// Restores one item of a snapshot. Counters are trusted here; [`Extents::check`] verifies the
    /// result.
    pub fn restore(&mut self, item: ExtentItem) {
        match item {
            ExtentItem::File { ino, mut map } => {
                map.data = map.object.as_ref().map_or(0, ObjectBytes::blocks);
                self.files.insert(&ino, &map);
            }
            ExtentItem::Run { ino, first, blocks } => {
                let object_blocks = self.object_blocks(ino);
                let mut behind_object = 0;
                for (at, block) in (first..u64::MAX).zip(blocks) {
                    let bytes = self.block_bytes(ino, at);
                    self.resident_bytes = self.resident_bytes.saturating_add(bytes);
                    self.dirty_bytes =
                        self.dirty_bytes.saturating_add(bytes * u64::from(block.dirty));
                    self.blocks.insert(&(ino, at), &block);
                    behind_object += u64::from(at >= object_blocks);
                }
                self.count_restored(ino, |data| data.saturating_add(behind_object));
            }
            ExtentItem::Packed { ino, range } => self.restore_packed(ino, range),
            ExtentItem::Exposed { ino } => drop(self.exposed.insert(&ino, &())),
            ExtentItem::Hole { ino, first, end } => {
                let dug = self.holes.insert(ino, first..end);
                self.count_restored(ino, |data| data.saturating_sub(dug));
            }
        }
    }

    fn count_restored(&mut self, ino: Ino, count: impl FnOnce(u64) -> u64) {
        self.files.change(&ino, |file| file.data = count(file.data));
    }
}
