//! The open directory: finding, locking, and the commit that every change ends in.

use super::fault::{fault, is_missing};
use super::notes::{Notes, etag_of};
use super::path::{Form, INCOMING, KeyPath};
use super::sparse;
use super::sys::{self, Kind};
use ebb_model::Planted;
use ebb_ports::{BucketError, Condition, ETag, ObjectTags};
use std::fs::{File, FileTimes};
use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, UNIX_EPOCH};

pub(super) struct Store {
    pub root: File,
    /// None when opened read-only.
    pub incoming: Option<File>,
    pub notes: Notes,
    /// Whether the file system supports locks between processes, or between machines that share it.
    pub locks_files: bool,
    pub longest_bytes: u64,
    /// Locked before the file's lock; without file locks, the only lock.
    process_lock: RwLock<()>,
    pub names: super::listing::NamesCache,
    last_mtime_ns: AtomicI64,
}

/// Locked from the check of a condition until the change. A condition on a tag excludes all other
/// changes by ebb; other operations are atomic in the kernel and run in parallel.
pub(super) struct Held<'a> {
    _file: Option<File>,
    _process: Side<'a>,
}

enum Side<'a> {
    #[expect(dead_code, reason = "held, not read")]
    Shared(RwLockReadGuard<'a, ()>),
    #[expect(dead_code, reason = "held, not read")]
    Alone(RwLockWriteGuard<'a, ()>),
}

impl Store {
    pub fn new(
        root: File,
        incoming: Option<File>,
        notes: Notes,
        Abilities { locks_files, longest_bytes }: Abilities,
    ) -> Store {
        let (process_lock, names) = (RwLock::new(()), Default::default());
        Store {
            root,
            incoming,
            notes,
            locks_files,
            longest_bytes,
            process_lock,
            names,
            last_mtime_ns: AtomicI64::new(0),
        }
    }

    pub fn writable(&self) -> Result<&File, BucketError> {
        self.incoming.as_ref().ok_or_else(|| BucketError::Forbidden {
            what: "the directory was opened read-only".into(),
        })
    }

    pub fn lock(&self, alone: bool, key: &str) -> Result<Held<'_>, BucketError> {
        let process = match alone {
            true => Side::Alone(
                self.process_lock.write().unwrap_or_else(|poisoned| poisoned.into_inner()),
            ),
            false => Side::Shared(
                self.process_lock.read().unwrap_or_else(|poisoned| poisoned.into_inner()),
            ),
        };
        let file = match self.locks_files {
            false => None,
            true => {
                let file =
                    sys::open_beneath(self.writable()?, LOCK, libc::O_RDWR | libc::O_CREAT, 0o666);
                let locked = file.and_then(|file| {
                    if alone { file.lock() } else { file.lock_shared() }.map(|()| file)
                });
                Some(locked.map_err(|error| fault("lock for", key, &error))?)
            }
        };
        Ok(Held { _file: file, _process: process })
    }

    /// A new unfinished file, locked while it is written: unlocked files there are left by a crash.
    /// Without file locks the two cannot be distinguished, and nothing is removed.
    pub fn new_file(&self) -> Result<(String, File), Error> {
        let incoming =
            self.incoming.as_ref().ok_or_else(|| Error::from(ErrorKind::PermissionDenied))?;
        loop {
            let name = format!("{UNFINISHED}{}", hex(&sys::random()?));
            let file = sys::open_beneath(
                incoming,
                &name,
                libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
                0o666,
            )?;
            if !self.locks_files {
                return Ok((name, file));
            }
            file.lock()?;
            match sys::stat_at(incoming, &name) {
                Ok(_) => return Ok((name, file)),
                // A cleanup ran between the creation and the lock.
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sets the file's time and tags and makes it durable: everything but its name.
    pub fn seal(&self, file: &File, tags: &ObjectTags) -> Result<ETag, Error> {
        let now = sys::now_ns() as i64;
        let last = self.last_mtime_ns.fetch_max(now, Ordering::Relaxed);
        // Two puts within a tick of the kernel's clock must not look the same.
        let unique =
            if last < now { now } else { self.last_mtime_ns.fetch_add(1, Ordering::Relaxed) + 1 };
        file.set_times(
            FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_nanos(unique as u64)),
        )?;
        let etag = etag_of(&sys::stat(file)?);
        self.notes.write_tags(&self.root, file, &etag, tags)?;
        file.sync_all()?;
        Ok(etag)
    }

    /// Moves the sealed file to its key if the condition holds.
    pub fn commit(
        &self,
        unfinished: &str,
        etag: ETag,
        path: &KeyPath,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let placed = self.place(unfinished, path, condition);
        if placed.is_err() {
            self.discard(unfinished);
            self.notes.forget(self.writable()?, &etag);
        }
        let parent = placed?;
        if Planted::DirectoryNotForced.is_on() {
            return Ok(etag);
        }
        // The object is visible now; only a successful sync makes it durable.
        parent.sync_all().map_err(|error| BucketError::Unknown {
            what: format!("put {:?}: {error}", path.key),
        })?;
        Ok(etag)
    }

    fn place(
        &self,
        unfinished: &str,
        path: &KeyPath,
        condition: &Condition,
    ) -> Result<File, BucketError> {
        let (incoming, key) = (self.writable()?, &path.key);
        let mut last = Error::from(ErrorKind::NotFound);
        for _ in 0..PLACE_ATTEMPTS {
            let parent = self.make_parents(path)?;
            let held = self.lock(matches!(condition, Condition::Match(_)), key)?;
            let there = self.look(&parent, path)?;
            if !holds(condition, there.as_ref()) {
                return Err(BucketError::Precondition { key: key.clone() });
            }
            let renamed = match condition {
                Condition::Absent if !Planted::DirectoryReplaces.is_on() => {
                    sys::rename_new(incoming, unfinished, &parent, path.name())
                }
                Condition::Always | Condition::Absent | Condition::Match(_) => {
                    sys::rename(incoming, unfinished, &parent, path.name())
                }
            };
            drop(held);
            match renamed {
                Ok(()) => {
                    if let Some(replaced) = there {
                        self.notes.forget(incoming, &replaced);
                    }
                    return Ok(parent);
                }
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    return Err(BucketError::Precondition { key: key.clone() });
                }
                // The parent was emptied and removed in between.
                Err(error) if error.kind() == ErrorKind::NotFound => last = error,
                Err(error) => return Err(fault("put", key, &error)),
            }
        }
        Err(BucketError::Unavailable {
            what: format!("put {key:?}: its directory keeps vanishing: {last}"),
            retry_after: None,
        })
    }

    /// The tag of the file at the path. An entry that is no object is an error: it must not be
    /// replaced.
    pub fn look(&self, parent: &File, path: &KeyPath) -> Result<Option<ETag>, BucketError> {
        let what = |what: &str| format!("{:?}: {what}", path.key);
        let nested = |why: &str| Err(BucketError::Nested { what: what(why) });
        match sys::stat_at(parent, path.name()) {
            Ok(stat) => match (stat.kind, path.form) {
                (Kind::File, Form::File) | (Kind::Folder, Form::Folder) => Ok(Some(etag_of(&stat))),
                (Kind::Folder, Form::File) if self.clear_away(parent, path)? => Ok(None),
                (Kind::Folder, Form::File) => {
                    nested("a directory has this name, and a directory cannot be a file as well")
                }
                (Kind::File, Form::Folder) => {
                    nested("a file has this name, and a file cannot be a directory as well")
                }
                (Kind::Other, _) => Err(BucketError::Refused {
                    what: what("something that is neither file nor directory has this name"),
                }),
            },
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(fault("look at", &path.key, &error)),
        }
    }

    /// Removes an empty implicit directory, whose creator or last user was interrupted before its
    /// removal.
    fn clear_away(&self, parent: &File, path: &KeyPath) -> Result<bool, BucketError> {
        let cleared = sys::open_dir(parent, path.name()).and_then(|folder| {
            let is_left = self.notes == Notes::Attributes && self.notes.is_implicit(&folder)?;
            Ok(is_left && sys::remove_dir(parent, path.name()).is_ok())
        });
        match cleared {
            Err(error) if is_missing(&error) => Ok(true),
            cleared => cleared.map_err(|error| fault("look at", &path.key, &error)),
        }
    }

    /// Returns the errors of [`Store::commit`] that are detectable before anything is written.
    pub fn check_place(&self, path: &KeyPath) -> Result<(), BucketError> {
        match sys::open_dir(&self.root, path.parent()) {
            Ok(parent) => self.look(&parent, path).map(drop),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(fault("look for the directory of", &path.key, &error)),
        }
    }

    /// The parent directory, made where it is missing, durably and marked as implicit.
    pub fn make_parents(&self, path: &KeyPath) -> Result<File, BucketError> {
        let failed = |error: &Error| fault("make the directories of", &path.key, error);
        for _ in 0..PLACE_ATTEMPTS {
            match sys::open_dir(&self.root, path.parent()) {
                Ok(parent) => return Ok(parent),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&error)),
            }
            // Excludes a put of the directory's own key between creation and mark.
            let _held = self.lock(false, &path.key)?;
            let mut outer = self.root.try_clone().map_err(|error| failed(&error))?;
            for at in path.parents() {
                let name = at.rsplit_once('/').map_or(at, |(_, name)| name);
                let step = self.make_folder(&outer, name, true);
                match step {
                    Ok((inner, _)) => outer = inner,
                    // Removed concurrently: start again at the root.
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    Err(error) => return Err(failed(&error)),
                }
            }
        }
        Err(BucketError::Unavailable {
            what: format!("put {:?}: its directories keep vanishing", path.key),
            retry_after: None,
        })
    }

    /// The folder, and whether this made it.
    pub fn make_folder(
        &self,
        parent: &File,
        name: &str,
        implicit: bool,
    ) -> Result<(File, bool), Error> {
        let made = match sys::make_dir(parent, name) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => false,
            Err(error) => return Err(error),
        };
        let folder = sys::open_dir(parent, name)?;
        if made {
            self.notes.mark(&folder, implicit)?;
            folder.sync_all()?;
            parent.sync_all()?;
        }
        Ok((folder, made))
    }

    /// Removes empty implicit directories above the path. Explicit ones stay.
    pub fn prune(&self, path: &KeyPath) -> Result<(), BucketError> {
        let failed =
            |error: Error| BucketError::Unknown { what: format!("delete {:?}: {error}", path.key) };
        let mut parents: Vec<&str> = path.parents().collect();
        if self.notes == Notes::Files {
            // Without marks, explicit and implicit directories cannot be distinguished.
            return Ok(());
        }
        let mut any = false;
        while let Some(at) = parents.pop() {
            // Excludes a put of the directory's own key between the check of the mark and the
            // removal.
            let held = self
                .lock(false, &path.key)
                .map_err(|error| BucketError::Unknown { what: error.to_string() })?;
            let folder = match sys::open_dir(&self.root, at) {
                Ok(folder) => folder,
                Err(error) if is_missing(&error) => continue,
                Err(error) => return Err(failed(error)),
            };
            let name = at.rsplit_once('/').map_or(at, |(_, name)| name);
            let outer = sys::open_dir(&self.root, parents.last().unwrap_or(&""));
            let removed = self.notes.is_implicit(&folder).map_err(failed)?
                && outer.is_ok_and(|outer| sys::remove_dir(&outer, name).is_ok());
            drop(held);
            if !removed {
                return if any { folder.sync_all().map_err(failed) } else { Ok(()) };
            }
            any = true;
        }
        if any { self.root.sync_all().map_err(failed) } else { Ok(()) }
    }

    pub fn discard(&self, unfinished: &str) {
        if let Some(incoming) = &self.incoming
            && let Err(error) = sys::remove_file(incoming, unfinished)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(unfinished, %error, "an unfinished object is left behind until the next \
                start");
        }
    }
}

pub(super) fn holds(condition: &Condition, there: Option<&ETag>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Absent => there.is_none() || Planted::DirectoryReplaces.is_on(),
        Condition::Match(tag) => there == Some(tag),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names of files that are being written.
pub(super) const UNFINISHED: &str = "put-";
const LOCK: &str = "lock";
const PLACE_ATTEMPTS: usize = 64;

/// Creates the directory of unfinished objects and removes the leftovers of a crash.
pub(super) fn open_incoming(root: &File, notes: Notes) -> Result<File, Error> {
    let mut at = root.try_clone()?;
    for name in INCOMING.split('/') {
        match sys::make_dir(&at, name) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
            Err(_) => at = sys::open_dir(&at, name)?,
            Ok(()) => {
                let inner = sys::open_dir(&at, name)?;
                notes.mark(&inner, true)?;
                at.sync_all()?;
                at = inner;
            }
        }
    }
    for (name, _) in super::listing::read_names(&at)? {
        if name.starts_with(UNFINISHED)
            && let Ok(file) = sys::open_beneath(&at, &name, libc::O_RDWR, 0)
            && file.try_lock().is_ok()
            // It may have been committed or dropped concurrently.
            && let Err(error) = sys::remove_file(&at, &name)
            && !is_missing(&error)
        {
            return Err(error);
        }
    }
    Ok(at)
}

/// Capabilities of the file system.
pub(super) struct Abilities {
    /// Whether the lock file can be locked at all.
    pub locks_files: bool,
    pub longest_bytes: u64,
}

impl Abilities {
    pub fn of(incoming: &File) -> Result<Abilities, Error> {
        let file = sys::open_beneath(incoming, LOCK, libc::O_RDWR | libc::O_CREAT, 0o666)?;
        let locks_files = match file.lock_shared() {
            Ok(()) => true,
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK | libc::EINVAL)
                ) =>
            {
                false
            }
            Err(error) => return Err(error),
        };
        Ok(Abilities { locks_files, longest_bytes: sparse::longest_bytes(&file) })
    }
}
