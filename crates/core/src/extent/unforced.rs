//! The last writer of each byte that a power cut could lose. Commands are named by their positions
//! in the log, or in a replicated volume, where those differ, by their indices.
//!
//! Laws:
//! - A byte is recorded from the command that wrote it until a sync covers that command.
//! - Each byte has one last writer: bytes of an earlier one are obsolete.

use ebb_model::{Ino, Planted, Position, SessionId, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Last writers of unforced bytes, by file and offset.
#[derive(Clone, Default, Debug)]
pub struct Unforced {
    files: BTreeMap<Ino, BTreeMap<u64, WrittenRange>>,
}

/// From its key up to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WrittenRange {
    end: u64,
    version: Version,
    at: Position,
    session: SessionId,
}

/// A range of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnforcedItem {
    ino: Ino,
    start: u64,
    end: u64,
    version: Version,
    at: Position,
    session: SessionId,
}

impl Unforced {
    /// The command of the session at `at` wrote these bytes, at `version`.
    pub fn written(
        &mut self,
        ino: Ino,
        bytes: Range<u64>,
        version: Version,
        at: Position,
        session: SessionId,
    ) {
        self.superseded(ino, bytes.clone());
        if bytes.start < bytes.end {
            self.files
                .entry(ino)
                .or_default()
                .insert(bytes.start, WrittenRange { end: bytes.end, version, at, session });
        }
    }

    /// These bytes need no replay any more: they were replaced or are available elsewhere.
    pub fn superseded(&mut self, ino: Ino, bytes: Range<u64>) {
        let Some(ranges) = self.files.get_mut(&ino) else { return };
        let before =
            ranges.range(..bytes.start).next_back().map(|(start, written)| (*start, *written));
        let within = ranges.range(bytes.clone()).map(|(start, written)| (*start, *written));
        let touched: Vec<(u64, WrittenRange)> = before
            .into_iter()
            .chain(within)
            .filter(|(_, written)| written.end > bytes.start)
            .collect();
        for (start, written) in touched {
            ranges.remove(&start);
            if start < bytes.start {
                ranges.insert(start, WrittenRange { end: bytes.start, ..written });
            }
            if written.end > bytes.end {
                ranges.insert(bytes.end, written);
            }
        }
    }

    /// A sync covers the records `<= upto`, for one file or all.
    pub fn synced(&mut self, only: Option<Ino>, upto: Position) {
        for (_, ranges) in
            self.files.iter_mut().filter(|(ino, _)| only.is_none_or(|only| only == **ino))
        {
            ranges.retain(|_, written| written.at > upto && !Planted::SyncForgetsLater.is_on());
        }
        self.files.retain(|_, ranges| !ranges.is_empty());
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn files(&self) -> impl Iterator<Item = Ino> {
        self.files.keys().copied()
    }

    /// All ranges, for a snapshot.
    pub fn items(&self) -> impl Iterator<Item = UnforcedItem> {
        self.files.iter().flat_map(|(ino, ranges)| {
            ranges.iter().map(|(start, written)| UnforcedItem {
                ino: *ino,
                start: *start,
                end: written.end,
                version: written.version,
                at: written.at,
                session: written.session,
            })
        })
    }

    pub fn restore(&mut self, item: UnforcedItem) {
        let UnforcedItem { ino, start, end, version, at, session } = item;
        self.written(ino, start..end, version, at, session);
    }

    pub fn gone(&mut self, ino: Ino) {
        self.files.remove(&ino);
    }

    pub fn clear(&mut self) {
        self.files.clear();
    }

    /// The last writers of a file's bytes, each once or more often.
    pub fn writers(&self, ino: Ino) -> impl Iterator<Item = SessionId> {
        self.files.get(&ino).into_iter().flatten().map(|(_, written)| written.session)
    }

    /// The bytes of a file whose last writer is the change of this version.
    pub fn last_written(&self, ino: Ino, version: Version) -> impl Iterator<Item = Range<u64>> {
        let ranges = self.files.get(&ino).into_iter().flatten();
        ranges
            .filter(move |(_, written)| written.version == version)
            .map(|(start, written)| *start..written.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: usize = 40;
    const INO: Ino = Ino(3);
    const SESSION: SessionId = SessionId(7);

    #[derive(Clone, Debug)]
    enum Step {
        Write(Range<u64>),
        Supersede(Range<u64>),
        Sync(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..BYTES as u64, 0..BYTES as u64).prop_map(|(a, b)| a.min(b)..a.max(b));
        prop_oneof![
            4 => range().prop_map(Step::Write),
            1 => range().prop_map(Step::Supersede),
            1 => (0..8u64).prop_map(Step::Sync),
        ]
    }

    proptest! {
        /// Compared with an array of the last writer of every byte.
        #[test]
        fn every_byte_has_its_last_writer(steps in prop::collection::vec(step(), 0..60)) {
            let mut unforced = Unforced::default();
            let mut naive = [0u64; BYTES];
            for (now, step) in (1u64..).zip(steps) {
                match step {
                    Step::Write(range) => {
                        naive[range.start as usize..range.end as usize].fill(now);
                        unforced.written(INO, range, Version(now), Position(now), SESSION);
                    }
                    Step::Supersede(range) => {
                        naive[range.start as usize..range.end as usize].fill(0);
                        unforced.superseded(INO, range);
                    }
                    Step::Sync(back) => {
                        let upto = now.saturating_sub(back);
                        naive.iter_mut().filter(|writer| **writer <= upto).for_each(|writer| *writer = 0);
                        unforced.synced(Some(INO), Position(upto));
                    }
                }
                let mut shown = [0u64; BYTES];
                for writer in 1..=now {
                    for range in unforced.last_written(INO, Version(writer)) {
                        prop_assert!(range.start < range.end);
                        shown[range.start as usize..range.end as usize].fill(writer);
                    }
                }
                prop_assert_eq!(shown, naive);
                prop_assert_eq!(unforced.writers(INO).next().is_some(), naive != [0; BYTES]);
            }
            unforced.gone(INO);
            prop_assert!(unforced.files.is_empty());
        }
    }
}
