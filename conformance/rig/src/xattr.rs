//! Extended attributes, without following symbolic links.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub fn set(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    // SAFETY: both strings end in NUL, and the length is that of the value.
    check(unsafe {
        libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    } as isize)
    .map(drop)
}

pub fn remove(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    // SAFETY: both strings end in NUL.
    check(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) } as isize).map(drop)
}

/// Attributes with these name prefixes.
pub fn all(path: &Path, prefixes: &[&[u8]]) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut names = vec![0u8; MOST_BYTES];
    // SAFETY: the path ends in NUL, and the length is that of the buffer.
    let len =
        check(unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) })?;
    names.truncate(len);
    let mut found = BTreeMap::new();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
    {
        let name_c = CString::new(name)?;
        let mut value = vec![0u8; MOST_BYTES];
        // SAFETY: both strings end in NUL, and the length is that of the buffer.
        let len = check(unsafe {
            libc::lgetxattr(path.as_ptr(), name_c.as_ptr(), value.as_mut_ptr().cast(), value.len())
        })?;
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// Maximum size of one value, and of all names together (xattr(7)).
const MOST_BYTES: usize = 64 << 10;

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
