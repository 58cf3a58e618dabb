//! The inode ids that the head of a volume reserves (decision 30).
//!
//! The head's mark is above all ids that any owner can have used. A take-over draws its ids from
//! the mark on, and puts a higher one with the same conditional put. So two owners never draw the
//! same id, however many of them there were and whenever they died.

use ebb_model::{IdEpoch, IdMark, IdRange, Ino};

/// Counters of each slot that a take-over or a renewal reserves. A crash wastes at most these, so
/// one epoch lasts for 4,096 crashes, and all epochs for 268 million.
const STEP: u32 = 1 << 20;

/// A renewal reserves more when fewer counters than these are left in a slot. Until then further
/// ids come from other slots.
const LOW: u32 = STEP / 2;

/// Counters of each slot that stay reserved after a release: a read-only mount of the data
/// directory draws ids from them for names that it finds.
const KEPT: u32 = 1 << 12;

/// More counters than an owner reserves while a put of its head can still take effect.
const UNGUARDED_SKIP: u32 = 64 * STEP;

/// The mark of a volume that was never served.
pub const FIRST: IdMark = IdMark { epoch: IdEpoch(1), below: Ino::FIRST_COUNTER };

/// The ids of a take-over of a head with this mark. `None`: all epochs are used.
///
/// `is_guarded`: a conditional put guards the head. Otherwise a late put of the previous owner can
/// have lowered the mark.
pub fn taken_over(mark: IdMark, is_guarded: bool) -> Option<IdRange> {
    let IdMark { epoch, below } = mark;
    let begin = |epoch: IdEpoch, from: u32| {
        let upto = from.checked_add(STEP)?;
        (epoch < IdEpoch::READ_ONLY).then_some(IdRange { epoch, from, upto })
    };
    below
        .checked_add(if is_guarded { 0 } else { UNGUARDED_SKIP })
        .and_then(|from| begin(epoch, from))
        .or_else(|| begin(IdEpoch(epoch.0.checked_add(1)?), Ino::FIRST_COUNTER))
}

/// The mark of an owner that has used all ids below its mark.
pub fn next(mark: IdMark) -> IdMark {
    IdMark { below: raised(mark.below), ..mark }
}

/// The mark to reserve next for a range whose used counters are below `used`.
pub fn wanted(range: IdRange, used: u32) -> u32 {
    if range.upto - used < LOW { raised(range.upto) } else { range.upto }
}

/// The mark of a release.
pub fn kept(range: IdRange, used: u32) -> u32 {
    used.saturating_add(KEPT).min(range.upto)
}

/// Ids beyond the last counter come from other slots.
fn raised(below: u32) -> u32 {
    const { assert!(Ino::END_OF_COUNTERS == u32::MAX) };
    below.saturating_add(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: u16, below: u32) -> IdMark {
        IdMark { epoch: IdEpoch(epoch), below }
    }

    /// A take-over begins at the mark or in the next epoch, never above the last one.
    #[test]
    fn take_over_draws_ids_above_the_mark() {
        let range = |epoch, from| Some(IdRange { epoch: IdEpoch(epoch), from, upto: from + STEP });
        assert_eq!(taken_over(FIRST, true), range(1, 1));
        assert_eq!(taken_over(mark(7, 123), true), range(7, 123));
        assert_eq!(taken_over(mark(7, u32::MAX - STEP), true), range(7, u32::MAX - STEP));
        assert_eq!(taken_over(mark(7, u32::MAX - STEP + 1), true), range(8, 1));
        assert_eq!(taken_over(mark(7, u32::MAX), true), range(8, 1));
        assert_eq!(taken_over(mark(7, 123), false), range(7, 123 + UNGUARDED_SKIP));
        assert_eq!(taken_over(mark(7, u32::MAX - UNGUARDED_SKIP), false), range(8, 1));
        assert_eq!(taken_over(mark(65_533, u32::MAX), true), range(65_534, 1));
        assert_eq!(taken_over(mark(65_534, u32::MAX), true), None);
        assert_eq!(taken_over(mark(65_535, 1), true), None);
    }

    /// A renewal never lowers the mark; a release never lowers it below the used counters.
    #[test]
    fn mark_stays_above_the_used_counters() {
        for (from, upto) in [(1, 1), (1, 1 + STEP), (500, 500 + STEP), (u32::MAX - 5, u32::MAX)] {
            let range = IdRange { epoch: IdEpoch(3), from, upto };
            for used in [from, from + (upto - from) / 2, upto] {
                assert!((used..=upto).contains(&kept(range, used)));
                let wanted = wanted(range, used);
                assert!(wanted >= upto);
                assert!(wanted - used >= LOW || wanted == u32::MAX, "{range:?} {used}");
            }
        }
    }
}
