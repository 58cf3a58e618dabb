//! POSIX permission checks, including ACLs, for callers that the kernel has not checked.

use super::flags::require_unguarded;
use super::{Inode, Namespace};
use ebb_model::*;

pub(super) const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
pub(super) const STICKY: u16 = 0o1000;
pub(super) const GROUP_EXECUTE: u16 = 0o0010;
pub(super) const GROUP_ALL: u16 = 0o0070;
const ANY_EXECUTE: u16 = 0o0111;

impl Namespace {
    /// access(2): evaluates mode and ACL even if the kernel has checked the caller.
    pub fn access(&self, caller: &Caller, ino: Ino, access: Access) -> Result<(), FsError> {
        let inode = self.inode(ino).ok_or(FsError::Stale)?;
        if allows(&inode, caller, access) { Ok(()) } else { Err(FsError::AccessDenied) }
    }
}

/// Fails unless the caller has `access` to the inode. An immutable inode is never writable.
pub(super) fn require(caller: &Caller, inode: &Inode, access: Access) -> Result<(), FsError> {
    if access.0 & Access::WRITE.0 != 0 && inode.flags().has(InodeFlags::IMMUTABLE) {
        return Err(FsError::NotPermitted);
    }
    if caller.checked || allows(inode, caller, access) {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Fails unless the caller owns the inode or is root.
pub(super) fn require_owner(caller: &Caller, inode: &Inode) -> Result<(), FsError> {
    if is_privileged(caller) || caller.uid == inode.attr.uid {
        Ok(())
    } else {
        Err(FsError::NotPermitted)
    }
}

/// Fails unless the caller can remove or rename `victim` in `dir`.
pub(super) fn require_removable(
    caller: &Caller,
    dir: &Inode,
    victim: &Inode,
) -> Result<(), FsError> {
    require(caller, dir, Access::WRITE)?;
    if dir.flags().has(InodeFlags::APPEND) {
        return Err(FsError::NotPermitted);
    }
    require_unguarded(victim)?;
    if dir.attr.mode & STICKY != 0 && caller.uid != dir.attr.uid {
        require_owner(caller, victim)?;
    }
    Ok(())
}

/// Whether no check is needed: the kernel has made it, or the caller is root.
pub(super) fn is_privileged(caller: &Caller) -> bool {
    caller.checked || caller.uid == 0
}

fn allows(inode: &Inode, caller: &Caller, access: Access) -> bool {
    let (attr, Access(asked)) = (&inode.attr, access);
    if caller.uid == 0 {
        let executable = attr.kind == FileKind::Directory || attr.mode & ANY_EXECUTE != 0;
        return executable || asked & Access::EXECUTE.0 == 0;
    }
    // Like Linux, consult the ACL only if its mask grants anything.
    if caller.uid != attr.uid
        && attr.mode & GROUP_ALL != 0
        && let Some(acl) = inode.acl(AclClass::Access)
    {
        return acl.allows(attr.gid, caller, access);
    }
    let shift = if caller.uid == attr.uid {
        6
    } else if caller.in_group(attr.gid) {
        3
    } else {
        0
    };
    let granted = (attr.mode >> shift & 7) as u8;
    asked & !granted == 0
}
