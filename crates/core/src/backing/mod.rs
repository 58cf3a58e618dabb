//! Backing: what the bucket holds of the namespace, and what must still be done to it.
//!
//! Every key has one owner at a time. A file's object is at its *home*: the path's own key,
//! or an explicit one for as long as the object has not followed its file (`homes`). A
//! directory's objects are below its *prefix*: the path's own, or an explicit one after a
//! rename (`redirects`), so that renaming a directory touches no object. What is to be
//! deleted waits in `deletes` (O-83), what is being written in `uploads`. Together these are the
//! claim table.
//!
//! Laws:
//! - [`Backing::observe`] and [`Backing::apply`] alone change it.
//! - Nothing is put to a key that another file's home, a pending delete or another upload
//!   claims; nothing is deleted that is a home or is being uploaded.
//! - `homes` and `redirects` are exactly the explicit homes and prefixes; none of them is
//!   what the path says anyway.
//! - `queue` is exactly the files and pages that are dirty, by the time since when. Content is
//!   dirty with its file, attributes with the page that they are in (O-37).
//! - An object is always known: from before its first byte is sent (`uploads`), as a home,
//!   or in `deletes`. A crash at any point leaks none.
//! - A name that was removed from a directory that a listing may add names to stays in
//!   `removed`, so that none brings it back, however old.
//! - What is said in a piece of a page changes with the mark of that piece (`pieces`).
//! - A directory of which anything is recorded is recorded in its parent, up to the root.
//! - Files without a bucket: nothing of this is kept, every directory is complete.

mod apply;
mod check;
mod follow;
mod forget;
mod install;
pub mod keys;
mod listing;
mod mend;
mod nest;
mod pace;
mod page;
mod pieces;
mod plan;
mod prove;
mod rebuild;
mod revalidate;
mod snapshot;
mod unseen;

pub use forget::Forgettable;
pub use keys::{page_key, piece_key};
pub use listing::{
    Interpreted, Listed, Listing, Part, Scope, are_agreed, end_of_part, pieces_of_listing,
    pieces_of_name,
};
pub use pace::Pace;
pub use page::{Drafted, PageDraft, PageParts};
pub use pieces::found_pieces;
pub use plan::{Dirt, DirtyWork, FlushStep, LoadPlan, LookupPlan, PageState, PageStep};
pub use prove::{Claimed, ClaimedPage, Owner, Reserved};
pub use rebuild::{Loss, Object};
pub use revalidate::Standing;
pub use snapshot::BackingItem;

use crate::namespace::{Dentry, Inode, Namespace};
use crate::tree::{Tree, values};
use ebb_model::*;
use pieces::AllPieces;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use unseen::Unseen;

#[derive(Clone)]
pub struct Backing {
    backed: bool,
    files: Tree<Ino, FileBacking>,
    dirs: Tree<Ino, DirBacking>,
    /// Also of inodes that have gone meanwhile.
    uploads: BTreeMap<Ino, Upload>,
    /// Key to the tag of the object that is to go; `None` deletes whatever is there.
    deletes: Tree<String, Option<String>>,
    homes: Tree<String, Ino>,
    redirects: Tree<String, Ino>,
    /// Segments below a directory's prefix that belong to another's redirect.
    hidden: Tree<(Ino, String), ()>,
    /// Segments that were hidden and are nobody's any more, until the directory is complete.
    former: Tree<(Ino, String), ()>,
    /// Names that directories had and lost before they were complete.
    removed: Tree<(Ino, Name), ()>,
    unseen: Unseen,
    pieces: AllPieces,
    /// Inodes with many names, all of which are marked in `pieces`: only for speed.
    marked: BTreeSet<Ino>,
    queue: Tree<Turn, ()>,
}

/// Oldest first, files before directories: a page is written after what it speaks of.
type Turn = (Time, bool, Ino);

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileBacking {
    home: Option<Home>,
    dirty: Option<Dirty>,
    /// The directory's page has or is to get an entry.
    recorded: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Home {
    /// `None`: the path's own key.
    pub key: Option<String>,
    pub etag: String,
    pub len_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dirty {
    pub since: Time,
    /// Version of the last change of content that the home does not have.
    pub content: Option<Version>,
    /// The home is not where the path says.
    pub moving: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirBacking {
    load: Load,
    /// An answer to a question asked in another epoch is not installed.
    epoch: u64,
    prefix: Option<String>,
    recorded: bool,
    /// The bucket may hold a page.
    stored: bool,
    /// The bucket may hold an object at the prefix itself.
    marked: bool,
    /// Tag of the page that was written last.
    page: Option<String>,
    dirty: Option<PageDirty>,
}

/// How much of a directory the namespace has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Load {
    /// Made here: there is nothing in the bucket that the namespace does not have.
    Native,
    Unknown,
    /// All keys up to and with this one.
    UpTo(String),
    Complete,
    /// Complete as of an earlier listing. A newer one may add names.
    Revalidating,
}

values!(FileBacking, DirBacking);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageDirty {
    pub since: Time,
    /// Changed again since the write under way began.
    again: bool,
}

/// A write to the bucket that has begun, of a file's object or a directory's page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Upload {
    pub key: String,
    pub upload: Option<String>,
    /// What is sent is what the file is then, or later. A value of its own in snapshots, behind the
    /// upload.
    #[serde(skip)]
    pub since: Version,
    /// Of a directory: its marker, which is written with the page.
    pub marker: Option<String>,
    /// Tag of the file's object at another key, of which it may be a copy.
    pub from: Option<String>,
    /// A run of before has begun it, and it was not to be seen by the next one's start.
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
    /// `backed`: there is a bucket, whose names are still unknown.
    pub fn new(backed: bool) -> Backing {
        let mut backing = Backing {
            backed,
            files: Tree::new(),
            dirs: Tree::new(),
            uploads: BTreeMap::new(),
            deletes: Tree::new(),
            homes: Tree::new(),
            redirects: Tree::new(),
            hidden: Tree::new(),
            former: Tree::new(),
            removed: Tree::new(),
            unseen: Unseen::default(),
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

    pub fn memory_bytes(&self) -> usize {
        let inodes = self.files.bytes() + self.dirs.bytes() + self.queue.bytes();
        let keys = self.deletes.bytes() + self.homes.bytes() + self.redirects.bytes();
        let names = self.hidden.bytes()
            + self.former.bytes()
            + self.removed.bytes()
            + self.unseen.memory_bytes();
        inodes + keys + names + self.pieces_bytes()
    }

    /// Below what key the directory's objects are. `None` for one that is not in the tree.
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

    /// The prefix that the path gives the directory.
    fn own_prefix(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        let (parent, name) = namespace.primary_name(dir)?;
        Some(keys::own_prefix(&self.prefix_of(namespace, parent)?, &name, dir))
    }

    /// The key that the path gives the file: that of its primary name. `None` without a name.
    fn key_of(&self, namespace: &Namespace, ino: Ino) -> Option<String> {
        let (parent, name) = namespace.primary_name(ino)?;
        Some(keys::own_key(&self.prefix_of(namespace, parent)?, &name, ino))
    }

    /// The key and tag of the object that holds the file's clean bytes.
    pub fn home(&self, namespace: &Namespace, ino: Ino) -> Option<(String, Home)> {
        let home = self.files.get(&ino)?.home?;
        let key = home.key.clone().or_else(|| self.key_of(namespace, ino))?;
        Some((key, home))
    }

    pub fn home_key(&self, namespace: &Namespace, ino: Ino) -> Option<String> {
        self.home(namespace, ino).map(|(key, _)| key)
    }

    /// The file whose home is at `key`.
    pub fn owner(&self, namespace: &Namespace, key: &str) -> Option<Ino> {
        let (prefix, segment) = keys::split(key);
        let by_path = || {
            self.owner_in(namespace, self.dir_at(namespace, prefix)?, &keys::name_of(segment)?, key)
        };
        let by_inode = || {
            keys::long_of(key).filter(|ino| self.home_key(namespace, *ino).as_deref() == Some(key))
        };
        self.homes.get(&key.to_string()).or_else(by_path).or_else(by_inode)
    }

    /// The same of the key that a name of the directory has.
    fn owner_of(&self, namespace: &Namespace, dir: Ino, name: &Name, key: &str) -> Option<Ino> {
        self.homes.get(&key.to_string()).or_else(|| self.owner_in(namespace, dir, name, key))
    }

    fn owner_in(&self, namespace: &Namespace, dir: Ino, name: &Name, key: &str) -> Option<Ino> {
        let ino = namespace.dentry(dir, name)?.ino;
        (self.home_key(namespace, ino).as_deref() == Some(key)).then_some(ino)
    }

    /// The directory whose objects are below `prefix`, if it is known.
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

    pub fn files(&self) -> impl Iterator<Item = Ino> {
        self.files.iter().map(|(ino, _)| ino)
    }

    /// What of a file the bucket does not have.
    pub fn dirty(&self, ino: Ino) -> Option<Dirty> {
        self.files.get(&ino)?.dirty
    }

    pub fn is_complete(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_none_or(|dir| {
            matches!(dir.load, Load::Native | Load::Complete | Load::Revalidating)
        })
    }

    /// Whether a listing may add names to the directory.
    fn is_open(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|dir| !matches!(dir.load, Load::Native | Load::Complete))
    }

    /// Whether the bucket has told all names of the directory.
    pub fn is_listed(&self, dir: Ino) -> bool {
        self.dirs
            .get(&dir)
            .is_some_and(|dir| matches!(dir.load, Load::Complete | Load::Revalidating))
    }

    /// Whether nothing of the directory has been listed yet.
    pub fn is_untouched(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|dir| dir.load == Load::Unknown)
    }

    /// Whether a name that the namespace does not have is in the bucket neither.
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
        // What only a page in pieces knows comes in the order of names, which is another one where
        // a segment stands for a name.
        if last.strip_prefix(&prefix).is_some_and(|last| name.as_bytes() > last.as_bytes()) {
            return false;
        }
        listed(name) && keys::shadowing(name).is_none_or(|shadowing| listed(&shadowing))
    }

    /// Names of the inode that must be looked up before it can be changed, as directory and
    /// name. A directory that is not in the namespace is found by the parents that pages tell.
    pub fn unseen_names(&self, ino: Ino) -> Vec<(Ino, Name)> {
        self.unseen.of(ino)
    }

    fn awaits(&self, ino: Ino, dir: Ino, name: &Name) -> bool {
        self.unseen.contains(ino, dir, name)
    }

    /// Refuses what the bucket does not allow, or not yet: [`FsError::Busy`] asks the node to
    /// complete a directory or to look up all names of an inode first.
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
                find(*from, name).map_or(Ok(()), |dentry| self.admit_change(dentry.ino))?;
                match find(*to, new_name) {
                    Some(dentry) if mode.replaces() => self.admit_removal(dentry.ino),
                    Some(dentry) => self.admit_change(dentry.ino),
                    None => Ok(()),
                }
            }
            Mutation::SetAttr { ino, .. }
            | Mutation::SetXattr { ino, .. }
            | Mutation::SetAcl { ino, .. }
            | Mutation::RemoveXattr { ino, .. }
            | Mutation::Write { ino, .. }
            | Mutation::WriteWhole { ino, .. }
            | Mutation::WritePacked { ino, .. }
            | Mutation::Fallocate { ino, .. } => self.admit_change(*ino),
        }
    }

    /// The records of an inode in all its directories must change together.
    fn admit_change(&self, ino: Ino) -> Result<(), FsError> {
        if self.unseen.has(ino) { Err(FsError::Busy) } else { Ok(()) }
    }

    fn admit_removal(&self, ino: Ino) -> Result<(), FsError> {
        if self.is_complete(ino) { self.admit_change(ino) } else { Err(FsError::Busy) }
    }

    /// Of one that nothing is known of.
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
    if is_reserved(dir, name) || keys::is_borrowed(name) {
        Err(FsError::AccessDenied)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
