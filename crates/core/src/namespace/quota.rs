//! Quotas: a directory with limits is a quota root. It counts its subtree and refuses growth beyond
//! the limits. All quota rules are here; other operations only report additions, removals, resizes
//! and moves.
//!
//! Laws:
//! - The roots are exactly the named directories with the attribute [`QUOTA`], which alone stores
//!   the limits. So they are in the log, in snapshots and in directory pages.
//! - An inode below a root counts in it and in every root above; a root counts only in those above
//!   it. A file counts with its length, holes included, as `du` shows it on ebb.
//! - An inode counts once, at its primary name. An inode without a loaded name counts where it did
//!   last (`strays`): in the root of that time or, if that ended, in the next one above.
//! - rename and link never cross the border of an innermost root, so a subtree never changes its
//!   root. A name that was outside before the border was drawn can stay there; if it becomes
//!   primary the inode's count follows it.
//! - Limits apply only to growth. A count can exceed its limit if the limit was lowered, or if the
//!   bucket held more than was loaded.

use super::xattr::require_room;
use super::{Change, Inode, Link, Namespace, NamespaceItem};
use crate::tree::Tree;
use bytes::Bytes;
use ebb_model::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The attribute of a quota root, hidden from applications. Its value is `version u8 = 1 | bytes
/// u64 | inodes u64`, little endian; the maximum number is no limit.
pub const QUOTA: &[u8] = b"ebb.quota";
const VERSION: u8 = 1;
const NO_LIMIT: u64 = u64::MAX;

#[derive(Clone, Default)]
pub(crate) struct Quotas {
    /// Count of the subtree of each root.
    roots: BTreeMap<Ino, Count>,
    /// The innermost root in which an inode without a loaded name counts.
    strays: BTreeMap<Ino, Ino>,
    /// Count of everything but the volume's root directory.
    volume: Count,
}

/// Wider than [`Usage`]: a million files of maximum length have 2^64 bytes.
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

/// Queries.
impl Namespace {
    /// The innermost quota root at or above the directory.
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

    /// The innermost quota root in which the inode counts; for a root the next one above.
    pub fn counts_in(&self, ino: Ino) -> Option<Ino> {
        if self.quotas.roots.is_empty() {
            return None;
        }
        match self.inode(ino)?.first {
            Some(link) => self.quota_root(link.parent),
            None => self.quotas.strays.get(&ino).copied(),
        }
    }

    /// The root, if there is one, and all roots above it.
    pub fn quota_chain(&self, innermost: Option<Ino>) -> impl Iterator<Item = Ino> {
        std::iter::successors(innermost, |root| self.counts_in(*root))
    }

    /// All quota roots, ordered by id.
    pub fn quota_roots(&self) -> impl Iterator<Item = Ino> {
        self.quotas.roots.keys().copied()
    }

    /// Limits and usage of a quota root.
    pub fn quota(&self, root: Ino) -> Option<(QuotaLimits, Usage)> {
        Some((self.limits(root), self.quotas.roots.get(&root)?.usage()))
    }

    /// Usage of the loaded part of the volume, without its root directory.
    pub fn usage(&self) -> Usage {
        self.quotas.volume.usage()
    }

    /// Bytes by which a file that counts in `innermost` can grow; `reserved` are the outstanding
    /// reservations of each root. `None`: no limit.
    pub fn quota_room(&self, innermost: Option<Ino>, reserved: impl Fn(Ino) -> u64) -> Option<u64> {
        let room = |root: Ino| {
            let taken = self.quotas.roots.get(&root)?.bytes.saturating_add(reserved(root).into());
            Some(u128::from(self.limits(root).bytes?).saturating_sub(taken) as u64)
        };
        self.quota_chain(innermost).filter_map(room).min()
    }

    /// Number of inodes that can be added to `innermost`.
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

/// Checks.
impl Namespace {
    /// Fails if the mutation would exceed a limit or cross the border of a root. Other errors are
    /// not checked here.
    pub(super) fn within_quotas(&self, mutation: &Mutation) -> Result<(), FsError> {
        if self.quotas.roots.is_empty() || Planted::QuotaIgnored.is_on() {
            return Ok(());
        }
        match mutation {
            Mutation::Make { parent, .. } | Mutation::Tmpfile { parent, .. } => {
                self.may_make_in(*parent)
            }
            Mutation::Fallocate { ino, offset, len_bytes, keep_size: false, .. } => {
                self.may_be_as_long(*ino, offset.saturating_add(*len_bytes))
            }
            Mutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size_bytes), .. } }
            | Mutation::Truncate { ino, set: SetAttr { size_bytes: Some(size_bytes), .. } } => {
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

    /// Fails if `innermost` has no space for an inode that is about to count in it.
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

    /// Whether the directory can get these limits, or lose its own.
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

    /// Makes the directory a root, changes its limits or removes its quota. Counts the subtree now.
    /// Orphans that were removed from the subtree before do not count.
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

/// Counting.
impl Namespace {
    /// An inode was created or loaded, with its name.
    pub(super) fn count_in(&mut self, ino: Ino) {
        let Some(inode) = self.inode(ino) else { return };
        let (count, is_root) = (Count::of(&inode), inode.quota().is_some());
        self.count(self.counts_in(ino), |sum| sum.add(count));
        if is_root {
            self.quotas.roots.insert(ino, Count::default());
        }
    }

    /// Equivalent to [`Namespace::count_in`] of each, for new files in `dir`.
    pub(super) fn count_in_at_once(&mut self, dir: Ino, files: &[Inode]) {
        self.count(self.quota_root(dir), |sum| {
            files.iter().for_each(|file| sum.add(Count::of(file)))
        });
    }

    /// An inode that counted in `innermost` was removed.
    pub(super) fn count_out(&mut self, innermost: Option<Ino>, inode: &Inode) {
        let count = Count::of(inode);
        self.count(innermost, |sum| sum.take(count));
    }

    /// An inode without a name was removed.
    pub(super) fn count_out_stray(&mut self, inode: &Inode) {
        let innermost = self.quotas.strays.remove(&inode.attr.ino);
        self.count_out(innermost, inode);
    }

    /// A file was created without a name in `dir`, or its names are not loaded.
    pub(super) fn count_in_stray(&mut self, ino: Ino, dir: Ino) {
        if let Some(root) = self.quota_root(dir) {
            self.quotas.strays.insert(ino, root);
        }
        self.count_in(ino);
    }

    /// A file changed its length from `old_bytes`.
    pub(super) fn count_resized(&mut self, ino: Ino, old_bytes: u64) {
        let new_bytes = self.inode(ino).map_or(0, |inode| inode.attr.size_bytes);
        if new_bytes != old_bytes {
            let twice = Planted::QuotaCountedTwice.is_on() && new_bytes > old_bytes;
            self.count(self.counts_in(ino), |sum| {
                sum.bytes += u128::from(if twice { new_bytes - old_bytes } else { 0 });
                sum.bytes = sum.bytes + u128::from(new_bytes) - u128::from(old_bytes)
            });
        }
    }

    /// An inode that counted in `before` got or lost a name.
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

    /// `dir` is not a quota root any more. Its strays count in `outer`.
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

    /// Recounts all roots after a move across the border of a root.
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

/// Snapshots and invariant check.
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

    /// Descriptions of broken laws, given that the other laws of the namespace hold.
    pub(super) fn check_quotas(&self) -> impl Iterator<Item = String> {
        let volume = (self.quotas.volume != Quotas::volume_of(&self.inodes))
            .then(|| "the usage of the volume is miscounted".into());
        let attributes = self.inodes.iter().filter_map(|(ino, inode)| {
            let has_quota = inode.quota().is_some();
            if inode.xattrs.contains_key(QUOTA) != has_quota {
                return Some(format!(
                    "inode {ino}: its quota is undecodable, or it is not a directory"
                ));
            }
            let is_root = has_quota && inode.attr.nlink > 0;
            (is_root != self.quotas.roots.contains_key(&ino))
                .then(|| format!("inode {ino}: its quota attribute and the set of roots disagree"))
        });
        let strays = self.quotas.strays.iter().filter_map(|(ino, root)| {
            let nameless = self.inode(*ino).is_some_and(|inode| inode.first.is_none());
            (!nameless || !self.quotas.roots.contains_key(root))
                .then(|| format!("inode {ino} counts as a stray of {root} without a reason"))
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

    /// Call after all inodes are restored.
    pub(super) fn restore_volume(&mut self, inodes: &Tree<Ino, Inode>) {
        self.volume = Quotas::volume_of(inodes);
    }

    /// Counts of a volume with only its root directory.
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
    /// The limits of a directory with a quota.
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

    /// Removes an invalid quota from a directory page.
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
