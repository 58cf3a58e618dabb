//! Inode ids. A new directory gets an id in a slot that its node draws at random, so that a volume
//! can be split by slots later; any other inode gets one in the slot of the directory that it is
//! made in (C-17).
//!
//! The node chooses ids with [`Namespace::next_ino`] and [`Namespace::draw_ids`] before it proposes
//! the command; applying the command only records them.

use super::Namespace;
use ebb_model::*;
use std::cell::Cell;
use std::collections::BTreeMap;

/// The ids that the node can draw, and those that it has drawn (decision 30).
///
/// Laws:
/// - No other data directory draws ids of `range`: the volume's head reserves them.
/// - Ids of earlier epochs, and those below `range.from`, were drawn before this take-over or
///   never.
/// - `from <= next <= upto` for each slot. All used ids of the range are below `next`.
#[derive(Clone)]
pub(crate) struct Ids {
    pub range: IdRange,
    /// Next counter of each used slot.
    pub next: BTreeMap<Slot, u32>,
    /// The slot that the last id came from whose own slot had none left. Not part of the state: it
    /// saves a search over full slots.
    overflow: Cell<Option<Slot>>,
}

/// Draws the ids of several inodes that one command makes.
pub struct IdDraw<'a> {
    ids: &'a Ids,
    /// Next counter of the slots drawn from.
    drawn: BTreeMap<Slot, u32>,
    /// Counters skipped in each of them.
    skipped: u32,
}

impl Namespace {
    /// An unused id: the lowest counter of the slot, or of another slot if it has none.
    pub fn next_ino(&self, slot: Slot) -> Option<Ino> {
        self.draw_ids(0).draw(slot)
    }

    /// Like [`Namespace::next_ino`], repeatedly. `skipped` counters of each slot stay unused, for
    /// ids that clients got before a power cut and bring again.
    pub fn draw_ids(&self, skipped: u32) -> IdDraw<'_> {
        IdDraw { ids: &self.ids, drawn: BTreeMap::new(), skipped }
    }

    /// Marks an id as used.
    pub(super) fn note_drawn(&mut self, ino: Ino) {
        let range = self.ids.range;
        if ino.epoch() == range.epoch && ino.counter() >= range.from {
            let next = self.ids.next.entry(ino.slot()).or_insert(range.from);
            *next = (*next).max(ino.counter() + 1);
        }
    }

    /// Whether an inode can have this id. A replay brings ids from before a restart: below the next
    /// counter, or from before this take-over.
    pub(super) fn may_be_made(&self, ino: Ino) -> bool {
        self.ids.may_exist(ino)
            && (Ino::FIRST_COUNTER..Ino::END_OF_COUNTERS).contains(&ino.counter())
    }

    /// Whether an inode with this id existed since this take-over and was removed. The id is never
    /// used again.
    pub fn is_over(&self, ino: Ino) -> bool {
        self.ids.was_drawn(ino) && self.inode(ino).is_none()
    }

    /// The ids that the node can draw.
    pub fn id_range(&self) -> IdRange {
        self.ids.range
    }

    /// The counter above all that were used of the range, in any slot.
    pub fn end_of_used_ids(&self) -> u32 {
        self.ids.next.values().copied().fold(self.ids.range.from, u32::max)
    }

    /// The head reserves counters up to `upto`. On a release this is below an earlier reservation,
    /// but above every used counter.
    pub fn reserve_ids(&mut self, upto: u32) {
        self.ids.range.upto = upto.max(self.end_of_used_ids());
    }
}

impl Ids {
    /// No id of the range has been used.
    pub fn begin(range: IdRange) -> Ids {
        Ids { range, next: BTreeMap::new(), overflow: Cell::default() }
    }

    /// Whether the id is of the range, or of an earlier one.
    pub fn may_exist(&self, ino: Ino) -> bool {
        (ino.epoch(), ino.counter()) < (self.range.epoch, self.range.upto)
    }

    /// Whether the id is of the range and has been used.
    pub fn was_drawn(&self, ino: Ino) -> bool {
        self.is_in_range(ino)
            && self.next.get(&ino.slot()).is_some_and(|next| ino.counter() < *next)
    }

    /// Whether the id can never be drawn.
    pub fn is_used(&self, ino: Ino) -> bool {
        !self.is_in_range(ino) || self.was_drawn(ino)
    }

    fn is_in_range(&self, ino: Ino) -> bool {
        ino.epoch() == self.range.epoch && ino.counter() >= self.range.from
    }
}

impl IdDraw<'_> {
    /// The id of an inode in the slot, or in another one if that has no unused counter. `None` if
    /// no slot has one.
    pub fn draw(&mut self, slot: Slot) -> Option<Ino> {
        let free = self.free(slot).or_else(|| {
            let first = self.ids.overflow.get().unwrap_or(Slot(slot.0.wrapping_add(1)));
            let found = (0..=u16::MAX)
                .map(|distance| Slot(first.0.wrapping_add(distance)))
                .find_map(|slot| self.free(slot))?;
            self.ids.overflow.set(Some(found.0));
            Some(found)
        });
        let (slot, counter) = free?;
        self.drawn.insert(slot, counter + 1);
        Some(Ino::new(self.ids.range.epoch, slot, counter))
    }

    fn free(&self, slot: Slot) -> Option<(Slot, u32)> {
        let counter = self.next(slot).filter(|counter| *counter < self.ids.range.upto)?;
        Some((slot, counter))
    }

    fn next(&self, slot: Slot) -> Option<u32> {
        if let Some(next) = self.drawn.get(&slot) {
            return Some(*next);
        }
        let next = self.ids.next.get(&slot).copied().unwrap_or(self.ids.range.from);
        next.checked_add(self.skipped)
    }
}
