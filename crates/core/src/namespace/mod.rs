//! The namespace: inodes and dentries of a partition (C-9, C-10) with POSIX semantics. It has no
//! knowledge of bytes or buckets. Each operation has a file of its own.
//!
//! Laws:
//! - A dentry refers to an existing inode (C-14). Every inode except the root has a dentry, or
//!   unloaded names, or is an orphan: `nlink` 0, empty if it is a directory, held open by a
//!   session.
//! - An orphan can get a name only if it never had one.
//! - The links of an inode are exactly the dentries that refer to it. For a non-directory `nlink`
//!   is `>=` their number (unloaded names count). A directory has one link; its `nlink` is 2 plus
//!   its loaded subdirectories, without the trash.
//! - Every directory is below the root.
//! - `hashes` leads to every name in `dentries`, and to nothing else.
//! - The cookies of a directory grow. A rename over a name keeps the target's cookie, so a
//!   directory stream in progress shows the name once. A rename within a directory to a new name
//!   keeps the source's cookie: with a new one, a program that renames every name it reads would
//!   never reach the end.
//! - An inode in the trash has one name, in the trash, and a directory there is empty. Exactly
//!   these inodes have the attribute [`TRASHED`].
//! - An inode id is never reused.
//! - A refused operation changes nothing: it validates everything before the first change.
//!
//! Only commands change it, through [`crate::partition::Partition::apply`]. A change raises the
//! version of the inode to at least that of its stamp; versions never decrease.
//! [`Namespace::check`] verifies all laws that one state can show.

mod access;
mod acl;
mod check;
mod entry;
mod fallocate;
mod flags;
mod hold;
mod ids;
mod install;
mod item;
mod link;
mod links;
mod lookup;
mod make;
mod packed;
mod pin;
pub mod policy;
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
pub use ids::IdDraw;
pub(crate) use ids::Ids;
pub use item::{Inconsistent, InodeItem, NamespaceItem};
pub use quota::{Count, QUOTA};
pub use readdir::FIRST_COOKIE;
pub use trash::{TRASHED, trash_name, trashed_name};

use crate::tree::Tree;
use bytes::Bytes;
use ebb_model::*;
use links::Links;
use quota::Quotas;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use trash::require_no_trash;

/// Inodes and dentries, with their indices. Laws in the module header.
#[derive(Clone)]
pub struct Namespace {
    pub(crate) inodes: Tree<Ino, Inode>,
    /// By directory and cookie: the directory streams.
    pub(crate) dentries: Tree<(Ino, Cookie), Entry>,
    pub(crate) links: Links,
    /// Cookies of the names with this hash, by directory and hash.
    pub(crate) hashes: Tree<(Ino, u32), Vec<Cookie>>,
    /// Orphan inodes, with the sessions that hold them.
    pub(crate) orphans: BTreeMap<Ino, BTreeSet<SessionId>>,
    /// Orphans that were created without a name and can get one.
    pub(crate) linkable: BTreeSet<Ino>,
    pub(crate) ids: Ids,
    pub(crate) quotas: Quotas,
}

/// An inode, and the position of its primary name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    pub attr: Attr,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Inherited from the directory that the inode was made in.
    pub policy: PolicyId,
    /// Target of a symbolic link.
    pub target: Bytes,
    /// The inode's oldest name, which is primary.
    pub first: Option<Link>,
    /// Number of loaded names.
    pub names: u32,
    /// Age of the youngest of several names; otherwise 0.
    pub(crate) last_age: u64,
    /// Last assigned cookie of a directory.
    pub last_cookie: Cookie,
}

/// Position of a dentry in its directory's stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Link {
    pub parent: Ino,
    pub cookie: Cookie,
}

/// The inode that a name refers to, and the name's position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dentry {
    pub ino: Ino,
    pub kind: FileKind,
    pub cookie: Cookie,
}

/// A dentry, keyed by its position in the directory stream.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: Name,
    pub ino: Ino,
    pub kind: FileKind,
}

/// An existing name: its position, and the inode that it refers to.
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
    pub fn new(ids: IdRange, root: InstalledRecord) -> Namespace {
        let root = Inode::recorded(Ino::ROOT, &Make::Directory, 0, root);
        let quotas = Quotas::new(&root);
        let mut inodes = Tree::new();
        inodes.insert(&Ino::ROOT, &root);
        let mut namespace = Namespace {
            inodes,
            dentries: Tree::new(),
            links: Links::default(),
            hashes: Tree::new(),
            orphans: BTreeMap::new(),
            linkable: BTreeSet::new(),
            ids: Ids::begin(ids),
            quotas,
        };
        namespace.note_drawn(Ino::ROOT);
        namespace
    }

    /// Executes a client's mutation, or refuses it without a change. Returns the attributes of the
    /// inode created, linked, changed or written.
    pub fn mutate(
        &mut self,
        mutation: &Mutation,
        op: &mut Operation,
    ) -> Result<Option<Attr>, FsError> {
        self.may_discard(op)?;
        match self.within_quotas(mutation) {
            Ok(()) => self.carry_out(mutation, op),
            // A quota error has the lowest precedence: run the mutation on a copy for any other
            // error.
            Err(refusal) => {
                let mut tried = Operation { trash: None, changes: &mut Vec::new(), ..*op };
                self.clone().carry_out(mutation, &mut tried).and(Err(refusal))
            }
        }
    }

    /// Like [`Namespace::mutate`], for a mutation that was acknowledged and lost in a power cut:
    /// quotas do not refuse it.
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
                self.unlink(*parent, name, holders, op).map(|()| self.removed_attr(op))
            }
            Mutation::Rmdir { parent, name, holders } => {
                self.rmdir(*parent, name, holders, op).map(|()| self.removed_attr(op))
            }
            Mutation::Rename { from, name, to, new_name, mode, holders } => self
                .rename((*from, name), (*to, new_name), *mode, holders, op)
                .map(|()| self.removed_attr(op)),
            Mutation::SetAttr { ino, set } => self.set_attr(*ino, set, false, op).map(Some),
            Mutation::Truncate { ino, set } => self.set_attr(*ino, set, true, op).map(Some),
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
            Mutation::Write { ino, offset, len_bytes, drop_set_id }
            | Mutation::WriteWhole { ino, offset, len_bytes, drop_set_id, .. }
            | Mutation::WriteSummed { ino, offset, len_bytes, drop_set_id, .. }
            | Mutation::WritePacked { ino, offset, len_bytes, drop_set_id, .. } => {
                self.write(*ino, (*offset, *len_bytes), *drop_set_id, op).map(Some)
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

    /// Last attributes of the inode that lost its last name.
    fn removed_attr(&self, op: &Operation) -> Option<Attr> {
        op.changes.iter().find_map(|change| match change {
            Change::Gone { attr, .. } => Some(attr.clone()),
            Change::Unlinked { ino, .. } => {
                self.inode(*ino).map(|inode| inode.attr).filter(|attr| attr.nlink == 0)
            }
            _ => None,
        })
    }
}

/// Context of a mutation, and the changes that it causes.
pub struct Operation<'a> {
    pub caller: &'a Caller,
    pub stamp: Stamp,
    /// Destination of inodes that lose their last name, if the trash keeps them.
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
            by_others: false,
            stamp: self.stamp,
        });
    }

    fn touched(&mut self, ino: Ino) {
        self.changes.push(Change::Touched { ino, stamp: self.stamp });
    }
}

/// A change of the namespace that extents, backing and caches follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A file was created without a name.
    Made { ino: Ino },
    /// `name` refers to `ino`. `primary`: it is the inode's primary name.
    Linked { parent: Ino, name: Name, ino: Ino, primary: bool, stamp: Stamp },
    /// `name` no longer refers to `ino`. `primary`: it was the primary name; the oldest remaining
    /// name replaces it. `by_others`: another writer has removed the object from the bucket.
    Unlinked { parent: Ino, name: Name, ino: Ino, primary: bool, by_others: bool, stamp: Stamp },
    /// Attributes or extended attributes other than the size changed.
    Touched { ino: Ino, stamp: Stamp },
    /// Bytes were written.
    Written { ino: Ino, offset: u64, len_bytes: u64, stamp: Stamp },
    /// A range became zeros. `edges` are partly zeroed blocks of which a node has the bytes; whole
    /// blocks of the range become holes. A range that reaches the end of the file includes
    /// its last block.
    Zeroed { ino: Ino, range: Range<u64>, edges: Vec<u64>, stamp: Stamp },
    /// The size was set. `has_edge`: a node has the bytes of the block that the new end is in.
    Resized { ino: Ino, old_bytes: u64, new_bytes: u64, has_edge: bool, stamp: Stamp },
    /// The inode has neither name nor holder and was removed. `attr`: its last attributes.
    Gone { ino: Ino, attr: Attr },
    /// The inode was evicted; it is clean in the bucket.
    Forgotten { ino: Ino },
}

impl Change {
    /// The inodes whose cached attributes or names the change made stale.
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
