//! Content and extents as one sequence of items, for snapshots.
//!
//! The format is older than the separation of the two: an item has facts of both.

use super::ByteMap;
use crate::content::{Content, ObjectBytes};
use crate::extent::{Block, Extents};
use ebb_model::{Ino, PackRange, Version};
use serde::{Deserialize, Serialize};

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtentItem {
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

/// Longest run in one item: the blocks of one chunk.
const RUN_BLOCKS: usize = 256;

/// All items, in an order determined by the state.
pub(crate) fn items<'a>(
    content: &'a Content,
    extents: &'a Extents,
) -> impl Iterator<Item = ExtentItem> + 'a {
    let file = |ino| FileItem {
        object: content.object(ino),
        cuts: content.cuts(ino),
        resident: extents.resident_count(ino),
        dirty: content.dirty_count(ino),
    };
    let files = ByteMap::new(content, extents).files();
    let files = files.map(move |ino| ExtentItem::File { ino, map: file(ino) });
    let packed = extents.packed_files().map(|(range, ino)| ExtentItem::Packed { ino, range });
    let mut blocks = extents.all_blocks().peekable();
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
    let holes = content.all_holes().map(|(ino, run)| ExtentItem::Hole {
        ino,
        first: run.start,
        end: run.end,
    });
    let exposed = extents.exposed().map(|ino| ExtentItem::Exposed { ino });
    files.chain(packed).chain(runs).chain(holes).chain(exposed)
}

/// Restores one item of a snapshot. Counters are trusted here; [`super::check`] verifies the
/// result.
pub(crate) fn restore(content: &mut Content, extents: &mut Extents, item: ExtentItem) {
    match item {
        ExtentItem::File { ino, map: FileItem { object, cuts, resident, dirty } } => {
            content.restore_file(ino, object, cuts, dirty);
            extents.restore_file(ino, content.object_mark(ino), resident);
        }
        ExtentItem::Run { ino, first, blocks } => {
            extents.restore_blocks(ino, first, &blocks);
            let mut at = first;
            for run in
                blocks.chunk_by(|one, next| (one.dirty, one.version) == (next.dirty, next.version))
            {
                let end = at.saturating_add(run.len() as u64);
                if run[0].dirty {
                    content.restore_dirty(ino, at..end, run[0].version);
                }
                at = end;
            }
        }
        ExtentItem::Packed { ino, range } => extents.restore_packed(ino, range),
        ExtentItem::Exposed { ino } => extents.restore_exposed(ino),
        ExtentItem::Hole { ino, first, end } => content.restore_hole(ino, first..end),
    }
}
