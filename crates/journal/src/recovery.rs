//! Makes an appendable log from the content of a data directory.

use super::scan::{Junk, Scan, Tail, begins_below, scan, scan_before_damage};
use super::segments::{self, LOG_DIR, Supply};
use super::snapshots::{self, SNAPSHOT_DIR};
use super::*;
use ebb_format::segment::Generation;

/// The source of a node's state at a start: the snapshot, then the commands behind it.
pub struct Recovery {
    pub start: Start,
    /// `None` where the log begins with the first command.
    pub snapshot: Option<SnapshotFrames>,
    pub commands: Commands,
    /// Damage that another file makes up for: an older snapshot with the log since then stands in
    /// for the newest one, or the damaged segment is one that the snapshot was about to give up.
    /// Nothing is lost, but a disk that does this once does it again.
    pub damaged: Option<LogError>,
    /// The incarnation of the previous run.
    pub incarnation: Option<Incarnation>,
}

impl Recovery {
    /// Neither a snapshot nor a command: the first state of the volume was never stored.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none() && self.commands.last() == LogIndex(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The data directory was empty.
    First,
    /// The process had ended and the machine had not: everything written is there.
    SameBoot,
    /// The machine had been down. `dropped` commands behind `cut_after` were found and cut: they
    /// had never been forced. Other unforced commands may have left no trace.
    PowerCut { cut_after: LogIndex, dropped: u64 },
}

impl Log {
    /// Reads and checks everything; the disk is changed only if all is sound. Recovers to the same
    /// state however often it is interrupted and repeated.
    pub async fn recover(
        disk: Rc<dyn Disk>,
        spawn: Rc<dyn Spawn>,
        options: Options,
    ) -> Result<(Log, Recovery), LogError> {
        assert!(
            (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&options.segment_bytes)
                && options.segment_bytes.is_multiple_of(SEGMENT_HEADER_BYTES as u64)
        );
        let (recovery, found) = read(&disk, options.volume).await?;
        let log = begin(disk, spawn, options, found, &recovery).await?;
        Ok((log, recovery))
    }

    /// Reads and checks everything as [`Log::recover`] does, and changes nothing.
    pub async fn read(disk: Rc<dyn Disk>, volume: VolumeId) -> Result<Recovery, LogError> {
        Ok(read(&disk, volume).await?.0)
    }

    /// The newest whole snapshot and the readable part of a damaged log behind it. A node that went
    /// on from there would contradict later operations: it is for people to read. `None` without a
    /// snapshot.
    pub async fn read_before_damage(
        disk: Rc<dyn Disk>,
        volume: VolumeId,
    ) -> Result<Option<(SnapshotFrames, Commands)>, LogError> {
        let Some(snapshot) = newest_whole(&*disk, volume).await? else { return Ok(None) };
        let found = scan_before_damage(&*disk, volume).await?;
        let at = snapshot.header().index;
        let last = found.tail.as_ref().map_or(LogIndex(0), |tail| tail.index);
        let reaches_back = found.segments.first().is_some_and(|used| used.base <= at);
        let last = if reaches_back { last.max(at) } else { at };
        let commands = Commands::new(
            disk,
            found.segments.iter().map(|used| used.generation).collect(),
            found.cuts,
            at,
            last,
        );
        Ok(Some((snapshot, commands)))
    }
}

async fn read(disk: &Rc<dyn Disk>, volume: VolumeId) -> Result<(Recovery, Scan), LogError> {
    let (mut found, passed_over) = match scan(&**disk, volume, Generation(0)).await {
        Err(damage @ LogError::Corrupt { .. }) => match scan_needed(&**disk, volume).await? {
            Some(found) => (found, Some(damage)),
            None => return Err(damage),
        },
        found => (found?, None),
    };
    let (start, last) = judge(&found, disk.boot_id());
    let (snapshot, damaged) = choose_snapshot(&**disk, volume, &found, last).await?;
    let after = snapshot.as_ref().map_or(LogIndex(0), |snapshot| snapshot.header().index);
    let generations = found.segments.iter().map(|used| used.generation).collect();
    let commands =
        Commands::new(disk.clone(), generations, std::mem::take(&mut found.cuts), after, last);
    let incarnation = found.tail.as_ref().map(|tail| tail.incarnation);
    Ok((
        Recovery { start, snapshot, commands, damaged: damaged.or(passed_over), incarnation },
        found,
    ))
}

/// Scans a damaged log from the segment on that the newest whole snapshot needs. `None` if the
/// damage is in that part.
async fn scan_needed(disk: &dyn Disk, volume: VolumeId) -> Result<Option<Scan>, LogError> {
    let Some(snapshot) = newest_whole(disk, volume).await? else { return Ok(None) };
    let Some(from) = begins_below(disk, volume, snapshot.header().index).await? else {
        return Ok(None);
    };
    let given_up: Vec<Generation> =
        segments::list(disk).await?.into_iter().filter(|generation| *generation < from).collect();
    if given_up.is_empty() {
        return Ok(None);
    }
    Ok(Some(Scan { given_up, ..scan(disk, volume, from).await? }))
}

async fn newest_whole(
    disk: &dyn Disk,
    volume: VolumeId,
) -> Result<Option<SnapshotFrames>, LogError> {
    for index in snapshots::list(disk).await?.into_iter().rev() {
        match SnapshotFrames::open(disk, volume, index).await {
            Ok(snapshot) => return Ok(Some(snapshot)),
            Err(LogError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// How the last run ended, and the index of the last valid command.
fn judge(found: &Scan, boot_id: u128) -> (Start, LogIndex) {
    match &found.tail {
        None => (Start::First, LogIndex(0)),
        Some(tail) if tail.boot_id == boot_id => (Start::SameBoot, tail.index),
        Some(tail) => (
            Start::PowerCut { cut_after: tail.forced, dropped: tail.index.0 - tail.forced.0 },
            tail.forced,
        ),
    }
}

/// The newest snapshot that is whole, and the damage of a newer one. An older one is good only if
/// the log reaches back to it.
async fn choose_snapshot(
    disk: &dyn Disk,
    volume: VolumeId,
    found: &Scan,
    last: LogIndex,
) -> Result<(Option<SnapshotFrames>, Option<LogError>), LogError> {
    let forced = found.tail.as_ref().map(|tail| tail.forced);
    let base = found.segments.first().map_or(LogIndex(0), |used| used.base);
    let mut damaged = None;
    for index in snapshots::list(disk).await?.into_iter().rev() {
        if forced.is_none_or(|forced| index > forced) {
            // Snapshots are taken only of commands that were forced in a log.
            let (file, offset) = end_of(found);
            let what = format!(
                "the log ends with command {}, of which {} were forced, and there is a snapshot of \
                 command {}",
                last.0,
                forced.unwrap_or_default().0,
                index.0
            );
            return Err(LogError::Corrupt { file, offset, what });
        }
        if index < base {
            break;
        }
        match SnapshotFrames::open(disk, volume, index).await {
            Ok(snapshot) => return Ok((Some(snapshot), damaged)),
            Err(error @ LogError::Corrupt { .. }) => damaged = damaged.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    match damaged {
        // A log that reaches back to the beginning needs no snapshot, but cannot tell whether the
        // state before the first command was an empty one.
        Some(damaged) => Err(damaged),
        None if base > LogIndex(0) => {
            let file = found
                .segments
                .first()
                .map_or(LOG_DIR.to_string(), |used| segments::path(used.generation));
            let what =
                format!("the log begins behind command {}, and there is no snapshot of it", base.0);
            Err(LogError::Corrupt { file, offset: SEGMENT_HEADER_BYTES as u64, what })
        }
        None => Ok((None, None)),
    }
}

/// File and offset at which the log ends.
fn end_of(found: &Scan) -> (String, u64) {
    match (&found.junk, &found.tail) {
        (Some(junk), _) => (segments::path(junk.segment.generation), junk.offset),
        (None, Some(tail)) => (segments::path(tail.segment.generation), tail.offset),
        (None, None) => (LOG_DIR.to_string(), 0),
    }
}

/// Makes the log ready for its first append. Every step leaves a directory that recovers to
/// the same commands.
async fn begin(
    disk: Rc<dyn Disk>,
    spawn: Rc<dyn Spawn>,
    options: Options,
    found: Scan,
    recovery: &Recovery,
) -> Result<Log, LogError> {
    let (boot_id, start) = (disk.boot_id(), recovery.start);
    let snapshot = recovery.snapshot.as_ref();
    if start == Start::First {
        disk.create_dir(LOG_DIR).await?;
        disk.create_dir(SNAPSHOT_DIR).await?;
        disk.sync_dir(ROOT_DIR).await?;
    }
    // The previous run may have ended between giving a segment its name and syncing the directory.
    disk.sync_dir(LOG_DIR).await?;
    if let Some(junk) = &found.junk {
        wipe(junk).await?;
    }
    let Scan { segments, tail, mut empty, given_up, .. } = found;
    let in_use = segments.last().map_or(Generation(0), |used| used.generation);
    // There is usually at most one: the segment made ahead.
    let ready = (empty.len() == 1)
        .then(|| empty.pop_if(|segment| segment.len_bytes == options.segment_bytes))
        .flatten();
    let next = Generation(ready.as_ref().map_or(in_use, |ready| ready.generation).0 + 1);
    let supply =
        Rc::new(Supply::new(disk.clone(), options.volume, options.segment_bytes, ready, next));
    for segment in empty.into_iter().rev() {
        supply.recycle(segment.generation).await?;
    }
    let mut segments: VecDeque<Used> = segments.into();
    let durable = tail.as_ref().map_or(LogIndex(0), |tail| tail.forced);
    let (end, synced) = match tail {
        None => {
            let segment = supply.take().await?;
            segments.push_back(Used { generation: segment.generation, base: LogIndex(0) });
            (
                End {
                    segment,
                    offset: SEGMENT_HEADER_BYTES as u64,
                    position: Position(0),
                    marked: LogIndex(0),
                    asked: false,
                    late: Vec::new(),
                },
                Position(0),
            )
        }
        Some(tail) => {
            if start == Start::SameBoot {
                dirty_again(&tail).await?;
            }
            let Tail { segment, offset, position, forced, synced, .. } = tail;
            (
                End { segment, offset, position, marked: forced, asked: false, late: Vec::new() },
                synced,
            )
        }
    };
    let log = Log {
        disk,
        spawn,
        options,
        boot_id,
        supply,
        turns: Rc::default(),
        end: Mutex::new(end),
        segments: RefCell::new(segments),
        forcing: Rc::default(),
        syncing: Mutex::new(()),
        snapshotting: Mutex::new(()),
        snapshot_at: Cell::new(snapshot.map_or(LogIndex(0), |snapshot| snapshot.header().index)),
        snapshot_bytes: Cell::new(snapshot.map_or(0, SnapshotFrames::len_bytes)),
        wanted: Cell::new(durable),
        written: Cell::new(recovery.commands.last()),
        durable: Cell::new(durable),
        synced: Cell::new(synced),
        appending: Cell::new(false),
        left_bytes: Cell::new(0),
        failed: RefCell::new(None),
        failing: Default::default(),
    };
    log.begin_run().await?;
    // Only now is the first record of the remaining segment surely durable.
    for generation in given_up {
        log.supply.recycle(generation).await?;
    }
    Ok(log)
}

impl Log {
    /// Writes the start record, and forces it: it cuts the records behind `written`, so it must not
    /// be lost once commands with the same indices follow it.
    async fn begin_run(&self) -> Result<(), LogError> {
        let mut end = self.end.lock().await;
        self.assert_order(&end);
        if end.offset + MARKER_BYTES as u64 <= end.segment.len_bytes {
            self.write_start(&mut end).await?;
        } else {
            self.roll(&mut end).await?;
        }
        self.sync(&*end.segment.file, end.position).await
    }
}

/// Durable before anything is appended: a line that comes back later would be taken for part of the
/// records written next to it.
async fn wipe(junk: &Junk) -> Result<(), LogError> {
    segments::fill(&*junk.segment.file, junk.offset, junk.end).await?;
    junk.segment.file.sync_data().await?;
    Ok(())
}

/// Writes the log's bytes in the page cache once more. The process before may have ended because
/// its sync failed; the kernel then calls those pages clean, and the next sync would succeed
/// without having written them.
async fn dirty_again(tail: &Tail) -> Result<(), LogError> {
    let mut at = tail.unsynced_from;
    while at < tail.offset {
        let piece = tail
            .segment
            .file
            .read_at(at, segments::FILL_BYTES.min((tail.offset - at) as usize))
            .await?;
        if piece.is_empty() {
            break;
        }
        let len = piece.len() as u64;
        tail.segment.file.write_at(at, piece).await?;
        at += len;
    }
    Ok(())
}

/// The data directory itself.
const ROOT_DIR: &str = "";
