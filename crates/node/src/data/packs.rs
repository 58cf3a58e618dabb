//! Small files share pack files (C-19, C-21, C-22, C-24). A new file is added at the end of the
//! current pack file, so that no file system has to make a file for it. A removed one leaves a
//! hole. The remaining files of a pack file with mostly holes are moved to the end of another one.
//!
//! Laws:
//! - A file has one place. It is moved while it is neither read nor written: its bytes are copied,
//!   and forced if they were forced at the old place, before the log records the new place. A file
//!   without bytes gets its place in the log with its first write; until then the writer keeps the
//!   range ([`Reserved`]).
//! - Space is used once. A range that a dead run had set aside and not logged is never used.

use crate::Node;
use crate::data::store::{self, StoreLocation};
use crate::latches::Mode;
use ebb_model::*;
use ebb_ports::{Disk, DiskError};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

pub const DIRECTORY: &str = "packs";

/// How often the node looks for a pack file that is mostly holes.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(10);

/// How long a pack file is left alone after a file in it could not be moved: bytes that cannot be
/// read now will hardly be readable soon.
const STUCK_TIME: Duration = Duration::from_secs(600);

/// A pack file is compacted when less than 1 / this of its capacity is in use.
const COMPACTED_SHARE: u64 = 4;

pub fn path(pack: PackId) -> String {
    format!("{DIRECTORY}/{:016x}", pack.0)
}

/// The space of pack files, as this run allocates it.
pub struct Packs {
    /// Pack files of earlier runs.
    pub found: Vec<PackId>,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// The current pack file, and up to where it is allocated.
    active: Option<(PackId, u64)>,
    /// How far each range of it has been written, by its start.
    written: BTreeMap<u64, u64>,
    /// Ranges that may not be in the log yet, by pack file.
    reserved: BTreeMap<PackId, u64>,
    /// Full pack files. One may have become empty while a file in it was being added.
    ended: BTreeSet<PackId>,
    /// Pack files with a file that could not be moved out, and until when they are left alone.
    stuck: BTreeMap<PackId, Duration>,
}

/// A range that is kept until this is dropped, even without a record in the log.
pub struct Reserved {
    pub range: PackRange,
    state: Rc<RefCell<State>>,
}

impl Packs {
    pub async fn found(disk: &dyn Disk) -> Result<Packs, DiskError> {
        let names = disk.list(DIRECTORY).await?;
        let found: Vec<PackId> = names
            .iter()
            .filter_map(|name| u64::from_str_radix(name, 16).ok())
            .map(PackId)
            .collect();
        let last = found.iter().map(|pack| pack.0).max().unwrap_or(0);
        Ok(Packs { found, state: Rc::new(RefCell::new(State { last, ..State::default() })) })
    }

    /// Pack files up to this one have been used.
    pub fn begin_after(&self, last: PackId) {
        let mut state = self.state.borrow_mut();
        state.last = state.last.max(last.0);
    }

    pub fn reserve(&self, len_bytes: u64, pack_bytes: u64) -> Reserved {
        let mut state = self.state.borrow_mut();
        let (pack, start) = match state.active {
            Some((pack, end)) if end + len_bytes <= pack_bytes => (pack, end),
            _ => {
                state.end();
                state.last += 1;
                (PackId(state.last), 0)
            }
        };
        state.active = Some((pack, start + len_bytes));
        state.written.insert(start, start);
        self.keep(&mut state, PackRange { pack, start, len_bytes })
    }

    /// The same range with more room, if it is the last.
    pub fn extend(&self, range: PackRange, len_bytes: u64, pack_bytes: u64) -> Option<Reserved> {
        let mut state = self.state.borrow_mut();
        let end = range.start + len_bytes;
        if state.active != Some((range.pack, range.end())) || end > pack_bytes {
            return None;
        }
        state.active = Some((range.pack, end));
        Some(self.keep(&mut state, PackRange { len_bytes, ..range }))
    }

    /// Ends the current pack file: nothing is added to it any more.
    pub fn seal(&self) {
        self.state.borrow_mut().end();
    }

    /// Pack files without further additions, which may be empty.
    pub fn ended(&self) -> Vec<PackId> {
        self.state.borrow().ended.iter().copied().collect()
    }

    fn is_stuck(&self, pack: PackId, now: Duration) -> bool {
        self.state.borrow().stuck.get(&pack).is_some_and(|until| now < *until)
    }

    fn note_stuck(&self, pack: PackId, now: Duration) {
        let mut state = self.state.borrow_mut();
        state.stuck.retain(|_, until| now < *until);
        state.stuck.insert(pack, now + STUCK_TIME);
    }

    /// The pack file is gone, or goes with its last file.
    pub fn looked_at(&self, pack: PackId) {
        self.state.borrow_mut().ended.remove(&pack);
    }

    pub fn written(&self, range: PackRange, end: u64) {
        let mut state = self.state.borrow_mut();
        if state.is_active(range.pack) {
            let written = state.written.entry(range.start).or_insert(range.end());
            *written = end.max(*written);
        }
    }

    /// False if nothing was ever written to a range from `at` on.
    pub fn may_be_written(&self, range: PackRange, at: u64) -> bool {
        let state = self.state.borrow();
        !state.is_active(range.pack)
            || state.written.get(&range.start).is_none_or(|written| *written > at)
    }

    /// A pack file that may be begun at any moment.
    pub fn is_to_come(&self, pack: PackId) -> bool {
        pack.0 > self.state.borrow().last
    }

    /// Files are added to the pack file, or were and are not in the log yet.
    pub fn is_in_use(&self, pack: PackId) -> bool {
        let state = self.state.borrow();
        state.is_active(pack) || state.reserved.contains_key(&pack)
    }

    fn keep(&self, state: &mut State, range: PackRange) -> Reserved {
        *state.reserved.entry(range.pack).or_default() += 1;
        Reserved { range, state: self.state.clone() }
    }
}

impl State {
    fn end(&mut self) {
        self.ended.extend(self.active.take().map(|(pack, _)| pack));
        self.written.clear();
    }

    fn is_active(&self, pack: PackId) -> bool {
        self.active.is_some_and(|(active, _)| active == pack)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        if let Some(count) = state.reserved.get_mut(&self.range.pack) {
            *count -= 1;
            if *count == 0 {
                state.reserved.remove(&self.range.pack);
            }
        }
    }
}

/// The same ranges, with adjacent ones joined.
pub fn joined(mut ranges: Vec<PackRange>) -> Vec<PackRange> {
    ranges.sort_unstable_by_key(|range| (range.pack, range.start));
    let mut joined = Vec::<PackRange>::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.pack == range.pack && last.end() == range.start => {
                last.len_bytes += range.len_bytes
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The gaps between ranges of a pack file, which come in order.
pub fn gaps(pack: PackId, used: &[PackRange]) -> Vec<PackRange> {
    let ends = std::iter::once(0).chain(used.iter().map(PackRange::end));
    let starts = used.iter().map(|range| range.start).chain([PACK_BYTES]);
    let gaps = ends.zip(starts).filter(|(start, end)| start < end);
    gaps.map(|(start, end)| PackRange { pack, start, len_bytes: end - start }).collect()
}

impl Node {
    /// The present place of a file's bytes.
    pub(crate) fn location(&self, ino: Ino) -> StoreLocation {
        store::location(&self.replica.view(), ino)
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
            self.store.free_range_after(reserved.range, self.replica.log().written());
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
            Ok(()) => self.commit(Command::Extent(ExtentCommand::Packed { ino, range })).await,
            Err(error) => Err(error),
        };
        let location = self.location(ino);
        let is_there = location.packed == range;
        match moved {
            Ok(index) => {
                if let Some(unused) = range.filter(|_| !is_there) {
                    self.store.free_range_after(unused, index);
                }
                Ok(location)
            }
            Err(error) => {
                // Bytes written there belong to no file. If the log has failed, the next start
                // finds out where the file is.
                if !stays && !is_there && self.expect_log().is_ok() {
                    match range {
                        Some(range) => {
                            self.store.free_range_after(range, self.replica.log().written())
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
            self.commit(Command::Extent(ExtentCommand::Packed { ino, range: None })).await?;
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
        let _guard = self.latches.hold(ino, Mode::Exclusive).await;
        self.vacate(ino).await?;
        let location = self.location(ino);
        if let Some(range) = location.packed.filter(|range| range.pack == pack) {
            self.relocate(&location, Some(self.reserve_room(range.len_bytes))).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACK: u64 = 16 * PACK_UNIT_BYTES;

    fn packs() -> Packs {
        Packs { found: Vec::new(), state: Rc::default() }
    }

    fn overlap(a: &PackRange, b: &PackRange) -> bool {
        a.pack == b.pack && a.start < b.end() && b.start < a.end()
    }

    proptest! {
        #[test]
        fn no_space_is_given_out_twice(steps in prop::collection::vec((1..6u64, any::<bool>(), any::<bool>()), 1..60)) {
            let packs = packs();
            let mut ranges = Vec::<PackRange>::new();
            for (units, grows, seals) in steps {
                let last = ranges.last().copied().filter(|_| grows);
                let more = last.and_then(|range| packs.extend(range, range.len_bytes + units * PACK_UNIT_BYTES, PACK));
                let reserved = match more {
                    Some(more) => {
                        prop_assert_eq!(ranges.pop().map(|range| (range.pack, range.start)), Some((more.range.pack, more.range.start)));
                        more
                    }
                    None => packs.reserve(units * PACK_UNIT_BYTES, PACK),
                };
                prop_assert!(reserved.range.end() <= PACK);
                prop_assert!(packs.is_in_use(reserved.range.pack));
                prop_assert!(ranges.iter().all(|range| !overlap(range, &reserved.range)));
                ranges.push(reserved.range);
                if seals {
                    packs.seal();
                    prop_assert!(packs.is_in_use(reserved.range.pack));
                }
            }
            packs.seal();
            prop_assert!(ranges.iter().all(|range| !packs.is_in_use(range.pack)));
        }

        #[test]
        fn joining_loses_and_adds_nothing(cells in prop::collection::btree_set((0..3u64, 0..12u64), 0..30)) {
            let ranges = cells.iter().map(|(pack, at)| PackRange { pack: PackId(*pack), start: *at, len_bytes: 1 });
            let joined = joined(ranges.rev().collect());
            let again = joined.iter().flat_map(|range| (range.start..range.end()).map(|at| (range.pack.0, at)));
            prop_assert_eq!(again.collect::<std::collections::BTreeSet<_>>(), cells);
            prop_assert!(joined.windows(2).all(|two| two[0].pack != two[1].pack || two[0].end() < two[1].start));
        }
    }

    #[test]
    fn pack_range_never_written_needs_no_clearing() {
        let packs = packs();
        let first = packs.reserve(2 * PACK_UNIT_BYTES, PACK).range;
        assert!(!packs.may_be_written(first, first.start));
        packs.written(first, first.start + 100);
        assert!(
            packs.may_be_written(first, first.start + 99)
                && !packs.may_be_written(first, first.start + 100)
        );
        let second = packs.reserve(PACK_UNIT_BYTES, PACK).range;
        assert!(!packs.may_be_written(second, second.start));
        packs.seal();
        assert!(packs.may_be_written(second, second.start), "nobody knows any more");
        // A range of a pack file of an earlier run.
        let other = PackRange { pack: PackId(77), start: 0, len_bytes: PACK_UNIT_BYTES };
        assert!(packs.may_be_written(other, 0));
    }
}
