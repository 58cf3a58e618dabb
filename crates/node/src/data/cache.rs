//! The budget of the node's disk: room for new bytes is made by evicting clean ones, and by waiting
//! for the bucket where there are none.

use crate::Node;
use crate::clients::mutate::MutationContext;
use ebb_model::*;
use ebb_store::Mode;
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

const BLOCKS_PER_CHUNK: u64 = CHUNK_BYTES / BLOCK_BYTES;

/// Evicted at one time beyond the needed bytes, as a share of the budget: evictions force the log,
/// so they are made large and rare.
const EVICTION_SHARE: u64 = 64;

/// How long a task that makes room waits for a file that is being read or written. A task that
/// waits for the disk ends within this time. One that waits for a bucket may take an hour, and
/// clients of other files must not wait for that.
const TAKEN_PATIENCE: Duration = Duration::from_secs(2);

/// How often a writer that waits for room tries again to evict chunks that could not be evicted: no
/// signal announces that they can be.
const ROOM_POLL: Duration = Duration::from_secs(1);

impl Node {
    /// Makes room for the bytes of a mutation. A replayed mutation had its room when it was
    /// acknowledged, and the flusher, which could make more, waits until everything is replayed.
    pub(crate) async fn reserve_for(
        &self,
        context: &MutationContext,
        len_bytes: u64,
    ) -> Result<(), RpcError> {
        if context.replay.is_some() {
            self.reserve_clean(len_bytes).await
        } else {
            self.reserve(len_bytes).await
        }
    }

    /// Makes room for bytes that a client writes. Waits while too many bytes wait for the bucket,
    /// and refuses once that has lasted too long. Bytes of files without a name are only cached: no
    /// flush reduces them.
    async fn reserve(&self, len_bytes: u64) -> Result<(), RpcError> {
        let mut deadline = self.ports.clock.monotonic() + self.options.space_timeout;
        loop {
            self.reserve_clean(len_bytes).await?;
            if self.has_room_for_dirty(len_bytes) {
                return Ok(());
            }
            let now = self.ports.clock.monotonic();
            // Files that lack bytes of a client are not uploaded until it is back.
            if self.attachments.awaits_any() {
                deadline = now + self.options.space_timeout;
            }
            if self.buckets.is_none() || now >= deadline {
                self.data.cache.refused(len_bytes);
                let what = {
                    let state = self.replica.view();
                    let (orphans, resident) =
                        (state.orphan_bytes(), state.extents().resident_bytes());
                    let why = match self.data.cache.is_disk_small() {
                        true => {
                            ", for the disk of the data directory had no room for more when the \
                             node started: free some there and start \
                             it again, or mount with --data on another disk once everything is in \
                             the bucket"
                        }
                        false => "",
                    };
                    format!(
                        "{} wait for the bucket, {} are of files without a name, and {} are \
                         cached, which is all that is allowed{why}",
                        shown_bytes(state.extents().dirty_bytes() - orphans),
                        shown_bytes(orphans),
                        shown_bytes(resident)
                    )
                };
                self.trouble("room", Some(what));
                return Err(FsError::NoSpace.into());
            }
            let progress = Box::pin(self.flusher.progress());
            self.flusher.urge();
            let pause = self.ports.clock.sleep(ROOM_POLL.min(deadline - now));
            match self.waiting("room for dirty bytes", select(progress, pause)).await {
                Either::Left(_) | Either::Right(_) => {}
            }
        }
    }

    fn has_room_for_dirty(&self, len_bytes: u64) -> bool {
        let state = self.replica.view();
        let (dirty, resident) = (state.extents().dirty_bytes(), state.extents().resident_bytes());
        let budget = if self.buckets.is_some() {
            self.options.dirty_bytes
        } else {
            self.options.cache_bytes
        };
        // Bytes of orphans can be on other nodes.
        let may_wait = dirty + len_bytes <= budget
            || dirty.saturating_sub(state.orphan_bytes()) + len_bytes <= budget;
        may_wait && resident + len_bytes <= self.cache_budget()
    }

    /// The bytes that were last refused for want of room would be accepted now.
    pub(crate) fn has_room_again(&self) -> bool {
        self.has_room_for_dirty(self.data.cache.refused_bytes())
    }

    /// Makes room for bytes that come in clean. Where everything is dirty or in use they come in
    /// all the same: the budget of dirty bytes is below that of all bytes. A file that cannot be
    /// evicted is not reported as long as others can.
    pub(crate) async fn reserve_clean(&self, len_bytes: u64) -> Result<(), RpcError> {
        let over = |node: &Node| {
            let resident = node.replica.view().extents().resident_bytes();
            let within = resident + len_bytes <= node.options.cache_bytes;
            if within { 0 } else { (resident + len_bytes).saturating_sub(node.cache_budget()) }
        };
        if over(self) == 0 {
            return Ok(());
        }
        let turn = self.data.cache.turn().await;
        // Another task may have made room during the wait, which shows nothing about failures.
        if over(self) == 0 {
            return Ok(());
        }
        // Added to the order again at the end, or they would be chosen for ever.
        let (mut kept, mut taken, mut pinned) = (Vec::new(), Vec::new(), Vec::new());
        let mut failed = None;
        while over(self) > 0 && !self.is_of_all_files(&failed) {
            let wanted = over(self) + self.options.cache_bytes / EVICTION_SHARE;
            let victims = self.data.cache.victims(wanted);
            if victims.is_empty() {
                break;
            }
            for (ino, chunk) in victims {
                if self.is_pinned(ino) {
                    pinned.push((ino, chunk));
                    continue;
                }
                let Some(_guard) = self.data.latches.try_hold(ino, Mode::Exclusive) else {
                    taken.push((ino, chunk));
                    continue;
                };
                match self.evict_locked(ino, chunk).await {
                    Ok(Some(_)) => continue,
                    Ok(None) => {}
                    Err(error) => failed = Some(error),
                }
                // A chunk that could not be evicted now may be evictable later.
                kept.push((ino, chunk));
            }
        }
        for &(ino, chunk) in kept.iter().chain(&taken).chain(&pinned) {
            let blocks = chunk * BLOCKS_PER_CHUNK..(chunk + 1) * BLOCKS_PER_CHUNK;
            self.data.cache.note_clean(self.replica.view().extents(), ino, blocks);
        }
        // No other task waits behind one that waits for a file.
        drop(turn);
        self.evict_patiently(taken, over, &mut failed).await;
        // A reader needs room even if pinned chunks must go for it.
        let broken = self.evict_patiently(pinned, over, &mut failed).await;
        self.trouble(
            "pins",
            (broken > 0).then(|| {
                "more is pinned than the cache has room for beside what is in \
                use: some of it goes all the same"
                    .into()
            }),
        );
        match failed {
            Some(error) if over(self) > 0 => Err(error),
            _ => Ok(()),
        }
    }

    /// The failure concerns all files: the log takes no commands.
    fn is_of_all_files(&self, failed: &Option<RpcError>) -> bool {
        failed
            .as_ref()
            .is_some_and(|error| *error != FsError::Io.into() || self.expect_log().is_err())
    }

    /// Evicts chunks of files that may be in use, until there is room. A file that is read or
    /// written for long is passed over. Returns the bytes freed.
    async fn evict_patiently(
        &self,
        chunks: Vec<(Ino, u64)>,
        over: impl Fn(&Node) -> u64,
        failed: &mut Option<RpcError>,
    ) -> u64 {
        let (mut freed, mut passed) = (0, BTreeSet::new());
        for (ino, chunk) in chunks {
            if over(self) == 0 || self.is_of_all_files(failed) {
                break;
            }
            if passed.contains(&ino) {
                continue;
            }
            let lock = pin!(self.data.latches.hold(ino, Mode::Exclusive));
            let Either::Left((_guard, _)) =
                select(lock, self.ports.clock.sleep(TAKEN_PATIENCE)).await
            else {
                passed.insert(ino);
                continue;
            };
            match self.evict_locked(ino, chunk).await {
                Ok(Some(bytes)) => {
                    self.data.cache.remove_chunk(ino, chunk);
                    freed += bytes;
                }
                Ok(None) => {}
                Err(error) => *failed = Some(error),
            }
        }
        freed
    }

    pub(crate) fn is_pinned(&self, ino: Ino) -> bool {
        self.replica.view().namespace().pin_of(ino).is_some()
    }

    /// Makes the clean blocks of a chunk absent, then gives their space back. Returns the bytes
    /// freed; `None` if the store file is read past the node, or may have been stored into. The
    /// inode's latch is held exclusively.
    async fn evict_locked(&self, ino: Ino, chunk: u64) -> Result<Option<u64>, RpcError> {
        let runs = self.replica.view().extents().clean_runs(ino, chunk);
        if runs.is_empty() {
            return Ok(Some(0));
        }
        if self.is_exposed(ino) || self.is_in_use(ino).await? {
            return Ok(None);
        }
        let bytes = {
            let state = self.replica.view();
            runs.iter()
                .cloned()
                .flatten()
                .map(|block| state.extents().block_bytes(ino, block))
                .sum()
        };
        for run in &runs {
            self.commit_local(LocalCommand::Absent {
                ino,
                first: run.start,
                count: run.end - run.start,
            })
            .await?;
        }
        self.vacate(ino).await?;
        self.force_log().await?;
        let location = self.location(ino);
        for run in runs {
            let (start, len) = (run.start * BLOCK_BYTES, (run.end - run.start) * BLOCK_BYTES);
            self.store
                .punch(&location, start, len)
                .await
                .map_err(|error| self.disk_failed(ino, error))?;
        }
        Ok(Some(bytes))
    }

    /// Drops the clean blocks of a chunk. Returns the bytes freed.
    pub(crate) async fn evict(&self, ino: Ino, chunk: u64) -> Result<u64, RpcError> {
        let _guard = self.data.latches.hold(ino, Mode::Exclusive).await;
        let evicted = self.evict_locked(ino, chunk).await?;
        if evicted.is_some() {
            self.data.cache.remove_chunk(ino, chunk);
        }
        Ok(evicted.unwrap_or(0))
    }
}
