//! Changes of content, noted for the extents of each node to follow.

use super::{Content, ObjectMark, zeroed_edges};
use crate::blocks::{touched_blocks, whole_blocks};
use crate::namespace::Change;
use ebb_model::{Ino, Version};
use std::ops::Range;

/// A change of a file's content that extents follow. A node that has the bytes of a change knows of
/// them ([`ebb_model::LocalCommand::Staged`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ContentChange {
    /// These blocks became dirty: a node has written them.
    Written { ino: Ino, blocks: Range<u64>, version: Version },
    /// The blocks `whole` became a hole, and `edges` dirty: a node has written them.
    Zeroed { ino: Ino, whole: Range<u64>, edges: Vec<u64>, version: Version },
    /// The file was truncated. `has_edge`: a node has the bytes of the block that the end is in.
    Cut { ino: Ino, len_bytes: u64, has_edge: bool, version: Version },
    /// The file was removed.
    Gone { ino: Ino },
    /// The file was evicted from memory; it is clean in the bucket.
    Forgotten { ino: Ino },
    /// The clean blocks of the file are those of this object.
    Object { ino: Ino, object: ObjectMark },
    /// Another writer replaced the object: clean blocks are void.
    Replaced { ino: Ino, object: ObjectMark },
    /// The object holds the bytes at `version`: dirty blocks up to it are clean but `changed`.
    Uploaded { ino: Ino, object: ObjectMark, version: Version, changed: Vec<Range<u64>> },
    /// These blocks became dirty at `version`, with the bytes that a node has.
    Dirtied { ino: Ino, blocks: Vec<Range<u64>>, version: Version },
    /// All changes are dropped in favour of the object: no block here is the file's.
    RolledBack { ino: Ino },
}

impl ContentChange {
    pub fn ino(&self) -> Ino {
        match *self {
            ContentChange::Written { ino, .. }
            | ContentChange::Zeroed { ino, .. }
            | ContentChange::Cut { ino, .. }
            | ContentChange::Gone { ino }
            | ContentChange::Forgotten { ino }
            | ContentChange::Object { ino, .. }
            | ContentChange::Replaced { ino, .. }
            | ContentChange::Uploaded { ino, .. }
            | ContentChange::Dirtied { ino, .. }
            | ContentChange::RolledBack { ino } => ino,
        }
    }
}

/// Content to change. Each change is noted in `changes`.
pub(crate) struct ContentMut<'a> {
    content: &'a mut Content,
    changes: &'a mut Vec<ContentChange>,
}

impl<'a> ContentMut<'a> {
    pub fn new(content: &'a mut Content, changes: &'a mut Vec<ContentChange>) -> ContentMut<'a> {
        ContentMut { content, changes }
    }

    pub fn view(&self) -> &Content {
        self.content
    }

    /// Applies a change of the namespace.
    pub fn observe(&mut self, change: &Change) {
        self.content.observe(change);
        self.changes.extend(match *change {
            Change::Written { ino, offset, len_bytes, stamp } => Some(ContentChange::Written {
                ino,
                blocks: touched_blocks(offset, len_bytes),
                version: stamp.version,
            }),
            Change::Zeroed { ino, ref range, ref edges, stamp } => Some(ContentChange::Zeroed {
                ino,
                whole: whole_blocks(range.start, range.end.saturating_sub(range.start)),
                edges: zeroed_edges(range, edges).collect(),
                version: stamp.version,
            }),
            Change::Resized { ino, old_bytes, new_bytes, has_edge, stamp }
                if new_bytes < old_bytes =>
            {
                Some(ContentChange::Cut {
                    ino,
                    len_bytes: new_bytes,
                    has_edge,
                    version: stamp.version,
                })
            }
            Change::Gone { ino, .. } => Some(ContentChange::Gone { ino }),
            Change::Forgotten { ino } => Some(ContentChange::Forgotten { ino }),
            _ => None,
        });
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

    /// See [`Content::forget_object`].
    pub fn forget_object(&mut self, ino: Ino) {
        self.content.forget_object(ino);
        self.object_changed(ino);
    }

    /// See [`Content::uploaded`].
    pub fn uploaded(
        &mut self,
        ino: Ino,
        etag: &str,
        len_bytes: u64,
        version: Version,
        changed: Vec<Range<u64>>,
    ) {
        self.content.uploaded(ino, etag, len_bytes, version, &changed);
        let object = self.content.object_mark(ino);
        self.changes.push(ContentChange::Uploaded { ino, object, version, changed });
    }

    /// See [`Content::moved`].
    pub fn moved(&mut self, ino: Ino, etag: &str) {
        self.content.moved(ino, etag);
        self.object_changed(ino);
    }

    /// See [`Content::replaced`].
    pub fn replaced(&mut self, ino: Ino, etag: &str, len_bytes: u64, keep_length: bool) {
        self.content.replaced(ino, etag, len_bytes, keep_length);
        let object = self.content.object_mark(ino);
        self.changes.push(ContentChange::Replaced { ino, object });
    }

    /// See [`Content::dirtied`].
    pub fn dirtied(&mut self, ino: Ino, blocks: Vec<Range<u64>>, version: Version) {
        self.content.dirtied(ino, &blocks, version);
        self.changes.push(ContentChange::Dirtied { ino, blocks, version });
    }

    /// See [`Content::rolled_back`].
    pub fn rolled_back(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.content.rolled_back(ino, etag, len_bytes);
        self.changes.push(ContentChange::RolledBack { ino });
    }

    /// All bytes of the file that the bucket does not have were lost.
    pub fn bytes_lost(&mut self, ino: Ino) {
        self.content.dirty_lost(ino, 0..u64::MAX);
        self.changes.push(ContentChange::RolledBack { ino });
    }

    fn object_changed(&mut self, ino: Ino) {
        let object = self.content.object_mark(ino);
        self.changes.push(ContentChange::Object { ino, object });
    }
}
