//! Lets content decide about each command and change, and extents follow.

use super::ByteMap;
use crate::blocks::{touched_blocks, whole_blocks};
use crate::content::{Content, zeroed_edges};
use crate::extent::Extents;
use crate::namespace::Change;
use ebb_model::{ExtentCommand, Ino, Planted, Version};

/// Content and extents of all files, to change.
pub(crate) struct ByteMapMut<'a> {
    content: &'a mut Content,
    extents: &'a mut Extents,
}

impl<'a> ByteMapMut<'a> {
    pub fn new(content: &'a mut Content, extents: &'a mut Extents) -> ByteMapMut<'a> {
        ByteMapMut { content, extents }
    }

    pub fn view(&self) -> ByteMap<'_> {
        ByteMap::new(self.content, self.extents)
    }

    /// Applies a command about the node's disk: only extents change. One that no longer matches the
    /// content is ignored, such as a `Present` for a replaced object.
    pub fn apply(&mut self, command: &ExtentCommand) {
        match *command {
            ExtentCommand::Present { ino, ref etag, first, ref sums } => {
                if self.content.object(ino).is_some_and(|object| object.etag == *etag) {
                    let (object, content) = (self.content.object_mark(ino), &self.content);
                    let is_hole = |block| content.is_hole(ino, block);
                    self.extents.fetched(ino, object, first, sums, is_hole);
                }
            }
            ExtentCommand::Absent { ino, first, count } if Planted::DirtyEvicted.is_on() => {
                self.extents.apply(command);
                if !self.extents.is_exposed(ino) {
                    self.content.dirty_lost(ino, first..first.saturating_add(count));
                }
            }
            _ => self.extents.apply(command),
        }
    }

    /// Applies a change of the namespace.
    pub fn observe(&mut self, change: &Change) {
        let view = ByteMap::new(self.content, self.extents);
        let is_boundary_dirtied = match *change {
            Change::Resized { ino, new_bytes, .. } => view.is_boundary_dirtied(ino, new_bytes),
            _ => false,
        };
        self.content.observe(change, is_boundary_dirtied);
        match *change {
            Change::Written { ino, offset, len_bytes, ref sums, packed, stamp } => {
                let blocks = touched_blocks(offset, len_bytes);
                self.extents.written(ino, blocks, sums, packed, stamp.version)
            }
            Change::Zeroed { ino, ref range, ref edges, stamp } => {
                let whole = whole_blocks(range.start, range.end.saturating_sub(range.start));
                self.extents.zeroed(ino, whole, zeroed_edges(range, edges), stamp.version)
            }
            Change::Resized { ino, old_bytes, new_bytes, stamp } if new_bytes < old_bytes => {
                self.extents.cut(ino, new_bytes, stamp.version)
            }
            Change::Gone { ino, .. } | Change::Forgotten { ino } => self.extents.gone(ino),
            _ => {}
        }
    }

    /// See [`Content::set_object`].
    pub fn set_object(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.content.set_object(ino, etag, len_bytes);
        self.object_changed(ino);
    }

    /// See [`Content::set_objects`]. Files without any state have no extents that could follow.
    pub fn set_objects<'b>(&mut self, homes: impl Iterator<Item = (Ino, &'b str, u64)>) {
        self.content.set_objects(homes);
    }

    /// See [`Content::upload_begun`].
    pub fn upload_begun(&mut self, ino: Ino, version: Version) {
        self.content.upload_begun(ino, version);
    }

    /// See [`Content::upload_aborted`].
    pub fn upload_aborted(&mut self, ino: Ino) {
        self.content.upload_aborted(ino);
    }

    /// See [`Content::forget_object`]. Clean blocks stay: they have the only copy of their bytes.
    pub fn forget_object(&mut self, ino: Ino) {
        self.content.forget_object(ino);
        self.object_changed(ino);
    }

    /// See [`Content::uploaded`].
    pub fn uploaded(&mut self, ino: Ino, etag: &str, len_bytes: u64, version: Version) {
        let facts = self.view().upload_facts(ino, version);
        self.content.uploaded(ino, etag, len_bytes, version, &facts);
        self.extents.cleaned(ino, self.content.object_mark(ino), version);
    }

    /// See [`Content::moved`].
    pub fn moved(&mut self, ino: Ino, etag: &str) {
        self.content.moved(ino, etag);
        self.object_changed(ino);
    }

    /// See [`Content::replaced`].
    pub fn replaced(&mut self, ino: Ino, etag: &str, len_bytes: u64, keep_length: bool) {
        self.content.replaced(ino, etag, len_bytes, keep_length);
        self.extents.drop_clean(ino);
        self.object_changed(ino);
    }

    /// See [`Content::send_again`].
    pub fn send_again(&mut self, ino: Ino, version: Version) {
        let blocks = self.view().blocks_to_send_again(ino);
        self.content.send_again(ino, version, &blocks);
        self.extents.send_again(ino, version);
    }

    /// See [`Content::rolled_back`]. Drops all local state.
    pub fn rolled_back(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.content.rolled_back(ino, etag, len_bytes);
        self.extents.drop_blocks(ino);
    }

    /// All local bytes of the file were lost.
    pub fn bytes_lost(&mut self, ino: Ino) {
        self.content.dirty_lost(ino, 0..u64::MAX);
        self.extents.gone(ino);
    }

    fn object_changed(&mut self, ino: Ino) {
        self.extents.set_object(ino, self.content.object_mark(ino));
    }
}
