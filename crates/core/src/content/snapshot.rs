//! Content as a sequence of items, for snapshots.

use super::{Content, ObjectBytes};
use ebb_model::{Ino, Version};
use serde::{Deserialize, Serialize};

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ContentItem {
    /// Precedes the file's blocks. `dirty`: their number.
    File {
        ino: Ino,
        object: Option<ObjectBytes>,
        /// Truncations during an upload.
        cuts: Option<Vec<(Version, u64)>>,
        dirty: u64,
    },
    Dirty {
        ino: Ino,
        first: u64,
        end: u64,
        version: Version,
    },
    Hole {
        ino: Ino,
        first: u64,
        end: u64,
    },
}

impl Content {
    /// All items, in an order determined by the state.
    pub(crate) fn items(&self) -> impl Iterator<Item = ContentItem> {
        let files = self.files.iter().map(|(ino, file)| ContentItem::File {
            ino,
            object: file.object,
            cuts: file.cuts,
            dirty: file.dirty,
        });
        let dirty = self.dirty.iter().map(|(ino, run, version)| ContentItem::Dirty {
            ino,
            first: run.start,
            end: run.end,
            version,
        });
        let holes = self.holes.iter().map(|(ino, run)| ContentItem::Hole {
            ino,
            first: run.start,
            end: run.end,
        });
        files.chain(dirty).chain(holes)
    }

    /// Restores one item. Counters are trusted here; [`Content::check`] verifies the result.
    pub(crate) fn restore(&mut self, item: ContentItem) {
        match item {
            ContentItem::File { ino, object, cuts, dirty } => {
                self.restore_file(ino, object, cuts, dirty)
            }
            ContentItem::Dirty { ino, first, end, version } => {
                self.restore_dirty(ino, first..end.max(first), version)
            }
            ContentItem::Hole { ino, first, end } => self.restore_hole(ino, first..end),
        }
    }
}
