//! The one table from errors to the errno that an application gets.

use ebb_model::{FsError, Planted, RpcError};
use std::fmt;

/// An error number of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const BAD_HANDLE: Errno = Errno(libc::EBADF);
    pub const INVALID: Errno = Errno(libc::EINVAL);
    pub const IO: Errno = Errno(libc::EIO);
    pub const NOT_FOUND: Errno = Errno(libc::ENOENT);
    pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// No such position: lseek(2) beyond the end of the data.
    pub const NO_DATA: Errno = Errno(libc::ENXIO);
    pub const NOT_TTY: Errno = Errno(libc::ENOTTY);
    pub const OVERFLOW: Errno = Errno(libc::EOVERFLOW);
    pub const RANGE: Errno = Errno(libc::ERANGE);
    pub const STALE: Errno = Errno(libc::ESTALE);
    pub const TOO_BIG: Errno = Errno(libc::E2BIG);
    pub const TOO_MANY_OPEN: Errno = Errno(libc::ENFILE);
    /// Makes the kernel stop sending the operation on this connection, for good.
    pub const NOT_IMPLEMENTED: Errno = Errno(libc::ENOSYS);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {})", self.0, std::io::Error::from_raw_os_error(self.0))
    }
}

impl From<FsError> for Errno {
    fn from(error: FsError) -> Errno {
        Errno(match error {
            FsError::NotFound => libc::ENOENT,
            FsError::Exists => libc::EEXIST,
            FsError::NotDirectory => libc::ENOTDIR,
            FsError::IsDirectory => libc::EISDIR,
            FsError::NotEmpty if Planted::NotEmptyIsBusy.is_on() => libc::EBUSY,
            FsError::NotEmpty => libc::ENOTEMPTY,
            FsError::AccessDenied => libc::EACCES,
            FsError::NotPermitted => libc::EPERM,
            FsError::Invalid => libc::EINVAL,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::TooManyLinks => libc::EMLINK,
            FsError::TooLarge => libc::EFBIG,
            FsError::NoAttribute => libc::ENODATA,
            FsError::ValueTooLarge => libc::E2BIG,
            FsError::Range => libc::ERANGE,
            FsError::NoSpace => libc::ENOSPC,
            FsError::NoMemory => libc::ENOMEM,
            FsError::ReadOnly => libc::EROFS,
            FsError::NotSupported => libc::EOPNOTSUPP,
            FsError::CrossDevice => libc::EXDEV,
            FsError::Busy => libc::EBUSY,
            FsError::Stale => libc::ESTALE,
            FsError::Io => libc::EIO,
            FsError::TimedOut => libc::ETIMEDOUT,
            FsError::NoData => libc::ENXIO,
            FsError::WouldBlock => libc::EAGAIN,
            FsError::Deadlock => libc::EDEADLK,
            FsError::NoLocks => libc::ENOLCK,
            FsError::Interrupted => libc::EINTR,
            FsError::QuotaExceeded => libc::EDQUOT,
        })
    }
}

/// The client library handles all of these but `Refused` itself. Where it has given up, the errno
/// says whether the operation may have happened (EIO) or not.
impl From<RpcError> for Errno {
    fn from(error: RpcError) -> Errno {
        match error {
            RpcError::Refused(error) => error.into(),
            RpcError::SessionExpired => Errno(libc::ESTALE),
            RpcError::Retry => Errno(libc::EAGAIN),
            RpcError::NotServing(_) => Errno(libc::EHOSTDOWN),
            RpcError::Denied(_) => Errno(libc::EACCES),
            RpcError::Misordered | RpcError::Lost | RpcError::NotLeader { .. } => Errno::IO,
        }
    }
}
