//! Items of snapshots of older versions, which have facts of both content and extents.

use crate::content::{Content, ContentItem, ObjectBytes};
use crate::extent::{Block, ExtentItem, Extents};
use ebb_model::{Ino, PackRange, Version};
use serde::{Deserialize, Serialize};

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JoinedItem {
    /// Precedes the file's blocks.
    File {
        ino: Ino,
        map: FileItem,
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

/// A file as a whole: its object, the truncations during an upload, its numbers of present and of
/// dirty blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileItem {
    object: Option<ObjectBytes>,
    cuts: Option<Vec<(Version, u64)>>,
    resident: u64,
    dirty: u64,
}

/// Restores one item. Counters are trusted here; [`super::check`] verifies the result.
pub(crate) fn restore(content: &mut Content, extents: &mut Extents, item: JoinedItem) {
    match item {
        JoinedItem::File { ino, map: FileItem { object, cuts, resident, dirty } } => {
            content.restore(ContentItem::File { ino, object, cuts, dirty });
            let object = content.object_mark(ino);
            if resident > 0 {
                extents.restore(ExtentItem::File { ino, object, resident });
            }
        }
        JoinedItem::Run { ino, first, blocks } => {
            let mut at = first;
            for run in
                blocks.chunk_by(|one, next| (one.dirty, one.version) == (next.dirty, next.version))
            {
                let end = at.saturating_add(run.len() as u64);
                if run[0].dirty {
                    let version = run[0].version;
                    content.restore(ContentItem::Dirty { ino, first: at, end, version });
                }
                at = end;
            }
            extents.restore(ExtentItem::Run { ino, first, blocks });
        }
        JoinedItem::Packed { ino, range } => extents.restore(ExtentItem::Packed { ino, range }),
        JoinedItem::Exposed { ino } => extents.restore(ExtentItem::Exposed { ino }),
        JoinedItem::Hole { ino, first, end } => {
            content.restore(ContentItem::Hole { ino, first, end })
        }
    }
}
