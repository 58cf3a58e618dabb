use ebb_model::{LockMode, LockRange, MAX_LOCK_OFFSET, RangeLock};
use std::collections::BTreeMap;

/// What one owner holds of one file.
///
/// Laws: pieces do not overlap, and neighbours of one mode are one piece.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges {
    /// By start: end and mode.
    locks: BTreeMap<u64, (u64, LockMode)>,
}

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = RangeLock> {
        self.locks.iter().map(|(start, (end, mode))| lock(*start, *end, *mode))
    }

    /// Pieces with a byte in `range`, whole, from the first.
    pub fn overlapping(&self, range: LockRange) -> impl Iterator<Item = RangeLock> {
        // Of those that begin before it only the last can reach into it.
        let before = self
            .locks
            .range(..range.start())
            .next_back()
            .filter(|(_, (end, _))| *end >= range.start());
        let inside = self.locks.range(range.start()..=range.end());
        before.into_iter().chain(inside).map(|(start, (end, mode))| lock(*start, *end, *mode))
    }

    /// Makes one mode of all bytes of `range`, or none.
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

    /// Leaves no byte of `range` a mode that is weaker than `mode`.
    pub fn strengthen(&mut self, range: LockRange, mode: LockMode) {
        let exclusive = self.exclusive(range);
        self.set(range, Some(mode));
        for stronger in exclusive {
            self.set(stronger, Some(LockMode::Exclusive));
        }
    }

    /// Leaves no byte of `range` a mode that is stronger than `mode`.
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

    /// Parts of `range` that are held exclusively.
    fn exclusive(&self, range: LockRange) -> Vec<LockRange> {
        let locks = self.overlapping(range).filter(|held| held.mode == LockMode::Exclusive);
        locks.filter_map(|held| held.range.within(range)).collect()
    }
}

fn lock(start: u64, end: u64, mode: LockMode) -> RangeLock {
    RangeLock { range: LockRange::new(start, end).expect("only ranges are kept"), mode }
}
