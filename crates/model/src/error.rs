//! Errors of file system operations and of requests.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A rejected file system operation. The variant decides the caller's remedy. The FUSE surface has
/// the only table that maps it to an errno.
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
    #[error("invalid cross-device link")]
    CrossDevice,
    #[error("resource busy")]
    Busy,
    /// The inode id was valid once and is not any more.
    #[error("stale file handle")]
    Stale,
    /// Storage failed: the node's disk or the bucket. Logs and `ebb status` name it.
    #[error("input/output error")]
    Io,
    /// The bucket or node is unreachable and the configured wait is over.
    #[error("timed out")]
    TimedOut,
    /// lseek(2) found neither data nor hole at or behind the offset.
    #[error("no such data or hole")]
    NoData,
    /// Another owner holds the lock.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// Waiting for this lock would complete a cycle of waiting owners.
    #[error("resource deadlock avoided")]
    Deadlock,
    #[error("no locks available")]
    NoLocks,
    /// A signal interrupted the wait.
    #[error("interrupted")]
    Interrupted,
    /// The limit of a quota root is reached.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// The node's memory limit for names loaded from the bucket is reached.
    #[error("out of memory")]
    NoMemory,
}

/// A request without a result of the file system. The client library handles it; only
/// [`RpcError::Refused`] reaches an application unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum RpcError {
    #[error("{0}")]
    Refused(FsError),
    /// The session does not exist or has expired. Nothing was executed; attach again.
    #[error("session expired")]
    SessionExpired,
    /// The sequence number is below the last one of its slot: executed, and the reply is gone.
    #[error("session slot out of sequence")]
    Misordered,
    /// The state changed during the request, or a queue is full. Nothing was executed; retry.
    #[error("request must be sent again")]
    Retry,
    /// The node has lost the volume to another node, or stops. Nothing was executed.
    #[error("node does not serve the volume: {0}")]
    NotServing(String),
    /// The node rejects this client permanently.
    #[error("{0}")]
    Denied(String),
    /// The connection broke, or the node's disk failed: the request may have been executed. Send it
    /// again unchanged.
    #[error("connection lost")]
    Lost,
    /// The node does not lead the volume, or has lost the lead during the request: the request may
    /// have been executed. Attach to the leader, and send the request again unchanged.
    #[error("the node does not lead the volume{}", named(.leader))]
    NotLeader {
        /// `host:port` of the leader's listener, as far as the node knows. `None` without a leader.
        leader: Option<String>,
    },
}

fn named(leader: &Option<String>) -> String {
    match leader {
        Some(leader) => format!("; the leader is {leader}"),
        None => ", and knows no leader".into(),
    }
}

impl From<FsError> for RpcError {
    fn from(error: FsError) -> RpcError {
        RpcError::Refused(error)
    }
}
