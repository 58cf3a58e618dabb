//! What people decide about damage: to send again what the bucket has lost, or to give up what the
//! bucket never got.

use super::*;
use crate::extent::{Extents, Source};

impl Backing {
    /// Whether all of a file that has an object is here, and can be sent without it.
    pub fn is_whole(&self, namespace: &Namespace, extents: &Extents, ino: Ino) -> bool {
        let Ok(attr) = namespace.attr(ino) else { return false };
        let plan = extents.plan_read(ino, 0..attr.size_bytes, attr.size_bytes);
        let is_named = namespace.inode(ino).is_some_and(|inode| inode.first.is_some());
        is_named
            && self.claimed(namespace, ino).is_some()
            && plan.iter().all(|part| part.source != Source::Remote)
    }

    pub(super) fn send_again(
        &mut self,
        namespace: &Namespace,
        extents: &mut Extents,
        ino: Ino,
        stamp: Stamp,
    ) {
        if self.dirs.contains_key(&ino) {
            self.all_entries_changed(ino);
            self.page_changed(namespace, ino, stamp.time);
        } else if self.is_whole(namespace, extents, ino) {
            // Dirty to the last block, or what is not sent yet could be evicted.
            extents.send_again(ino, stamp.version);
            self.change_file(ino, |file| {
                let dirty = file.dirty.get_or_insert(Dirty {
                    since: stamp.time,
                    content: None,
                    moving: false,
                });
                dirty.content = Some(stamp.version);
            });
        }
    }

    /// Answers with the file, if it is one that has an object and is not being written.
    pub(super) fn rolled_back(
        &mut self,
        namespace: &mut Namespace,
        extents: &mut Extents,
        ino: Ino,
        etag: &str,
        (len_bytes, modified): (u64, Time),
        stamp: Stamp,
    ) -> Vec<Ino> {
        if self.claimed(namespace, ino).is_none() {
            return Vec::new();
        }
        self.change_file(ino, |file| {
            if let Some(home) = &mut file.home {
                home.etag = etag.into();
                home.len_bytes = len_bytes;
            }
            // It may still have to be moved.
            file.dirty = file
                .dirty
                .take()
                .filter(|dirty| dirty.moving)
                .map(|dirty| Dirty { content: None, ..dirty });
        });
        extents.rolled_back(ino, etag, len_bytes);
        namespace.replace_content(ino, len_bytes, modified, stamp);
        self.record(namespace, ino, stamp.time);
        vec![ino]
    }
}
