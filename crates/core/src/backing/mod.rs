//! Backing: the state of the bucket as far as the partition records it, and the outstanding work on
//! it.
//!
//! Every key has one owner at a time. The backing object of a file is at the key of its path, or at
//! an explicit key until it has been moved there (`explicit_keys`). The objects of a directory are
//! below its prefix: that of its path, or an explicit one after a rename (`redirects`), so a rename
//! of a directory touches no object. `deletes` are the pending deletes (O-83), `uploads` the writes
//! in progress. Together these are the claim table.
//!
//! Laws:
//! - [`Backing::observe`] and [`Backing::apply`] alone change it.
//! - No object is written to a key that another file's object, a pending delete or another upload
//!   claims. No object is deleted that backs a file or is being uploaded.
//! - `explicit_keys` and `redirects` are exactly the explicit keys and prefixes; none of them
//!   equals that of the path.
//! - `queue` is exactly the dirty files and pages, ordered by the time since when. Bytes are dirty
//!   with their file, attributes with the page that records them (O-37).
//! - Every object is recorded from before its first byte is sent until it is deleted: in `uploads`,
//!   as a backing object, or in `deletes`. No crash leaks an object.
//! - A name removed here from a directory to which a listing can add names stays in `removed`, so
//!   no listing, however old, restores it. If others have removed its object, listings of before
//!   are void instead: they can put it there again.
//! - A change of an entry in a piece of a page marks that piece (`pieces`).
//! - A directory with a record of anything is recorded in its parent, up to the root.
//! - Without a bucket it is empty and every directory is complete.

mod apply;
mod audit;
mod check;
mod forget;
mod install;
mod key_conflicts;
pub mod keys;
mod listing;
mod observe;
mod page;
mod pieces;
mod plan;
mod rebuild;
mod repair;
mod revalidate;
mod snapshot;
mod unresolved_links;

pub use audit::{ExpectedObject, ExpectedPage, Owner, Reserved};
pub use forget::Forgettable;
pub use keys::{page_key, piece_key};
pub use listing::{
    Interpreted, Listed, Listing, Part, Scope, are_agreed, end_of_batch, pieces_of_listing,
    pieces_of_name,
};
pub use page::{Drafted, PageChanges, PageDraft};
pub use pieces::found_pieces;
pub use plan::{Dirt, DirtyWork, FlushStep, LoadPlan, LookupPlan, PageStatus, PageStep};
pub use rebuild::{Loss, Object};
pub use revalidate::{Shows, Standing};
pub use snapshot::BackingItem;

use crate::namespace::{Dentry, Inode, Namespace};
use crate::tree::{Tree, values};
use ebb_model::*;
use pieces::AllPieces;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use unresolved_links::UnresolvedLinks;

/// The recorded state of the bucket. Laws in the module header.
#[derive(Clone)]
pub struct Backing {
    backed: bool,
    files: Tree<Ino, FileBacking>,
    dirs: Tree<Ino, DirBacking>,
    /// Includes inodes that were removed during the upload.
    uploads: BTreeMap<Ino, Upload>,
    /// Key to the tag of the object to delete; `None` deletes any object.
    deletes: Tree<String, Option<String>>,
    explicit_keys: Tree<String, Ino>,
    redirects: Tree<String, Ino>,
    /// Segments below a directory's prefix that belong to another directory's redirect.
    hidden: Tree<(Ino, String), ()>,
    /// Segments that were hidden and belong to no directory any more, kept until the directory is
    /// complete.
    former: Tree<(Ino, String), ()>,
    /// Names removed from directories that are not complete.
    removed: Tree<(Ino, Name), ()>,
    unresolved_links: UnresolvedLinks,
    pieces: AllPieces,
    /// Inodes with many names, all marked in `pieces`: avoids repeated walks over their names.
    marked: BTreeSet<Ino>,
    queue: Tree<Turn, ()>,
}

/// Oldest first, files before directories: a page is written after the objects that it describes.
type Turn = (Time, bool, Ino);

/// Bucket state of a regular file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileBacking {
    object: Option<BackingObject>,
    dirty: Option<Dirty>,
    /// The directory's page has an entry for it, or must get one.
    recorded: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackingObject {
    /// `None`: the key of the path.
    pub key: Option<String>,
    pub etag: String,
    pub len_bytes: u64,
}

/// Changes of a file that the bucket does not have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dirty {
    pub since: Time,
    /// Version of the last change of bytes that the backing object does not contain.
    pub content: Option<Version>,
    /// The object is not at the key of the path.
    pub moving: bool,
}

/// Bucket state of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirBacking {
    load: Load,
    /// A listing requested in another epoch is not installed.
    epoch: u64,
    prefix: Option<String>,
    recorded: bool,
    /// The bucket can hold a page.
    stored: bool,
    /// The bucket can hold an object at the prefix itself.
    marked: bool,
    /// Tag of the page that was written last.
    page: Option<String>,
    dirty: Option<PageDirty>,
}

/// The loaded share of a directory's names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Load {
    /// Created here: the bucket holds no name that the namespace does not have.
    Native,
    Unknown,
    /// All keys up to and including this one.
    UpTo(String),
    Complete,
    /// Complete as of an earlier listing. The listing in progress can add names.
    Revalidating,
}

values!(FileBacking, DirBacking);

/// A page with changes that the bucket does not have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageDirty {
    pub since: Time,
    /// Changed again after the write in progress began.
    again: bool,
}

/// A write to the bucket in progress: of a file's object or a directory's page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Upload {
    pub key: String,
    pub upload: Option<String>,
    /// Lower bound of the uploaded version of the file. A separate item in snapshots, after the
    /// upload.
    #[serde(skip)]
    pub since: Version,
    /// For a directory: its marker, which is written together with the page.
    pub marker: Option<String>,
    /// Tag of the file's object at another key, which this upload can be a copy of.
    pub from: Option<String>,
    /// An earlier run of the node began it, and its object was not visible when this run started.
    pub late: bool,
}

impl Upload {
    fn keys(&self) -> impl Iterator<Item = &str> {
        [Some(&self.key), self.marker.as_ref()].into_iter().flatten().map(String::as_str)
    }

    fn claims(&self, key: &str) -> bool {
        self.keys().any(|own| own == key)
    }

    fn is_below(&self, prefix: &str) -> bool {
        self.keys().any(|key| key.starts_with(prefix))
    }
}

impl Backing {
    /// `backed`: there is a bucket, with names that are not loaded yet.
    pub fn new(backed: bool) -> Backing {
        let mut backing = Backing {
            backed,
            files: Tree::new(),
            dirs: Tree::new(),
            uploads: BTreeMap::new(),
            deletes: Tree::new(),
            explicit_keys: Tree::new(),
            redirects: Tree::new(),
            hidden: Tree::new(),
            former: Tree::new(),
            removed: Tree::new(),
            unresolved_links: UnresolvedLinks::default(),
            pieces: AllPieces::new(),
            marked: BTreeSet::new(),
            queue: Tree::new(),
        };
        if backed {
            let root = DirBacking {
                load: Load::Unknown,
                recorded: true,
                stored: true,
                marked: true,
                ..DirBacking::native()
            };
            backing.dirs.insert(&Ino::ROOT, &root);
        }
        backing
    }

    /// Memory of the trees, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let inodes = self.files.bytes() + self.dirs.bytes() + self.queue.bytes();
        let keys = self.deletes.bytes() + self.explicit_keys.bytes() + self.redirects.bytes();
        let names = self.hidden.bytes()
            + self.former.bytes()
            + self.removed.bytes()
            + self.unresolved_links.memory_bytes();
        inodes + keys + names + self.pieces_bytes()
    }

    /// What the keys below a name of the directory begin with, were it a directory of others.
    pub fn prefix_for(&self, namespace: &Namespace, dir: Ino, name: &Name) -> Option<String> {
        let prefix = self.prefix_of(namespace, dir)?;
        Some(format!("{prefix}{}/", keys::segment_of(name)))
    }

    /// The prefix of the directory's objects. `None` for a directory that is not in the tree.
    pub fn prefix_of(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        self.dirs.get(&dir)?;
        let mut below = Vec::new();
        let mut at = dir;
        let mut prefix = loop {
            if at == Ino::ROOT {
                break String::new();
            }
            if let Some(prefix) = self.dirs.get(&at).and_then(|dir| dir.prefix) {
                break prefix;
            }
            let (parent, name) = namespace.primary_name(at)?;
            below.push((name, at));
            at = parent;
        };
        for (name, dir) in below.into_iter().rev() {
            prefix = keys::own_prefix(&prefix, &name, dir);
        }
        Some(prefix)
    }

    /// The prefix of the directory's path.
    fn own_prefix(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        let (parent, name) = namespace.primary_name(dir)?;
        Some(keys::own_prefix(&self.prefix_of(namespace, parent)?, &name, dir))
    }

    /// The key of the file's path, by its primary name. `None` without a name.
    fn key_of(&self, namespace: &Namespace, ino: Ino) -> Option<String> {
        let (parent, name) = namespace.primary_name(ino)?;
        Some(keys::own_key(&self.prefix_of(namespace, parent)?, &name, ino))
    }

    /// Key and tag of the object with the file's clean bytes.
    pub fn backing_object(
        &self,
        namespace: &Namespace,
        ino: Ino,
    ) -> Option<(String, BackingObject)> {
        let object = self.files.get(&ino)?.object?;
        let key = object.key.clone().or_else(|| self.key_of(namespace, ino))?;
        Some((key, object))
    }

    pub fn object_key(&self, namespace: &Namespace, ino: Ino) -> Option<String> {
        self.backing_object(namespace, ino).map(|(key, _)| key)
    }

    /// The file with its object at `key`.
    pub fn owner(&self, namespace: &Namespace, key: &str) -> Option<Ino> {
        let (prefix, segment) = keys::split(key);
        let by_path = || {
            self.owner_in(namespace, self.dir_at(namespace, prefix)?, &keys::name_of(segment)?, key)
        };
        let by_inode = || {
            keys::long_of(key)
                .filter(|ino| self.object_key(namespace, *ino).as_deref() == Some(key))
        };
        self.explicit_keys.get(&key.to_string()).or_else(by_path).or_else(by_inode)
    }

    /// Like [`Backing::owner`], for the key of a name in the directory.
    fn owner_of(&self, namespace: &Namespace, dir: Ino, name: &Name, key: &str) -> Option<Ino> {
        self.explicit_keys
            .get(&key.to_string())
            .or_else(|| self.owner_in(namespace, dir, name, key))
    }

    fn owner_in(&self, namespace: &Namespace, dir: Ino, name: &Name, key: &str) -> Option<Ino> {
        let ino = namespace.dentry(dir, name)?.ino;
        (self.object_key(namespace, ino).as_deref() == Some(key)).then_some(ino)
    }

    /// The loaded directory with its objects below `prefix`.
    fn dir_at(&self, namespace: &Namespace, prefix: &str) -> Option<Ino> {
        if prefix.is_empty() {
            return Some(Ino::ROOT);
        }
        let by_inode = || {
            keys::private_of(prefix)
                .filter(|dir| self.prefix_of(namespace, *dir).as_deref() == Some(prefix))
        };
        if let Some(dir) = self.redirects.get(&prefix.to_string()).or_else(by_inode) {
            return Some(dir);
        }
        let (parent, segment) = keys::split(prefix);
        let name = keys::name_of(segment)?;
        let dir = namespace.dentry(self.dir_at(namespace, parent)?, &name)?.ino;
        let own =
            self.dirs.get(&dir)?.prefix.unwrap_or_else(|| keys::own_prefix(parent, &name, dir));
        (own == prefix).then_some(dir)
    }

    /// Regular files with bucket state, ordered by id.
    pub fn files(&self) -> impl Iterator<Item = Ino> {
        self.files.iter().map(|(ino, _)| ino)
    }

    /// Dirty state of a file; `None` if it is clean.
    pub fn dirty(&self, ino: Ino) -> Option<Dirty> {
        self.files.get(&ino)?.dirty
    }

    /// Whether every name of the directory is loaded.
    pub fn is_complete(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_none_or(|dir| {
            matches!(dir.load, Load::Native | Load::Complete | Load::Revalidating)
        })
    }

    /// Whether a listing can add names to the directory.
    fn is_open(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|dir| !matches!(dir.load, Load::Native | Load::Complete))
    }

    /// Whether a listing has returned all names of the directory.
    pub fn is_listed(&self, dir: Ino) -> bool {
        self.dirs
            .get(&dir)
            .is_some_and(|dir| matches!(dir.load, Load::Complete | Load::Revalidating))
    }

    /// Directories of which the bucket has told names, or that were made here.
    pub fn known_dirs(&self) -> impl Iterator<Item = Ino> {
        self.dirs.iter().filter(|(_, dir)| dir.load != Load::Unknown).map(|(ino, _)| ino)
    }

    /// Whether no part of the directory has been listed.
    pub fn is_untouched(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|dir| dir.load == Load::Unknown)
    }

    /// Whether the bucket does not have a name that the namespace does not have.
    pub fn knows_absent(&self, namespace: &Namespace, dir: Ino, name: &Name) -> bool {
        if self.is_complete(dir)
            || is_reserved(dir, name)
            || self.removed.contains_key(&(dir, name.clone()))
        {
            return true;
        }
        let Some(Load::UpTo(last)) = self.dirs.get(&dir).map(|dir| dir.load) else { return false };
        let Some(prefix) = self.prefix_of(namespace, dir) else { return false };
        let listed = |name: &Name| format!("{prefix}{}/", keys::segment_of(name)) <= last;
        // Names that only a page in pieces has are loaded in name order, which differs from key
        // order where a segment encodes a name.
        if last.strip_prefix(&prefix).is_some_and(|last| name.as_bytes() > last.as_bytes()) {
            return false;
        }
        listed(name) && keys::shadowing(name).is_none_or(|shadowing| listed(&shadowing))
    }

    /// Names of the inode (directory, name) that must be loaded before it can change. The node
    /// finds a directory outside of the namespace through the parents in pages.
    pub fn unresolved_links(&self, ino: Ino) -> Vec<(Ino, Name)> {
        self.unresolved_links.of(ino)
    }

    fn awaits(&self, ino: Ino, dir: Ino, name: &Name) -> bool {
        self.unresolved_links.contains(ino, dir, name)
    }

    /// Whether the volume has a bucket.
    pub fn is_backed(&self) -> bool {
        self.backed
    }

    /// Refuses a mutation that the bucket forbids. [`FsError::Busy`]: the node must first complete
    /// a directory or load all names of an inode.
    pub fn admit(&self, mutation: &Mutation, namespace: &Namespace) -> Result<(), FsError> {
        if !self.backed {
            return Ok(());
        }
        let find = |dir: Ino, name: &Name| namespace.dentry(dir, name);
        match mutation {
            Mutation::Make { parent, name, .. } => admit_name(*parent, name),
            Mutation::Tmpfile { .. } => Ok(()),
            Mutation::Link { ino, parent, name } => {
                admit_name(*parent, name).and_then(|()| self.admit_change(*ino))
            }
            Mutation::Unlink { parent, name, .. } => {
                find(*parent, name).map_or(Ok(()), |dentry| self.admit_change(dentry.ino))
            }
            Mutation::Rmdir { parent, name, .. } => {
                find(*parent, name).map_or(Ok(()), |dentry| self.admit_removal(dentry.ino))
            }
            Mutation::Rename { from, name, to, new_name, mode, .. } => {
                admit_name(*to, new_name)?;
                if mode.keeps_name() {
                    admit_name(*from, name)?;
                }
                let source = find(*from, name);
                source.map_or(Ok(()), |dentry| self.admit_change(dentry.ino))?;
                match find(*to, new_name) {
                    // Two names of one inode: the rename changes nothing.
                    Some(dentry) if source.is_some_and(|source| source.ino == dentry.ino) => Ok(()),
                    Some(dentry) if mode.replaces() => self.admit_removal(dentry.ino),
                    Some(dentry) => self.admit_change(dentry.ino),
                    None => Ok(()),
                }
            }
            Mutation::SetAttr { ino, .. }
            | Mutation::Truncate { ino, .. }
            | Mutation::SetXattr { ino, .. }
            | Mutation::SetAcl { ino, .. }
            | Mutation::RemoveXattr { ino, .. }
            | Mutation::Write { ino, .. }
            | Mutation::WriteWhole { ino, .. }
            | Mutation::WriteSummed { ino, .. }
            | Mutation::WritePacked { ino, .. }
            | Mutation::Fallocate { ino, .. } => self.admit_change(*ino),
        }
    }

    /// All records of an inode, in each of its directories, must change together.
    fn admit_change(&self, ino: Ino) -> Result<(), FsError> {
        if self.unresolved_links.has(ino) { Err(FsError::Busy) } else { Ok(()) }
    }

    fn admit_removal(&self, ino: Ino) -> Result<(), FsError> {
        if self.is_complete(ino) { self.admit_change(ino) } else { Err(FsError::Busy) }
    }

    /// Adds a new file.
    fn new_file(&mut self, ino: Ino, file: &FileBacking) {
        self.requeue(false, ino, None, file.dirty.as_ref().map(|dirty| dirty.since));
        self.files.insert(&ino, file);
    }

    fn change_file(&mut self, ino: Ino, change: impl FnOnce(&mut FileBacking)) {
        let since = |file: &FileBacking| file.dirty.as_ref().map(|dirty| dirty.since);
        let changed = self.files.change(&ino, |file| {
            let before = since(file);
            change(file);
            (before, since(file))
        });
        if let Some((before, after)) = changed {
            self.requeue(false, ino, before, after);
        }
    }

    fn change_dir(&mut self, ino: Ino, change: impl FnOnce(&mut DirBacking)) {
        let since = |dir: &DirBacking| dir.dirty.as_ref().map(|dirty| dirty.since);
        let changed = self.dirs.change(&ino, |dir| {
            let before = since(dir);
            change(dir);
            (before, since(dir))
        });
        if let Some((before, after)) = changed {
            self.requeue(true, ino, before, after);
        }
    }

    fn requeue(&mut self, is_dir: bool, ino: Ino, before: Option<Time>, after: Option<Time>) {
        if before != after {
            if let Some(since) = before {
                self.queue.remove(&(since, is_dir, ino));
            }
            if let Some(since) = after {
                self.queue.insert(&(since, is_dir, ino), &());
            }
        }
    }
}

impl DirBacking {
    fn native() -> DirBacking {
        DirBacking {
            load: Load::Native,
            epoch: 0,
            prefix: None,
            recorded: false,
            stored: false,
            marked: false,
            page: None,
            dirty: None,
        }
    }

    fn has_page(&self) -> bool {
        self.stored || self.dirty.is_some()
    }
}

fn is_reserved(dir: Ino, name: &Name) -> bool {
    dir == Ino::ROOT && name.as_bytes() == keys::RESERVED.as_bytes()
}

fn admit_name(dir: Ino, name: &Name) -> Result<(), FsError> {
    if is_reserved(dir, name) || keys::is_escaped(name) {
        Err(FsError::AccessDenied)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
