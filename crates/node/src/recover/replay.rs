//! Replays the log of a data directory, and finds the bytes that may differ from it.
//!
//! Of a replicated volume only the committed entries are replayed. The records behind the first
//! entry that is not known to be committed stay undecided ([`Undecided`]).

use super::OpenError;
use crate::replica::{AppliedUpto, Undecided, UndecidedRecord, decode_record};
use crate::snapshot::items;
use ebb_consensus::{Body, Entry, Record, RecordReader, Recovered};
use ebb_core::blocks::touched_blocks;
use ebb_core::extent::Effect;
use ebb_core::extent::Unforced;
use ebb_core::partition::Inconsistent;
use ebb_core::state::{Applied, State};
use ebb_format::record::GroupId;
use ebb_journal::{Entries, LogError, Logged, LoggedCommand, Recovery, SnapshotFrames};
use ebb_model::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Blocks by file.
pub(crate) type Blocks = BTreeMap<Ino, Vec<Range<u64>>>;

/// The state that the log holds, and the bytes that may differ from it.
pub(crate) struct Replayed {
    pub state: State,
    /// Blocks without a later record of a sync.
    pub unsynced: Blocks,
    /// Those of them that were written since the machine was last down.
    pub kept: Blocks,
    /// Those of them that a power cut may have taken back.
    pub unverified: Blocks,
    pub unforced: Unforced,
    /// Blocks that became holes since the snapshot.
    pub holes: Vec<(Ino, Range<u64>)>,
    /// Files that were cut since the snapshot, with their lengths.
    pub cuts: BTreeMap<Ino, u64>,
    /// The last record that the state has followed.
    pub upto: AppliedUpto,
    /// Of a replicated volume.
    pub group: Option<GroupRecords>,
}

/// The records of a group in the log.
pub(crate) struct GroupRecords {
    pub recovered: Recovered,
    /// Records behind those that the state has followed.
    pub undecided: VecDeque<Undecided>,
}

impl Replayed {
    /// Of an empty log.
    pub(crate) fn of(state: State) -> Replayed {
        Replayed {
            state,
            unsynced: Blocks::new(),
            kept: Blocks::new(),
            unverified: Blocks::new(),
            unforced: Unforced::default(),
            holes: Vec::new(),
            cuts: BTreeMap::new(),
            upto: AppliedUpto::default(),
            group: None,
        }
    }
}

/// Records that wait, and whether each is of this boot.
type Waiting = VecDeque<(Logged, bool)>;

/// The records of a log that a state can follow, in order. Of a group that consensus decides, those
/// behind an entry wait until a record says that it is committed.
struct Decided {
    entries: Entries,
    /// Whether the record is of this boot goes with it.
    ready: Waiting,
    waiting: Waiting,
    group: RecordReader,
    is_replicated: bool,
    committed: LogIndex,
}

impl Decided {
    /// `snapshot`: the last command that the partition's snapshot has.
    fn new(entries: Entries, snapshot: LogIndex) -> Decided {
        Decided {
            is_replicated: entries.is_replicated(GroupId::PARTITION),
            entries,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            group: RecordReader::default(),
            committed: snapshot,
        }
    }

    async fn next(&mut self) -> Result<Option<(Logged, bool)>, OpenError> {
        loop {
            if let Some(next) = self.ready.pop_front() {
                return Ok(Some(next));
            }
            let Some(logged) = self.entries.next().await? else { return Ok(None) };
            let next = (logged, self.entries.is_of_this_boot());
            self.sort(next)?;
        }
    }

    fn sort(&mut self, next: (Logged, bool)) -> Result<(), OpenError> {
        let Logged { term, index, ref command, .. } = next.0;
        let record = match command {
            LoggedCommand::Local(_) => None,
            LoggedCommand::Partition(_) if !self.is_replicated => None,
            LoggedCommand::Partition(command) => {
                let body = Body::Command(ebb_format::record::encode_command(command)?.into());
                Some(Record::Entry(Entry { term, index, body }))
            }
            LoggedCommand::Promise(bytes)
            | LoggedCommand::Step(bytes)
            | LoggedCommand::Base(bytes) => {
                Some(decode_record(bytes).map_err(|what| broken(next.0.position, what))?)
            }
        };
        let Some(record) = record else {
            match self.waiting.is_empty() {
                true => self.ready.push_back(next),
                false => self.waiting.push_back(next),
            }
            return Ok(());
        };
        let committed = match &record {
            Record::HardState(hard) => hard.commit,
            _ => LogIndex(0),
        };
        let is_entry = matches!(record, Record::Entry(_));
        let added = self.group.add(record);
        added.map_err(|error| broken(next.0.position, error.to_string()))?;
        if is_entry {
            self.waiting.push_back(next);
        }
        self.release(committed);
        Ok(())
    }

    /// All entries up to `committed` are.
    fn release(&mut self, committed: LogIndex) {
        self.committed = self.committed.max(committed);
        while let Some((first, _)) = self.waiting.front() {
            let (index, term) = (first.index, first.term);
            let is_local = matches!(first.command, LoggedCommand::Local(_));
            if !is_local && index > self.committed {
                return;
            }
            let next = self.waiting.pop_front();
            // Otherwise another entry has replaced it, or the snapshot has it.
            if is_local || self.group.term_of(index) == Some(term) {
                self.ready.extend(next);
            }
        }
    }

    /// The records of the group, behind the last one that was returned.
    fn end(self) -> Result<Option<(Recovered, Waiting)>, OpenError> {
        if !self.is_replicated {
            return Ok(None);
        }
        let at = self.entries.last().position;
        let recovered = self.group.finish().map_err(|error| broken(at, error.to_string()))?;
        Ok(Some((recovered, self.waiting)))
    }
}

fn broken(at: Position, what: String) -> OpenError {
    let what = format!("record {}: {what}", at.0);
    LogError::Corrupt { file: ebb_journal::LOG_DIR.into(), offset: 0, what }.into()
}

fn undecided(waiting: Waiting, mut local: LogIndex) -> VecDeque<Undecided> {
    let to_undecided = |(logged, _): (Logged, bool)| {
        let Logged { position, term, index, command, .. } = logged;
        let what = match command {
            LoggedCommand::Local(command) => {
                local = index;
                UndecidedRecord::Local(command)
            }
            LoggedCommand::Partition(command) => {
                UndecidedRecord::Entry { index, term, command: Some(command) }
            }
            LoggedCommand::Step(_) | LoggedCommand::Base(_) | LoggedCommand::Promise(_) => {
                UndecidedRecord::Entry { index, term, command: None }
            }
        };
        Undecided { upto: AppliedUpto { position, local, term }, what }
    };
    waiting.into_iter().map(to_undecided).collect()
}

/// A state that follows the records of a log in the order of their positions.
pub(crate) struct Replaying {
    state: State,
    /// The extents of the snapshot have followed all commands up to here.
    local_at: Position,
}

impl Replaying {
    /// The state of the snapshots; `None` if the partition has none.
    pub(crate) async fn begin(
        snapshots: &mut BTreeMap<GroupId, SnapshotFrames>,
    ) -> Result<Option<Replaying>, OpenError> {
        let Some(shared) = snapshots.remove(&GroupId::PARTITION) else { return Ok(None) };
        let (local, local_at) = match snapshots.remove(&GroupId::LOCAL) {
            Some(local) => {
                let at = local.header().position;
                (items(local).await?, at)
            }
            None => (Vec::new(), Position(0)),
        };
        let state = State::from_items(items(shared).await?, local)?;
        Ok(Some(Replaying { state, local_at }))
    }

    /// `None` if the extents have followed the command already: nothing is left to do for it.
    pub(crate) fn apply(&mut self, logged: &Logged) -> Option<Applied> {
        let Logged { position, index, command, .. } = logged;
        if !matches!(command, LoggedCommand::Local(_)) && *index <= self.state.applied() {
            // Of a replicated group, whose records are all read.
            return None;
        }
        let applied = match command {
            LoggedCommand::Step(_) => {
                self.state.skip(*index);
                return None;
            }
            LoggedCommand::Base(_) | LoggedCommand::Promise(_) => return None,
            LoggedCommand::Local(command) => {
                self.state.apply_logged(*position, std::slice::from_ref(command), None)
            }
            LoggedCommand::Partition(command)
                if *position <= self.local_at && !Planted::FollowedTwice.is_on() =>
            {
                self.state.apply_known(*index, command);
                return None;
            }
            LoggedCommand::Partition(command) => {
                self.state.apply_logged(*position, &[], Some((*index, command)))
            }
        };
        self.state.apply_deferred();
        Some(applied)
    }

    /// The state at the end of the log, whether it keeps the laws or not.
    pub(crate) fn end(self) -> State {
        self.state
    }
}

/// The records of a group in a log whose partition has no snapshot yet; `None` if there are none.
pub(crate) async fn records(recovery: Recovery) -> Result<Option<Recovered>, OpenError> {
    let mut decided = Decided::new(recovery.entries, LogIndex(0));
    while decided.next().await?.is_some() {}
    Ok(decided.end()?.map(|(recovered, _)| recovered))
}

/// `check` describes the broken laws of the state at the end.
pub(crate) async fn replay(
    mut recovery: Recovery,
    check: fn(&State) -> Vec<String>,
) -> Result<Replayed, OpenError> {
    let first = recovery.snapshots.get(&GroupId::PARTITION).map(|snapshot| *snapshot.header());
    let local = recovery.snapshots.get(&GroupId::LOCAL).map(|snapshot| *snapshot.header());
    let (Some(mut replaying), Some(first)) =
        (Replaying::begin(&mut recovery.snapshots).await?, first)
    else {
        return Err(OpenError::NoSnapshot);
    };
    let mut upto = AppliedUpto {
        position: first.position,
        local: local.map_or(LogIndex(0), |local| local.index),
        term: first.term,
    };
    let mut decided = Decided::new(recovery.entries, first.index);
    let mut unforced = Unforced::default();
    let mut holes = Vec::new();
    let mut cuts = BTreeMap::new();
    let mut unsynced: BTreeMap<Ino, Vec<Unsynced>> = BTreeMap::new();
    while let Some((logged, is_of_this_boot)) = decided.next().await? {
        let at = logged.position;
        upto.position = upto.position.max(at);
        match logged.command {
            LoggedCommand::Local(_) => upto.local = logged.index,
            LoggedCommand::Partition(_) | LoggedCommand::Step(_) => upto.term = logged.term,
            LoggedCommand::Base(_) | LoggedCommand::Promise(_) => {}
        }
        let Some(applied) = replaying.apply(&logged) else { continue };
        let is_unverified = !is_of_this_boot;
        let written = |blocks| Unsynced { at, blocks, is_fetched: false, is_unverified };
        match &logged.command {
            LoggedCommand::Local(command) => match command {
                LocalCommand::Staged { ino, first, sums, .. } => {
                    let blocks = *first..first.saturating_add(sums.len() as u64);
                    unsynced.entry(*ino).or_default().push(written(blocks));
                }
                LocalCommand::Present { ino, first, sums, .. } => {
                    let blocks = *first..first.saturating_add(sums.len() as u64);
                    let fetched = Unsynced { is_fetched: true, ..written(blocks) };
                    unsynced.entry(*ino).or_default().push(fetched);
                }
                // Bytes copied there.
                LocalCommand::Packed { ino, .. } => {
                    let blocks = touched_blocks(0, PACKED_BYTES);
                    unsynced.entry(*ino).or_default().push(written(blocks));
                }
                // Doubted earlier, or about to be written when the node went down.
                LocalCommand::Unsynced { ino, first, count } => {
                    let blocks = *first..first.saturating_add(*count);
                    unsynced.entry(*ino).or_default().push(written(blocks));
                }
                // Its holes may have been stored into since.
                LocalCommand::Exposed { ino, .. } => holes.retain(|(other, _)| other != ino),
                LocalCommand::Synced { scope, upto } => {
                    let only = scope.only();
                    unforced.synced(only, *upto);
                    for (_, blocks) in
                        unsynced.iter_mut().filter(|(ino, _)| only.is_none_or(|only| only == **ino))
                    {
                        blocks.retain(|blocks| {
                            blocks.at > *upto || *scope == SyncScope::Written && blocks.is_fetched
                        });
                    }
                    unsynced.retain(|_, blocks| !blocks.is_empty());
                }
                LocalCommand::Absent { .. } | LocalCommand::Summed { .. } => {}
            },
            LoggedCommand::Partition(command) => match command {
                Command::Client { mutation: Mutation::Fallocate { ino, edges, .. }, .. }
                | Command::Repeated { mutation: Mutation::Fallocate { ino, edges, .. }, .. } => {
                    let blocks = edges.iter().map(|block| written(*block..block.saturating_add(1)));
                    unsynced.entry(*ino).or_default().extend(blocks);
                }
                // A client must not bring back bytes that were given up.
                Command::Backing(BackingCommand::RolledBack { ino, .. }) => {
                    unsynced.remove(ino);
                    unforced.gone(*ino);
                }
                Command::Backing(BackingCommand::Forget { inos, .. }) => {
                    let is_gone = |ino: &&Ino| replaying.state.namespace().inode(**ino).is_none();
                    for ino in inos.iter().filter(is_gone) {
                        unsynced.remove(ino);
                        unforced.gone(*ino);
                        cuts.remove(ino);
                    }
                }
                _ => {}
            },
            LoggedCommand::Step(_) | LoggedCommand::Base(_) | LoggedCommand::Promise(_) => {}
        }
        for effect in &applied.effects {
            match effect.clone() {
                Effect::Drop { ino } => {
                    unsynced.remove(&ino);
                    unforced.gone(ino);
                    cuts.remove(&ino);
                }
                Effect::Cut { ino, len_bytes } => {
                    // The bytes behind the cut in its block are zeros.
                    if !len_bytes.is_multiple_of(BLOCK_BYTES) {
                        let block = len_bytes / BLOCK_BYTES;
                        unsynced.entry(ino).or_default().push(written(block..block + 1));
                    }
                    unforced.superseded(ino, len_bytes..u64::MAX);
                    cuts.entry(ino)
                        .and_modify(|cut: &mut u64| *cut = len_bytes.min(*cut))
                        .or_insert(len_bytes);
                }
                Effect::Punch { ino, blocks } => holes.push((ino, blocks)),
                // The gaps between the ranges in use are found from these.
                Effect::Vacate { .. } => {}
            }
        }
        if let (
            LoggedCommand::Partition(
                Command::Client { tx, stamp, mutation, .. }
                | Command::Repeated { tx, stamp, mutation, .. },
            ),
            Some(Ok(_)),
        ) = (&logged.command, &applied.answer)
            && let Some((ino, bytes)) = mutation.written_bytes()
        {
            unforced.written(ino, bytes, stamp.version, at, tx.session);
        }
    }
    let group = decided.end()?.map(|(recovered, waiting)| {
        for (logged, is_of_this_boot) in &waiting {
            if let LoggedCommand::Local(LocalCommand::Staged { ino, first, sums, .. }) =
                &logged.command
            {
                let blocks = *first..first.saturating_add(sums.len() as u64);
                let is_unverified = !is_of_this_boot;
                let staged =
                    Unsynced { at: logged.position, blocks, is_fetched: false, is_unverified };
                unsynced.entry(*ino).or_default().push(staged);
            }
        }
        GroupRecords { recovered, undecided: undecided(waiting, upto.local) }
    });
    // The extents can be ahead of a partition whose entries are not decided yet.
    let first_undecided = group.as_ref().and_then(|group| group.undecided.front());
    let is_ahead = first_undecided.is_some_and(|first| first.upto.position <= replaying.local_at);
    let state = replaying.end();
    let problems = if is_ahead { Vec::new() } else { check(&state) };
    if !problems.is_empty() {
        return Err(Inconsistent { problems }.into());
    }
    let unverified = blocks_of(&unsynced, |one| one.is_unverified || one.is_fetched);
    let kept = blocks_of(&unsynced, |one| !one.is_unverified && !one.is_fetched);
    Ok(Replayed {
        state,
        unsynced: blocks_of(&unsynced, |_| true),
        kept,
        unverified,
        unforced,
        holes,
        cuts,
        upto,
        group,
    })
}

/// Blocks of the record at a position.
pub(super) struct Unsynced {
    at: Position,
    blocks: Range<u64>,
    is_fetched: bool,
    is_unverified: bool,
}

pub(super) fn blocks_of(
    unsynced: &BTreeMap<Ino, Vec<Unsynced>>,
    which: impl Fn(&Unsynced) -> bool,
) -> Blocks {
    let of_file = |all: &Vec<Unsynced>| {
        joined(all.iter().filter(|one| which(one)).map(|one| one.blocks.clone()).collect())
    };
    unsynced
        .iter()
        .map(|(ino, all)| (*ino, of_file(all)))
        .filter(|(_, blocks)| !blocks.is_empty())
        .collect()
}

/// The same blocks, each once: doubted blocks are logged, and doubted again by the next start.
pub(super) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
