//! The bytes of files on one node's disk, by volume and inode id: their places, the unforced ones,
//! the order in which clean ones are evicted, and the grants of files to the kernel. This crate
//! must not know names, buckets or sessions.
//!
//! A store file has the bytes of one file at natural offsets (store offset = file offset), sparse,
//! and is named by volume and inode id. Small files are many in one pack file, each in a range of
//! it (C-19). Store files take the place of the paper's second-level log (O-67): bytes are written
//! here, and the log records where.
//!
//! Laws:
//! - Bytes in a store file count only as far as the partition's extents say so.
//! - Behind the end of a file there are zeros in its store file. In a pack file, and where a cut
//!   has failed, there may be anything: it is not read, and a file that grows over it has it
//!   cleared before.
//! - No range of a pack file is used twice. A freed range is punched once the command that freed it
//!   is forced, and an empty pack file is removed.
//! - Bytes are forced before a `Synced` record claims it; the files with unforced bytes are
//!   remembered here. A failed sync is never forgotten: the file stays failed until it is dropped
//!   or the node starts again and reads its bytes.
//! - Each granted file has one open descriptor here, which stays open when others are closed: the
//!   question whether the file is in use is asked of that one.

mod buffers;
mod cache;
mod exposed;
mod forced;
mod holes;
mod latches;
mod packs;
mod passthrough;
mod reclaim;
mod state;

pub use buffers::{Buffers, Room};
pub use cache::Cache;
pub use exposed::Exposures;
pub use holes::{Holes, Pending};
pub use latches::{Guard, Latches, Mode};
pub use packs::{Packs, Reserved, gaps};
pub use passthrough::{Closed, PassthroughGrants};

use bytes::Bytes;
use ebb_core::blocks::touched_blocks;
use ebb_model::{BLOCK_BYTES, ClusterId, Ino, PackId, PackRange, SyncScope};
use ebb_ports::{Disk, DiskError, DiskFile, OpenMode, Signal};
use state::State;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Store files kept open. Enough for the files at work at one time, far below the usual
/// limit of 1,024 descriptors.
const MAX_OPEN_FILES: usize = 512;

/// Has one directory for each volume, named by its id.
const DIRECTORY: &str = "store";

pub struct Store {
    disk: Rc<dyn Disk>,
    /// The directory of the volume's store files.
    directory: String,
    state: RefCell<State>,
    /// The space of pack files.
    pub packs: Packs,
    failing: Signal,
}

/// The place of a file's bytes, and the file's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreLocation {
    pub ino: Ino,
    pub size_bytes: u64,
    pub packed: Option<PackRange>,
}

/// A file of the data directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FileId {
    Own(Ino),
    Pack(PackId),
}

impl StoreLocation {
    /// The file that has its bytes.
    pub fn file(&self) -> FileId {
        self.packed.map_or(FileId::Own(self.ino), |range| FileId::Pack(range.pack))
    }

    /// How many bytes of the file fit there.
    pub fn end(&self) -> u64 {
        self.packed.map_or(u64::MAX, |range| range.len_bytes.min(self.size_bytes))
    }

    /// The offsets of a range of the file, as far as there is room for it.
    pub fn at(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len);
        match self.packed {
            None => offset..end,
            Some(range) => {
                range.start + offset.min(range.len_bytes)..range.start + end.min(range.len_bytes)
            }
        }
    }
}

impl FileId {
    fn directory(self) -> &'static str {
        match self {
            FileId::Own(_) => DIRECTORY,
            FileId::Pack(_) => packs::DIRECTORY,
        }
    }
}

impl Store {
    pub async fn open(disk: Rc<dyn Disk>, volume: ClusterId) -> Result<Store, DiskError> {
        disk.create_dir(&directory_of(volume)).await?;
        disk.create_dir(packs::DIRECTORY).await?;
        disk.sync_dir(DIRECTORY).await?;
        disk.sync_dir("").await?;
        Store::found(disk, volume).await
    }

    /// Lists the existing store files.
    pub async fn found(disk: Rc<dyn Disk>, volume: ClusterId) -> Result<Store, DiskError> {
        let directory = directory_of(volume);
        let names = disk.list(&directory).await?;
        let standalone: BTreeSet<Ino> =
            names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).map(Ino).collect();
        let packs = Packs::found(&*disk).await?;
        Ok(Store {
            disk,
            directory,
            state: RefCell::new(State {
                from_previous_run: standalone.clone(),
                standalone,
                ..State::default()
            }),
            packs,
            failing: Signal::default(),
        })
    }

    /// Reads `len` bytes; bytes beyond the end of the file read as zeros.
    pub async fn read(
        &self,
        location: &StoreLocation,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, DiskError> {
        let at = location.at(offset, (len as u64).min(location.size_bytes.saturating_sub(offset)));
        let data = match self.existing(location.file()).await? {
            Some(file) if !at.is_empty() => {
                file.read_at(at.start, (at.end - at.start) as usize).await?
            }
            _ => Bytes::new(),
        };
        if data.len() == len {
            return Ok(data);
        }
        let mut padded = Vec::with_capacity(len);
        padded.extend_from_slice(&data);
        padded.resize(len, 0);
        Ok(padded.into())
    }

    pub async fn write(
        &self,
        location: &StoreLocation,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DiskError> {
        let blocks = touched_blocks(offset, data.len() as u64);
        let written = self.put(location, offset, data).await;
        // After the write: a sync during it may have missed it. After a failure too: some of the
        // bytes may be there.
        self.state.borrow_mut().changed(location, blocks);
        written
    }

    /// As [`Store::write`], for bytes that can be fetched again.
    pub async fn fill(
        &self,
        location: &StoreLocation,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DiskError> {
        let blocks = touched_blocks(offset, data.len() as u64);
        let written = self.put(location, offset, data).await;
        self.state.borrow_mut().filled(location, blocks);
        written
    }

    async fn put(
        &self,
        location: &StoreLocation,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DiskError> {
        let at = location.at(offset, data.len() as u64);
        if at.end - at.start != data.len() as u64 {
            let what = format!(
                "{} bytes at {offset} of inode {} are more than it has room for",
                data.len(),
                location.ino
            );
            return Err(DiskError::Failed { path: self.path(location.file()), what });
        }
        let file = self.file(location.file(), OpenMode::Create).await?;
        let written = file.write_at(at.start, data).await;
        if let Some(range) = location.packed {
            self.packs.written(range, at.end);
        }
        written
    }

    /// The file has been shortened, and must still be cut there: until [`Store::cut`] has done that
    /// it does not grow.
    pub fn is_to_be_cut(&self, location: &StoreLocation) {
        if location.packed.is_none() {
            self.state.borrow_mut().uncut.insert(location.ino);
        }
    }

    /// Removes bytes from `len` on, the end of the file, so that a later extension reads as zeros.
    pub async fn cut(&self, location: &StoreLocation, len: u64) -> Result<(), DiskError> {
        self.is_to_be_cut(location);
        if self.is_longer(location, len).await?
            && let Some(file) = self.existing(location.file()).await?
        {
            let cut = file.set_len(len).await;
            self.state.borrow_mut().was_cut(location, len);
            cut?;
        }
        self.state.borrow_mut().uncut.remove(&location.ino);
        Ok(())
    }

    /// As [`Store::cut`], where that has failed before.
    pub async fn cut_again(&self, location: &StoreLocation, len: u64) -> Result<(), DiskError> {
        let is_uncut = self.state.borrow().uncut.contains(&location.ino);
        if is_uncut { self.cut(location, len).await } else { Ok(()) }
    }

    /// Whether an earlier use of an unused range has left any bytes there.
    pub async fn has_remains(
        &self,
        location: &StoreLocation,
        offset: u64,
        len: u64,
    ) -> Result<bool, DiskError> {
        let Some(file) = self.existing(location.file()).await? else { return Ok(false) };
        let at = location.at(offset, len);
        let is_used = match location.packed {
            None => file.len().await? > at.start,
            Some(range) => self.packs.may_be_written(range, at.start),
        };
        if !is_used || at.is_empty() {
            return Ok(false);
        }
        let left = file.read_at(at.start, (at.end - at.start) as usize).await?;
        Ok(left.iter().any(|byte| *byte != 0))
    }

    /// Makes a range that is not in use read as zeros. The zeros are forced: the old bytes must not
    /// come back beside bytes that are written there next and lost.
    pub async fn clear(
        &self,
        location: &StoreLocation,
        offset: u64,
        len: u64,
    ) -> Result<(), DiskError> {
        self.hole(location, offset, len).await?;
        self.sync(SyncScope::File(location.ino)).await.map(drop)
    }

    /// Gives back the space of a range.
    pub async fn punch(
        &self,
        location: &StoreLocation,
        offset: u64,
        len: u64,
    ) -> Result<(), DiskError> {
        let Some(file) = self.existing(location.file()).await? else { return Ok(()) };
        let at = location.at(offset, len);
        if at.is_empty() { Ok(()) } else { file.punch(at.start, at.end - at.start).await }
    }

    /// Makes a hole. Unlike space that is only given back, it is forced with the file: the old
    /// bytes must not come back under bytes that are written later and lost.
    pub async fn hole(
        &self,
        location: &StoreLocation,
        offset: u64,
        len: u64,
    ) -> Result<(), DiskError> {
        let punched = self.punch(location, offset, len).await;
        self.state.borrow_mut().changed(location, touched_blocks(offset, len));
        punched
    }

    /// Blocks of a store file were stored into past the node.
    pub fn stored(&self, location: &StoreLocation, blocks: Range<u64>) {
        self.state.borrow_mut().changed(location, blocks);
    }

    /// Blocks of a file without any bytes in the store file.
    pub async fn missing(
        &self,
        location: &StoreLocation,
        blocks: impl Iterator<Item = u64>,
    ) -> Result<Vec<u64>, DiskError> {
        let end = match self.existing(location.file()).await? {
            Some(file) => file.len().await?,
            None => 0,
        };
        Ok(blocks.filter(|block| location.at(block * BLOCK_BYTES, 1).start >= end).collect())
    }

    /// Makes these blocks of a file present in the store file, with zeros where there was nothing.
    pub async fn fill_up(
        &self,
        location: &StoreLocation,
        blocks: &Range<u64>,
    ) -> Result<(), DiskError> {
        let (file, end) = (
            self.file(location.file(), OpenMode::Create).await?,
            location.at(0, location.size_bytes).end,
        );
        let filled = if file.len().await? < end { file.set_len(end).await } else { Ok(()) };
        self.state.borrow_mut().changed(location, blocks.clone());
        filled
    }

    /// Readers of the store file past the node then see the end of the file.
    pub async fn show_length(&self, location: &StoreLocation) -> Result<(), DiskError> {
        match self.existing(location.file()).await? {
            Some(file) if file.len().await? < location.size_bytes => {
                file.set_len(location.size_bytes).await
            }
            _ => Ok(()),
        }
    }

    /// A file without any bytes gets a range.
    pub fn mark_never_synced(&self, ino: Ino) {
        self.state.borrow_mut().never_synced.insert(ino);
    }

    /// None of its bytes was ever reported as forced.
    pub fn is_never_synced(&self, ino: Ino) -> bool {
        self.state.borrow().never_synced.contains(&ino)
    }

    /// The file has a store file of its own, with or without bytes.
    pub fn has_standalone(&self, ino: Ino) -> bool {
        self.state.borrow().standalone.contains(&ino)
    }

    /// Makes a store file of its own for a file that has no bytes in one. Bytes that a failed move
    /// has left there belong to no file.
    pub async fn begin_standalone(&self, ino: Ino) -> Result<(), DiskError> {
        let file = self.file(FileId::Own(ino), OpenMode::Create).await?;
        if file.len().await? > 0 { file.set_len(0).await } else { Ok(()) }
    }

    /// There may be bytes in blocks that are not in use: those of a write whose command a power cut
    /// has taken.
    pub fn may_have_more(&self, location: &StoreLocation) -> bool {
        location.packed.is_some() || self.state.borrow().from_previous_run.contains(&location.ino)
    }

    /// Whether the store file is longer than this.
    pub async fn is_longer(&self, location: &StoreLocation, len: u64) -> Result<bool, DiskError> {
        if location.packed.is_some() {
            return Ok(false);
        }
        let Some(file) = self.existing(location.file()).await? else { return Ok(false) };
        Ok(file.len().await? > len)
    }

    /// Returns the store file for the kernel to read by itself, made `len` bytes long: only the
    /// node knows to leave out the zeros behind that. `None` where it cannot be known whether the
    /// file is in use.
    pub async fn grant(&self, ino: Ino, len: u64) -> Result<Option<OwnedFd>, DiskError> {
        let Some(file) = self.existing(FileId::Own(ino)).await? else { return Ok(None) };
        if file.is_held().is_none() {
            return Ok(None);
        }
        self.cut_again(&StoreLocation { ino, size_bytes: len, packed: None }, len).await?;
        if file.len().await? != len {
            file.set_len(len).await?;
        }
        let descriptor = file.descriptor();
        if descriptor.is_some() {
            self.state.borrow_mut().granted.insert(ino, file);
        }
        Ok(descriptor)
    }

    /// False as long as a granted file is in use.
    pub fn take_back(&self, ino: Ino) -> bool {
        let mut state = self.state.borrow_mut();
        let free = state.granted.get(&ino).is_none_or(|file| file.is_held() == Some(false));
        if free {
            state.granted.remove(&ino);
        }
        free
    }

    /// Whether a file is in use, through a grant of this process or another one.
    pub async fn is_held(&self, ino: Ino) -> Result<bool, DiskError> {
        Ok(self.existing(FileId::Own(ino)).await?.is_some_and(|file| file.is_held() == Some(true)))
    }

    /// Every file in the directories of the store, also foreign ones.
    pub async fn files(&self) -> Result<Vec<FileId>, DiskError> {
        let id = |name: &String| u64::from_str_radix(name, 16).ok();
        let own = self.disk.list(&self.directory).await?;
        let packs = self.disk.list(packs::DIRECTORY).await?;
        let own = own.iter().filter_map(id).map(|id| FileId::Own(Ino(id)));
        Ok(own.chain(packs.iter().filter_map(id).map(|id| FileId::Pack(PackId(id)))).collect())
    }

    /// The path of the file with the bytes of an inode in the data directory, and the offset in it
    /// where they begin.
    pub fn path_of(&self, location: &StoreLocation) -> (String, u64) {
        (self.path(location.file()), location.at(0, 0).start)
    }

    /// The directory that [`FileId::directory`] stands for.
    fn real(&self, directory: &'static str) -> &str {
        if directory == DIRECTORY { &self.directory } else { directory }
    }

    pub fn path(&self, file: FileId) -> String {
        match file {
            FileId::Own(ino) => format!("{}/{:016x}", self.directory, ino.0),
            FileId::Pack(pack) => packs::path(pack),
        }
    }

    /// Every inode that has a store file of its own.
    pub fn list(&self) -> Vec<Ino> {
        self.state.borrow().standalone.iter().copied().collect()
    }

    /// The file, if there is one.
    async fn existing(&self, file: FileId) -> Result<Option<Rc<dyn DiskFile>>, DiskError> {
        if let FileId::Own(ino) = file
            && !self.has_standalone(ino)
        {
            return Ok(None);
        }
        match self.file(file, OpenMode::Existing).await {
            Ok(file) => Ok(Some(file)),
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn file(&self, file: FileId, mode: OpenMode) -> Result<Rc<dyn DiskFile>, DiskError> {
        {
            let state = self.state.borrow();
            let granted = match file {
                FileId::Own(ino) => state.granted.get(&ino),
                FileId::Pack(_) => None,
            };
            if let Some(open) = state.open.get(&file).or(granted) {
                return Ok(open.clone());
            }
        }
        let open = self.disk.open(&self.path(file), mode).await?;
        let mut state = self.state.borrow_mut();
        if mode != OpenMode::Existing {
            // It may have existed before. A check would cost every new file a system call; taking
            // it for new costs an old one a sync of the directory with its next force.
            state.names_changed(file.directory());
            if let FileId::Own(ino) = file {
                state.standalone.insert(ino);
            }
        }
        if state.open.insert(file, open.clone()).is_none() {
            state.opened.push_back(file);
        }
        while state.opened.len() > MAX_OPEN_FILES {
            if let Some(oldest) = state.opened.pop_front() {
                state.open.remove(&oldest);
            }
        }
        Ok(open)
    }
}

fn directory_of(volume: ClusterId) -> String {
    format!("{DIRECTORY}/{volume}")
}

/// Removes the pack files, and the store files of all volumes. Their empty directories stay.
pub async fn wipe(disk: &dyn Disk) -> Result<(), DiskError> {
    remove_all(disk, packs::DIRECTORY).await?;
    let names = disk.list(DIRECTORY).await?;
    for name in &names {
        let path = format!("{DIRECTORY}/{name}");
        match ClusterId::parse(name) {
            Some(_) => remove_all(disk, &path).await?,
            // A store file of release 0.1.0.
            None => disk.remove(&path).await?,
        }
    }
    if names.is_empty() { Ok(()) } else { disk.sync_dir(DIRECTORY).await }
}

/// Removes all files of a directory.
pub async fn remove_all(disk: &dyn Disk, dir: &str) -> Result<(), DiskError> {
    let names = disk.list(dir).await?;
    for name in &names {
        disk.remove(&format!("{dir}/{name}")).await?;
    }
    if names.is_empty() { Ok(()) } else { disk.sync_dir(dir).await }
}
