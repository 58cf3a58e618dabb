//! Flags of chattr(1), which restrict changes even by root. They are stored as an extended
//! attribute that no listing shows, so they are in the log, in snapshots and in directory pages.

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
    /// Stored values were validated on entry; an invalid value from a directory page counts as no
    /// flags.
    pub(super) fn flags(&self) -> InodeFlags {
        self.xattrs
            .get(InodeFlags::ATTRIBUTE)
            .and_then(|value| InodeFlags::parse(value).ok())
            .unwrap_or_default()
    }

    /// Whether names and attributes are frozen (immutable or append-only).
    pub(super) fn is_guarded(&self) -> bool {
        self.flags().guards() != InodeFlags::default()
    }
}

/// Fails if the flags forbid a change of attributes or a new name.
pub(super) fn require_unguarded(inode: &Inode) -> Result<(), FsError> {
    if inode.is_guarded() { Err(FsError::NotPermitted) } else { Ok(()) }
}
