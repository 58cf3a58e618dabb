//! link(2): adds a name to an inode, or the first name to an unnamed file (O_TMPFILE).

use super::access::require;
use super::flags::require_unguarded;
use super::{Namespace, Operation};
use ebb_model::*;

impl Namespace {
    pub(super) fn link(
        &mut self,
        ino: Ino,
        parent: Ino,
        name: &Name,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        let dir = self.searchable(op.caller, parent)?;
        if self.dentry(parent, name).is_some() {
            return Err(FsError::Exists);
        }
        require(op.caller, &dir, Access::WRITE)?;
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
        let link = self.add(parent, name, ino, kind, op.stamp);
        self.add_link(&mut inode, link, false);
        inode.attr.nlink += 1;
        inode.changed(op.stamp);
        self.put_inode(&inode);
        op.linked(parent, name, ino, inode.names == 1);
        self.count_renamed(ino, counted_in);
        Ok(inode.attr)
    }
}
