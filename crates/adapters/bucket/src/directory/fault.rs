//! Errors of the file system as the port's.

use ebb_ports::BucketError;
use std::io::Error;

/// For calls that changed nothing when they failed.
pub(super) fn fault(doing: &str, key: &str, error: &Error) -> BucketError {
    let what = format!("{doing} {key:?}: {error}");
    match error.raw_os_error().unwrap_or(0) {
        libc::ENOENT => BucketError::NotFound { key: key.into() },
        libc::EACCES | libc::EPERM | libc::EROFS => BucketError::Forbidden { what },
        libc::ENAMETOOLONG | libc::EINVAL | libc::EFBIG | libc::EILSEQ | libc::EOPNOTSUPP => {
            BucketError::Refused { what }
        }
        libc::ENOTDIR => BucketError::Nested {
            what: format!("{doing} {key:?}: a file is where a directory is needed"),
        },
        libc::EISDIR => {
            BucketError::Nested { what: format!("{doing} {key:?}: a directory has this name") }
        }
        libc::ELOOP => BucketError::Refused {
            what: format!(
                "{doing} {key:?}: a symbolic link is on the way, and links are not followed"
            ),
        },
        libc::EXDEV => BucketError::Refused {
            what: format!("{doing} {key:?}: another file system is mounted there"),
        },
        _ => BucketError::Unavailable { what, retry_after: None },
    }
}

/// For lookups: a path below a file or behind a link does not exist.
pub(super) fn lookup_fault(doing: &str, key: &str, error: &Error) -> BucketError {
    match error.raw_os_error() {
        Some(libc::ENOTDIR | libc::ELOOP | libc::ENXIO) => {
            BucketError::NotFound { key: key.into() }
        }
        _ => fault(doing, key, error),
    }
}

pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}
