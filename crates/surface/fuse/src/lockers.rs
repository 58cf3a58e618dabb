//! Which open files a lock owner of fcntl(2) has used.
//!
//! The kernel passes on the locks of processes and those of open file descriptions (OFD) as one
//! kind. A process says with FLUSH when it closes any descriptor of the file, which ends all its
//! locks there. A description is over with its RELEASE, which does not name the owner: it is who
//! has used this open file and no other, and has not been flushed since.

use crate::Handle;
use ebb_model::Ino;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Lockers {
    used: BTreeMap<(Ino, u64), BTreeSet<Handle>>,
    by_handle: BTreeMap<Handle, BTreeSet<(Ino, u64)>>,
}

impl Lockers {
    /// The owner asks for a lock over `handle`.
    pub fn used(&mut self, ino: Ino, owner: u64, handle: Handle) {
        if self.used.entry((ino, owner)).or_default().insert(handle) {
            self.by_handle.entry(handle).or_default().insert((ino, owner));
        }
    }

    /// The owner has no locks of the file any more.
    pub fn flushed(&mut self, ino: Ino, owner: u64) {
        for handle in self.used.remove(&(ino, owner)).into_iter().flatten() {
            if let Some(owners) = self.by_handle.get_mut(&handle) {
                owners.remove(&(ino, owner));
                if owners.is_empty() {
                    self.by_handle.remove(&handle);
                }
            }
        }
    }

    /// The open file is closed for good. Gives the owners that have used no other: their locks
    /// go with it.
    pub fn released(&mut self, handle: Handle) -> Vec<(Ino, u64)> {
        let mut over = Vec::new();
        for owner in self.by_handle.remove(&handle).into_iter().flatten() {
            if let Some(handles) = self.used.get_mut(&owner) {
                handles.remove(&handle);
                if handles.is_empty() {
                    self.used.remove(&owner);
                    over.push(owner);
                }
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    /// A description goes with its only open file. A process that has closed the file is no
    /// longer concerned by what becomes of the open file that it shared with its children, even
    /// if it has opened the file anew since.
    #[test]
    fn whose_locks_go_with_an_open_file() {
        let (process, description) = (100, 200);
        let mut lockers = Lockers::default();
        lockers.used(FILE, process, Handle(1));
        lockers.used(FILE, description, Handle(1));
        lockers.flushed(FILE, process);
        lockers.used(FILE, process, Handle(2));
        assert_eq!(lockers.released(Handle(1)), [(FILE, description)]);
        lockers.used(FILE, process, Handle(3));
        assert_eq!(lockers.released(Handle(2)), []);
        assert_eq!(lockers.released(Handle(3)), [(FILE, process)]);
        assert!(lockers.used.is_empty() && lockers.by_handle.is_empty());
        assert_eq!(lockers.released(Handle(3)), []);
    }
}
