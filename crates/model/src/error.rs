use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a file system operation was refused, as its caller can act upon it. The FUSE
/// surface holds the one table that turns it into an errno.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Error, Serialize, Deserialize,
)]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("permission denied")]
    AccessDenied,
    #[error("operation not permitted")]
    NotPermitted,
    #[error("invalid argument")]
    Invalid,
    #[error("file name too long")]
    NameTooLong,
    #[error("too many links")]
    TooManyLinks,
    #[error("file too large")]
    TooLarge,
    #[error("no such attribute")]
    NoAttribute,
    #[error("argument list or value too large")]
    ValueTooLarge,
    #[error("result does not fit the buffer")]
    Range,
    #[error("no space left")]
    NoSpace,
    #[error("read-only file system")]
    ReadOnly,
    #[error("operation not supported")]
    NotSupported,
    #[error("crosses a border that it must not cross")]
    CrossDevice,
    #[error("resource busy")]
    Busy,
    /// The inode id was valid once and is no longer.
    #[error("stale file handle")]
    Stale,
    /// Storage failed: the node's disk or the bucket. Logs and `ebb status` say which.
    #[error("input/output error")]
    Io,
    /// The bucket or node cannot be reached and the stated wait is over.
    #[error("timed out")]
    TimedOut,
    /// There is nothing of what lseek(2) looks for.
    #[error("no such data or hole")]
    NoData,
    /// A lock that somebody else holds.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// Whoever waits for this lock would wait for itself.
    #[error("resource deadlock avoided")]
    Deadlock,
    #[error("no locks available")]
    NoLocks,
    /// A signal ended a wait.
    #[error("interrupted")]
    Interrupted,
    /// The limit of a quota root.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// The node may take no more memory for names from the bucket.
    #[error("out of memory")]
    NoMemory,
}

/// Why a request got no answer from the file system. The client library acts upon it;
/// only [`RpcError::Refused`] reaches an application as it stands.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum RpcError {
    #[error("{0}")]
    Refused(FsError),
    /// The session is unknown or has expired. Nothing was executed; attach again.
    #[error("session expired")]
    SessionExpired,
    /// A sequence number before the last of its slot: executed, and its answer is forgotten.
    #[error("session slot out of sequence")]
    Misordered,
    /// The state changed meanwhile, or too much is under way: send the request again. Nothing was
    /// executed.
    #[error("request must be sent again")]
    Retry,
    /// The node has lost the volume to another, or stops. Nothing was executed.
    #[error("node does not serve the volume: {0}")]
    NotServing(String),
    /// The node refuses this client, and will again.
    #[error("{0}")]
    Denied(String),
    /// The connection broke, or the node's disk failed: the request may have been executed. Send
    /// it again as it was.
    #[error("connection lost")]
    Lost,
}

impl From<FsError> for RpcError {
    fn from(error: FsError) -> RpcError {
        RpcError::Refused(error)
    }
}
