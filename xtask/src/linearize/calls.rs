//! System calls on names relative to an open directory. Each is one request of a program, so that
//! a path of several names is not looked up at several moments.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

pub fn open(dir: &File, name: &str, flags: i32) -> io::Result<File> {
    let name = CString::new(name)?;
    // SAFETY: the name ends in NUL.
    let fd = check(unsafe {
        libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, 0o644)
    })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

pub fn mkdir(dir: &File, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name ends in NUL.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) }).map(drop)
}

/// Removes a file, or with AT_REMOVEDIR a directory.
pub fn unlink(dir: &File, name: &str, flags: i32) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name ends in NUL.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) }).map(drop)
}

pub fn rename(from_dir: &File, from: &str, to_dir: &File, to: &str) -> io::Result<()> {
    let (from, to) = (CString::new(from)?, CString::new(to)?);
    // SAFETY: both names end in NUL.
    check(unsafe {
        libc::renameat(from_dir.as_raw_fd(), from.as_ptr(), to_dir.as_raw_fd(), to.as_ptr())
    })
    .map(drop)
}

/// A new name for an open file.
pub fn link(file: &File, dir: &File, name: &str) -> io::Result<()> {
    let file = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let name = CString::new(name)?;
    // SAFETY: both names end in NUL.
    check(unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            file.as_ptr(),
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    })
    .map(drop)
}

pub fn stat(dir: &File, name: &str) -> io::Result<libc::stat> {
    let name = CString::new(name)?;
    stat_at(dir.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW)
}

pub fn fstat(file: &File) -> io::Result<libc::stat> {
    stat_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

fn stat_at(fd: RawFd, name: &std::ffi::CStr, flags: i32) -> io::Result<libc::stat> {
    // SAFETY: a stat of zeros is valid, the name ends in NUL, and the buffer is a stat.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstatat(fd, name.as_ptr(), &mut stat, flags))?;
        Ok(stat)
    }
}

/// Tries to take or release a lock of the whole file for its open file description.
pub fn lock(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: a lock of zeros is valid; it stands for the whole file.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        check(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock)).map(drop)
    }
}

/// The names in one reply of getdents64(2), without `.` and `..`, and whether they are all.
pub fn list(dir: &File, name: &str) -> io::Result<(Vec<String>, bool)> {
    let stream = open(dir, name, libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut names = Vec::new();
    let mut buffer = vec![0u64; LISTING_BYTES / size_of::<u64>()];
    let len = dirents(&stream, &mut buffer)?;
    // SAFETY: the buffer has this many bytes, and any byte is valid.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), len) };
    let mut rest = bytes;
    while let Some(record_len) = rest.get(RECORD_LEN..RECORD_LEN + 2) {
        let record_len = usize::from(u16::from_ne_bytes([record_len[0], record_len[1]]));
        let (record, others) = rest.split_at(record_len);
        let name = record[RECORD_NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
        names.push(String::from_utf8_lossy(name).into_owned());
        rest = others;
    }
    names.retain(|name| name != "." && name != "..");
    names.sort();
    Ok((names, dirents(&stream, &mut buffer)? == 0))
}

fn dirents(stream: &File, buffer: &mut [u64]) -> io::Result<usize> {
    // SAFETY: the length is that of the buffer.
    let len = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            stream.as_raw_fd(),
            buffer.as_mut_ptr(),
            size_of_val(buffer),
        )
    };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Offsets in `struct linux_dirent64` (getdents(2)).
const RECORD_LEN: usize = 16;
const RECORD_NAME: usize = 19;

const LISTING_BYTES: usize = 32 << 10;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
