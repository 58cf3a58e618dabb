//! Store files: the bytes of files on this node's disk, each in a sparse file at natural
//! offsets (store offset = file offset), named by inode id (DESIGN §5).
//!
//! Laws:
//! - What is in a store file counts only as far as the partition's extents say so.
//! - Bytes are forced before a `Synced` record claims it; which files have bytes that are
//!   not is remembered here. A failed sync is never forgotten: the file stays failed until
//!   it is dropped or the node starts again and reads what is there.
//! - Of a file that is lent there is one open file here, whatever else is closed: whether
//!   anybody has it is asked of that one.

use crate::signal::Signal;
use bytes::Bytes;
use ebb_core::extent::{BlockRuns, touched_blocks};
use ebb_model::{BLOCK_BYTES, Ino, LogIndex};
use ebb_ports::{Disk, DiskError, DiskFile, OpenMode};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Store files kept open. Enough for the files at work at one time, far below the usual
/// limit of 1,024 descriptors.
const MAX_OPEN_FILES: usize = 512;

const DIRECTORY: &str = "store";

pub struct Store {
    disk: Rc<dyn Disk>,
    state: RefCell<State>,
    failing: Signal,
}

#[derive(Default)]
struct State {
    open: BTreeMap<Ino, Rc<dyn DiskFile>>,
    /// Open files, oldest first.
    opened: VecDeque<Ino>,
    /// Files that the kernel reads by itself.
    lent: BTreeMap<Ino, Rc<dyn DiskFile>>,
    /// Files with bytes that were not forced, with the number of their last change. A file
    /// leaves only once it was forced, so that of two who force it at one time neither
    /// takes the other's sync, which may still be under way, for done.
    unsynced: BTreeMap<Ino, u64>,
    /// What of them was changed since they were last forced.
    unforced: BlockRuns,
    /// Files among them that were cut: whatever is forced, their new length is forced
    /// before, or bytes that were cut off could come back under a later extension.
    cut: BTreeSet<Ino>,
    /// Number of the last change of names, and of the last that is forced.
    names_changed: u64,
    names_synced: u64,
    /// Changes are numbered.
    changes: u64,
    failed: BTreeMap<Ino, DiskError>,
    /// Files of inodes that are gone, in the order of the commands that said so. They go
    /// once that is forced.
    doomed: VecDeque<(LogIndex, Ino)>,
}

impl State {
    fn changed(&mut self, ino: Ino, blocks: Range<u64>) {
        self.changes += 1;
        self.unsynced.insert(ino, self.changes);
        self.unforced.insert(ino, blocks);
    }

    fn was_cut(&mut self, ino: Ino, len: u64) {
        self.changed(ino, len / BLOCK_BYTES..u64::MAX);
        self.cut.insert(ino);
    }

    /// Nothing of the file is left to force, or it is of no use any more.
    fn settled(&mut self, ino: Ino) {
        self.unsynced.remove(&ino);
        self.unforced.remove(ino, 0..u64::MAX);
        self.cut.remove(&ino);
    }

    fn names_changed(&mut self) {
        self.changes += 1;
        self.names_changed = self.changes;
    }
}

impl Store {
    pub async fn open(disk: Rc<dyn Disk>) -> Result<Store, DiskError> {
        disk.create_dir(DIRECTORY).await?;
        disk.sync_dir("").await?;
        Ok(Store::found(disk))
    }

    /// The store files that there are, to be looked at.
    pub fn found(disk: Rc<dyn Disk>) -> Store {
        Store { disk, state: RefCell::default(), failing: Signal::default() }
    }

    /// These blocks were written by an earlier run, which may not have forced them.
    pub fn not_forced<'a>(&self, blocks: impl IntoIterator<Item = (Ino, &'a Range<u64>)>) {
        let mut state = self.state.borrow_mut();
        state.names_changed();
        blocks.into_iter().for_each(|(ino, blocks)| state.changed(ino, blocks.clone()));
    }

    /// These files were cut by an earlier run, which may not have forced their new length.
    pub fn not_forced_cuts(&self, cuts: impl IntoIterator<Item = (Ino, u64)>) {
        let mut state = self.state.borrow_mut();
        cuts.into_iter().for_each(|(ino, len)| state.was_cut(ino, len));
    }

    pub fn unforced_cuts(&self) -> Vec<Ino> {
        self.state.borrow().cut.iter().copied().collect()
    }

    /// Reads `len` bytes; what is beyond the end of the store file reads as zeros.
    pub async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes, DiskError> {
        let data = match self.existing(ino).await? {
            Some(file) => file.read_at(offset, len).await?,
            None => Bytes::new(),
        };
        if data.len() == len {
            return Ok(data);
        }
        let mut padded = Vec::with_capacity(len);
        padded.extend_from_slice(&data);
        padded.resize(len, 0);
        Ok(padded.into())
    }

    pub async fn write(&self, ino: Ino, offset: u64, data: Bytes) -> Result<(), DiskError> {
        let file = self.file(ino, OpenMode::Create).await?;
        let blocks = touched_blocks(offset, data.len() as u64);
        let written = file.write_at(offset, data).await;
        // After the write: a sync that ran meanwhile may have missed it. After a failure
        // too: part of the bytes may be there.
        self.state.borrow_mut().changed(ino, blocks);
        written
    }

    /// Makes bytes from `len` on vanish, so that a later extension reads as zeros.
    pub async fn cut(&self, ino: Ino, len: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(ino).await? else { return Ok(()) };
        if file.len().await? > len {
            let cut = file.set_len(len).await;
            self.state.borrow_mut().was_cut(ino, len);
            return cut;
        }
        Ok(())
    }

    /// Makes a range that is not in use read as zeros, whatever an earlier use left there.
    pub async fn clear(&self, ino: Ino, offset: u64, len: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(ino).await? else { return Ok(()) };
        if file.len().await? > offset { file.punch(offset, len).await } else { Ok(()) }
    }

    /// Gives back the space of a range.
    pub async fn punch(&self, ino: Ino, offset: u64, len: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(ino).await? else { return Ok(()) };
        file.punch(offset, len).await
    }

    /// Makes a hole. Unlike space that is only given back, it is forced with the file: what was
    /// there before must not come back under bytes that are written later and lost.
    pub async fn hole(&self, ino: Ino, offset: u64, len: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(ino).await? else { return Ok(()) };
        let punched = file.punch(offset, len).await;
        self.state.borrow_mut().changed(ino, touched_blocks(offset, len));
        punched
    }

    /// The store file reaches beyond this length.
    pub async fn is_longer(&self, ino: Ino, len: u64) -> Result<bool, DiskError> {
        let Some(file) = self.existing(ino).await? else { return Ok(false) };
        Ok(file.len().await? > len)
    }

    /// The inode is gone by the command at `index`: its file goes once that is forced.
    pub fn doom(&self, ino: Ino, index: LogIndex) {
        let mut state = self.state.borrow_mut();
        // Its bytes are of use only if the command is lost, and then as they are.
        state.settled(ino);
        state.doomed.push_back((index, ino));
    }

    /// Removes the files that are doomed by commands up to `durable`.
    pub async fn drop_doomed(&self, durable: LogIndex) -> Result<(), DiskError> {
        loop {
            let next = self.state.borrow_mut().doomed.pop_front_if(|(index, _)| *index <= durable);
            match next {
                Some((_, ino)) => self.drop_file(ino).await?,
                None => return Ok(()),
            }
        }
    }

    /// Removes the store file, if there is one.
    pub async fn drop_file(&self, ino: Ino) -> Result<(), DiskError> {
        {
            let mut state = self.state.borrow_mut();
            state.open.remove(&ino);
            state.lent.remove(&ino);
            state.settled(ino);
            state.failed.remove(&ino);
            state.names_changed();
        }
        match self.disk.remove(&path(ino)).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The store file for the kernel to read by itself, made `len` bytes long: what is behind are
    /// zeros that only the node knows to leave out. `None` where somebody has it whom this run
    /// has not lent it to, or nobody can say.
    pub async fn lend(&self, ino: Ino, len: u64) -> Result<Option<OwnedFd>, DiskError> {
        let Some(file) = self.existing(ino).await? else { return Ok(None) };
        let is_lent = self.state.borrow().lent.contains_key(&ino);
        if !is_lent && file.is_held() != Some(false) {
            return Ok(None);
        }
        if file.len().await? != len {
            file.set_len(len).await?;
        }
        let descriptor = file.descriptor();
        if descriptor.is_some() {
            self.state.borrow_mut().lent.insert(ino, file);
        }
        Ok(descriptor)
    }

    /// False as long as somebody has what was lent.
    pub fn take_back(&self, ino: Ino) -> bool {
        let mut state = self.state.borrow_mut();
        let free = state.lent.get(&ino).is_none_or(|file| file.is_held() == Some(false));
        if free {
            state.lent.remove(&ino);
        }
        free
    }

    /// Whether somebody has a file, whoever lent it.
    pub async fn is_held(&self, ino: Ino) -> Result<bool, DiskError> {
        Ok(self.existing(ino).await?.is_some_and(|file| file.is_held() == Some(true)))
    }

    /// Forces the bytes of one file, or of all; says whether there were any. As long as
    /// some file has failed, "all" cannot be said.
    pub async fn sync(&self, only: Option<Ino>) -> Result<bool, DiskError> {
        let (files, names) = {
            let state = self.state.borrow();
            if let Some(error) = only.and_then(|ino| state.failed.get(&ino)) {
                return Err(error.clone());
            }
            let files: BTreeMap<Ino, u64> = match only {
                Some(ino) => state.cut.iter().chain([&ino]).filter_map(|ino| Some((*ino, *state.unsynced.get(ino)?))).collect(),
                None => state.unsynced.clone(),
            };
            (files, state.names_changed)
        };
        let any = !files.is_empty();
        if any && names > self.state.borrow().names_synced {
            self.disk.sync_dir(DIRECTORY).await?;
            let mut state = self.state.borrow_mut();
            state.names_synced = state.names_synced.max(names);
        }
        let mut result = Ok(any);
        if only.is_none() {
            result = self.state.borrow().failed.values().next().map_or(Ok(any), |error| Err(error.clone()));
        }
        for (ino, change) in files {
            let synced = match self.existing(ino).await {
                Ok(Some(file)) => file.sync_data().await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            let mut state = self.state.borrow_mut();
            if state.unsynced.get(&ino) == Some(&change) {
                state.settled(ino);
            }
            if let Err(error) = synced {
                state.failed.insert(ino, error.clone());
                self.failing.raise();
                result = Err(error);
            }
        }
        // The system tells only one of two syncs of a file that run at one time.
        if let Some(error) = only.and_then(|ino| self.state.borrow().failed.get(&ino).cloned()) {
            return Err(error);
        }
        result
    }

    /// Whether all of its bytes are forced.
    pub fn is_forced(&self, ino: Ino) -> bool {
        let state = self.state.borrow();
        !state.unsynced.contains_key(&ino) && !state.failed.contains_key(&ino)
    }

    /// Whether what was last written to a block is forced.
    pub fn is_block_forced(&self, ino: Ino, block: u64) -> bool {
        let state = self.state.borrow();
        !state.unforced.contains(ino, block) && !state.failed.contains_key(&ino)
    }

    /// Files whose bytes could not be forced.
    pub fn failed(&self) -> Vec<(Ino, DiskError)> {
        self.state.borrow().failed.iter().map(|(ino, error)| (*ino, error.clone())).collect()
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

    /// Every inode that has a store file.
    pub async fn list(&self) -> Result<Vec<Ino>, DiskError> {
        let names = self.disk.list(DIRECTORY).await?;
        Ok(names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).map(Ino).collect())
    }

    /// The store file, if there is one.
    async fn existing(&self, ino: Ino) -> Result<Option<Rc<dyn DiskFile>>, DiskError> {
        match self.file(ino, OpenMode::Existing).await {
            Ok(file) => Ok(Some(file)),
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn file(&self, ino: Ino, mode: OpenMode) -> Result<Rc<dyn DiskFile>, DiskError> {
        {
            let state = self.state.borrow();
            if let Some(file) = state.open.get(&ino).or_else(|| state.lent.get(&ino)) {
                return Ok(file.clone());
            }
        }
        let file = self.disk.open(&path(ino), mode).await?;
        let mut state = self.state.borrow_mut();
        if mode != OpenMode::Existing {
            // It may have been there before. Asking first would cost every new file a system
            // call; taking it for new costs an old one a sync of the directory with its next.
            state.names_changed();
        }
        if state.open.insert(ino, file.clone()).is_none() {
            state.opened.push_back(ino);
        }
        while state.opened.len() > MAX_OPEN_FILES {
            if let Some(oldest) = state.opened.pop_front() {
                state.open.remove(&oldest);
            }
        }
        Ok(file)
    }
}

pub fn path(ino: Ino) -> String {
    format!("{DIRECTORY}/{:016x}", ino.0)
}
