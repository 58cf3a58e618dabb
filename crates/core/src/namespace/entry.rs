//! Dentries and their effect on directory and inode: the primitives of all operations on names.
//!
//! Law: nothing here checks a precondition. The operations validate everything first, then change.

use super::access::require;
use super::{Change, Dentry, Entry, Inode, Link, Named, Namespace, Operation};
use ebb_model::*;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Bound;

impl Namespace {
    /// A directory in which names can be looked up. A removed directory, orphan or in the trash,
    /// has no names and gets none.
    pub(super) fn directory(&self, ino: Ino) -> Result<Inode, FsError> {
        let inode = self.inode(ino).ok_or(FsError::Stale)?;
        if inode.attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if inode.attr.nlink == 0 || inode.is_trashed() {
            return Err(FsError::NotFound);
        }
        Ok(inode)
    }

    /// A directory in which `caller` can look up names.
    pub(super) fn searchable(&self, caller: &Caller, ino: Ino) -> Result<Inode, FsError> {
        let dir = self.directory(ino)?;
        require(caller, &dir, Access::EXECUTE)?;
        Ok(dir)
    }

    /// The dentry of a loaded name.
    pub fn dentry(&self, parent: Ino, name: &Name) -> Option<Dentry> {
        let cookies = self.hashes.get(&(parent, hash_of(name)))?;
        cookies.into_iter().find_map(|cookie| {
            self.entry(parent, cookie)
                .filter(|entry| entry.name == *name)
                .map(|entry| entry.at(cookie))
        })
    }

    pub(super) fn named<'a>(&self, parent: Ino, name: &'a Name) -> Option<Named<'a>> {
        let Dentry { ino, kind, cookie } = self.dentry(parent, name)?;
        Some(Named { name, link: Link { parent, cookie }, ino, kind })
    }

    pub(super) fn entry(&self, parent: Ino, cookie: Cookie) -> Option<Entry> {
        self.dentries.get(&(parent, cookie))
    }

    /// The name at a position of a directory stream.
    pub(crate) fn name_at(&self, link: Link) -> Option<Name> {
        self.entry(link.parent, link.cookie).map(|entry| entry.name)
    }

    /// The directory stream after a position.
    pub(super) fn stream(&self, dir: Ino, after: Cookie) -> impl Iterator<Item = (Cookie, Entry)> {
        let range = (Bound::Excluded((dir, after)), Bound::Included((dir, Cookie(u64::MAX))));
        self.dentries.range(range).map(|((_, cookie), entry)| (cookie, entry))
    }

    /// The directory stream before a position, in reverse.
    pub(super) fn stream_back(
        &self,
        dir: Ino,
        before: Cookie,
    ) -> impl Iterator<Item = (Cookie, Entry)> {
        let below = self.dentries.below((dir, before));
        below
            .take_while(move |((parent, _), _)| *parent == dir)
            .map(|((_, cookie), entry)| (cookie, entry))
    }

    /// The loaded names of a directory, oldest first.
    pub fn children(&self, dir: Ino) -> impl Iterator<Item = (Name, Dentry)> {
        self.children_after(dir, Cookie::START)
    }

    pub(crate) fn children_after(
        &self,
        dir: Ino,
        after: Cookie,
    ) -> impl Iterator<Item = (Name, Dentry)> {
        self.stream(dir, after).map(|(cookie, entry)| {
            let dentry = entry.at(cookie);
            (entry.name, dentry)
        })
    }

    /// Changes an inode that exists, since a dentry or an operation refers to it.
    pub(super) fn change_inode<T>(&mut self, ino: Ino, change: impl FnOnce(&mut Inode) -> T) -> T {
        self.inodes.change(&ino, change).expect("a dentry refers to an inode that exists")
    }

    /// Stores a changed inode.
    pub(super) fn put_inode(&mut self, inode: &Inode) {
        self.inodes.insert(&inode.attr.ino, inode);
    }

    pub(super) fn is_empty_directory(&self, dir: Ino) -> bool {
        self.stream(dir, Cookie::START).next().is_none()
    }

    /// Inserts a dentry at the end of the directory, without a change of the directory's
    /// attributes.
    pub(super) fn insert_dentry(
        &mut self,
        parent: Ino,
        name: &Name,
        ino: Ino,
        kind: FileKind,
    ) -> Link {
        let cookie = self.change_inode(parent, Inode::draw_cookie);
        self.insert_dentry_at(name, Link { parent, cookie }, ino, kind)
    }

    /// Inserts a dentry at the end of the directory and updates the directory's attributes.
    pub(super) fn add(
        &mut self,
        parent: Ino,
        name: &Name,
        ino: Ino,
        kind: FileKind,
        stamp: Stamp,
    ) -> Link {
        let cookie = self.change_inode(parent, |dir| {
            dir.attr.nlink += u32::from(kind == FileKind::Directory);
            dir.modified(stamp);
            dir.draw_cookie()
        });
        self.insert_dentry_at(name, Link { parent, cookie }, ino, kind)
    }

    /// Inserts a dentry at a free position.
    pub(super) fn insert_dentry_at(
        &mut self,
        name: &Name,
        link: Link,
        ino: Ino,
        kind: FileKind,
    ) -> Link {
        self.put_entry(link, &Entry { name: name.clone(), ino, kind });
        link
    }

    /// Returns false if the position is taken.
    pub(super) fn put_entry(&mut self, Link { parent, cookie }: Link, entry: &Entry) -> bool {
        let key = (parent, hash_of(&entry.name));
        let mut cookies = self.hashes.get(&key).unwrap_or_default();
        if !cookies.contains(&cookie) {
            cookies.push(cookie);
            self.hashes.insert(&key, &cookies);
        }
        self.dentries.insert(&(parent, cookie), entry)
    }

    /// Removes a dentry from its directory.
    pub(super) fn remove_dentry(&mut self, parent: Ino, name: &Name) {
        if let Some(dentry) = self.dentry(parent, name) {
            self.dentries.remove(&(parent, dentry.cookie));
            let key = (parent, hash_of(name));
            let mut cookies = self.hashes.remove(&key).unwrap_or_default();
            cookies.retain(|cookie| *cookie != dentry.cookie);
            if !cookies.is_empty() {
                self.hashes.insert(&key, &cookies);
            }
        }
    }

    /// Updates a directory after a name was added or removed; `subdirectories` is the change of
    /// their count.
    pub(super) fn dir_changed(&mut self, dir: Ino, stamp: Stamp, subdirectories: i32) {
        self.change_inode(dir, |inode| {
            inode.attr.nlink = inode.attr.nlink.wrapping_add_signed(subdirectories);
            inode.modified(stamp);
        });
    }

    /// Removes one name of an inode. Without another name the inode moves to the trash, becomes an
    /// orphan of its `holders`, or is removed.
    pub(super) fn lose_name(&mut self, lost: Named, holders: &[SessionId], op: &mut Operation) {
        if let Some(trash) = op.trash
            && let Some(path) = self.path_to_keep(lost)
        {
            self.keep(lost, path, trash, op);
            return;
        }
        let Named { name, link, ino, kind } = lost;
        let counted_in = self.counts_in(ino);
        let mut inode = self.inode(ino).expect("a dentry refers to an inode that exists");
        let primary = self.drop_link(&mut inode, link);
        inode.attr.nlink = if kind == FileKind::Directory { 0 } else { inode.attr.nlink - 1 };
        inode.changed(op.stamp);
        self.put_inode(&inode);
        let nameless = inode.attr.nlink == 0;
        let holders = if Planted::OpenFileGoes.is_on() { &[] } else { holders };
        op.unlinked(link.parent, name, ino, primary);
        if kind == FileKind::Directory {
            self.end_root(ino, counted_in);
        }
        if nameless && holders.is_empty() {
            self.inodes.remove(&ino);
            self.count_out(counted_in, &inode);
            op.changes.push(Change::Gone { ino, attr: inode.attr });
            return;
        }
        if nameless {
            self.orphans.insert(ino, holders.iter().copied().collect());
        }
        self.count_renamed(ino, counted_in);
    }
}

pub(super) fn hash_of(name: &Name) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish() as u32
}

impl Inode {
    /// The cookie of a directory's next name.
    fn draw_cookie(&mut self) -> Cookie {
        self.last_cookie.0 += 1;
        self.last_cookie
    }

    /// Updates an inode after a change of its attributes. A replayed operation has its original
    /// stamp, so the inode can have that version already.
    pub(super) fn changed(&mut self, stamp: Stamp) {
        self.attr.ctime = stamp.time;
        self.attr.version = self.attr.version.max(stamp.version);
    }

    /// Updates an inode after a change of its data or names.
    pub(super) fn modified(&mut self, stamp: Stamp) {
        self.attr.mtime = stamp.time;
        self.changed(stamp);
    }
}
