//! Applies changes of the namespace to the backing.

use super::*;
use crate::namespace::Change;
use crate::tree::Key;

impl Backing {
    /// Changes are in order, and all of them have already happened: `namespace` is the final state.
    pub(crate) fn observe(&mut self, change: &Change, namespace: &Namespace) {
        if !self.backed {
            return;
        }
        match change {
            Change::Made { ino } => drop(self.files.insert(ino, &FileBacking::default())),
            Change::Linked { parent, name, ino, stamp, .. } => {
                self.entry_changed(*parent, name);
                self.linked(namespace, *parent, *ino, *stamp);
            }
            Change::Unlinked { parent, name, ino, primary, by_others, stamp } => {
                match (self.is_open(*parent), by_others) {
                    (true, false) => drop(self.removed.insert(&(*parent, name.clone()), &())),
                    // They can put it there again: a listing of before must not bring it back, a
                    // later one must.
                    (true, true) => self.change_dir(*parent, |dir| dir.epoch += 1),
                    (false, _) => {}
                }
                self.unlinked(namespace, (*parent, name), *ino, *primary, *stamp)
            }
            Change::Touched { ino, stamp } => self.record(namespace, *ino, stamp.time),
            Change::Written { ino, stamp, .. }
            | Change::Zeroed { ino, stamp, .. }
            | Change::Resized { ino, stamp, .. } => {
                self.content_changed(namespace, *ino, *stamp);
                self.record(namespace, *ino, stamp.time);
            }
            Change::Gone { ino, .. } => self.gone(*ino),
            Change::Forgotten { .. } => {}
        }
    }

    fn linked(&mut self, namespace: &Namespace, parent: Ino, ino: Ino, stamp: Stamp) {
        let inode = namespace.inode(ino);
        match inode.as_ref().map(|inode| inode.attr.kind) {
            Some(FileKind::Directory) => self.directory_linked(namespace, ino, stamp),
            Some(FileKind::Regular) if self.files.contains_key(&ino) => {
                if let Some(key) = self.explicit_key(ino) {
                    self.set_object_key(namespace, ino, key, Some(stamp.time));
                } else if self
                    .files
                    .get(&ino)
                    .is_some_and(|file| file.object.is_none() && file.dirty.is_none())
                {
                    // Created without a name: it has a key from its first name on.
                    self.content_changed(namespace, ino, stamp);
                }
            }
            Some(FileKind::Regular) => {
                let is_named = inode.is_some_and(|inode| inode.first.is_some());
                let dirty = is_named.then_some(Dirty {
                    since: stamp.time,
                    content: Some(stamp.version),
                    moving: false,
                });
                // The page that records the file becomes dirty below.
                self.new_file(ino, &FileBacking { object: None, dirty, recorded: true });
            }
            _ => {}
        }
        self.record(namespace, ino, stamp.time);
        self.directory_changed(namespace, parent, stamp.time);
    }

    /// An explicit key that can have become the path's own. The key `None` follows the primary
    /// name, which a further name does not change.
    pub(super) fn explicit_key(&self, ino: Ino) -> Option<String> {
        self.files.look(&ino, |file| file?.object.as_ref()?.key.clone())
    }

    fn directory_linked(&mut self, namespace: &Namespace, dir: Ino, stamp: Stamp) {
        match self.dirs.get(&dir) {
            None => {
                self.dirs.insert(&dir, &DirBacking::native());
                if let Some(own) = self.own_prefix(namespace, dir)
                    && self.is_taken(namespace, &own)
                {
                    self.redirect(dir, keys::private_prefix(dir));
                }
                self.page_changed(namespace, dir, stamp.time);
            }
            Some(DirBacking { prefix, .. }) => {
                if let Some(prefix) = prefix
                    && self.own_prefix(namespace, dir).as_ref() == Some(&prefix)
                {
                    self.unredirect(namespace, dir, &prefix, stamp.time);
                }
                // The page records the directory's parent.
                if self.dirs.get(&dir).is_some_and(|dir| dir.has_page()) {
                    self.page_changed(namespace, dir, stamp.time);
                }
            }
        }
    }

    fn unlinked(
        &mut self,
        namespace: &Namespace,
        (parent, name): (Ino, &Name),
        ino: Ino,
        primary: bool,
        stamp: Stamp,
    ) {
        self.entry_changed(parent, name);
        let named = namespace.inode(ino).is_some_and(|inode| inode.attr.nlink > 0);
        let parent_prefix = self.prefix_of(namespace, parent);
        if let (Some(file), Some(prefix)) = (self.files.get(&ino), &parent_prefix) {
            if primary && let Some(object) = file.object {
                let key = object.key.unwrap_or_else(|| keys::own_key(prefix, name, ino));
                self.set_object_key(namespace, ino, key, Some(stamp.time));
            }
            if !named {
                self.change_file(ino, |file| file.dirty = None);
            }
        }
        if let (Some(dir), Some(prefix)) = (self.dirs.get(&ino), &parent_prefix) {
            let own = || keys::own_prefix(prefix, name, ino);
            if !named {
                self.directory_removed(namespace, ino, &dir.prefix.unwrap_or_else(own), stamp.time);
            } else if dir.prefix.is_none() {
                let prefix = own();
                self.redirect(ino, prefix.clone());
                self.hide(namespace, &prefix, stamp.time);
            }
        }
        if named {
            self.record(namespace, ino, stamp.time);
        }
        self.directory_changed(namespace, parent, stamp.time);
    }

    fn content_changed(&mut self, namespace: &Namespace, ino: Ino, stamp: Stamp) {
        if namespace.inode(ino).is_none_or(|inode| inode.first.is_none()) {
            return;
        }
        self.change_file(ino, |file| {
            let dirty =
                file.dirty.get_or_insert(Dirty { since: stamp.time, content: None, moving: false });
            dirty.content = dirty.content.max(Some(stamp.version));
        });
    }

    fn gone(&mut self, ino: Ino) {
        self.unresolved_links.forget(ino);
        let Some(file) = self.files.get(&ino) else { return };
        self.change_file(ino, |file| file.dirty = None);
        self.files.remove(&ino);
        // The object of an unlinked file got an explicit key with the loss of the last name.
        if let Some(BackingObject { key: Some(key), etag, .. }) = file.object
            && !Planted::RemovedKeepsObject.is_on()
        {
            self.explicit_keys.remove(&key);
            self.deletes.insert(&key, &Some(etag));
        }
    }

    /// A removed directory stays empty: its objects can be deleted, and its prefix is free, even
    /// while a client has it open.
    fn directory_removed(&mut self, namespace: &Namespace, dir: Ino, prefix: &str, now: Time) {
        self.change_dir(dir, |dir| dir.dirty = None);
        let Some(state) = self.dirs.remove(&dir) else { return };
        if state.prefix.is_some() {
            self.redirects.remove(&prefix.to_string());
            self.unhide(namespace, prefix, now);
        }
        if state.marked {
            self.deletes.insert(&prefix.into(), &None);
        }
        if state.stored {
            self.deletes.insert(&keys::page_key(dir), &None);
        }
        self.pieces_removed(dir);
        for name in below(&self.removed, dir, first_name()) {
            self.removed.remove(&name);
        }
        self.leave_prefix(namespace, dir, prefix, now);
    }

    /// The directory has no object below `prefix` any more; other directories can.
    pub(super) fn leave_prefix(
        &mut self,
        namespace: &Namespace,
        dir: Ino,
        prefix: &str,
        now: Time,
    ) {
        let hidden = below(&self.hidden, dir, String::new());
        for segment in &hidden {
            self.hidden.remove(segment);
        }
        for segment in below(&self.former, dir, String::new()) {
            self.former.remove(&segment);
        }
        if !hidden.is_empty() {
            self.hide(namespace, prefix, now);
        }
    }

    /// The file's object is at `key`. `since`: time of the change that the object has not followed
    /// yet.
    pub(super) fn set_object_key(
        &mut self,
        namespace: &Namespace,
        ino: Ino,
        key: String,
        since: Option<Time>,
    ) {
        let own = self.key_of(namespace, ino);
        let explicit = (own.as_ref() != Some(&key)).then_some(key);
        let old = self.explicit_key(ino);
        if old != explicit {
            if let Some(old) = old {
                self.explicit_keys.remove(&old);
            }
            if let Some(key) = &explicit {
                self.explicit_keys.insert(key, &ino);
            }
        }
        self.change_file(ino, |file| {
            let moving =
                explicit.is_some() && own.is_some() && (since.is_some() || file.dirty.is_some());
            if let Some(object) = &mut file.object {
                object.key = explicit;
            }
            let content = file.dirty.as_ref().and_then(|dirty| dirty.content);
            let since = file.dirty.as_ref().map(|dirty| dirty.since).or(since).unwrap_or_default();
            file.dirty = (content.is_some() || moving).then_some(Dirty { since, content, moving });
        });
    }

    /// The inode's attributes or names changed: all pages that record it become dirty.
    pub(super) fn record(&mut self, namespace: &Namespace, ino: Ino, now: Time) {
        if self.files.look(&ino, |file| file.is_some_and(|file| !file.recorded)) {
            self.change_file(ino, |file| file.recorded = true);
        }
        if ino == Ino::ROOT {
            self.page_changed(namespace, ino, now);
        }
        let Some(inode) = namespace.inode(ino) else { return };
        if inode.attr.kind == FileKind::Directory
            && self.dirs.look(&ino, |dir| dir.is_some_and(|dir| !dir.recorded))
        {
            self.change_dir(ino, |dir| dir.recorded = true);
        }
        self.entries_changed(namespace, &inode);
        for parent in namespace.parents(&inode) {
            self.page_changed(namespace, parent, now);
        }
    }

    pub(super) fn directory_changed(&mut self, namespace: &Namespace, dir: Ino, now: Time) {
        self.page_changed(namespace, dir, now);
        self.record(namespace, dir, now);
    }

    /// Marks the directory's page as dirty. A new page must be recorded in the parent.
    pub(super) fn page_changed(&mut self, namespace: &Namespace, dir: Ino, now: Time) {
        let mut at = dir;
        loop {
            let is_said = |dir: &DirBacking| {
                dir.recorded && dir.dirty.as_ref().is_some_and(|dirty| dirty.again)
            };
            let found = self
                .dirs
                .look(&at, |dir| dir.map(|dir| (dir.recorded && dir.has_page(), is_said(dir))));
            let Some((known, false)) = found else { return };
            self.change_dir(at, |dir| {
                dir.recorded = true;
                match &mut dir.dirty {
                    Some(dirty) => dirty.again = true,
                    None => dir.dirty = Some(PageDirty { since: now, again: true }),
                }
            });
            if known {
                return;
            }
            let Some(link) = namespace.primary_link(at) else { return };
            if let Some(name) = namespace.name_at(link) {
                self.entry_changed(link.parent, &name);
            }
            at = link.parent;
        }
    }

    pub(super) fn redirect(&mut self, dir: Ino, prefix: String) {
        self.redirects.insert(&prefix, &dir);
        self.change_dir(dir, |dir| {
            dir.prefix = Some(prefix);
            dir.epoch += 1;
        });
    }

    pub(super) fn unredirect(&mut self, namespace: &Namespace, dir: Ino, prefix: &str, now: Time) {
        self.redirects.remove(&prefix.to_string());
        self.change_dir(dir, |dir| {
            dir.prefix = None;
            dir.epoch += 1;
        });
        self.unhide(namespace, prefix, now);
    }

    /// Whether a directory must not use `prefix`, since objects of another one are below it.
    pub(super) fn is_taken(&self, namespace: &Namespace, prefix: &str) -> bool {
        let (parent, segment) = keys::split(prefix);
        let hidden = self
            .dir_at(namespace, parent)
            .is_some_and(|dir| self.hidden.contains_key(&(dir, segment.into())));
        hidden || self.redirects.contains_key(&prefix.to_string())
    }

    /// `prefix` no longer belongs to the directory of its path. The nearest loaded directory above
    /// it that lists it must record that in its page, for a node that has only the bucket. If the
    /// path to it is not loaded, a page in the bucket already hides it: `prefix` was below a
    /// redirect before.
    pub(super) fn hide(&mut self, namespace: &Namespace, prefix: &str, now: Time) {
        let mut shown = prefix;
        let (dir, segment) = loop {
            let (parent, segment) = keys::split(shown);
            if let Some(dir) = self.dir_at(namespace, parent) {
                break (dir, segment);
            }
            shown = parent;
        };
        let unknown = |name| {
            namespace.dentry(dir, &name).is_none() && !self.knows_absent(namespace, dir, &name)
        };
        let reserved = dir == Ino::ROOT && segment == keys::RESERVED;
        if reserved || !self.is_hidden(dir, segment) && keys::name_of(segment).is_some_and(unknown)
        {
            return;
        }
        self.former.remove(&(dir, segment.into()));
        self.hidden.insert(&(dir, segment.into()), &());
        self.page_changed(namespace, dir, now);
    }

    /// `prefix` is no longer a redirect. Objects below it that still have to be moved or deleted
    /// must not look like a directory of that name.
    pub(super) fn unhide(&mut self, namespace: &Namespace, prefix: &str, now: Time) {
        let (parent, segment) = keys::split(prefix);
        let Some(dir) = self.dir_at(namespace, parent) else { return };
        if self.is_open(dir) {
            self.former.insert(&(dir, segment.into()), &());
        }
        if self.hidden.remove(&(dir, segment.into())).is_some() {
            self.page_changed(namespace, dir, now);
        }
    }

    /// Whether the objects below the segment belong to another directory.
    pub(super) fn is_hidden(&self, dir: Ino, segment: &str) -> bool {
        let key = (dir, segment.to_string());
        self.hidden.contains_key(&key) || self.former.contains_key(&key)
    }
}

/// Keys of a tree with the first part `dir`; `first` sorts before every second part.
pub(super) fn below<K: Key>(tree: &Tree<(Ino, K), ()>, dir: Ino, first: K) -> Vec<(Ino, K)> {
    tree.range((dir, first)..).map(|(key, ())| key).take_while(|key| key.0 == dir).collect()
}

pub(super) fn first_name() -> Name {
    Name::new(&[1]).expect("a byte that is neither NUL nor a slash is a name")
}
