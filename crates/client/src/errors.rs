//! What went wrong behind an answer that had been given.

use ebb_model::{FsError, Ino};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Errors of operations whose callers have gone: a replay that was refused, an outcome
/// that stays unknown. Each stands on its inode until it has been reported.
#[derive(Default)]
pub(crate) struct Errors {
    inodes: RefCell<BTreeMap<Ino, FsError>>,
    /// Stands for inodes that found no place: every inode has it until it is reported by a sync of all.
    everywhere: Cell<Option<FsError>>,
    /// What the next sync of all reports.
    unsynced: Cell<Option<FsError>>,
}

impl Errors {
    /// The first error of an inode stays.
    pub(crate) fn set(&self, ino: Ino, error: FsError) {
        let mut inodes = self.inodes.borrow_mut();
        if inodes.len() < INODES_WITH_ERRORS || inodes.contains_key(&ino) {
            inodes.entry(ino).or_insert(error);
        } else {
            self.everywhere.set(Some(error));
        }
        self.unsynced.set(Some(error));
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<FsError> {
        self.inodes.borrow().get(&ino).copied().or(self.everywhere.get())
    }

    pub(crate) fn take(&self, ino: Ino) -> Option<FsError> {
        self.inodes.borrow_mut().remove(&ino).or(self.everywhere.get())
    }

    /// The inode is closed for the last time.
    pub(crate) fn forget(&self, ino: Ino) {
        self.inodes.borrow_mut().remove(&ino);
    }

    pub(crate) fn take_unsynced(&self) -> Option<FsError> {
        self.everywhere.set(None);
        self.unsynced.take()
    }
}

/// Inodes whose errors are told apart.
const INODES_WITH_ERRORS: usize = 4096;
