//! Changes of one file. The file's state is stored once, however many of its blocks change.

use super::{Block, Extents, FileExtents};
use crate::content::ObjectMark;
use ebb_model::{Ino, PackRange, Version};
use std::ops::Range;

pub(super) struct Edit<'a> {
    extents: &'a mut Extents,
    ino: Ino,
    pub file: FileExtents,
}

impl Extents {
    /// Applies `change` to the file and stores its state.
    pub(super) fn edit(&mut self, ino: Ino, change: impl FnOnce(&mut Edit)) {
        let file = self.files.get(&ino).unwrap_or_default();
        let mut edit = Edit { extents: self, ino, file };
        change(&mut edit);
        let file = edit.file;
        if self.look(ino, |before| *before == file) {
            return;
        }
        if (file.resident, file.packed) == (0, None) {
            self.files.remove(&ino);
        } else {
            self.files.insert(&ino, &file);
        }
    }
}

impl Edit<'_> {
    pub fn block(&self, block: u64) -> Option<Block> {
        self.extents.block(self.ino, block)
    }

    /// Present blocks. A new file has none and needs no search.
    pub fn list(&self, blocks: Range<u64>) -> Vec<(u64, Block)> {
        if self.file.resident == 0 || blocks.is_empty() {
            return Vec::new();
        }
        let range = self.extents.blocks.range((self.ino, blocks.start)..(self.ino, blocks.end));
        range.map(|((_, block), state)| (block, state)).collect()
    }

    pub fn put(&mut self, block: u64, state: Block) {
        let old = self.block(block);
        self.extents.blocks.insert(&(self.ino, block), &state);
        self.count(block, old, Some(state));
    }

    pub fn take(&mut self, block: u64) {
        let old = self.extents.blocks.remove(&(self.ino, block));
        self.count(block, old, None);
    }

    /// Drops the blocks whose last write, at this version, is not here.
    pub fn take_older(&mut self, blocks: Range<u64>, version: Version) {
        for (block, state) in self.list(blocks) {
            if !state.dirty || state.version < version {
                self.take(block);
            }
        }
    }

    pub fn drop_blocks(&mut self, from: u64) {
        for (block, _) in self.list(from..u64::MAX) {
            self.take(block);
        }
    }

    pub fn drop_clean(&mut self) {
        for (block, state) in self.list(0..u64::MAX) {
            if !state.dirty {
                self.take(block);
            }
        }
    }

    /// The clean blocks are those of this object. Those behind it are dropped.
    pub fn set_object(&mut self, object: ObjectMark) {
        for (block, state) in self.list(object.blocks..self.file.object.blocks) {
            if !state.dirty {
                self.take(block);
            }
        }
        self.file.object = object;
    }

    pub fn pack(&mut self, range: Option<PackRange>) {
        let before = self.file.packed;
        if before == range {
            return;
        }
        let blocks = self.list(0..u64::MAX);
        for (block, state) in &blocks {
            self.count(*block, Some(*state), None);
        }
        if let Some(before) = before {
            self.extents.packs.remove(before);
        }
        if let Some(range) = range {
            self.extents.packs.insert(self.ino, range);
        }
        self.file.packed = range;
        for (block, state) in blocks {
            self.count(block, None, Some(state));
        }
    }

    fn count(&mut self, block: u64, old: Option<Block>, new: Option<Block>) {
        let dirty = |block: Option<Block>| u64::from(block.is_some_and(|block| block.dirty));
        let (was, is) = (u64::from(old.is_some()), u64::from(new.is_some()));
        let (was_dirty, is_dirty) = (dirty(old), dirty(new));
        let bytes = self.file.block_bytes(block);
        self.extents.resident_bytes = self.extents.resident_bytes + is * bytes - was * bytes;
        self.extents.dirty_bytes = self.extents.dirty_bytes + is_dirty * bytes - was_dirty * bytes;
        self.file.resident = self.file.resident + is - was;
    }
}
