//! Locked byte ranges of one owner.

use ebb_model::{LockMode, LockRange, MAX_LOCK_OFFSET, RangeLock};
use std::collections::BTreeMap;

/// The locked ranges of one owner in one file.
///
/// Laws: ranges do not overlap, and adjacent ranges of one mode are merged.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges {
    /// By start: end and mode.
    locks: BTreeMap<u64, (u64, LockMode)>,
}

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = RangeLock> {
        self.locks.iter().map(|(start, (end, mode))| lock(*start, *end, *mode))
    }

    /// Complete ranges that overlap `range`, in order.
    pub fn overlapping(&self, range: LockRange) -> impl Iterator<Item = RangeLock> {
        // Of the ranges that start before it only the last can overlap it.
        let before = self
            .locks
            .range(..range.start())
            .next_back()
            .filter(|(_, (end, _))| *end >= range.start());
        let inside = self.locks.range(range.start()..=range.end());
        before.into_iter().chain(inside).map(|(start, (end, mode))| lock(*start, *end, *mode))
    }

    /// Sets the mode of all bytes of `range`; `None` unlocks.
    pub fn set(&mut self, range: LockRange, mode: Option<LockMode>) {
        let touched: Vec<RangeLock> = self.overlapping(range).collect();
        for old in touched {
            self.locks.remove(&old.range.start());
            if old.range.start() < range.start() {
                self.locks.insert(old.range.start(), (range.start() - 1, old.mode));
            }
            if old.range.end() > range.end() {
                self.locks.insert(range.end() + 1, (old.range.end(), old.mode));
            }
        }
        let Some(mode) = mode else { return };
        let (mut start, mut end) = (range.start(), range.end());
        if let Some((before, _)) = self
            .locks
            .range(..start)
            .next_back()
            .filter(|(_, (upto, held))| *upto + 1 == range.start() && *held == mode)
        {
            start = *before;
        }
        if end < MAX_LOCK_OFFSET
            && let Some((upto, _)) = self.locks.get(&(end + 1)).filter(|(_, next)| *next == mode)
        {
            let next = end + 1;
            end = *upto;
            self.locks.remove(&next);
        }
        self.locks.insert(start, (end, mode));
    }

    /// Raises the mode of all bytes of `range` to at least `mode`.
    pub fn strengthen(&mut self, range: LockRange, mode: LockMode) {
        let exclusive = self.exclusive(range);
        self.set(range, Some(mode));
        for stronger in exclusive {
            self.set(stronger, Some(LockMode::Exclusive));
        }
    }

    /// Lowers the mode of all bytes of `range` to at most `mode`.
    pub fn weaken(&mut self, range: LockRange, mode: Option<LockMode>) {
        match mode {
            None => self.set(range, None),
            Some(LockMode::Exclusive) => {}
            Some(LockMode::Shared) => {
                for stronger in self.exclusive(range) {
                    self.set(stronger, Some(LockMode::Shared));
                }
            }
        }
    }

    /// Parts of `range` that are locked exclusively.
    fn exclusive(&self, range: LockRange) -> Vec<LockRange> {
        let locks = self.overlapping(range).filter(|held| held.mode == LockMode::Exclusive);
        locks.filter_map(|held| held.range.within(range)).collect()
    }
}

fn lock(start: u64, end: u64, mode: LockMode) -> RangeLock {
    RangeLock { range: LockRange::new(start, end).expect("stored ranges are valid"), mode }
}
