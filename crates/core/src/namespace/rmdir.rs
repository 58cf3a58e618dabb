//! rmdir(2): removes an empty directory.

use super::{Namespace, Operation};
use ebb_model::*;

impl Namespace {
    /// Names that exist only in the bucket count, too: the caller has loaded the directory
    /// completely.
    pub(super) fn rmdir(
        &mut self,
        parent: Ino,
        name: &Name,
        holders: &[SessionId],
        op: &mut Operation,
    ) -> Result<(), FsError> {
        let lost = self.removable(op.caller, parent, name)?;
        if lost.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if !self.is_empty_directory(lost.ino) {
            return Err(FsError::NotEmpty);
        }
        self.remove(lost, holders, op);
        Ok(())
    }
}
