//! The namespace: inodes and dentries of a partition (C-9, C-10), POSIX to the letter and
//! ignorant of bytes and buckets. Each operation has a file of its own.
//!
//! Laws:
//! - A dentry refers to an inode that exists (C-14), and every inode other than the root
//!   has a dentry, or names that are not loaded yet, or is an orphan: `nlink` 0, empty if it
//!   is a directory, held open by a session.
//! - An orphan gets a name again only if it never had one.
//! - The links of an inode are the dentries that refer to it. For what is not a directory, `nlink`
//!   is at least their number (names that are not loaded yet count); a directory has one,
//!   and `nlink` 2 plus its loaded subdirectories, the trash not among them.
//! - Every directory is below the root.
//! - `hashes` leads to every name in `dentries`, and to nothing else.
//! - Cookies that a directory gives out grow, and a name keeps its own when a rename makes it
//!   refer to another inode, since a directory stream in progress is to show it once. Only a
//!   name that a rename makes within the directory has the cookie of another, which it
//!   replaces: were it at the end, who renames all that a stream shows would never come there.
//! - What is in the trash has one name, there, and is empty if it is a directory. Only such has the
//!   attribute [`TRASHED`].
//! - An inode id is never reused.
//! - An operation that is refused has changed nothing: it validates all before it changes.
//!
//! [`Namespace::check`] proves all of them that can be seen in one state.

mod access;
mod acl;
mod check;
mod entry;
mod fallocate;
mod flags;
mod hold;
mod install;
mod item;
mod link;
mod links;
mod lookup;
mod make;
mod packed;
mod pin;
mod quota;
mod readdir;
mod rename;
mod rmdir;
mod setattr;
mod tmpfile;
mod trash;
mod unlink;
mod write;
mod xattr;

pub use fallocate::zero_span;
pub use item::{Inconsistent, InodeItem, NamespaceItem};
pub use quota::{Count, QUOTA};
pub use readdir::FIRST_COOKIE;
pub use trash::{TRASHED, trash_name, trashed_name};

use crate::extent::sums_of_touched;
use crate::tree::Tree;
use bytes::Bytes;
use ebb_model::*;
use links::Links;
use quota::Quotas;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use trash::require_no_trash;

#[derive(Clone)]
pub struct Namespace {
    pub(crate) inodes: Tree<Ino, Inode>,
    /// By directory and cookie: the directory stream.
    pub(crate) dentries: Tree<(Ino, Cookie), Entry>,
    pub(crate) links: Links,
    /// Where names of this hash are in the directory.
    pub(crate) hashes: Tree<(Ino, u32), Vec<Cookie>>,
    /// Inodes without a name, with the sessions that hold them.
    pub(crate) orphans: BTreeMap<Ino, BTreeSet<SessionId>>,
    /// Orphans that were made without a name and may still get one.
    pub(crate) linkable: BTreeSet<Ino>,
    pub(crate) incarnation: Incarnation,
    /// The next counter of an inode id in each slot that has any.
    pub(crate) counters: BTreeMap<Slot, u32>,
    pub(crate) quotas: Quotas,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    pub attr: Attr,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Of a symbolic link.
    pub target: Bytes,
    /// Where the oldest of the inode's names is.
    pub first: Option<Link>,
    /// How many of them are known.
    pub names: u32,
    /// Of the youngest of several names; otherwise 0.
    pub(crate) last_age: u64,
    /// Of a directory: the last cookie given out.
    pub last_cookie: Cookie,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Link {
    pub parent: Ino,
    pub cookie: Cookie,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dentry {
    pub ino: Ino,
    pub kind: FileKind,
    pub cookie: Cookie,
}

/// A dentry at its place in the directory stream.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: Name,
    pub ino: Ino,
    pub kind: FileKind,
}

/// A name that is in a directory: where, and what it refers to.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a Name,
    link: Link,
    ino: Ino,
    kind: FileKind,
}

impl Entry {
    pub fn at(&self, cookie: Cookie) -> Dentry {
        Dentry { ino: self.ino, kind: self.kind, cookie }
    }
}

impl Namespace {
    /// An empty volume.
    pub fn new(incarnation: Incarnation, root: InstalledRecord) -> Namespace {
        let root = Inode::recorded(Ino::ROOT, &Make::Directory, 0, root);
        let quotas = Quotas::new(&root);
        let mut inodes = Tree::new();
        inodes.insert(&Ino::ROOT, &root);
        Namespace {
            inodes,
            dentries: Tree::new(),
            links: Links::default(),
            hashes: Tree::new(),
            orphans: BTreeMap::new(),
            linkable: BTreeSet::new(),
            incarnation,
            counters: BTreeMap::from([(Ino::ROOT.slot(), Ino::ROOT.counter() + 1)]),
            quotas,
        }
    }

    /// Carries out what a client asks for, or refuses it and changes nothing. Answers with
    /// the attributes of the inode made, linked, changed or written.
    pub fn mutate(
        &mut self,
        mutation: &Mutation,
        op: &mut Operation,
    ) -> Result<Option<Attr>, FsError> {
        self.may_discard(op)?;
        match self.within_quotas(mutation) {
            Ok(()) => self.carry_out(mutation, op),
            // Whatever else is wrong with it is said first.
            Err(refusal) => {
                let mut tried = Operation { trash: None, changes: &mut Vec::new(), ..*op };
                self.clone().carry_out(mutation, &mut tried).and(Err(refusal))
            }
        }
    }

    /// As [`Namespace::mutate`], of what was carried out before and lost since: no quota refuses
    /// it.
    pub fn repeat(
        &mut self,
        mutation: &Mutation,
        op: &mut Operation,
    ) -> Result<Option<Attr>, FsError> {
        self.may_discard(op)?;
        let crosses = self.within_quotas(mutation) == Err(FsError::CrossDevice);
        let done = self.carry_out(mutation, op);
        if crosses && done.is_ok() {
            self.count_anew();
        }
        done
    }

    fn carry_out(
        &mut self,
        mutation: &Mutation,
        op: &mut Operation,
    ) -> Result<Option<Attr>, FsError> {
        require_no_trash(mutation)?;
        match mutation {
            Mutation::Make { parent, name, ino, mode, what } => {
                self.make(*parent, name, *ino, *mode, what, op).map(Some)
            }
            Mutation::Link { ino, parent, name } => self.link(*ino, *parent, name, op).map(Some),
            Mutation::Unlink { parent, name, holders } => {
                self.unlink(*parent, name, holders, op).map(|()| self.parted(op))
            }
            Mutation::Rmdir { parent, name, holders } => {
                self.rmdir(*parent, name, holders, op).map(|()| self.parted(op))
            }
            Mutation::Rename { from, name, to, new_name, mode, holders } => self
                .rename((*from, name), (*to, new_name), *mode, holders, op)
                .map(|()| self.parted(op)),
            Mutation::SetAttr { ino, set } => self.set_attr(*ino, set, op).map(Some),
            Mutation::SetXattr { ino, name, value, .. } if name == InodeFlags::ATTRIBUTE => {
                self.set_flags(*ino, value, op).map(Some)
            }
            Mutation::SetXattr { ino, name, value, mode } => {
                self.set_xattr(*ino, name, value, *mode, op).map(Some)
            }
            Mutation::SetAcl { ino, class, value, drop_set_gid } => {
                self.set_acl(*ino, *class, value, *drop_set_gid, op).map(Some)
            }
            Mutation::RemoveXattr { ino, name } => self.remove_xattr(*ino, name, op).map(Some),
            Mutation::Write { ino, offset, len_bytes, sums, drop_set_id } => {
                self.write(*ino, (*offset, *len_bytes), sums, *drop_set_id, None, op).map(Some)
            }
            Mutation::WritePacked { ino, offset, len_bytes, sums, drop_set_id, range } => self
                .write(*ino, (*offset, *len_bytes), sums, *drop_set_id, Some(*range), op)
                .map(Some),
            Mutation::WriteWhole { ino, offset, len_bytes, sums, drop_set_id } => {
                let sums = sums_of_touched(*offset, *len_bytes, sums);
                self.write(*ino, (*offset, *len_bytes), &sums, *drop_set_id, None, op).map(Some)
            }
            Mutation::Tmpfile { parent, ino, mode, holder } => {
                self.tmpfile(*parent, *ino, *mode, *holder, op).map(Some)
            }
            Mutation::Fallocate { ino, offset, len_bytes, what, keep_size, edges, drop_set_id } => {
                self.fallocate(
                    *ino,
                    (*offset, *len_bytes),
                    (*what, *keep_size),
                    edges,
                    *drop_set_id,
                    op,
                )
                .map(Some)
            }
        }
    }

    /// What a removal has left no name of, as it is, or was at the end.
    fn parted(&self, op: &Operation) -> Option<Attr> {
        op.changes.iter().find_map(|change| match change {
            Change::Gone { attr, .. } => Some(attr.clone()),
            Change::Unlinked { ino, .. } => {
                self.inode(*ino).map(|inode| inode.attr).filter(|attr| attr.nlink == 0)
            }
            _ => None,
        })
    }
}

/// What an operation is carried out for, and what comes of it.
pub struct Operation<'a> {
    pub caller: &'a Caller,
    pub stamp: Stamp,
    /// Where what loses its last name goes, if it is kept.
    pub trash: Option<&'a TrashTarget>,
    pub changes: &'a mut Vec<Change>,
}

impl Operation<'_> {
    fn linked(&mut self, parent: Ino, name: &Name, ino: Ino, primary: bool) {
        self.changes.push(Change::Linked {
            parent,
            name: name.clone(),
            ino,
            primary,
            stamp: self.stamp,
        });
    }

    fn unlinked(&mut self, parent: Ino, name: &Name, ino: Ino, primary: bool) {
        self.changes.push(Change::Unlinked {
            parent,
            name: name.clone(),
            ino,
            primary,
            stamp: self.stamp,
        });
    }

    fn touched(&mut self, ino: Ino) {
        self.changes.push(Change::Touched { ino, stamp: self.stamp });
    }
}

/// A fact about the namespace that extents, bucket and caches follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A file was made that has no name yet.
    Made { ino: Ino },
    /// `name` now refers to `ino`. `primary`: it is the inode's first name.
    Linked { parent: Ino, name: Name, ino: Ino, primary: bool, stamp: Stamp },
    /// `name` no longer refers to `ino`. `primary`: it was the inode's first name; if others
    /// are left, the oldest of them is now.
    Unlinked { parent: Ino, name: Name, ino: Ino, primary: bool, stamp: Stamp },
    /// Attributes or extended attributes other than the size changed.
    Touched { ino: Ino, stamp: Stamp },
    /// Bytes were written; they are in the store file, or in the range of a pack file that the file
    /// got for them. `sums` are of the blocks that were touched.
    Written {
        ino: Ino,
        offset: u64,
        len_bytes: u64,
        sums: Vec<Option<u32>>,
        packed: Option<PackRange>,
        stamp: Stamp,
    },
    /// A range became zeros: `edges` are blocks that the store file has so, whole blocks of
    /// the range become holes. One that reaches the end of the file takes all of its last
    /// block along.
    Zeroed { ino: Ino, range: Range<u64>, edges: Vec<u64>, stamp: Stamp },
    /// The size was set.
    Resized { ino: Ino, old_bytes: u64, new_bytes: u64, stamp: Stamp },
    /// The inode has neither name nor holder and has been removed. `attr`: as it was at the end.
    Gone { ino: Ino, attr: Attr },
    /// The bucket says all about the inode, which is known here no longer.
    Forgotten { ino: Ino },
}

impl Change {
    /// The inodes of which a cache may hold something that the change made stale.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        let (first, second) = match *self {
            Change::Linked { parent, ino, .. } | Change::Unlinked { parent, ino, .. } => {
                (Some(ino), Some(parent))
            }
            Change::Made { ino }
            | Change::Touched { ino, .. }
            | Change::Written { ino, .. }
            | Change::Zeroed { ino, .. }
            | Change::Resized { ino, .. }
            | Change::Gone { ino, .. } => (Some(ino), None),
            Change::Forgotten { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }
}
