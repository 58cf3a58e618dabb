//! Attributes of inodes, and the requests that change or check them.

use crate::{FsError, Ino, Time, Version};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

/// Attributes of an inode, as stat(2) reports them.
///
/// Law: `version` grows with every change of the inode, also where no time changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Permission, set-id and sticky bits: the low 12 bits of `st_mode`.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device node, as Linux encodes it; otherwise 0.
    pub rdev: u32,
    pub size_bytes: u64,
    /// Bytes of the file that are in holes for certain. The node computes it for its replies; the
    /// namespace does not store it, so it is on the wire (`shown`) and not in snapshots.
    #[serde(skip)]
    pub hole_bytes: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub version: Version,
}

impl Attr {
    /// The length of a regular file; an error for every other kind.
    pub fn file_bytes(&self) -> Result<u64, FsError> {
        match self.kind {
            FileKind::Regular => Ok(self.size_bytes),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }
}

/// Attributes to change; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Clears set-uid and, if group execution is allowed, set-gid, as a write or a chown(2) by an
    /// unprivileged user does.
    pub drop_set_id: bool,
}

/// A new time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    /// The time of the operation's stamp.
    Now,
    To(Time),
    /// Like `Now`, caused by a read. Valid only for `atime` and as the only change: no other time
    /// changes.
    Reading,
}

/// The credentials of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The kernel has already checked permissions (`default_permissions`). It knows capabilities
    /// and supplementary groups, which the request does not carry.
    pub checked: bool,
}

impl Caller {
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new(), checked: true };

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Requested access rights, combined with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Access(pub u8);

impl Access {
    pub const EXISTS: Access = Access(0);
    pub const EXECUTE: Access = Access(1);
    pub const WRITE: Access = Access(2);
    pub const READ: Access = Access(4);
}

impl std::ops::BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Result of `statfs` for a volume, or for the subtree of a quota root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeStat {
    pub total_bytes: u64,
    /// Total bytes minus used bytes.
    pub free_bytes: u64,
    /// Writable bytes: less than `free_bytes` if an outer quota root has less space.
    pub available_bytes: u64,
    pub files: u64,
    pub free_files: u64,
}

/// Extended attribute that pins an inode and its whole subtree in the cache.
pub const PIN: &[u8] = b"trusted.ebb.pin";

/// Mode of setxattr(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrMode {
    Set,
    /// XATTR_CREATE: the attribute must not exist.
    Create,
    /// XATTR_REPLACE: the attribute must exist.
    Replace,
}

/// Permission, set-id and sticky bits of a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewMode {
    pub mode: u16,
    /// Bits to clear in `mode`; ignored if the parent has a default ACL, which takes precedence.
    pub umask: u16,
}

impl From<u16> for NewMode {
    fn from(mode: u16) -> NewMode {
        NewMode { mode, umask: 0 }
    }
}

/// The two POSIX access control lists of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AclClass {
    /// Access rights to the inode itself.
    Access,
    /// Default ACL of a directory: the access ACL of its new children.
    Default,
}

impl AclClass {
    /// The class of the ACL in an extended attribute, if it holds one.
    pub fn of(name: &[u8]) -> Option<AclClass> {
        [AclClass::Access, AclClass::Default].into_iter().find(|class| class.name() == name)
    }

    /// The extended attribute that holds the ACL.
    pub fn name(self) -> &'static [u8] {
        match self {
            AclClass::Access => b"system.posix_acl_access",
            AclClass::Default => b"system.posix_acl_default",
        }
    }
}

/// Flags of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    Replace,
    /// RENAME_NOREPLACE
    KeepTarget,
    /// RENAME_EXCHANGE
    Exchange,
    /// RENAME_WHITEOUT: leaves a whiteout under the old name. The leader chooses its inode id.
    /// `keep_target` is RENAME_NOREPLACE in the same call.
    Whiteout {
        keep_target: bool,
        ino: Option<Ino>,
    },
}

impl RenameMode {
    /// Whether the rename replaces an existing target.
    pub fn replaces(self) -> bool {
        matches!(self, RenameMode::Replace | RenameMode::Whiteout { keep_target: false, .. })
    }

    /// Whether an existing target is an error.
    pub fn keeps_target(self) -> bool {
        matches!(self, RenameMode::KeepTarget | RenameMode::Whiteout { keep_target: true, .. })
    }

    /// Whether the rename creates an inode.
    pub fn makes(self) -> bool {
        matches!(self, RenameMode::Whiteout { .. })
    }

    /// Whether the old name exists after the rename.
    pub fn keeps_name(self) -> bool {
        matches!(self, RenameMode::Exchange | RenameMode::Whiteout { .. })
    }
}

/// Effect of fallocate(2) on a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Allocation {
    /// Mode 0: space is guaranteed for the range.
    Reserve,
    /// FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE: the range becomes a hole.
    Zero,
}

/// Target of lseek(2) with SEEK_DATA or SEEK_HOLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Seek {
    Data,
    Hole,
}
