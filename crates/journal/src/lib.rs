//! The durable log of one node: an order of commands that outlives processes and power cuts.
//!
//! The log carries several groups: [`GroupId::LOCAL`], whose commands are about this node's disk,
//! and partitions. The commands of a group have indices without gaps, and all records have
//! positions without gaps. The log up to a position has the first commands of every group, so
//! forced and cut are counted in positions, and one sync forces all groups.
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
//! - In each run the terms of all groups are higher than in the run before. So term and index of a
//!   group never name two commands, also if a power cut has taken the first.
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
mod scan;
mod segments;
mod snapshots;
mod turns;
mod verify;

pub use entry::{Entry, Frontier, Logged, LoggedCommand};
pub use error::LogError;
pub use recovery::{Recovery, Start};
pub use release_0_1_0::Log010;
pub use replay::Entries;
pub use segments::{LOG_DIR, is_segment};
pub use snapshots::{SNAPSHOT_DIR, is_snapshot, list as snapshots, path as snapshot_path};
pub use snapshots::{SnapshotAt, SnapshotFrames};
pub use verify::Damage;

use ebb_format::record::{
    self, FORCED_BYTES, GroupId, GroupTail, LINE_BYTES, MAX_GROUPS, MAX_RECORD_BYTES, Payload,
    Position, RecordHeader, Term, start_bytes,
};
use ebb_format::segment::{SEGMENT_HEADER_BYTES, VolumeId};
use ebb_format::snapshot::SnapshotHeader;
use ebb_model::{Command, Incarnation, LocalCommand, LogIndex, Planted};
use ebb_ports::{Disk, DiskError, DiskFile, Signal, Spawn};
use futures_util::lock::Mutex;
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

/// Kept free behind a marker.
const fn start_reserve(groups: usize) -> u64 {
    RESTARTS * start_bytes(groups) as u64
}

/// Kept free behind a command, so that force needs no space: one marker for callers before the
/// command was written, and one for callers after it.
const fn command_reserve(groups: usize) -> u64 {
    start_reserve(groups) + 2 * FORCED_BYTES as u64
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

/// The term of a group in this run.
#[derive(Clone, Copy)]
struct RunTerm {
    term: Term,
    /// The last command before the run, and its term.
    before: (LogIndex, Term),
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
    pub async fn append(&self, entries: &[Entry<'_>]) -> Result<Frontier, LogError> {
        assert!(!entries.is_empty(), "a batch has commands");
        assert!(!self.appending.replace(true), "appends are serialised by the caller");
        let _appending = Finally(|| self.appending.set(false));
        let _turn = self.turns.turn().await;
        let mut end = self.end.lock().await;
        self.check()?;
        let reserve = command_reserve(self.groups_with(entries));
        let (bytes, frontier) =
            self.fit(&mut end, reserve, |end| self.encode_batch(end, entries)).await?;
        self.put(&mut end, bytes, entries.len() as u64).await?;
        for entry in entries {
            let new = RunTerm { term: self.term(entry.group()), before: Default::default() };
            self.terms.borrow_mut().entry(entry.group()).or_insert(new);
        }
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
            let reserve = start_reserve(self.terms.borrow().len());
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
        Ok(upto)
    }

    /// Index of the group's last command that survives the end of the process.
    pub fn written(&self, group: GroupId) -> LogIndex {
        self.written.borrow().index(group)
    }

    /// Index of the group's last command that survives a power cut.
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

    /// The term of the group's commands in this run.
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
    /// Other calls go on at the same time. After an error the log and the previous snapshot are as
    /// they were, or only their clean-up is missing, which the next snapshot makes up for.
    pub async fn snapshot(
        &self,
        group: GroupId,
        at: SnapshotAt,
        frames: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), LogError> {
        let SnapshotAt { index, position, version } = at;
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
            term: self.term_of(group, index),
            index,
            position,
            version,
        };
        let len_bytes = snapshots::write(&*self.disk, header, frames).await?;
        assert!(position <= self.durable_position(), "only forced commands are left to a snapshot");
        self.snapshots.borrow_mut().insert(group, Taken { index, position, len_bytes });
        snapshots::remove_older(&*self.disk, group, index).await?;
        self.truncate().await
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

    /// Whether snapshots hold all of these commands.
    fn is_covered(&self, base: &Frontier) -> bool {
        base.indices().all(|(group, index)| index <= self.snapshot_of(group).index)
    }

    /// The number of segments, from the oldest on, whose commands are all in snapshots.
    fn not_needed(&self) -> usize {
        let segments = self.segments.borrow();
        segments.iter().skip(1).take_while(|next| self.is_covered(&next.base)).count()
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
        let start = start_bytes(self.terms.borrow().len()) as u64;
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
    ) -> Result<(Vec<u8>, Frontier), LogError> {
        let mut frontier = self.written.borrow().clone();
        let mut bytes = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let position = Position(end.position.0 + 1 + at as u64);
            let header = RecordHeader {
                group: entry.group(),
                term: self.term(entry.group()),
                index: frontier.push(entry.group(), position),
                ..self.header(end, position)
            };
            let payload = match *entry {
                Entry::Local(command) => Payload::Local(command),
                Entry::Command(_, command) => Payload::Command(command),
            };
            self.encode(end, &header, &payload, &mut bytes)?;
        }
        Ok((bytes, frontier))
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
        record::encode(header, payload, bytes).map_err(|error| {
            LogError::format(&segments::path(end.segment.generation), end.offset, error)
        })
    }

    /// The number of groups of the log and the entries.
    fn groups_with(&self, entries: &[Entry<'_>]) -> usize {
        let terms = self.terms.borrow();
        let new = entries.iter().map(Entry::group).filter(|group| !terms.contains_key(group));
        let groups = terms.len() + new.collect::<BTreeSet<_>>().len();
        assert!(groups <= MAX_GROUPS, "a log has at most {MAX_GROUPS} groups");
        groups
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
        + start_bytes(MAX_GROUPS) as u64
        + command_reserve(MAX_GROUPS)
        < DEFAULT_SEGMENT_BYTES
);
