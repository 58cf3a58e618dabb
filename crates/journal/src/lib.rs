//! The durable log of one node: an order of commands that outlives processes and power cuts.
//!
//! `docs/format/log.md` defines bytes and recovery rules. Three promises are kept apart:
//! - *written*: [`Log::append`] has returned. The command survives the end of the process.
//! - *synced*: the record is on the medium, perhaps by accident. This promises nothing to a caller:
//!   no caller has waited for it, and the data files that the command refers to may be behind.
//! - *forced*, [`Log::durable`]: [`Log::force`] has returned. The command survives a power cut.
//!
//! Laws:
//! - Of commands: `snapshot <= durable <= marked <= wanted <= written`. Of records:
//!   `synced <= position`, the last record's. All of them only grow. A state that is to be the next
//!   snapshot comes between: `snapshot <= applied <= written`.
//! - A command is written to space that is already there, so a full disk refuses a command and
//!   never breaks one.
//! - All segments but the last are synced whole before the last gets a record.
//! - After a failed write or sync of a record nothing is acknowledged any more: the content of the
//!   disk is unknown, and only a recovery can read it.

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
pub use segments::{LOG_DIR, is_segment};
pub use snapshots::SnapshotFrames;
pub use snapshots::{SNAPSHOT_DIR, is_snapshot, list as snapshots, path as snapshot_path};
pub use verify::Damage;

use ebb_format::record::{
    self, LINE_BYTES, MARKER_BYTES, MAX_RECORD_BYTES, Payload, Position, RecordHeader, Term,
};
use ebb_format::segment::{SEGMENT_HEADER_BYTES, VolumeId};
use ebb_format::snapshot::SnapshotHeader;
use ebb_model::{Command, Incarnation, LogIndex, Planted, Version};
use ebb_ports::{Disk, DiskError, DiskFile, Signal, Spawn};
use futures_util::lock::Mutex;
use scan::{GROUP, Used};
use segments::{Segment, Supply};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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

/// Kept free at the end of a segment for the start records of runs that write nothing else,
/// so that a node with a full disk can be restarted over and over.
const START_RESERVE: u64 = 32 * MARKER_BYTES as u64;

/// Kept free behind a command, so that force needs no space: one marker for callers before the
/// command was written, and one for callers after it.
const MARKER_RESERVE: u64 = START_RESERVE + 2 * MARKER_BYTES as u64;

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
    /// Of the newest snapshot that is durable: a start needs no segment whose commands are all at
    /// or below it. `snapshot_at <= durable`.
    snapshot_at: Cell<LogIndex>,
    snapshot_bytes: Cell<u64>,
    /// The highest index that a caller waits for. `end.marked <= wanted <= written`.
    wanted: Cell<LogIndex>,
    /// The last command in the log. It grows by one with each append.
    written: Cell<LogIndex>,
    /// `snapshot_at <= durable <= end.marked`.
    durable: Cell<LogIndex>,
    /// The last record that a finished sync covers. `synced <= end.position`.
    synced: Cell<Position>,
    appending: Cell<bool>,
    /// Bytes left in the current segment, behind its last record.
    left_bytes: Cell<u64>,
    failed: RefCell<Option<LogError>>,
    failing: Signal,
}

/// The end of the log, where the next record goes.
struct End {
    segment: Segment,
    offset: u64,
    /// The position of the last record.
    position: Position,
    /// The index that the last marker records as forced. `durable` follows once the marker is
    /// synced. `durable <= marked <= wanted`.
    marked: LogIndex,
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
    /// Writes a command behind all others. When it returns, the command survives the end of the
    /// process; [`Log::force`] makes it survive a power cut.
    ///
    /// One call at a time: the caller decides on the order of commands. [`LogError::NoSpace`] and
    /// [`LogError::TooLong`] leave the log as it was. Dropping the future before its end leaves the
    /// log in an unknown state, so it then refuses all further work.
    pub async fn append(&self, command: &Command) -> Result<LogIndex, LogError> {
        assert!(!self.appending.replace(true), "appends are serialised by the caller");
        let _appending = Finally(|| self.appending.set(false));
        let _turn = self.turns.turn().await;
        let mut end = self.end.lock().await;
        self.check()?;
        let index = LogIndex(self.written.get().0 + 1);
        self.write(&mut end, Payload::Command(command), index, MARKER_RESERVE).await?;
        self.written.set(index);
        self.assert_order(&end);
        if !end.asked && end.offset > end.segment.len_bytes / 2 {
            end.asked = true;
            self.prepare_next();
        }
        Ok(index)
    }

    /// Reports a full disk now, before bytes are overwritten, rather than at the [`Log::append`] of
    /// the command that describes them. Nothing is set aside: there is room for more such commands
    /// than are under way at one time.
    pub async fn expect_room(&self) -> Result<(), LogError> {
        let is_near_end = self.left_bytes.get() < ROOM_BYTES.min(self.options.segment_bytes / 2);
        if is_near_end { self.supply.prepare().await } else { Ok(()) }
    }

    /// Makes all commands that were written before the call survive a power cut, and returns the
    /// index up to which they do. The caller must sync data files before, or doubt their content at
    /// recovery.
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
            self.assert_order(&end);
            (end.segment.file.clone(), end.position, upto)
        };
        self.sync(&*file, position).await?;
        assert!(self.durable() <= upto, "one force at a time reports its index");
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

    /// Keeps the state after command `at`, whose last version is `version`, and gives up the log
    /// below it. A snapshot cannot be cut, so it is forced first if it is not yet: as for
    /// [`Log::force`], the caller has synced the data files.
    ///
    /// Other calls go on at the same time. After an error the log and the previous snapshot are as
    /// they were, or only their clean-up is missing, which the next snapshot makes up for.
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
        assert!(at <= self.durable(), "only forced commands are left to a snapshot");
        if at >= self.snapshot_at.get() {
            self.snapshot_at.set(at);
            self.snapshot_bytes.set(len_bytes);
        }
        snapshots::remove_older(&*self.disk, at).await?;
        self.truncate(at).await
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

    /// The orders of [`Log`]'s positions.
    fn assert_order(&self, end: &End) {
        let (snapshot, durable) = (self.snapshot_at.get(), self.durable());
        let (wanted, written) = (self.wanted.get(), self.written());
        assert!(
            snapshot <= durable
                && durable <= end.marked
                && end.marked <= wanted
                && wanted <= written,
            "snapshot {snapshot:?}, durable {durable:?}, marked {:?}, wanted {wanted:?}, written \
             {written:?}",
            end.marked
        );
        let synced = self.synced.get();
        assert!(synced <= end.position, "synced {synced:?} of {:?}", end.position);
    }

    /// With one leader of all commands the term is the volume's incarnation.
    fn term(&self) -> Term {
        Term(self.options.incarnation.0)
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

    /// Writes the start record of a run or a segment.
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
    MAX_RECORD_BYTES as u64 + SEGMENT_HEADER_BYTES as u64 + MARKER_RESERVE < DEFAULT_SEGMENT_BYTES
);
