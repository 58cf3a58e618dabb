use ebb_model::{LockMode, LockPiece, LockRange, MAX_LOCK_OFFSET};
use std::collections::BTreeMap;

/// What one owner holds of one file.
///
/// Laws: pieces do not overlap, and neighbours of one mode are one piece.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges {
    /// By start: end and mode.
    pieces: BTreeMap<u64, (u64, LockMode)>,
}

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = LockPiece> {
        self.pieces.iter().map(|(start, (end, mode))| piece(*start, *end, *mode))
    }

    /// Pieces with a byte in `range`, whole, from the first.
    pub fn overlapping(&self, range: LockRange) -> impl Iterator<Item = LockPiece> {
        // Of those that begin before it only the last can reach into it.
        let before = self
            .pieces
            .range(..range.start())
            .next_back()
            .filter(|(_, (end, _))| *end >= range.start());
        let inside = self.pieces.range(range.start()..=range.end());
        before.into_iter().chain(inside).map(|(start, (end, mode))| piece(*start, *end, *mode))
    }

    /// Makes one mode of all bytes of `range`, or none.
    pub fn set(&mut self, range: LockRange, mode: Option<LockMode>) {
        let touched: Vec<LockPiece> = self.overlapping(range).collect();
        for old in touched {
            self.pieces.remove(&old.range.start());
            if old.range.start() < range.start() {
                self.pieces.insert(old.range.start(), (range.start() - 1, old.mode));
            }
            if old.range.end() > range.end() {
                self.pieces.insert(range.end() + 1, (old.range.end(), old.mode));
            }
        }
        let Some(mode) = mode else { return };
        let (mut start, mut end) = (range.start(), range.end());
        if let Some((before, _)) = self
            .pieces
            .range(..start)
            .next_back()
            .filter(|(_, (upto, held))| *upto + 1 == range.start() && *held == mode)
        {
            start = *before;
        }
        if end < MAX_LOCK_OFFSET
            && let Some((upto, _)) = self.pieces.get(&(end + 1)).filter(|(_, next)| *next == mode)
        {
            let next = end + 1;
            end = *upto;
            self.pieces.remove(&next);
        }
        self.pieces.insert(start, (end, mode));
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
        let pieces = self.overlapping(range).filter(|held| held.mode == LockMode::Exclusive);
        pieces.filter_map(|held| held.range.within(range)).collect()
    }
}

fn piece(start: u64, end: u64, mode: LockMode) -> LockPiece {
    LockPiece { range: LockRange::new(start, end).expect("only ranges are kept"), mode }
}
