//! Extended attributes. ACLs have rules and operations of their own ([`super::acl`]).

use super::access::{STICKY, is_privileged, require, require_owner};
use super::flags::require_unguarded;
use super::{Inode, Namespace, Operation, QUOTA, TRASHED};
use bytes::Bytes;
use ebb_model::*;

pub(super) const CAPABILITY: &[u8] = b"security.capability";

impl Namespace {
    /// Value of an attribute. [`FsError::NoAttribute`] if it is not set, [`FsError::NotSupported`]
    /// for a name outside the supported classes.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        let inode = self.inode(ino).ok_or(FsError::Stale)?;
        if AclClass::of(name).is_none() && name != InodeFlags::ATTRIBUTE {
            Prefix::of(name)?;
        } else if inode.attr.kind == FileKind::Symlink {
            return Err(FsError::NotSupported);
        }
        inode.xattrs.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    /// Names of the attributes, without the internal ones.
    pub fn list_xattr(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        let inode = self.inode(ino).ok_or(FsError::Stale)?;
        Ok(inode
            .xattrs
            .into_keys()
            .filter(|name| ![InodeFlags::ATTRIBUTE, QUOTA, TRASHED].contains(&&name[..]))
            .collect())
    }

    pub(super) fn set_xattr(
        &mut self,
        ino: Ino,
        name: &Bytes,
        value: &Bytes,
        mode: XattrMode,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        if value.len() > MAX_XATTR_VALUE_BYTES {
            return Err(FsError::ValueTooLarge);
        }
        require_changeable(op.caller, &inode, name)?;
        if name == KEEP && (inode.attr.kind != FileKind::Directory || parse_keep(value).is_none()) {
            return Err(FsError::Invalid);
        }
        let exists = inode.xattrs.contains_key(name);
        match mode {
            XattrMode::Create if exists && !Planted::XattrCreateReplaces.is_on() => {
                return Err(FsError::Exists);
            }
            XattrMode::Replace if !exists => return Err(FsError::NoAttribute),
            _ => {}
        }
        require_room(&inode, name, value)?;
        inode.xattrs.insert(name.clone(), value.clone());
        inode.changed(op.stamp);
        self.put_inode(&inode);
        op.touched(ino);
        Ok(inode.attr)
    }

    pub(super) fn remove_xattr(
        &mut self,
        ino: Ino,
        name: &Bytes,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        require_changeable(op.caller, &inode, name)?;
        if !inode.xattrs.contains_key(name) {
            return Err(FsError::NoAttribute);
        }
        inode.xattrs.remove(name);
        inode.changed(op.stamp);
        self.put_inode(&inode);
        op.touched(ino);
        Ok(inode.attr)
    }
}

/// Fails if the attribute exceeds the inode's limits.
pub(super) fn require_room(inode: &Inode, name: &[u8], value: &[u8]) -> Result<(), FsError> {
    let others = || inode.xattrs.iter().filter(|(other, _)| *other != name);
    let listed_bytes: usize = others().map(|(other, _)| other.len() + 1).sum();
    let held_bytes: usize = others().map(|(other, value)| other.len() + value.len()).sum();
    let fits = listed_bytes + name.len() < MAX_XATTR_LIST_BYTES
        && held_bytes + name.len() + value.len() <= MAX_XATTRS_BYTES;
    if fits { Ok(()) } else { Err(FsError::NoSpace) }
}

enum Prefix {
    User,
    /// Reserved for the administrator: `trusted.` and, since no security module is consulted,
    /// `security.`.
    Privileged,
}

impl Prefix {
    fn of(name: &[u8]) -> Result<Prefix, FsError> {
        if name.is_empty() || name.len() > MAX_XATTR_NAME_BYTES {
            return Err(FsError::Range);
        }
        if name.contains(&0) {
            return Err(FsError::Invalid);
        }
        let known: [(&[u8], Prefix); 3] = [
            (b"user.", Prefix::User),
            (b"trusted.", Prefix::Privileged),
            (b"security.", Prefix::Privileged),
        ];
        let (start, prefix) = known
            .into_iter()
            .find(|(start, _)| name.starts_with(start))
            .ok_or(FsError::NotSupported)?;
        if name.len() == start.len() { Err(FsError::Invalid) } else { Ok(prefix) }
    }
}

fn require_changeable(caller: &Caller, inode: &Inode, name: &[u8]) -> Result<(), FsError> {
    let prefix = Prefix::of(name)?;
    require_unguarded(inode)?;
    match prefix {
        Prefix::Privileged if is_privileged(caller) => Ok(()),
        Prefix::Privileged => Err(FsError::NotPermitted),
        Prefix::User => match inode.attr.kind {
            FileKind::Regular => require(caller, inode, Access::WRITE),
            FileKind::Directory => {
                if inode.attr.mode & STICKY != 0 {
                    require_owner(caller, inode)?;
                }
                require(caller, inode, Access::WRITE)
            }
            _ => Err(FsError::NotPermitted),
        },
    }
}
