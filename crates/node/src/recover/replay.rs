//! Replays the log of a data directory, and finds the bytes that may differ from it.

use super::OpenError;
use crate::clients::repeat::bytes_of;
use crate::snapshot::items;
use ebb_core::blocks::touched_blocks;
use ebb_core::extent::Unforced;
use ebb_core::partition::{Effect, Partition};
use ebb_format::record::GroupId;
use ebb_journal::{Logged, LoggedCommand, Recovery};
use ebb_model::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks by file.
pub(crate) type Blocks = BTreeMap<Ino, Vec<Range<u64>>>;

/// The state that the log holds, and the bytes that may differ from it.
pub(crate) struct Replayed {
    pub partition: Partition,
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
    pub(super) fn of(partition: Partition) -> Replayed {
        Replayed {
            partition,
            unsynced: Blocks::new(),
            kept: Blocks::new(),
            unverified: Blocks::new(),
            unforced: Unforced::default(),
            holes: Vec::new(),
            cuts: BTreeMap::new(),
        }
    }
}

pub(crate) async fn replay(mut recovery: Recovery) -> Result<Replayed, OpenError> {
    let Some(snapshot) = recovery.snapshots.remove(&GroupId::PARTITION) else {
        return Err(OpenError::NoSnapshot);
    };
    let mut partition = Partition::from_items(items(snapshot).await?)?;
    let mut unforced = Unforced::default();
    let mut holes = Vec::new();
    let mut cuts = BTreeMap::new();
    let mut unsynced: BTreeMap<Ino, Vec<Unsynced>> = BTreeMap::new();
    while let Some(Logged { index, command, .. }) = recovery.entries.next().await? {
        // The facts about this disk are in the partition's group too.
        let LoggedCommand::Partition(command) = command else { continue };
        let is_unverified = !recovery.entries.is_of_this_boot();
        let written = |blocks| Unsynced { index, blocks, is_fetched: false, is_unverified };
        match &command {
            Command::Client { mutation, .. } | Command::Repeated { mutation, .. } => {
                if let Some((ino, offset, len_bytes)) = mutation.span() {
                    unsynced
                        .entry(ino)
                        .or_default()
                        .push(written(touched_blocks(offset, len_bytes)));
                }
                if let Mutation::Fallocate { ino, edges, .. } = mutation {
                    let blocks = edges.iter().map(|block| written(*block..block.saturating_add(1)));
                    unsynced.entry(*ino).or_default().extend(blocks);
                }
            }
            Command::Extent(ExtentCommand::Present { ino, first, sums, .. }) => {
                let blocks = *first..*first + sums.len() as u64;
                unsynced
                    .entry(*ino)
                    .or_default()
                    .push(Unsynced { is_fetched: true, ..written(blocks) });
            }
            Command::Stored { ino, first, sums, .. } => {
                unsynced.entry(*ino).or_default().push(written(*first..*first + sums.len() as u64));
            }
            // Bytes copied there.
            Command::Extent(ExtentCommand::Packed { ino, .. }) => {
                unsynced.entry(*ino).or_default().push(written(touched_blocks(0, PACKED_BYTES)));
            }
            // Doubted earlier, or about to be written when the node went down.
            Command::Extent(ExtentCommand::Unsynced { ino, first, count }) => {
                unsynced
                    .entry(*ino)
                    .or_default()
                    .push(written(*first..first.saturating_add(*count)));
            }
            // A client must not bring back bytes that were given up.
            Command::Backing(BackingCommand::RolledBack { ino, .. }) => {
                unsynced.remove(ino);
                unforced.gone(*ino);
            }
            // Its holes may have been stored into since.
            Command::Extent(ExtentCommand::Exposed { ino, .. }) => {
                holes.retain(|(other, _)| other != ino)
            }
            Command::Extent(ExtentCommand::Synced { scope, upto }) => {
                let only = scope.only();
                unforced.synced(only, *upto);
                for (_, blocks) in
                    unsynced.iter_mut().filter(|(ino, _)| only.is_none_or(|only| only == **ino))
                {
                    blocks.retain(|blocks| {
                        blocks.index > *upto || *scope == SyncScope::Written && blocks.is_fetched
                    });
                }
                unsynced.retain(|_, blocks| !blocks.is_empty());
            }
            _ => {}
        }
        let applied = partition.apply(index, &command);
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
        if let Command::Backing(BackingCommand::Forget { inos, .. }) = &command {
            for ino in inos.iter().filter(|ino| partition.namespace().inode(**ino).is_none()) {
                unsynced.remove(ino);
                unforced.gone(*ino);
                cuts.remove(ino);
            }
        }
        if let (
            Command::Client { tx, stamp, mutation, .. }
            | Command::Repeated { tx, stamp, mutation, .. },
            Some(Ok(_)),
        ) = (&command, &applied.answer)
            && let Some((ino, bytes)) = bytes_of(mutation)
        {
            unforced.written(ino, bytes, stamp.version, index, tx.session);
        }
    }
    let unverified = blocks_of(&unsynced, |one| one.is_unverified || one.is_fetched);
    let kept = blocks_of(&unsynced, |one| !one.is_unverified && !one.is_fetched);
    Ok(Replayed {
        partition,
        unsynced: blocks_of(&unsynced, |_| true),
        kept,
        unverified,
        unforced,
        holes,
        cuts,
    })
}

/// Blocks of the command at `index`.
pub(super) struct Unsynced {
    index: LogIndex,
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
