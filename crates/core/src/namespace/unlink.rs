//! unlink: removes a name of what is not a directory.

use super::access::require_removable;
use super::{Dentry, Link, Namespace, Operation};
use ebb_model::*;

impl Namespace {
    pub(super) fn unlink(&mut self, parent: Ino, name: &Name, holders: &[SessionId], op: &mut Operation) -> Result<(), FsError> {
        let dentry = self.removable(op.caller, parent, name)?;
        if dentry.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.remove(parent, name, dentry, holders, op);
        Ok(())
    }

    /// What `name` refers to, if `caller` may remove it.
    pub(super) fn removable(&self, caller: &Caller, parent: Ino, name: &Name) -> Result<Dentry, FsError> {
        let dir = self.searchable(caller, parent)?;
        let dentry = self.dentry(parent, name).ok_or(FsError::NotFound)?;
        let inode = self.inode(dentry.ino).ok_or(FsError::Stale)?;
        require_removable(caller, &dir, &inode)?;
        Ok(dentry)
    }

    /// `holders` have it open.
    pub(super) fn remove(&mut self, parent: Ino, name: &Name, dentry: Dentry, holders: &[SessionId], op: &mut Operation) {
        self.strike(parent, name);
        self.dir_changed(parent, op.stamp, -i32::from(dentry.kind == FileKind::Directory && name.as_bytes() != TRASH));
        self.lose_name(dentry.ino, Link { parent, cookie: dentry.cookie }, name, holders, op);
    }
}
