//! Records of one kind in the memory that outlives the process.

use super::HandoverError;
use ebb_ports::SharedMemory;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The position of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordIndex(usize);

/// Records of `N` words. The last word is written last. It is 0 where there is no record.
pub(super) struct Table<const N: usize> {
    words: Rc<dyn SharedMemory>,
    what: &'static str,
    /// The word that holds the number of positions that were ever used.
    used_at: usize,
    first: usize,
    room: usize,
    used: Cell<usize>,
    free: RefCell<Vec<usize>>,
}

impl<const N: usize> Table<N> {
    /// Starts with the records that exist already.
    pub(super) fn take(
        words: &Rc<dyn SharedMemory>,
        what: &'static str,
        used_at: usize,
        (first, room): (usize, usize),
    ) -> Result<Table<N>, HandoverError> {
        let used = usize::try_from(words.load(used_at))
            .ok()
            .filter(|used| *used <= room)
            .ok_or(HandoverError::Damaged(what))?;
        let (used, free) = (Cell::new(used), RefCell::default());
        let table = Table { words: words.clone(), what, used_at, first, room, used, free };
        let free = (0..table.used.get())
            .rev()
            .filter(|place| table.get(RecordIndex(*place)).is_none())
            .collect();
        table.free.replace(free);
        Ok(table)
    }

    pub(super) fn damaged(&self) -> HandoverError {
        HandoverError::Damaged(self.what)
    }

    /// `None` if there is no room.
    #[must_use]
    pub(super) fn put(&self, record: [u64; N]) -> Option<RecordIndex> {
        let free = self.free.borrow_mut().pop();
        let place = match free {
            Some(place) => place,
            None if self.used.get() == self.room => return None,
            None => {
                self.used.set(self.used.get() + 1);
                self.words.store(self.used_at, self.used.get() as u64);
                self.used.get() - 1
            }
        };
        for (word, value) in record.into_iter().enumerate() {
            self.words.store(self.at(place) + word, value);
        }
        Some(RecordIndex(place))
    }

    /// Replaces the last word. The new one must not be 0.
    pub(super) fn set_last(&self, place: RecordIndex, word: u64) {
        self.words.store(self.at(place.0) + N - 1, word);
    }

    pub(super) fn clear(&self, place: RecordIndex) {
        self.set_last(place, 0);
        self.free.borrow_mut().push(place.0);
    }

    pub(super) fn get(&self, place: RecordIndex) -> Option<[u64; N]> {
        let at = self.at(place.0);
        let record: [u64; N] = std::array::from_fn(|word| self.words.load(at + word));
        (record[N - 1] != 0).then_some(record)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (RecordIndex, [u64; N])> {
        (0..self.used.get())
            .filter_map(|place| Some((RecordIndex(place), self.get(RecordIndex(place))?)))
    }

    fn at(&self, place: usize) -> usize {
        self.first + place * N
    }
}
