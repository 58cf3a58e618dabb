//! Frees store files and ranges of pack files that are of no use any more, once the command that
//! freed them is forced.

use super::{FileId, Store};
use crate::packs;
use ebb_model::{Ino, PackId, PackRange, Position};
use ebb_ports::DiskError;
use std::collections::BTreeSet;

/// A file or range that is freed once the command that frees it is forced.
pub(super) enum PendingFree {
    File(Ino),
    Range(PackRange),
}

/// The files and ranges to be removed now.
struct Going {
    files: Vec<Ino>,
    /// Ranges of pack files that stay.
    ranges: Vec<PackRange>,
    packs: BTreeSet<PackId>,
}

impl Store {
    /// The record at this position removes the inode: its file is freed once that is forced.
    pub fn free_file_after(&self, ino: Ino, at: Position) {
        let mut state = self.state.borrow_mut();
        // Its bytes matter only if the command is lost, and then as they are.
        state.settled(ino);
        state.uncut.remove(&ino);
        // The removal of a file also clears its failed sync.
        if state.standalone.contains(&ino) || state.failed.contains_key(&ino) {
            state.pending_frees.push_back((at, PendingFree::File(ino)));
        }
    }

    /// The record at this position frees this range.
    pub fn free_range_after(&self, range: PackRange, at: Position) {
        self.state.borrow_mut().pending_frees.push_back((at, PendingFree::Range(range)));
    }

    /// Whether anything is freed once the log is forced.
    pub fn has_pending_frees(&self) -> bool {
        !self.state.borrow().pending_frees.is_empty()
    }

    /// Whether that includes files of their own, which can be large.
    pub fn has_pending_file_frees(&self) -> bool {
        self.state
            .borrow()
            .pending_frees
            .iter()
            .any(|(_, pending_frees)| matches!(pending_frees, PendingFree::File(_)))
    }

    /// Frees all files and ranges that are due with commands up to `durable`; returns whether there
    /// were any. `has_files` tells of a pack file whether any file is in it.
    pub async fn free_pending(
        &self,
        durable: Position,
        has_files: impl Fn(PackId) -> bool,
    ) -> Result<bool, DiskError> {
        let Going { files, ranges, packs } = self.take_due_frees(durable, has_files);
        let any = !(files.is_empty() && ranges.is_empty() && packs.is_empty());
        let mut dropped = Ok(());
        for ino in files {
            dropped = dropped.and(self.drop_file(ino).await);
        }
        for range in ranges {
            dropped = dropped.and(self.free(range).await);
        }
        for pack in packs {
            dropped = dropped.and(self.drop_pack(pack).await);
        }
        dropped.map(|()| any)
    }

    /// In one step: a pack file that is chosen for removal is marked until it is gone.
    fn take_due_frees(&self, durable: Position, has_files: impl Fn(PackId) -> bool) -> Going {
        let mut files = Vec::new();
        let mut ranges = Vec::new();
        while let Some((_, pending_frees)) =
            self.state.borrow_mut().pending_frees.pop_front_if(|(index, _)| *index <= durable)
        {
            match pending_frees {
                PendingFree::File(ino) => files.push(ino),
                PendingFree::Range(range) => ranges.push(range),
            }
        }
        let waits = |pack| self.packs.is_in_use(pack) || self.is_freed_later(pack);
        let (ranges, empty): (Vec<_>, Vec<_>) = packs::joined(ranges)
            .into_iter()
            .partition(|range| has_files(range.pack) || waits(range.pack));
        let mut packs: BTreeSet<PackId> = empty.into_iter().map(|range| range.pack).collect();
        for pack in self.packs.ended() {
            if has_files(pack) && !waits(pack) {
                self.packs.looked_at(pack);
            } else if !waits(pack) {
                packs.insert(pack);
            }
        }
        self.state.borrow_mut().removing.extend(packs.iter().copied().map(FileId::Pack));
        Going { files, ranges, packs }
    }

    /// A pack file has a range that waits for its command to be forced.
    fn is_freed_later(&self, pack: PackId) -> bool {
        let state = self.state.borrow();
        state
            .pending_frees
            .iter()
            .any(|(_, pending_frees)| matches!(pending_frees, PendingFree::Range(range) if range.pack == pack))
    }

    /// Gives back the space of a range of a pack file.
    pub async fn free(&self, range: PackRange) -> Result<(), DiskError> {
        match self.existing(FileId::Pack(range.pack)).await? {
            Some(file) => file.punch(range.start, range.len_bytes).await,
            None => Ok(()),
        }
    }

    pub async fn drop_pack(&self, pack: PackId) -> Result<(), DiskError> {
        self.packs.looked_at(pack);
        self.remove(FileId::Pack(pack)).await
    }

    /// Removes the store file, if there is one, of an inode that is gone.
    pub async fn drop_file(&self, ino: Ino) -> Result<(), DiskError> {
        {
            let mut state = self.state.borrow_mut();
            state.settled(ino);
            state.failed.remove(&ino);
        }
        self.drop_own(ino).await
    }

    /// Removes the store file, if there is one, of an inode with its bytes elsewhere: those may not
    /// be forced yet.
    pub async fn drop_own(&self, ino: Ino) -> Result<(), DiskError> {
        {
            let mut state = self.state.borrow_mut();
            state.standalone.remove(&ino);
            state.from_previous_run.remove(&ino);
            state.uncut.remove(&ino);
            state.granted.remove(&ino);
            state.synced(ino, FileId::Own(ino));
        }
        self.remove(FileId::Own(ino)).await
    }

    async fn remove(&self, file: FileId) -> Result<(), DiskError> {
        {
            let mut state = self.state.borrow_mut();
            state.open.remove(&file);
            state.removing.insert(file);
            state.names_changed(file.directory());
        }
        let removed = self.disk.remove(&self.path(file)).await;
        self.state.borrow_mut().removing.remove(&file);
        match removed {
            Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The file has no known bytes, none about to be forced, and will get none.
    pub fn is_stray(
        &self,
        file: FileId,
        is_over: impl Fn(Ino) -> bool,
        has_files: impl Fn(PackId) -> bool,
    ) -> bool {
        if self.state.borrow().removing.contains(&file) {
            return false;
        }
        match file {
            FileId::Own(ino) => !self.has_standalone(ino) && is_over(ino),
            FileId::Pack(pack) => {
                let goes_by_itself =
                    self.packs.ended().contains(&pack) || self.is_freed_later(pack);
                !has_files(pack)
                    && !self.packs.is_in_use(pack)
                    && !self.packs.is_to_come(pack)
                    && !goes_by_itself
            }
        }
    }
}
