//! System calls that the standard library lacks. All paths resolve below one open directory,
//! without following symbolic links.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{SystemTime, UNIX_EPOCH};

/// Opens `path` below `root`. A path that meets a symbolic link is ELOOP.
pub(super) fn open_beneath(root: &File, path: &str, flags: i32, mode: u32) -> Result<File> {
    let path = text(if path.is_empty() { "." } else { path })?;
    // SAFETY: open_how is plain integers, for which zero is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = mode.into();
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    let size = std::mem::size_of::<libc::open_how>();
    let fd = again(|| {
        // SAFETY: the path is NUL-terminated, `size` is the size of `how`; both outlive the call.
        unsafe { libc::syscall(libc::SYS_openat2, root.as_raw_fd(), path.as_ptr(), &how, size) }
    })?;
    // SAFETY: the call has just created the descriptor, which has no other owner.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

pub(super) fn open_dir(root: &File, path: &str) -> Result<File> {
    open_beneath(root, path, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

pub(super) fn make_dir(parent: &File, name: &str) -> Result<()> {
    let name = text(name)?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    again(|| unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o777) }.into()).map(drop)
}

pub(super) fn remove_dir(parent: &File, name: &str) -> Result<()> {
    unlink(parent, name, libc::AT_REMOVEDIR)
}

pub(super) fn remove_file(parent: &File, name: &str) -> Result<()> {
    unlink(parent, name, 0)
}

fn unlink(parent: &File, name: &str, flags: i32) -> Result<()> {
    let name = text(name)?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    again(|| unsafe { libc::unlinkat(parent.as_raw_fd(), name.as_ptr(), flags) }.into()).map(drop)
}

pub(super) fn rename(from: &File, name: &str, to: &File, new_name: &str) -> Result<()> {
    let (name, new_name) = (text(name)?, text(new_name)?);
    // SAFETY: both names are NUL-terminated and outlive the call.
    again(|| {
        unsafe {
            libc::renameat(from.as_raw_fd(), name.as_ptr(), to.as_raw_fd(), new_name.as_ptr())
        }
        .into()
    })
    .map(drop)
}

/// Fails with EEXIST if the new name exists. Uses a hard link on file systems without
/// RENAME_NOREPLACE.
pub(super) fn rename_new(from: &File, name: &str, to: &File, new_name: &str) -> Result<()> {
    let (old, new) = (text(name)?, text(new_name)?);
    let (from_fd, to_fd) = (from.as_raw_fd(), to.as_raw_fd());
    // By the number of the system call, as musl has no function for it.
    // SAFETY: both names are NUL-terminated and outlive the call.
    let renamed = again(|| unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from_fd,
            old.as_ptr(),
            to_fd,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        ) as _
    });
    match renamed.as_ref().map_err(Error::raw_os_error) {
        Err(Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) => {}
        _ => return renamed.map(drop),
    }
    // SAFETY: as above.
    again(|| unsafe { libc::linkat(from_fd, old.as_ptr(), to_fd, new.as_ptr(), 0) }.into())?;
    remove_file(from, name)
}

/// Attributes of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    pub kind: Kind,
    pub inode: u64,
    pub len_bytes: u64,
    pub modified_ns: i128,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    File,
    Folder,
    /// Links, devices, sockets: no objects.
    Other,
}

/// Free space for unprivileged users.
pub(super) fn room_bytes(of: &File) -> Result<u64> {
    // SAFETY: the structure is plain data, for which zeros are a value.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid to write to.
    match unsafe { libc::fstatvfs(of.as_raw_fd(), &mut answer) } {
        0 => Ok(answer.f_bavail.saturating_mul(answer.f_frsize)),
        _ => Err(Error::last_os_error()),
    }
}

pub(super) fn stat(file: &File) -> Result<Stat> {
    let mut raw = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the buffer is a stat, which the call fills where it succeeds.
    again(|| unsafe { libc::fstat(file.as_raw_fd(), raw.as_mut_ptr()) }.into())?;
    // SAFETY: the call has succeeded.
    Ok(read_stat(unsafe { raw.assume_init() }))
}

/// Attributes of the name itself: a link is not followed.
pub(super) fn stat_at(parent: &File, name: &str) -> Result<Stat> {
    let name = text(name)?;
    let mut raw = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the name is NUL-terminated; the buffer is a stat, which the call fills where it
    // succeeds.
    again(|| {
        unsafe {
            libc::fstatat(
                parent.as_raw_fd(),
                name.as_ptr(),
                raw.as_mut_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
            )
        }
        .into()
    })?;
    // SAFETY: the call has succeeded.
    Ok(read_stat(unsafe { raw.assume_init() }))
}

fn read_stat(raw: libc::stat) -> Stat {
    let kind = match raw.st_mode & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFDIR => Kind::Folder,
        _ => Kind::Other,
    };
    let modified_ns = i128::from(raw.st_mtime) * 1_000_000_000 + i128::from(raw.st_mtime_nsec);
    Stat { kind, inode: raw.st_ino, len_bytes: raw.st_size as u64, modified_ns }
}

/// None where the attribute is not there.
pub(super) fn get_xattr(file: &File, name: &str) -> Result<Option<Vec<u8>>> {
    let name = text(name)?;
    let mut value = vec![0u8; MAX_XATTR_BYTES];
    // SAFETY: the name is NUL-terminated; the length is that of the buffer.
    let got = again(|| unsafe {
        libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    } as i64);
    match got {
        Ok(len) => {
            value.truncate(len as usize);
            Ok(Some(value))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn set_xattr(file: &File, name: &str, value: &[u8]) -> Result<()> {
    let name = text(name)?;
    // SAFETY: the name is NUL-terminated; the length is that of the value.
    again(|| {
        unsafe {
            libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        }
        .into()
    })
    .map(drop)
}

pub(super) fn remove_xattr(file: &File, name: &str) -> Result<()> {
    let name = text(name)?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    match again(|| unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) }.into()) {
        Err(error) if error.raw_os_error() != Some(libc::ENODATA) => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

pub(super) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the length is that of the buffer. Requests up to 256 bytes are never cut short.
    again(|| unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } as i64)?;
    Ok(bytes)
}

fn text(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::from(ErrorKind::InvalidInput))
}

/// Repeats the call while signals interrupt it.
fn again(mut call: impl FnMut() -> i64) -> Result<i64> {
    loop {
        match call() {
            -1 => {
                let error = Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            done => return Ok(done),
        }
    }
}

const MAX_XATTR_BYTES: usize = 4096;
