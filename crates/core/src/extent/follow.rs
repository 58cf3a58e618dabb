//! Lets extents follow the content of files.

use super::{Block, Extents};
use crate::blocks::runs;
use crate::content::{ContentChange, ObjectMark};
use ebb_model::{BLOCK_BYTES, Ino, PackRange, Version};
use std::ops::Range;

/// Work for a node's disk after a change. Every effect is idempotent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The inode was removed: delete its store file.
    Drop { ino: Ino },
    /// The file was truncated: bytes from `len_bytes` on must never be read again.
    Cut { ino: Ino, len_bytes: u64 },
    /// These blocks became holes: deallocate their space.
    Punch { ino: Ino, blocks: Range<u64> },
    /// No file uses this range of a pack file any more: deallocate its space.
    Vacate { range: PackRange },
}

impl Extents {
    /// The effects of a change, which extents have not followed yet.
    pub(crate) fn effects_of(&self, change: &ContentChange) -> Vec<Effect> {
        match *change {
            ContentChange::Zeroed { ino, ref whole, .. } => {
                let there = runs(self.blocks(ino, whole.clone()).map(|(block, _)| block));
                there.into_iter().map(|blocks| Effect::Punch { ino, blocks }).collect()
            }
            ContentChange::Cut { ino, len_bytes, .. } => vec![Effect::Cut { ino, len_bytes }],
            ContentChange::Forgotten { ino } if !self.is_stored(ino) => Vec::new(),
            ContentChange::Gone { ino } | ContentChange::Forgotten { ino } => {
                self.vacated(ino, None).into_iter().chain([Effect::Drop { ino }]).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The pack range that a file leaves when it gets another location. A range that grows in place
    /// is not left.
    pub(crate) fn vacated(&self, ino: Ino, new: Option<PackRange>) -> Option<Effect> {
        let range = self.packed(ino)?;
        let stays = new.is_some_and(|new| new.begins_as(&range));
        (!stays).then_some(Effect::Vacate { range })
    }

    /// Follows a change of content.
    pub(crate) fn follow(&mut self, change: &ContentChange) {
        match *change {
            ContentChange::Written { ino, ref blocks, version } => {
                self.edit(ino, |edit| edit.take_older(blocks.clone(), version));
            }
            ContentChange::Zeroed { ino, ref whole, ref edges, version } => {
                self.zeroed(ino, whole.clone(), edges, version)
            }
            ContentChange::Cut { ino, len_bytes, has_edge, version } => {
                self.cut(ino, len_bytes, has_edge, version)
            }
            ContentChange::Gone { ino } | ContentChange::Forgotten { ino } => self.gone(ino),
            ContentChange::Object { ino, object } => {
                self.edit(ino, |edit| edit.set_object(object));
            }
            ContentChange::Replaced { ino, object } => self.edit(ino, |edit| {
                edit.drop_clean();
                edit.set_object(object);
            }),
            ContentChange::Uploaded { ino, object, version, ref changed } => {
                self.uploaded(ino, object, version, changed)
            }
            ContentChange::Dirtied { ino, ref blocks, version } => {
                self.dirtied(ino, blocks, version)
            }
            ContentChange::RolledBack { ino } => self.edit(ino, |edit| edit.drop_blocks(0)),
        }
    }

    /// These blocks were written here, and their bytes may be anything. Returns whether that is new
    /// of one of them.
    pub(crate) fn undefined(&mut self, ino: Ino, blocks: &[u64], version: Version) -> bool {
        let is_there = |block: &Block| block.dirty && block.version == version;
        let missing = |block: &&u64| !self.block(ino, **block).as_ref().is_some_and(is_there);
        let missing: Vec<u64> = blocks.iter().filter(missing).copied().collect();
        self.edit(ino, |edit| {
            for block in &missing {
                edit.put(*block, Block { version, dirty: true, sum: None });
            }
        });
        !missing.is_empty()
    }

    /// Keeps those blocks of a file that `keep` has a version for, given whether they are dirty
    /// here. The clean ones are those of `object`.
    pub(crate) fn reconcile(
        &mut self,
        ino: Ino,
        object: ObjectMark,
        keep: impl Fn(u64, bool) -> Option<Version>,
    ) {
        self.edit(ino, |edit| {
            if !edit.file.object.is_same_object(&object) {
                edit.drop_clean();
            }
            edit.set_object(object);
            for (block, state) in edit.list(0..u64::MAX) {
                match keep(block, state.dirty) {
                    // Another write than the one that is here: its bytes are undefined.
                    Some(version) if state.dirty => {
                        let sum = state.sum.filter(|_| state.version == version);
                        edit.put(block, Block { version, sum, ..state });
                    }
                    Some(_) => {}
                    None => edit.take(block),
                }
            }
        });
    }

    /// `whole` became a hole, and `edges` were overwritten: here, if they are staged.
    fn zeroed(&mut self, ino: Ino, whole: Range<u64>, edges: &[u64], version: Version) {
        self.edit(ino, |edit| {
            for &block in edges {
                edit.take_older(block..block + 1, version);
            }
            for (block, _) in edit.list(whole) {
                edit.take(block);
            }
        });
    }

    fn cut(&mut self, ino: Ino, len_bytes: u64, has_edge: bool, version: Version) {
        self.edit(ino, |edit| {
            let end = len_bytes.div_ceil(BLOCK_BYTES);
            edit.drop_blocks(end);
            let edge = len_bytes / BLOCK_BYTES;
            if edge < end
                && let Some(state) = edit.block(edge)
            {
                match has_edge || state.dirty {
                    true => edit.put(edge, Block { version, dirty: true, sum: None }),
                    // Its checksum is void, and the object has its bytes.
                    false => edit.take(edge),
                }
            }
            let object = edit.file.object;
            edit.set_object(ObjectMark { blocks: object.blocks.min(end), ..object });
        });
    }

    /// The file has neither block nor mapping any more.
    fn gone(&mut self, ino: Ino) {
        self.exposed.remove(&ino);
        self.edit(ino, |edit| {
            edit.drop_blocks(0);
            edit.pack(None);
        });
    }

    /// The object holds the file's bytes at `version`: the blocks up to that version but `changed`,
    /// and those that were clean, are clean and of this object.
    fn uploaded(&mut self, ino: Ino, object: ObjectMark, version: Version, changed: &[Range<u64>]) {
        self.edit(ino, |edit| {
            edit.set_object(object);
            for (block, state) in edit.list(0..u64::MAX) {
                if !state.dirty
                    || state.version > version
                    || changed.iter().any(|run| run.contains(&block))
                {
                    continue;
                }
                match state.sum.filter(|_| block < object.blocks) {
                    Some(_) => edit.put(block, Block { dirty: false, ..state }),
                    // The uploaded block had a checksum. A later write was about to replace it, or
                    // the power failed: the local bytes are undefined, and the object has the
                    // uploaded ones.
                    None => edit.take(block),
                }
            }
        });
    }

    fn dirtied(&mut self, ino: Ino, blocks: &[Range<u64>], version: Version) {
        self.edit(ino, |edit| {
            for run in blocks {
                for (block, state) in edit.list(run.clone()) {
                    edit.put(block, Block { version, dirty: true, ..state });
                }
            }
        });
    }
}
