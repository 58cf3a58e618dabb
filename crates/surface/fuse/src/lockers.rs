//! Which open files a lock owner of fcntl(2) has used.
//!
//! The kernel passes on the locks of processes and those of open file descriptions (OFD) as one
//! kind. A process sends FLUSH when it closes any descriptor of the file, which ends all its locks
//! there. A description ends with its RELEASE, which does not name the owner: it is the owner that
//! has used this open file and no other, and has not been flushed since.

use crate::Handle;
use ebb_client::{HandoverState, Locker, RecordIndex};
use ebb_model::Ino;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

#[derive(Default)]
pub(crate) struct Lockers {
    /// The open files of each owner, with their records in the handover state.
    used: BTreeMap<(Ino, u64), BTreeMap<Handle, Option<RecordIndex>>>,
    by_handle: BTreeMap<Handle, BTreeSet<(Ino, u64)>>,
    handover: Option<Rc<HandoverState>>,
}

impl Lockers {
    /// Starts with the entries that a previous process has left.
    pub fn new(handover: Option<Rc<HandoverState>>) -> Lockers {
        let mut lockers = Lockers::default();
        for (place, Locker { ino, owner, handle }) in
            handover.iter().flat_map(|handover| handover.lockers())
        {
            lockers.note(ino, owner, Handle(handle), || Some(place));
        }
        Lockers { handover, ..lockers }
    }

    /// The owner requests a lock through `handle`.
    pub fn used(&mut self, ino: Ino, owner: u64, handle: Handle) {
        let handover = self.handover.clone();
        self.note(ino, owner, handle, || {
            handover?.put_locker(Locker { ino, owner, handle: handle.0 })
        });
    }

    fn note(
        &mut self,
        ino: Ino,
        owner: u64,
        handle: Handle,
        place: impl FnOnce() -> Option<RecordIndex>,
    ) {
        self.used.entry((ino, owner)).or_default().entry(handle).or_insert_with(place);
        self.by_handle.entry(handle).or_default().insert((ino, owner));
    }

    fn cross_out(&self, place: Option<RecordIndex>) {
        if let (Some(handover), Some(place)) = (&self.handover, place) {
            handover.clear_locker(place);
        }
    }

    /// The owner has no locks of the file any more.
    pub fn flushed(&mut self, ino: Ino, owner: u64) {
        for (handle, place) in self.used.remove(&(ino, owner)).into_iter().flatten() {
            self.cross_out(place);
            if let Some(owners) = self.by_handle.get_mut(&handle) {
                owners.remove(&(ino, owner));
                if owners.is_empty() {
                    self.by_handle.remove(&handle);
                }
            }
        }
    }

    /// Owners that have used no other open file: their locks go with it.
    pub fn end_with(&self, handle: Handle) -> Vec<(Ino, u64)> {
        let owners = self.by_handle.get(&handle).into_iter().flatten();
        owners
            .filter(|owner| self.used.get(owner).is_some_and(|handles| handles.len() == 1))
            .copied()
            .collect()
    }

    /// The open file is closed for good, and the locks that ended with it are released.
    pub fn released(&mut self, handle: Handle) {
        for owner in self.by_handle.remove(&handle).into_iter().flatten() {
            if let Some(handles) = self.used.get_mut(&owner) {
                let place = handles.remove(&handle).flatten();
                if handles.is_empty() {
                    self.used.remove(&owner);
                }
                self.cross_out(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    /// A description ends with its only open file. A process that has closed the file is not
    /// affected by the later end of the open file that it shared with its children, even if it has
    /// opened the file anew since.
    #[test]
    fn release_ends_locks_of_descriptions_but_not_of_processes() {
        let (process, description) = (100, 200);
        let mut lockers = Lockers::default();
        lockers.used(FILE, process, Handle(1));
        lockers.used(FILE, description, Handle(1));
        lockers.flushed(FILE, process);
        lockers.used(FILE, process, Handle(2));
        let released = |lockers: &mut Lockers, handle| {
            let ended = lockers.end_with(handle);
            lockers.released(handle);
            ended
        };
        assert_eq!(released(&mut lockers, Handle(1)), [(FILE, description)]);
        lockers.used(FILE, process, Handle(3));
        assert_eq!(released(&mut lockers, Handle(2)), []);
        assert_eq!(released(&mut lockers, Handle(3)), [(FILE, process)]);
        assert!(lockers.used.is_empty() && lockers.by_handle.is_empty());
        assert_eq!(released(&mut lockers, Handle(3)), []);
    }
}
