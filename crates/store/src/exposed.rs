//! The comparisons of exposed files with their checksums: those under way, and the last finished
//! one of each file. The log records the exposures themselves.

use crate::latches::{Guard, Latches, Mode};
use ebb_model::Ino;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Exposures {
    /// These files were not in use when their last comparison began, and none was granted since.
    ending: RefCell<BTreeSet<Ino>>,
    /// Of two tasks that compare a block at one time, the one that has read the older bytes could
    /// log them last.
    comparing: Latches<Ino>,
    /// Taken before the inode's own latch by a task that compares a whole file.
    whole: Latches<Ino>,
    /// The begin of the last finished comparison of a whole file.
    found: RefCell<BTreeMap<Ino, u64>>,
    moments: Cell<u64>,
}

impl Exposures {
    pub fn granted(&self, ino: Ino) {
        self.ending.borrow_mut().remove(&ino);
    }

    /// Held while blocks of a file are compared. The inode's own latch is held.
    pub async fn compare_blocks(&self, ino: Ino) -> Guard<Ino> {
        self.comparing.hold(ino, Mode::Exclusive).await
    }

    /// Held while a whole file is compared. The inode's own latch is taken after it.
    pub async fn compare_whole(&self, ino: Ino) -> Guard<Ino> {
        self.whole.hold(ino, Mode::Exclusive).await
    }

    /// A number above those of all earlier moments.
    pub fn moment(&self) -> u64 {
        self.moments.set(self.moments.get() + 1);
        self.moments.get()
    }

    /// A whole file was compared from this moment on.
    pub fn found(&self, ino: Ino, began: u64) {
        self.found.borrow_mut().insert(ino, began);
    }

    pub fn is_found_since(&self, ino: Ino, moment: u64) -> bool {
        self.found.borrow().get(&ino).is_some_and(|began| *began > moment)
    }

    /// Forgets the comparisons of files that are not exposed any more.
    pub fn retain(&self, exposed: &BTreeSet<Ino>) {
        self.found.borrow_mut().retain(|ino, _| exposed.contains(ino));
    }

    /// The file is not in use: its last comparison begins.
    pub fn begin_end(&self, ino: Ino) {
        self.ending.borrow_mut().insert(ino);
    }

    /// The last comparison has ended. False if the file was granted since it began.
    pub fn end(&self, ino: Ino) -> bool {
        self.ending.borrow_mut().remove(&ino)
    }
}
