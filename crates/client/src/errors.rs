//! Errors that come up after an operation was answered.

use crate::handover::{HandoverState, INODES_WITH_ERRORS, RecordIndex};
use ebb_model::{FsError, Ino};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Errors of operations that have returned to their callers: a replay was refused, or an outcome
/// stays unknown. Each error stands on its inode until this process or its successor has reported
/// it.
#[derive(Default)]
pub(crate) struct Errors {
    /// With each error its record in the handover state.
    inodes: RefCell<BTreeMap<Ino, (FsError, Option<RecordIndex>)>>,
    /// The error for inodes without an entry of their own. It applies to every inode until a sync
    /// of everything reports it.
    everywhere: Cell<Option<FsError>>,
    /// The error that the next sync of everything reports.
    unsynced: Cell<Option<FsError>>,
    handover: Option<Rc<HandoverState>>,
}

impl Errors {
    /// Starts with the errors that the previous process left.
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

    /// Keeps the first error of an inode.
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
