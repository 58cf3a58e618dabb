//! Extents as a sequence of items, for snapshots.

use super::{Block, Extents, FileExtents};
use crate::content::ObjectMark;
use ebb_model::{Ino, PackRange};
use serde::{Deserialize, Serialize};

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtentItem {
    /// Precedes the file's blocks. `resident`: their number.
    File {
        ino: Ino,
        object: ObjectMark,
        resident: u64,
    },
    /// Precedes the file's blocks.
    Packed {
        ino: Ino,
        range: PackRange,
    },
    /// Consecutive blocks.
    Run {
        ino: Ino,
        first: u64,
        blocks: Vec<Block>,
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
        // Without a block, the object has no meaning.
        let files = self.files.iter().filter(|(_, file)| file.resident > 0);
        let files = files.map(|(ino, file)| ExtentItem::File {
            ino,
            object: file.object,
            resident: file.resident,
        });
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
        let exposed = self.exposed().map(|ino| ExtentItem::Exposed { ino });
        files.chain(packed).chain(runs).chain(exposed)
    }

    /// Restores one item. The number of blocks is trusted here; [`Extents::check`] verifies it.
    pub fn restore(&mut self, item: ExtentItem) {
        match item {
            ExtentItem::File { ino, object, resident } => {
                let file = FileExtents { object, resident, ..FileExtents::default() };
                self.files.insert(&ino, &file);
            }
            ExtentItem::Packed { ino, range } => {
                self.packs.insert(ino, range);
                self.edit(ino, |edit| edit.file.packed = Some(range));
            }
            ExtentItem::Run { ino, first, blocks } => {
                for (at, block) in (first..u64::MAX).zip(&blocks) {
                    let bytes = self.block_bytes(ino, at);
                    self.resident_bytes = self.resident_bytes.saturating_add(bytes);
                    self.dirty_bytes =
                        self.dirty_bytes.saturating_add(bytes * u64::from(block.dirty));
                    self.blocks.insert(&(ino, at), block);
                }
            }
            ExtentItem::Exposed { ino } => drop(self.exposed.insert(&ino, &())),
        }
    }
}
