//! The durable log of one node: an order of commands that outlives processes and power cuts.
//!
//! Bytes and recovery rules are `docs/format/log.md`'s. Three promises are kept apart:
//! - *written*: [`Log::append`] has returned. The command survives the end of the process.
//! - *synced*: the record is on the medium, perhaps by accident. It says nothing to a caller:
//!   nobody has waited for it, and the data files that the command speaks of may be behind.
//! - *forced*, [`Log::durable`]: [`Log::force`] has returned. The command survives a power cut.
//!
//! Laws:
//! - `durable <= written`; both only grow.
//! - A command is written to space that is already there, so a full disk refuses a
//!   command and never breaks one.
//! - All segments but the last are synced whole before the last gets a record.
//! - After a failed write or sync of a record nothing is acknowledged any more: what the
//!   disk holds is unknown, and only a recovery can say.

mod error;
mod recovery;
mod replay;
mod scan;
mod segments;
mod snapshots;
mod turns;
mod verify;

pub use error::LogError;
pub use recovery::{Recovery, Start};
pub use replay::Commands;
pub(crate) use segments::{LOG_DIR, is_segment};
pub use snapshots::SnapshotFrames;
pub(crate) use snapshots::{SNAPSHOT_DIR, is_snapshot, list as snapshots, path as snapshot_path};
pub use verify::Damage;

use crate::signal::Signal;
use ebb_format::record::{
    self, LINE_BYTES, MARKER_BYTES, MAX_RECORD_BYTES, Payload, Position, RecordHeader, Term,
};
use ebb_format::segment::{SEGMENT_HEADER_BYTES, VolumeId};
use ebb_format::snapshot::SnapshotHeader;
use ebb_model::{Command, Incarnation, LogIndex, Planted, Version};
use ebb_ports::{Disk, DiskError, DiskFile, Spawn};
use futures_util::lock::Mutex;
use scan::{GROUP, Used};
use segments::{Segment, Supply};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use turns::Turns;

/// What a log is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whose log it is; another volume's is refused.
    pub volume: VolumeId,
    /// Of the run that begins. Recorded, and told to the next recovery.
    pub incarnation: Incarnation,
    /// Of each file of the log; a multiple of 4096. Bounds the longest command, what recovery holds
    /// in memory, and how much is kept that no snapshot needs. Files of another size stay readable.
    pub segment_bytes: u64,
}

pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 20;

/// Half of it is left for commands.
pub const MIN_SEGMENT_BYTES: u64 = 16 << 10;

/// A longer file in the log's directory was not made by a log.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Kept free at the end of a segment for the start records of runs that write nothing else,
/// so that a node with a full disk can be restarted over and over.
const START_RESERVE: u64 = 32 * MARKER_BYTES as u64;

/// Kept free behind a command, so that force needs no space: one marker for those who called
/// before the command was written, and one for those who call after it.
const MARKER_RESERVE: u64 = START_RESERVE + 2 * MARKER_BYTES as u64;

/// What may be logged while a write is under way that was told that there is room: hundreds of
/// other writes.
const ROOM_BYTES: u64 = 64 << 10;

pub struct Log {
    disk: Rc<dyn Disk>,
    spawn: Rc<dyn Spawn>,
    options: Options,
    boot_id: u128,
    supply: Rc<Supply>,
    /// Taken before `end` while the log is open, so that nobody waits there for long.
    turns: Rc<Turns>,
    /// Locked while a record is on its way.
    end: Mutex<End>,
    /// With records, oldest first. The last is the one written to.
    segments: RefCell<VecDeque<Used>>,
    /// Who waits here shares the next sync. Taken before `turns`.
    forcing: Rc<Turns>,
    /// One sync at a time: of two at one time the system tells only one that it failed. Taken
    /// behind all others.
    syncing: Mutex<()>,
    /// Nothing is recycled meanwhile.
    snapshotting: Mutex<()>,
    /// Of the newest snapshot that is durable: a start needs no segment whose commands are all at
    /// or below it.
    snapshot_at: Cell<LogIndex>,
    snapshot_bytes: Cell<u64>,
    /// The highest index that somebody waits for.
    wanted: Cell<LogIndex>,
    written: Cell<LogIndex>,
    durable: Cell<LogIndex>,
    synced: Cell<Position>,
    appending: Cell<bool>,
    /// Of the segment that is written to, behind its last record.
    left_bytes: Cell<u64>,
    failed: RefCell<Option<LogError>>,
    failing: Signal,
}

/// Where the next record goes.
struct End {
    segment: Segment,
    offset: u64,
    /// Of the last record.
    position: Position,
    /// What the last marker says is forced. `durable` follows once the marker is synced.
    marked: LogIndex,
    /// The next segment has been asked for.
    asked: bool,
    /// The last record, if records are late.
    late: Vec<u8>,
}

impl End {
    /// Writes the record that was late; `next` is it from then on.
    async fn write_late(&mut self, next: Vec<u8>) -> Result<(), DiskError> {
        let late = std::mem::replace(&mut self.late, next);
        match late.len() as u64 {
            0 => Ok(()),
            len => self.segment.file.write_at(self.offset - len, late.into()).await,
        }
    }
}

impl Log {
    /// Writes a command behind all others. When it returns, the command survives the end of
    /// the process; [`Log::force`] makes it survive a power cut.
    ///
    /// One call at a time: the order of commands is the caller's to decide.
    /// [`LogError::NoSpace`] and [`LogError::TooLong`] leave the log as it was. Dropping the
    /// future before its end leaves nobody knowing, so the log then refuses all further work.
    pub async fn append(&self, command: &Command) -> Result<LogIndex, LogError> {
        assert!(!self.appending.replace(true), "appends are serialised by the caller");
        let _appending = Finally(|| self.appending.set(false));
        let _turn = self.turns.turn().await;
        let mut end = self.end.lock().await;
        self.check()?;
        let index = LogIndex(self.written.get().0 + 1);
        self.write(&mut end, Payload::Command(command), index, MARKER_RESERVE).await?;
        self.written.set(index);
        if !end.asked && end.offset > end.segment.len_bytes / 2 {
            end.asked = true;
            self.prepare_next();
        }
        Ok(index)
    }

    /// Refuses now, on a full disk, what [`Log::append`] could refuse when bytes are written over
    /// that a command speaks of. Nothing is set aside: there is room for more such commands than
    /// are under way at one time.
    pub async fn expect_room(&self) -> Result<(), LogError> {
        let is_near_end = self.left_bytes.get() < ROOM_BYTES.min(self.options.segment_bytes / 2);
        if is_near_end { self.supply.prepare().await } else { Ok(()) }
    }

    /// Makes all commands that were written before the call survive a power cut, and returns
    /// the index up to which they do. What data files hold is the caller's to sync before, or
    /// to doubt at recovery.
    ///
    /// Calls that come while a sync is under way share the next one.
    pub async fn force(&self) -> Result<LogIndex, LogError> {
        self.check()?;
        let upto = self.written();
        if self.durable() >= upto {
            return Ok(self.durable());
        }
        self.wanted.set(self.wanted.get().max(upto));
        let _forcing = self.forcing.turn().await;
        self.check()?;
        if self.durable() >= upto {
            return Ok(self.durable());
        }
        let (file, position, upto) = {
            let _turn = self.turns.turn().await;
            let mut end = self.end.lock().await;
            self.check()?;
            let upto = self.wanted.get();
            self.write(&mut end, Payload::Forced { upto }, self.written(), START_RESERVE).await?;
            end.marked = upto;
            (end.segment.file.clone(), end.position, upto)
        };
        self.sync(&*file, position).await?;
        self.durable.set(upto);
        Ok(upto)
    }

    /// Index of the last command that survives the end of the process.
    pub fn written(&self) -> LogIndex {
        self.written.get()
    }

    /// Index of the last command that survives a power cut.
    pub fn durable(&self) -> LogIndex {
        self.durable.get()
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

    /// Keeps the state after command `at`, whose last version is `version`, and gives up the
    /// log below it. A snapshot cannot be cut, so it is forced first if it is not yet: as for
    /// [`Log::force`], the caller has seen to the data files.
    ///
    /// Others go on meanwhile. After an error the log and the previous snapshot are as they
    /// were, or only their clean-up is missing, which the next snapshot makes up for.
    pub async fn snapshot(
        &self,
        at: LogIndex,
        version: Version,
        frames: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), LogError> {
        assert!(at <= self.written(), "a snapshot holds only what is in the log");
        let _snapshotting = self.snapshotting.lock().await;
        if at > self.durable() {
            self.force().await?;
        }
        let header = SnapshotHeader {
            volume: self.options.volume,
            group: GROUP,
            term: self.term(),
            index: at,
            version,
        };
        let len_bytes = snapshots::write(&*self.disk, header, frames).await?;
        if at >= self.snapshot_at.get() {
            self.snapshot_at.set(at);
            self.snapshot_bytes.set(len_bytes);
        }
        snapshots::remove_older(&*self.disk, at).await?;
        self.truncate(at).await
    }

    /// Goes on in a segment that is made now. Once there is a snapshot of all that has been written
    /// by then, a start needs no other.
    pub async fn begin_segment(&self) -> Result<(), LogError> {
        let _snapshotting = self.snapshotting.lock().await;
        // Made ahead, it may be what is damaged.
        self.supply.discard().await?;
        self.supply.prepare().await?;
        let (file, position) = {
            let _turn = self.turns.turn().await;
            let mut end = self.end.lock().await;
            self.check()?;
            self.roll(&mut end).await?;
            (end.segment.file.clone(), end.position)
        };
        // A start that is to need no other must find its first record.
        self.sync(&*file, position).await
    }

    /// Recycles segments whose commands are all at or below `at`, oldest first.
    async fn truncate(&self, at: LogIndex) -> Result<(), LogError> {
        let (given_up, file, position) = {
            let _turn = self.turns.turn().await;
            let end = self.end.lock().await;
            let given_up =
                self.segments.borrow().iter().skip(1).take_while(|next| next.base <= at).count();
            (given_up, end.segment.file.clone(), end.position)
        };
        if given_up > 0 {
            // Nobody can read a log without its first record, which may be in the page cache
            // alone if the log has just gone on in the segment that stays.
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
        // What failed meanwhile may have failed for the same reason.
        self.check()?;
        self.synced.set(self.synced.get().max(position));
        Ok(())
    }

    /// Writes one record and leaves `reserve` bytes behind it. `index` is as in [`RecordHeader`].
    async fn write(
        &self,
        end: &mut End,
        payload: Payload<&Command>,
        index: LogIndex,
        reserve: u64,
    ) -> Result<(), LogError> {
        let mut bytes = self.encode(end, &payload, index)?;
        if end.offset + bytes.len() as u64 + reserve > end.segment.len_bytes {
            let max_bytes = self.options.segment_bytes
                - SEGMENT_HEADER_BYTES as u64
                - MARKER_BYTES as u64
                - reserve;
            if bytes.len() as u64 > max_bytes {
                return Err(LogError::TooLong { len_bytes: bytes.len() as u64, max_bytes });
            }
            self.roll(end).await?;
            bytes = self.encode(end, &payload, index)?;
        }
        self.put(end, bytes).await
    }

    fn encode(
        &self,
        end: &End,
        payload: &Payload<&Command>,
        index: LogIndex,
    ) -> Result<Vec<u8>, LogError> {
        let header = RecordHeader {
            generation: end.segment.generation,
            group: GROUP,
            position: Position(end.position.0 + 1),
            synced: self.synced.get(),
            term: self.term(),
            index,
        };
        let mut bytes = Vec::new();
        record::encode(&header, payload, &mut bytes).map_err(|error| {
            LogError::format(&segments::path(end.segment.generation), end.offset, error)
        })?;
        Ok(bytes)
    }

    /// Where commands have one leader its reign is the volume's incarnation.
    fn term(&self) -> Term {
        Term(self.options.incarnation.0.into())
    }

    async fn put(&self, end: &mut End, bytes: Vec<u8>) -> Result<(), LogError> {
        let len = bytes.len() as u64;
        assert!(
            end.offset.is_multiple_of(LINE_BYTES as u64)
                && end.offset + len <= end.segment.len_bytes,
            "a record fits its segment"
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
        end.position.0 += 1;
        self.left_bytes.set(end.segment.len_bytes - end.offset);
        Ok(())
    }

    /// Goes on in the next segment. Until that is there, nothing has changed.
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
            .push_back(Used { generation: next.generation, base: self.written() });
        *end = End {
            segment: next,
            offset: SEGMENT_HEADER_BYTES as u64,
            position: end.position,
            marked: end.marked,
            asked: false,
            late: Vec::new(),
        };
        self.write_start(end).await
    }

    /// Begins a run or a segment.
    async fn write_start(&self, end: &mut End) -> Result<(), LogError> {
        let start = Payload::Start {
            boot_id: self.boot_id,
            incarnation: self.options.incarnation,
            forced: end.marked,
        };
        let bytes = self.encode(end, &start, self.written())?;
        self.put(end, bytes).await
    }

    fn prepare_next(&self) {
        let supply = self.supply.clone();
        self.spawn.spawn(Box::pin(async move {
            if let Err(error) = supply.prepare().await {
                // The append that needs the segment tries again and has somebody to tell.
                tracing::warn!(%error, "next log segment could not be prepared ahead");
            }
        }));
    }

    fn check(&self) -> Result<(), LogError> {
        self.failed().map_or(Ok(()), Err)
    }

    /// The first failure stays.
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
    MAX_RECORD_BYTES as u64 + SEGMENT_HEADER_BYTES as u64 + MARKER_RESERVE < DEFAULT_SEGMENT_BYTES
);
