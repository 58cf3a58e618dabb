//! Flags of chattr(1): what even root has to undo before an inode can be changed. They are kept
//! as an extended attribute that no list shows, so that they are wherever those are.

use super::access::{is_privileged, require_owner};
use super::xattr::require_room;
use super::{Inode, Namespace, Operation};
use bytes::Bytes;
use ebb_model::*;

impl Namespace {
    pub(super) fn set_flags(
        &mut self,
        ino: Ino,
        value: &[u8],
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        let flags = InodeFlags::parse(value)?;
        if !matches!(inode.attr.kind, FileKind::Regular | FileKind::Directory) {
            return Err(FsError::NotSupported);
        }
        require_owner(op.caller, &inode)?;
        let old = inode.flags();
        if flags.guards() != old.guards() && !is_privileged(op.caller) {
            return Err(FsError::NotPermitted);
        }
        if flags == old {
            return Ok(inode.attr);
        }
        let value = flags.value();
        require_room(&inode, InodeFlags::ATTRIBUTE, &value)?;
        match flags == InodeFlags::default() {
            true => drop(inode.xattrs.remove(InodeFlags::ATTRIBUTE)),
            false => drop(inode.xattrs.insert(Bytes::from_static(InodeFlags::ATTRIBUTE), value)),
        }
        inode.changed(op.stamp);
        self.put_inode(&inode);
        op.touched(ino);
        Ok(inode.attr)
    }
}

impl Inode {
    /// What is stored was parsed before; what a page says wrongly says nothing.
    pub(super) fn flags(&self) -> InodeFlags {
        self.xattrs
            .get(InodeFlags::ATTRIBUTE)
            .and_then(|value| InodeFlags::parse(value).ok())
            .unwrap_or_default()
    }

    /// Neither names nor attributes may change.
    pub(super) fn is_guarded(&self) -> bool {
        self.flags().guards() != InodeFlags::default()
    }
}

/// Refuses to change attributes, or to give another name.
pub(super) fn require_unguarded(inode: &Inode) -> Result<(), FsError> {
    if inode.is_guarded() { Err(FsError::NotPermitted) } else { Ok(()) }
}
