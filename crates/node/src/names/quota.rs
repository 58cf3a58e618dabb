//! Quotas: who sets them and asks for them, what statfs(2) says, and when what is below a root
//! is counted. The rules are the namespace's.
//!
//! What has not been loaded from the bucket is not known and does not count. So everything at
//! and below a quota root is loaded in the background, from when the quota is set or the root is
//! found again; until that is done its count is what is known so far, and `counted` says so.

use crate::Node;
use crate::admin::path_bytes;
use crate::clients::mutate::MutationContext;
use crate::signal::Signal;
use ebb_core::namespace::Namespace;
use ebb_model::*;
use futures_util::FutureExt;
use futures_util::future::{Either, select, try_join_all};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Quotas {
    /// Roots below which everything is known. A directory that is complete stays so; others may
    /// put directories into it that are not.
    counted: RefCell<BTreeSet<Ino>>,
    /// There is a root of which that is not known.
    set: Signal,
    /// By how much files are about to grow whose bytes are on their way, by root.
    reserved: RefCell<BTreeMap<Ino, u64>>,
    /// What the bucket had room for when it was last asked.
    bucket_room: Cell<Option<u64>>,
}

/// What is free where the bucket has no end.
const FREE_BYTES: u64 = 1 << 50;
const FREE_FILES: u64 = 1 << 32;

/// How long the bucket may take to say what it has room for.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Room that a file is about to grow into, until its growth is in the state or has failed.
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
    /// The answer is given when the quota survives a power cut.
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
        if limits.is_some() && self.unknown_below(dir).is_empty() {
            self.quotas.counted.borrow_mut().insert(dir);
        }
        self.quotas.set.raise();
        self.quotas_of(path).await
    }

    pub(crate) async fn quotas_of(self: &Rc<Self>, path: &[Name]) -> Result<AdminReply, RpcError> {
        let ino = self.walk(path).await?;
        let state = self.replica.view();
        let namespace = state.namespace();
        let chain = namespace.quota_chain(self.innermost(namespace, ino));
        Ok(AdminReply::Quotas(
            chain.filter_map(|root| self.quota_status(namespace, root)).collect(),
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
        let mut quotas: Vec<QuotaStatus> =
            below.filter_map(|root| self.quota_status(namespace, root)).take_while(fits).collect();
        quotas.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(AdminReply::Quotas(quotas))
    }

    /// The root that limits what is made in a directory, or what any other inode grows by.
    fn innermost(&self, namespace: &Namespace, ino: Ino) -> Option<Ino> {
        let is_dir =
            namespace.inode(ino).is_some_and(|inode| inode.attr.kind == FileKind::Directory);
        if is_dir { namespace.quota_root(ino) } else { namespace.counts_in(ino) }
    }

    fn quota_status(&self, namespace: &Namespace, root: Ino) -> Option<QuotaStatus> {
        let (limits, used) = namespace.quota(root)?;
        let path = path_bytes(&namespace.path_of(root)?);
        Some(QuotaStatus {
            path,
            ino: root,
            limits,
            used,
            counted: self.quotas.counted.borrow().contains(&root),
        })
    }

    /// The innermost quota that an inode counts in.
    pub(crate) fn innermost_quota(&self, namespace: &Namespace, ino: Ino) -> Option<QuotaStatus> {
        self.quota_status(namespace, self.innermost(namespace, ino)?)
    }

    /// How much of `len_bytes` at `offset` the quotas allow to be written to a file of
    /// `size_bytes`, with the room for it set aside. What is repeated was allowed before.
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
            let reserved = self.quotas.reserved.borrow();
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
        let mut reserved = self.quotas.reserved.borrow_mut();
        roots.iter().for_each(|root| *reserved.entry(*root).or_default() += bytes);
        Ok((end - offset, Some(Growth { quotas: &self.quotas, roots, bytes })))
    }

    /// As [`Node::grow`], of a file that is to be `len_bytes` long or not changed at all.
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

    /// Of the innermost quota that a directory is at or below, or a file in: its limits are the
    /// size, what counts in it is used, and what is available is the least that all quotas above
    /// leave. What it does not limit is the volume's.
    pub(crate) async fn stat(&self, ino: Ino) -> VolumeStat {
        let volume = self.stat_volume().await;
        let state = self.replica.view();
        let namespace = state.namespace();
        let Some(root) = self.innermost(namespace, ino) else { return volume };
        let mut stat = volume;
        // From the outside in: the innermost limit counts.
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

    /// What is used are the files that are known so far, and besides there is what the bucket has
    /// room for: where that has no end, always [`FREE_BYTES`]. Without a bucket the cache is all
    /// there is.
    pub(crate) async fn stat_volume(&self) -> VolumeStat {
        let room_bytes = self.bucket_room().await;
        let state = self.replica.view();
        let used = state.namespace().usage();
        let (total_bytes, free_bytes) = if self.bucket.is_some() {
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

    /// A store that does not answer keeps nobody waiting: it has what it had.
    async fn bucket_room(&self) -> Option<u64> {
        let mut asked = self.bucket.as_ref()?.room_bytes();
        let answer = match (&mut asked).now_or_never() {
            Some(answer) => answer.ok(),
            None => match select(asked, self.ports.clock.sleep(ROOM_TIMEOUT)).await {
                Either::Left((answer, _)) => answer.ok(),
                Either::Right(_) => None,
            },
        };
        if let Some(room_bytes) = answer {
            self.quotas.bucket_room.set(room_bytes);
        }
        self.quotas.bucket_room.get()
    }

    /// Loads what is below quota roots, so that it counts.
    pub(crate) async fn count_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            let set = self.quotas.set.wait();
            let failed = self.count_quotas().await.err();
            let pause = if failed.is_some() { RETRY } else { REST };
            self.trouble(
                "quota",
                failed.map(|error| {
                    format!("not all that is below a quota root could be counted: {error}")
                }),
            );
            // A root that comes from the bucket is found in time, and so is the end of the node.
            match select(pin!(set), pin!(self.ports.clock.sleep(pause))).await {
                Either::Left(((), _)) | Either::Right(((), _)) => {}
            }
        }
    }

    async fn count_quotas(&self) -> Result<(), RpcError> {
        // What clients bring back may yet move across a border.
        if self.attachments.awaits_any() {
            return Ok(());
        }
        loop {
            let root = {
                let state = self.replica.view();
                let mut counted = self.quotas.counted.borrow_mut();
                counted.retain(|root| state.namespace().quota(*root).is_some());
                state.namespace().quota_roots().find(|root| !counted.contains(root))
            };
            let Some(root) = root else { return Ok(()) };
            loop {
                let unknown = self.unknown_below(root);
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
            self.quotas.counted.borrow_mut().insert(root);
        }
    }

    /// A directory was found in `dir` of which nothing is known yet.
    pub(crate) fn found_below(&self, dir: Ino) {
        let state = self.replica.view();
        let namespace = state.namespace();
        for root in namespace.quota_chain(namespace.quota_root(dir)) {
            self.quotas.counted.borrow_mut().remove(&root);
            self.quotas.set.raise();
        }
    }

    fn unknown_below(&self, root: Ino) -> Vec<Ino> {
        let state = self.replica.view();
        let mut dirs = state.namespace().directories_below(root);
        dirs.retain(|dir| !state.backing().is_complete(*dir));
        dirs
    }
}

/// Directories that are listed at one time: a background task leaves the store to others.
const LOADS_AT_ONCE: usize = 8;

/// After what the bucket did not answer.
const RETRY: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(1);

/// What is listed in one answer, so that it fits a frame.
const MAX_LIST_BYTES: usize = 512 << 10;

/// What an entry takes beside its path.
const STATUS_BYTES: usize = 64;
