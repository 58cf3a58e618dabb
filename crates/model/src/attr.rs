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

/// What `stat` shows.
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
    /// Of a file, in a node's answers: how many of its bytes are known to be in holes. The
    /// namespace knows of none, so it is not in snapshots: only the wire has it (`shown`).
    #[serde(skip)]
    pub hole_bytes: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub version: Version,
}

impl Attr {
    /// The length of what has to be a regular file.
    pub fn file_bytes(&self) -> Result<u64, FsError> {
        match self.kind {
            FileKind::Regular => Ok(self.size_bytes),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }
}

/// Attributes to change; `None` leaves one alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Drop set-uid and, where group execution is allowed, set-gid, as a write or a change
    /// of owner by an ordinary user does.
    pub drop_set_id: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    /// The stamp of the operation.
    Now,
    To(Time),
    /// The same as `Now`, because the inode was read. Only as `atime`, and with nothing else: it
    /// changes no other time.
    Reading,
}

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The kernel has already checked permissions (`default_permissions`), with knowledge
    /// that a request does not carry: capabilities and supplementary groups.
    pub checked: bool,
}

impl Caller {
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new(), checked: true };

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Rights asked of an inode, combined with `|`.
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

/// `statfs` of a volume, or of what is below a quota root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeStat {
    pub total_bytes: u64,
    /// The total less what is used.
    pub free_bytes: u64,
    /// What can still be written: less than what is free where something further up is full.
    pub available_bytes: u64,
    pub files: u64,
    pub free_files: u64,
}

/// Whatever has this extended attribute stays in the cache, and all that is below it.
pub const PIN: &[u8] = b"trusted.ebb.pin";

/// How an extended attribute is to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrMode {
    Set,
    /// XATTR_CREATE: it must not exist.
    Create,
    /// XATTR_REPLACE: it must exist.
    Replace,
}

/// Permission, set-id and sticky bits of what is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewMode {
    pub mode: u16,
    /// Bits that it does not get, unless its directory has a default ACL, which counts instead.
    pub umask: u16,
}

impl From<u16> for NewMode {
    fn from(mode: u16) -> NewMode {
        NewMode { mode, umask: 0 }
    }
}

/// A POSIX access control list of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AclClass {
    /// Who may do what with the inode.
    Access,
    /// Of a directory: the access ACL of what is made in it.
    Default,
}

impl AclClass {
    /// The ACL that an extended attribute is.
    pub fn of(name: &[u8]) -> Option<AclClass> {
        [AclClass::Access, AclClass::Default].into_iter().find(|class| class.name() == name)
    }

    /// The extended attribute that the ACL is.
    pub fn name(self) -> &'static [u8] {
        match self {
            AclClass::Access => b"system.posix_acl_access",
            AclClass::Default => b"system.posix_acl_default",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    Replace,
    /// RENAME_NOREPLACE
    KeepTarget,
    /// RENAME_EXCHANGE
    Exchange,
    /// RENAME_WHITEOUT: a whiteout is left under the old name. The leader chooses its inode id;
    /// `keep_target` is RENAME_NOREPLACE beside it.
    Whiteout {
        keep_target: bool,
        ino: Option<Ino>,
    },
}

impl RenameMode {
    /// Whatever has the new name goes.
    pub fn replaces(self) -> bool {
        matches!(self, RenameMode::Replace | RenameMode::Whiteout { keep_target: false, .. })
    }

    /// Nothing may have the new name.
    pub fn keeps_target(self) -> bool {
        matches!(self, RenameMode::KeepTarget | RenameMode::Whiteout { keep_target: true, .. })
    }

    /// An inode is made.
    pub fn makes(self) -> bool {
        matches!(self, RenameMode::Whiteout { .. })
    }

    /// Something has the old name afterwards.
    pub fn keeps_name(self) -> bool {
        matches!(self, RenameMode::Exchange | RenameMode::Whiteout { .. })
    }
}

/// What fallocate(2) does to a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Allocation {
    /// Mode 0: there is to be room for it.
    Reserve,
    /// FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE: zeros, which take no room.
    Zero,
}

/// What lseek(2) looks for, besides offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Seek {
    Data,
    Hole,
}
