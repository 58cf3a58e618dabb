//! unlink(2): removes a name of a non-directory.

use super::access::require_removable;
use super::{Named, Namespace, Operation};
use ebb_model::*;

impl Namespace {
    pub(super) fn unlink(
        &mut self,
        parent: Ino,
        name: &Name,
        holders: &[SessionId],
        op: &mut Operation,
    ) -> Result<(), FsError> {
        let lost = self.removable(op.caller, parent, name)?;
        if lost.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.remove(lost, holders, op);
        Ok(())
    }

    /// The dentry of `name`, if `caller` can remove it.
    pub(super) fn removable<'a>(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &'a Name,
    ) -> Result<Named<'a>, FsError> {
        let dir = self.searchable(caller, parent)?;
        let named = self.named(parent, name).ok_or(FsError::NotFound)?;
        let inode = self.inode(named.ino).ok_or(FsError::Stale)?;
        require_removable(caller, &dir, &inode)?;
        Ok(named)
    }

    /// `holders`: sessions with the inode open.
    pub(super) fn remove(&mut self, lost: Named, holders: &[SessionId], op: &mut Operation) {
        self.remove_dentry(lost.link.parent, lost.name);
        let subdirectory = lost.kind == FileKind::Directory && lost.name.as_bytes() != TRASH;
        self.dir_changed(lost.link.parent, op.stamp, -i32::from(subdirectory));
        self.lose_name(lost, holders, op);
    }
}
