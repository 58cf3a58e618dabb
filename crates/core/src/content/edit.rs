//! Changes of one file. The file's state is stored once, however many of its blocks change.

use super::{Content, FileContent, ObjectBytes};
use crate::blocks::gaps;
use ebb_model::{Ino, Version};
use std::ops::Range;

pub(super) struct Edit<'a> {
    content: &'a mut Content,
    ino: Ino,
    pub file: FileContent,
}

impl Content {
    /// Applies `change` to the file and stores its state.
    pub(super) fn edit(&mut self, ino: Ino, change: impl FnOnce(&mut Edit)) {
        let file = self.files.get(&ino).unwrap_or_default();
        let mut edit = Edit { content: self, ino, file };
        change(&mut edit);
        let file = edit.file;
        if self.look(ino, |before| *before == file) {
            return;
        }
        if file == FileContent::default() {
            self.files.remove(&ino);
        } else {
            self.files.insert(&ino, &file);
        }
    }
}

impl Edit<'_> {
    /// Dirty runs. A new file has none and needs no search.
    pub fn dirty_runs(&self, blocks: Range<u64>) -> Vec<(Range<u64>, Version)> {
        if self.file.dirty == 0 {
            return Vec::new();
        }
        self.content.dirty.within(self.ino, blocks).collect()
    }

    /// These blocks become dirty.
    pub fn write(&mut self, blocks: Range<u64>, version: Version) {
        if blocks.is_empty() {
            return;
        }
        self.fill(blocks.clone());
        let behind = self.behind_object(&blocks);
        // Known without a search if all blocks are behind the object.
        let newly_behind =
            (behind != blocks).then(|| behind.end - behind.start - self.dirty_count(behind));
        let newly = if self.file.dirty == 0 {
            self.content.dirty.insert_first(self.ino, blocks.clone(), version);
            blocks.end - blocks.start
        } else {
            self.content.dirty.insert(self.ino, blocks, version)
        };
        self.file.dirty += newly;
        self.file.data += newly_behind.unwrap_or(newly);
    }

    /// The object counts for these blocks, or they are zeros behind it.
    pub fn clean(&mut self, blocks: Range<u64>) {
        if self.file.dirty == 0 || blocks.is_empty() {
            return;
        }
        self.file.data -= self.dirty_count(self.behind_object(&blocks));
        self.file.dirty -= self.content.dirty.remove(self.ino, blocks);
    }

    /// Replaces or removes the backing object.
    pub fn set_object(&mut self, object: Option<ObjectBytes>) {
        let (before, after) =
            (self.file.object_blocks(), object.as_ref().map_or(0, ObjectBytes::blocks));
        self.fill(after..u64::MAX);
        let differs = before.min(after)..before.max(after);
        let clean = differs.end - differs.start - self.dirty_count(differs);
        self.file.object = object;
        self.file.data =
            if before < after { self.file.data + clean } else { self.file.data - clean };
    }

    /// Makes holes of the clean blocks from block `from` on that a new object covers: they were
    /// zeros and stay zeros.
    pub fn keep_zeros(&mut self, from: u64) {
        let end = self.file.object_blocks().max(from);
        let dirty = self.dirty_runs(from..end).into_iter().map(|(run, _)| run);
        for zeros in gaps(from..end, dirty) {
            self.dig(zeros);
        }
    }

    /// Makes holes of clean blocks that the object covers.
    pub fn dig(&mut self, blocks: Range<u64>) {
        self.file.data -= self.content.holes.insert(self.ino, blocks);
    }

    /// The object counts for these blocks again.
    pub fn fill(&mut self, blocks: Range<u64>) {
        self.file.data += self.content.holes.remove(self.ino, blocks);
    }

    fn behind_object(&self, blocks: &Range<u64>) -> Range<u64> {
        let border = self.file.object_blocks().clamp(blocks.start, blocks.end);
        border..blocks.end
    }

    fn dirty_count(&self, blocks: Range<u64>) -> u64 {
        if self.file.dirty == 0 || blocks.is_empty() {
            0
        } else {
            self.content.dirty.count(self.ino, blocks)
        }
    }
}
