//! Quotas: a directory with limits is a quota root, counts what is below it, and refuses what
//! would go beyond. Every rule about them is here; the other operations only say what came,
//! went, changed its length or its place.
//!
//! Laws:
//! - The roots are the directories with a name that have the attribute [`QUOTA`]. The limits are
//!   nowhere else, and so in the log, in snapshots and in the pages of the bucket.
//! - What is below a root counts in it and in every root above it; a root counts in those above
//!   it only. Of a file its length counts, holes included, as `du` shows it on ebb.
//! - An inode counts once, where its first name is. One whose names have gone, or are not loaded
//!   yet, counts where it did before (`strays`): in a root at that time or, if that was removed,
//!   in the next one above it.
//! - rename and link never lead from one innermost root to another, so no count ever moves with
//!   a subtree. A name that had been beyond the border before it was drawn may stay there, and
//!   takes its inode along when it becomes the first.
//! - Limits are asked when something is to grow, and only of what is to grow: a count may be
//!   above its limit because that was set lower, or because more was found in the bucket.

use super::xattr::require_room;
use super::{Change, Inode, Link, Namespace, NamespaceItem};
use crate::tree::Tree;
use bytes::Bytes;
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The attribute that makes a directory a quota root. It is not shown as an extended attribute
/// and cannot be set as one. Its value is `version u8 = 1 | bytes u64 | inodes u64`, little
/// endian; the largest number is no limit.
pub const QUOTA: &[u8] = b"ebb.quota";
const VERSION: u8 = 1;
const NO_LIMIT: u64 = u64::MAX;

#[derive(Clone, Default)]
pub(crate) struct Quotas {
    /// What is below each root.
    roots: BTreeMap<Ino, Count>,
    /// The innermost root in which an inode without a loaded name counts.
    strays: BTreeMap<Ino, Ino>,
    /// Of everything but the root directory of the volume.
    volume: Count,
}

/// More than [`Usage`] can say: a million of the longest files have 2^64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Count {
    bytes: u128,
    inodes: u64,
}

impl Count {
    fn of(inode: &Inode) -> Count {
        let is_file = inode.attr.kind == FileKind::Regular;
        Count { bytes: if is_file { inode.attr.size_bytes.into() } else { 0 }, inodes: 1 }
    }

    fn add(&mut self, other: Count) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }

    fn take(&mut self, other: Count) {
        self.bytes -= other.bytes;
        self.inodes -= other.inodes;
    }

    fn usage(self) -> Usage {
        Usage { bytes: self.bytes.try_into().unwrap_or(u64::MAX), inodes: self.inodes }
    }
}

/// What is asked and shown.
impl Namespace {
    /// The innermost quota root that the directory is, or is below.
    pub fn quota_root(&self, dir: Ino) -> Option<Ino> {
        if self.quotas.roots.is_empty() {
            return None;
        }
        let mut at = dir;
        while !self.quotas.roots.contains_key(&at) {
            at = self.parent_of(at).filter(|parent| *parent != at)?;
        }
        Some(at)
    }

    /// The innermost quota root in which the inode counts; of a root the one above it.
    pub fn counts_in(&self, ino: Ino) -> Option<Ino> {
        if self.quotas.roots.is_empty() {
            return None;
        }
        match self.inode(ino)?.first {
            Some(link) => self.quota_root(link.parent),
            None => self.quotas.strays.get(&ino).copied(),
        }
    }

    /// The root, if there is one, and all that are above it.
    pub fn quota_chain(&self, innermost: Option<Ino>) -> impl Iterator<Item = Ino> {
        std::iter::successors(innermost, |root| self.counts_in(*root))
    }

    pub fn quota_roots(&self) -> impl Iterator<Item = Ino> {
        self.quotas.roots.keys().copied()
    }

    /// Limits and count of a quota root.
    pub fn quota(&self, root: Ino) -> Option<(QuotaLimits, Usage)> {
        Some((self.limits(root), self.quotas.roots.get(&root)?.usage()))
    }

    /// What is known of the volume, without its root directory.
    pub fn usage(&self) -> Usage {
        self.quotas.volume.usage()
    }

    /// By how many bytes a file may grow that counts in `innermost`, where others are about to
    /// grow by what `reserved` says of each root. `None`: nothing limits it.
    pub fn quota_room(&self, innermost: Option<Ino>, reserved: impl Fn(Ino) -> u64) -> Option<u64> {
        let room = |root: Ino| {
            let taken = self.quotas.roots.get(&root)?.bytes.saturating_add(reserved(root).into());
            Some(u128::from(self.limits(root).bytes?).saturating_sub(taken) as u64)
        };
        self.quota_chain(innermost).filter_map(room).min()
    }

    /// Of how many more inodes there is room in `innermost`.
    fn quota_inode_room(&self, innermost: Option<Ino>) -> Option<u64> {
        let room = |root: Ino| {
            Some(self.limits(root).inodes?.saturating_sub(self.quotas.roots.get(&root)?.inodes))
        };
        self.quota_chain(innermost).filter_map(room).min()
    }

    fn limits(&self, root: Ino) -> QuotaLimits {
        self.inode(root).and_then(|inode| inode.quota()).unwrap_or_default()
    }
}

/// What is allowed.
impl Namespace {
    /// Refuses what would go beyond a limit, or across the border of a root. Says nothing of
    /// what is wrong for other reasons.
    pub(super) fn within_quotas(&self, mutation: &Mutation) -> Result<(), FsError> {
        if self.quotas.roots.is_empty() {
            return Ok(());
        }
        match mutation {
            Mutation::Make { parent, .. } | Mutation::Tmpfile { parent, .. } => {
                self.may_make_in(*parent)
            }
            Mutation::Fallocate { ino, offset, len_bytes, keep_size: false, .. } => {
                self.may_be_as_long(*ino, offset.saturating_add(*len_bytes))
            }
            Mutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size_bytes), .. } } => {
                self.may_be_as_long(*ino, *size_bytes)
            }
            Mutation::Link { ino, parent, .. } => {
                self.on_one_side(self.counts_in(*ino), self.quota_root(*parent))
            }
            Mutation::Rename { from, name, to, new_name, mode, .. } => {
                let (source, target) = (self.dentry(*from, name), self.dentry(*to, new_name));
                if source.zip(target).is_some_and(|(source, target)| source.ino == target.ino) {
                    return Ok(());
                }
                self.on_one_side(self.quota_root(*from), self.quota_root(*to))?;
                if mode.makes() { self.may_make_in(*from) } else { Ok(()) }
            }
            _ => match mutation.span() {
                Some((ino, offset, len_bytes)) if len_bytes > 0 => {
                    self.may_be_as_long(ino, offset.saturating_add(len_bytes))
                }
                _ => Ok(()),
            },
        }
    }

    fn may_make_in(&self, dir: Ino) -> Result<(), FsError> {
        require(self.quota_inode_room(self.quota_root(dir)).is_none_or(|room| room > 0))
    }

    fn may_be_as_long(&self, ino: Ino, len_bytes: u64) -> Result<(), FsError> {
        let size_bytes = self.inode(ino).map_or(0, |inode| inode.attr.size_bytes);
        let growth = len_bytes.saturating_sub(size_bytes);
        require(
            growth == 0
                || self.quota_room(self.counts_in(ino), |_| 0).is_none_or(|room| growth <= room),
        )
    }

    /// Refuses an inode that is to count in `innermost` from now on, and for which there is no
    /// room.
    pub(super) fn may_count_in(&self, ino: Ino, innermost: Option<Ino>) -> Result<(), FsError> {
        let count = self.inode(ino).map_or(Count::default(), |inode| Count::of(&inode));
        let counted: BTreeSet<Ino> = self.quota_chain(self.counts_in(ino)).collect();
        let fits = |root: Ino| {
            let (limits, used) =
                (self.limits(root), self.quotas.roots.get(&root).copied().unwrap_or_default());
            let bytes = count.bytes == 0
                || limits.bytes.is_none_or(|limit| used.bytes + count.bytes <= limit.into());
            bytes && limits.inodes.is_none_or(|limit| used.inodes + count.inodes <= limit)
        };
        require(self.quota_chain(innermost).filter(|root| !counted.contains(root)).all(fits))
    }

    fn on_one_side(&self, a: Option<Ino>, b: Option<Ino>) -> Result<(), FsError> {
        if a == b { Ok(()) } else { Err(FsError::CrossDevice) }
    }

    /// Whether the directory can get these limits, or lose those that it has.
    pub fn may_have_quota(&self, dir: Ino, limits: Option<QuotaLimits>) -> Result<(), FsError> {
        self.directory(dir)?;
        match limits {
            None if self.quotas.roots.contains_key(&dir) => Ok(()),
            None => Err(FsError::NoAttribute),
            Some(limits) if Inode::quota_of(&quota_value(limits)).is_none() => {
                Err(FsError::Invalid)
            }
            Some(limits) => {
                require_room(&self.inode(dir).ok_or(FsError::Stale)?, QUOTA, &quota_value(limits))
            }
        }
    }

    /// Makes the directory a root, changes its limits or ends its quota. All that is below it is
    /// counted here and now. What was removed from there before and is still open is not.
    pub fn set_quota(
        &mut self,
        dir: Ino,
        limits: Option<QuotaLimits>,
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) -> Result<(), FsError> {
        self.may_have_quota(dir, limits)?;
        self.change_inode(dir, |inode| {
            match limits {
                Some(limits) => {
                    drop(inode.xattrs.insert(Bytes::from_static(QUOTA), quota_value(limits)))
                }
                None => drop(inode.xattrs.remove(QUOTA)),
            }
            inode.changed(stamp);
        });
        changes.push(Change::Touched { ino: dir, stamp });
        if limits.is_none() {
            let outer = self.counts_in(dir);
            self.end_root(dir, outer);
        } else if !self.quotas.roots.contains_key(&dir) {
            let count = self.count_below(dir);
            self.quotas.roots.insert(dir, count);
        }
        Ok(())
    }
}

/// What is counted.
impl Namespace {
    /// An inode was made or found, with its name.
    pub(super) fn count_in(&mut self, ino: Ino) {
        let Some(inode) = self.inode(ino) else { return };
        let (count, is_root) = (Count::of(&inode), inode.quota().is_some());
        self.count(self.counts_in(ino), |sum| sum.add(count));
        if is_root {
            self.quotas.roots.insert(ino, Count::default());
        }
    }

    /// As [`Namespace::count_in`] of each, of files that are new in `dir`.
    pub(super) fn count_in_at_once(&mut self, dir: Ino, files: &[Inode]) {
        self.count(self.quota_root(dir), |sum| {
            files.iter().for_each(|file| sum.add(Count::of(file)))
        });
    }

    /// An inode has gone that counted in `innermost`.
    pub(super) fn count_out(&mut self, innermost: Option<Ino>, inode: &Inode) {
        let count = Count::of(inode);
        self.count(innermost, |sum| sum.take(count));
    }

    /// An inode without a name has gone.
    pub(super) fn count_out_stray(&mut self, inode: &Inode) {
        let innermost = self.quotas.strays.remove(&inode.attr.ino);
        self.count_out(innermost, inode);
    }

    /// A file was made without a name in `dir`, or has never been seen elsewhere.
    pub(super) fn count_in_stray(&mut self, ino: Ino, dir: Ino) {
        if let Some(root) = self.quota_root(dir) {
            self.quotas.strays.insert(ino, root);
        }
        self.count_in(ino);
    }

    /// A file has another length than `old_bytes`.
    pub(super) fn count_resized(&mut self, ino: Ino, old_bytes: u64) {
        let new_bytes = self.inode(ino).map_or(0, |inode| inode.attr.size_bytes);
        if new_bytes != old_bytes {
            self.count(self.counts_in(ino), |sum| {
                sum.bytes = sum.bytes + u128::from(new_bytes) - u128::from(old_bytes)
            });
        }
    }

    /// An inode that counted in `before` has got a name or lost one.
    pub(super) fn count_renamed(&mut self, ino: Ino, before: Option<Ino>) {
        let Some(inode) = self.inode(ino) else { return };
        let count = Count::of(&inode);
        if inode.first.is_none() {
            if let Some(root) = before {
                self.quotas.strays.insert(ino, root);
            }
            return;
        }
        self.quotas.strays.remove(&ino);
        let after = self.counts_in(ino);
        if after != before {
            self.count(before, |sum| sum.take(count));
            self.count(after, |sum| sum.add(count));
        }
    }

    /// `dir` is no quota root any more. What counted in it without a name counts in `outer`.
    pub(super) fn end_root(&mut self, dir: Ino, outer: Option<Ino>) {
        if self.quotas.roots.remove(&dir).is_none() {
            return;
        }
        let strays = &mut self.quotas.strays;
        match outer {
            Some(outer) => {
                strays.values_mut().filter(|root| **root == dir).for_each(|root| *root = outer)
            }
            None => strays.retain(|_, root| *root != dir),
        }
    }

    /// Something was moved across the border of a root.
    pub(super) fn count_anew(&mut self) {
        let roots: Vec<Ino> = self.quota_roots().collect();
        for root in roots {
            let count = self.count_below(root);
            self.quotas.roots.insert(root, count);
        }
    }

    fn count(&mut self, innermost: Option<Ino>, change: impl Fn(&mut Count)) {
        change(&mut self.quotas.volume);
        if innermost.is_some() {
            let chain: Vec<Ino> = self.quota_chain(innermost).collect();
            for root in chain {
                if let Some(count) = self.quotas.roots.get_mut(&root) {
                    change(count);
                }
            }
        }
    }

    fn count_below(&self, root: Ino) -> Count {
        let mut found = Count::default();
        let mut todo = vec![root];
        while let Some(dir) = todo.pop() {
            for (cookie, entry) in self.stream(dir, Cookie::START) {
                let Some(inode) = self.inode(entry.ino) else { continue };
                if inode.first == Some(Link { parent: dir, cookie }) {
                    found.add(Count::of(&inode));
                    todo.extend((inode.attr.kind == FileKind::Directory).then_some(inode.attr.ino));
                }
            }
        }
        let within =
            self.quotas.strays.iter().filter(|(_, counted_in)| self.is_within(**counted_in, root));
        within
            .filter_map(|(ino, _)| self.inode(*ino))
            .for_each(|inode| found.add(Count::of(&inode)));
        found
    }

    /// Directories at and below `dir`.
    pub fn directories_below(&self, dir: Ino) -> Vec<Ino> {
        let mut found = vec![dir];
        let mut at = 0;
        while let Some(dir) = found.get(at).copied() {
            let children = self.stream(dir, Cookie::START).map(|(_, child)| child);
            found.extend(
                children.filter(|child| child.kind == FileKind::Directory).map(|child| child.ino),
            );
            at += 1;
        }
        found
    }
}

/// Snapshots and proof.
impl Namespace {
    pub(super) fn quota_items(&self) -> impl Iterator<Item = NamespaceItem> {
        let roots = self
            .quotas
            .roots
            .iter()
            .map(|(root, count)| NamespaceItem::Quota { root: *root, count: *count });
        roots.chain(
            self.quotas
                .strays
                .iter()
                .map(|(ino, root)| NamespaceItem::Stray { ino: *ino, root: *root }),
        )
    }

    /// Broken laws, in words, of a namespace in which the others hold.
    pub(super) fn check_quotas(&self) -> impl Iterator<Item = String> {
        let volume = (self.quotas.volume != Quotas::volume_of(&self.inodes))
            .then(|| "what is on the volume is counted wrongly".into());
        let attributes = self.inodes.iter().filter_map(|(ino, inode)| {
            let has_quota = inode.quota().is_some();
            if inode.xattrs.contains_key(QUOTA) != has_quota {
                return Some(format!(
                    "inode {ino}: has a quota that cannot be read, or is no directory"
                ));
            }
            let is_root = has_quota && inode.attr.nlink > 0;
            (is_root != self.quotas.roots.contains_key(&ino))
                .then(|| format!("inode {ino}: has a quota and does not count, or the reverse"))
        });
        let strays = self.quotas.strays.iter().filter_map(|(ino, root)| {
            let nameless = self.inode(*ino).is_some_and(|inode| inode.first.is_none());
            (!nameless || !self.quotas.roots.contains_key(root))
                .then(|| format!("inode {ino} counts without a name in {root}, wrongly"))
        });
        let roots = self.quotas.roots.iter().filter_map(|(root, count)| {
            let found = self.inode(*root).map(|_| self.count_below(*root));
            (found != Some(*count))
                .then(|| format!("quota root {root} counts {count:?} and has {found:?}"))
        });
        volume.into_iter().chain(attributes).chain(strays).chain(roots)
    }
}

impl Quotas {
    pub(super) fn restore_root(&mut self, root: Ino, count: Count) -> bool {
        self.roots.insert(root, count).is_some()
    }

    pub(super) fn restore_stray(&mut self, ino: Ino, root: Ino) -> bool {
        self.strays.insert(ino, root).is_some()
    }

    /// To be called once all inodes are there.
    pub(super) fn restore_volume(&mut self, inodes: &Tree<Ino, Inode>) {
        self.volume = Quotas::volume_of(inodes);
    }

    /// Of a volume with nothing but its root directory.
    pub(super) fn new(root: &Inode) -> Quotas {
        let mut quotas = Quotas::default();
        if root.quota().is_some() {
            quotas.roots.insert(root.attr.ino, Count::default());
        }
        quotas
    }

    fn volume_of(inodes: &Tree<Ino, Inode>) -> Count {
        let mut sum = Count::default();
        inodes
            .iter()
            .filter(|(ino, _)| *ino != Ino::ROOT)
            .for_each(|(_, inode)| sum.add(Count::of(&inode)));
        sum
    }
}

impl Inode {
    /// The limits of a directory that has a quota.
    fn quota(&self) -> Option<QuotaLimits> {
        let value = self.xattrs.get(QUOTA).filter(|_| self.attr.kind == FileKind::Directory)?;
        Inode::quota_of(value)
    }

    fn quota_of(value: &[u8]) -> Option<QuotaLimits> {
        let (bytes, inodes) = value.strip_prefix(&[VERSION])?.split_first_chunk()?;
        let limit =
            |number: [u8; 8]| Some(u64::from_le_bytes(number)).filter(|number| *number != NO_LIMIT);
        let limits = QuotaLimits { bytes: limit(*bytes), inodes: limit(inodes.try_into().ok()?) };
        (limits != QuotaLimits::default()).then_some(limits)
    }

    /// Drops what a page says of a quota that there cannot be.
    pub(super) fn settle_quota(&mut self) {
        if self.quota().is_none() {
            self.xattrs.remove(QUOTA);
        }
    }
}

fn quota_value(limits: QuotaLimits) -> Bytes {
    let numbers =
        [limits.bytes, limits.inodes].map(|limit| limit.unwrap_or(NO_LIMIT).to_le_bytes());
    [&[VERSION][..], numbers.as_flattened()].concat().into()
}

fn require(fits: bool) -> Result<(), FsError> {
    if fits { Ok(()) } else { Err(FsError::QuotaExceeded) }
}
