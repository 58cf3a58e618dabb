//! POSIX access control lists with the semantics of Linux (acl(5), `fs/posix_acl.c`). An ACL is an
//! extended attribute in the encoding of the system calls. So it is part of the log, of snapshots
//! and of directory pages like every extended attribute.
//!
//! Laws:
//! - Only a directory has a default ACL; a symbolic link has none.
//! - A stored access ACL is not minimal: it contains more than the mode.
//! - Owner, mask and others of a stored access ACL equal the permission bits of the mode.

use super::access::{GROUP_ALL, SET_GID, is_privileged, require_owner};
use super::flags::require_unguarded;
use super::xattr::require_room;
use super::{Inode, Namespace, Operation};
use bytes::Bytes;
use ebb_model::*;

/// A valid ACL: named entries require a mask. Permissions are the three bits of [`Access`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Acl {
    owner: u8,
    /// In the given order: the first match decides.
    users: Vec<(u32, u8)>,
    group: u8,
    groups: Vec<(u32, u8)>,
    mask: Option<u8>,
    others: u8,
}

impl Acl {
    /// Decodes an ACL; `None` is an empty one, which removes the ACL.
    fn parse(value: &[u8]) -> Result<Option<Acl>, FsError> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, entries) = value.split_first_chunk().ok_or(FsError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::NotSupported);
        }
        let (entries, rest) = entries.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(FsError::Invalid);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        Acl::of_entries(entries).map(Some).ok_or(FsError::Invalid)
    }

    /// Entries must be in the order of their tags; tags without a name occur once.
    fn of_entries(entries: &[[u8; 8]]) -> Option<Acl> {
        let mut entries = entries
            .iter()
            .map(|[t0, t1, p0, p1, id @ ..]| {
                (
                    u16::from_le_bytes([*t0, *t1]),
                    u16::from_le_bytes([*p0, *p1]),
                    u32::from_le_bytes(*id),
                )
            })
            .peekable();
        let mut next =
            |wanted: u16| entries.next_if(|(tag, _, _)| *tag == wanted).and_then(permissions);
        let owner = next(OWNER)?.1;
        let users = std::iter::from_fn(|| next(USER)).collect::<Vec<_>>();
        let group = next(GROUP)?.1;
        let groups = std::iter::from_fn(|| next(NAMED_GROUP)).collect::<Vec<_>>();
        let mask = next(MASK).map(|(_, mask)| mask);
        let others = next(OTHERS)?.1;
        let named = !users.is_empty() || !groups.is_empty();
        let nobody = users.iter().chain(&groups).any(|(id, _)| *id == NO_ID);
        let valid = entries.next().is_none() && (mask.is_some() || !named) && !nobody;
        valid.then_some(Acl { owner, users, group, groups, mask, others })
    }

    fn encode(&self) -> Bytes {
        let mut value = VERSION.to_le_bytes().to_vec();
        let mut push = |tag: u16, permissions: u8, id: u32| {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&u16::from(permissions).to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        };
        push(OWNER, self.owner, NO_ID);
        self.users.iter().for_each(|(id, permissions)| push(USER, *permissions, *id));
        push(GROUP, self.group, NO_ID);
        self.groups.iter().for_each(|(id, permissions)| push(NAMED_GROUP, *permissions, *id));
        self.mask.iter().for_each(|mask| push(MASK, *mask, NO_ID));
        push(OTHERS, self.others, NO_ID);
        value.into()
    }

    /// The permission bits of a file with this ACL. The group bits are the mask.
    fn bits(&self) -> u16 {
        u16::from(self.owner) << 6
            | u16::from(self.mask.unwrap_or(self.group)) << 3
            | u16::from(self.others)
    }

    /// Whether the permission bits represent the ACL completely.
    fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// Applies chmod(2).
    fn follow(&mut self, mode: u16) {
        let [owner, group, others] = [mode >> 6, mode >> 3, mode].map(|bits| (bits & 7) as u8);
        (self.owner, self.others) = (owner, others);
        *self.mask.as_mut().unwrap_or(&mut self.group) = group;
    }

    /// Applies the mode of a new inode to an inherited ACL.
    fn restrict(&mut self, mode: u16) {
        self.follow(self.bits() & mode);
    }

    /// Whether it grants `access` to a caller that does not own the inode.
    pub(super) fn allows(&self, gid: u32, caller: &Caller, access: Access) -> bool {
        let Access(asked) = access;
        let grants = |permissions: u8| permissions & asked == asked;
        let masked = |permissions: u8| grants(permissions & self.mask.unwrap_or(7));
        if let Some((_, permissions)) = self.users.iter().find(|(uid, _)| *uid == caller.uid) {
            return masked(*permissions);
        }
        // One matching group entry must grant the whole access.
        let own = std::iter::once((gid, self.group))
            .chain(self.groups.iter().copied())
            .filter(|(gid, _)| caller.in_group(*gid));
        let own: Vec<u8> = own.map(|(_, permissions)| permissions).collect();
        if own.is_empty() { grants(self.others) } else { own.into_iter().any(masked) }
    }
}

/// The id of entries without a name. Not a valid user or group.
const NO_ID: u32 = u32::MAX;

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Id and permissions of an entry with valid permissions.
fn permissions((_, permissions, id): (u16, u16, u32)) -> Option<(u32, u8)> {
    (permissions <= 7).then_some((id, permissions as u8))
}

impl Namespace {
    /// The mode of a new inode in `parent`: a default ACL replaces the umask.
    pub fn made_mode(&self, parent: Ino, mode: NewMode) -> u16 {
        let has_default =
            self.inode(parent).is_some_and(|dir| dir.xattrs.contains_key(AclClass::Default.name()));
        if has_default { mode.mode } else { mode.mode & !(mode.umask & 0o777) }
    }

    /// Sets or removes an ACL. A minimal access ACL becomes the mode. Removing an access ACL leaves
    /// the mode unchanged, even if there was no ACL.
    pub(super) fn set_acl(
        &mut self,
        ino: Ino,
        class: AclClass,
        value: &[u8],
        drop_set_gid: bool,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        if value.len() > MAX_XATTR_VALUE_BYTES {
            return Err(FsError::ValueTooLarge);
        }
        let acl = Acl::parse(value)?;
        let attr = &inode.attr;
        match attr.kind {
            FileKind::Symlink => return Err(FsError::NotSupported),
            FileKind::Directory => {}
            _ if class == AclClass::Access => {}
            _ if acl.is_some() => return Err(FsError::AccessDenied),
            _ => return Ok(attr.clone()),
        }
        require_unguarded(&inode)?;
        require_owner(op.caller, &inode)?;
        let mut mode = attr.mode;
        if let (AclClass::Access, Some(acl)) = (class, &acl) {
            let foreign =
                drop_set_gid || !is_privileged(op.caller) && !op.caller.in_group(attr.gid);
            mode = mode & !0o777 & if foreign { !SET_GID } else { !0 } | acl.bits();
        }
        let kept = acl
            .filter(|acl| class == AclClass::Default || !acl.is_minimal())
            .map(|acl| acl.encode());
        if mode == attr.mode && kept.as_ref() == inode.xattrs.get(class.name()) {
            return Ok(attr.clone());
        }
        if let Some(value) = &kept {
            require_room(&inode, class.name(), value)?;
        }

        inode.attr.mode = mode;
        inode.keep(class, kept);
        inode.changed(op.stamp);
        self.put_inode(&inode);
        op.touched(ino);
        Ok(inode.attr)
    }
}

impl Inode {
    pub(super) fn acl(&self, class: AclClass) -> Option<Acl> {
        // Stored values were validated on entry.
        self.xattrs.get(class.name()).and_then(|value| Acl::parse(value).ok().flatten())
    }

    /// Restores the law between mode and access ACL after a change of the mode.
    pub(super) fn acl_follows_mode(&mut self) {
        if let Some(mut acl) = self.acl(AclClass::Access) {
            acl.follow(self.attr.mode);
            self.keep(AclClass::Access, Some(acl.encode()));
        }
    }

    /// The mode and ACLs that a new inode of this directory inherits.
    pub(super) fn inherit_acl(&self, kind: FileKind, mode: u16) -> (u16, Vec<(Bytes, Bytes)>) {
        let inherits = kind != FileKind::Symlink && !Planted::AclNotInherited.is_on();
        let default = self.acl(AclClass::Default).filter(|_| inherits);
        let Some(default) = default else { return (mode, Vec::new()) };
        let mut access = default.clone();
        access.restrict(mode);
        let mut acls = Vec::new();
        if !access.is_minimal() {
            acls.push((Bytes::from_static(AclClass::Access.name()), access.encode()));
        }
        if kind == FileKind::Directory {
            acls.push((Bytes::from_static(AclClass::Default.name()), default.encode()));
        }
        (mode & !0o777 | access.bits(), acls)
    }

    /// Enforces the laws on attributes from a directory page. The mode takes precedence. An
    /// undecodable access ACL clears the group bits: the ids that the mask admitted are unknown.
    pub(super) fn settle_acls(&mut self) {
        let unreadable = self.xattrs.contains_key(AclClass::Access.name())
            && self.acl(AclClass::Access).is_none();
        if unreadable && self.attr.kind != FileKind::Symlink {
            self.attr.mode &= !GROUP_ALL;
        }
        let kind = self.attr.kind;
        let access =
            self.acl(AclClass::Access).filter(|acl| kind != FileKind::Symlink && !acl.is_minimal());
        let default = self.acl(AclClass::Default).filter(|_| kind == FileKind::Directory);
        self.keep(AclClass::Access, access.map(|acl| acl.encode()));
        self.keep(AclClass::Default, default.map(|acl| acl.encode()));
        self.acl_follows_mode();
    }

    /// Whether the laws hold.
    pub(super) fn acls_are_sound(&self) -> bool {
        let mut settled = Inode {
            attr: self.attr.clone(),
            xattrs: self.xattrs.clone(),
            target: Bytes::new(),
            ..*self
        };
        settled.settle_acls();
        settled.xattrs == self.xattrs && settled.attr.mode == self.attr.mode
    }

    fn keep(&mut self, class: AclClass, value: Option<Bytes>) {
        match value {
            Some(value) => drop(self.xattrs.insert(Bytes::from_static(class.name()), value)),
            None => drop(self.xattrs.remove(class.name())),
        }
    }
}
