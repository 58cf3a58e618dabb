//! Multipart uploads: one directory per upload among the unfinished objects, one file per part.

use super::fault::{fault, is_missing};
use super::notes::etag_of;
use super::objects::write_fault;
use super::path::{Form, KeyPath};
use super::sparse;
use super::store::{Store, hex};
use super::sys;
use crate::tags::checked;
use bytes::Bytes;
use ebb_ports::{BucketError, Condition, ETag, ObjectTags, PartTag, Piece, UploadId};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};

impl Store {
    pub fn upload_begin(&self, key: &str, tags: ObjectTags) -> Result<UploadId, BucketError> {
        let (path, tags) = (KeyPath::parse(key)?, checked(tags)?);
        if path.form == Form::Folder {
            return Err(BucketError::Refused {
                what: format!("{key:?}: a directory holds no bytes of its own"),
            });
        }
        let incoming = self.writable()?;
        self.check_place(&path)?;
        let failed = |error: Error| write_fault(key, &error);
        let id = hex(&sys::random().map_err(failed)?);
        let (folder, _) = self.make_folder(incoming, &id, true).map_err(failed)?;
        let about = description(key, &tags);
        let written = new_file(&folder, ABOUT)
            .and_then(|mut file| file.write_all(about.as_bytes()).and_then(|()| file.sync_all()));
        written.and_then(|()| folder.sync_all()).map_err(failed)?;
        Ok(UploadId(id))
    }

    pub fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: &Bytes,
    ) -> Result<PartTag, BucketError> {
        self.put_part(key, upload, number, |file| sparse::write(file, body))
    }

    pub fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: &Piece,
    ) -> Result<PartTag, BucketError> {
        let Piece { key: source, etag, range } = from;
        let (file, stat, meta) = self.find(&KeyPath::parse(source)?)?;
        let changed = || BucketError::Precondition { key: source.clone() };
        if meta.etag != *etag {
            return Err(changed());
        }
        if range.is_empty() || range.end > meta.len_bytes {
            return Err(BucketError::Refused {
                what: format!("{source:?}: it does not have bytes {range:?}"),
            });
        }
        let part =
            self.put_part(key, upload, number, |part| sparse::copy(&file, range.clone(), part));
        // Other programs write files in place. The copy is of one version only if the
        // attributes are unchanged.
        if sys::stat(&file).is_ok_and(|now| now == stat) { part } else { Err(changed()) }
    }

    /// `fill` writes the content.
    fn put_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        fill: impl FnOnce(&mut File) -> Result<(), Error>,
    ) -> Result<PartTag, BucketError> {
        let incoming = self.writable()?;
        let (folder, _) = self.find_upload(key, upload)?;
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(BucketError::Refused {
                what: format!("{key:?}: parts are numbered from 1 to {MAX_PARTS}"),
            });
        }
        let failed = |error: Error| write_fault(key, &error);
        let (unfinished, mut file) = self.new_file().map_err(failed)?;
        let sealed = fill(&mut file).and_then(|()| self.seal(&file, &vec![]));
        let placed = sealed.and_then(|etag| {
            sys::rename(incoming, &unfinished, &folder, &part(number)).map(|()| etag)
        });
        if placed.is_err() {
            self.discard(&unfinished);
        }
        let etag = placed.map_err(|error| upload_fault(key, &error))?;
        folder.sync_all().map_err(|error| BucketError::Unknown {
            what: format!("upload part of {key:?}: {error}"),
        })?;
        Ok(PartTag { number, receipt: etag.0 })
    }

    pub fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let (folder, tags) = self.find_upload(key, upload)?;
        let refused = |what: String| BucketError::Refused { what: format!("{key:?}: {what}") };
        if parts.is_empty() || !parts.windows(2).all(|pair| pair[0].number < pair[1].number) {
            return Err(refused("the parts of an upload are given once each, in order".into()));
        }
        let mut files = Vec::new();
        for tag in parts {
            let file = match sys::open_beneath(&folder, &part(tag.number), libc::O_RDONLY, 0) {
                Ok(file) => file,
                Err(error) if is_missing(&error) => {
                    return Err(refused(format!("part {} was not sent", tag.number)));
                }
                Err(error) => return Err(fault("read a part of", key, &error)),
            };
            let stat = sys::stat(&file).map_err(|error| fault("read a part of", key, &error))?;
            if etag_of(&stat).0 != tag.receipt {
                return Err(refused(format!("part {} was replaced", tag.number)));
            }
            files.push((file, stat.len_bytes));
        }
        let path = KeyPath::parse(key)?;
        let done = self.put_file(&path, condition, &tags, |whole| {
            files.iter().try_for_each(|(file, len_bytes)| sparse::copy(file, 0..*len_bytes, whole))
        })?;
        if let Err(error) = self.remove_upload(self.writable()?, upload, &folder) {
            tracing::warn!(key, upload = upload.0, %error, "the parts of a finished upload are \
                left behind");
        }
        Ok(done)
    }

    pub fn upload_abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        let folder = match self.find_upload(key, upload) {
            Ok((folder, _)) => folder,
            Err(BucketError::NotFound { .. }) => {
                match self.open_upload(upload).map_err(|error| upload_fault(key, &error)) {
                    // Its removal was cut short behind the description.
                    Ok(folder) if is_without_description(&folder) => folder,
                    Ok(_) | Err(BucketError::NotFound { .. }) => return Ok(()),
                    Err(other) => return Err(other),
                }
            }
            Err(other) => return Err(other),
        };
        self.remove_upload(self.writable()?, upload, &folder)
            .map_err(|error| fault("abort the upload of", key, &error))
    }

    pub fn uploads(&self, key: &str) -> Result<Vec<UploadId>, BucketError> {
        let names = super::listing::read_names(self.writable()?)
            .map_err(|error| fault("list uploads of", key, &error))?;
        let mut uploads = Vec::new();
        for upload in names.into_iter().map(|(name, _)| UploadId(name)) {
            match self.find_upload(key, &upload) {
                Ok(_) => uploads.push(upload),
                // Not an upload, or one of another key.
                Err(BucketError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(uploads)
    }

    fn find_upload(&self, key: &str, upload: &UploadId) -> Result<(File, ObjectTags), BucketError> {
        let missing = || BucketError::NotFound { key: key.into() };
        let failed = |error: Error| upload_fault(key, &error);
        self.writable()?;
        let folder = self.open_upload(upload).map_err(failed)?;
        let mut about = Vec::new();
        sys::open_beneath(&folder, ABOUT, libc::O_RDONLY, 0)
            .and_then(|mut file| file.read_to_end(&mut about))
            .map_err(failed)?;
        Ok((folder, tags_told(&about, key).ok_or_else(missing)?))
    }

    fn open_upload(&self, upload: &UploadId) -> Result<File, Error> {
        // An id is part of a path here, so reject any other form.
        if upload.0.len() != 32 || !upload.0.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Error::from_raw_os_error(libc::ENOENT));
        }
        let incoming =
            self.incoming.as_ref().ok_or_else(|| Error::from_raw_os_error(libc::EROFS))?;
        sys::open_dir(incoming, &upload.0)
    }

    /// Removes the description first: afterwards no part can begin, and one that arrives later is
    /// removed too. An interrupted removal can be repeated.
    fn remove_upload(
        &self,
        incoming: &File,
        upload: &UploadId,
        folder: &File,
    ) -> Result<(), Error> {
        loop {
            for (name, _) in super::listing::read_names(folder)? {
                if name != ABOUT {
                    remove(sys::remove_file(folder, &name))?;
                }
            }
            remove(sys::remove_file(folder, ABOUT))?;
            match remove(sys::remove_dir(incoming, &upload.0)) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                removed => return removed.and_then(|()| incoming.sync_all()),
            }
        }
    }
}

pub(crate) fn description(key: &str, tags: &ObjectTags) -> String {
    serde_json::json!({ "key": key, "tags": tags }).to_string()
}

/// The tags recorded in a description; `None` if it is not of an upload of this key.
pub(crate) fn tags_told(description: &[u8], key: &str) -> Option<ObjectTags> {
    let about: serde_json::Value = serde_json::from_slice(description).ok()?;
    let pair = |pair: &serde_json::Value| {
        Some((pair.get(0)?.as_str()?.to_string(), pair.get(1)?.as_str()?.to_string()))
    };
    (about["key"] == key).then(|| about["tags"].as_array()?.iter().map(pair).collect()).flatten()
}

fn is_without_description(folder: &File) -> bool {
    sys::open_beneath(folder, ABOUT, libc::O_RDONLY, 0).is_err_and(|error| is_missing(&error))
}

fn remove(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(error) if !is_missing(&error) => Err(error),
        _ => Ok(()),
    }
}

fn new_file(folder: &File, name: &str) -> Result<File, Error> {
    sys::open_beneath(folder, name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o666)
}

/// Maps any missing file of an upload to "no such upload".
fn upload_fault(key: &str, error: &Error) -> BucketError {
    if is_missing(error) {
        BucketError::NotFound { key: key.into() }
    } else {
        fault("write", key, error)
    }
}

fn part(number: u32) -> String {
    format!("part-{number:05}")
}

const ABOUT: &str = "upload";
pub(super) const MAX_PARTS: u32 = 10_000;
