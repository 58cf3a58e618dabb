//! What went wrong behind an answer that had been given.

use crate::handover::{HandoverState, INODES_WITH_ERRORS, RecordIndex};
use ebb_model::{FsError, Ino};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Errors of operations whose callers have gone: a replay that was refused, an outcome that stays
/// unknown. Each stands on its inode until it has been reported, by this process or its successor.
#[derive(Default)]
pub(crate) struct Errors {
    /// And where that is written.
    inodes: RefCell<BTreeMap<Ino, (FsError, Option<RecordIndex>)>>,
    /// Stands for inodes that found no place: every inode has it until it is reported by a sync of
    /// all.
    everywhere: Cell<Option<FsError>>,
    /// What the next sync of all reports.
    unsynced: Cell<Option<FsError>>,
    handover: Option<Rc<HandoverState>>,
}

impl Errors {
    /// With what a process before has left.
    pub(crate) fn new(handover: Option<Rc<HandoverState>>) -> Errors {
        let errors = Errors::default();
        if let Some(handover) = &handover {
            let inodes = handover.errors().map(|(place, ino, error)| (ino, (error, Some(place))));
            errors.inodes.replace(inodes.collect());
            let (everywhere, unsynced) = handover.general_errors();
            errors.everywhere.set(everywhere);
            errors.unsynced.set(unsynced);
        }
        Errors { handover, ..errors }
    }

    /// The first error of an inode stays.
    pub(crate) fn set(&self, ino: Ino, error: FsError) {
        let mut inodes = self.inodes.borrow_mut();
        if inodes.len() < INODES_WITH_ERRORS || inodes.contains_key(&ino) {
            let write = || {
                (error, self.handover.as_ref().and_then(|handover| handover.put_error(ino, error)))
            };
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
        if let (Some(place), Some(handover)) = (place, &self.handover) {
            handover.clear_error(place);
        }
        Some(error)
    }

    fn write_general(&self) {
        if let Some(handover) = &self.handover {
            handover.set_general_errors(self.everywhere.get(), self.unsynced.get());
        }
    }
}
