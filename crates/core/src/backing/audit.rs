//! The expected contents of the bucket, if no other writer has changed it: `ebb fsck --bucket`
//! compares them with the bucket.

use super::page::recorded_names;
use super::*;
use crate::namespace::Link;
use std::collections::BTreeSet;

/// The object with a file's clean bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpectedObject {
    pub ino: Ino,
    pub key: String,
    pub etag: String,
    pub len_bytes: u64,
}

/// The page of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpectedPage {
    /// Tag of the page that was written last. `None` if another writer wrote it; then it need not
    /// exist.
    pub etag: Option<String>,
    /// The page is dirty, so the one in the bucket is outdated.
    pub is_dirty: bool,
}

/// Owner of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The backing object of this file.
    File(Ino),
    /// A delete or an upload of the key is pending.
    Waiting,
    /// No name can have such a key.
    Unnameable,
    Nobody,
}

/// Owner of a key in the reserved area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// In use by an inode or by the volume itself.
    Referenced,
    /// Unreferenced.
    Unreferenced,
    /// An unloaded directory can refer to it.
    Undecided,
    /// Not a key that ebb writes.
    Foreign,
}

impl Backing {
    /// Directories in order of their ids, from this one on.
    pub fn directories(&self, from: Ino) -> impl Iterator<Item = Ino> {
        self.dirs.range(from..).map(|(dir, _)| dir)
    }

    pub fn directory_count(&self) -> usize {
        self.dirs.len()
    }

    /// The prefix below which a listing must contain exactly the directory's names. `None` for an
    /// incomplete directory.
    pub fn listed_below(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        self.prefix_of(namespace, dir).filter(|_| self.is_complete(dir))
    }

    /// `None` for an inode without an object, or with an upload in progress.
    pub fn expected_object(&self, namespace: &Namespace, ino: Ino) -> Option<ExpectedObject> {
        let (key, BackingObject { etag, len_bytes, .. }) = self.backing_object(namespace, ino)?;
        (!self.uploads.contains_key(&ino)).then_some(ExpectedObject { ino, key, etag, len_bytes })
    }

    /// The objects of files with their primary name in the directory, except those in `checked`.
    pub fn expected_objects_in(
        &self,
        namespace: &Namespace,
        dir: Ino,
        checked: &BTreeSet<Ino>,
    ) -> Vec<ExpectedObject> {
        let first_names = namespace.children(dir).filter_map(|(_, Dentry { ino, cookie, .. })| {
            let first = namespace.primary_link(ino)?;
            (first == Link { parent: dir, cookie } && !checked.contains(&ino)).then_some(ino)
        });
        first_names.filter_map(|ino| self.expected_object(namespace, ino)).collect()
    }

    /// The objects of open files without a name.
    pub fn expected_orphan_objects(&self, namespace: &Namespace) -> Vec<ExpectedObject> {
        namespace.orphans.keys().filter_map(|ino| self.expected_object(namespace, *ino)).collect()
    }

    /// Owner of a key that was listed for the directory.
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

    /// `None` if the bucket need not have a page, or it is being written.
    pub fn expected_page(&self, dir: Ino) -> Option<ExpectedPage> {
        let state =
            self.dirs.get(&dir).filter(|state| state.stored && !self.uploads.contains_key(&dir))?;
        Some(ExpectedPage { etag: state.page, is_dirty: state.dirty.is_some() })
    }

    /// The first difference between a page in the bucket and the namespace, for a complete
    /// directory with a clean page. Attributes of the directory itself are compared only for the
    /// root; the parent's page records those of others.
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
            return Some(format!("lacks {}", entry.name));
        }
        if let Some(entry) = there.entries.iter().find(|entry| !of(&here, &entry.name)) {
            return Some(format!("lists {}, which does not exist", entry.name));
        }
        let (recorded_here, recorded_there) = (recorded_links(&here), recorded_links(there));
        let differ = |here: &Installed, there: &Installed| {
            without_links(here) != without_links(there)
                || recorded_here.get(&here.ino) != recorded_there.get(&here.ino)
        };
        if let Some((entry, _)) =
            here.entries.iter().zip(&there.entries).find(|(here, there)| differ(here, there))
        {
            return Some(format!("differs in {}", entry.name));
        }
        let is_same =
            (&here.dir, &here.parent, &here.hidden) == (&there.dir, &there.parent, &there.hidden);
        let record = |page: &DirectoryPage| without_count(page.record.clone());
        let is_recorded_elsewhere = dir != Ino::ROOT || record(&here) == record(there);
        (!is_same || !is_recorded_elsewhere).then(|| "differs in the directory itself".into())
    }

    /// Whether every directory is complete.
    pub fn is_loaded(&self) -> bool {
        self.dirs.iter().all(|(dir, _)| self.is_complete(dir))
    }

    /// Owner of a key below `.ebb/`. `is_loaded`: result of [`Backing::is_loaded`].
    ///
    /// An id that is not loaded can be in an unloaded or evicted directory, with a page in the
    /// bucket that refers to it.
    pub fn reserved(&self, namespace: &Namespace, key: &str, is_loaded: bool) -> Reserved {
        if keys::is_of_the_volume(key) {
            return Reserved::Referenced;
        }
        if self.deletes.contains_key(&key.to_owned())
            || self.uploads.values().any(|upload| upload.claims(key))
            || self.owner(namespace, key).is_some()
        {
            return Reserved::Referenced;
        }
        if let Some((dir, id)) = keys::piece_of(key) {
            return match self.dirs.contains_key(&dir) {
                _ if self.has_piece(dir, id) => Reserved::Referenced,
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
            // Keys of other writers, or not loaded yet.
            ("p", Some(_)) => true,
            _ => false,
        };
        if is_held { Reserved::Referenced } else { self.unreferenced(namespace, ino, is_loaded) }
    }

    /// No loaded state refers to a key of the inode.
    fn unreferenced(&self, namespace: &Namespace, ino: Ino, is_loaded: bool) -> Reserved {
        let is_known = is_loaded || namespace.inode(ino).is_some();
        if is_known { Reserved::Unreferenced } else { Reserved::Undecided }
    }
}

/// All names of inodes with several. The entry that lists them and their order do not matter.
fn recorded_links(page: &DirectoryPage) -> BTreeMap<Ino, BTreeSet<&(Ino, Name)>> {
    recorded_names(&page.entries)
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

/// A directory's record without `nlink`, which counts only loaded subdirectories.
fn without_count(record: InstalledRecord) -> InstalledRecord {
    InstalledRecord { nlink: 0, ..record }
}
