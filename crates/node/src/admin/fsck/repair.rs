//! Repairs the findings of a check, one at a time. Each repair follows these rules:
//!
//! - It first checks that it is still due.
//! - It changes nothing where more than one outcome could be right.
//! - It can be interrupted at any step: each step is logged before other work relies on it, and
//!   repeating it is harmless.

use crate::Node;
use crate::buckets::ask::Backoff;
use crate::buckets::ask::bucket_refusal;
use crate::replica::refusal;
use ebb_core::backing::Reserved;
use ebb_core::byte_map::ByteOrigin;
use ebb_core::state::State;
use ebb_format::object;
use ebb_journal::Damage;
use ebb_model::*;
use ebb_ports::{BucketError, ETag};
use ebb_store::Mode;
use futures_util::future::select;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Blocks that are read at one time, while the file's writers wait.
const PIECE_BLOCKS: usize = 16;

/// How often the bucket is checked.
const POLL: Duration = Duration::from_millis(200);

impl Node {
    pub(crate) async fn repair(self: &Rc<Self>, remedy: Remedy) -> Result<(), RpcError> {
        if self.attachments.awaits_any() {
            return Err(RpcError::Denied(
                "clients of before the node's restart are still to come \
                back: try again when they have"
                    .into(),
            ));
        }
        match remedy {
            Remedy::Refetch { ino, block } => self.refetch(ino, block).await,
            Remedy::SendAgain { ino } => self.send_again(ino).await,
            Remedy::Delete { key, etag } => self.delete_unreferenced(&key, ETag(etag)).await,
            Remedy::Remove { path } => self.remove_stray(&path).await,
            Remedy::Snapshot => {
                let damage = self.damage_of_log().await;
                if damage.is_none() { Ok(()) } else { self.renew_log(&damage).await }
            }
        }
    }

    /// Drops the block if it is damaged, and fetches it anew, durably.
    async fn refetch(self: &Rc<Self>, ino: Ino, block: u64) -> Result<(), RpcError> {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        if self.holds_sound(ino, &range).await? {
            return Ok(());
        }
        self.fetch(ino, std::slice::from_ref(&range)).await?;
        self.refresh_granted(ino);
        // A block that is absent now has become a hole, or was evicted.
        self.holds_sound(ino, &range).await?;
        // Otherwise a power cut could bring the damage back.
        self.fsync(ino).await.map(drop)
    }

    /// False where the block is absent. That includes a damaged block that the bucket still has.
    async fn holds_sound(&self, ino: Ino, range: &Range<u64>) -> Result<bool, RpcError> {
        let _guard = self.data.latches().hold(ino, Mode::Shared).await;
        let is_present =
            self.replica.view().extents().block(ino, range.start / BLOCK_BYTES).is_some();
        Ok(is_present && self.read_local(ino, range).await?.is_some())
    }

    async fn send_again(self: &Rc<Self>, ino: Ino) -> Result<(), RpcError> {
        self.buckets.check_writes()?;
        self.bring(ino).await?;
        let is_directory = self.replica.view().namespace().attr(ino)?.kind == FileKind::Directory;
        let is_due = match is_directory {
            true => self.page_is_due(ino).await?,
            false => self.object_is_due(ino).await?,
        };
        if is_due {
            let _guard = self.data.latches().hold(ino, Mode::Exclusive).await;
            self.commit_stamped(|state, stamp| match is_directory || is_whole(state, ino) {
                true => Ok(Command::Backing(BackingCommand::SendAgain { ino, stamp })),
                false => Err(RpcError::Denied("not all of it is here any more".into())),
            })
            .await?;
        }
        self.force_log().await?;
        self.sent(ino).await
    }

    /// Whether the file's object is gone and all bytes to recreate it are here. They are read
    /// first, and forced: without the object they are the only copy.
    async fn object_is_due(&self, ino: Ino) -> Result<bool, RpcError> {
        let claimed = {
            let state = self.replica.view();
            state.backing().expected_object(state.namespace(), ino)
        };
        let Some(claimed) = claimed else { return Ok(false) };
        match self
            .bucket_retry("head", &claimed.key, 0, || self.buckets.bucket().head(&claimed.key))
            .await
        {
            Err(BucketError::NotFound { .. }) => {}
            Ok(_) => return Ok(false),
            Err(error) => return Err(bucket_refusal(&error)),
        }
        let blocks: Vec<u64> = {
            let state = self.replica.view();
            state.extents().resident_runs(ino, 0..u64::MAX).into_iter().flatten().collect()
        };
        for piece in blocks.chunks(PIECE_BLOCKS) {
            let _guard = self.data.latches().hold(ino, Mode::Shared).await;
            for block in piece {
                let is_present = self.replica.view().extents().block(ino, *block).is_some();
                if is_present
                    && self
                        .read_local(ino, &(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES))
                        .await?
                        .is_none()
                {
                    return Err(FsError::Io.into());
                }
            }
        }
        self.fsync(ino).await?;
        Ok(true)
    }

    /// Whether the directory's page differs from the expected one, and all is known to write it
    /// anew.
    async fn page_is_due(&self, dir: Ino) -> Result<bool, RpcError> {
        if !self.is_complete(dir) || self.replica.view().backing().expected_page(dir).is_none() {
            return Ok(false);
        }
        let state = || self.replica.view();
        let report =
            self.comparison(&state).page(dir).await.map_err(|error| bucket_refusal(&error))?;
        Ok(!report.problems.is_empty())
    }

    /// Waits until the bucket has the dirty blocks of an inode.
    async fn sent(self: &Rc<Self>, ino: Ino) -> Result<(), RpcError> {
        let deadline = self.ports.clock.monotonic() + self.flush_patience();
        while self.replica.view().backing().is_dirty(ino) {
            if self.ports.clock.monotonic() >= deadline {
                return Err(FsError::TimedOut.into());
            }
            self.flusher.cancel_cooldown(ino);
            self.flusher.urge();
            let progress = Box::pin(self.flusher.progress());
            select(progress, self.ports.clock.sleep(POLL)).await;
        }
        Ok(())
    }

    async fn delete_unreferenced(&self, key: &str, etag: ETag) -> Result<(), RpcError> {
        self.buckets.check_writes()?;
        self.outlast_late_effects().await;
        // Otherwise a power cut could bring back the reference to it.
        self.force_log().await?;
        let reserved = {
            let state = self.replica.view();
            state.backing().reserved(state.namespace(), key, state.backing().is_loaded())
        };
        if reserved != Reserved::Unreferenced {
            return Ok(());
        }
        match self.call_until_answered(key, || self.buckets.bucket().delete(key, Some(&etag))).await
        {
            Ok(()) | Err(BucketError::NotFound { .. }) => Ok(()),
            Err(BucketError::Precondition { .. }) => {
                Err(RpcError::Denied(format!("{key} is another object by now")))
            }
            Err(error) => Err(bucket_refusal(&error)),
        }
    }

    async fn remove_stray(&self, path: &str) -> Result<(), RpcError> {
        // Otherwise a power cut could bring back its owner.
        self.force_log().await?;
        if self.strays().await?.iter().any(|stray| stray == path) {
            let (directory, _) = path.split_once('/').unwrap_or_default();
            let removed = async {
                self.ports.disk.remove(path).await?;
                self.ports.disk.sync_dir(directory).await
            };
            removed.await.map_err(|error| RpcError::Denied(error.to_string()))?;
        }
        Ok(())
    }

    /// Unreferenced files of the data directory, without those that are about to be removed or
    /// used.
    pub(super) async fn strays(&self) -> Result<Vec<String>, RpcError> {
        // A client that has yet to return may bring ids that are not known here.
        if self.attachments.awaits_any() {
            return Ok(Vec::new());
        }
        let files =
            async || self.store.files().await.map_err(|error| RpcError::Denied(error.to_string()));
        let mut strays = files().await?;
        {
            let state = self.replica.view();
            let is_over = |ino| state.namespace().is_over(ino);
            let has_files = |pack| state.extents().packed_in(pack).next().is_some();
            strays.retain(|file| self.store.is_stray(*file, is_over, has_files));
        }
        if !strays.is_empty() {
            // A listed file may have been removed since the listing.
            let still = files().await?;
            strays.retain(|file| still.contains(file));
        }
        Ok(strays.into_iter().map(|file| self.store.path(file)).collect())
    }

    /// The damage in the log that the next start could not read past.
    pub(super) async fn damage_of_log(&self) -> Damage {
        self.replica.log().prove(async |bytes| bytes).await
    }

    /// Makes the next start independent of the damaged records: their state is all in memory.
    pub(crate) async fn renew_log(&self, damage: &Damage) -> Result<(), RpcError> {
        if damage.segment.is_some() {
            self.replica.log().begin_segment().await.map_err(refusal)?;
            // The last command before that segment must be in the snapshot.
            drop(self.replica.settled().await);
        }
        self.write_snapshot().await?;
        tracing::warn!(%damage, "the log was damaged on the node's disk: a new snapshot stands in \
            for what was there, nothing is lost");
        self.trouble("log", None);
        Ok(())
    }

    /// Rolls a file back to its object: later writes to it are lost.
    pub(crate) async fn roll_back(self: &Rc<Self>, ino: Ino) -> Result<AdminReply, RpcError> {
        let denied = |what: &str| RpcError::Denied(what.into());
        if self.attachments.awaits_any() {
            return Err(denied(
                "clients of before the node's restart are still to come back: try again when they \
                 have",
            ));
        }
        if self.buckets.is_none() || self.object_of(ino).is_none() {
            return Err(denied("it never was in the bucket: there is nothing to roll back to"));
        }
        self.buckets.check_writes()?;
        self.see_all_names(ino).await?;
        let mut backoff = Backoff::default();
        loop {
            self.upload_ended(ino).await?;
            let Some((key, etag, _)) = self.object_of(ino) else {
                return Err(FsError::NotFound.into());
            };
            let meta =
                match self.bucket_retry("head", &key, 0, || self.buckets.bucket().head(&key)).await
                {
                    Ok(meta) => meta,
                    Err(BucketError::NotFound { .. }) => {
                        return Err(denied(
                            "its object is gone from the bucket: there is nothing to roll back to",
                        ));
                    }
                    Err(error) => return Err(bucket_refusal(&error)),
                };
            let _guard = self.data.latches().hold(ino, Mode::Exclusive).await;
            let (before_bytes, lost_bytes) = {
                let state = self.replica.view();
                (state.namespace().attr(ino)?.size_bytes, state.extents().dirty_bytes_of(ino))
            };
            let is_changed = self
                .replica
                .view()
                .backing()
                .dirty(ino)
                .is_some_and(|dirty| dirty.content.is_some());
            if !is_changed && meta.etag == etag {
                return Ok(AdminReply::RolledBack {
                    before_bytes,
                    lost_bytes: 0,
                    bytes: before_bytes,
                });
            }
            let rolled_back = self.commit_stamped(|state, stamp| {
                let claimed = state.backing().expected_object(state.namespace(), ino);
                // Written or moved since it was read.
                if claimed.is_none_or(|claimed| claimed.key != key || claimed.etag != etag.0) {
                    return Err(RpcError::Retry);
                }
                let modified =
                    object::modified(&meta.tags).unwrap_or(Time::from_secs(meta.modified_secs));
                let (etag, len_bytes) = (meta.etag.0.clone(), meta.len_bytes);
                Ok(Command::Backing(BackingCommand::RolledBack {
                    ino,
                    etag,
                    len_bytes,
                    modified,
                    stamp,
                }))
            });
            match rolled_back.await {
                Err(RpcError::Retry) => {
                    backoff.wait(&self.ports, None).await;
                    continue;
                }
                rolled_back => rolled_back?,
            }
            self.force_log().await?;
            self.end_troubles().await;
            self.refresh_granted(ino);
            return Ok(AdminReply::RolledBack { before_bytes, lost_bytes, bytes: meta.len_bytes });
        }
    }
}

fn is_whole(state: &State, ino: Ino) -> bool {
    state.backing().is_whole(state.namespace(), state.extents(), ino)
}

/// Bytes of a file that are only in its object.
pub(super) fn missing(state: &State, ino: Ino) -> u64 {
    let size_bytes = state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
    let plan = state.extents().plan_read(ino, 0..size_bytes, size_bytes);
    plan.into_iter()
        .filter(|part| part.origin == ByteOrigin::Remote)
        .map(|part| part.range.end - part.range.start)
        .sum()
}
