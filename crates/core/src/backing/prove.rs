//! What the bucket must hold if nobody but this volume has changed it: what `ebb fsck --bucket`
//! compares with what is there.

use super::page::names_told;
use super::*;
use crate::namespace::Link;
use std::collections::BTreeSet;

/// The object that a file's clean bytes are in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    pub ino: Ino,
    pub key: String,
    pub etag: String,
    pub len_bytes: u64,
}

/// The page of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimedPage {
    /// Of the page that was written last; `None` where others wrote it, in which case there need
    /// not be one.
    pub etag: Option<String>,
    /// It is to be written anew: what is there is not what the directory is.
    pub is_dirty: bool,
}

/// Whose a key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The home of this file.
    File(Ino),
    /// To be deleted, or being written.
    Waiting,
    /// No name stands for such a key.
    Unnameable,
    Nobody,
}

/// Whose a key of the reserved area is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// Somebody's, or of the volume itself.
    Held,
    /// Nobody refers to it.
    Unreferenced,
    /// A directory that is not loaded may refer to it.
    Undecided,
    /// ebb writes no such key.
    Foreign,
}

impl Backing {
    /// Directories from this one on, in the order of their ids.
    pub fn directories(&self, from: Ino) -> impl Iterator<Item = Ino> {
        self.dirs.range(from..).map(|(dir, _)| dir)
    }

    pub fn directory_count(&self) -> usize {
        self.dirs.len()
    }

    /// Below what key a listing must have what the names of the directory stand for, and nothing
    /// else. `None` where not all of its names are known.
    pub fn listed_below(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        self.prefix_of(namespace, dir).filter(|_| self.is_complete(dir))
    }

    /// `None` of what has no object, or whose object is being written.
    pub fn claimed(&self, namespace: &Namespace, ino: Ino) -> Option<Claimed> {
        let (key, Home { etag, len_bytes, .. }) = self.home(namespace, ino)?;
        (!self.uploads.contains_key(&ino)).then_some(Claimed { ino, key, etag, len_bytes })
    }

    /// The objects of the files whose first name is in the directory, but for what is `proved`.
    pub fn claimed_in(
        &self,
        namespace: &Namespace,
        dir: Ino,
        proved: &BTreeSet<Ino>,
    ) -> Vec<Claimed> {
        let first_names = namespace.children(dir).filter_map(|(_, Dentry { ino, cookie, .. })| {
            let first = namespace.primary_link(ino)?;
            (first == Link { parent: dir, cookie } && !proved.contains(&ino)).then_some(ino)
        });
        first_names.filter_map(|ino| self.claimed(namespace, ino)).collect()
    }

    /// The objects of files that have no name and are open.
    pub fn claimed_without_name(&self, namespace: &Namespace) -> Vec<Claimed> {
        namespace.orphans.keys().filter_map(|ino| self.claimed(namespace, *ino)).collect()
    }

    /// Whose a key is that was listed for the directory.
    pub fn owner_listed(&self, namespace: &Namespace, dir: Ino, key: &str) -> Owner {
        if self.deletes.contains_key(&key.to_owned())
            || self.uploads.values().any(|upload| upload.claims(key))
        {
            return Owner::Waiting;
        }
        if let Some(ino) = self.owner(namespace, key) {
            return Owner::File(ino);
        }
        match keys::name_of(keys::split(key).1) {
            // A marker.
            _ if key.ends_with('/') => Owner::Unnameable,
            Some(name) if !is_reserved(dir, &name) => Owner::Nobody,
            _ => Owner::Unnameable,
        }
    }

    /// `None` where the bucket need not have one, or it is being written.
    pub fn claimed_page(&self, dir: Ino) -> Option<ClaimedPage> {
        let state =
            self.dirs.get(&dir).filter(|state| state.stored && !self.uploads.contains_key(&dir))?;
        Some(ClaimedPage { etag: state.page, is_dirty: state.dirty.is_some() })
    }

    /// What a page in the bucket says otherwise than the namespace: of a directory all of whose
    /// names are known, and whose page does not wait to be written. What it says of the directory
    /// itself counts of the root alone; of others their parent's page says it.
    pub fn page_differs(
        &self,
        namespace: &Namespace,
        dir: Ino,
        there: &DirectoryPage,
    ) -> Option<String> {
        let here = self.page(namespace, dir, None).filter(|_| self.is_complete(dir))?;
        let of = |page: &DirectoryPage, name: &Name| {
            page.entries.binary_search_by(|entry| entry.name.cmp(name)).is_ok()
        };
        if let Some(entry) = here.entries.iter().find(|entry| !of(there, &entry.name)) {
            return Some(format!("says nothing of {}", entry.name));
        }
        if let Some(entry) = there.entries.iter().find(|entry| !of(&here, &entry.name)) {
            return Some(format!("tells of {}, which is not there", entry.name));
        }
        let (told_here, told_there) = (told_in_order(&here), told_in_order(there));
        let differ = |here: &Installed, there: &Installed| {
            without_links(here) != without_links(there)
                || told_here.get(&here.ino) != told_there.get(&here.ino)
        };
        if let Some((entry, _)) =
            here.entries.iter().zip(&there.entries).find(|(here, there)| differ(here, there))
        {
            return Some(format!("tells something else of {}", entry.name));
        }
        let is_same =
            (&here.dir, &here.parent, &here.hidden) == (&there.dir, &there.parent, &there.hidden);
        let record = |page: &DirectoryPage| without_count(page.record.clone());
        let is_told_elsewhere = dir != Ino::ROOT || record(&here) == record(there);
        (!is_same || !is_told_elsewhere)
            .then(|| "tells something else of the directory itself".into())
    }

    /// All names of the volume are known.
    pub fn is_loaded(&self) -> bool {
        self.dirs.iter().all(|(dir, _)| self.is_complete(dir))
    }

    /// Whose a key below `.ebb/` is. `is_loaded`: [`Backing::is_loaded`].
    ///
    /// What is not known may be in a directory that is not loaded, or was forgotten, and a page
    /// that tells of it in the bucket.
    pub fn reserved(&self, namespace: &Namespace, key: &str, is_loaded: bool) -> Reserved {
        if keys::is_of_the_volume(key) {
            return Reserved::Held;
        }
        if self.deletes.contains_key(&key.to_owned())
            || self.uploads.values().any(|upload| upload.claims(key))
            || self.owner(namespace, key).is_some()
        {
            return Reserved::Held;
        }
        if let Some((dir, id)) = keys::piece_of(key) {
            return match self.dirs.contains_key(&dir) {
                _ if self.has_piece(dir, id) => Reserved::Held,
                true if !self.knows_pieces(dir) => Reserved::Undecided,
                _ => self.unreferenced(namespace, dir, is_loaded),
            };
        }
        let Some((what, rest)) = key.strip_prefix(".ebb/").and_then(|rest| rest.split_once('/'))
        else {
            return Reserved::Foreign;
        };
        let (id, below) =
            rest.split_once('/').map_or((rest, None), |(id, below)| (id, Some(below)));
        let Some(ino) = u64::from_str_radix(id, 16).ok().map(Ino) else { return Reserved::Foreign };
        let is_own = match (what, below) {
            ("d", None) => keys::page_key(ino) == key,
            ("tmp", None) => keys::waiting_key(ino) == key,
            ("long", None) => keys::long_of(key) == Some(ino),
            ("p", Some(_)) => key.starts_with(&keys::private_prefix(ino)),
            _ => false,
        };
        if !is_own {
            return Reserved::Foreign;
        }
        let is_held = match (what, self.dirs.get(&ino)) {
            ("d", Some(dir)) => dir.has_page(),
            // What others put there, or what was not loaded yet.
            ("p", Some(_)) => true,
            _ => false,
        };
        if is_held { Reserved::Held } else { self.unreferenced(namespace, ino, is_loaded) }
    }

    /// Nothing known refers to a key of the inode.
    fn unreferenced(&self, namespace: &Namespace, ino: Ino, is_loaded: bool) -> Reserved {
        let is_known = is_loaded || namespace.inode(ino).is_some();
        if is_known { Reserved::Unreferenced } else { Reserved::Undecided }
    }
}

/// All names of inodes that have several: which entry tells them, and in what order, is of no
/// account.
fn told_in_order(page: &DirectoryPage) -> BTreeMap<Ino, BTreeSet<&(Ino, Name)>> {
    names_told(&page.entries)
        .into_iter()
        .map(|(ino, names)| (ino, names.iter().collect()))
        .collect()
}

fn without_links(entry: &Installed) -> Installed {
    let mut entry = entry.clone();
    if let Some(record) = &mut entry.record {
        record.links.clear();
    }
    if matches!(entry.what, InstalledKind::Directory { .. }) {
        entry.record = entry.record.map(without_count);
    }
    entry
}

/// The record of a directory, which counts subdirectories as far as they are loaded.
fn without_count(record: InstalledRecord) -> InstalledRecord {
    InstalledRecord { nlink: 0, ..record }
}
