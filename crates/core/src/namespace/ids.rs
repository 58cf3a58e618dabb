//! Inode ids. A new directory gets an id in a slot that its node draws at random, so that a volume
//! can be split by slots later; any other inode gets one in the slot of the directory that it is
//! made in (C-17).
//!
//! The node chooses ids with [`Namespace::next_ino`] and [`Namespace::draw_ids`] before it proposes
//! the command; applying the command only records them.

use super::Namespace;
use ebb_model::*;
use std::collections::BTreeMap;

/// The used ids. Law: the next counter of a slot is above every counter that was ever used there.
#[derive(Clone)]
pub(crate) struct Ids {
    pub incarnation: Incarnation,
    /// Next counter of each used slot.
    pub next: BTreeMap<Slot, u32>,
}

/// Draws the ids of several inodes that one command makes.
pub struct IdDraw<'a> {
    ids: &'a Ids,
    /// Next counter of the slots drawn from.
    drawn: BTreeMap<Slot, u32>,
    /// Counters skipped in each of them.
    skipped: u32,
}

const FIRST_COUNTER: u32 = 1;

/// Never assigned, so the next counter fits its type.
const FULL_SLOT: u32 = u32::MAX;

impl Namespace {
    /// An unused id: the lowest counter of the slot, or of the next slot that has one.
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
        if ino.incarnation() == self.ids.incarnation {
            let next = self.ids.next.entry(ino.slot()).or_insert(FIRST_COUNTER);
            *next = (*next).max(ino.counter() + 1);
        }
    }

    /// Whether an inode can have this id. A replay brings ids from before a restart: below the next
    /// counter, or of an earlier incarnation.
    pub(super) fn may_be_made(&self, ino: Ino) -> bool {
        self.ids.may_exist(ino) && (FIRST_COUNTER..FULL_SLOT).contains(&ino.counter())
    }

    /// Whether this incarnation created the inode and it was removed. Its id is never used again.
    pub fn is_over(&self, ino: Ino) -> bool {
        self.ids.was_drawn(ino) && self.inode(ino).is_none()
    }
}

impl Ids {
    /// Whether the id is of this incarnation or an earlier one.
    pub fn may_exist(&self, ino: Ino) -> bool {
        ino.incarnation() <= self.incarnation
    }

    /// Whether this incarnation has drawn the id.
    pub fn was_drawn(&self, ino: Ino) -> bool {
        ino.incarnation() == self.incarnation
            && self.next.get(&ino.slot()).is_some_and(|next| ino.counter() < *next)
    }

    /// Whether the id is never drawn from now on.
    pub fn is_used(&self, ino: Ino) -> bool {
        ino.incarnation() != self.incarnation || self.was_drawn(ino)
    }
}

impl IdDraw<'_> {
    /// The id of an inode in the slot, or in the next one with an unused counter. `None` if no slot
    /// has one.
    pub fn draw(&mut self, slot: Slot) -> Option<Ino> {
        let slots = (0..=u16::MAX).map(|distance| Slot(slot.0.wrapping_add(distance)));
        let free = slots.filter_map(|slot| {
            let counter = self.next(slot)?;
            (counter < FULL_SLOT).then_some((slot, counter))
        });
        let (slot, counter) = { free }.next()?;
        self.drawn.insert(slot, counter + 1);
        Some(Ino::new(self.ids.incarnation, slot, counter))
    }

    fn next(&self, slot: Slot) -> Option<u32> {
        if let Some(next) = self.drawn.get(&slot) {
            return Some(*next);
        }
        let next = self.ids.next.get(&slot).copied().unwrap_or(FIRST_COUNTER);
        next.checked_add(self.skipped)
    }
}
