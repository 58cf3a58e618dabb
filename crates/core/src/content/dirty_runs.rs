//! The dirty blocks of files, as runs with the version of their last write.

use crate::tree::{Tree, Value, pack, unpack};
use ebb_model::{Ino, Version};
use std::ops::Range;

/// Maps inode and end of a run to its first block and its version. The run of a block is the first
/// one with an end behind it.
///
/// Law: runs of a file do not overlap, none is empty, and runs that touch differ in version.
#[derive(Clone, Default)]
pub(super) struct DirtyRuns(Tree<(Ino, u64), DirtyRun>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DirtyRun {
    first: u64,
    version: Version,
}

impl Value<(Ino, u64)> for DirtyRun {
    fn pack(&self, (_, end): &(Ino, u64), out: &mut Vec<u8>) {
        pack(&(end - self.first, self.version), out);
    }

    fn unpack((_, end): &(Ino, u64), bytes: &[u8]) -> DirtyRun {
        let (blocks, version): (u64, Version) = unpack(bytes);
        DirtyRun { first: end - blocks, version }
    }
}

impl DirtyRuns {
    pub fn memory_bytes(&self) -> usize {
        self.0.bytes()
    }

    pub fn is_recent_so(&self) -> bool {
        self.0.is_recent_so()
    }

    /// Runs of all files, ordered by inode and block.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, Range<u64>, Version)> {
        self.0.iter().map(|((ino, end), run)| (ino, run.first..end, run.version))
    }

    /// The parts of runs within `blocks`, in order.
    pub fn within(
        &self,
        ino: Ino,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, Version)> {
        self.ending_from(ino, blocks.start.saturating_add(1))
            .take_while(move |(run, _)| run.start < blocks.end)
            .map(move |(run, version)| {
                (run.start.max(blocks.start)..run.end.min(blocks.end), version)
            })
            .filter(|(run, _)| !run.is_empty())
    }

    pub fn count(&self, ino: Ino, blocks: Range<u64>) -> u64 {
        self.within(ino, blocks).map(|(run, _)| run.end - run.start).sum()
    }

    /// The first run of a file, which has no other: needs no search.
    pub fn insert_first(&mut self, ino: Ino, blocks: Range<u64>, version: Version) {
        self.put(ino, blocks, version);
    }

    /// Returns the number of newly dirty blocks.
    pub fn insert(&mut self, ino: Ino, blocks: Range<u64>, version: Version) -> u64 {
        if blocks.is_empty() {
            return 0;
        }
        // Runs that overlap the new one or touch it.
        let near: Vec<(Range<u64>, Version)> = self
            .ending_from(ino, blocks.start)
            .take_while(|(run, _)| run.start <= blocks.end)
            .collect();
        let mut merged = blocks.clone();
        for (run, _) in near.iter().filter(|(_, other)| *other == version) {
            merged = merged.start.min(run.start)..merged.end.max(run.end);
        }
        let mut there = 0;
        for (run, other) in near {
            let overlap = blocks.start.max(run.start)..blocks.end.min(run.end);
            there += overlap.end.saturating_sub(overlap.start);
            if other == version {
                self.remove_unless(ino, run.end, merged.end);
            } else if !overlap.is_empty() {
                if run.end <= blocks.end {
                    self.remove_unless(ino, run.end, merged.end);
                }
                self.put_rest(ino, &run, &blocks, other);
            }
        }
        self.put(ino, merged, version);
        blocks.end - blocks.start - there
    }

    /// Returns the number of removed blocks.
    pub fn remove(&mut self, ino: Ino, blocks: Range<u64>) -> u64 {
        if blocks.is_empty() {
            return 0;
        }
        let overlapping: Vec<(Range<u64>, Version)> = self
            .ending_from(ino, blocks.start.saturating_add(1))
            .take_while(|(run, _)| run.start < blocks.end)
            .collect();
        let mut there = 0;
        for (run, version) in overlapping {
            there += run.end.min(blocks.end) - run.start.max(blocks.start);
            if run.end <= blocks.end {
                self.0.remove(&(ino, run.end));
            }
            self.put_rest(ino, &run, &blocks, version);
        }
        there
    }

    /// Runs with an end at or behind `end`, in order.
    fn ending_from(&self, ino: Ino, end: u64) -> impl Iterator<Item = (Range<u64>, Version)> {
        let runs = self.0.range((ino, end)..=(ino, u64::MAX));
        runs.map(|((_, end), run)| (run.first..end, run.version))
    }

    /// Removes the run that ends at `end`, unless a run with the end `other` is to replace it.
    fn remove_unless(&mut self, ino: Ino, end: u64, other: u64) {
        if end != other {
            self.0.remove(&(ino, end));
        }
    }

    /// Puts the parts of a run before and behind `taken`. The part behind replaces the run.
    fn put_rest(&mut self, ino: Ino, run: &Range<u64>, taken: &Range<u64>, version: Version) {
        if run.start < taken.start {
            self.put(ino, run.start..taken.start, version);
        }
        if run.end > taken.end {
            self.put(ino, taken.end..run.end, version);
        }
    }

    fn put(&mut self, ino: Ino, blocks: Range<u64>, version: Version) {
        self.0.insert(&(ino, blocks.end), &DirtyRun { first: blocks.start, version });
    }

    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut before: Option<(Ino, u64, Version)> = None;
        for (ino, run, version) in self.iter() {
            let is_apart = before.is_none_or(|(other, end, of_other)| {
                other != ino || end < run.start || end == run.start && of_other != version
            });
            if run.is_empty() || !is_apart {
                problems.push(format!("inode {ino}: the dirty run {run:?} begins in another"));
            }
            before = Some((ino, run.end, version));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCKS: usize = 24;
    const INO: Ino = Ino(5);

    proptest! {
        /// Compared with an array of the version of every block.
        #[test]
        fn dirty_runs_equal_an_array_of_versions(
            steps in prop::collection::vec((0..BLOCKS, 0..BLOCKS, 0..4u64), 0..40)
        ) {
            let mut runs = DirtyRuns::default();
            // Neighbours that no step may touch.
            runs.insert_first(Ino(4), 0..3, Version(1));
            runs.insert_first(Ino(6), 0..3, Version(1));
            let mut naive = [None; BLOCKS];
            for (one, other, version) in steps {
                let (start, end) = (one.min(other), one.max(other));
                let blocks = start as u64..end as u64;
                let dirty = naive[start..end].iter().flatten().count();
                prop_assert_eq!(runs.count(INO, blocks.clone()), dirty as u64);
                if version == 0 {
                    prop_assert_eq!(runs.remove(INO, blocks), dirty as u64);
                    naive[start..end].fill(None);
                } else {
                    let added = runs.insert(INO, blocks, Version(version));
                    prop_assert_eq!(added, (end - start - dirty) as u64);
                    naive[start..end].fill(Some(Version(version)));
                }
                let mut shown = [None; BLOCKS];
                for (run, version) in runs.within(INO, 0..u64::MAX) {
                    shown[run.start as usize..run.end as usize].fill(Some(version));
                }
                prop_assert_eq!(shown, naive);
                prop_assert_eq!(runs.check(), Vec::<String>::new());
                prop_assert_eq!((runs.count(Ino(4), 0..9), runs.count(Ino(6), 0..9)), (3, 3));
            }
        }
    }
}
