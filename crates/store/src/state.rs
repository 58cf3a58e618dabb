//! State of store files that the partition does not have.

use super::reclaim::PendingFree;
use super::{FileId, StoreLocation};
use ebb_core::blocks::BlockRuns;
use ebb_model::{BLOCK_BYTES, Ino, PackId, Position};
use ebb_ports::{DiskError, DiskFile};
use futures_util::lock::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

#[derive(Default)]
pub(super) struct State {
    /// Files that have a store file of their own.
    pub standalone: BTreeSet<Ino>,
    /// Those of them that an earlier run has made.
    pub from_previous_run: BTreeSet<Ino>,
    pub open: BTreeMap<FileId, Rc<dyn DiskFile>>,
    pub removing: BTreeSet<FileId>,
    /// Open files, oldest first.
    pub opened: VecDeque<FileId>,
    /// Files that the kernel reads by itself.
    pub granted: BTreeMap<Ino, Rc<dyn DiskFile>>,
    /// Files with bytes that were not forced, by their places, with the number of their last
    /// change. A file leaves only once it was forced, so that of two tasks that force it at one
    /// time neither takes the other's sync, which may still be under way, for done.
    pub unsynced: BTreeMap<(Ino, FileId), u64>,
    /// Those of them that have only fetched bytes, which are not lost with them.
    pub fetched: BTreeSet<(Ino, FileId)>,
    /// Bytes were fetched since all was last forced.
    pub has_fetched: bool,
    /// The blocks of them that were changed since they were last forced.
    pub unforced: BlockRuns,
    /// Files that could not be cut: there may be old bytes behind their end.
    pub uncut: BTreeSet<Ino>,
    /// Files that were cut, and not forced since: any force covers their new length first, or bytes
    /// that were cut off could come back under a later extension.
    pub cut: BTreeSet<Ino>,
    /// Files that this run has packed and that were never forced.
    pub never_synced: BTreeSet<Ino>,
    /// By directory: number of the last change of names, and of the last forced one.
    pub names_changed: BTreeMap<&'static str, u64>,
    pub names_synced: BTreeMap<&'static str, u64>,
    /// The number of the last change.
    pub changes: u64,
    pub failed: BTreeMap<Ino, DiskError>,
    /// Files with a sync under way or awaited: of two concurrent syncs the system reports a failure
    /// to one only.
    pub syncing: BTreeMap<FileId, Rc<Mutex<()>>>,
    /// In the order of the commands that freed them.
    pub pending_frees: VecDeque<(Position, PendingFree)>,
}

impl State {
    pub fn changed(&mut self, location: &StoreLocation, blocks: Range<u64>) {
        self.put(location, blocks);
        self.fetched.remove(&(location.ino, location.file()));
    }

    pub fn filled(&mut self, location: &StoreLocation, blocks: Range<u64>) {
        let is_first = self.put(location, blocks);
        if is_first {
            self.fetched.insert((location.ino, location.file()));
        }
        self.has_fetched = true;
    }

    /// Records a change. Returns whether all earlier ones were forced.
    fn put(&mut self, location: &StoreLocation, blocks: Range<u64>) -> bool {
        self.changes += 1;
        self.unforced.insert(location.ino, blocks);
        self.unsynced.insert((location.ino, location.file()), self.changes).is_none()
    }

    pub fn was_cut(&mut self, location: &StoreLocation, len: u64) {
        self.changed(location, len / BLOCK_BYTES..u64::MAX);
        self.cut.insert(location.ino);
    }

    /// The file has nothing left to force, or is of no use any more.
    pub fn settled(&mut self, ino: Ino) {
        let files: Vec<FileId> = self.unsynced_files(ino).map(|(file, _)| file).collect();
        for file in files {
            self.synced(ino, file);
        }
        self.unforced.remove(ino, 0..u64::MAX);
        self.cut.remove(&ino);
        self.never_synced.remove(&ino);
    }

    pub fn synced(&mut self, ino: Ino, file: FileId) {
        self.unsynced.remove(&(ino, file));
        self.fetched.remove(&(ino, file));
    }

    pub fn unsynced_files(&self, ino: Ino) -> impl Iterator<Item = (FileId, u64)> {
        let (first, last) = (FileId::Own(Ino(0)), FileId::Pack(PackId(u64::MAX)));
        self.unsynced.range((ino, first)..=(ino, last)).map(|((_, file), change)| (*file, *change))
    }

    pub fn names_changed(&mut self, directory: &'static str) {
        self.changes += 1;
        self.names_changed.insert(directory, self.changes);
    }
}
