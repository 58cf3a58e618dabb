//! The errno table as applications see it.

use ebb_fuse::Errno;
use ebb_model::{FsError, RpcError};

/// The match in the table has no default arm, so no variant is missing; this pins each value.
#[test]
fn every_error_has_its_number() {
    let table = [
        (FsError::NotFound, libc::ENOENT),
        (FsError::Exists, libc::EEXIST),
        (FsError::NotDirectory, libc::ENOTDIR),
        (FsError::IsDirectory, libc::EISDIR),
        (FsError::NotEmpty, libc::ENOTEMPTY),
        (FsError::AccessDenied, libc::EACCES),
        (FsError::NotPermitted, libc::EPERM),
        (FsError::Invalid, libc::EINVAL),
        (FsError::NameTooLong, libc::ENAMETOOLONG),
        (FsError::TooManyLinks, libc::EMLINK),
        (FsError::TooLarge, libc::EFBIG),
        (FsError::NoAttribute, libc::ENODATA),
        (FsError::ValueTooLarge, libc::E2BIG),
        (FsError::Range, libc::ERANGE),
        (FsError::NoSpace, libc::ENOSPC),
        (FsError::ReadOnly, libc::EROFS),
        (FsError::NotSupported, libc::EOPNOTSUPP),
        (FsError::CrossDevice, libc::EXDEV),
        (FsError::Busy, libc::EBUSY),
        (FsError::Stale, libc::ESTALE),
        (FsError::Io, libc::EIO),
        (FsError::TimedOut, libc::ETIMEDOUT),
        (FsError::NoData, libc::ENXIO),
        (FsError::WouldBlock, libc::EAGAIN),
        (FsError::Deadlock, libc::EDEADLK),
        (FsError::NoLocks, libc::ENOLCK),
        (FsError::Interrupted, libc::EINTR),
    ];
    for (error, number) in table {
        assert_eq!(Errno::from(error), Errno(number));
        assert_eq!(Errno::from(RpcError::Refused(error)), Errno(number));
    }
}

/// ENOSYS switches an operation off for the whole connection, so no error of one request
/// may ever become it.
#[test]
fn no_error_switches_an_operation_off() {
    let words = || "why".to_string();
    let errors = [
        RpcError::SessionExpired,
        RpcError::Misordered,
        RpcError::Retry,
        RpcError::NotServing(words()),
        RpcError::Denied(words()),
        RpcError::Lost,
        RpcError::NotLeader { leader: Some(words()) },
    ];
    for error in errors {
        assert_ne!(Errno::from(error), Errno::NOT_IMPLEMENTED);
    }
}
