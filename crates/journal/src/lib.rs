//! The durable log of one node: an order of commands that outlives processes and power cuts.
//!
//! The log carries several groups: [`GroupId::LOCAL`], whose commands are about this node's disk,
//! and partitions. The commands of a group have indices without gaps, and all records have
//! positions without gaps. The log up to a position has the first commands of every group, so
//! forced and cut are counted in positions, and one sync forces all groups.
//!
//! A partition's group is *replicated* from its first [`Entry::Replicated`] on. Consensus gives
//! term and index of its entries, and the log keeps them as they are: a later entry or base can
//! void earlier entries, and promises have no index. All records of a replicated group count as
//! commands where this text speaks of positions. Its snapshots give up no segments: a
//! [`Log::checkpoint`] does.
//!
//! `docs/format/log.md` defines bytes and recovery rules. Three promises are kept apart:
//! - *written*: [`Log::append`] has returned. The command survives the end of the process.
//! - *synced*: the record is on the medium, perhaps by accident. This promises nothing to a caller:
//!   no caller has waited for it, and the data files that the command refers to may be behind.
//! - *forced*, [`Log::durable_position`]: [`Log::force`] has returned. The command survives a power
//!   cut.
//!
//! Laws:
//! - Of positions of commands: `snapshot <= durable <= marked <= wanted <= written`, with the
//!   snapshot of any group. Of records: `synced <= position`, the last record's. All of them only
//!   grow. A state that is to be the next snapshot comes between: `snapshot <= applied <= written`.
//! - The local group's state depends on commands of partitions too. So its snapshot is written
//!   before those of the partitions: their positions are at or below its own.
//! - In each run the terms of all groups that are not replicated are higher than in the run before.
//!   So term and index of a group never name two commands, also if a power cut has taken the first.
//!   Of a replicated group, consensus keeps this law.
//! - Indices of a group that is not replicated only grow.
//! - A command is written to space that is already there, so a full disk refuses a command and
//!   never breaks one.
//! - All segments but the last are synced whole before the last gets a record.
//! - After a failed write or sync of a record nothing is acknowledged any more: the content of the
//!   disk is unknown, and only a recovery can read it.

mod entry;
mod error;
mod recovery;
mod release_0_1_0;
mod replay;
mod replicated;
mod scan;
mod segments;
mod snapshots;
mod turns;
mod verify;

pub use entry::{Entry, Frontier, Logged, LoggedCommand, Replicated};
pub use error::LogError;
pub use recovery::{Recovery, Start};
pub use release_0_1_0::Log010;
pub use replay::Entries;
pub use segments::{LOG_DIR, is_segment};
pub use snapshots::{ReceivedAt, SnapshotAt, SnapshotFrames};
pub use snapshots::{SNAPSHOT_DIR, is_snapshot, list as snapshots, path as snapshot_path};
pub use verify::Damage;

use ebb_format::FormatError;
use ebb_format::record::{
    self, Base, Encoded, FORCED_BYTES, GroupId, GroupTail, LINE_BYTES, MAX_GROUPS,
    MAX_RECORD_BYTES, Payload, Position, RecordHeader, Term, replicated_start_bytes, start_bytes,
};
use ebb_format::segment::{SEGMENT_HEADER_BYTES, VolumeId};
use ebb_format::snapshot::SnapshotHeader;
use ebb_model::{Command, Incarnation, LocalCommand, LogIndex, Planted};
use ebb_ports::{Disk, DiskError, DiskFile, Signal, Spawn};
use futures_util::lock::Mutex;
use replicated::{Checkpoint, GroupEnd, Kind, Release};
use scan::Used;
use segments::{Segment, Supply};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use turns::Turns;

/// Options of a log.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The volume of the log; the log of another one is refused.
    pub volume: VolumeId,
    /// Of the run that begins. Recorded for the next recovery.
    pub incarnation: Incarnation,
    /// Of each file of the log; a multiple of 4096. Bounds the longest command, the memory of a
    /// recovery, and the size of records that no snapshot needs. Files of another size stay
    /// readable.
    pub segment_bytes: u64,
}

pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 20;

/// Half of it is left for commands.
pub const MIN_SEGMENT_BYTES: u64 = 16 << 10;

/// A longer file in the log's directory was not made by a log.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Starts of runs that write nothing else have room at the end of a segment, so that a node with a
/// full disk can be restarted over and over.
const RESTARTS: u64 = 20;

/// The groups that a start lists.
#[derive(Clone, Copy)]
struct GroupCount {
    groups: usize,
    /// One of them is replicated.
    is_replicated: bool,
}

impl GroupCount {
    const fn start_bytes(self) -> u64 {
        match self.is_replicated {
            false => start_bytes(self.groups) as u64,
            true => replicated_start_bytes(self.groups) as u64,
        }
    }

    /// Kept free behind a marker.
    const fn start_reserve(self) -> u64 {
        RESTARTS * self.start_bytes()
    }

    /// Kept free behind a command, so that force needs no space: one marker for callers before the
    /// command was written, and one for callers after it.
    const fn command_reserve(self) -> u64 {
        self.start_reserve() + 2 * FORCED_BYTES as u64
    }
}

/// May be logged while a write is under way that has checked for room: hundreds of other writes.
const ROOM_BYTES: u64 = 64 << 10;

pub struct Log {
    disk: Rc<dyn Disk>,
    spawn: Rc<dyn Spawn>,
    options: Options,
    boot_id: u128,
    supply: Rc<Supply>,
    /// Taken before `end` while the log is open, so that waits for that are short.
    turns: Rc<Turns>,
    /// Locked while a record is being written.
    end: Mutex<End>,
    /// Segments with records, oldest first. The last is the one written to.
    segments: RefCell<VecDeque<Used>>,
    /// Callers that wait here share the next sync. Taken before `turns`.
    forcing: Rc<Turns>,
    /// One sync at a time: of two concurrent syncs the system reports a failure to one only. Taken
    /// after all others.
    syncing: Mutex<()>,
    /// No segment is recycled while it is held.
    snapshotting: Mutex<()>,
    /// The newest durable snapshot of each group: a start needs no segment whose commands are all
    /// in one. `snapshot <= durable`.
    snapshots: RefCell<BTreeMap<GroupId, Taken>>,
    /// All groups of the log.
    terms: RefCell<BTreeMap<GroupId, RunTerm>>,
    /// Of replicated groups: what records that are not forced yet will release, in order.
    releases: RefCell<VecDeque<Release>>,
    /// The last forced checkpoint of each replicated group.
    checkpoints: RefCell<BTreeMap<GroupId, Checkpoint>>,
    /// Received snapshots that are durable, and whose bases are not forced yet.
    received: RefCell<BTreeMap<(GroupId, LogIndex), Received>>,
    /// What callers wait for. `end.marked <= wanted <= written`.
    wanted: RefCell<Frontier>,
    /// All commands.
    written: RefCell<Frontier>,
    /// `snapshot <= durable <= end.marked`.
    durable: RefCell<Frontier>,
    /// The last record that a finished sync covers. `synced <= end.position`.
    synced: Cell<Position>,
    appending: Cell<bool>,
    /// Bytes left in the current segment, behind its last record.
    left_bytes: Cell<u64>,
    failed: RefCell<Option<LogError>>,
    failing: Signal,
}

/// A durable snapshot.
#[derive(Clone, Copy)]
struct Taken {
    index: LogIndex,
    position: Position,
    len_bytes: u64,
}

/// A durable snapshot from another node, ahead of the log.
#[derive(Clone, Copy)]
struct Received {
    term: Term,
    /// The last record of the log at the time.
    position: Position,
    /// The position of the base that names it, once that is written.
    base: Option<Position>,
    len_bytes: u64,
}

/// The term of a group in this run.
#[derive(Clone, Copy, Default)]
struct RunTerm {
    /// Of a replicated group: of its last entry.
    term: Term,
    /// The last command before the run, and its term. Not of a replicated group.
    before: (LogIndex, Term),
    is_replicated: bool,
}

/// Records for one write, and the state behind them.
#[derive(Default)]
struct Batch {
    frontier: Frontier,
    /// Of the following three, only replicated groups.
    ends: Vec<(GroupId, GroupEnd)>,
    bases: Vec<(GroupId, LogIndex, Term, Position)>,
    releases: Vec<Release>,
}

/// The end of the log, where the next record goes.
struct End {
    segment: Segment,
    offset: u64,
    /// The position of the last record.
    position: Position,
    /// What the last marker records as forced. `durable` follows once the marker is synced.
    /// `durable <= marked <= wanted`.
    marked: Frontier,
    /// The next segment has been requested.
    asked: bool,
    /// The last record, if records are late.
    late: Vec<u8>,
}

impl End {
    /// Writes the late record, and makes `next` the late one.
    async fn write_late(&mut self, next: Vec<u8>) -> Result<(), DiskError> {
        let late = std::mem::replace(&mut self.late, next);
        match late.len() as u64 {
            0 => Ok(()),
            len => self.segment.file.write_at(self.offset - len, late.into()).await,
        }
    }
}

impl Log {
    /// Writes commands behind all others, in one piece and in one segment. When it returns, they
    /// survive the end of the process; [`Log::force`] makes them survive a power cut. A crash in
    /// the call can leave the first ones of them. Returns the frontier at the last one.
    ///
    /// One call at a time: the caller decides on the order of commands. [`LogError::NoSpace`] and
    /// [`LogError::TooLong`] leave the log as it was. Dropping the future before its end leaves the
    /// log in an unknown state, so it then refuses all further work.
    ///
    /// The first record of a replicated group is no command. Its entries are in order: an index is
    /// at most the last one plus 1. A base names a durable snapshot.
    pub async fn append(&self, entries: &[Entry<'_>]) -> Result<Frontier, LogError> {
        self.append_batch(entries, false).await
    }

    async fn append_batch(
        &self,
        entries: &[Entry<'_>],
        is_checkpoint: bool,
    ) -> Result<Frontier, LogError> {
        assert!(!entries.is_empty(), "a batch has commands");
        assert!(!self.appending.replace(true), "appends are serialised by the caller");
        let _appending = Finally(|| self.appending.set(false));
        let _turn = self.turns.turn().await;
        let mut end = self.end.lock().await;
        self.check()?;
        let reserve = self.groups_with(entries).command_reserve();
        let (bytes, batch) = self
            .fit(&mut end, reserve, |end| self.encode_batch(end, entries, is_checkpoint))
            .await?;
        self.put(&mut end, bytes, entries.len() as u64).await?;
        for entry in entries {
            let new = RunTerm { term: self.term(entry.group()), ..RunTerm::default() };
            self.terms.borrow_mut().entry(entry.group()).or_insert(new);
        }
        let Batch { frontier, ends, bases, releases } = batch;
        for (group, end) in ends {
            let run = RunTerm { term: end.term, is_replicated: true, ..RunTerm::default() };
            self.terms.borrow_mut().insert(group, run);
        }
        for (group, index, term, position) in bases {
            if let Some(received) = self.received.borrow_mut().get_mut(&(group, index))
                && received.term == term
            {
                received.base = Some(position);
            }
        }
        self.releases.borrow_mut().extend(releases);
        self.written.replace(frontier.clone());
        self.assert_order(&end);
        if !end.asked && end.offset > end.segment.len_bytes / 2 {
            end.asked = true;
            self.prepare_next();
        }
        Ok(frontier)
    }

    /// Reports a full disk now, before bytes are overwritten, rather than at the [`Log::append`] of
    /// the command that describes them. Nothing is set aside: there is room for more such commands
    /// than are under way at one time.
    pub async fn expect_room(&self) -> Result<(), LogError> {
        let is_near_end = self.left_bytes.get() < ROOM_BYTES.min(self.options.segment_bytes / 2);
        if is_near_end { self.supply.prepare().await } else { Ok(()) }
    }

    /// Makes all commands that were written before the call survive a power cut, and returns the
    /// frontier at the last one that does. The caller must sync data files before, or doubt their
    /// content at recovery.
    ///
    /// Calls that come while a sync is under way share the next one.
    pub async fn force(&self) -> Result<Frontier, LogError> {
        self.check()?;
        let upto = self.written_position();
        if self.durable_position() >= upto {
            return Ok(self.durable.borrow().clone());
        }
        self.wanted.replace(self.written.borrow().clone());
        let _forcing = self.forcing.turn().await;
        self.check()?;
        if self.durable_position() >= upto {
            return Ok(self.durable.borrow().clone());
        }
        let (file, position, upto) = {
            let _turn = self.turns.turn().await;
            let mut end = self.end.lock().await;
            self.check()?;
            let upto = self.wanted.borrow().clone();
            let marker = Payload::Forced { upto: upto.position };
            let reserve = self.groups_with(&[]).start_reserve();
            let (bytes, ()) = self
                .fit(&mut end, reserve, |end| Ok((self.encode_marker(end, &marker)?, ())))
                .await?;
            self.put(&mut end, bytes, 1).await?;
            end.marked = upto.clone();
            self.assert_order(&end);
            (end.segment.file.clone(), end.position, upto)
        };
        self.sync(&*file, position).await?;
        assert!(self.durable_position() <= upto.position, "one force at a time reports its end");
        self.durable.replace(upto.clone());
        self.release(upto.position);
        Ok(upto)
    }

    /// Takes over what the records up to here release.
    fn release(&self, forced: Position) {
        let mut releases = self.releases.borrow_mut();
        while let Some(release) = releases.pop_front_if(|release| release.position <= forced) {
            let mut segments = self.segments.borrow_mut();
            release.apply(segments.iter_mut(), &mut self.checkpoints.borrow_mut());
        }
    }

    /// Index of the group's last command that survives the end of the process. Of a replicated
    /// group: of its last entry, which goes back when entries are voided.
    pub fn written(&self, group: GroupId) -> LogIndex {
        self.written.borrow().index(group)
    }

    /// Index of the group's last command that survives a power cut. Of a replicated group: the
    /// index of the last entry after the forced records. Records behind them can void entries.
    pub fn durable(&self, group: GroupId) -> LogIndex {
        let durable = self.durable.borrow();
        if Planted::ForcedOfOtherGroup.is_on() {
            return durable.indices().map(|(_, index)| index).max().unwrap_or_default();
        }
        durable.index(group)
    }

    /// The log up to the last command that survives the end of the process.
    pub fn written_frontier(&self) -> Frontier {
        self.written.borrow().clone()
    }

    /// Position of the last command that survives the end of the process.
    pub fn written_position(&self) -> Position {
        self.written.borrow().position
    }

    /// Position of the last command that survives a power cut.
    pub fn durable_position(&self) -> Position {
        self.durable.borrow().position
    }

    /// Whether consensus gives the terms and indices of the group.
    pub fn is_replicated(&self, group: GroupId) -> bool {
        self.terms.borrow().get(&group).is_some_and(|run| run.is_replicated)
    }

    /// The term of the group's commands in this run. Of a replicated group: of its last entry.
    pub fn term(&self, group: GroupId) -> Term {
        let terms = self.terms.borrow();
        // A group that has its first command in this run: no earlier run had this number.
        terms.get(&group).unwrap_or(&terms[&GroupId::LOCAL]).term
    }

    /// The first failure of the disk under a record. Since then nothing is acknowledged.
    pub fn failed(&self) -> Option<LogError> {
        self.failed.borrow().clone()
    }

    /// Completes with the first failure.
    pub async fn failure(&self) -> LogError {
        loop {
            let failing = self.failing.wait();
            if let Some(error) = self.failed() {
                return error;
            }
            failing.await;
        }
    }

    /// Keeps a group's state, and gives up the part of the log that no group needs. A snapshot
    /// cannot be cut, so the log is forced first if it is not yet: as for [`Log::force`], the
    /// caller has synced the data files. The local group's snapshot comes before those of the
    /// partitions. A state older than the newest snapshot of its group is not kept.
    ///
    /// The snapshot of a replicated group gives up nothing of the log: [`Log::checkpoint`] follows.
    ///
    /// Other calls go on at the same time. After an error the log and the previous snapshot are as
    /// they were, or only their clean-up is missing, which the next snapshot makes up for.
    pub async fn snapshot(
        &self,
        group: GroupId,
        at: SnapshotAt,
        frames: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), LogError> {
        let SnapshotAt { index, position, version, term } = at;
        let is_replicated = self.is_replicated(group);
        assert_eq!(term.is_some(), is_replicated, "only consensus gives terms");
        assert!(
            index <= self.written(group) && position <= self.written_position(),
            "a snapshot holds only what is in the log"
        );
        let _snapshotting = self.snapshotting.lock().await;
        if position < self.snapshot_of(group).position {
            // The local group's file would get an older state than those of the partitions.
            return Ok(());
        }
        assert!(
            group == GroupId::LOCAL || position <= self.snapshot_of(GroupId::LOCAL).position,
            "the local group's snapshot comes first"
        );
        if position > self.durable_position() {
            self.force().await?;
        }
        let header = SnapshotHeader {
            volume: self.options.volume,
            group,
            term: term.unwrap_or_else(|| self.term_of(group, index)),
            index,
            position,
            version,
        };
        let path = snapshots::path(group, index);
        let len_bytes = snapshots::write(&*self.disk, &path, header, frames).await?;
        assert!(position <= self.durable_position(), "only forced commands are left to a snapshot");
        self.snapshots.borrow_mut().insert(group, Taken { index, position, len_bytes });
        snapshots::remove_older(&*self.disk, group, index, is_replicated).await?;
        if is_replicated {
            return self.remove_received(group, position).await;
        }
        self.truncate().await
    }

    /// Keeps a snapshot of a replicated group that another node has sent. It is ahead of the log:
    /// its base comes next, by [`Log::append`], and until that is forced a start can go on from the
    /// group's snapshot before. A start that finds no base for it removes it. The snapshot before
    /// stays until the next [`Log::checkpoint`] or [`Log::snapshot`] of the group.
    ///
    /// It can replace entries of the log: Raft installs a snapshot also where a replica has other
    /// entries at its index.
    pub async fn install_snapshot(
        &self,
        group: GroupId,
        at: ReceivedAt,
        frames: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), LogError> {
        let ReceivedAt { term, index, version } = at;
        assert!(group != GroupId::LOCAL && term > Term(0) && index > LogIndex(0));
        let _snapshotting = self.snapshotting.lock().await;
        self.check()?;
        let position = self.written_position();
        let volume = self.options.volume;
        let header = SnapshotHeader { volume, group, term, index, position, version };
        // An earlier one of the same index is overwritten.
        self.received.borrow_mut().remove(&(group, index));
        let path = snapshots::received_path(group, index);
        let len_bytes = snapshots::write(&*self.disk, &path, header, frames).await?;
        let received = Received { term, position, base: None, len_bytes };
        self.received.borrow_mut().insert((group, index), received);
        Ok(())
    }

    /// Opens the snapshot from [`Log::install_snapshot`] with the highest index, or else the
    /// group's newest snapshot. `None` if the group has none.
    pub async fn open_snapshot(&self, group: GroupId) -> Result<Option<SnapshotFrames>, LogError> {
        let _snapshotting = self.snapshotting.lock().await;
        let of_group = (group, LogIndex(0))..=(group, LogIndex(u64::MAX));
        let received = self.received.borrow().range(of_group).next_back().map(|(key, _)| key.1);
        let taken = self.snapshots.borrow().get(&group).map(|taken| taken.index);
        let (path, index) = match (received, taken) {
            (Some(index), _) => (snapshots::received_path(group, index), index),
            (None, Some(index)) => (snapshots::path(group, index), index),
            (None, None) => return Ok(None),
        };
        let volume = self.options.volume;
        SnapshotFrames::open_at(&*self.disk, volume, (group, index), path).await.map(Some)
    }

    /// Appends records of a replicated group that make its earlier promises superfluous, forces
    /// them, and gives up the part of the log that no group needs. The last of `records` is the
    /// base of the group's newest snapshot, and all others are promises. Entries behind the base
    /// stay. A snapshot of the local group at or behind the group's newest comes before.
    ///
    /// No call of [`Log::append`] at the same time: the caller decides on the order. After an error
    /// of the clean-up the next checkpoint makes up for it.
    pub async fn checkpoint(
        &self,
        group: GroupId,
        records: &[Replicated<'_>],
    ) -> Result<(), LogError> {
        assert!(
            matches!(records, [promises @ .., Replicated::Base { .. }]
                if promises.iter().all(|record| matches!(record, Replicated::Promise(_)))),
            "a crash can leave the first records of a batch, so the base is the last"
        );
        let entries: Vec<Entry<'_>> =
            records.iter().map(|record| Entry::Replicated(group, *record)).collect();
        self.append_batch(&entries, true).await?;
        self.force().await?;
        let _snapshotting = self.snapshotting.lock().await;
        self.adopt_received(group).await?;
        self.truncate().await
    }

    /// Makes the received snapshot whose base was forced last the newest snapshot of the group.
    async fn adopt_received(&self, group: GroupId) -> Result<(), LogError> {
        let forced = self.durable_position();
        let newest = {
            let received = self.received.borrow();
            let of_group = received.iter().filter(|((other, _), _)| *other == group);
            let forced = of_group.filter_map(|((_, index), received)| {
                received.base.filter(|base| *base <= forced).map(|base| (base, *index, *received))
            });
            forced.max_by_key(|(base, ..)| *base)
        };
        let Some((base, index, received)) = newest else { return Ok(()) };
        if received.position > self.snapshot_of(GroupId::LOCAL).position {
            // The local group's snapshot comes first.
            return Ok(());
        }
        let (from, to) = (snapshots::received_path(group, index), snapshots::path(group, index));
        self.disk.rename(&from, &to).await?;
        self.disk.sync_dir(SNAPSHOT_DIR).await?;
        let Received { position, len_bytes, .. } = received;
        self.received.borrow_mut().remove(&(group, index));
        self.snapshots.borrow_mut().insert(group, Taken { index, position, len_bytes });
        snapshots::remove_older(&*self.disk, group, index, true).await?;
        self.remove_received(group, base).await
    }

    /// Removes received snapshots with bases up to `position`: the group has a newer snapshot.
    async fn remove_received(&self, group: GroupId, position: Position) -> Result<(), LogError> {
        let superseded: Vec<LogIndex> = {
            let received = self.received.borrow();
            let of_group = received.iter().filter(|((other, _), _)| *other == group);
            of_group
                .filter(|(_, received)| received.base.is_some_and(|base| base <= position))
                .map(|((_, index), _)| *index)
                .collect()
        };
        for index in superseded {
            self.disk.remove(&snapshots::received_path(group, index)).await?;
            self.received.borrow_mut().remove(&(group, index));
        }
        Ok(self.disk.sync_dir(SNAPSHOT_DIR).await?)
    }

    /// The newest snapshot of the group; the empty state before the first one.
    fn snapshot_of(&self, group: GroupId) -> Taken {
        let none = Taken { index: LogIndex(0), position: Position(0), len_bytes: 0 };
        self.snapshots.borrow().get(&group).copied().unwrap_or(none)
    }

    /// The term of a command of this run, or of the last one before it.
    fn term_of(&self, group: GroupId, index: LogIndex) -> Term {
        let Some(run) = self.terms.borrow().get(&group).copied() else { return Term(0) };
        let (last, term) = run.before;
        assert!(index >= last, "a state is not older than the run");
        if index == last { term } else { run.term }
    }

    /// Continues in a segment that is made here. Once a snapshot covers all earlier commands, a
    /// start needs no other segment.
    pub async fn begin_segment(&self) -> Result<(), LogError> {
        let _snapshotting = self.snapshotting.lock().await;
        // The segment made ahead may be the damaged one.
        self.supply.discard().await?;
        self.supply.prepare().await?;
        let (file, position) = {
            let _turn = self.turns.turn().await;
            let mut end = self.end.lock().await;
            self.check()?;
            self.roll(&mut end).await?;
            (end.segment.file.clone(), end.position)
        };
        // A start that needs no other segment must find its first record.
        self.sync(&*file, position).await
    }

    /// Whether no group needs the segments before this one. Snapshots hold all their commands, and
    /// the last checkpoint of each replicated group is in this one or behind it. A snapshot of a
    /// replicated group that is newer than the checkpoint's base counts with the next checkpoint:
    /// a log goes on from a base that it has.
    fn begins_here(&self, segment: &Used) -> bool {
        let checkpoints = self.checkpoints.borrow();
        let is_covered = |(group, run): (&GroupId, &RunTerm)| {
            let (index, snapshot) = (segment.base.index(*group), self.snapshot_of(*group).index);
            if !run.is_replicated {
                return index <= snapshot;
            }
            checkpoints.get(group).is_some_and(|checkpoint| {
                segment.generation <= checkpoint.generation
                    && checkpoint.index <= snapshot
                    && index <= checkpoint.index
            })
        };
        self.terms.borrow().iter().all(is_covered)
    }

    /// The number of segments, from the oldest on, that no group needs.
    fn not_needed(&self) -> usize {
        let segments = self.segments.borrow();
        segments.iter().skip(1).take_while(|next| self.begins_here(next)).count()
    }

    /// Recycles segments that are not needed, oldest first.
    async fn truncate(&self) -> Result<(), LogError> {
        let (given_up, file, position) = {
            let _turn = self.turns.turn().await;
            let end = self.end.lock().await;
            (self.not_needed(), end.segment.file.clone(), end.position)
        };
        if given_up > 0 {
            // A log cannot be read without its first record, which may be in the page cache alone
            // if the log has just moved on to the segment that stays.
            self.sync(&*file, position).await?;
        }
        for _ in 0..given_up {
            let oldest = self
                .segments
                .borrow()
                .front()
                .expect("only a snapshot gives up segments")
                .generation;
            self.supply.recycle(oldest).await?;
            self.segments.borrow_mut().pop_front();
        }
        Ok(())
    }

    /// Makes the records up to `position`, the last of them in `file`, survive a power cut.
    async fn sync(&self, file: &dyn DiskFile, position: Position) -> Result<(), LogError> {
        let _syncing = self.syncing.lock().await;
        if let Err(error) = file.sync_data().await {
            return Err(self.fail(LogError::Disk(error)));
        }
        // A failure during the sync may also concern its records.
        self.check()?;
        self.synced.set(self.synced.get().max(position));
        Ok(())
    }

    /// Encodes records for the end of the log, in one segment and with `reserve` bytes behind them.
    async fn fit<T>(
        &self,
        end: &mut End,
        reserve: u64,
        encode: impl Fn(&End) -> Result<(Vec<u8>, T), LogError>,
    ) -> Result<(Vec<u8>, T), LogError> {
        let (bytes, made) = encode(end)?;
        let len_bytes = bytes.len() as u64;
        if end.offset + len_bytes + reserve <= end.segment.len_bytes {
            return Ok((bytes, made));
        }
        let start = self.groups_with(&[]).start_bytes();
        let taken = SEGMENT_HEADER_BYTES as u64 + start + reserve;
        let max_bytes = self.options.segment_bytes.saturating_sub(taken);
        if len_bytes > max_bytes {
            return Err(LogError::TooLong { len_bytes, max_bytes });
        }
        self.roll(end).await?;
        encode(end)
    }

    fn encode_batch(
        &self,
        end: &End,
        entries: &[Entry<'_>],
        is_checkpoint: bool,
    ) -> Result<(Vec<u8>, Batch), LogError> {
        let mut batch = Batch { frontier: self.written.borrow().clone(), ..Batch::default() };
        let mut bytes = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let position = Position(end.position.0 + 1 + at as u64);
            let payload = match *entry {
                Entry::Local(command) => Payload::Local(command),
                Entry::Command(group, command) => {
                    assert!(!self.is_replicated(group), "consensus gives the group's indices");
                    Payload::Command(command)
                }
                Entry::Replicated(group, record) => {
                    let header = RecordHeader { group, ..self.header(end, position) };
                    self.encode_replicated(header, record, is_checkpoint, &mut batch, &mut bytes)
                        .map_err(|error| self.format_error(end, error))?;
                    continue;
                }
            };
            let header = RecordHeader {
                group: entry.group(),
                term: self.term(entry.group()),
                index: batch.frontier.push(entry.group(), position),
                ..self.header(end, position)
            };
            self.encode(end, &header, &payload, &mut bytes)?;
        }
        Ok((bytes, batch))
    }

    /// Encodes a record of a replicated group, and moves `batch` on over it. `header` lacks term
    /// and index.
    fn encode_replicated(
        &self,
        header: RecordHeader,
        record: Replicated<'_>,
        is_checkpoint: bool,
        batch: &mut Batch,
        bytes: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        let RecordHeader { group, position, generation, .. } = header;
        let base;
        let (kind, (term, index), encoded) = match record {
            Replicated::Command { term, index, bytes } => {
                (Kind::Entry, (term, index), Encoded::Command(bytes))
            }
            Replicated::Step { term, index, bytes } => {
                (Kind::Entry, (term, index), Encoded::Step(bytes))
            }
            Replicated::Base { term, index, bytes } => {
                base = Base { is_checkpoint, content: bytes };
                (Kind::Base { is_checkpoint }, (term, index), Encoded::Base(&base))
            }
            Replicated::Promise(bytes) => {
                (Kind::Promise, Default::default(), Encoded::Promise(bytes))
            }
        };
        let at = batch.ends.iter().position(|(other, _)| *other == group).unwrap_or_else(|| {
            batch.ends.push((group, self.end_of(group)));
            batch.ends.len() - 1
        });
        let end = &mut batch.ends[at].1;
        assert!(
            end.is_replicated || !matches!(record, Replicated::Command { .. }),
            "a start learns that a group is replicated from another record than a command"
        );
        let void = end
            .advance(kind, term, index)
            .unwrap_or_else(|what| panic!("group {}: {what}", group.0));
        batch.frontier.set(group, position, end.last.0);
        if let Kind::Base { .. } = kind {
            assert!(self.has_snapshot(group, index), "the snapshot is durable before its base");
            batch.bases.push((group, index, term, position));
        }
        batch.releases.extend(Release::of((position, group, index), kind, void, generation));
        record::encode_replicated(&RecordHeader { term, index, ..header }, encoded, bytes)
    }

    /// The end of the group in the log.
    fn end_of(&self, group: GroupId) -> GroupEnd {
        let Some(run) = self.terms.borrow().get(&group).copied() else {
            return GroupEnd::default();
        };
        let RunTerm { term, is_replicated, .. } = run;
        let index = self.written(group);
        let last = if is_replicated { term } else { self.term_of(group, index) };
        GroupEnd { term, last: (index, last), is_replicated }
    }

    fn has_snapshot(&self, group: GroupId, index: LogIndex) -> bool {
        self.received.borrow().contains_key(&(group, index))
            || index <= self.snapshot_of(group).index
    }

    fn encode_marker(
        &self,
        end: &End,
        marker: &Payload<&Command, &LocalCommand>,
    ) -> Result<Vec<u8>, LogError> {
        let mut bytes = Vec::new();
        let header = self.header(end, Position(end.position.0 + 1));
        self.encode(end, &header, marker, &mut bytes)?;
        Ok(bytes)
    }

    /// The header of a marker.
    fn header(&self, end: &End, position: Position) -> RecordHeader {
        RecordHeader {
            generation: end.segment.generation,
            group: GroupId::LOCAL,
            position,
            synced: self.synced.get(),
            term: self.term(GroupId::LOCAL),
            index: LogIndex(0),
        }
    }

    fn encode(
        &self,
        end: &End,
        header: &RecordHeader,
        payload: &Payload<&Command, &LocalCommand>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), LogError> {
        record::encode(header, payload, bytes).map_err(|error| self.format_error(end, error))
    }

    fn format_error(&self, end: &End, error: FormatError) -> LogError {
        LogError::format(&segments::path(end.segment.generation), end.offset, error)
    }

    /// The groups of the log and the entries.
    fn groups_with(&self, entries: &[Entry<'_>]) -> GroupCount {
        let terms = self.terms.borrow();
        let new = entries.iter().map(Entry::group).filter(|group| !terms.contains_key(group));
        let groups = terms.len() + new.collect::<BTreeSet<_>>().len();
        assert!(groups <= MAX_GROUPS, "a log has at most {MAX_GROUPS} groups");
        let is_replicated = terms.values().any(|run| run.is_replicated)
            || entries.iter().any(|entry| matches!(entry, Entry::Replicated(..)));
        GroupCount { groups, is_replicated }
    }

    /// The orders of [`Log`]'s positions.
    fn assert_order(&self, end: &End) {
        let snapshot = self.snapshots.borrow().values().map(|taken| taken.position).max();
        let snapshot = snapshot.unwrap_or_default();
        let (durable, marked) = (self.durable_position(), end.marked.position);
        let (wanted, written) = (self.wanted.borrow().position, self.written_position());
        assert!(
            snapshot <= durable && durable <= marked && marked <= wanted && wanted <= written,
            "snapshot {snapshot:?}, durable {durable:?}, marked {marked:?}, wanted {wanted:?}, \
             written {written:?}"
        );
        let synced = self.synced.get();
        assert!(
            synced <= end.position && written <= end.position,
            "synced {synced:?}, written {written:?} of {:?}",
            end.position
        );
    }

    /// Writes so many records.
    async fn put(&self, end: &mut End, bytes: Vec<u8>, records: u64) -> Result<(), LogError> {
        let len = bytes.len() as u64;
        assert!(
            end.offset.is_multiple_of(LINE_BYTES as u64)
                && end.offset + len <= end.segment.len_bytes,
            "records fit their segment"
        );
        let unless_abandoned = Finally(|| {
            self.fail(LogError::Abandoned);
        });
        let result = match Planted::LateRecord.is_on() {
            false => end.segment.file.write_at(end.offset, bytes.into()).await,
            true => end.write_late(bytes).await,
        };
        std::mem::forget(unless_abandoned);
        if let Err(error) = result {
            return Err(self.fail(LogError::Disk(error)));
        }
        end.offset += len;
        end.position.0 += records;
        self.left_bytes.set(end.segment.len_bytes - end.offset);
        Ok(())
    }

    /// Moves on to the next segment. A failure changes nothing.
    async fn roll(&self, end: &mut End) -> Result<(), LogError> {
        let next = self.supply.take().await?;
        let unless_abandoned = Finally(|| {
            self.fail(LogError::Abandoned);
        });
        if let Err(error) = end.write_late(Vec::new()).await {
            return Err(self.fail(LogError::Disk(error)));
        }
        let synced = self.sync(&*end.segment.file, end.position).await;
        std::mem::forget(unless_abandoned);
        synced?;
        self.segments
            .borrow_mut()
            .push_back(Used { generation: next.generation, base: self.written.borrow().clone() });
        *end = End {
            segment: next,
            offset: SEGMENT_HEADER_BYTES as u64,
            position: end.position,
            marked: end.marked.clone(),
            asked: false,
            late: Vec::new(),
        };
        let bytes = self.encode_start(end)?;
        self.put(end, bytes, 1).await
    }

    /// The start record of a run or a segment.
    fn encode_start(&self, end: &End) -> Result<Vec<u8>, LogError> {
        let written = self.written.borrow();
        let tail = |(group, run): (&GroupId, &RunTerm)| GroupTail {
            group: *group,
            term: run.term,
            index: written.index(*group),
            is_replicated: run.is_replicated,
        };
        let start = record::Start {
            boot_id: self.boot_id,
            incarnation: self.options.incarnation,
            forced: end.marked.position,
            cut: written.position,
            groups: self.terms.borrow().iter().map(tail).collect(),
        };
        self.encode_marker(end, &Payload::Start(start))
    }

    fn prepare_next(&self) {
        let supply = self.supply.clone();
        self.spawn.spawn(Box::pin(async move {
            if let Err(error) = supply.prepare().await {
                // The append that needs the segment tries again, and its caller gets the error.
                tracing::warn!(%error, "next log segment could not be prepared ahead");
            }
        }));
    }

    fn check(&self) -> Result<(), LogError> {
        self.failed().map_or(Ok(()), Err)
    }

    /// Records a failure. The first one stays.
    fn fail(&self, error: LogError) -> LogError {
        let first = self.failed.borrow_mut().get_or_insert(error).clone();
        self.failing.raise();
        first
    }
}

/// Runs when it is dropped.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

const _: () = assert!(
    MAX_RECORD_BYTES as u64
        + SEGMENT_HEADER_BYTES as u64
        + GroupCount { groups: MAX_GROUPS, is_replicated: true }.start_bytes()
        + GroupCount { groups: MAX_GROUPS, is_replicated: true }.command_reserve()
        < DEFAULT_SEGMENT_BYTES
);
