//! Eviction of names from memory: names that the bucket represents completely are dropped and
//! loaded again on demand.
//!
//! A reloaded object or prefix without a record gets another inode id. So no client may hold a
//! reference to the old one: the node ensures that.

use super::*;
use crate::byte_map::ByteMap;
use crate::content::Content;
use crate::namespace::{Change, Inode};

/// Names of a directory that can be evicted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forgettable {
    pub inos: Vec<Ino>,
    /// Position of the next batch; `None` at the end of the directory.
    pub next: Option<Cookie>,
}

impl Backing {
    /// Examines `count` names after `after`. Files with clean cached bytes are included; the node
    /// must evict those bytes first.
    pub fn forgettable(
        &self,
        namespace: &Namespace,
        extents: ByteMap,
        dir: Ino,
        after: Cookie,
        count: usize,
    ) -> Forgettable {
        let Some(prefix) = self.forgettable_below(namespace, dir) else {
            return Forgettable::default();
        };
        let mut found = Forgettable::default();
        for (at, (_, child)) in namespace.children_after(dir, after).take(count).enumerate() {
            if self.may_forget(namespace, extents.content(), dir, &prefix, child)
                && !extents.is_exposed(child.ino)
            {
                found.inos.push(child.ino);
            }
            found.next = (at + 1 == count).then_some(child.cookie);
        }
        found
    }

    /// Evicts those of the inodes that still can be, with their only names, which are in the
    /// directory. No node has bytes of them.
    pub(super) fn forget(
        &mut self,
        namespace: &mut Namespace,
        content: &Content,
        dir: Ino,
        inos: &[Ino],
        changes: &mut Vec<Change>,
    ) -> bool {
        let Some(prefix) = self.forgettable_below(namespace, dir) else { return false };
        let known = |ino: &Ino| {
            let (parent, name) = namespace.primary_name(*ino)?;
            let child =
                namespace.dentry(dir, &name).filter(|child| parent == dir && child.ino == *ino)?;
            let may = self.may_forget(namespace, content, dir, &prefix, child);
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
            // Clear an earlier removal of the name, or the listing would not restore it.
            self.removed.remove(&(dir, name.clone()));
            self.files.remove(&child.ino);
            self.dirs.remove(&child.ino);
            self.pieces.remove(&child.ino);
            namespace.forget(dir, &name, child);
            changes.push(Change::Forgotten { ino: child.ino });
        }
        true
    }

    /// The directory's prefix, if listing and page together represent every clean name in it.
    fn forgettable_below(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        let state = self.dirs.get(&dir)?;
        let is_told = state.dirty.is_none()
            && !self.uploads.contains_key(&dir)
            && (state.stored || !state.recorded);
        // The usage of a quota root stays counted, and the trash stays loaded.
        let is_bound = namespace.quota_root(dir).is_some()
            || namespace.pin_of(dir).is_some()
            || namespace.is_trash(dir);
        self.prefix_of(namespace, dir).filter(|_| is_told && !is_bound)
    }

    fn may_forget(
        &self,
        namespace: &Namespace,
        content: &Content,
        dir: Ino,
        prefix: &str,
        child: Dentry,
    ) -> bool {
        let Dentry { ino, kind, .. } = child;
        let Some(inode) = namespace.inode(ino) else { return false };
        let has_page = self.dirs.get(&dir).is_some_and(|dir| dir.stored);
        if self.uploads.contains_key(&ino)
            || self.unresolved_links.has(ino)
            || inode.names != 1
            || inode.xattrs.contains_key(PIN)
        {
            return false;
        }
        match kind {
            FileKind::Directory => self.may_forget_directory(namespace, ino, prefix, has_page),
            FileKind::Regular => {
                let policy = namespace.inode(dir).map_or(PolicyId::DEFAULT, |dir| dir.policy);
                self.may_forget_file(content, (&inode, policy), has_page)
            }
            _ => inode.attr.nlink == 1 && has_page,
        }
    }

    /// `policy`: of the directory.
    fn may_forget_file(
        &self,
        content: &Content,
        (inode, policy): (&Inode, PolicyId),
        has_page: bool,
    ) -> bool {
        let Some(file) = self.files.get(&inode.attr.ino).filter(|file| file.dirty.is_none()) else {
            return false;
        };
        let Some(object) = file.object.filter(|object| object.key.is_none()) else { return false };
        let is_told = if file.recorded { has_page } else { inode.is_as_found(policy) };
        let is_whole = object.len_bytes == inode.attr.size_bytes
            && content.is_clean(inode.attr.ino, object.len_bytes);
        inode.attr.nlink == 1 && is_told && is_whole
    }

    /// Whether no name of the directory is loaded and no work is pending below it.
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
            .range((dir, observe::first_name())..)
            .next()
            .is_some_and(|((of, _), ())| of == dir)
            || [&self.hidden, &self.former].iter().any(|kept| {
                kept.range((dir, String::new())..).next().is_some_and(|((of, _), ())| of == dir)
            });
        let is_claimed = revalidate::keys_below(&self.deletes, &prefix).next().is_some()
            || revalidate::keys_below(&self.explicit_keys, &prefix).next().is_some()
            || revalidate::keys_below(&self.redirects, &prefix).next().is_some()
            || self.uploads.values().any(|upload| upload.is_below(&prefix));
        let is_empty = !namespace.has_more_names_than(dir, 0)
            && namespace.quota_root(dir).is_none()
            && !namespace.is_trash(dir);
        prefix.starts_with(parent_prefix) && is_told && is_empty && !is_noted && !is_claimed
    }
}
