use crate::PortFuture;
use bytes::Bytes;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use thiserror::Error;

/// One data directory of a node. Paths are relative, `/`-separated, without `.` or `..`.
///
/// Durability follows POSIX with a volatile page cache: bytes written survive the death
/// of the process at once, and a power cut only after [`DiskFile::sync_data`]. Names
/// created, renamed or removed survive a power cut only after [`Disk::sync_dir`] of
/// their directory.
pub trait Disk {
    /// Opens for reading and writing.
    fn open(
        &self,
        path: &str,
        mode: OpenMode,
    ) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>>;

    /// Replaces `to` if it exists. Both must be in directories that exist.
    fn rename(&self, from: &str, to: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Removes a file. Descriptors that are open stay usable.
    fn remove(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Creates the directory and its missing parents; an existing one is no error.
    fn create_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Names in a directory, sorted. A directory that is not there has none.
    fn list(&self, path: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>>;

    /// Makes the names of a directory survive a power cut.
    fn sync_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>>;

    /// Bytes free and in all of the underlying file system.
    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>>;

    /// The longest that a file can be.
    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>>;

    /// Takes the data directory for this process until it ends. [`DiskError::InUse`]
    /// names the owner where another process has it.
    fn lock(&self) -> Result<(), DiskError>;

    /// Differs between any two boots of the machine. Bytes written under another boot id
    /// and not synced may be gone; under the same boot id they are there.
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

    /// Writes all of `data` at `offset`, extending the file. On an error any part of it
    /// may have been written. The bytes may be torn by a power cut before the next sync.
    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>>;

    /// Forces all bytes and the length written before the call. After an error the bytes
    /// are in an unknown state, and a later success proves nothing about them.
    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>>;

    /// Cuts or extends with a hole.
    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>>;

    /// The length in bytes.
    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>>;

    /// Frees the space of a range, which then reads as zeros. The length stays.
    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>>;

    /// Whether anybody else has the file open or mapped, in this process or another one; `None`
    /// where the system does not tell. Another open of the same owner is somebody else.
    fn is_held(&self) -> Option<bool> {
        None
    }

    /// This open file for whoever is to read it past the port, with a descriptor of its own;
    /// `None` where there is no such thing.
    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// The file is created if it does not exist.
    Create,
    /// The file must not exist.
    CreateNew,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpace {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// What a caller can do about a failed disk operation.
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
