//! What went wrong behind an answer that had been given.

use crate::estate::{Estate, INODES_WITH_ERRORS, Place};
use ebb_model::{FsError, Ino};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Errors of operations whose callers have gone: a replay that was refused, an outcome that stays
/// unknown. Each stands on its inode until it has been reported, by this process or its successor.
#[derive(Default)]
pub(crate) struct Errors {
    /// And where that is written.
    inodes: RefCell<BTreeMap<Ino, (FsError, Option<Place>)>>,
    /// Stands for inodes that found no place: every inode has it until it is reported by a sync of
    /// all.
    everywhere: Cell<Option<FsError>>,
    /// What the next sync of all reports.
    unsynced: Cell<Option<FsError>>,
    estate: Option<Rc<Estate>>,
}

impl Errors {
    /// With what a process before has left.
    pub(crate) fn new(estate: Option<Rc<Estate>>) -> Errors {
        let errors = Errors::default();
        if let Some(estate) = &estate {
            let inodes = estate.errors().map(|(place, ino, error)| (ino, (error, Some(place))));
            errors.inodes.replace(inodes.collect());
            let (everywhere, unsynced) = estate.general_errors();
            errors.everywhere.set(everywhere);
            errors.unsynced.set(unsynced);
        }
        Errors { estate, ..errors }
    }

    /// The first error of an inode stays.
    pub(crate) fn set(&self, ino: Ino, error: FsError) {
        let mut inodes = self.inodes.borrow_mut();
        if inodes.len() < INODES_WITH_ERRORS || inodes.contains_key(&ino) {
            let write =
                || (error, self.estate.as_ref().and_then(|estate| estate.put_error(ino, error)));
            inodes.entry(ino).or_insert_with(write);
        } else {
            self.everywhere.set(Some(error));
        }
        self.unsynced.set(Some(error));
        self.write_general();
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<FsError> {
        self.inodes.borrow().get(&ino).map(|(error, _)| *error).or(self.everywhere.get())
    }

    pub(crate) fn take(&self, ino: Ino) -> Option<FsError> {
        self.remove(ino).or(self.everywhere.get())
    }

    /// The inode is closed for the last time.
    pub(crate) fn forget(&self, ino: Ino) {
        self.remove(ino);
    }

    pub(crate) fn take_unsynced(&self) -> Option<FsError> {
        let error = self.unsynced.take()?;
        self.everywhere.set(None);
        self.write_general();
        Some(error)
    }

    fn remove(&self, ino: Ino) -> Option<FsError> {
        let (error, place) = self.inodes.borrow_mut().remove(&ino)?;
        if let (Some(place), Some(estate)) = (place, &self.estate) {
            estate.clear_error(place);
        }
        Some(error)
    }

    fn write_general(&self) {
        if let Some(estate) = &self.estate {
            estate.set_general_errors(self.everywhere.get(), self.unsynced.get());
        }
    }
}
