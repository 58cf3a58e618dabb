//! Store files: the bytes of files on this node's disk, each in a sparse file at natural
//! offsets (store offset = file offset), named by inode id (DESIGN §5). Small files are many in
//! one pack file, each in a range of it (C-19). They are in the place of the paper's second-level log (O-67):
//! bytes are written here, and the log says where.
//!
//! Laws:
//! - What is in a store file counts only as far as the partition's extents say so.
//! - Behind the end of a file there are zeros in its store file. In a pack file, and where a cut has failed,
//!   there may be anything: it is not read, and a file that grows over it has it cleared before.
//! - No range of a pack file is used twice. What is let go is punched once the command that let
//!   it go is forced, and a pack file of which nothing is left is removed.
//! - Bytes are forced before a `Synced` record claims it; which files have bytes that are
//!   not is remembered here. A failed sync is never forgotten: the file stays failed until
//!   it is dropped or the node starts again and reads what is there.
//! - Of a file that is lent there is one open file here, whatever else is closed: whether
//!   anybody has it is asked of that one.

use crate::data::packs::{self, Packs};
use crate::signal::Signal;
use bytes::Bytes;
use ebb_core::extent::{BlockRuns, touched_blocks};
use ebb_core::partition::Partition;
use ebb_model::{BLOCK_BYTES, Ino, LogIndex, PackId, PackRange, SyncScope};
use ebb_ports::{Disk, DiskError, DiskFile, OpenMode};
use futures_util::lock::Mutex;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Store files kept open. Enough for the files at work at one time, far below the usual
/// limit of 1,024 descriptors.
const MAX_OPEN_FILES: usize = 512;

/// No file system has smaller blocks.
const SECTOR_BYTES: usize = 512;

const DIRECTORY: &str = "store";

pub struct Store {
    disk: Rc<dyn Disk>,
    state: RefCell<State>,
    /// The space of pack files.
    pub packs: Packs,
    failing: Signal,
}

/// Where the bytes of a file are, and how many it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
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

impl Place {
    /// The file that has its bytes.
    pub fn file(&self) -> FileId {
        self.packed.map_or(FileId::Own(self.ino), |range| FileId::Pack(range.pack))
    }

    /// The path of that in the data directory, and where in it the file begins.
    pub fn path(&self) -> (String, u64) {
        (self.file().path(), self.at(0, 0).start)
    }

    /// How many bytes of the file can be there.
    pub fn end(&self) -> u64 {
        self.packed.map_or(u64::MAX, |range| range.len_bytes.min(self.size_bytes))
    }

    /// Where a range of the file is, as far as there is room for it.
    pub fn at(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len);
        match self.packed {
            None => offset..end,
            Some(range) => range.start + offset.min(range.len_bytes)..range.start + end.min(range.len_bytes),
        }
    }
}

impl FileId {
    pub fn path(self) -> String {
        match self {
            FileId::Own(ino) => path(ino),
            FileId::Pack(pack) => packs::path(pack),
        }
    }

    fn directory(self) -> &'static str {
        match self {
            FileId::Own(_) => DIRECTORY,
            FileId::Pack(_) => packs::DIRECTORY,
        }
    }
}

/// What goes once the command that said so is forced.
enum Doomed {
    File(Ino),
    Range(PackRange),
}

/// What is to be removed now.
struct Going {
    files: Vec<Ino>,
    /// Of pack files that stay.
    ranges: Vec<PackRange>,
    packs: BTreeSet<PackId>,
}

#[derive(Default)]
struct State {
    /// Files that have a store file of their own.
    own: BTreeSet<Ino>,
    /// Those of them that an earlier run has made.
    earlier: BTreeSet<Ino>,
    open: BTreeMap<FileId, Rc<dyn DiskFile>>,
    removing: BTreeSet<FileId>,
    /// Open files, oldest first.
    opened: VecDeque<FileId>,
    /// Files that the kernel reads by itself.
    lent: BTreeMap<Ino, Rc<dyn DiskFile>>,
    /// Files with bytes that were not forced, by where these are, with the number of their last
    /// change. A file leaves only once it was forced, so that of two who force it at one time
    /// neither takes the other's sync, which may still be under way, for done.
    unsynced: BTreeMap<(Ino, FileId), u64>,
    /// Those of them that have nothing but what was fetched, which is not lost with them.
    fetched: BTreeSet<(Ino, FileId)>,
    /// Something was fetched since all was last forced.
    has_fetched: bool,
    /// What of them was changed since they were last forced.
    unforced: BlockRuns,
    /// Files that could not be cut: behind their end there may be anything.
    uncut: BTreeSet<Ino>,
    /// Files among them that were cut: whatever is forced, their new length is forced
    /// before, or bytes that were cut off could come back under a later extension.
    cut: BTreeSet<Ino>,
    /// Files that this run has packed and that nothing was ever forced of.
    young: BTreeSet<Ino>,
    /// By directory: number of the last change of names, and of the last that is forced.
    names_changed: BTreeMap<&'static str, u64>,
    names_synced: BTreeMap<&'static str, u64>,
    /// Changes are numbered.
    changes: u64,
    failed: BTreeMap<Ino, DiskError>,
    /// Files of which somebody waits for a sync: of two that ran at one time the system would tell only one that it failed.
    syncing: BTreeMap<FileId, Rc<Mutex<()>>>,
    /// In the order of the commands that said so.
    doomed: VecDeque<(LogIndex, Doomed)>,
}

impl State {
    fn changed(&mut self, place: &Place, blocks: Range<u64>) {
        self.put(place, blocks);
        self.fetched.remove(&(place.ino, place.file()));
    }

    fn filled(&mut self, place: &Place, blocks: Range<u64>) {
        let is_first = self.put(place, blocks);
        if is_first {
            self.fetched.insert((place.ino, place.file()));
        }
        self.has_fetched = true;
    }

    /// Whether all that was there before was forced.
    fn put(&mut self, place: &Place, blocks: Range<u64>) -> bool {
        self.changes += 1;
        self.unforced.insert(place.ino, blocks);
        self.unsynced.insert((place.ino, place.file()), self.changes).is_none()
    }

    fn was_cut(&mut self, place: &Place, len: u64) {
        self.changed(place, len / BLOCK_BYTES..u64::MAX);
        self.cut.insert(place.ino);
    }

    /// Nothing of the file is left to force, or it is of no use any more.
    fn settled(&mut self, ino: Ino) {
        let files: Vec<FileId> = self.unsynced_files(ino).map(|(file, _)| file).collect();
        for file in files {
            self.synced(ino, file);
        }
        self.unforced.remove(ino, 0..u64::MAX);
        self.cut.remove(&ino);
        self.young.remove(&ino);
    }

    fn synced(&mut self, ino: Ino, file: FileId) {
        self.unsynced.remove(&(ino, file));
        self.fetched.remove(&(ino, file));
    }

    fn unsynced_files(&self, ino: Ino) -> impl Iterator<Item = (FileId, u64)> {
        let (first, last) = (FileId::Own(Ino(0)), FileId::Pack(PackId(u64::MAX)));
        self.unsynced.range((ino, first)..=(ino, last)).map(|((_, file), change)| (*file, *change))
    }

    fn names_changed(&mut self, directory: &'static str) {
        self.changes += 1;
        self.names_changed.insert(directory, self.changes);
    }
}

impl Store {
    pub async fn open(disk: Rc<dyn Disk>) -> Result<Store, DiskError> {
        disk.create_dir(DIRECTORY).await?;
        disk.create_dir(packs::DIRECTORY).await?;
        disk.sync_dir("").await?;
        Store::found(disk).await
    }

    /// What was removed, by whichever run, does not come back under a name that is used again: others' bytes would be in it.
    pub async fn sync_names(&self) -> Result<(), DiskError> {
        for directory in [DIRECTORY, packs::DIRECTORY] {
            let change = self.state.borrow().changes;
            self.disk.sync_dir(directory).await?;
            self.state.borrow_mut().names_synced.insert(directory, change);
        }
        Ok(())
    }

    /// The store files that there are, to be looked at.
    pub async fn found(disk: Rc<dyn Disk>) -> Result<Store, DiskError> {
        let names = disk.list(DIRECTORY).await?;
        let own: BTreeSet<Ino> = names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).map(Ino).collect();
        let packs = Packs::found(&*disk).await?;
        Ok(Store { disk, state: RefCell::new(State { earlier: own.clone(), own, ..State::default() }), packs, failing: Signal::default() })
    }

    /// These blocks were written by an earlier run, which may not have forced them.
    pub fn not_forced<'a>(&self, blocks: impl IntoIterator<Item = (Place, &'a Range<u64>)>) {
        let mut state = self.state.borrow_mut();
        state.names_changed(DIRECTORY);
        state.names_changed(packs::DIRECTORY);
        blocks.into_iter().for_each(|(place, blocks)| state.changed(&place, blocks.clone()));
    }

    /// Writes what the system has of a block once more. The process before may have ended because it could not be forced:
    /// the system then calls it clean, and the next sync would say that all is well without having written it.
    pub async fn dirty_again(&self, place: &Place, block: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(place.file()).await? else { return Ok(()) };
        let at = place.at(block * BLOCK_BYTES, BLOCK_BYTES);
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
                // Zeros beside what was written may need room. What was written has it.
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
            // Nobody can force it any more; whoever reads it is told.
            Err(error) => {
                tracing::error!(ino = %place.ino, block, %error, "what a run before has written and not forced cannot be read");
                Ok(())
            }
        }
    }

    /// These files were cut by an earlier run, which may not have forced their new length.
    pub fn not_forced_cuts(&self, cuts: impl IntoIterator<Item = (Place, u64)>) {
        let mut state = self.state.borrow_mut();
        cuts.into_iter().filter(|(place, _)| place.packed.is_none()).for_each(|(place, len)| state.was_cut(&place, len));
    }

    /// Forces the length of files that were cut.
    pub async fn sync_cuts(&self) -> Result<(), DiskError> {
        let cut = {
            let state = self.state.borrow();
            state.cut.iter().find(|ino| !state.failed.contains_key(ino)).copied()
        };
        match cut {
            Some(ino) => self.sync(SyncScope::File(ino)).await.map(drop),
            None => Ok(()),
        }
    }

    /// Reads `len` bytes; what is beyond the end of the file reads as zeros.
    pub async fn read(&self, place: &Place, offset: u64, len: usize) -> Result<Bytes, DiskError> {
        let at = place.at(offset, (len as u64).min(place.size_bytes.saturating_sub(offset)));
        let data = match self.existing(place.file()).await? {
            Some(file) if !at.is_empty() => file.read_at(at.start, (at.end - at.start) as usize).await?,
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

    pub async fn write(&self, place: &Place, offset: u64, data: Bytes) -> Result<(), DiskError> {
        let blocks = touched_blocks(offset, data.len() as u64);
        let written = self.put(place, offset, data).await;
        // After the write: a sync that ran meanwhile may have missed it. After a failure
        // too: part of the bytes may be there.
        self.state.borrow_mut().changed(place, blocks);
        written
    }

    /// As [`Store::write`], of bytes that can be fetched again.
    pub async fn fill(&self, place: &Place, offset: u64, data: Bytes) -> Result<(), DiskError> {
        let blocks = touched_blocks(offset, data.len() as u64);
        let written = self.put(place, offset, data).await;
        self.state.borrow_mut().filled(place, blocks);
        written
    }

    async fn put(&self, place: &Place, offset: u64, data: Bytes) -> Result<(), DiskError> {
        let at = place.at(offset, data.len() as u64);
        if at.end - at.start != data.len() as u64 {
            let what = format!("{} bytes at {offset} of inode {} are more than it has room for", data.len(), place.ino);
            return Err(DiskError::Failed { path: place.file().path(), what });
        }
        let file = self.file(place.file(), OpenMode::Create).await?;
        let written = file.write_at(at.start, data).await;
        if let Some(range) = place.packed {
            self.packs.written(range, at.end);
        }
        written
    }

    /// The file ends at a shorter length than it had, and is still to be cut there: until [`Store::cut`] has done that it does not grow.
    pub fn is_to_be_cut(&self, place: &Place) {
        if place.packed.is_none() {
            self.state.borrow_mut().uncut.insert(place.ino);
        }
    }

    /// Makes bytes from `len` on, the end of the file, vanish, so that a later extension reads as zeros.
    pub async fn cut(&self, place: &Place, len: u64) -> Result<(), DiskError> {
        self.is_to_be_cut(place);
        if self.is_longer(place, len).await?
            && let Some(file) = self.existing(place.file()).await?
        {
            let cut = file.set_len(len).await;
            self.state.borrow_mut().was_cut(place, len);
            cut?;
        }
        self.state.borrow_mut().uncut.remove(&place.ino);
        Ok(())
    }

    /// As [`Store::cut`], where that has failed before.
    pub async fn cut_again(&self, place: &Place, len: u64) -> Result<(), DiskError> {
        let is_uncut = self.state.borrow().uncut.contains(&place.ino);
        if is_uncut { self.cut(place, len).await } else { Ok(()) }
    }

    /// Whether an earlier use of a range that is not in use has left anything there.
    pub async fn has_remains(&self, place: &Place, offset: u64, len: u64) -> Result<bool, DiskError> {
        let Some(file) = self.existing(place.file()).await? else { return Ok(false) };
        let at = place.at(offset, len);
        let is_used = match place.packed {
            None => file.len().await? > at.start,
            Some(range) => self.packs.may_be_written(range, at.start),
        };
        if !is_used || at.is_empty() {
            return Ok(false);
        }
        let left = file.read_at(at.start, (at.end - at.start) as usize).await?;
        Ok(left.iter().any(|byte| *byte != 0))
    }

    /// Makes a range that is not in use read as zeros. What was there is forced away: it must not come back beside bytes that are
    /// written there next and lost.
    pub async fn clear(&self, place: &Place, offset: u64, len: u64) -> Result<(), DiskError> {
        self.hole(place, offset, len).await?;
        self.sync(SyncScope::File(place.ino)).await.map(drop)
    }

    /// Gives back the space of a range.
    pub async fn punch(&self, place: &Place, offset: u64, len: u64) -> Result<(), DiskError> {
        let Some(file) = self.existing(place.file()).await? else { return Ok(()) };
        let at = place.at(offset, len);
        if at.is_empty() { Ok(()) } else { file.punch(at.start, at.end - at.start).await }
    }

    /// Makes a hole. Unlike space that is only given back, it is forced with the file: what was
    /// there before must not come back under bytes that are written later and lost.
    pub async fn hole(&self, place: &Place, offset: u64, len: u64) -> Result<(), DiskError> {
        let punched = self.punch(place, offset, len).await;
        self.state.borrow_mut().changed(place, touched_blocks(offset, len));
        punched
    }

    /// Blocks of a store file were stored into past this.
    pub fn stored(&self, place: &Place, blocks: Range<u64>) {
        self.state.borrow_mut().changed(place, blocks);
    }

    /// Blocks of a file of which nothing is there.
    pub async fn missing(&self, place: &Place, blocks: impl Iterator<Item = u64>) -> Result<Vec<u64>, DiskError> {
        let end = match self.existing(place.file()).await? {
            Some(file) => file.len().await?,
            None => 0,
        };
        Ok(blocks.filter(|block| place.at(block * BLOCK_BYTES, 1).start >= end).collect())
    }

    /// From now on there is something in these blocks of a file, zeros where there was nothing.
    pub async fn fill_up(&self, place: &Place, blocks: &Range<u64>) -> Result<(), DiskError> {
        let (file, end) = (self.file(place.file(), OpenMode::Create).await?, place.at(0, place.size_bytes).end);
        let filled = if file.len().await? < end { file.set_len(end).await } else { Ok(()) };
        self.state.borrow_mut().changed(place, blocks.clone());
        filled
    }

    /// Who reads the store file past this sees where the file ends.
    pub async fn show_length(&self, place: &Place) -> Result<(), DiskError> {
        match self.existing(place.file()).await? {
            Some(file) if file.len().await? < place.size_bytes => file.set_len(place.size_bytes).await,
            _ => Ok(()),
        }
    }

    /// A file that has nothing yet gets a range.
    pub fn born(&self, ino: Ino) {
        self.state.borrow_mut().young.insert(ino);
    }

    /// Nobody was ever told that bytes of it are forced.
    pub fn is_young(&self, ino: Ino) -> bool {
        self.state.borrow().young.contains(&ino)
    }

    /// The file has a store file of its own, whatever is in it.
    pub fn has_own(&self, ino: Ino) -> bool {
        self.state.borrow().own.contains(&ino)
    }

    /// A store file of its own for a file whose bytes are not in one. What a move that failed has left there is nobody's.
    pub async fn begin_own(&self, ino: Ino) -> Result<(), DiskError> {
        let file = self.file(FileId::Own(ino), OpenMode::Create).await?;
        if file.len().await? > 0 { file.set_len(0).await } else { Ok(()) }
    }

    /// There may be bytes in blocks that are not in use: those of a write whose command a power cut has taken.
    pub fn may_have_more(&self, place: &Place) -> bool {
        place.packed.is_some() || self.state.borrow().earlier.contains(&place.ino)
    }

    /// The store file reaches beyond this length.
    pub async fn is_longer(&self, place: &Place, len: u64) -> Result<bool, DiskError> {
        if place.packed.is_some() {
            return Ok(false);
        }
        let Some(file) = self.existing(place.file()).await? else { return Ok(false) };
        Ok(file.len().await? > len)
    }

    /// The inode is gone by the command at `index`: its file goes once that is forced.
    pub fn doom(&self, ino: Ino, index: LogIndex) {
        let mut state = self.state.borrow_mut();
        // Its bytes are of use only if the command is lost, and then as they are.
        state.settled(ino);
        state.uncut.remove(&ino);
        // Of one that could not be forced that is forgotten with it.
        if state.own.contains(&ino) || state.failed.contains_key(&ino) {
            state.doomed.push_back((index, Doomed::File(ino)));
        }
    }

    /// No file has this range any more by the command at `index`.
    pub fn vacate(&self, range: PackRange, index: LogIndex) {
        self.state.borrow_mut().doomed.push_back((index, Doomed::Range(range)));
    }

    /// Removes what is doomed by commands up to `durable`; says whether there was any. `has_files` says of a pack file
    /// whether any file is in it.
    pub async fn drop_doomed(&self, durable: LogIndex, has_files: impl Fn(PackId) -> bool) -> Result<bool, DiskError> {
        let Going { files, ranges, packs } = self.take_doomed(durable, has_files);
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

    /// At one moment: a pack file that goes is known to go until it is gone.
    fn take_doomed(&self, durable: LogIndex, has_files: impl Fn(PackId) -> bool) -> Going {
        let mut files = Vec::new();
        let mut ranges = Vec::new();
        while let Some((_, doomed)) = self.state.borrow_mut().doomed.pop_front_if(|(index, _)| *index <= durable) {
            match doomed {
                Doomed::File(ino) => files.push(ino),
                Doomed::Range(range) => ranges.push(range),
            }
        }
        let waits = |pack| self.packs.is_in_use(pack) || self.is_doomed_later(pack);
        let (ranges, empty): (Vec<_>, Vec<_>) =
            packs::joined(ranges).into_iter().partition(|range| has_files(range.pack) || waits(range.pack));
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

    /// Part of a pack file is in use as long as a command is not forced.
    fn is_doomed_later(&self, pack: PackId) -> bool {
        let state = self.state.borrow();
        state.doomed.iter().any(|(_, doomed)| matches!(doomed, Doomed::Range(range) if range.pack == pack))
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

    /// Removes the store file, if there is one, of an inode whose bytes are elsewhere: those may be still to be forced.
    pub async fn drop_own(&self, ino: Ino) -> Result<(), DiskError> {
        {
            let mut state = self.state.borrow_mut();
            state.own.remove(&ino);
            state.earlier.remove(&ino);
            state.uncut.remove(&ino);
            state.lent.remove(&ino);
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
        let removed = self.disk.remove(&file.path()).await;
        self.state.borrow_mut().removing.remove(&file);
        match removed {
            Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The store file for the kernel to read by itself, made `len` bytes long: what is behind are
    /// zeros that only the node knows to leave out. `None` where nobody can say whether somebody has it.
    pub async fn lend(&self, ino: Ino, len: u64) -> Result<Option<OwnedFd>, DiskError> {
        let Some(file) = self.existing(FileId::Own(ino)).await? else { return Ok(None) };
        if file.is_held().is_none() {
            return Ok(None);
        }
        self.cut_again(&Place { ino, size_bytes: len, packed: None }, len).await?;
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
        Ok(self.existing(FileId::Own(ino)).await?.is_some_and(|file| file.is_held() == Some(true)))
    }

    /// Whether anything was fetched since all was last forced.
    pub fn has_fetched(&self) -> bool {
        self.state.borrow().has_fetched
    }

    /// Forces bytes; says whether there were any. As long as some file has failed, that of several
    /// files cannot be said.
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
                    for ino in state.cut.iter().chain(Some(&only).filter(|only| !state.cut.contains(only))) {
                        state.unsynced_files(*ino).for_each(|(file, change)| take(*ino, file, change));
                    }
                }
                None => {
                    let is_left = |at: &(Ino, FileId)| scope == SyncScope::Written && state.fetched.contains(at);
                    state.unsynced.iter().filter(|(at, _)| !is_left(at)).for_each(|((ino, file), change)| take(*ino, *file, *change));
                }
            }
            for (ino, _) in files.values().flatten() {
                state.young.remove(ino);
            }
            state.names_changed.clone()
        };
        let any = !files.is_empty();
        for (directory, change) in names {
            let is_concerned = files.keys().any(|file| file.directory() == directory);
            if is_concerned && self.state.borrow().names_synced.get(directory).is_none_or(|synced| change > *synced) {
                self.disk.sync_dir(directory).await?;
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
                // Whoever has bytes there that were not forced may have lost them.
                let sharing: Vec<Ino> = state.unsynced.keys().filter(|(_, other)| *other == file).map(|(ino, _)| *ino).collect();
                state.failed.extend(sharing.into_iter().chain(changes.iter().map(|(ino, _)| *ino)).map(|ino| (ino, error.clone())));
                self.packs.seal();
                self.failing.raise();
                result = Err(error);
            }
            for (ino, change) in changes {
                if state.unsynced.get(&(ino, file)) == Some(&change) {
                    state.synced(ino, file);
                    if state.unsynced_files(ino).next().is_none() {
                        state.settled(ino);
                    }
                }
            }
            // Beside the map nobody else has it.
            if Rc::strong_count(&syncing) == 2 {
                state.syncing.remove(&file);
            }
        }
        // Another one may have been told meanwhile.
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

    /// Whether what was last written to a block is forced.
    pub fn is_block_forced(&self, ino: Ino, block: u64) -> bool {
        let state = self.state.borrow();
        !state.unforced.contains(ino, block) && !state.failed.contains_key(&ino)
    }

    /// Files whose bytes could not be forced.
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

    /// Every file in the directories of the store, whoever put it there.
    pub async fn files(&self) -> Result<Vec<FileId>, DiskError> {
        let id = |name: &String| u64::from_str_radix(name, 16).ok();
        let own = self.disk.list(DIRECTORY).await?;
        let packs = self.disk.list(packs::DIRECTORY).await?;
        let own = own.iter().filter_map(id).map(|id| FileId::Own(Ino(id)));
        Ok(own.chain(packs.iter().filter_map(id).map(|id| FileId::Pack(PackId(id)))).collect())
    }

    /// Nothing that is known, or about to be forced, is in the file, and nothing will be.
    pub fn is_stray(&self, file: FileId, is_over: impl Fn(Ino) -> bool, has_files: impl Fn(PackId) -> bool) -> bool {
        if self.state.borrow().removing.contains(&file) {
            return false;
        }
        match file {
            FileId::Own(ino) => !self.has_own(ino) && is_over(ino),
            FileId::Pack(pack) => {
                let goes_by_itself = self.packs.ended().contains(&pack) || self.is_doomed_later(pack);
                !has_files(pack) && !self.packs.is_in_use(pack) && !self.packs.is_to_come(pack) && !goes_by_itself
            }
        }
    }

    /// Every inode that has a store file of its own.
    pub fn list(&self) -> Vec<Ino> {
        self.state.borrow().own.iter().copied().collect()
    }

    /// The file, if there is one.
    async fn existing(&self, file: FileId) -> Result<Option<Rc<dyn DiskFile>>, DiskError> {
        if let FileId::Own(ino) = file
            && !self.has_own(ino)
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
            let lent = match file {
                FileId::Own(ino) => state.lent.get(&ino),
                FileId::Pack(_) => None,
            };
            if let Some(open) = state.open.get(&file).or(lent) {
                return Ok(open.clone());
            }
        }
        let open = self.disk.open(&file.path(), mode).await?;
        let mut state = self.state.borrow_mut();
        if mode != OpenMode::Existing {
            // It may have been there before. Asking first would cost every new file a system
            // call; taking it for new costs an old one a sync of the directory with its next.
            state.names_changed(file.directory());
            if let FileId::Own(ino) = file {
                state.own.insert(ino);
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

/// Where the bytes of a file are, as the state has it.
pub fn place(state: &Partition, ino: Ino) -> Place {
    let size_bytes = state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
    Place { ino, size_bytes, packed: state.extents().packed(ino) }
}

fn path(ino: Ino) -> String {
    format!("{DIRECTORY}/{:016x}", ino.0)
}
