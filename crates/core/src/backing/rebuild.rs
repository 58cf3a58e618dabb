//! Combines the backing of a backup with the current bucket, after the loss of a node (decision
//! 14). No file has cached bytes; each gets the object with its bytes, or none.

use super::*;
use crate::content::ContentMut;
use std::collections::BTreeSet;

/// An object of the bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    pub etag: String,
    pub len_bytes: u64,
    pub modified: Time,
}

/// The recoverable bytes of a file that are not its last ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The object of its last upload: later writes existed only on the lost node.
    Older,
    /// The object changed after the backup.
    Changed,
    /// No bytes.
    Lost,
}

/// Tag of the object of a file without one. No store assigns it: in conditions of Google Cloud
/// Storage it means that the object does not exist.
const NO_OBJECT: &str = "0";

impl Backing {
    /// Whether the file's bytes were lost with a node: the bucket has none of them.
    pub fn is_lost(&self, ino: Ino) -> bool {
        self.files.get(&ino).and_then(|file| file.object).is_some_and(|home| home.etag == NO_OBJECT)
    }

    /// Keeps a pending delete only if its object is unchanged. The delete of a directory's marker
    /// is dropped if the directory has keys again.
    pub(crate) fn keep_deletes(&mut self, objects: &BTreeMap<String, Object>) {
        let deletes: Vec<(String, Option<String>)> = self.deletes.iter().collect();
        for (key, tag) in deletes {
            let is_used = || {
                key.ends_with('/')
                    && objects
                        .range(key.clone()..)
                        .nth(1)
                        .is_some_and(|(next, _)| next.starts_with(&key))
            };
            match objects.get(&key).filter(|_| !is_used()) {
                Some(object) if tag.as_ref().is_none_or(|tag| *tag == object.etag) => {
                    self.deletes.insert(&key, &Some(object.etag.clone()));
                }
                _ => drop(self.deletes.remove(&key)),
            }
        }
    }

    /// Assigns each file its object: the recorded one if unchanged, or the one at its key, or a
    /// `moved` one, whose tag names the file. Returns the files with other bytes than in the
    /// backup.
    pub(crate) fn rebuild_files(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        objects: &BTreeMap<String, Object>,
        moved: &BTreeMap<Ino, String>,
        stamp: Stamp,
    ) -> BTreeMap<Ino, Loss> {
        let files: Vec<Ino> = self.files.iter().map(|(ino, _)| ino).collect();
        let is_same = |(key, home): &(String, BackingObject)| {
            objects.get(key).is_some_and(|object| object.etag == home.etag)
        };
        let kept: BTreeMap<Ino, String> = files
            .iter()
            .filter_map(|ino| Some((*ino, self.backing_object(namespace, *ino).filter(is_same)?.0)))
            .collect();
        let mut taken: BTreeSet<String> = kept.values().cloned().collect();
        // The former keys of the remaining files can hold other files' objects now.
        for ino in files.iter().filter(|ino| !kept.contains_key(ino)) {
            if let Some(key) = self.explicit_key(*ino) {
                self.explicit_keys.remove(&key);
            }
            self.change_file(*ino, |file| file.object.iter_mut().for_each(|home| home.key = None));
        }
        let mut losses = BTreeMap::new();
        let mut lost = Vec::new();
        for ino in files {
            let free = |key: &String| {
                objects.contains_key(key) && !taken.contains(key) && !self.deletes.contains_key(key)
            };
            let elsewhere = || {
                self.key_of(namespace, ino)
                    .filter(free)
                    .or_else(|| moved.get(&ino).cloned().filter(free))
            };
            let Some(key) = kept.get(&ino).cloned().or_else(elsewhere) else {
                lost.push(ino);
                continue;
            };
            taken.insert(key.clone());
            let object = &objects[&key];
            if !kept.contains_key(&ino) {
                self.settle_at(namespace, ino, key, object, stamp);
            }
            losses.extend(
                self.take_content(namespace, content, ino, object, stamp).map(|loss| (ino, loss)),
            );
        }
        for ino in lost {
            let own = self
                .key_of(namespace, ino)
                .filter(|key| !taken.contains(key) && !self.deletes.contains_key(key));
            losses.extend(
                self.found_nowhere(namespace, content, ino, own, stamp).map(|loss| (ino, loss)),
            );
        }
        losses
    }

    /// Sets a changed or moved object of a file.
    fn settle_at(
        &mut self,
        namespace: &Namespace,
        ino: Ino,
        key: String,
        object: &Object,
        stamp: Stamp,
    ) {
        self.change_file(ino, |file| {
            file.object = Some(BackingObject {
                key: None,
                etag: object.etag.clone(),
                len_bytes: object.len_bytes,
            })
        });
        self.set_object_key(namespace, ino, key, Some(stamp.time));
        self.record(namespace, ino, stamp.time);
    }

    fn take_content(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        ino: Ino,
        Object { etag, len_bytes, modified }: &Object,
        stamp: Stamp,
    ) -> Option<Loss> {
        let is_same = content.view().object(ino).is_some_and(|home| home.etag == *etag);
        let is_newer_here = content.view().dirty_count(ino) > 0;
        content.bytes_lost(ino);
        if is_same && !is_newer_here {
            return None;
        }
        self.rolled_back(namespace, content, ino, etag, (*len_bytes, *modified), stamp);
        Some(if is_same { Loss::Older } else { Loss::Changed })
    }

    fn found_nowhere(
        &mut self,
        namespace: &mut Namespace,
        content: &mut ContentMut,
        ino: Ino,
        own: Option<String>,
        stamp: Stamp,
    ) -> Option<Loss> {
        let size_bytes = namespace.attr(ino).map_or(0, |attr| attr.size_bytes);
        let is_known = size_bytes == 0 || content.view().data_count(ino) == 0;
        content.bytes_lost(ino);
        let is_named = namespace.inode(ino).is_some_and(|inode| inode.first.is_some());
        if is_known && is_named {
            content.forget_object(ino);
            self.change_file(ino, |file| {
                file.object = None;
                file.dirty =
                    Some(Dirty { since: stamp.time, content: Some(stamp.version), moving: false });
            });
            return None;
        }
        // Use a key at which no other file's object is ever written, so a read finds no object.
        content.rolled_back(ino, NO_OBJECT, size_bytes);
        self.change_file(ino, |file| {
            file.object =
                Some(BackingObject { key: None, etag: NO_OBJECT.into(), len_bytes: size_bytes });
            file.dirty = None;
        });
        self.set_object_key(namespace, ino, own.unwrap_or_else(|| keys::waiting_key(ino)), None);
        self.record(namespace, ino, stamp.time);
        Some(Loss::Lost)
    }

    /// Directories whose objects were moved after the backup get the prefix of their path.
    pub(crate) fn follow_prefixes(
        &mut self,
        namespace: &Namespace,
        objects: &BTreeMap<String, Object>,
        now: Time,
    ) {
        let is_used = |prefix: &str| {
            objects
                .range(prefix.to_owned()..)
                .next()
                .is_some_and(|(key, _)| key.starts_with(prefix))
        };
        let mut todo: Vec<Ino> = self.redirects().collect();
        while let Some(dir) = todo.pop() {
            let Some(prefix) = self.dirs.get(&dir).and_then(|dir| dir.prefix) else { continue };
            let Some(own) =
                self.own_prefix(namespace, dir).filter(|own| !self.is_taken(namespace, own))
            else {
                continue;
            };
            if !is_used(&prefix) {
                self.unredirect(namespace, dir, &prefix, now);
            } else if is_used(&own) {
                // Some objects were moved and others were not.
                self.give_up_redirect(namespace, dir, false);
                todo.extend(namespace.children(dir).map(|(_, child)| child.ino));
            }
        }
    }

    /// Resumes each directory from the bucket's state, and marks a page as dirty unless the last
    /// written one is still there.
    pub(crate) fn rebuild_directories(
        &mut self,
        namespace: &Namespace,
        objects: &BTreeMap<String, Object>,
        now: Time,
    ) {
        let dirs: Vec<(Ino, DirBacking)> = self.dirs.iter().collect();
        for (dir, state) in dirs {
            let Some(prefix) = self.prefix_of(namespace, dir) else { continue };
            if !self.is_complete(dir) {
                self.change_dir(dir, |dir| {
                    dir.load = Load::Unknown;
                    dir.epoch += 1;
                    dir.page = None;
                });
                self.rebuild_pieces(dir, [].into_iter());
                self.let_in_again(dir, &prefix, objects);
                continue;
            }
            let page = objects.get(&keys::page_key(dir)).map(|object| object.etag.clone());
            let is_current = page.is_some() && page == state.page && state.dirty.is_none();
            self.change_dir(dir, |state| {
                state.page = page;
                state.marked &=
                    dir == Ino::ROOT || !state.has_page() || objects.contains_key(&prefix);
            });
            if !is_current {
                let first = keys::pieces_prefix(dir);
                let there = objects
                    .range(first.clone()..)
                    .map(|(key, _)| key)
                    .take_while(|key| key.starts_with(&first));
                self.rebuild_pieces(dir, there.filter_map(|key| Some(keys::piece_of(key)?.1)));
            }
            if !is_current && (state.has_page() || self.pieces.contains_key(&dir)) {
                self.page_changed(namespace, dir, now);
            }
        }
        self.pieces.retain(|dir, _| self.dirs.contains_key(dir));
    }

    /// Lets a complete listing add names to the directory. It excludes claimed objects, and
    /// directories of which only a marker with a pending delete is left.
    pub(crate) fn begin_listing(
        &mut self,
        namespace: &Namespace,
        dir: Ino,
    ) -> Option<(String, u64)> {
        let prefix = self.prefix_of(namespace, dir)?;
        self.change_dir(dir, |dir| {
            dir.load = Load::Revalidating;
            dir.epoch += 1;
        });
        for noted in observe::below(&self.removed, dir, observe::first_name()) {
            self.removed.remove(&noted);
        }
        let markers = revalidate::keys_below(&self.deletes, &prefix)
            .filter_map(|key| Some(key.strip_prefix(&prefix)?.strip_suffix('/')?.to_owned()));
        let names: Vec<Name> = markers
            .filter(|segment| !segment.contains('/'))
            .filter_map(|segment| keys::name_of(&segment))
            .collect();
        for name in names.into_iter().filter(|name| !is_reserved(dir, name)) {
            self.removed.insert(&(dir, name), &());
        }
        Some((prefix, self.dirs.get(&dir)?.epoch))
    }

    /// Names that were removed before the backup and exist again in the bucket.
    fn let_in_again(&mut self, dir: Ino, prefix: &str, objects: &BTreeMap<String, Object>) {
        for (dir, name) in observe::below(&self.removed, dir, observe::first_name()) {
            let key = format!("{prefix}{}", keys::segment_of(&name));
            let is_claimed =
                self.deletes.contains_key(&key) || self.explicit_keys.contains_key(&key);
            if objects.contains_key(&key) && !is_claimed {
                self.removed.remove(&(dir, name));
            }
        }
    }
}
