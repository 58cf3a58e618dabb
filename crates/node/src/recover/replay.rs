//! Replays the log of a data directory, and finds the bytes that may differ from it.

use super::OpenError;
use crate::clients::repeat::bytes_of;
use crate::snapshot::items;
use ebb_core::blocks::touched_blocks;
use ebb_core::extent::Effect;
use ebb_core::extent::Unforced;
use ebb_core::partition::Inconsistent;
use ebb_core::state::{Applied, State};
use ebb_format::record::GroupId;
use ebb_journal::{Logged, LoggedCommand, Recovery, SnapshotFrames};
use ebb_model::*;
use std::collections::BTreeMap;
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
        }
    }
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
        let applied = match command {
            LoggedCommand::Local(command) => {
                self.state.apply_logged(*position, std::slice::from_ref(command), None)
            }
            // The partition's group is not replicated.
            LoggedCommand::Step(_) | LoggedCommand::Base(_) | LoggedCommand::Promise(_) => {
                return None;
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

/// `check` describes the broken laws of the state at the end.
pub(crate) async fn replay(
    mut recovery: Recovery,
    check: fn(&State) -> Vec<String>,
) -> Result<Replayed, OpenError> {
    let Some(mut replaying) = Replaying::begin(&mut recovery.snapshots).await? else {
        return Err(OpenError::NoSnapshot);
    };
    let mut unforced = Unforced::default();
    let mut holes = Vec::new();
    let mut cuts = BTreeMap::new();
    let mut unsynced: BTreeMap<Ino, Vec<Unsynced>> = BTreeMap::new();
    while let Some(logged) = recovery.entries.next().await? {
        let at = logged.position;
        let Some(applied) = replaying.apply(&logged) else { continue };
        let is_unverified = !recovery.entries.is_of_this_boot();
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
            && let Some((ino, bytes)) = bytes_of(mutation)
        {
            unforced.written(ino, bytes, stamp.version, at, tx.session);
        }
    }
    let state = replaying.end();
    let problems = check(&state);
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
