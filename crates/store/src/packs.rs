//! The space of pack files, which many small files share (C-19, C-21, C-22, C-24). A new file is
//! added at the end of the current pack file, so that no file system has to make a file for it. A
//! removed one leaves a hole.
//!
//! Law: space is used once. A range that a dead run had set aside and not logged is never used.

use ebb_model::{PACK_BYTES, PackId, PackRange};
use ebb_ports::{Disk, DiskError};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

pub(crate) const DIRECTORY: &str = "packs";

/// How long a pack file is left alone after a file in it could not be moved: bytes that cannot be
/// read now will hardly be readable soon.
const STUCK_TIME: Duration = Duration::from_secs(600);

pub(crate) fn path(pack: PackId) -> String {
    format!("{DIRECTORY}/{:016x}", pack.0)
}

/// The space of pack files, as this run allocates it.
pub struct Packs {
    /// Pack files of earlier runs.
    pub found: Vec<PackId>,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// The current pack file, and up to where it is allocated.
    active: Option<(PackId, u64)>,
    /// How far each range of it has been written, by its start.
    written: BTreeMap<u64, u64>,
    /// Ranges that may not be in the log yet, by pack file.
    reserved: BTreeMap<PackId, u64>,
    /// Full pack files. One may have become empty while a file in it was being added.
    ended: BTreeSet<PackId>,
    /// Pack files with a file that could not be moved out, and until when they are left alone.
    stuck: BTreeMap<PackId, Duration>,
}

/// A range that is kept until this is dropped, even without a record in the log.
pub struct Reserved {
    pub range: PackRange,
    state: Rc<RefCell<State>>,
}

impl Packs {
    pub async fn found(disk: &dyn Disk) -> Result<Packs, DiskError> {
        let names = disk.list(DIRECTORY).await?;
        let found: Vec<PackId> = names
            .iter()
            .filter_map(|name| u64::from_str_radix(name, 16).ok())
            .map(PackId)
            .collect();
        let last = found.iter().map(|pack| pack.0).max().unwrap_or(0);
        Ok(Packs { found, state: Rc::new(RefCell::new(State { last, ..State::default() })) })
    }

    /// Pack files up to this one have been used.
    pub fn begin_after(&self, last: PackId) {
        let mut state = self.state.borrow_mut();
        state.last = state.last.max(last.0);
    }

    pub fn reserve(&self, len_bytes: u64, pack_bytes: u64) -> Reserved {
        let mut state = self.state.borrow_mut();
        let (pack, start) = match state.active {
            Some((pack, end)) if end + len_bytes <= pack_bytes => (pack, end),
            _ => {
                state.end();
                state.last += 1;
                (PackId(state.last), 0)
            }
        };
        state.active = Some((pack, start + len_bytes));
        state.written.insert(start, start);
        self.keep(&mut state, PackRange { pack, start, len_bytes })
    }

    /// The same range with more room, if it is the last.
    pub fn extend(&self, range: PackRange, len_bytes: u64, pack_bytes: u64) -> Option<Reserved> {
        let mut state = self.state.borrow_mut();
        let end = range.start + len_bytes;
        if state.active != Some((range.pack, range.end())) || end > pack_bytes {
            return None;
        }
        state.active = Some((range.pack, end));
        Some(self.keep(&mut state, PackRange { len_bytes, ..range }))
    }

    /// Ends the current pack file: nothing is added to it any more.
    pub fn seal(&self) {
        self.state.borrow_mut().end();
    }

    /// Pack files without further additions, which may be empty.
    pub fn ended(&self) -> Vec<PackId> {
        self.state.borrow().ended.iter().copied().collect()
    }

    /// A file in it could not be moved out lately.
    pub fn is_stuck(&self, pack: PackId, now: Duration) -> bool {
        self.state.borrow().stuck.get(&pack).is_some_and(|until| now < *until)
    }

    /// A file in it could not be moved out.
    pub fn note_stuck(&self, pack: PackId, now: Duration) {
        let mut state = self.state.borrow_mut();
        state.stuck.retain(|_, until| now < *until);
        state.stuck.insert(pack, now + STUCK_TIME);
    }

    /// The pack file is gone, or goes with its last file.
    pub fn looked_at(&self, pack: PackId) {
        self.state.borrow_mut().ended.remove(&pack);
    }

    pub fn written(&self, range: PackRange, end: u64) {
        let mut state = self.state.borrow_mut();
        if state.is_active(range.pack) {
            let written = state.written.entry(range.start).or_insert(range.end());
            *written = end.max(*written);
        }
    }

    /// False if nothing was ever written to a range from `at` on.
    pub fn may_be_written(&self, range: PackRange, at: u64) -> bool {
        let state = self.state.borrow();
        !state.is_active(range.pack)
            || state.written.get(&range.start).is_none_or(|written| *written > at)
    }

    /// A pack file that may be begun at any moment.
    pub fn is_to_come(&self, pack: PackId) -> bool {
        pack.0 > self.state.borrow().last
    }

    /// Files are added to the pack file, or were and are not in the log yet.
    pub fn is_in_use(&self, pack: PackId) -> bool {
        let state = self.state.borrow();
        state.is_active(pack) || state.reserved.contains_key(&pack)
    }

    fn keep(&self, state: &mut State, range: PackRange) -> Reserved {
        *state.reserved.entry(range.pack).or_default() += 1;
        Reserved { range, state: self.state.clone() }
    }
}

impl State {
    fn end(&mut self) {
        self.ended.extend(self.active.take().map(|(pack, _)| pack));
        self.written.clear();
    }

    fn is_active(&self, pack: PackId) -> bool {
        self.active.is_some_and(|(active, _)| active == pack)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        if let Some(count) = state.reserved.get_mut(&self.range.pack) {
            *count -= 1;
            if *count == 0 {
                state.reserved.remove(&self.range.pack);
            }
        }
    }
}

/// The same ranges, with adjacent ones joined.
pub(crate) fn joined(mut ranges: Vec<PackRange>) -> Vec<PackRange> {
    ranges.sort_unstable_by_key(|range| (range.pack, range.start));
    let mut joined = Vec::<PackRange>::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.pack == range.pack && last.end() == range.start => {
                last.len_bytes += range.len_bytes
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The gaps between ranges of a pack file, which come in order.
pub fn gaps(pack: PackId, used: &[PackRange]) -> Vec<PackRange> {
    let ends = std::iter::once(0).chain(used.iter().map(PackRange::end));
    let starts = used.iter().map(|range| range.start).chain([PACK_BYTES]);
    let gaps = ends.zip(starts).filter(|(start, end)| start < end);
    gaps.map(|(start, end)| PackRange { pack, start, len_bytes: end - start }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::PACK_UNIT_BYTES;
    use proptest::prelude::*;

    const PACK: u64 = 16 * PACK_UNIT_BYTES;

    fn packs() -> Packs {
        Packs { found: Vec::new(), state: Rc::default() }
    }

    fn overlap(a: &PackRange, b: &PackRange) -> bool {
        a.pack == b.pack && a.start < b.end() && b.start < a.end()
    }

    proptest! {
        #[test]
        fn no_space_is_given_out_twice(steps in prop::collection::vec((1..6u64, any::<bool>(), any::<bool>()), 1..60)) {
            let packs = packs();
            let mut ranges = Vec::<PackRange>::new();
            for (units, grows, seals) in steps {
                let last = ranges.last().copied().filter(|_| grows);
                let more = last.and_then(|range| packs.extend(range, range.len_bytes + units * PACK_UNIT_BYTES, PACK));
                let reserved = match more {
                    Some(more) => {
                        prop_assert_eq!(ranges.pop().map(|range| (range.pack, range.start)), Some((more.range.pack, more.range.start)));
                        more
                    }
                    None => packs.reserve(units * PACK_UNIT_BYTES, PACK),
                };
                prop_assert!(reserved.range.end() <= PACK);
                prop_assert!(packs.is_in_use(reserved.range.pack));
                prop_assert!(ranges.iter().all(|range| !overlap(range, &reserved.range)));
                ranges.push(reserved.range);
                if seals {
                    packs.seal();
                    prop_assert!(packs.is_in_use(reserved.range.pack));
                }
            }
            packs.seal();
            prop_assert!(ranges.iter().all(|range| !packs.is_in_use(range.pack)));
        }

        #[test]
        fn joining_loses_and_adds_nothing(cells in prop::collection::btree_set((0..3u64, 0..12u64), 0..30)) {
            let ranges = cells.iter().map(|(pack, at)| PackRange { pack: PackId(*pack), start: *at, len_bytes: 1 });
            let joined = joined(ranges.rev().collect());
            let again = joined.iter().flat_map(|range| (range.start..range.end()).map(|at| (range.pack.0, at)));
            prop_assert_eq!(again.collect::<std::collections::BTreeSet<_>>(), cells);
            prop_assert!(joined.windows(2).all(|two| two[0].pack != two[1].pack || two[0].end() < two[1].start));
        }
    }

    #[test]
    fn pack_range_never_written_needs_no_clearing() {
        let packs = packs();
        let first = packs.reserve(2 * PACK_UNIT_BYTES, PACK).range;
        assert!(!packs.may_be_written(first, first.start));
        packs.written(first, first.start + 100);
        assert!(
            packs.may_be_written(first, first.start + 99)
                && !packs.may_be_written(first, first.start + 100)
        );
        let second = packs.reserve(PACK_UNIT_BYTES, PACK).range;
        assert!(!packs.may_be_written(second, second.start));
        packs.seal();
        assert!(packs.may_be_written(second, second.start), "nobody knows any more");
        // A range of a pack file of an earlier run.
        let other = PackRange { pack: PackId(77), start: 0, len_bytes: PACK_UNIT_BYTES };
        assert!(packs.may_be_written(other, 0));
    }
}
