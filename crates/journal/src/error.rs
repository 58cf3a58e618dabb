use ebb_format::FormatError;
use ebb_ports::DiskError;
use thiserror::Error;

/// A failure of the log, by the caller's next step.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LogError {
    /// The disk is full. Nothing was written; the same call works once there is space.
    #[error("no space left for the log on the node's disk")]
    NoSpace,
    /// The command, or a frame of a snapshot, is longer than the log can hold. Nothing was written.
    #[error("{len_bytes} bytes are more than the {max_bytes} that the log can hold in one piece")]
    TooLong { len_bytes: u64, max_bytes: u64 },
    /// Bytes on the disk differ from those that were written. Nothing was changed: repair or
    /// replace the node's data; no restart helps.
    #[error("{file}: corrupt at byte {offset}: {what}")]
    Corrupt { file: String, offset: u64, what: String },
    /// Written by another version of ebb, which can read it.
    #[error("{file}: {what}")]
    Version { file: String, what: String },
    /// The data directory belongs to another volume.
    #[error("{file}: belongs to volume {found}, not to {expected}")]
    Foreign { file: String, found: String, expected: String },
    /// The disk failed. If it failed under a record or its sync, [`super::Log::failed`] returns the
    /// same error for ever.
    #[error("log: {0}")]
    Disk(DiskError),
    /// An append or force was dropped before it had ended, so that the content of the disk is
    /// unknown.
    #[error("log: an operation was abandoned half-way")]
    Abandoned,
}

impl LogError {
    /// Bytes of `file` that `ebb_format` rejects; `offset` is where those bytes begin.
    pub(super) fn format(file: &str, offset: u64, error: FormatError) -> LogError {
        let file = file.to_string();
        match &error {
            FormatError::Version { .. } => LogError::Version { file, what: error.to_string() },
            FormatError::TooLong { len_bytes, max_bytes, .. } => {
                LogError::TooLong { len_bytes: *len_bytes, max_bytes: *max_bytes }
            }
            FormatError::Truncated { .. }
            | FormatError::Foreign { .. }
            | FormatError::Checksum { .. }
            | FormatError::Invalid { .. } => {
                LogError::Corrupt { file, offset, what: error.to_string() }
            }
        }
    }
}

impl From<DiskError> for LogError {
    fn from(error: DiskError) -> LogError {
        match error {
            DiskError::NoSpace => LogError::NoSpace,
            DiskError::NotFound { .. }
            | DiskError::Exists { .. }
            | DiskError::InUse { .. }
            | DiskError::Failed { .. } => LogError::Disk(error),
        }
    }
}
