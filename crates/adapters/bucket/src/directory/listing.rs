//! Listings in the byte order of keys. `/` sorts among the other characters (`a.b` before `a/c`
//! before `a0`), so a directory sorts as its name followed by a slash.

use super::fault::fault;
use super::notes::etag_of;
use super::objects::secs;
use super::path::{INCOMING, KeyPath};
use super::store::Store;
use super::sys::{self, Kind, Stat};
use ebb_model::Planted;
use ebb_ports::{BucketError, ListEntry, ListPage, ListRequest};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

/// A directory's names with their slashes, in order.
type Names = Arc<Vec<String>>;

/// The names of the large directory that was listed last: paging through a million
/// names must not read and sort a million names for each thousand.
#[derive(Default)]
pub(super) struct NamesCache(Mutex<Option<(Stat, Names)>>);

struct Walk<'a> {
    store: &'a Store,
    request: &'a ListRequest,
    /// One more than requested, to detect that more entries follow.
    wanted: usize,
    entries: Vec<ListEntry>,
}

impl Store {
    pub fn list(&self, request: &ListRequest) -> Result<ListPage, BucketError> {
        let limit = request.limit.clamp(1, MAX_PAGE);
        let base = request.prefix.rfind('/').map_or("", |slash| &request.prefix[..=slash]);
        let empty = ListPage { entries: vec![], more: false };
        if !base.is_empty() && KeyPath::parse(base).is_err() {
            // No object can have such a key.
            return Ok(empty);
        }
        let folder = match sys::open_dir(&self.root, base.trim_end_matches('/')) {
            Ok(folder) => folder,
            Err(error) if super::fault::is_missing(&error) => return Ok(empty),
            Err(error) => return Err(fault("list", base, &error)),
        };
        let mut walk = Walk { store: self, request, wanted: limit + 1, entries: vec![] };
        walk.folder(&folder, base).map_err(|error| fault("list", base, &error))?;
        let more = walk.entries.len() > limit;
        if more && Planted::DirectoryListSkips.is_on() {
            walk.entries.remove(limit - 1);
        }
        walk.entries.truncate(limit);
        Ok(ListPage { entries: walk.entries, more })
    }
}

impl Walk<'_> {
    fn folder(&mut self, folder: &File, base: &str) -> Result<(), Error> {
        if !base.is_empty() && self.selects(base) && self.store.is_object(folder)? {
            let stat = sys::stat(folder)?;
            self.entries.push(ListEntry::Object {
                key: base.into(),
                etag: etag_of(&stat),
                len_bytes: 0,
                modified_secs: secs(&stat),
            });
        }
        for name in self.store.sorted_names(folder)?.iter() {
            if self.entries.len() >= self.wanted {
                return Ok(());
            }
            let key = format!("{base}{name}");
            if key.trim_end_matches('/') == INCOMING {
                continue;
            }
            match name.strip_suffix('/') {
                Some(inner) => self.subfolder(folder, inner, &key)?,
                None if self.selects(&key) => match sys::stat_at(folder, name) {
                    Ok(stat) if stat.kind == Kind::File => {
                        let (etag, len_bytes, modified_secs) =
                            (etag_of(&stat), stat.len_bytes, secs(&stat));
                        self.entries.push(ListEntry::Object {
                            key,
                            etag,
                            len_bytes,
                            modified_secs,
                        });
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                },
                None => {}
            }
        }
        Ok(())
    }

    fn subfolder(&mut self, parent: &File, name: &str, key: &str) -> Result<(), Error> {
        let begins = key.starts_with(&self.request.prefix);
        if !begins {
            // The prefix ends within this level's names, so nothing below another name begins with
            // it.
            return Ok(());
        }
        let after = self.request.after.as_deref();
        if self.request.by_directory {
            // The private directory alone makes no key.
            let private = key == ".ebb/"
                && sys::open_dir(parent, name).and_then(|folder| holds_only_incoming(&folder))?;
            if after.is_none_or(|after| key > after) && !private {
                self.entries.push(ListEntry::Prefix { key: key.into() });
            }
            return Ok(());
        }
        if after.is_some_and(|after| after >= key && !after.starts_with(key)) {
            return Ok(());
        }
        match sys::open_dir(parent, name) {
            Ok(folder) => self.folder(&folder, key),
            // Removed, or replaced, since its name was read.
            Err(error) if super::fault::is_missing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn selects(&self, key: &str) -> bool {
        key.starts_with(&self.request.prefix)
            && self.request.after.as_deref().is_none_or(|after| key > after)
    }
}

impl Store {
    fn sorted_names(&self, folder: &File) -> Result<Names, Error> {
        let stat = sys::stat(folder)?;
        let mut cached = self.names.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((at, names)) = &*cached
            && *at == stat
        {
            return Ok(names.clone());
        }
        let mut names: Vec<String> = read_names(folder)?
            .into_iter()
            .map(|(name, is_folder)| if is_folder { format!("{name}/") } else { name })
            .collect();
        names.sort_unstable();
        let names = Arc::new(names);
        // Changes within one clock tick share a modification time, so an ETag is cached only for a
        // file that has rested longer.
        let rested = sys::now_ns() - stat.modified_ns > RESTED_NS;
        if names.len() >= MIN_CACHED_NAMES && rested && sys::stat(folder)? == stat {
            *cached = Some((stat, names.clone()));
        }
        Ok(names)
    }
}

/// Names, and whether each is a directory. Names that are no UTF-8 can be no keys and are left out.
pub(super) fn read_names(folder: &File) -> Result<Vec<(String, bool)>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
        let entry = entry?;
        match entry.file_name().into_string() {
            Ok(name) => match entry.file_type() {
                Ok(kind) => names.push((name, kind.is_dir())),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            },
            Err(name) => tracing::warn!(?name, "a file's name is not UTF-8; it is not served"),
        }
    }
    Ok(names)
}

pub(super) fn is_empty(folder: &File) -> Result<bool, Error> {
    Ok(std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?
        .next()
        .transpose()?
        .is_none())
}

fn holds_only_incoming(private: &File) -> Result<bool, Error> {
    Ok(read_names(private)?
        .iter()
        .all(|(name, _)| Some(name.as_str()) == INCOMING.strip_prefix(".ebb/")))
}

const MAX_PAGE: usize = 1000;
/// Smaller directories are read again in less time than a page takes to send.
const MIN_CACHED_NAMES: usize = 2_000;
const RESTED_NS: i128 = 2_000_000_000;
