//! The places of files: ranges of pack files ([`ebb_store::Packs`]) for small ones, a store file of
//! its own for any other. The remaining files of a pack file with mostly holes are moved to the end
//! of another one.
//!
//! Law: a file has one place. It is moved while it is neither read nor written: its bytes are
//! copied, and forced if they were forced at the old place, before the log records the new place. A
//! file without bytes gets its place in the log with its first write; until then the writer keeps
//! the range ([`Reserved`]).

use crate::Node;
use ebb_core::state::State;
use ebb_model::*;
use ebb_store::{Mode, Reserved, StoreLocation};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// How often the node looks for a pack file that is mostly holes.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(10);

/// A pack file is compacted when less than 1 / this of its capacity is in use.
const COMPACTED_SHARE: u64 = 4;

/// The place of a file's bytes in this state.
pub(crate) fn location(state: &State, ino: Ino) -> StoreLocation {
    let size_bytes = state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
    StoreLocation { ino, size_bytes, packed: state.extents().packed(ino) }
}

impl Node {
    /// The present place of a file's bytes.
    pub(crate) fn location(&self, ino: Ino) -> StoreLocation {
        location(&self.replica.view(), ino)
    }

    /// Whether a file has room for bytes up to `end` at its place.
    pub(crate) fn has_room(&self, ino: Ino, end: u64) -> bool {
        match self.location(ino).packed {
            // Old bytes of a file that was cut to nothing or evicted need not be cleared: it goes
            // elsewhere.
            Some(range) => end <= range.len_bytes && self.has_blocks(ino),
            None => !self.is_small(end) || self.has_blocks(ino) || self.store.has_standalone(ino),
        }
    }

    /// Returns the place for bytes up to `end` of a file. The inode's latch is held exclusively, or
    /// [`Node::has_room`] has been true while it was held. A move may have dropped blocks.
    pub(crate) async fn make_room(&self, ino: Ino, end: u64) -> Result<StoreLocation, RpcError> {
        let location = self.location(ino);
        if self.has_room(ino, end) {
            return Ok(location);
        }
        let reserved =
            self.is_small(end).then(|| match location.packed.filter(|_| self.has_blocks(ino)) {
                Some(range) => {
                    // A file that has grown once will grow again.
                    let more = end.next_power_of_two().min(PACKED_BYTES);
                    self.store
                        .packs
                        .extend(range, more, self.options.pack_bytes)
                        .unwrap_or_else(|| self.reserve_room(more))
                }
                None => self.first_room(end),
            });
        self.relocate(&location, reserved).await
    }

    /// As [`Node::make_room`], for a write: a range is set aside for a small file without blocks,
    /// and the record of the write records it.
    pub(crate) async fn room_to_write(
        &self,
        ino: Ino,
        end: u64,
    ) -> Result<(StoreLocation, Option<Reserved>), RpcError> {
        if self.has_room(ino, end) || self.has_blocks(ino) || !self.is_small(end) {
            return Ok((self.make_room(ino, end).await?, None));
        }
        let reserved = self.first_room(end);
        self.store.mark_never_synced(ino);
        Ok((StoreLocation { packed: Some(reserved.range), ..self.location(ino) }, Some(reserved)))
    }

    /// Frees a range that was set aside, unless the file is there. If the log has failed, the next
    /// start finds out whether the file is there.
    pub(crate) fn vacate_unless_used(&self, ino: Ino, reserved: &Reserved) {
        if self.replica.view_without_backing().extents().packed(ino) != Some(reserved.range)
            && self.expect_log().is_ok()
        {
            self.store.free_range_after(reserved.range, self.replica.written_position());
        }
    }

    fn is_small(&self, end: u64) -> bool {
        end > 0 && end < self.options.pack_below_bytes
    }

    fn has_blocks(&self, ino: Ino) -> bool {
        self.replica.view().extents().resident_bytes_of(ino) > 0
    }

    /// A range for a small file without blocks.
    fn first_room(&self, end: u64) -> Reserved {
        self.reserve_room(end.next_multiple_of(PACK_UNIT_BYTES))
    }

    fn reserve_room(&self, len_bytes: u64) -> Reserved {
        self.store.packs.reserve(len_bytes, self.options.pack_bytes)
    }

    /// Moves a file to a place with room, or to a store file of its own.
    async fn relocate(
        &self,
        from: &StoreLocation,
        reserved: Option<Reserved>,
    ) -> Result<StoreLocation, RpcError> {
        let ino = from.ino;
        let range = reserved.as_ref().map(|reserved| reserved.range);
        let to = StoreLocation { packed: range, ..*from };
        let stays = from.packed.zip(range).is_some_and(|(before, now)| now.begins_as(&before));
        let copied = if stays { Ok(()) } else { self.copy_to(from, &to).await };
        let moved = match copied {
            Ok(()) => self.commit_local(LocalCommand::Packed { ino, range }).await,
            Err(error) => Err(error),
        };
        let location = self.location(ino);
        let is_there = location.packed == range;
        match moved {
            Ok(()) => {
                if let Some(unused) = range.filter(|_| !is_there) {
                    self.store.free_range_after(unused, self.replica.written_position());
                }
                Ok(location)
            }
            Err(error) => {
                // Bytes written there belong to no file. If the log has failed, the next start
                // finds out where the file is.
                if !stays && !is_there && self.expect_log().is_ok() {
                    match range {
                        Some(range) => {
                            self.store.free_range_after(range, self.replica.written_position())
                        }
                        None => self.forget_own(ino).await?,
                    }
                }
                Err(error)
            }
        }
    }

    /// An empty store file for an inode that has no bytes in one.
    pub(crate) async fn begin_standalone(&self, ino: Ino) -> Result<(), RpcError> {
        self.store.begin_standalone(ino).await.map_err(|error| self.disk_failed(ino, error))
    }

    async fn forget_own(&self, ino: Ino) -> Result<(), RpcError> {
        self.store.drop_own(ino).await.map_err(|error| self.disk_failed(ino, error))
    }

    /// Copies the bytes of a file to another place, and forces those that may have been forced at
    /// the old one. Bytes that cannot be read become absent, if the bucket has them.
    async fn copy_to(&self, from: &StoreLocation, to: &StoreLocation) -> Result<(), RpcError> {
        let ino = from.ino;
        if from.packed.is_some() && to.packed.is_none() {
            self.begin_standalone(ino).await?;
        }
        let is_dirty = self.replica.view().extents().dirty_bytes_of(ino) > 0;
        let next = |block: u64| {
            self.replica.view().extents().resident_runs(ino, block..u64::MAX).into_iter().next()
        };
        if next(0).is_none() {
            self.store.mark_never_synced(ino);
        }
        let mut copied = 0;
        while let Some(run) = next(copied) {
            let (start, end) = (run.start * BLOCK_BYTES, (run.end * BLOCK_BYTES).min(from.end()));
            if start < end {
                match self.store.read(from, start, (end - start) as usize).await {
                    Ok(data) => self
                        .store
                        .write(to, start, data)
                        .await
                        .map_err(|error| self.disk_failed(ino, error))?,
                    Err(error) => {
                        self.cannot_read(ino, run, &error).await?;
                        continue;
                    }
                }
            }
            copied = run.end;
        }
        // Dirty bytes may have been forced at the old place, by this run or an earlier one.
        if is_dirty && !self.store.is_never_synced(ino) {
            self.store
                .sync(SyncScope::File(ino))
                .await
                .map_err(|error| self.disk_failed(ino, error))?;
        }
        Ok(())
    }

    /// The cache has no bytes of the file any more: its range is freed. The inode's latch is held
    /// exclusively.
    pub(crate) async fn vacate(&self, ino: Ino) -> Result<(), RpcError> {
        let location = self.location(ino);
        let is_empty = self.replica.view().extents().resident_bytes_of(ino) == 0;
        if location.packed.is_some() && is_empty {
            self.commit_local(LocalCommand::Packed { ino, range: None }).await?;
            if self.store.has_standalone(ino) {
                // The remains of a move that was not logged.
                self.forget_own(ino).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn pack_status(&self) -> PackStatus {
        let state = self.replica.view();
        let packs = state.extents().packs();
        packs.fold(
            PackStatus { files: state.extents().packed_count(), ..PackStatus::default() },
            |sum, (_, bytes)| PackStatus {
                packs: sum.packs + 1,
                used_bytes: sum.used_bytes + bytes,
                ..sum
            },
        )
    }

    pub(crate) async fn compact_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            self.ports.clock.sleep(COMPACTION_INTERVAL).await;
            // Bytes that a client has yet to replay may be missing from the copy.
            if self.attachments.awaits_any() || self.read_only() {
                continue;
            }
            if let Some(pack) = self.sparse_pack() {
                self.compact(pack).await;
            }
        }
    }

    /// The pack file with the fewest bytes in use, if these are few.
    fn sparse_pack(&self) -> Option<PackId> {
        let state = self.replica.view();
        let now = self.ports.clock.monotonic();
        // Bytes that could not be forced at their place cannot leave it.
        let failed: BTreeSet<PackId> = self
            .store
            .failed()
            .into_iter()
            .filter_map(|(ino, _)| Some(state.extents().packed(ino)?.pack))
            .collect();
        let may_go = |pack| {
            !failed.contains(&pack)
                && !self.store.packs.is_in_use(pack)
                && !self.store.packs.is_stuck(pack, now)
        };
        let packs = state.extents().packs().filter(|(pack, _)| may_go(*pack));
        let (pack, used) = packs.min_by_key(|(_, bytes)| *bytes)?;
        (used < self.options.pack_bytes / COMPACTED_SHARE).then_some(pack)
    }

    /// Moves the files of a pack file to the current one. The pack file is removed when the log is
    /// forced, if it is empty: one file that cannot be moved keeps no other there.
    async fn compact(&self, pack: PackId) {
        let files: Vec<Ino> =
            self.replica.view().extents().packed_in(pack).map(|(_, ino)| ino).collect();
        tracing::debug!(pack = pack.0, files = files.len(), "compacting a pack file");
        let mut left = Vec::new();
        for ino in files {
            if let Err(error) = self.move_out_of(pack, ino).await {
                left.push((ino, error));
            }
        }
        if let Some((ino, error)) = left.first() {
            tracing::warn!(pack = pack.0, files = left.len(), %ino, %error, "a pack file could not \
                be compacted");
            self.store.packs.note_stuck(pack, self.ports.clock.monotonic());
        }
    }

    async fn move_out_of(&self, pack: PackId, ino: Ino) -> Result<(), RpcError> {
        let _guard = self.data.latches.hold(ino, Mode::Exclusive).await;
        self.vacate(ino).await?;
        let location = self.location(ino);
        if let Some(range) = location.packed.filter(|range| range.pack == pack) {
            self.relocate(&location, Some(self.reserve_room(range.len_bytes))).await?;
        }
        Ok(())
    }
}
