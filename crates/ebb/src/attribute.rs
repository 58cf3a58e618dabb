//! Settings of files and directories that commands store as extended attributes, so they follow
//! names and attributes everywhere.

use crate::failure::Failure;
use crate::output::Shown;
use ebb_fuse::Mount;
use ebb_model::FsError;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub fn set(path: &Path, name: &[u8], value: &[u8]) -> Result<(), Failure> {
    let (at, name) = texts(path, name)?;
    // SAFETY: both names end in NUL, and the value has this length.
    let done = unsafe {
        libc::setxattr(at.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    ended(path, done, "")
}

/// `absent` is the message if there is no such attribute.
pub fn remove(path: &Path, name: &[u8], absent: &str) -> Result<(), Failure> {
    let (at, name) = texts(path, name)?;
    // SAFETY: both names end in NUL.
    ended(path, unsafe { libc::removexattr(at.as_ptr(), name.as_ptr()) }, absent)
}

/// Only for files on a mount of ebb: elsewhere the attribute would have no meaning.
fn texts(path: &Path, name: &[u8]) -> Result<(CString, CString), Failure> {
    match Mount::has(path) {
        Ok(true) => {}
        Ok(false) => return Err(Failure::Usage(format!("{} is on no mount of ebb", path.shown()))),
        Err(error) => return Err(Failure::of(path.shown(), error)),
    }
    match (CString::new(path.as_os_str().as_bytes()), CString::new(name)) {
        (Ok(at), Ok(name)) => Ok((at, name)),
        _ => Err(Failure::of(path.shown(), "a path has no NUL in it")),
    }
}

fn ended(path: &Path, done: i32, absent: &str) -> Result<(), Failure> {
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EPERM) => Failure::of(path.shown(), "only root may"),
        // Values set by commands are valid, but some are allowed on directories only.
        Some(libc::EINVAL) if !path.is_dir() => Failure::of(path.shown(), FsError::NotDirectory),
        Some(libc::ENODATA) => Failure::of(path.shown(), absent),
        _ => Failure::of(path.shown(), error),
    })
}
