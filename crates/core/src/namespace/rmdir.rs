//! rmdir: removes an empty directory.

use super::trash::Parting;
use super::{Change, Namespace};
use ebb_model::*;

impl Namespace {
    /// Names that are still only in the bucket count as much as loaded ones: the caller has
    /// made sure that the directory is loaded whole.
    pub(super) fn rmdir(
        &mut self,
        caller: &Caller,
        stamp: Stamp,
        parent: Ino,
        name: &Name,
        parting: Parting,
        changes: &mut Vec<Change>,
    ) -> Result<(), FsError> {
        let dentry = self.removable(caller, parent, name)?;
        if dentry.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if !self.is_empty_directory(dentry.ino) {
            return Err(FsError::NotEmpty);
        }
        self.remove(parent, name, dentry, stamp, parting, changes);
        Ok(())
    }
}
