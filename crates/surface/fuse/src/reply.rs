//! Replies in the kernel's layout, and the obligation to send one.

use crate::abi::fopen;
use crate::counters::{Arrival, Counters};
use crate::device::Device;
use crate::request::{EXTENDED, FlagForm};
use crate::{AttrReply, Caching, EntryReply, Errno, Lookup, OpenReply, PassthroughId, abi};
use ebb_model::{
    Attr, BLOCK_BYTES, FileKind, InodeFlags, LockConflict, LockMode, Planted, Time, VolumeStat,
};
use std::rc::Rc;
use tracing::{debug, error};
use zerocopy::{Immutable, IntoBytes};

/// The obligation to answer one request. Dropped without an answer (the handler was cancelled or
/// has panicked) it answers EIO, so no caller waits for ever.
pub(crate) struct Responder {
    device: Rc<Device>,
    counters: Rc<Counters>,
    unique: u64,
    request: Arrival,
    answered: bool,
}

impl Responder {
    pub fn new(
        device: Rc<Device>,
        counters: Rc<Counters>,
        unique: u64,
        request: Arrival,
    ) -> Responder {
        Responder { device, counters, unique, request, answered: false }
    }

    pub fn error(mut self, errno: Errno) {
        self.send(-errno.0, &[]);
    }

    pub fn empty(self, result: Result<(), Errno>) {
        self.bytes(result.map(|()| [0u8; 0]));
    }

    pub fn value<T: IntoBytes + Immutable>(self, result: Result<T, Errno>) {
        match result {
            Ok(value) => self.bytes(Ok(value.as_bytes())),
            Err(errno) => self.error(errno),
        }
    }

    pub fn bytes(mut self, result: Result<impl AsRef<[u8]>, Errno>) {
        match result {
            Ok(bytes) => self.send(0, bytes.as_ref()),
            Err(errno) => self.error(errno),
        }
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        self.answered = true;
        self.write(error, body);
        self.counters.answered(&self.request, error, body.len());
    }

    fn write(&self, error: i32, body: &[u8]) {
        let Err(failure) = self.device.answer(error, self.unique, body) else { return };
        let operation = abi::opcode_name(self.request.opcode);
        match failure.raw_os_error() {
            // The caller was killed before the answer, or the mount is gone: the reply has no
            // receiver.
            Some(libc::ENOENT | libc::ENODEV) => debug!(operation, "nobody waits for the reply"),
            _ if error == 0 => {
                // The kernel has refused the reply and keeps the caller waiting.
                error!(operation, %failure, "the kernel does not take a reply");
                self.write(-libc::EIO, &[]);
            }
            _ => error!(operation, %failure, "the kernel does not take an error reply"),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            self.send(-libc::EIO, &[]);
        }
    }
}

/// The type bits of `st_mode`.
pub(crate) fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

fn attr(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino.0,
        size: attr.size_bytes,
        blocks: blocks(attr),
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: if Planted::NanosecondsCut.is_on() { 0 } else { attr.mtime.nanos },
        ctimensec: attr.ctime.nanos,
        mode: file_type(attr.kind) | u32::from(attr.mode),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PREFERRED_BYTES,
        flags: 0,
    }
}

/// `st_blksize`: holes have this size, and programs that write in such pieces (those with stdio's
/// buffer too) need fewer requests.
const PREFERRED_BYTES: u32 = BLOCK_BYTES as u32;

/// `st_blocks` counts bytes that are not known to be a hole, cached or not. A file with bytes has
/// at least one block: tar(1) treats a file without blocks as one large hole and does not read it,
/// and bytes stored through a mapping may not have been reported yet.
fn blocks(attr: &Attr) -> u64 {
    let blocks = attr.size_bytes.saturating_sub(attr.hole_bytes).div_ceil(512);
    blocks.max(u64::from(attr.size_bytes > 0))
}

pub(crate) fn entry_out(entry: &EntryReply) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: entry.attr.ino.0,
        generation: 0,
        entry_valid: entry.entry_ttl.as_secs(),
        attr_valid: entry.attr_ttl.as_secs(),
        entry_valid_nsec: entry.entry_ttl.subsec_nanos(),
        attr_valid_nsec: entry.attr_ttl.subsec_nanos(),
        attr: attr(&entry.attr),
    }
}

pub(crate) fn lookup_out(lookup: &Lookup) -> abi::EntryOut {
    match lookup {
        Lookup::Found(entry) => entry_out(entry),
        Lookup::Absent { ttl } => abi::EntryOut {
            entry_valid: ttl.as_secs(),
            entry_valid_nsec: ttl.subsec_nanos(),
            ..Default::default()
        },
    }
}

pub(crate) fn attr_out(reply: &AttrReply) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: reply.ttl.as_secs(),
        attr_valid_nsec: reply.ttl.subsec_nanos(),
        dummy: 0,
        attr: attr(&reply.attr),
    }
}

pub(crate) fn statx_out(reply: &AttrReply) -> abi::StatxOut {
    let AttrReply { attr, ttl } = reply;
    let time = |time: Time| abi::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 };
    abi::StatxOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        stat: abi::Statx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            blksize: PREFERRED_BYTES,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: file_type(attr.kind) as u16 | attr.mode,
            ino: attr.ino.0,
            size: attr.size_bytes,
            blocks: blocks(attr),
            atime: time(attr.atime),
            btime: time(attr.btime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: libc::major(attr.rdev.into()),
            rdev_minor: libc::minor(attr.rdev.into()),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// `flush`: every close(2) is a request. It reports an error if the open is for writing, and ends
/// locks.
pub(crate) fn open_out(open: &OpenReply, flush: bool) -> abi::OpenOut {
    let (caching, backing_id) = match open.caching {
        Caching::Fresh => (0, 0),
        Caching::Keep => (fopen::KEEP_CACHE, 0),
        Caching::Direct { parallel: false } => (fopen::DIRECT_IO, 0),
        Caching::Direct { parallel: true } => (fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES, 0),
        Caching::Passthrough(PassthroughId(id)) => (fopen::PASSTHROUGH, id),
        Caching::PassthroughDirect(PassthroughId(id)) => {
            (fopen::PASSTHROUGH | fopen::DIRECT_IO, id)
        }
    };
    let flush = if flush { 0 } else { fopen::NOFLUSH };
    abi::OpenOut { fh: open.handle.0, open_flags: caching | flush, backing_id }
}

pub(crate) fn opendir_out(open: &OpenReply) -> abi::OpenOut {
    let open_flags = match open.caching {
        Caching::Keep => fopen::KEEP_CACHE | fopen::CACHE_DIR,
        Caching::Fresh
        | Caching::Direct { .. }
        | Caching::Passthrough(_)
        | Caching::PassthroughDirect(_) => 0,
    };
    abi::OpenOut { fh: open.handle.0, open_flags, backing_id: 0 }
}

pub(crate) fn create_out((entry, open): &(EntryReply, OpenReply), flush: bool) -> abi::CreateOut {
    abi::CreateOut { entry: entry_out(entry), open: open_out(open, flush) }
}

pub(crate) fn flags_out(form: FlagForm, flags: InodeFlags) -> Vec<u8> {
    let head = abi::IoctlOut::default();
    let xflags = EXTENDED
        .iter()
        .filter(|(_, flag)| flags.has(*flag))
        .fold(0, |xflags, (xflag, _)| xflags | xflag);
    match form {
        FlagForm::Flags => [head.as_bytes(), flags.bits().as_bytes()].concat(),
        FlagForm::Extended => {
            [head.as_bytes(), abi::Fsxattr { xflags, ..Default::default() }.as_bytes()].concat()
        }
    }
}

pub(crate) fn lk_out(conflict: Option<LockConflict>) -> abi::LkOut {
    let lk = match conflict {
        None => abi::FileLock { kind: libc::F_UNLCK as u32, ..Default::default() },
        Some(LockConflict { lock, pid }) => {
            let kind = if lock.mode == LockMode::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
            abi::FileLock {
                start: lock.range.start(),
                end: lock.range.end(),
                kind: kind as u32,
                pid,
            }
        }
    };
    abi::LkOut { lk }
}

pub(crate) fn statfs_out(stat: &VolumeStat) -> abi::StatfsOut {
    abi::StatfsOut {
        blocks: stat.total_bytes / STATFS_BLOCK_BYTES,
        bfree: stat.free_bytes / STATFS_BLOCK_BYTES,
        bavail: stat.available_bytes / STATFS_BLOCK_BYTES,
        files: stat.files,
        ffree: stat.free_files,
        bsize: STATFS_BLOCK_BYTES as u32,
        namelen: ebb_model::MAX_NAME_BYTES as u32,
        frsize: STATFS_BLOCK_BYTES as u32,
        ..Default::default()
    }
}

const STATFS_BLOCK_BYTES: u64 = 4096;
