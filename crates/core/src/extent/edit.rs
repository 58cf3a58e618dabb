//! Changes of one file. The file's state is stored once, however many of its blocks change.

use super::{Block, Extents, FileExtents, ObjectBytes};
use ebb_model::{Ino, PackRange};
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
        if file == FileExtents::default() {
            self.files.remove(&ino);
        } else {
            self.files.insert(&ino, &file);
        }
    }
}

impl Edit<'_> {
    pub fn block(&self, block: u64) -> Option<Block> {
        self.extents.blocks.get(&(self.ino, block))
    }

    pub fn is_hole(&self, block: u64) -> bool {
        self.extents.holes.contains(self.ino, block)
    }

    /// Present blocks. A new file has none and needs no search.
    pub fn list(&self, blocks: Range<u64>) -> Vec<(u64, Block)> {
        if self.file.resident == 0 { Vec::new() } else { self.extents.list(self.ino, blocks) }
    }

    pub fn put(&mut self, block: u64, state: Block) {
        self.fill(block..block.saturating_add(1));
        let old = self.block(block);
        self.extents.blocks.insert(&(self.ino, block), &state);
        self.count(block, old, Some(state));
    }

    pub fn take(&mut self, block: u64) {
        let old = self.extents.blocks.remove(&(self.ino, block));
        self.count(block, old, None);
    }

    pub fn drop_blocks(&mut self, from: u64) {
        for (block, _) in self.list(from..u64::MAX) {
            self.take(block);
        }
    }

    /// Replaces or removes the backing object for absent blocks.
    pub fn set_object(&mut self, object: Option<ObjectBytes>) {
        let (before, after) =
            (self.file.object_blocks(), object.as_ref().map_or(0, ObjectBytes::blocks));
        self.fill(after..u64::MAX);
        let differs = before.min(after)..before.max(after);
        let absent = differs.end - differs.start - self.list(differs).len() as u64;
        self.file.object = object;
        self.file.data =
            if before < after { self.file.data + absent } else { self.file.data - absent };
    }

    /// Makes holes of absent blocks from block `from` on that a new object covers: they were zeros
    /// and stay zeros.
    pub fn keep_zeros(&mut self, from: u64) {
        let end = self.file.object_blocks();
        let mut at = from;
        for (block, _) in self.list(from..end.max(from)) {
            self.dig(at..block);
            at = block + 1;
        }
        self.dig(at..end);
    }

    /// Makes holes of absent blocks that the object covers.
    pub fn dig(&mut self, blocks: Range<u64>) {
        self.file.data -= self.extents.holes.insert(self.ino, blocks);
    }

    /// The object counts for these blocks again.
    pub fn fill(&mut self, blocks: Range<u64>) {
        self.file.data += self.extents.holes.remove(self.ino, blocks);
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
        let behind_object = u64::from(block >= self.file.object_blocks());
        let file = &mut self.file;
        file.data = file.data + is * behind_object - was * behind_object;
        file.resident = file.resident + is - was;
        file.dirty = file.dirty + is_dirty - was_dirty;
    }
}
