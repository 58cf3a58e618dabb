//! create, mkdir, mknod and symlink: one rule for a new inode under a new name.

use super::access::{GROUP_EXECUTE, SET_GID, STICKY, is_privileged, require};
use super::packed::MODE;
use super::readdir::FIRST_COOKIE;
use super::{Inode, Namespace, Operation};
use bytes::Bytes;
use ebb_model::*;
use std::collections::BTreeMap;

/// `st_size` of a directory, as in an empty directory of ext4.
const DIRECTORY_BYTES: u64 = 4096;

impl Namespace {
    pub(super) fn make(
        &mut self,
        parent: Ino,
        name: &Name,
        ino: Ino,
        mode: u16,
        what: &Make,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let dir = self.searchable(op.caller, parent)?;
        if self.dentry(parent, name).is_some() {
            return Err(FsError::Exists);
        }
        require(op.caller, &dir, Access::WRITE)?;
        validate(op.caller, what)?;
        self.require_unused(ino)?;
        let kind = what.kind();
        let mut inode = Inode::new(op, &dir, ino, mode, what);
        let attr = inode.attr.clone();
        let link = self.add(parent, name, ino, kind, op.stamp);
        self.add_link(&mut inode, link, true);
        self.add_inode(&inode);
        self.count_in(ino);
        op.linked(parent, name, ino, true);
        Ok(attr)
    }

    /// Adds an inode with a given id and marks the id as used.
    pub(super) fn add_inode(&mut self, inode: &Inode) {
        self.note_drawn(inode.attr.ino);
        self.put_inode(inode);
    }

    /// Fails unless a new inode can have this id. The node proposes [`Ino::NONE`] if no id is left.
    pub(super) fn require_unused(&self, ino: Ino) -> Result<(), FsError> {
        match self.inode(ino) {
            _ if ino == Ino::NONE => Err(FsError::NoSpace),
            Some(_) => Err(FsError::Exists),
            None if !self.may_be_made(ino) => Err(FsError::Invalid),
            None => Ok(()),
        }
    }
}

impl Inode {
    /// A new inode of `dir`, without a name yet.
    pub(super) fn new(op: &Operation, dir: &Inode, ino: Ino, mode: u16, what: &Make) -> Inode {
        let (kind, Stamp { time, version }) = (what.kind(), op.stamp);
        let mode = inherited_mode(op.caller, &dir.attr, kind, mode);
        let (mode, mut xattrs) = dir.inherit_acl(kind, mode);
        let flags = dir.flags().and(InodeFlags::NO_DUMP);
        if flags != InodeFlags::default() && matches!(kind, FileKind::Regular | FileKind::Directory)
        {
            xattrs.push((Bytes::from_static(InodeFlags::ATTRIBUTE), flags.value()));
        }
        let record = InstalledRecord {
            mode,
            nlink: 1,
            uid: op.caller.uid,
            gid: if dir.attr.mode & SET_GID != 0 { dir.attr.gid } else { op.caller.gid },
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            xattrs,
            links: Vec::new(),
        };
        let mut inode = Inode::recorded(ino, what, 0, record);
        inode.attr.version = version;
        inode.policy = dir.policy;
        inode
    }

    /// An inode with the attributes of `record`, without a name yet. `nlink` of a directory is 2,
    /// as without subdirectories, whatever the record contains.
    pub(super) fn recorded(
        ino: Ino,
        what: &Make,
        len_bytes: u64,
        record: InstalledRecord,
    ) -> Inode {
        let kind = what.kind();
        let (target, rdev) = match what {
            Make::Symlink { target } => (target.clone(), 0),
            Make::Special { kind: FileKind::CharDevice | FileKind::BlockDevice, rdev } => {
                (Bytes::new(), *rdev)
            }
            _ => (Bytes::new(), 0),
        };
        let size_bytes = match kind {
            FileKind::Directory => DIRECTORY_BYTES,
            FileKind::Symlink => target.len() as u64,
            FileKind::Regular => len_bytes,
            _ => 0,
        };
        let attr = Attr {
            ino,
            kind,
            mode: record.mode & MODE,
            nlink: if kind == FileKind::Directory { 2 } else { record.nlink.max(1) },
            uid: record.uid,
            gid: record.gid,
            rdev,
            size_bytes,
            hole_bytes: 0,
            atime: record.atime,
            mtime: record.mtime,
            ctime: record.ctime,
            btime: record.btime,
            version: Version(0),
        };
        let xattrs = record.xattrs.into_iter().collect::<BTreeMap<_, _>>();
        let mut inode = Inode {
            attr,
            xattrs,
            policy: PolicyId::DEFAULT,
            target,
            first: None,
            names: 0,
            last_age: 0,
            last_cookie: Cookie(FIRST_COOKIE.0 - 1),
        };
        inode.settle_acls();
        inode.settle_quota();
        inode.settle_policy();
        inode
    }
}

fn validate(caller: &Caller, what: &Make) -> Result<(), FsError> {
    match what {
        Make::Regular | Make::Directory => Ok(()),
        Make::Symlink { target } if target.is_empty() => Err(FsError::NotFound),
        Make::Symlink { target } if target.len() > MAX_SYMLINK_BYTES => Err(FsError::NameTooLong),
        Make::Symlink { target } if target.contains(&0) => Err(FsError::Invalid),
        Make::Symlink { .. } => Ok(()),
        Make::Special { kind, .. } => match kind {
            FileKind::Fifo | FileKind::Socket => Ok(()),
            FileKind::CharDevice | FileKind::BlockDevice if is_privileged(caller) => Ok(()),
            FileKind::CharDevice | FileKind::BlockDevice => Err(FsError::NotPermitted),
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => Err(FsError::Invalid),
        },
    }
}

/// As in Linux: a directory inherits set-gid; an executable file does not get set-gid of a group
/// that its creator is not in.
fn inherited_mode(caller: &Caller, dir: &Attr, kind: FileKind, mode: u16) -> u16 {
    let inherits = dir.mode & SET_GID != 0;
    match kind {
        FileKind::Symlink => 0o777,
        FileKind::Directory => mode & (0o777 | STICKY) | dir.mode & SET_GID,
        _ => {
            let foreign = inherits && !is_privileged(caller) && !caller.in_group(dir.gid);
            let both = SET_GID | GROUP_EXECUTE;
            if foreign && mode & both == both { mode & !SET_GID } else { mode }
        }
    }
}
