//! unlink: removes a name of what is not a directory.

use super::access::require_removable;
use super::trash::Parting;
use super::{Change, Dentry, Link, Namespace};
use ebb_model::*;

impl Namespace {
    pub(super) fn unlink(
        &mut self,
        caller: &Caller,
        stamp: Stamp,
        parent: Ino,
        name: &Name,
        parting: Parting,
        changes: &mut Vec<Change>,
    ) -> Result<(), FsError> {
        let dentry = self.removable(caller, parent, name)?;
        if dentry.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.remove(parent, name, dentry, stamp, parting, changes);
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

    pub(super) fn remove(&mut self, parent: Ino, name: &Name, dentry: Dentry, stamp: Stamp, parting: Parting, changes: &mut Vec<Change>) {
        self.strike(parent, name);
        self.dir_changed(parent, stamp, -i32::from(dentry.kind == FileKind::Directory && name.as_bytes() != TRASH));
        self.lose_name(dentry.ino, Link { parent, cookie: dentry.cookie }, name, stamp, parting, changes);
    }
}
