//! Dentries and what they do to the inodes on both sides: the parts that the operations on
//! names are made of. None of them checks anything.

use super::access::require;
use super::{Change, Dentry, Inode, Link, Namespace};
use ebb_model::*;

impl Namespace {
    /// A directory that names can be looked up in. One that was removed while held open
    /// has no names, and gets none.
    pub(super) fn directory(&self, ino: Ino) -> Result<&Inode, FsError> {
        let inode = self.inode(ino).ok_or(FsError::Stale)?;
        if inode.attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if inode.attr.nlink == 0 {
            return Err(FsError::NotFound);
        }
        Ok(inode)
    }

    /// A directory that `caller` may look names up in.
    pub(super) fn searchable(&self, caller: &Caller, ino: Ino) -> Result<&Inode, FsError> {
        let dir = self.directory(ino)?;
        require(caller, dir, Access::EXECUTE)?;
        Ok(dir)
    }

    pub fn dentry(&self, parent: Ino, name: &Name) -> Option<Dentry> {
        self.dentries.find(|(other_parent, other_name)| (*other_parent, other_name).cmp(&(parent, name))).copied()
    }

    /// The inode that a dentry or an operation has found to exist.
    pub(super) fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("a dentry refers to an inode that exists")
    }

    pub(super) fn is_empty_directory(&self, dir: Ino) -> bool {
        self.order.range((dir, Cookie::START)..=(dir, Cookie(u64::MAX))).next().is_none()
    }

    /// Enters a name at the end of the directory.
    pub(super) fn enter(&mut self, parent: Ino, name: &Name, ino: Ino, kind: FileKind) -> Link {
        let dir = self.inode_mut(parent);
        dir.last_cookie.0 += 1;
        let link = Link { parent, cookie: dir.last_cookie };
        self.enter_at(name, link, ino, kind)
    }

    /// Enters a name at a place that no name has.
    pub(super) fn enter_at(&mut self, name: &Name, link: Link, ino: Ino, kind: FileKind) -> Link {
        let Link { parent, cookie } = link;
        self.dentries.insert((parent, name.clone()), Dentry { ino, kind, cookie });
        self.order.insert((parent, cookie), name.clone());
        link
    }

    /// Removes a name from the directory.
    pub(super) fn strike(&mut self, parent: Ino, name: &Name) {
        if let Some(dentry) = self.dentries.remove(&(parent, name.clone())) {
            self.order.remove(&(parent, dentry.cookie));
        }
    }

    /// A name came into the directory or left it; `subdirectories` says how many more it has.
    pub(super) fn dir_changed(&mut self, dir: Ino, stamp: Stamp, subdirectories: i32) {
        let inode = self.inode_mut(dir);
        inode.attr.nlink = inode.attr.nlink.wrapping_add_signed(subdirectories);
        inode.modified(stamp);
    }

    /// `inode` is known by one name less. Without any it goes, or waits for its holders.
    pub(super) fn lose_name(&mut self, ino: Ino, link: Link, name: &Name, stamp: Stamp, holders: &[SessionId], changes: &mut Vec<Change>) {
        let counted_in = self.counts_in(ino);
        let inode = self.inode_mut(ino);
        let primary = inode.drop_link(link);
        let kind = inode.attr.kind;
        inode.attr.nlink = if kind == FileKind::Directory { 0 } else { inode.attr.nlink - 1 };
        inode.changed(stamp);
        let nameless = inode.attr.nlink == 0;
        changes.push(Change::Unlinked { parent: link.parent, name: name.clone(), ino, primary, stamp });
        if kind == FileKind::Directory {
            self.end_root(ino, counted_in);
        }
        if nameless && holders.is_empty() {
            let gone = self.inodes.remove(&ino);
            gone.iter().for_each(|inode| self.count_out(counted_in, inode));
            changes.push(Change::Gone { ino, kind });
            return;
        }
        if nameless {
            self.orphans.insert(ino, holders.iter().copied().collect());
        }
        self.count_renamed(ino, counted_in);
    }
}

/// Beyond them room for as many again is made at a time.
const FEW_LINKS: usize = 16;

impl Inode {
    /// Something of the inode changed, its content did not. A replayed operation carries
    /// its original stamp, so that the version may be there already.
    pub(super) fn changed(&mut self, stamp: Stamp) {
        self.attr.ctime = stamp.time;
        self.attr.version = self.attr.version.max(stamp.version);
    }

    /// The content of the file or directory changed.
    pub(super) fn modified(&mut self, stamp: Stamp) {
        self.attr.mtime = stamp.time;
        self.changed(stamp);
    }

    /// Most inodes have one link, and a million of them no room for others.
    pub(super) fn add_link(&mut self, link: Link, primary: bool) {
        if self.links.len() < FEW_LINKS {
            self.links.reserve_exact(1);
        }
        self.links.insert(if primary { 0 } else { self.links.len() }, link);
    }

    /// True if the link was the primary one.
    pub(super) fn drop_link(&mut self, link: Link) -> bool {
        let at = self.links.iter().position(|other| *other == link).expect("a dentry is a link of its inode");
        self.links.remove(at);
        at == 0
    }

    /// Replaces a link and leaves it as old as it was. True if it is the primary one.
    pub(super) fn move_link(&mut self, from: Link, to: Link) -> bool {
        let at = self.links.iter().position(|other| *other == from).expect("a dentry is a link of its inode");
        self.links[at] = to;
        at == 0
    }
}
