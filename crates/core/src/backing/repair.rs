//! Repairs that an operator requests: send objects again that the bucket lost, or give up changes
//! that the bucket never received.

use super::*;
use crate::byte_map::{ByteMap, ByteOrigin};
use crate::content::ContentMut;

impl Backing {
    /// Whether every byte of a file with an object is cached, so it can be sent without the object.
    pub fn is_whole(&self, namespace: &Namespace, extents: ByteMap, ino: Ino) -> bool {
        let Ok(attr) = namespace.attr(ino) else { return false };
        let plan = extents.plan_read(ino, 0..attr.size_bytes, attr.size_bytes);
        self.may_send_again(namespace, ino)
            && plan.iter().all(|segment| segment.origin != ByteOrigin::Remote)
    }

    /// Whether the file has a name, and an object that it can be without.
    fn may_send_again(&self, namespace: &Namespace, ino: Ino) -> bool {
        let is_named = namespace.inode(ino).is_some_and(|inode| inode.first.is_some());
        is_named && self.expected_object(namespace, ino).is_some()
    }

    /// A node has every byte of the file.
    pub(super) fn send_again(
        &mut self,
        namespace: &Namespace,
        content: &mut ContentMut,
        ino: Ino,
        stamp: Stamp,
    ) {
        if self.dirs.contains_key(&ino) {
            self.all_entries_changed(ino);
            self.page_changed(namespace, ino, stamp.time);
        } else if self.may_send_again(namespace, ino) {
            // Every block becomes dirty: a clean one could be evicted before it is sent.
            let blocks = content.view().data_runs(ino);
            content.dirtied(ino, blocks, stamp.version);
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
        content: &mut ContentMut,
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
        content.rolled_back(ino, etag, len_bytes);
        namespace.replace_content(ino, len_bytes, modified, stamp);
        self.record(namespace, ino, stamp.time);
        vec![ino]
    }
}
