//! Requests of the kernel, parsed into values that cannot be wrong.
//!
//! The kernel is trusted no further than its header: every length is checked, names and modes
//! become the model's types here, and a message that does not parse is answered with an errno
//! instead of reaching a file system.

use crate::abi::{self, fattr, ioctl};
use crate::{Errno, Negotiated};
use bytes::Bytes;
use ebb_model::{
    Access, FileKind, Ino, InodeFlags, LockMode, LockRange, MAX_IO_BYTES, Make, Name, RenameMode,
    SetAttr, SetTime, Time, XattrMode,
};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Number of an open file or directory, chosen by the file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Handle(pub u64);

/// User and group that a process acts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// The caller of a request, and the request's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The number that the reply must name; it differs from the first one if a request is sent
    /// again.
    pub unique: u64,
    /// The caller. On a mount that may be idmapped the kernel names it only in requests that create
    /// an inode.
    pub ids: Option<Ids>,
    /// 0 where the kernel acts on its own, or for a process of another pid namespace.
    pub pid: u32,
    /// Permission bits that new inodes of the process must not have. 0 if no inode is created.
    pub umask: u16,
    /// The kernel sends this again after `NOTIFY_RESEND`: it may have been executed before.
    pub resent: bool,
}

impl Context {
    /// The same number when it is sent again.
    pub fn request(&self) -> u64 {
        self.unique & !abi::UNIQUE_RESEND
    }
}

/// How a file or directory is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFlags {
    /// `O_` flags as open(2) takes them.
    pub bits: i32,
}

impl OpenFlags {
    pub fn appends(self) -> bool {
        self.bits & libc::O_APPEND != 0
    }

    pub fn excludes(self) -> bool {
        self.bits & libc::O_EXCL != 0
    }

    pub fn reads(self) -> bool {
        self.bits & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub fn writes(self) -> bool {
        self.bits & libc::O_ACCMODE != libc::O_RDONLY
    }

    pub fn is_direct(self) -> bool {
        self.bits & libc::O_DIRECT != 0
    }

    /// O_SYNC or O_DSYNC.
    pub fn forces(self) -> bool {
        self.bits & libc::O_DSYNC != 0
    }
}

/// How to execute a WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteMode {
    /// The descriptor has O_APPEND: the offset is the kernel's idea of the end of file.
    pub append: bool,
    /// The descriptor has O_SYNC or O_DSYNC. The kernel follows up with FSYNC only on
    /// files opened without direct I/O.
    pub force: bool,
    /// The writer is an ordinary user: set-id bits go.
    pub drop_set_id: bool,
    /// Pages of a shared mapping, written by the kernel on its own account.
    pub from_cache: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    Data,
    Hole,
}

/// The form in which flags of chattr(1) are transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlagForm {
    /// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`.
    Flags,
    /// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
    Extended,
}

/// A lock to take or release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    pub handle: Handle,
    /// A process, or an open file description: the kernel's name for it.
    pub owner: u64,
    /// The lock is of flock(2), on the whole file.
    pub flock: bool,
    pub range: LockRange,
    /// `None` unlocks.
    pub mode: Option<LockMode>,
    pub pid: u32,
}

/// One of the two files of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyEnd {
    pub ino: Ino,
    pub handle: Handle,
    pub offset: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub context: Context,
    pub opcode: u32,
    /// The inode that the request is about; for namespace operations the directory.
    pub ino: Ino,
    pub operation: Operation,
}

/// Operations that the kernel requests. They include some that the paper lacks: extended
/// attributes, locks of fcntl(2), flags by ioctl(2), mknod and readdirplus (C-61).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    Lookup {
        name: Name,
    },
    /// Looks up an inode by its id, which the kernel has from a file handle.
    LookupSelf,
    GetAttr {
        handle: Option<Handle>,
    },
    Statx {
        handle: Option<Handle>,
    },
    SetAttr {
        set: SetAttr,
        handle: Option<Handle>,
    },
    ReadLink,
    Make {
        name: Name,
        mode: u16,
        what: Make,
    },
    Unlink {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Rename {
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    },
    Link {
        ino: Ino,
        name: Name,
    },
    Open {
        flags: OpenFlags,
    },
    Create {
        name: Name,
        mode: u16,
        flags: OpenFlags,
    },
    Tmpfile {
        mode: u16,
        flags: OpenFlags,
    },
    Read {
        handle: Handle,
        offset: u64,
        len_bytes: u32,
        /// The kernel keeps the bytes in its pages.
        fills_pages: bool,
    },
    Write {
        handle: Handle,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
    },
    Flush {
        handle: Handle,
        owner: u64,
    },
    Release {
        handle: Handle,
        flags: OpenFlags,
    },
    Fsync {
        handle: Handle,
        data_only: bool,
    },
    StatFs,
    SetXattr {
        name: Bytes,
        value: Bytes,
        /// `None`: the attribute may or may not exist.
        mode: Option<XattrMode>,
        drop_set_gid: bool,
    },
    GetXattr {
        name: Bytes,
        limit_bytes: u32,
    },
    ListXattr {
        limit_bytes: u32,
    },
    RemoveXattr {
        name: Bytes,
    },
    OpenDir {
        flags: OpenFlags,
    },
    ReadDir {
        handle: Handle,
        position: u64,
        limit_bytes: u32,
        plus: bool,
    },
    ReleaseDir {
        handle: Handle,
    },
    FsyncDir {
        handle: Handle,
        data_only: bool,
    },
    Access {
        access: Access,
    },
    GetLk {
        owner: u64,
        range: LockRange,
        /// `None`: any lock of the owner itself.
        mode: Option<LockMode>,
    },
    SetLk {
        lock: LockRequest,
        wait: bool,
    },
    Fallocate {
        handle: Handle,
        offset: u64,
        len_bytes: u64,
        mode: i32,
    },
    Lseek {
        handle: Handle,
        offset: u64,
        to: SeekTo,
    },
    GetFlags {
        form: FlagForm,
    },
    SetFlags {
        form: FlagForm,
        flags: InodeFlags,
    },
    CopyFileRange {
        from: CopyEnd,
        to: CopyEnd,
        len_bytes: u64,
        wide: bool,
    },
    SyncFs,
    Destroy,
}

/// One message of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    Request(Request),
    /// References that the kernel drops. Takes no answer.
    Forget(Vec<(Ino, u64)>),
    /// The caller of the request with this `unique` has got a signal. Takes no answer: the
    /// request's own answer is one.
    Interrupt(u64),
}

/// The answer, if any, to a request that did not parse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    Answer {
        unique: u64,
        opcode: u32,
        errno: Errno,
    },
    /// There is no complete header, or the operation takes no answer.
    Silent,
}

impl Message {
    /// Parses one message of the device, as it is after `agreed`. `payload` turns the range of the
    /// message that holds the bytes of a WRITE into bytes that outlive it.
    pub fn parse(
        agreed: &Negotiated,
        message: &[u8],
        payload: impl FnOnce(Range<usize>) -> Bytes,
    ) -> Result<Message, Rejected> {
        let Ok((header, body)) = abi::InHeader::read_from_prefix(message) else {
            return Err(Rejected::Silent);
        };
        let reject = |errno| match header.opcode {
            abi::FORGET | abi::BATCH_FORGET | abi::INTERRUPT | abi::NOTIFY_REPLY => {
                Rejected::Silent
            }
            opcode => Rejected::Answer { unique: header.unique, opcode, errno },
        };
        if header.len as usize != message.len() {
            return Err(reject(Errno::IO));
        }
        let umask = umask(header.opcode, body);
        let mut body = Body { rest: body, message_len: message.len() };
        let operation = match header.opcode {
            abi::FORGET => {
                let arg: abi::ForgetIn = body.take().map_err(reject)?;
                return Ok(Message::Forget(vec![(Ino(header.nodeid), arg.nlookup)]));
            }
            abi::BATCH_FORGET => return Ok(Message::Forget(body.forgets().map_err(reject)?)),
            abi::INTERRUPT => {
                let arg: abi::InterruptIn = body.take().map_err(reject)?;
                return Ok(Message::Interrupt(arg.unique));
            }
            _ => parse_operation(agreed, &header, body, payload).map_err(reject)?,
        };
        Ok(Message::Request(Request {
            context: Context {
                unique: header.unique,
                ids: ids(&header),
                pid: header.pid,
                umask,
                resent: header.unique & abi::UNIQUE_RESEND != 0,
            },
            opcode: header.opcode,
            ino: Ino(header.nodeid),
            operation,
        }))
    }
}

fn parse_operation(
    agreed: &Negotiated,
    header: &abi::InHeader,
    mut body: Body<'_>,
    payload: impl FnOnce(Range<usize>) -> Bytes,
) -> Result<Operation, Errno> {
    Ok(match header.opcode {
        abi::LOOKUP => match body.string()? {
            b"." => Operation::LookupSelf,
            // For a directory that was opened by a handle and has no parent that the kernel knows.
            b".." => return Err(Errno::STALE),
            name => Operation::Lookup { name: Name::new(name)? },
        },
        abi::GETATTR => {
            let arg: abi::GetattrIn = body.take()?;
            Operation::GetAttr {
                handle: handle_if(arg.getattr_flags & abi::GETATTR_FH != 0, arg.fh),
            }
        }
        abi::STATX => {
            let arg: abi::StatxIn = body.take()?;
            Operation::Statx { handle: handle_if(arg.getattr_flags & abi::GETATTR_FH != 0, arg.fh) }
        }
        abi::SETATTR => {
            let arg: abi::SetattrIn = body.take()?;
            Operation::SetAttr {
                set: set_attr(&arg)?,
                handle: handle_if(arg.valid & fattr::FH != 0, arg.fh),
            }
        }
        abi::READLINK => Operation::ReadLink,
        abi::SYMLINK => {
            let name = body.name()?;
            let target = Bytes::copy_from_slice(body.string()?);
            Operation::Make { name, mode: 0o777, what: Make::Symlink { target } }
        }
        abi::MKNOD => {
            let arg: abi::MknodIn = body.take()?;
            Operation::Make {
                name: body.name()?,
                mode: permissions(arg.mode),
                what: node(arg.mode, arg.rdev)?,
            }
        }
        abi::MKDIR => {
            let arg: abi::MkdirIn = body.take()?;
            Operation::Make {
                name: body.name()?,
                mode: permissions(arg.mode),
                what: Make::Directory,
            }
        }
        abi::UNLINK => Operation::Unlink { name: body.name()? },
        abi::RMDIR => Operation::Rmdir { name: body.name()? },
        abi::RENAME => {
            let arg: abi::RenameIn = body.take()?;
            Operation::Rename {
                name: body.name()?,
                to: Ino(arg.newdir),
                new_name: body.name()?,
                mode: RenameMode::Replace,
            }
        }
        abi::RENAME2 => {
            const BOTH: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
            let arg: abi::Rename2In = body.take()?;
            let mode = match arg.flags {
                0 => RenameMode::Replace,
                libc::RENAME_NOREPLACE => RenameMode::KeepTarget,
                libc::RENAME_EXCHANGE => RenameMode::Exchange,
                libc::RENAME_WHITEOUT => RenameMode::Whiteout { keep_target: false, ino: None },
                BOTH => RenameMode::Whiteout { keep_target: true, ino: None },
                _ => return Err(Errno::INVALID),
            };
            Operation::Rename {
                name: body.name()?,
                to: Ino(arg.newdir),
                new_name: body.name()?,
                mode,
            }
        }
        abi::LINK => {
            let arg: abi::LinkIn = body.take()?;
            Operation::Link { ino: Ino(arg.oldnodeid), name: body.name()? }
        }
        abi::OPEN => {
            let arg: abi::OpenIn = body.take()?;
            Operation::Open { flags: open_flags(arg.flags) }
        }
        abi::CREATE => {
            let arg: abi::CreateIn = body.take()?;
            Operation::Create {
                name: body.name()?,
                mode: permissions(arg.mode),
                flags: open_flags(arg.flags),
            }
        }
        abi::TMPFILE => {
            let arg: abi::CreateIn = body.take()?;
            Operation::Tmpfile { mode: permissions(arg.mode), flags: open_flags(arg.flags) }
        }
        abi::READ => {
            let arg: abi::ReadIn = body.take()?;
            let len_bytes = bounded(arg.size)?;
            Operation::Read {
                handle: Handle(arg.fh),
                offset: position(arg.offset, u64::from(len_bytes))?,
                len_bytes,
                fills_pages: arg.read_flags & abi::READ_LOCKOWNER == 0,
            }
        }
        abi::WRITE => {
            let arg: abi::WriteIn = body.take()?;
            let len_bytes = bounded(arg.size)?;
            let offset = position(arg.offset, u64::from(len_bytes))?;
            let range = body.range(len_bytes as usize)?;
            let flags = open_flags(arg.flags);
            let from_cache = arg.write_flags & abi::WRITE_CACHE != 0;
            let mode = WriteMode {
                append: flags.appends() && !from_cache,
                force: flags.forces() && !from_cache,
                drop_set_id: arg.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                from_cache,
            };
            Operation::Write { handle: Handle(arg.fh), offset, data: payload(range), mode }
        }
        abi::FLUSH => {
            let arg: abi::FlushIn = body.take()?;
            Operation::Flush { handle: Handle(arg.fh), owner: arg.lock_owner }
        }
        abi::RELEASE => {
            let arg: abi::ReleaseIn = body.take()?;
            Operation::Release { handle: Handle(arg.fh), flags: open_flags(arg.flags) }
        }
        abi::FSYNC => {
            let arg: abi::FsyncIn = body.take()?;
            Operation::Fsync {
                handle: Handle(arg.fh),
                data_only: arg.fsync_flags & abi::FSYNC_FDATASYNC != 0,
            }
        }
        abi::STATFS => Operation::StatFs,
        abi::SETXATTR => {
            let arg: abi::SetxattrIn = body.take()?;
            // A kernel without this flag has not checked. Then set-group-id is dropped, lest the
            // group is another user's.
            let drop_set_gid = match agreed.has(abi::init::SETXATTR_EXT) {
                true => {
                    body.take::<abi::SetxattrInExt>()?.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID
                        != 0
                }
                false => header.uid != 0,
            };
            let name = body.xattr_name()?;
            let value = Bytes::copy_from_slice(body.bytes(arg.size as usize)?);
            let mode = match arg.flags as i32 {
                0 => Some(XattrMode::Set),
                libc::XATTR_CREATE => Some(XattrMode::Create),
                libc::XATTR_REPLACE => Some(XattrMode::Replace),
                CREATE_AND_REPLACE => None,
                _ => return Err(Errno::INVALID),
            };
            Operation::SetXattr { name, value, mode, drop_set_gid }
        }
        abi::GETXATTR => {
            let arg: abi::GetxattrIn = body.take()?;
            Operation::GetXattr { name: body.xattr_name()?, limit_bytes: arg.size }
        }
        abi::LISTXATTR => {
            let arg: abi::GetxattrIn = body.take()?;
            Operation::ListXattr { limit_bytes: arg.size }
        }
        abi::REMOVEXATTR => Operation::RemoveXattr { name: body.xattr_name()? },
        abi::OPENDIR => {
            let arg: abi::OpenIn = body.take()?;
            Operation::OpenDir { flags: open_flags(arg.flags) }
        }
        abi::READDIR | abi::READDIRPLUS => {
            let arg: abi::ReadIn = body.take()?;
            Operation::ReadDir {
                handle: Handle(arg.fh),
                position: arg.offset,
                // The kernel requests as much as the caller's buffer holds, which can be more than
                // this; it does the same for its own callers.
                limit_bytes: arg.size.min(MAX_IO_BYTES as u32),
                plus: header.opcode == abi::READDIRPLUS,
            }
        }
        abi::RELEASEDIR => {
            let arg: abi::ReleaseIn = body.take()?;
            Operation::ReleaseDir { handle: Handle(arg.fh) }
        }
        abi::FSYNCDIR => {
            let arg: abi::FsyncIn = body.take()?;
            Operation::FsyncDir {
                handle: Handle(arg.fh),
                data_only: arg.fsync_flags & abi::FSYNC_FDATASYNC != 0,
            }
        }
        abi::ACCESS => {
            let arg: abi::AccessIn = body.take()?;
            // R_OK, W_OK and X_OK have the values of the model's rights.
            Operation::Access { access: Access((arg.mask & 7) as u8) }
        }
        abi::GETLK => {
            let arg: abi::LkIn = body.take()?;
            Operation::GetLk {
                owner: arg.owner,
                range: lock_range(&arg.lk)?,
                mode: lock_mode(&arg.lk)?,
            }
        }
        abi::SETLK | abi::SETLKW => {
            let arg: abi::LkIn = body.take()?;
            let lock = LockRequest {
                handle: Handle(arg.fh),
                owner: arg.owner,
                flock: arg.lk_flags & abi::LK_FLOCK != 0,
                range: lock_range(&arg.lk)?,
                mode: lock_mode(&arg.lk)?,
                pid: arg.lk.pid,
            };
            Operation::SetLk { lock, wait: header.opcode == abi::SETLKW }
        }
        abi::FALLOCATE => {
            let arg: abi::FallocateIn = body.take()?;
            let offset = position(arg.offset, arg.length)?;
            Operation::Fallocate {
                handle: Handle(arg.fh),
                offset,
                len_bytes: arg.length,
                mode: arg.mode as i32,
            }
        }
        abi::LSEEK => {
            let arg: abi::LseekIn = body.take()?;
            let to = match arg.whence as i32 {
                libc::SEEK_DATA => SeekTo::Data,
                libc::SEEK_HOLE => SeekTo::Hole,
                _ => return Err(Errno::INVALID),
            };
            // The answer of every file system that has holes; the kernel leaves it to us.
            let offset = position(arg.offset, 0).map_err(|_| Errno::NO_DATA)?;
            Operation::Lseek { handle: Handle(arg.fh), offset, to }
        }
        abi::COPY_FILE_RANGE | abi::COPY_FILE_RANGE_64 => {
            let arg: abi::CopyFileRangeIn = body.take()?;
            if arg.flags != 0 {
                return Err(Errno::INVALID);
            }
            let wide = header.opcode == abi::COPY_FILE_RANGE_64;
            // The older form answers in 32 bits; a shorter copy than requested is always allowed.
            let len_bytes = if wide { arg.len } else { arg.len.min(COPY_LIMIT_BYTES) };
            let end = |nodeid, fh, offset| {
                position(offset, len_bytes).map(|offset| CopyEnd {
                    ino: Ino(nodeid),
                    handle: Handle(fh),
                    offset,
                })
            };
            Operation::CopyFileRange {
                from: end(header.nodeid, arg.fh_in, arg.off_in)?,
                to: end(arg.nodeid_out, arg.fh_out, arg.off_out)?,
                len_bytes,
                wide,
            }
        }
        abi::SYNCFS => Operation::SyncFs,
        abi::DESTROY => Operation::Destroy,
        abi::IOCTL => {
            let arg: abi::IoctlIn = body.take()?;
            match arg.cmd {
                ioctl::GETFLAGS => Operation::GetFlags { form: FlagForm::Flags },
                ioctl::FSGETXATTR => Operation::GetFlags { form: FlagForm::Extended },
                ioctl::SETFLAGS => Operation::SetFlags {
                    form: FlagForm::Flags,
                    flags: InodeFlags::new(body.take()?)?,
                },
                ioctl::FSSETXATTR => Operation::SetFlags {
                    form: FlagForm::Extended,
                    flags: of_extended(&body.take()?)?,
                },
                _ => return Err(Errno::NOT_TTY),
            }
        }
        // Poll and bmap: the kernel handles these itself after this error.
        _ => return Err(Errno::NOT_IMPLEMENTED),
    })
}

/// The unparsed rest of a message.
struct Body<'a> {
    rest: &'a [u8],
    message_len: usize,
}

impl<'a> Body<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno::IO)?;
        self.rest = rest;
        Ok(value)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Errno::IO)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The next `len` bytes as positions in the message.
    fn range(&mut self, len: usize) -> Result<Range<usize>, Errno> {
        let start = self.message_len - self.rest.len();
        self.bytes(len)?;
        Ok(start..start + len)
    }

    /// Bytes up to a NUL, which is taken too.
    fn string(&mut self) -> Result<&'a [u8], Errno> {
        let len = self.rest.iter().position(|&byte| byte == 0).ok_or(Errno::IO)?;
        let string = self.bytes(len)?;
        self.bytes(1)?;
        Ok(string)
    }

    fn name(&mut self) -> Result<Name, Errno> {
        Ok(Name::new(self.string()?)?)
    }

    fn xattr_name(&mut self) -> Result<Bytes, Errno> {
        match self.string()? {
            name if name.is_empty() || name.len() > ebb_model::MAX_XATTR_NAME_BYTES => {
                Err(Errno::RANGE)
            }
            name => Ok(Bytes::copy_from_slice(name)),
        }
    }

    fn forgets(&mut self) -> Result<Vec<(Ino, u64)>, Errno> {
        let count = self.take::<abi::BatchForgetIn>()?.count as usize;
        let records =
            self.bytes(count.checked_mul(size_of::<abi::ForgetOne>()).ok_or(Errno::IO)?)?;
        let mut records = Body { rest: records, message_len: self.message_len };
        (0..count)
            .map(|_| records.take::<abi::ForgetOne>().map(|one| (Ino(one.nodeid), one.nlookup)))
            .collect()
    }
}

fn handle_if(given: bool, fh: u64) -> Option<Handle> {
    given.then_some(Handle(fh))
}

fn open_flags(bits: u32) -> OpenFlags {
    OpenFlags { bits: bits as i32 }
}

fn ids(header: &abi::InHeader) -> Option<Ids> {
    let abi::InHeader { uid, gid, .. } = *header;
    (uid != abi::NO_ID && gid != abi::NO_ID).then_some(Ids { uid, gid })
}

/// Of requests that create an inode. A message too short for the field does not parse as such a
/// request either.
fn umask(opcode: u32, body: &[u8]) -> u16 {
    let umask = match opcode {
        abi::MKNOD => abi::MknodIn::read_from_prefix(body).ok().map(|(arg, _)| arg.umask),
        abi::MKDIR => abi::MkdirIn::read_from_prefix(body).ok().map(|(arg, _)| arg.umask),
        abi::CREATE | abi::TMPFILE => {
            abi::CreateIn::read_from_prefix(body).ok().map(|(arg, _)| arg.umask)
        }
        _ => None,
    };
    (umask.unwrap_or(0) & 0o777) as u16
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// A READ or WRITE may not exceed the negotiated size.
fn bounded(size: u32) -> Result<u32, Errno> {
    if size as usize > MAX_IO_BYTES { Err(Errno::INVALID) } else { Ok(size) }
}

/// An offset whose range ends within the limit of `loff_t`.
fn position(offset: u64, len_bytes: u64) -> Result<u64, Errno> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= i64::MAX as u64 => Ok(offset),
        _ => Err(Errno::INVALID),
    }
}

/// Hints about extents and project ids are refused: ebb has neither.
fn of_extended(given: &abi::Fsxattr) -> Result<InodeFlags, Errno> {
    let known = EXTENDED.iter().fold(0, |known, (xflag, _)| known | xflag);
    if given.xflags & !known != 0
        || given.extsize != 0
        || given.cowextsize != 0
        || given.projid != 0
    {
        return Err(Errno::NOT_SUPPORTED);
    }
    let set = EXTENDED.iter().filter(|(xflag, _)| given.xflags & xflag != 0);
    Ok(InodeFlags::new(set.fold(0, |bits, (_, flag)| bits | flag.bits()))?)
}

/// The flags in their extended form.
pub(crate) const EXTENDED: [(u32, InodeFlags); 3] = [
    (ioctl::XFLAG_IMMUTABLE, InodeFlags::IMMUTABLE),
    (ioctl::XFLAG_APPEND, InodeFlags::APPEND),
    (ioctl::XFLAG_NODUMP, InodeFlags::NO_DUMP),
];

fn lock_range(lock: &abi::FileLock) -> Result<LockRange, Errno> {
    Ok(LockRange::new(lock.start, lock.end)?)
}

fn lock_mode(lock: &abi::FileLock) -> Result<Option<LockMode>, Errno> {
    match lock.kind as i32 {
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno::INVALID),
    }
}

fn node(mode: u32, rdev: u32) -> Result<Make, Errno> {
    let (kind, rdev) = match mode & libc::S_IFMT {
        libc::S_IFREG => return Ok(Make::Regular),
        libc::S_IFCHR => (FileKind::CharDevice, rdev),
        libc::S_IFBLK => (FileKind::BlockDevice, rdev),
        libc::S_IFIFO => (FileKind::Fifo, 0),
        libc::S_IFSOCK => (FileKind::Socket, 0),
        _ => return Err(Errno::INVALID),
    };
    Ok(Make::Special { kind, rdev })
}

fn set_attr(arg: &abi::SetattrIn) -> Result<SetAttr, Errno> {
    let has = |flag| arg.valid & flag != 0;
    let time = |flag, now, secs: u64, nanos: u32| -> Result<Option<SetTime>, Errno> {
        match () {
            () if !has(flag) => Ok(None),
            () if has(now) => Ok(Some(SetTime::Now)),
            () if nanos >= 1_000_000_000 => Err(Errno::INVALID),
            // Times before 1970 arrive as the two's complement.
            () => Ok(Some(SetTime::To(Time { secs: secs as i64, nanos }))),
        }
    };
    let is_empty =
        !(has(fattr::MODE | fattr::UID | fattr::GID | fattr::SIZE | fattr::ATIME | fattr::MTIME));
    let size_bytes = if has(fattr::SIZE) { Some(position(arg.size, 0)?) } else { None };
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(permissions(arg.mode)),
        uid: has(fattr::UID).then_some(arg.uid),
        gid: has(fattr::GID).then_some(arg.gid),
        size_bytes,
        atime: time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec)?,
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec)?,
        // HANDLE_KILLPRIV_V2 leaves a change of owner to the file system without a flag, and a
        // change that keeps both ids comes without any attribute.
        drop_set_id: has(fattr::KILL_SUIDGID | fattr::UID | fattr::GID) || is_empty,
    })
}

/// Longest copy whose length fits a 32-bit answer, in whole pages.
const COPY_LIMIT_BYTES: u64 = (1 << 32) - 4096;

const CREATE_AND_REPLACE: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
