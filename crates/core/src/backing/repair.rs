//! Repairs that an operator requests: send objects again that the bucket lost, or give up changes
//! that the bucket never received.

use super::*;
use crate::byte_map::{ByteMap, ByteMapMut, ByteOrigin};

impl Backing {
    /// Whether every byte of a file with an object is cached, so it can be sent without the object.
    pub fn is_whole(&self, namespace: &Namespace, extents: ByteMap, ino: Ino) -> bool {
        let Ok(attr) = namespace.attr(ino) else { return false };
        let plan = extents.plan_read(ino, 0..attr.size_bytes, attr.size_bytes);
        let is_named = namespace.inode(ino).is_some_and(|inode| inode.first.is_some());
        is_named
            && self.expected_object(namespace, ino).is_some()
            && plan.iter().all(|segment| segment.origin != ByteOrigin::Remote)
    }

    pub(super) fn send_again(
        &mut self,
        namespace: &Namespace,
        extents: &mut ByteMapMut,
        ino: Ino,
        stamp: Stamp,
    ) {
        if self.dirs.contains_key(&ino) {
            self.all_entries_changed(ino);
            self.page_changed(namespace, ino, stamp.time);
        } else if self.is_whole(namespace, extents.view(), ino) {
            // Every block becomes dirty: a clean one could be evicted before it is sent.
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

    /// Returns the file if it has an object and no upload.
    pub(super) fn rolled_back(
        &mut self,
        namespace: &mut Namespace,
        extents: &mut ByteMapMut,
        ino: Ino,
        etag: &str,
        (len_bytes, modified): (u64, Time),
        stamp: Stamp,
    ) -> Vec<Ino> {
        if self.expected_object(namespace, ino).is_none() {
            return Vec::new();
        }
        self.change_file(ino, |file| {
            if let Some(object) = &mut file.object {
                object.etag = etag.into();
                object.len_bytes = len_bytes;
            }
            // A pending move of the object remains.
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
