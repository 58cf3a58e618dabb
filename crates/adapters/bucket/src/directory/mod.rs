//! A directory of any mounted file system as a bucket: objects are files under their
//! keys, readable and writable by everybody else.
//!
//! - A put is written among the unfinished objects in `.ebb/incoming/`, synced, renamed into place,
//!   and the directory synced: it is there whole or not at all, and survives a loss of power.
//! - All ebb processes on the directory, on every machine where the file system has
//!   locks, keep to each other's conditions. Other programs do not: a file that one
//!   writes between the check of a condition and the rename is replaced.
//! - A directory is an object of its own, its key with a slash at the end, if somebody made it: a
//!   put of that key, or `mkdir`. One made only for keys below it is none, and goes with the last
//!   of them. A file system without extended attributes cannot note the difference: there a
//!   directory is an object while it is empty, and stays until its own key is deleted.
//! - Symbolic links, devices and names that are no UTF-8 are not served. Nothing is followed or
//!   written outside.

mod fault;
mod listing;
pub(crate) mod notes;
mod objects;
mod path;
mod sparse;
mod store;
mod sys;
pub(crate) mod uploads;

use crate::OpenError;
use crate::background::Background;
use bytes::Bytes;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListPage, ListRequest, Object, ObjectMeta,
    ObjectTags, PartTag, Piece, PortFuture, UploadId,
};
use notes::Notes;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Abilities, Store};

pub(crate) struct Directory {
    store: Arc<Store>,
    path: PathBuf,
    background: Background,
}

impl Directory {
    /// The directory must exist: a path that is misspelt, or a file system that is not mounted,
    /// must not become an empty volume.
    pub async fn open(path: &Path, read_only: bool) -> Result<Directory, OpenError> {
        let background = Background::start("ebb-directory", 1, THREADS)
            .map_err(|error| OpenError::Threads { error })?;
        let to_open = path.to_path_buf();
        let store = background.run_blocking(move || open_store(&to_open, read_only)).await?;
        Ok(Directory { store: Arc::new(store), path: path.into(), background })
    }

    fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Store) -> Result<T, BucketError> + Send + 'static,
    ) -> PortFuture<'_, Result<T, BucketError>> {
        let store = self.store.clone();
        Box::pin(self.background.run_blocking(move || operation(&store)))
    }
}

fn open_store(path: &Path, read_only: bool) -> Result<Store, OpenError> {
    let url = format!("file://{}", path.display());
    let failed = |doing: &str, error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => OpenError::Unreachable {
            url: url.clone(),
            what: "there is no such directory; create it, or mount what it is on".into(),
        },
        ErrorKind::NotADirectory => {
            OpenError::Unreachable { url: url.clone(), what: "it is no directory".into() }
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => OpenError::Forbidden {
            url: url.clone(),
            what: format!("{doing}: {error}; grant the rights, or mount it read-only"),
        },
        _ => OpenError::Unreachable { url: url.clone(), what: format!("{doing}: {error}") },
    };
    let root = File::open(path).map_err(|error| failed("open it", error))?;
    if !root.metadata().map_err(|error| failed("look at it", error))?.is_dir() {
        return Err(failed("", ErrorKind::NotADirectory.into()));
    }
    sys::open_dir(&root, "").map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => OpenError::Unreachable {
            url: url.clone(),
            what: "this kernel has no openat2; Linux 5.6 or newer is needed".into(),
        },
        _ => failed("open it", error),
    })?;
    let notes = Notes::of(&root).map_err(|error| failed("read its attributes", error))?;
    if read_only {
        return Ok(Store::new(
            root,
            None,
            notes,
            Abilities { locks_files: false, longest_bytes: i64::MAX as u64 },
        ));
    }
    let incoming = store::open_incoming(&root, notes)
        .map_err(|error| failed("make .ebb/incoming in it", error))?;
    let abilities = Abilities::of(&incoming).map_err(|error| failed("lock a file in it", error))?;
    Ok(Store::new(root, Some(incoming), notes, abilities))
}

impl Bucket for Directory {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        let (key, if_match) = (key.to_string(), if_match.cloned());
        self.run(move |store| store.get(&key, range, if_match.as_ref()))
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        let key = key.to_string();
        self.run(move |store| store.head(&key))
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let key = key.to_string();
        self.run(move |store| store.put(&key, body, &condition, tags))
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, if_match) = (key.to_string(), if_match.cloned());
        self.run(move |store| store.delete(&key, if_match.as_ref()))
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (from, to, if_match) = (from.to_string(), to.to_string(), if_match.cloned());
        self.run(move |store| store.copy(&from, &to, if_match.as_ref(), &condition))
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        self.run(move |store| store.list(&request))
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        let key = key.to_string();
        self.run(move |store| store.upload_begin(&key, tags))
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(move |store| store.upload_part(&key, &upload, number, &body))
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(move |store| store.upload_part_copy(&key, &upload, number, &from))
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(move |store| store.upload_complete(&key, &upload, &parts, &condition))
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(move |store| store.upload_abort(&key, &upload))
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        let key = key.to_string();
        self.run(move |store| store.uploads(&key))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            conditional_put: self.store.locks_files,
            conditional_delete: self.store.locks_files,
            copies_parts: true,
            copies_remotely: false,
            min_part_bytes: 1,
            max_parts: uploads::MAX_PARTS,
            max_object_bytes: self.store.longest_bytes,
            max_key_bytes: path::MAX_KEY_BYTES,
            max_put_bytes: self.store.longest_bytes,
        }
    }

    fn room_bytes(&self) -> PortFuture<'_, Result<Option<u64>, BucketError>> {
        self.run(|store| {
            sys::room_bytes(&store.root)
                .map(Some)
                .map_err(|error| fault::fault("ask for the room of", "the directory", &error))
        })
    }

    fn describe(&self) -> String {
        format!("file://{}", self.path.display())
    }
}

/// Calls of a slow file system that wait side by side.
const THREADS: usize = 32;

#[cfg(test)]
mod tests;
