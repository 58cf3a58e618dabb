//! link: another name for an inode, or the first one for a file that was made without.

use super::access::require;
use super::flags::require_unguarded;
use super::{Change, Namespace};
use ebb_model::*;

impl Namespace {
    pub(super) fn link(
        &mut self,
        caller: &Caller,
        stamp: Stamp,
        ino: Ino,
        parent: Ino,
        name: &Name,
        changes: &mut Vec<Change>,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        let dir = self.searchable(caller, parent)?;
        if self.dentry(parent, name).is_some() {
            return Err(FsError::Exists);
        }
        require(caller, &dir, Access::WRITE)?;
        let kind = inode.attr.kind;
        if kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        require_unguarded(&inode)?;
        if inode.is_trashed() || inode.attr.nlink == 0 && !self.linkable.contains(&ino) {
            return Err(FsError::NotFound);
        }
        if inode.attr.nlink >= MAX_LINKS {
            return Err(FsError::TooManyLinks);
        }
        let counted_in = self.counts_in(ino);
        self.linkable.remove(&ino);
        self.orphans.remove(&ino);
        let link = self.enter(parent, name, ino, kind);
        self.dir_changed(parent, stamp, 0);
        self.add_link(&mut inode, link, false);
        inode.attr.nlink += 1;
        inode.changed(stamp);
        self.put_inode(&inode);
        changes.push(Change::Linked { parent, name: name.clone(), ino, primary: inode.names == 1, stamp });
        self.count_renamed(ino, counted_in);
        Ok(inode.attr)
    }
}
