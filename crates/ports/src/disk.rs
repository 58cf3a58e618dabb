//! The data directory of a node.

use crate::PortFuture;
use bytes::Bytes;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use thiserror::Error;

/// One data directory of a node. Paths are relative, `/`-separated, without `.` or `..`.
///
/// Durability follows POSIX with a volatile page cache:
/// - Written bytes survive the death of the process at once.
/// - They survive a power cut only after [`DiskFile::sync_data`].
/// - Created, renamed or removed names survive a power cut only after [`Disk::sync_dir`] of their
///   directory.
pub trait Disk {
    /// Opens for reading and writing.
    fn open(
        &self,
        path: &str,
        mode: OpenMode,
    ) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>>;

    /// Renames and replaces `to` if it exists. Both directories must exist.
    fn rename(&self, from: &str, to: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Removes a file. Open descriptors stay usable.
    fn remove(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Creates the directory and its missing parents. An existing directory is a success.
    fn create_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Sorted names in a directory. A missing directory has none.
    fn list(&self, path: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>>;

    /// Makes the names of a directory durable.
    fn sync_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Free and total bytes of the underlying file system.
    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>>;

    /// Maximum length of a file in bytes.
    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>>;

    /// Locks the data directory for this process until it ends. [`DiskError::InUse`] names the
    /// owner if another process holds the lock.
    fn lock(&self) -> Result<(), DiskError>;

    /// Id of one boot of the machine. Bytes written under the same boot id are present; bytes
    /// written under another one and not synced can be lost.
    fn boot_id(&self) -> u128;
}

/// An open file.
#[allow(
    clippy::len_without_is_empty,
    reason = "asking for the length is an operation that may fail"
)]
pub trait DiskFile {
    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> PortFuture<'_, Result<Bytes, DiskError>>;

    /// Writes all of `data` at `offset` and extends the file if needed. On error any part of `data`
    /// can be written. A power cut before the next sync can tear the bytes.
    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>>;

    /// Makes all bytes and the length written before the call durable. After an error the state of
    /// these bytes is undefined, and a later success proves nothing about them.
    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>>;

    /// Truncates, or extends with a hole.
    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>>;

    /// The length in bytes.
    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>>;

    /// Deallocates a range, which then reads as zeros. The length stays.
    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>>;

    /// Whether another owner has the file open or mapped, in this process or another one; `None` if
    /// the system does not report it. A second open of the same owner counts as another owner.
    fn is_held(&self) -> Option<bool> {
        None
    }

    /// A descriptor of this open file for a reader outside the port, such as the kernel; `None` if
    /// the disk has none.
    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// Creates the file if it does not exist.
    Create,
    /// The file must not exist.
    CreateNew,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpace {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// A failed disk operation. The variant decides the caller's remedy.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DiskError {
    #[error("{path}: no such file")]
    NotFound { path: String },
    #[error("{path}: exists already")]
    Exists { path: String },
    #[error("no space left on the node's disk")]
    NoSpace,
    #[error("data directory is in use by {owner}")]
    InUse { owner: String },
    /// The device or its file system failed.
    #[error("{path}: {what}")]
    Failed { path: String, what: String },
}
