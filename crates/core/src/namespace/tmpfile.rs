//! O_TMPFILE: an unnamed file. It can get a name later; without one it is removed with its last
//! holder.

use super::access::require;
use super::{Change, Inode, Namespace, Operation};
use ebb_model::*;
use std::collections::BTreeSet;

impl Namespace {
    /// `parent` provides permissions and inherited attributes and does not change: only `holder`
    /// can reach the file.
    pub(super) fn tmpfile(
        &mut self,
        parent: Ino,
        ino: Ino,
        mode: u16,
        holder: SessionId,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let dir = self.searchable(op.caller, parent)?;
        require(op.caller, &dir, Access::WRITE)?;
        self.require_unused(ino)?;
        let mut inode = Inode::new(op, &dir, ino, mode, &Make::Regular);
        inode.attr.nlink = 0;
        let attr = inode.attr.clone();
        self.add_inode(&inode);
        self.count_in_stray(ino, parent);
        self.orphans.insert(ino, BTreeSet::from([holder]));
        self.linkable.insert(ino);
        op.changes.push(Change::Made { ino });
        Ok(attr)
    }
}
