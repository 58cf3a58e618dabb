//! Objects: files, and folders under their keys with a slash at the end.

use super::fault::{fault, is_missing, lookup_fault};
use super::notes::etag_of;
use super::path::{Form, KeyPath};
use super::sparse;
use super::store::{Store, holds};
use super::sys::{self, Kind, Stat};
use crate::tags::checked;
use bytes::Bytes;
use ebb_ports::{BucketError, Condition, ETag, Object, ObjectMeta, ObjectTags};
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::unix::fs::FileExt;

impl Store {
    pub fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> Result<Object, BucketError> {
        let path = KeyPath::parse(key)?;
        for _ in 0..READ_ATTEMPTS {
            let (file, stat, meta) = self.find(&path)?;
            if if_match.is_some_and(|tag| *tag != meta.etag) {
                return Err(BucketError::Precondition { key: key.into() });
            }
            if stat.kind == Kind::Folder {
                return Ok(Object { meta, body: Bytes::new() });
            }
            let range = range.clone().unwrap_or(0..stat.len_bytes);
            let start = range.start.min(stat.len_bytes);
            let mut body = vec![0; (range.end.clamp(start, stat.len_bytes) - start) as usize];
            let read = file.read_exact_at(&mut body, start);
            // Other programs write files in place. The bytes are of one version only if the
            // attributes are unchanged.
            let unchanged = sys::stat(&file).is_ok_and(|now| now == stat);
            match read {
                Ok(()) if unchanged => return Ok(Object { meta, body: body.into() }),
                Err(error) if unchanged => return Err(fault("read", key, &error)),
                _ => {}
            }
        }
        Err(BucketError::Unavailable {
            what: format!("read {key:?}: somebody is writing to it"),
            retry_after: None,
        })
    }

    pub fn head(&self, key: &str) -> Result<ObjectMeta, BucketError> {
        Ok(self.find(&KeyPath::parse(key)?)?.2)
    }

    pub fn find(&self, path: &KeyPath) -> Result<(File, Stat, ObjectMeta), BucketError> {
        let missing = || BucketError::NotFound { key: path.key.clone() };
        let failed = |error: Error| lookup_fault("open", &path.key, &error);
        // Without O_NONBLOCK, opening a FIFO would wait for its other end.
        let file = sys::open_beneath(
            &self.root,
            path.path(),
            libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY,
            0,
        )
        .map_err(failed)?;
        let stat = sys::stat(&file).map_err(failed)?;
        match (stat.kind, path.form) {
            (Kind::File, Form::File) => {}
            (Kind::Folder, Form::Folder) if self.is_object(&file).map_err(failed)? => {}
            _ => return Err(missing()),
        }
        let etag = etag_of(&stat);
        let tags = self.notes.read_tags(&self.root, &file, &etag).map_err(failed)?;
        let len_bytes = if stat.kind == Kind::File { stat.len_bytes } else { 0 };
        let meta = ObjectMeta { etag, len_bytes, modified_secs: secs(&stat), tags };
        Ok((file, stat, meta))
    }

    /// An implicit directory is no object while it has entries.
    pub fn is_object(&self, folder: &File) -> Result<bool, Error> {
        Ok(!self.notes.is_implicit(folder)? || super::listing::is_empty(folder)?)
    }

    pub fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: &Condition,
        tags: ObjectTags,
    ) -> Result<ETag, BucketError> {
        let (path, tags) = (KeyPath::parse(key)?, checked(tags)?);
        self.writable()?;
        match path.form {
            Form::Folder if body.is_empty() => self.put_folder(&path, condition, &tags),
            Form::Folder => Err(BucketError::Refused {
                what: format!("{key:?}: a directory holds no bytes of its own"),
            }),
            Form::File => self.put_file(&path, condition, &tags, |file| sparse::write(file, &body)),
        }
    }

    /// `fill` writes the content.
    pub fn put_file(
        &self,
        path: &KeyPath,
        condition: &Condition,
        tags: &ObjectTags,
        fill: impl FnOnce(&mut File) -> Result<(), Error>,
    ) -> Result<ETag, BucketError> {
        self.check_place(path)?;
        let (unfinished, mut file) =
            self.new_file().map_err(|error| write_fault(&path.key, &error))?;
        match fill(&mut file).and_then(|()| self.seal(&file, tags)) {
            Ok(etag) => self.commit(&unfinished, etag, path, condition),
            Err(error) => {
                self.discard(&unfinished);
                Err(write_fault(&path.key, &error))
            }
        }
    }

    fn put_folder(
        &self,
        path: &KeyPath,
        condition: &Condition,
        tags: &ObjectTags,
    ) -> Result<ETag, BucketError> {
        let failed = |error: Error| fault("put", &path.key, &error);
        let parent = self.make_parents(path)?;
        let _held = self.lock(true, &path.key)?;
        let there = match self.look(&parent, path)? {
            Some(etag) => {
                let folder = sys::open_dir(&parent, path.name()).map_err(failed)?;
                self.is_object(&folder).map_err(failed)?.then_some(etag)
            }
            None => None,
        };
        if !holds(condition, there.as_ref()) {
            return Err(BucketError::Precondition { key: path.key.clone() });
        }
        let (folder, made) = self.make_folder(&parent, path.name(), false).map_err(|error| {
            match sys::stat(&parent) {
                // The parent went away while the lock was waited for.
                Ok(_) if is_missing(&error) => BucketError::Unavailable {
                    what: format!("put {:?}: {error}", path.key),
                    retry_after: None,
                },
                _ => failed(error),
            }
        })?;
        if !made {
            self.notes.mark(&folder, false).map_err(failed)?;
        }
        let etag = etag_of(&sys::stat(&folder).map_err(failed)?);
        self.notes.write_tags(&self.root, &folder, &etag, tags).map_err(failed)?;
        folder.sync_all().map_err(|error| BucketError::Unknown {
            what: format!("put {:?}: {error}", path.key),
        })?;
        Ok(etag)
    }

    pub fn delete(&self, key: &str, if_match: Option<&ETag>) -> Result<(), BucketError> {
        let path = KeyPath::parse(key)?;
        let incoming = self.writable()?;
        let failed = |error: Error| fault("delete", key, &error);
        let parent = match sys::open_dir(&self.root, path.parent()) {
            Ok(parent) => parent,
            // An earlier call may have removed it and failed before the cleanup.
            Err(error) if is_missing(&error) => return self.prune(&path),
            Err(error) => return Err(failed(error)),
        };
        let held = self.lock(if_match.is_some() || path.form == Form::Folder, key)?;
        // Links and files of the other form are no objects, so there is nothing to delete.
        let stat = match sys::stat_at(&parent, path.name()) {
            Ok(stat) => stat,
            Err(error) if is_missing(&error) => {
                drop(held);
                return self.prune(&path);
            }
            Err(error) => return Err(failed(error)),
        };
        let etag = etag_of(&stat);
        let changed = if_match.is_some_and(|tag| *tag != etag);
        match (stat.kind, path.form) {
            (Kind::File, Form::File) if changed => {
                return Err(BucketError::Precondition { key: key.into() });
            }
            (Kind::File, Form::File) => match sys::remove_file(&parent, path.name()) {
                Ok(()) => {}
                Err(error) if is_missing(&error) => return Ok(()),
                Err(error) => return Err(failed(error)),
            },
            (Kind::Folder, Form::Folder) => {
                let folder = sys::open_dir(&parent, path.name()).map_err(failed)?;
                if !self.is_object(&folder).map_err(failed)? {
                    return Ok(());
                }
                if changed {
                    return Err(BucketError::Precondition { key: key.into() });
                }
                match sys::remove_dir(&parent, path.name()) {
                    Ok(()) => {}
                    // Deleting a directory's own key keeps its entries.
                    Err(error)
                        if matches!(
                            error.raw_os_error(),
                            Some(libc::ENOTEMPTY | libc::EEXIST | libc::EBUSY)
                        ) =>
                    {
                        self.notes
                            .mark(&folder, true)
                            .and_then(|()| folder.sync_all())
                            .map_err(failed)?;
                    }
                    Err(error) => return Err(failed(error)),
                }
            }
            _ => return Ok(()),
        }
        drop(held);
        self.notes.forget(incoming, &etag);
        parent
            .sync_all()
            .map_err(|error| BucketError::Unknown { what: format!("delete {key:?}: {error}") })?;
        self.prune(&path)
    }

    pub fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let (source, target) = (KeyPath::parse(from)?, KeyPath::parse(to)?);
        self.writable()?;
        let (file, stat, meta) = self.find(&source)?;
        if if_match.is_some_and(|tag| *tag != meta.etag) {
            return Err(BucketError::Precondition { key: from.into() });
        }
        if stat.kind == Kind::Folder || target.form == Form::Folder {
            if meta.len_bytes > 0 {
                return Err(BucketError::Refused {
                    what: format!("{to:?}: a directory holds no bytes of its own"),
                });
            }
            return self.put(to, Bytes::new(), condition, meta.tags);
        }
        let mut changed = false;
        let copied = self.put_file(&target, condition, &meta.tags, |new| {
            let copied = sparse::copy(&file, 0..stat.len_bytes, new);
            changed = sys::stat(&file)? != stat;
            if changed {
                Err(Error::other("the source was changed while it was copied"))
            } else {
                copied
            }
        });
        match copied {
            Err(_) if changed && if_match.is_some() => {
                Err(BucketError::Precondition { key: from.into() })
            }
            other => other,
        }
    }
}

pub(super) fn secs(stat: &Stat) -> i64 {
    stat.modified_ns.div_euclid(1_000_000_000) as i64
}

/// A failure on an unfinished file, which is never "no such object".
pub(super) fn write_fault(key: &str, error: &Error) -> BucketError {
    match fault("write", key, error) {
        BucketError::NotFound { key } => {
            BucketError::Unavailable { what: format!("write {key:?}: {error}"), retry_after: None }
        }
        other => other,
    }
}

const READ_ATTEMPTS: usize = 5;
