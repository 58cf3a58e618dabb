//! chmod, chown, utimens and truncate.

use super::access::{GROUP_EXECUTE, SET_GID, SET_UID, is_privileged, require, require_owner};
use super::packed::MODE;
use super::xattr::CAPABILITY;
use super::{Change, Inode, Namespace, Operation};
use ebb_model::*;

impl Namespace {
    /// Applies all requested changes or none. An empty request changes nothing, not even ctime.
    /// `has_edge`: see [`Change::Resized`].
    pub(super) fn set_attr(
        &mut self,
        ino: Ino,
        set: &SetAttr,
        has_edge: bool,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        validate(&inode, set)?;
        require_rights(op.caller, &inode, set)?;
        let old = inode.attr.clone();
        // The kernel checks no permission for this request: it comes from a chown(2) without ids,
        // or precedes a write that asks again.
        let is_nothing = *set == DROP_SET_ID
            && (![0, old.uid].contains(&op.caller.uid)
                || inode.without_set_id(op.caller) == old.mode);
        if *set == SetAttr::default() || is_nothing {
            return Ok(old);
        }

        if *set == READING {
            inode.attr.atime = op.stamp.time;
            inode.attr.version = inode.attr.version.max(op.stamp.version);
            self.put_inode(&inode);
            op.touched(ino);
            return Ok(inode.attr);
        }
        inode.attr.mode = new_mode(op.caller, &inode, set);
        if set.mode.is_some() {
            inode.acl_follows_mode();
        }
        if is_chown(set) || set.size_bytes.is_some() {
            inode.drop_capability();
        }
        inode.attr.uid = set.uid.unwrap_or(old.uid);
        inode.attr.gid = set.gid.unwrap_or(old.gid);
        inode.attr.size_bytes = set.size_bytes.unwrap_or(old.size_bytes);
        if set.size_bytes.is_some() {
            inode.attr.mtime = op.stamp.time;
        }
        inode.attr.atime = set.atime.map_or(inode.attr.atime, |time| resolve(time, op.stamp));
        inode.attr.mtime = set.mtime.map_or(inode.attr.mtime, |time| resolve(time, op.stamp));
        inode.changed(op.stamp);
        self.put_inode(&inode);

        let new = inode.attr;
        if new.size_bytes != old.size_bytes {
            self.count_resized(ino, old.size_bytes);
            op.changes.push(Change::Resized {
                ino,
                old_bytes: old.size_bytes,
                new_bytes: new.size_bytes,
                has_edge,
                stamp: op.stamp,
            });
        }
        if new.size_bytes == old.size_bytes
            || (SetAttr { size_bytes: None, ..*set }) != SetAttr::default()
        {
            op.touched(ino);
        }
        Ok(new)
    }
}

impl Inode {
    /// The mode after a write, truncation or change of owner. It clears set-uid. Set-gid stays only
    /// without group execution, if the caller is in the group or root, even if the kernel has
    /// checked the caller. Set-gid of a directory is not a privilege and stays.
    pub(super) fn without_set_id(&self, caller: &Caller) -> u16 {
        let Attr { mode, gid, kind, .. } = self.attr;
        if kind == FileKind::Directory {
            return mode;
        }
        let keeps_set_gid = mode & GROUP_EXECUTE == 0 && (caller.uid == 0 || caller.in_group(gid));
        mode & !SET_UID & if keeps_set_gid { !0 } else { !SET_GID }
    }

    /// Removes file capabilities, as every change of data or owner does. A directory keeps the
    /// attribute, which means nothing there.
    pub(super) fn drop_capability(&mut self) {
        if self.attr.kind != FileKind::Directory {
            self.xattrs.remove(CAPABILITY);
        }
    }
}

fn is_chown(set: &SetAttr) -> bool {
    set.uid.is_some() || set.gid.is_some()
}

/// Fails if a change is invalid for this inode, regardless of permissions.
fn validate(inode: &Inode, set: &SetAttr) -> Result<(), FsError> {
    if set.mode.is_some() && inode.attr.kind == FileKind::Symlink {
        return Err(FsError::NotSupported);
    }
    if set.size_bytes.is_some() {
        inode.attr.file_bytes()?;
    }
    let times = [set.atime, set.mtime];
    let impossible = times
        .iter()
        .any(|time| matches!(time, Some(SetTime::To(time)) if time.nanos >= 1_000_000_000));
    let mixed = times.contains(&Some(SetTime::Reading)) && *set != READING;
    if impossible || mixed || set.uid == Some(NOBODY) || set.gid == Some(NOBODY) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

fn require_rights(caller: &Caller, inode: &Inode, set: &SetAttr) -> Result<(), FsError> {
    let attr = &inode.attr;
    // `touch` counts as a write: it is allowed on an append-only file.
    let guarded = match *set {
        TOUCH => inode.flags().has(InodeFlags::IMMUTABLE),
        READING => false,
        _ => *set != NOTHING && inode.is_guarded(),
    };
    if guarded {
        return Err(FsError::NotPermitted);
    }
    if let Some(size_bytes) = set.size_bytes {
        require(caller, inode, Access::WRITE)?;
        if size_bytes > MAX_FILE_BYTES {
            return Err(FsError::TooLarge);
        }
    }
    if is_privileged(caller) {
        return Ok(());
    }
    if set.uid.is_some_and(|uid| uid != attr.uid || caller.uid != attr.uid) {
        return Err(FsError::NotPermitted);
    }
    if let Some(gid) = set.gid
        && (caller.uid != attr.uid || gid != attr.gid && !caller.in_group(gid))
    {
        return Err(FsError::NotPermitted);
    }
    if set.mode.is_some() {
        require_owner(caller, inode)?;
    }
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Reading), _) => require(caller, inode, Access::READ),
        // `touch`: a caller with write permission can set both times to now.
        (Some(SetTime::Now), Some(SetTime::Now)) if caller.uid != attr.uid => {
            require(caller, inode, Access::WRITE)
        }
        _ => require_owner(caller, inode),
    }
}

fn new_mode(caller: &Caller, inode: &Inode, set: &SetAttr) -> u16 {
    if let Some(mode) = set.mode {
        let gid = set.gid.unwrap_or(inode.attr.gid);
        let foreign = !is_privileged(caller) && !caller.in_group(gid);
        return mode & MODE & if foreign { !SET_GID } else { !0 };
    }
    let cut_by_user = set.size_bytes.is_some() && !is_privileged(caller);
    if is_chown(set) || cut_by_user || set.drop_set_id {
        inode.without_set_id(caller)
    } else {
        inode.attr.mode
    }
}

fn resolve(time: SetTime, stamp: Stamp) -> Time {
    match time {
        SetTime::Now | SetTime::Reading => stamp.time,
        SetTime::To(time) => time,
    }
}

const NOTHING: SetAttr = SetAttr {
    mode: None,
    uid: None,
    gid: None,
    size_bytes: None,
    atime: None,
    mtime: None,
    drop_set_id: false,
};
const DROP_SET_ID: SetAttr = SetAttr { drop_set_id: true, ..NOTHING };
const READING: SetAttr = SetAttr { atime: Some(SetTime::Reading), ..NOTHING };
const TOUCH: SetAttr = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..NOTHING };

/// `(uid_t)-1` in chown(2) means "unchanged" and is not a user.
const NOBODY: u32 = u32::MAX;
