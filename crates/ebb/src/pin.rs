//! What is pinned has an extended attribute: it is wherever names and attributes are.

use crate::failure::Failure;
use ebb_model::PIN;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn set(path: &Path) -> Result<(), Failure> {
    // SAFETY: both names end in NUL, and of the value nothing is read.
    asked(path, |path, name| unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), std::ptr::null(), 0, 0) }, "pinned")
}

/// The first that cannot be unpinned ends it.
pub fn remove(paths: &[PathBuf]) -> Result<(), Failure> {
    // SAFETY: both names end in NUL.
    paths.iter().try_for_each(|path| asked(path, |path, name| unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }, "unpinned"))
}

fn asked(path: &Path, call: impl Fn(&CStr, &CStr) -> i32, what: &str) -> Result<(), Failure> {
    let (Ok(at), Ok(name)) = (CString::new(path.as_os_str().as_bytes()), CString::new(PIN)) else {
        return Err(Failure::of(path.display(), "a path has no NUL in it"));
    };
    if call(&at, &name) == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EPERM) => Failure::of(path.display(), format!("cannot be {what}: only root may")),
        Some(libc::ENODATA) => Failure::of(path.display(), "is not pinned itself; `ebb explain` says what keeps it"),
        _ => Failure::of(path.display(), error),
    })
}
