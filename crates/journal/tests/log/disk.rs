//! A disk that forgets as badly as POSIX allows.

use crate::world::{Random, pause};
use bytes::Bytes;
use ebb_ports::{Disk, DiskError, DiskFile, DiskSpace, OpenMode, PortFuture};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::rc::Rc;

const SECTOR: usize = 512;
const PAGE: usize = 4096;
const LINE: usize = 64;

#[derive(Default)]
struct FileState {
    /// The content that processes see.
    cache: RefCell<Vec<u8>>,
    /// The content that the medium holds for sure.
    stable: RefCell<Vec<u8>>,
    /// Changes since the last sync, in order.
    dirty: RefCell<Vec<Change>>,
    syncing: Cell<bool>,
}

/// A sync that is under way, or was dropped.
struct Syncing<'a>(&'a Cell<bool>);

impl Syncing<'_> {
    /// Of two concurrent syncs the system reports a failure to one only.
    fn begin<'a>(file: &'a FileState, path: &str) -> Syncing<'a> {
        assert!(!file.syncing.replace(true), "two syncs of {path} at one time");
        Syncing(&file.syncing)
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[derive(Clone)]
enum Change {
    Write(usize, Bytes),
    Length(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(offset, data) => {
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[*offset..offset + data.len()].copy_from_slice(data);
            }
            Change::Length(len) => bytes.resize(*len, 0),
        }
    }
}

#[derive(Clone)]
enum NameChange {
    Set(String, Rc<FileState>),
    Remove(String),
    Rename(String, String),
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Set(path, file) => drop(names.insert(path.clone(), file.clone())),
            NameChange::Remove(path) => drop(names.remove(path)),
            NameChange::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

type Names = BTreeMap<String, Rc<FileState>>;

/// A fault at one operation of the disk, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// The process ends there; a write may be half done.
    Die(u64),
    /// The operation fails.
    Fail(u64),
}

pub struct TestDisk {
    random: Random,
    boot: Cell<u128>,
    names: RefCell<Names>,
    stable_names: RefCell<Names>,
    name_changes: RefCell<Vec<NameChange>>,
    operations: Cell<u64>,
    fault: Cell<Fault>,
    dead: Cell<bool>,
    pub failures: Cell<u64>,
    /// Bytes that files may have together.
    pub capacity: Cell<usize>,
}

impl TestDisk {
    pub fn new(seed: u64) -> Rc<TestDisk> {
        Rc::new(TestDisk {
            random: Random::new(seed),
            boot: Cell::new(1),
            names: RefCell::default(),
            stable_names: RefCell::default(),
            name_changes: RefCell::default(),
            operations: Cell::new(0),
            fault: Cell::new(Fault::None),
            dead: Cell::new(false),
            failures: Cell::new(0),
            capacity: Cell::new(usize::MAX),
        })
    }

    pub fn operations(&self) -> u64 {
        self.operations.get()
    }

    pub fn set_fault(&self, fault: Fault) {
        self.fault.set(fault);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// The process is gone, the machine is not.
    pub fn kill(&self) {
        self.dead.set(false);
        self.fault.set(Fault::None);
    }

    /// Each unsynced change is there, is not, or is there in part.
    pub fn power_cut(&self) {
        self.kill();
        self.boot.set(self.boot.get() + 1);
        let changes = self.name_changes.take();
        let kept = self.random.below(changes.len() as u64 + 1) as usize;
        let mut names = self.stable_names.borrow_mut();
        for change in &changes[..kept] {
            change.apply(&mut names);
        }
        *self.names.borrow_mut() = names.clone();
        for file in names.values() {
            self.tear(file);
        }
    }

    /// Each sector has its content of some moment since the sync. In the last change some lines may
    /// be missing, as when a page was being written to the medium while it was changed.
    fn tear(&self, file: &FileState) {
        let dirty = file.dirty.take();
        let mut stable = file.stable.borrow_mut();
        for change in &dirty {
            match change {
                Change::Length(len) => {
                    if self.random.below(2) == 0 {
                        stable.resize(*len, 0);
                    }
                }
                Change::Write(..) => {}
            }
        }
        let sectors = file.cache.borrow().len().div_ceil(SECTOR);
        for sector in 0..sectors {
            let (from, to) = (sector * SECTOR, (sector + 1) * SECTOR);
            let parts: Vec<(usize, Bytes)> =
                dirty.iter().filter_map(|change| part(change, from, to)).collect();
            let kept = self.random.below(parts.len() as u64 + 1) as usize;
            for (at, (offset, data)) in parts[..kept].iter().enumerate() {
                let whole = at + 1 < kept || self.random.below(8) != 0;
                for (number, line) in data.chunks(LINE).enumerate() {
                    if whole || self.random.below(2) == 0 {
                        Change::Write(offset + number * LINE, data.slice_ref(line))
                            .apply(&mut stable);
                    }
                }
            }
        }
        *file.cache.borrow_mut() = stable.clone();
    }

    /// Each unsynced change is there.
    pub fn power_cut_late(&self) {
        self.kill();
        self.boot.set(self.boot.get() + 1);
        self.name_changes.take();
        *self.stable_names.borrow_mut() = self.names.borrow().clone();
        for file in self.names.borrow().values() {
            file.dirty.take();
            *file.stable.borrow_mut() = file.cache.borrow().clone();
        }
    }

    /// The bytes of the unsynced writes to a file, in order.
    pub fn unsynced(&self, path: &str) -> Vec<Bytes> {
        let names = self.names.borrow();
        let dirty = names[path].dirty.borrow();
        dirty
            .iter()
            .filter_map(|change| match change {
                Change::Write(_, data) => Some(data.clone()),
                Change::Length(_) => None,
            })
            .collect()
    }

    /// Only these lines of an unsynced write have reached the page cache.
    pub fn keep_lines(&self, path: &str, write: usize, keep: impl Fn(usize) -> bool) {
        let names = self.names.borrow();
        let file = &names[path];
        let mut dirty = Vec::new();
        for (at, change) in file.dirty.take().into_iter().enumerate() {
            match change {
                Change::Write(offset, data) if at == write => {
                    for line in (0..data.len() / LINE).filter(|line| keep(*line)) {
                        let from = line * LINE;
                        dirty.push(Change::Write(offset + from, data.slice(from..from + LINE)));
                    }
                }
                change => dirty.push(change),
            }
        }
        let mut cache = file.stable.borrow().clone();
        dirty.iter().for_each(|change| change.apply(&mut cache));
        *file.cache.borrow_mut() = cache;
        *file.dirty.borrow_mut() = dirty;
    }

    /// A file with this content, durably.
    pub fn put(&self, path: &str, content: &[u8]) {
        let file = Rc::<FileState>::default();
        *file.cache.borrow_mut() = content.to_vec();
        *file.stable.borrow_mut() = content.to_vec();
        self.names.borrow_mut().insert(path.into(), file.clone());
        self.stable_names.borrow_mut().insert(path.into(), file);
    }

    pub fn flip(&self, path: &str, byte: usize, bit: usize) {
        let names = self.names.borrow();
        let file = &names[path];
        file.cache.borrow_mut()[byte] ^= 1 << bit;
        // Bytes that were never synced are in the cache only.
        if let Some(byte) = file.stable.borrow_mut().get_mut(byte) {
            *byte ^= 1 << bit;
        }
    }

    /// Takes the bytes behind `len` away.
    pub fn cut(&self, path: &str, len: usize) {
        let names = self.names.borrow();
        names[path].cache.borrow_mut().truncate(len);
        names[path].stable.borrow_mut().truncate(len);
    }

    pub fn paths(&self) -> Vec<String> {
        self.names.borrow().keys().cloned().collect()
    }

    pub fn content(&self, path: &str) -> Vec<u8> {
        self.names.borrow()[path].cache.borrow().clone()
    }

    pub fn remove_now(&self, path: &str) {
        self.names.borrow_mut().remove(path);
        self.stable_names.borrow_mut().remove(path);
    }

    /// All names and bytes, as a process sees them.
    pub fn image(&self) -> BTreeMap<String, Vec<u8>> {
        self.names
            .borrow()
            .iter()
            .map(|(path, file)| (path.clone(), file.cache.borrow().clone()))
            .collect()
    }

    /// Takes time, counts, and fails or dies at the chosen operation.
    async fn operate(&self, path: &str) -> Result<(), DiskError> {
        for _ in 0..self.random.below(3) {
            pause().await;
        }
        if self.dead.get() {
            pending::<()>().await;
        }
        self.operations.set(self.operations.get() + 1);
        if self.fault.get() == Fault::Fail(self.operations.get()) {
            self.failures.set(self.failures.get() + 1);
            return Err(DiskError::Failed { path: path.into(), what: "injected".into() });
        }
        if self.fault.get() == Fault::Die(self.operations.get()) {
            self.dead.set(true);
        }
        Ok(())
    }

    async fn survive(&self) {
        if self.dead.get() {
            pending::<()>().await;
        }
    }

    fn change_names(&self, change: NameChange) {
        change.apply(&mut self.names.borrow_mut());
        self.name_changes.borrow_mut().push(change);
    }

    fn used(&self) -> usize {
        self.names.borrow().values().map(|file| file.cache.borrow().len()).sum()
    }
}

fn part(change: &Change, from: usize, to: usize) -> Option<(usize, Bytes)> {
    let Change::Write(offset, data) = change else { return None };
    let (start, end) = (from.max(*offset), to.min(offset + data.len()));
    (start < end).then(|| (start, data.slice(start - offset..end - offset)))
}

fn missing(path: &str) -> DiskError {
    DiskError::NotFound { path: path.into() }
}

impl Disk for Port {
    fn open(
        &self,
        path: &str,
        mode: OpenMode,
    ) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>> {
        let (disk, path) = (self.0.clone(), path.to_string());
        Box::pin(async move {
            disk.operate(&path).await?;
            let found = disk.names.borrow().get(&path).cloned();
            let state = match (found, mode) {
                (Some(_), OpenMode::CreateNew) => return Err(DiskError::Exists { path }),
                (Some(state), _) => state,
                (None, OpenMode::Existing) => return Err(missing(&path)),
                (None, _) => {
                    let state = Rc::<FileState>::default();
                    disk.change_names(NameChange::Set(path.clone(), state.clone()));
                    state
                }
            };
            disk.survive().await;
            Ok(Rc::new(TestFile { disk: disk.clone(), path, state }) as Rc<dyn DiskFile>)
        })
    }

    fn rename(&self, from: &str, to: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let (disk, from, to) = (self.0.clone(), from.to_string(), to.to_string());
        Box::pin(async move {
            disk.operate(&from).await?;
            if !disk.names.borrow().contains_key(&from) {
                return Err(missing(&from));
            }
            disk.change_names(NameChange::Rename(from, to));
            disk.survive().await;
            Ok(())
        })
    }

    fn remove(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let (disk, path) = (self.0.clone(), path.to_string());
        Box::pin(async move {
            disk.operate(&path).await?;
            if !disk.names.borrow().contains_key(&path) {
                return Err(missing(&path));
            }
            disk.change_names(NameChange::Remove(path));
            disk.survive().await;
            Ok(())
        })
    }

    fn create_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let (disk, path) = (self.0.clone(), path.to_string());
        Box::pin(async move {
            disk.operate(&path).await?;
            disk.survive().await;
            Ok(())
        })
    }

    fn list(&self, path: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>> {
        let (disk, path) = (self.0.clone(), path.to_string());
        Box::pin(async move {
            disk.operate(&path).await?;
            disk.survive().await;
            let prefix = format!("{path}/");
            let names = disk.names.borrow();
            Ok(names
                .keys()
                .filter_map(|name| name.strip_prefix(&prefix))
                .map(str::to_string)
                .collect())
        })
    }

    /// Of all directories: only the order of changes matters here.
    fn sync_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let (disk, path) = (self.0.clone(), path.to_string());
        Box::pin(async move {
            disk.operate(&path).await?;
            let prefix = format!("{path}/");
            let mut later = Vec::new();
            for change in disk.name_changes.take() {
                let (NameChange::Set(name, _)
                | NameChange::Remove(name)
                | NameChange::Rename(name, _)) = &change;
                match name.starts_with(&prefix) {
                    true => change.apply(&mut disk.stable_names.borrow_mut()),
                    false => later.push(change),
                }
            }
            *disk.name_changes.borrow_mut() = later;
            disk.survive().await;
            Ok(())
        })
    }

    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>> {
        let total = self.0.capacity.get();
        let free = total.saturating_sub(self.0.used());
        Box::pin(
            async move { Ok(DiskSpace { free_bytes: free as u64, total_bytes: total as u64 }) },
        )
    }

    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async { Ok(u64::MAX) })
    }

    fn lock(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn boot_id(&self) -> u128 {
        self.0.boot.get()
    }
}

/// A process's access to the disk.
struct Port(Rc<TestDisk>);

pub fn port(disk: &Rc<TestDisk>) -> Rc<dyn Disk> {
    Rc::new(Port(disk.clone()))
}

struct TestFile {
    disk: Rc<TestDisk>,
    path: String,
    state: Rc<FileState>,
}

impl TestFile {
    fn change(&self, change: Change) {
        change.apply(&mut self.state.cache.borrow_mut());
        self.state.dirty.borrow_mut().push(change);
    }
}

impl DiskFile for TestFile {
    fn read_at(&self, offset: u64, len: usize) -> PortFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            self.disk.operate(&self.path).await?;
            self.disk.survive().await;
            let cache = self.state.cache.borrow();
            let from = cache.len().min(offset as usize);
            Ok(Bytes::copy_from_slice(&cache[from..cache.len().min(from + len)]))
        })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let offset = offset as usize;
            let done = self.disk.operate(&self.path).await;
            if done.is_err() || self.disk.is_dead() {
                // Some of its first pages may have been written.
                let pages: Vec<usize> =
                    (offset + 1..offset + data.len()).filter(|at| at % PAGE == 0).collect();
                if let Some(end) =
                    pages.get(self.disk.random.below(pages.len() as u64 + 1) as usize)
                {
                    self.change(Change::Write(offset, data.slice(..end - offset)));
                }
                self.disk.survive().await;
                return done;
            }
            let grows = (offset + data.len()).saturating_sub(self.state.cache.borrow().len());
            if grows > 0 && self.disk.used() + grows > self.disk.capacity.get() {
                return Err(DiskError::NoSpace);
            }
            self.change(Change::Write(offset, data));
            Ok(())
        })
    }

    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let _syncing = Syncing::begin(&self.state, &self.path);
            // Much must happen while a sync is under way.
            for _ in 0..self.disk.random.below(40) {
                pause().await;
            }
            let done = self.disk.operate(&self.path).await;
            if self.disk.is_dead() {
                self.disk.survive().await;
            }
            // Clean for the kernel now, whether it was written or not.
            let dirty = self.state.dirty.take();
            done?;
            for change in &dirty {
                change.apply(&mut self.state.stable.borrow_mut());
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            self.disk.operate(&self.path).await?;
            self.change(Change::Length(len as usize));
            self.disk.survive().await;
            Ok(())
        })
    }

    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async move {
            self.disk.operate(&self.path).await?;
            self.disk.survive().await;
            Ok(self.state.cache.borrow().len() as u64)
        })
    }

    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        self.write_at(offset, Bytes::from(vec![0; len as usize]))
    }
}
