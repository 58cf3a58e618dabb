//! Makes an appendable log from the content of a data directory.

use super::scan::{Groups, Junk, Scan, Tail, begins_below, scan, scan_before_damage};
use super::segments::{self, LOG_DIR, Supply};
use super::snapshots::{self, SNAPSHOT_DIR};
use super::*;
use ebb_format::segment::Generation;

/// The source of a node's state at a start: the snapshots, then the commands behind them.
///
/// Law: the local group's snapshot is at or behind the positions of the others. It depends on their
/// commands, and has seen those up to its position.
pub struct Recovery {
    pub start: Start,
    /// The newest whole one of each group that has one. A log without a snapshot of a group begins
    /// with the first command of that.
    pub snapshots: BTreeMap<GroupId, SnapshotFrames>,
    pub entries: Entries,
    /// Damage that another file makes up for: an older snapshot with the log since then stands in
    /// for the newest one, or the damaged segment is one that the snapshot was about to give up.
    /// Nothing is lost, but a disk that does this once does it again.
    pub damaged: Option<LogError>,
    /// The incarnation of the previous run.
    pub incarnation: Option<Incarnation>,
}

impl Recovery {
    /// Neither a snapshot of a partition nor a command: the first state of the volume was never
    /// stored.
    pub fn is_empty(&self) -> bool {
        self.snapshots.keys().all(|group| *group == GroupId::LOCAL)
            && self.entries.last().position == Position(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The data directory was empty.
    First,
    /// The process had ended and the machine had not: everything written is there.
    SameBoot,
    /// The machine had been down. `dropped` commands behind the position `cut_after` were found and
    /// cut: they had never been forced. Other unforced commands may have left no trace.
    PowerCut { cut_after: Position, dropped: u64 },
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

    /// The newest whole snapshot of each group and the readable part of a damaged log
    /// behind them. A node that went on from there would contradict later operations: it is
    /// for people to read. `None` without a snapshot of a partition.
    pub async fn read_before_damage(
        disk: Rc<dyn Disk>,
        volume: VolumeId,
    ) -> Result<Option<(Snapshots, Entries)>, LogError> {
        let snapshots = newest_whole(&*disk, volume).await?;
        if snapshots.keys().all(|group| *group == GroupId::LOCAL) {
            return Ok(None);
        }
        let found = scan_before_damage(&*disk, volume).await?;
        let (base, last) = match (&found.segments.first(), &found.tail) {
            (Some(first), Some(tail)) if goes_on(&first.base, &snapshots) => {
                (first.base.position, tail.groups.frontier())
            }
            _ => Default::default(),
        };
        let replicated = found.tail.iter().flat_map(|tail| tail.groups.replicated()).collect();
        let segments = generations(&found);
        let entries = Entries::new(disk, segments, found.cuts, &snapshots, replicated, base, last);
        Ok(Some((snapshots, entries)))
    }
}

type Snapshots = BTreeMap<GroupId, SnapshotFrames>;

/// Whether a log behind these commands goes on where each snapshot ends, or before that.
fn goes_on(base: &Frontier, snapshots: &Snapshots) -> bool {
    let lacks = |(group, index)| {
        snapshots.get(&group).is_some_and(|snapshot| index > snapshot.header().index)
    };
    !base.indices().any(lacks)
}

fn generations(found: &Scan) -> VecDeque<Generation> {
    found.segments.iter().map(|used| used.generation).collect()
}

async fn read(disk: &Rc<dyn Disk>, volume: VolumeId) -> Result<(Recovery, Scan), LogError> {
    let (mut found, passed_over) = match scan(&**disk, volume, Generation(0)).await {
        Err(damage @ LogError::Corrupt { .. }) => match scan_needed(&**disk, volume).await? {
            Some(found) => (found, Some(damage)),
            None => return Err(damage),
        },
        found => (found?, None),
    };
    if let Some(tail) = found.tail.as_ref().filter(|tail| !tail.groups.reaches(tail.forced)) {
        // Only commands that were forced are given up with a segment.
        let (file, offset) = end_of(&found);
        let what =
            format!("the last forced record is {}, and the log begins behind that", tail.forced.0);
        return Err(LogError::Corrupt { file, offset, what });
    }
    let (start, kept) = judge(&found, disk.boot_id());
    let last = kept.frontier();
    let (snapshots, received, damaged) = choose_snapshots(&**disk, volume, &found, &kept).await?;
    let replicated: BTreeSet<GroupId> = kept.replicated().collect();
    if let Some(tail) = &mut found.tail {
        tail.groups = kept;
    }
    found.segments.iter_mut().for_each(|used| used.base.cut(&last));
    let base = found.segments.first().map(|used| used.base.position).unwrap_or_default();
    let cuts = std::mem::take(&mut found.cuts);
    let segments = generations(&found);
    let entries = Entries::new(disk.clone(), segments, cuts, &snapshots, replicated, base, last);
    found.received = received;
    let incarnation = found.tail.as_ref().map(|tail| tail.incarnation);
    Ok((
        Recovery { start, snapshots, entries, damaged: damaged.or(passed_over), incarnation },
        found,
    ))
}

/// Scans a damaged log from the segment on that the newest whole snapshots need. `None` if the
/// damage is in that part.
async fn scan_needed(disk: &dyn Disk, volume: VolumeId) -> Result<Option<Scan>, LogError> {
    let snapshots = newest_whole(disk, volume).await?;
    let index_of =
        |group| snapshots.get(&group).map_or(LogIndex(0), |snapshot| snapshot.header().index);
    let is_covered =
        |base: &Frontier| base.indices().all(|(group, index)| index <= index_of(group));
    let Some(from) = begins_below(disk, volume, is_covered).await? else {
        return Ok(None);
    };
    let given_up: Vec<Generation> =
        segments::list(disk).await?.into_iter().filter(|generation| *generation < from).collect();
    if given_up.is_empty() {
        return Ok(None);
    }
    Ok(Some(Scan { given_up, ..scan(disk, volume, from).await? }))
}

async fn newest_whole(disk: &dyn Disk, volume: VolumeId) -> Result<Snapshots, LogError> {
    let mut newest = Snapshots::new();
    for (group, index) in snapshots::list(disk).await?.into_iter().rev() {
        if newest.contains_key(&group) {
            continue;
        }
        match SnapshotFrames::open(disk, volume, group, index).await {
            Ok(snapshot) => drop(newest.insert(group, snapshot)),
            Err(LogError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}

/// How the last run ended, and the commands that count.
fn judge(found: &Scan, boot_id: u128) -> (Start, Groups) {
    match &found.tail {
        None => (Start::First, Groups::default()),
        Some(tail) if tail.boot_id == boot_id => (Start::SameBoot, tail.groups.clone()),
        Some(tail) => {
            let mut kept = tail.groups.clone();
            let dropped = kept.cut(tail.forced);
            (Start::PowerCut { cut_after: tail.forced, dropped }, kept)
        }
    }
}

type ReceivedSnapshots = BTreeMap<(GroupId, LogIndex), Received>;

/// The newest snapshot of each group that is whole, those of them that were received from another
/// node and have not become ordinary ones, and the damage of a newer one.
async fn choose_snapshots(
    disk: &dyn Disk,
    volume: VolumeId,
    found: &Scan,
    kept: &Groups,
) -> Result<(Snapshots, ReceivedSnapshots, Option<LogError>), LogError> {
    let all = snapshots::list(disk).await?;
    let all_received = snapshots::list_received(disk).await?;
    let forced = found.tail.as_ref().map(|tail| {
        let mut forced = tail.groups.clone();
        forced.cut(tail.forced);
        forced.frontier()
    });
    let base = found.segments.first().map(|used| used.base.clone()).unwrap_or_default();
    let replicated: BTreeSet<GroupId> = kept.replicated().collect();
    let groups: BTreeSet<GroupId> = all
        .iter()
        .copied()
        .chain(base.indices())
        .map(|(group, _)| group)
        .chain(replicated.iter().copied())
        .collect();
    let (mut chosen, mut received, mut damaged) = (Snapshots::new(), BTreeMap::new(), None);
    for group in groups {
        let of_group = |all: &[(GroupId, LogIndex)]| {
            all.iter().filter(|(other, _)| *other == group).map(|(_, index)| *index).collect()
        };
        let (indices, received_indices) = (of_group(&all), of_group(&all_received));
        let (base, forced) = (&base, forced.as_ref());
        let of_group =
            Candidates { volume, group, indices, received: received_indices, kept, base, forced };
        let (snapshot, damage) = match replicated.contains(&group) {
            false => of_group.choose(disk, found).await?,
            true => of_group.choose_replicated(disk, found, &mut received).await?,
        };
        chosen.extend(snapshot.map(|snapshot| (group, snapshot)));
        damaged = damaged.or(damage);
    }
    // A received snapshot holds nothing that this node has logged.
    let is_partition = |snapshot: &&SnapshotFrames| {
        let header = snapshot.header();
        header.group != GroupId::LOCAL && !received.contains_key(&(header.group, header.index))
    };
    let newest = chosen
        .values()
        .filter(is_partition)
        .map(SnapshotFrames::header)
        .max_by_key(|header| header.position);
    let local = chosen.get(&GroupId::LOCAL).map(SnapshotFrames::header);
    match (newest, local) {
        (Some(newest), local) if local.is_none_or(|local| local.position < newest.position) => {
            // The segments with the commands that it lacks can be gone.
            let file =
                snapshots::path(GroupId::LOCAL, local.map_or(LogIndex(0), |local| local.index));
            let what = format!(
                "group {} has a snapshot of record {}, and the node's own group has none of that \
                 record or a later one",
                newest.group.0, newest.position.0
            );
            Err(LogError::Corrupt { file, offset: 0, what })
        }
        _ => Ok((chosen, received, damaged)),
    }
}

/// The snapshots of a group, oldest first.
struct Candidates<'a> {
    volume: VolumeId,
    group: GroupId,
    indices: Vec<LogIndex>,
    /// Of a replicated group: those from other nodes that are not ordinary ones yet.
    received: Vec<LogIndex>,
    /// The log without the commands that a power cut takes.
    kept: &'a Groups,
    /// The last commands before the log.
    base: &'a Frontier,
    /// The last commands that were forced; `None` without a log.
    forced: Option<&'a Frontier>,
}

impl Candidates<'_> {
    /// The newest one that is whole, and the damage of a newer one. An older one is good only if
    /// the log reaches back to it.
    async fn choose(
        &self,
        disk: &dyn Disk,
        found: &Scan,
    ) -> Result<(Option<SnapshotFrames>, Option<LogError>), LogError> {
        let Candidates { volume, group, forced, .. } = *self;
        let base = self.base.index(group);
        let mut damaged = None;
        for index in self.indices.iter().rev().copied() {
            if forced.is_none_or(|forced| index > forced.index(group)) {
                return Err(self.beyond(found, index));
            }
            if index < base {
                break;
            }
            match SnapshotFrames::open(disk, volume, group, index).await {
                Ok(snapshot) => {
                    let position = snapshot.header().position;
                    if forced.is_none_or(|forced| position > forced.position) {
                        return Err(self.beyond(found, index));
                    }
                    return Ok((Some(snapshot), damaged));
                }
                Err(error @ LogError::Corrupt { .. }) => damaged = damaged.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        self.without(found, damaged)
    }

    /// The same of a replicated group. A received snapshot counts if the log has its base, and is
    /// then entered in `received`. The snapshots of an earlier replica do not count.
    async fn choose_replicated(
        &self,
        disk: &dyn Disk,
        found: &Scan,
        received: &mut ReceivedSnapshots,
    ) -> Result<(Option<SnapshotFrames>, Option<LogError>), LogError> {
        let Candidates { volume, group, forced, kept, .. } = *self;
        let least = self.base.index(group).max(kept.base_index(group));
        let is_newest = |index: &LogIndex| kept.bases(group, *index).next().is_some();
        let from_others = self.received.iter().copied().filter(is_newest);
        let mut candidates: Vec<(LogIndex, bool)> =
            from_others.map(|index| (index, true)).collect();
        candidates.extend(self.indices.iter().map(|index| (*index, false)));
        candidates.sort_unstable();
        let mut damaged = None;
        for (index, is_received) in candidates.into_iter().rev() {
            let path = match is_received {
                true => snapshots::received_path(group, index),
                false => snapshots::path(group, index),
            };
            let snapshot = match SnapshotFrames::open_at(disk, volume, (group, index), path).await {
                Ok(snapshot) => snapshot,
                Err(error @ LogError::Corrupt { .. }) => {
                    damaged = damaged.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (term, position) = (snapshot.header().term, snapshot.header().position);
            if is_received {
                let mut bases = kept.bases(group, index).filter(|(_, other)| *other == term);
                let Some((base, _)) = bases.next() else { continue };
                if index < least || kept.is_of_earlier_replica(group, index, base) {
                    continue;
                }
                let len_bytes = snapshot.len_bytes();
                let taken = Received { term, position, base: Some(base), len_bytes };
                received.insert((group, index), taken);
                return Ok((Some(snapshot), damaged));
            }
            if kept.is_of_earlier_replica(group, index, position) {
                continue;
            }
            let is_forced =
                |forced: &Frontier| index <= forced.index(group) && position <= forced.position;
            if !forced.is_some_and(is_forced) {
                return Err(self.beyond(found, index));
            }
            if index < least {
                break;
            }
            return Ok((Some(snapshot), damaged));
        }
        self.without(found, damaged)
    }

    /// Snapshots are taken only of commands that were forced in a log.
    fn beyond(&self, found: &Scan, index: LogIndex) -> LogError {
        let (file, offset) = end_of(found);
        let forced = self.forced.map_or(LogIndex(0), |forced| forced.index(self.group));
        let what = format!(
            "the log ends with command {} of group {}, of which {} were forced, and there is a \
             snapshot of command {}",
            self.kept.frontier().index(self.group).0,
            self.group.0,
            forced.0,
            index.0
        );
        LogError::Corrupt { file, offset, what }
    }

    /// No snapshot can be used.
    fn without(
        &self,
        found: &Scan,
        damaged: Option<LogError>,
    ) -> Result<(Option<SnapshotFrames>, Option<LogError>), LogError> {
        let group = self.group;
        let base = self.base.index(group).max(self.kept.base_index(group));
        match damaged {
            // A log that reaches back to the beginning needs no snapshot, but cannot tell whether
            // the state before the first command was an empty one.
            Some(damaged) => Err(damaged),
            None if base > LogIndex(0) => {
                let file = found
                    .segments
                    .first()
                    .map_or(LOG_DIR.to_string(), |used| segments::path(used.generation));
                let what = format!(
                    "the log begins behind command {} of group {}, and there is no snapshot of it",
                    base.0, group.0
                );
                Err(LogError::Corrupt { file, offset: SEGMENT_HEADER_BYTES as u64, what })
            }
            None => Ok((None, None)),
        }
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
    remove_unfinished_installs(&*disk, &found.received).await?;
    let Scan { segments, tail, mut empty, given_up, checkpoints, received, .. } = found;
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
    let written = recovery.entries.last().clone();
    let releases = tail.iter().flat_map(|tail| tail.groups.releases()).collect();
    // A received snapshot is an ordinary one once its base is forced.
    let is_own = |(group, taken): &(GroupId, Taken)| !received.contains_key(&(*group, taken.index));
    let taken = recovery.snapshots.values().map(taken).filter(is_own).collect();
    let (terms, durable) = match &tail {
        None => (terms(&Groups::default(), &recovery.snapshots), Frontier::default()),
        Some(tail) => {
            let mut forced = tail.groups.clone();
            forced.cut(tail.forced);
            (terms(&tail.groups, &recovery.snapshots), forced.frontier())
        }
    };
    let (end, synced) = match tail {
        None => {
            let segment = supply.take().await?;
            segments.push_back(Used { generation: segment.generation, base: Frontier::default() });
            (
                End {
                    segment,
                    offset: SEGMENT_HEADER_BYTES as u64,
                    position: Position(0),
                    marked: Frontier::default(),
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
            let Tail { segment, offset, position, synced, .. } = tail;
            let marked = durable.clone();
            (End { segment, offset, position, marked, asked: false, late: Vec::new() }, synced)
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
        snapshots: RefCell::new(taken),
        terms: RefCell::new(terms),
        releases: RefCell::new(releases),
        checkpoints: RefCell::new(checkpoints),
        received: RefCell::new(received),
        wanted: RefCell::new(durable.clone()),
        written: RefCell::new(written),
        durable: RefCell::new(durable),
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

/// Received snapshots without a base in the log belong to installations that did not end.
async fn remove_unfinished_installs(
    disk: &dyn Disk,
    kept: &ReceivedSnapshots,
) -> Result<(), LogError> {
    for received in snapshots::list_received(disk).await? {
        if !kept.contains_key(&received) {
            disk.remove(&snapshots::received_path(received.0, received.1)).await?;
        }
    }
    Ok(())
}

fn taken(snapshot: &SnapshotFrames) -> (GroupId, Taken) {
    let header = snapshot.header();
    let (index, position) = (header.index, header.position);
    (header.group, Taken { index, position, len_bytes: snapshot.len_bytes() })
}

/// The terms of the run that begins, of all groups in the log and in snapshots.
///
/// The local group counts the runs. A group with one voter has a new term in each run, as if it had
/// elected its leader anew. The term of a group is at or above the number of the run, so that a
/// group whose first commands a power cut has taken does not begin with their term again. The terms
/// of replicated groups do not grow here.
fn terms(groups: &Groups, snapshots: &Snapshots) -> BTreeMap<GroupId, RunTerm> {
    let mut before: BTreeMap<GroupId, RunTerm> = groups
        .ends()
        .map(|(group, end)| {
            let GroupEnd { term, last: before, is_replicated } = end;
            (group, RunTerm { term, before, is_replicated })
        })
        .collect();
    for snapshot in snapshots.values() {
        let header = snapshot.header();
        let group = before.entry(header.group).or_default();
        if group.is_replicated {
            continue;
        }
        group.term = group.term.max(header.term);
        if group.before.0 <= header.index {
            group.before = (header.index, header.term);
        }
    }
    let grown = u64::from(!Planted::TermReused.is_on());
    let local = before.entry(GroupId::LOCAL).or_default();
    let run = Term((local.term.0 + grown).max(1));
    for group in before.values_mut().filter(|group| !group.is_replicated) {
        group.term = Term(group.term.0 + grown).max(run);
    }
    before
}

impl Log {
    /// Writes the start record, and forces it: it cuts the commands behind `written`, so it must
    /// not be lost once others follow it.
    async fn begin_run(&self) -> Result<(), LogError> {
        let mut end = self.end.lock().await;
        self.assert_order(&end);
        let start = self.encode_start(&end)?;
        if end.offset + start.len() as u64 <= end.segment.len_bytes {
            self.put(&mut end, start, 1).await?;
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
