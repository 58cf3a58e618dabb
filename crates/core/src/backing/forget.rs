//! Names of which the bucket says all need not be known here: they leave the memory, and are loaded
//! again when they are asked for.
//!
//! What an object or a prefix says by itself has another inode id then. So nobody may hold the old
//! one: that is for the node to know.

use super::*;
use crate::extent::Extents;
use crate::namespace::{Change, Inode};

/// Names of a directory that may be forgotten.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forgettable {
    pub inos: Vec<Ino>,
    /// Where to look on; `None` at the end of the directory.
    pub next: Option<Cookie>,
}

impl Backing {
    /// Looks at `count` names behind `after`. Of files that have clean bytes here these are to be
    /// evicted first.
    pub fn forgettable(
        &self,
        namespace: &Namespace,
        extents: &Extents,
        dir: Ino,
        after: Cookie,
        count: usize,
    ) -> Forgettable {
        let Some(prefix) = self.forgettable_below(namespace, dir) else {
            return Forgettable::default();
        };
        let mut found = Forgettable::default();
        for (at, (_, child)) in namespace.children_after(dir, after).take(count).enumerate() {
            if self.may_forget(namespace, extents, dir, &prefix, child) {
                found.inos.push(child.ino);
            }
            found.next = (at + 1 == count).then_some(child.cookie);
        }
        found
    }

    /// Those of the inodes that may be go, with their only names, which are in the directory.
    pub(super) fn forget(
        &mut self,
        namespace: &mut Namespace,
        extents: &Extents,
        dir: Ino,
        inos: &[Ino],
        changes: &mut Vec<Change>,
    ) -> bool {
        let Some(prefix) = self.forgettable_below(namespace, dir) else { return false };
        let known = |ino: &Ino| {
            let (parent, name) = namespace.primary_name(*ino)?;
            let child =
                namespace.dentry(dir, &name).filter(|child| parent == dir && child.ino == *ino)?;
            let may = self.may_forget(namespace, extents, dir, &prefix, child)
                && !extents.is_stored(*ino);
            may.then_some((name, child))
        };
        let going: Vec<(Name, Dentry)> = inos.iter().filter_map(known).collect();
        if going.is_empty() {
            return false;
        }
        if !self.is_open(dir) {
            self.keep_out_claimed(dir, &prefix);
        }
        self.change_dir(dir, |dir| {
            dir.load = Load::Unknown;
            dir.epoch += 1;
        });
        for (name, child) in going {
            // It was removed once, and what has come in its place since is to be found again.
            self.removed.remove(&(dir, name.clone()));
            self.files.remove(&child.ino);
            self.dirs.remove(&child.ino);
            self.pieces.remove(&child.ino);
            namespace.forget(dir, &name, child);
            changes.push(Change::Forgotten { ino: child.ino });
        }
        true
    }

    /// The directory's prefix, if listing and page together say all about what is clean in it.
    fn forgettable_below(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        let state = self.dirs.get(&dir)?;
        let is_told = state.dirty.is_none()
            && !self.uploads.contains_key(&dir)
            && (state.stored || !state.recorded);
        // What is below a quota root has been counted, and what is in the trash is to be found
        // there.
        let is_bound = namespace.quota_root(dir).is_some()
            || namespace.pin_of(dir).is_some()
            || namespace.is_trash(dir);
        self.prefix_of(namespace, dir).filter(|_| is_told && !is_bound)
    }

    fn may_forget(
        &self,
        namespace: &Namespace,
        extents: &Extents,
        dir: Ino,
        prefix: &str,
        child: Dentry,
    ) -> bool {
        let Dentry { ino, kind, .. } = child;
        let Some(inode) = namespace.inode(ino) else { return false };
        let has_page = self.dirs.get(&dir).is_some_and(|dir| dir.stored);
        if self.uploads.contains_key(&ino)
            || self.unseen.has(ino)
            || inode.names != 1
            || inode.xattrs.contains_key(PIN)
        {
            return false;
        }
        match kind {
            FileKind::Directory => self.may_forget_directory(namespace, ino, prefix, has_page),
            FileKind::Regular => self.may_forget_file(extents, &inode, has_page),
            _ => inode.attr.nlink == 1 && has_page,
        }
    }

    fn may_forget_file(&self, extents: &Extents, inode: &Inode, has_page: bool) -> bool {
        let Some(file) = self.files.get(&inode.attr.ino).filter(|file| file.dirty.is_none()) else {
            return false;
        };
        let Some(home) = file.home.filter(|home| home.key.is_none()) else { return false };
        let is_told = if file.recorded { has_page } else { inode.is_as_found() };
        let is_whole = home.len_bytes == inode.attr.size_bytes
            && extents.is_clean(inode.attr.ino, home.len_bytes);
        inode.attr.nlink == 1 && is_told && is_whole
    }

    /// A directory that has nothing in it that is known here, and below which nothing is under way.
    fn may_forget_directory(
        &self,
        namespace: &Namespace,
        dir: Ino,
        parent_prefix: &str,
        parent_has_page: bool,
    ) -> bool {
        let Some(state) = self.dirs.get(&dir) else { return false };
        let Some(prefix) = self.prefix_of(namespace, dir).filter(|_| state.prefix.is_none()) else {
            return false;
        };
        let is_told = state.dirty.is_none()
            && (state.recorded && parent_has_page || !state.recorded && !state.has_page());
        let is_noted = self
            .removed
            .range((dir, follow::first_name())..)
            .next()
            .is_some_and(|((of, _), ())| of == dir)
            || [&self.hidden, &self.former].iter().any(|kept| {
                kept.range((dir, String::new())..).next().is_some_and(|((of, _), ())| of == dir)
            });
        let is_claimed = revalidate::keys_below(&self.deletes, &prefix).next().is_some()
            || revalidate::keys_below(&self.homes, &prefix).next().is_some()
            || revalidate::keys_below(&self.redirects, &prefix).next().is_some()
            || self.uploads.values().any(|upload| upload.is_below(&prefix));
        let is_empty = !namespace.has_more_names_than(dir, 0)
            && namespace.quota_root(dir).is_none()
            && !namespace.is_trash(dir);
        prefix.starts_with(parent_prefix) && is_told && is_empty && !is_noted && !is_claimed
    }
}
