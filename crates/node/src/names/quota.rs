//! Quotas: how they are set and queried, the answer to statfs(2), and when the content of a root is
//! counted. The rules are the namespace's.
//!
//! Entries that have not been loaded from the bucket are unknown and do not count. So everything at
//! and below a quota root is loaded in the background, from when the quota is set or the root is
//! found again. Until that is done its count covers the known entries, and `counted` is false.

use crate::Node;
use crate::admin::path_bytes;
use crate::clients::mutate::MutationContext;
use ebb_core::namespace::Namespace;
use ebb_core::state::State;
use ebb_model::*;
use ebb_ports::Signal;
use futures_util::FutureExt;
use futures_util::future::{Either, select, try_join_all};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Quotas {
    /// Roots below which everything is known. A directory that is complete stays so; external
    /// directories may appear in it that are not complete.
    counted: RefCell<BTreeSet<Ino>>,
    /// Raised when a root is added that is not counted yet.
    set: Signal,
    /// The growth of files with bytes still on their way, by root.
    reserved: RefCell<BTreeMap<Ino, u64>>,
    /// The room in the bucket at its last answer.
    bucket_room: Cell<Option<u64>>,
}

impl Quotas {
    pub fn status(&self, namespace: &Namespace, root: Ino) -> Option<QuotaStatus> {
        let (limits, used) = namespace.quota(root)?;
        let path = path_bytes(&namespace.path_of(root)?);
        let counted = self.counted.borrow().contains(&root);
        Some(QuotaStatus { path, ino: root, limits, used, counted })
    }

    /// The innermost quota that an inode counts in.
    pub fn innermost(&self, namespace: &Namespace, ino: Ino) -> Option<QuotaStatus> {
        self.status(namespace, innermost_root(namespace, ino)?)
    }

    /// A directory was found in `dir` that is not loaded yet.
    pub fn found_below(&self, namespace: &Namespace, dir: Ino) {
        for root in namespace.quota_chain(namespace.quota_root(dir)) {
            self.counted.borrow_mut().remove(&root);
            self.set.raise();
        }
    }
}

/// Reported as free where the bucket is unlimited.
const FREE_BYTES: u64 = 1 << 50;
const FREE_FILES: u64 = 1 << 32;

/// The time limit for the bucket to report its room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Room for the growth of a file, held until the growth is in the state or has failed.
pub(crate) struct Growth<'a> {
    quotas: &'a Quotas,
    roots: Vec<Ino>,
    bytes: u64,
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut reserved = self.quotas.reserved.borrow_mut();
        for root in &self.roots {
            if let Some(bytes) = reserved.get_mut(root) {
                *bytes -= self.bytes;
            }
        }
        reserved.retain(|_, bytes| *bytes > 0);
    }
}

impl Node {
    /// Answers when the quota survives a power cut.
    pub(crate) async fn set_quota(
        self: &Rc<Self>,
        path: &[Name],
        limits: Option<QuotaLimits>,
    ) -> Result<AdminReply, RpcError> {
        self.expect_changeable()?;
        let dir = self.walk(path).await?;
        self.see_all_names(dir).await?;
        self.commit_stamped(|state, stamp| {
            self.expect_running()?;
            state.namespace().may_have_quota(dir, limits)?;
            Ok(Command::Quota { dir, limits, stamp })
        })
        .await?;
        self.force_log().await?;
        if limits.is_some() && unknown_below(&self.replica.view(), dir).is_empty() {
            self.names.quotas.counted.borrow_mut().insert(dir);
        }
        self.names.quotas.set.raise();
        self.quotas_of(path).await
    }

    pub(crate) async fn quotas_of(self: &Rc<Self>, path: &[Name]) -> Result<AdminReply, RpcError> {
        let ino = self.walk(path).await?;
        let state = self.replica.view();
        let namespace = state.namespace();
        let chain = namespace.quota_chain(innermost_root(namespace, ino));
        Ok(AdminReply::Quotas(
            chain.filter_map(|root| self.names.quotas.status(namespace, root)).collect(),
        ))
    }

    pub(crate) async fn list_quotas(
        self: &Rc<Self>,
        path: &[Name],
    ) -> Result<AdminReply, RpcError> {
        let top = self.walk(path).await?;
        let state = self.replica.view();
        let namespace = state.namespace();
        let mut room = MAX_LIST_BYTES;
        let fits = |quota: &QuotaStatus| {
            let fits = quota.path.len() + STATUS_BYTES <= room;
            room = room.saturating_sub(quota.path.len() + STATUS_BYTES);
            fits
        };
        let below = namespace.quota_roots().filter(|root| self.is_below(*root, top));
        let mut quotas: Vec<QuotaStatus> = below
            .filter_map(|root| self.names.quotas.status(namespace, root))
            .take_while(fits)
            .collect();
        quotas.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(AdminReply::Quotas(quotas))
    }

    /// How much of `len_bytes` at `offset` the quotas allow to be written to a file of
    /// `size_bytes`, with the room for it set aside. A replayed write was allowed before.
    pub(crate) fn grow(
        &self,
        order: &MutationContext,
        ino: Ino,
        size_bytes: u64,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(u64, Option<Growth<'_>>), FsError> {
        if let Some(replay) = order.replay {
            return Ok((replay.len_bytes.map_or(len_bytes, |len| len.min(len_bytes)), None));
        }
        let end = offset.saturating_add(len_bytes);
        if end <= size_bytes || len_bytes == 0 {
            return Ok((len_bytes, None));
        }
        let state = self.replica.view();
        let namespace = state.namespace();
        let innermost = namespace.counts_in(ino);
        if innermost.is_none() {
            return Ok((len_bytes, None));
        }
        let room = {
            let reserved = self.names.quotas.reserved.borrow();
            namespace
                .quota_room(innermost, |root| reserved.get(&root).copied().unwrap_or(0))
                .unwrap_or(u64::MAX)
        };
        let end = end.min(size_bytes.saturating_add(room));
        if end <= offset {
            return Err(FsError::QuotaExceeded);
        }
        let (roots, bytes) =
            (namespace.quota_chain(innermost).collect::<Vec<_>>(), end.saturating_sub(size_bytes));
        let mut reserved = self.names.quotas.reserved.borrow_mut();
        roots.iter().for_each(|root| *reserved.entry(*root).or_default() += bytes);
        Ok((end - offset, Some(Growth { quotas: &self.names.quotas, roots, bytes })))
    }

    /// As [`Node::grow`], for a file that gets a length of `len_bytes` or is not changed at all.
    pub(crate) fn grow_to(
        &self,
        order: &MutationContext,
        ino: Ino,
        size_bytes: u64,
        len_bytes: u64,
    ) -> Result<Option<Growth<'_>>, FsError> {
        let more = len_bytes.saturating_sub(size_bytes);
        if order.replay.is_some() || more == 0 {
            return Ok(None);
        }
        let (allowed, growth) = self.grow(order, ino, size_bytes, size_bytes, more)?;
        if allowed < more { Err(FsError::QuotaExceeded) } else { Ok(growth) }
    }

    /// The statistics of the innermost quota that a directory is at or below, or a file in. The
    /// size is its limit, the used part is its count, and the available part is the least that all
    /// quotas above leave. A value that it does not limit is the volume's.
    pub(crate) async fn stat(&self, ino: Ino) -> VolumeStat {
        let volume = self.stat_volume().await;
        let state = self.replica.view();
        let namespace = state.namespace();
        let Some(root) = innermost_root(namespace, ino) else { return volume };
        let mut stat = volume;
        // From the outside in: the innermost limit wins.
        let chain: Vec<Ino> = namespace.quota_chain(Some(root)).collect();
        for (limits, used) in chain.into_iter().rev().filter_map(|root| namespace.quota(root)) {
            if let Some(limit) = limits.bytes {
                (stat.total_bytes, stat.free_bytes) = (limit, limit.saturating_sub(used.bytes));
            }
            if let Some(limit) = limits.inodes {
                (stat.files, stat.free_files) = (limit, limit.saturating_sub(used.inodes));
            }
        }
        let room = namespace.quota_room(Some(root), |_| 0).unwrap_or(u64::MAX);
        stat.available_bytes = volume.available_bytes.min(room).min(stat.free_bytes);
        stat
    }

    /// The used part is the files known so far. The free part is the bucket's room: where that is
    /// unlimited, always [`FREE_BYTES`]. Without a bucket the size is that of the cache.
    pub(crate) async fn stat_volume(&self) -> VolumeStat {
        let room_bytes = self.bucket_room().await;
        let state = self.replica.view();
        let used = state.namespace().usage();
        let (total_bytes, free_bytes) = if self.buckets.is_some() {
            let free_bytes = room_bytes.map_or(FREE_BYTES, |room_bytes| {
                room_bytes.saturating_sub(state.extents().dirty_bytes())
            });
            (used.bytes.saturating_add(free_bytes), free_bytes)
        } else {
            (
                self.options.cache_bytes,
                self.options.cache_bytes.saturating_sub(state.extents().resident_bytes()),
            )
        };
        VolumeStat {
            total_bytes,
            free_bytes,
            available_bytes: free_bytes,
            files: used.inodes + FREE_FILES,
            free_files: FREE_FILES,
        }
    }

    /// A store that does not answer delays no caller: its last answer is used.
    async fn bucket_room(&self) -> Option<u64> {
        let mut asked = self.buckets.all()?.room_bytes();
        let answer = match (&mut asked).now_or_never() {
            Some(answer) => answer.ok(),
            None => match select(asked, self.ports.clock.sleep(ROOM_TIMEOUT)).await {
                Either::Left((answer, _)) => answer.ok(),
                Either::Right(_) => None,
            },
        };
        if let Some(room_bytes) = answer {
            self.names.quotas.bucket_room.set(room_bytes);
        }
        self.names.quotas.bucket_room.get()
    }

    /// Loads the entries below quota roots, so that they count.
    pub(crate) async fn count_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            let set = self.names.quotas.set.wait();
            let failed = self.count_quotas().await.err();
            let pause = if failed.is_some() { RETRY } else { REST };
            self.trouble(
                "quota",
                failed.map(|error| {
                    format!("not all that is below a quota root could be counted: {error}")
                }),
            );
            // The pause bounds the delay after a root from the bucket, and after the node's stop.
            match select(pin!(set), pin!(self.ports.clock.sleep(pause))).await {
                Either::Left(((), _)) | Either::Right(((), _)) => {}
            }
        }
    }

    async fn count_quotas(&self) -> Result<(), RpcError> {
        // Replays of clients may yet move entries across a border.
        if self.attachments.awaits_sole() {
            return Ok(());
        }
        loop {
            let root = {
                let state = self.replica.view();
                let mut counted = self.names.quotas.counted.borrow_mut();
                counted.retain(|root| state.namespace().quota(*root).is_some());
                state.namespace().quota_roots().find(|root| !counted.contains(root))
            };
            let Some(root) = root else { return Ok(()) };
            loop {
                let unknown = unknown_below(&self.replica.view(), root);
                if unknown.is_empty() {
                    break;
                }
                for dirs in unknown.chunks(LOADS_AT_ONCE) {
                    if self.is_stopping() {
                        return Ok(());
                    }
                    try_join_all(dirs.iter().map(|dir| self.complete(*dir))).await?;
                }
            }
            self.names.quotas.counted.borrow_mut().insert(root);
        }
    }
}

/// The root that limits new entries of a directory, or the growth of any other inode.
fn innermost_root(namespace: &Namespace, ino: Ino) -> Option<Ino> {
    let is_dir = namespace.inode(ino).is_some_and(|inode| inode.attr.kind == FileKind::Directory);
    if is_dir { namespace.quota_root(ino) } else { namespace.counts_in(ino) }
}

/// The directories below a quota root whose names are not all known.
fn unknown_below(state: &State, root: Ino) -> Vec<Ino> {
    let mut dirs = state.namespace().directories_below(root);
    dirs.retain(|dir| !state.backing().is_complete(*dir));
    dirs
}

/// Directories that are listed at one time: a background task leaves the store to requests.
const LOADS_AT_ONCE: usize = 8;

/// Pause after a request that the bucket did not answer.
const RETRY: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(1);

/// The bytes of one answer's list, so that it fits a frame.
const MAX_LIST_BYTES: usize = 512 << 10;

/// The size of an entry beside its path.
const STATUS_BYTES: usize = 64;
