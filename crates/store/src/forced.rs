//! Forces the bytes of store files, and keeps track of those that could not be forced.

use super::{DIRECTORY, FileId, Store, StoreLocation};
use crate::packs;
use ebb_model::{BLOCK_BYTES, Ino, Planted, SyncScope};
use ebb_ports::DiskError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// No file system has smaller blocks.
const SECTOR_BYTES: usize = 512;

impl Store {
    /// These blocks were written by an earlier run, which may not have forced them.
    pub fn not_forced<'a>(
        &self,
        blocks: impl IntoIterator<Item = (StoreLocation, &'a Range<u64>)>,
    ) {
        let mut state = self.state.borrow_mut();
        state.names_changed(DIRECTORY);
        state.names_changed(packs::DIRECTORY);
        blocks.into_iter().for_each(|(location, blocks)| state.changed(&location, blocks.clone()));
    }

    /// Writes a block's bytes in the page cache once more. The process before may have ended
    /// because it could not force them: the kernel then calls the pages clean, and the next sync
    /// would succeed without having written them.
    pub async fn dirty_again(&self, location: &StoreLocation, block: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(location.file()).await? else { return Ok(()) };
        let at = location.at(block * BLOCK_BYTES, BLOCK_BYTES);
        let read = || file.read_at(at.start, (at.end - at.start) as usize);
        let bytes = match read().await {
            Err(error) => {
                tracing::warn!(%error, "asked once more for what is to be forced");
                read().await
            }
            read => read,
        };
        match bytes {
            Ok(bytes) => match file.write_at(at.start, bytes.clone()).await {
                // Zeros beside the written bytes may need room. The written bytes have it.
                Err(DiskError::NoSpace) => {
                    for start in (0..bytes.len()).step_by(SECTOR_BYTES) {
                        let sector = bytes.slice(start..bytes.len().min(start + SECTOR_BYTES));
                        if sector.iter().any(|byte| *byte != 0) {
                            file.write_at(at.start + start as u64, sector).await?;
                        }
                    }
                    Ok(())
                }
                written => written,
            },
            // The block cannot be forced any more; its readers get an error.
            Err(error) => {
                tracing::error!(ino = %location.ino, block, %error, "what a run before has written \
                    and not forced cannot be read");
                Ok(())
            }
        }
    }

    /// These files were cut by an earlier run, which may not have forced their new length.
    pub fn not_forced_cuts(&self, cuts: impl IntoIterator<Item = (StoreLocation, u64)>) {
        let mut state = self.state.borrow_mut();
        cuts.into_iter()
            .filter(|(location, _)| location.packed.is_none())
            .for_each(|(location, len)| state.was_cut(&location, len));
    }

    /// Forces the names of removed files, of this and earlier runs. Otherwise a removed file could
    /// come back under a reused name, with bytes of another inode.
    pub async fn sync_names(&self) -> Result<(), DiskError> {
        for directory in [DIRECTORY, packs::DIRECTORY] {
            let change = self.state.borrow().changes;
            self.disk.sync_dir(self.real(directory)).await?;
            self.state.borrow_mut().names_synced.insert(directory, change);
        }
        Ok(())
    }

    /// Whether any file was cut, has not been forced since, and has not failed.
    pub fn has_cuts(&self) -> bool {
        self.a_cut().is_some()
    }

    fn a_cut(&self) -> Option<Ino> {
        let state = self.state.borrow();
        state.cut.iter().find(|ino| !state.failed.contains_key(ino)).copied()
    }

    /// Forces the length of files that were cut.
    pub async fn sync_cuts(&self) -> Result<(), DiskError> {
        match self.a_cut() {
            Some(ino) => self.sync(SyncScope::File(ino)).await.map(drop),
            None => Ok(()),
        }
    }

    /// Whether anything was fetched since all was last forced.
    pub fn has_fetched(&self) -> bool {
        self.state.borrow().has_fetched
    }

    /// Forces bytes; returns whether there were any. As long as some file has failed, a force of
    /// several files returns its error.
    pub async fn sync(&self, scope: SyncScope) -> Result<bool, DiskError> {
        let only = scope.only();
        let mut files = BTreeMap::<FileId, Vec<(Ino, u64)>>::new();
        let names = {
            let mut state = self.state.borrow_mut();
            state.has_fetched &= scope != SyncScope::All;
            if let Some(error) = only.and_then(|ino| state.failed.get(&ino)) {
                return Err(error.clone());
            }
            let mut take = |ino, file, change| files.entry(file).or_default().push((ino, change));
            match only {
                Some(only) => {
                    for ino in
                        state.cut.iter().chain(Some(&only).filter(|only| !state.cut.contains(only)))
                    {
                        state
                            .unsynced_files(*ino)
                            .for_each(|(file, change)| take(*ino, file, change));
                    }
                }
                None => {
                    let is_left = |at: &(Ino, FileId)| {
                        scope == SyncScope::Written && state.fetched.contains(at)
                    };
                    state
                        .unsynced
                        .iter()
                        .filter(|(at, _)| !is_left(at))
                        .for_each(|((ino, file), change)| take(*ino, *file, *change));
                }
            }
            for (ino, _) in files.values().flatten() {
                state.never_synced.remove(ino);
            }
            state.names_changed.clone()
        };
        let any = !files.is_empty();
        for (directory, change) in names {
            let is_concerned = files.keys().any(|file| file.directory() == directory)
                && !Planted::NamesNotForced.is_on();
            if is_concerned
                && self
                    .state
                    .borrow()
                    .names_synced
                    .get(directory)
                    .is_none_or(|synced| change > *synced)
            {
                self.disk.sync_dir(self.real(directory)).await?;
                let mut state = self.state.borrow_mut();
                let synced = state.names_synced.entry(directory).or_default();
                *synced = change.max(*synced);
            }
        }
        let mut result = Ok(any);
        for (file, changes) in files {
            let syncing = self.state.borrow_mut().syncing.entry(file).or_default().clone();
            let _turn = syncing.lock().await;
            let synced = match self.existing(file).await {
                Ok(Some(open)) => open.sync_data().await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            let mut state = self.state.borrow_mut();
            if let Err(error) = synced {
                // Each inode with unforced bytes there may have lost them.
                let sharing: Vec<Ino> = state
                    .unsynced
                    .keys()
                    .filter(|(_, other)| *other == file)
                    .map(|(ino, _)| *ino)
                    .collect();
                state.failed.extend(
                    sharing
                        .into_iter()
                        .chain(changes.iter().map(|(ino, _)| *ino))
                        .map(|ino| (ino, error.clone())),
                );
                self.packs.seal();
                self.failing.raise();
                result = Err(error);
            }
            for (ino, change) in changes {
                if state.unsynced.get(&(ino, file)) == Some(&change)
                    || Planted::ForceCoversLater.is_on()
                {
                    state.synced(ino, file);
                    if state.unsynced_files(ino).next().is_none() {
                        state.settled(ino);
                    }
                }
            }
            // Only the map and this task have it.
            if Rc::strong_count(&syncing) == 2 {
                state.syncing.remove(&file);
            }
        }
        // Another task may have got the error during the wait.
        let state = self.state.borrow();
        let failed = match only {
            Some(ino) => state.failed.get(&ino),
            None => state.failed.values().next(),
        };
        failed.map_or(result, |error| Err(error.clone()))
    }

    /// Whether all of its bytes are forced.
    pub fn is_forced(&self, ino: Ino) -> bool {
        let state = self.state.borrow();
        state.unsynced_files(ino).next().is_none() && !state.failed.contains_key(&ino)
    }

    /// Whether bytes that were written there, rather than fetched, are not forced.
    pub fn has_unforced_writes(&self, ino: Ino) -> bool {
        let state = self.state.borrow();
        state.unsynced_files(ino).any(|(file, _)| !state.fetched.contains(&(ino, file)))
    }

    /// Whether the last write to a block is forced.
    pub fn is_block_forced(&self, ino: Ino, block: u64) -> bool {
        let state = self.state.borrow();
        !state.unforced.contains(ino, block) && !state.failed.contains_key(&ino)
    }

    /// Files with bytes that could not be forced.
    pub fn failed(&self) -> Vec<(Ino, DiskError)> {
        self.state.borrow().failed.iter().map(|(ino, error)| (*ino, error.clone())).collect()
    }

    pub fn failure_of(&self, ino: Ino) -> Option<DiskError> {
        self.state.borrow().failed.get(&ino).cloned()
    }

    pub fn has_failed(&self) -> bool {
        !self.state.borrow().failed.is_empty()
    }

    /// Completes when bytes of a file could not be forced.
    pub async fn failure(&self) -> DiskError {
        loop {
            let failing = self.failing.wait();
            if let Some((_, error)) = self.failed().into_iter().next() {
                return error;
            }
            failing.await;
        }
    }
}
