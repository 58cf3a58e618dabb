//! One data directory: a volatile page cache in front of a platter.

mod busy;
mod cache;
mod held;
mod names;

use crate::executor::{Executor, Owner};
use crate::faults::Faults;
use crate::rng::Rng;
use crate::trace::fingerprint;
use busy::{Busy, UnderWay};
use bytes::Bytes;
use cache::CutMode;
use cache::LINE_BYTES;
pub use cache::SECTOR_BYTES;
use ebb_ports::{Disk, DiskError, DiskFile, DiskSpace, OpenMode, PortFuture};
pub use held::Holder;
use names::{CachedRef, Names, failed};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

/// A simulated data directory, which outlives the processes that use it. Scenarios break it here.
#[derive(Clone)]
pub struct SimDisk {
    shared: Rc<Shared>,
}

struct Shared {
    executor: Executor,
    faults: Faults,
    rng: Rng,
    boot_id: Rc<Cell<u128>>,
    names: RefCell<Names>,
    locked_by: RefCell<Option<Owner>>,
    capacity_bytes: Cell<u64>,
    /// Until when the disk is short of space, and its capacity in that time.
    shortage: Cell<(Duration, u64)>,
    shortage_rng: Rng,
    used_bytes: RefCell<Rc<Cell<u64>>>,
    /// How many operations of a kind succeed before one fails.
    failing: RefCell<BTreeMap<DiskOperation, u64>>,
    busy: Rc<Busy>,
}

/// The kinds of operations that can be made to fail separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DiskOperation {
    Read,
    /// Writing, cutting and punching.
    Write,
    /// Forcing bytes or names.
    Sync,
    /// Opening, creating, renaming, removing, listing, asking for space.
    Name,
}

impl SimDisk {
    pub(crate) fn new(
        executor: Executor,
        faults: Faults,
        rng: Rng,
        boot_id: Rc<Cell<u128>>,
    ) -> SimDisk {
        SimDisk {
            shared: Rc::new(Shared {
                executor,
                faults,
                shortage: Cell::default(),
                shortage_rng: rng.split("shortage"),
                rng,
                boot_id,
                names: RefCell::new(Names::new()),
                locked_by: RefCell::new(None),
                capacity_bytes: Cell::new(CAPACITY_BYTES),
                used_bytes: RefCell::default(),
                failing: RefCell::default(),
                busy: Rc::default(),
            }),
        }
    }

    /// Writes beyond this fail with [`DiskError::NoSpace`]. It may be set below the space in use.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.capacity_bytes.set(bytes);
    }

    /// The latest moment since which the disk has been idle for `idle` in sum, if that is not
    /// before `from`.
    pub fn idle_for(&self, idle: Duration, from: Duration) -> Option<Duration> {
        self.shared.busy.idle_for(idle, from, self.shared.executor.now())
    }

    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes.borrow().get()
    }

    /// Makes the `nth` operation of this kind from now fail, once; 1 is the next one.
    pub fn fail_nth(&self, operation: DiskOperation, nth: u64) {
        assert!(nth > 0, "operations are counted from 1");
        self.shared.failing.borrow_mut().insert(operation, nth - 1);
    }

    /// Flips the bits of `mask` in a byte on the platter. False if the platter has none there.
    pub fn flip(&self, path: &str, offset: u64, mask: u8) -> Result<bool, DiskError> {
        let file = self.shared.names.borrow().file(path)?;
        let done = file.borrow_mut().rot(offset, mask);
        self.note(
            self.shared.executor.world(),
            "disk.rot",
            format_args!("{path} at {offset}: {done}"),
        );
        Ok(done)
    }

    /// Makes sectors bad: reading any of these bytes fails until they are written anew.
    pub fn spoil(&self, path: &str, range: Range<u64>) -> Result<(), DiskError> {
        let file = self.shared.names.borrow().file(path)?;
        file.borrow_mut().spoil(range.clone());
        self.note(self.shared.executor.world(), "disk.spoil", format_args!("{path} at {range:?}"));
        Ok(())
    }

    /// Flips one bit in a sector that the seed chooses, and says where. `None` on an empty platter.
    pub fn flip_any(&self) -> Option<(String, u64)> {
        let mut files = self.files();
        while !files.is_empty() {
            let (path, file) = files.swap_remove(self.shared.rng.index(files.len()));
            let sector = file.borrow().stored.content.borrow().any_stored_offset(&self.shared.rng);
            if let Some(offset) = sector
                && self.flip(&path, offset, 1) == Ok(true)
            {
                return Some((path, offset));
            }
        }
        None
    }

    /// Paths of all files, in order.
    pub fn paths(&self) -> Vec<String> {
        self.files().into_iter().map(|(path, _)| path).collect()
    }

    pub(crate) fn port(&self, owner: &Owner) -> Rc<dyn Disk> {
        Rc::new(ProcessDisk { disk: self.clone(), owner: owner.clone() })
    }

    /// Loses all unforced data. The machine's processes must be dead.
    pub(crate) fn power_cut(&self) {
        let mode = CutMode::draw(&self.shared.rng);
        let used_bytes = self.shared.names.borrow_mut().power_cut(&self.shared.rng, mode);
        self.shared.used_bytes.replace(used_bytes);
        self.shared.locked_by.replace(None);
    }

    fn files(&self) -> Vec<(String, CachedRef)> {
        self.shared.names.borrow().files()
    }

    fn room_bytes(&self) -> u64 {
        self.capacity_bytes().saturating_sub(self.used_bytes())
    }

    fn capacity_bytes(&self) -> u64 {
        let (until, limit) = self.shared.shortage.get();
        let capacity = self.shared.capacity_bytes.get();
        if self.shared.executor.now() < until { capacity.min(limit) } else { capacity }
    }

    /// Decides before a write whether the disk is short of space from now on.
    fn draw_shortage(&self) {
        let Shared { executor, faults, shortage, shortage_rng: rng, .. } = &*self.shared;
        let (plan, now) = (faults.plan().disk, executor.now());
        if now >= shortage.get().0 && rng.chance(plan.full) {
            let room_bytes = rng.below(plan.full_room_bytes + 1);
            let lasts = rng.duration(Duration::ZERO, plan.full_limit);
            shortage.set((now + lasts, self.used_bytes() + room_bytes));
            self.note(
                executor.world(),
                "disk.full",
                format_args!("{room_bytes} bytes are free for {lasts:?}"),
            );
        }
    }

    fn note(&self, owner: &Owner, kind: &str, details: fmt::Arguments<'_>) {
        self.shared.executor.note(owner, kind, details);
    }

    /// Decides whether an operation that happens now fails.
    fn fails(&self, operation: DiskOperation) -> bool {
        let plan = self.shared.faults.plan().disk;
        let rate = match operation {
            DiskOperation::Read => plan.read_error,
            DiskOperation::Write => plan.write_error,
            DiskOperation::Sync => plan.sync_error,
            DiskOperation::Name => plan.name_error,
        };
        let mut failing = self.shared.failing.borrow_mut();
        let planned = match failing.get_mut(&operation) {
            Some(0) => failing.remove(&operation).is_some(),
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        planned || self.shared.rng.chance(rate)
    }
}

/// The directory as one process has it.
#[derive(Clone)]
struct ProcessDisk {
    disk: SimDisk,
    owner: Owner,
}

impl ProcessDisk {
    /// Performs `effect` at one instant after some latency, and answers later still, so
    /// that a process can die on either side of the effect. A force answers much later, so
    /// that writes and removals fall between its effect and its answer. The effect is told
    /// whether the device fails it.
    async fn submit<T: 'static>(
        &self,
        operation: DiskOperation,
        effect: impl FnOnce(&ProcessDisk, bool) -> Result<T, DiskError> + 'static,
    ) -> Result<T, DiskError> {
        let shared = &self.disk.shared;
        shared.busy.begin(shared.executor.now());
        let executor = shared.executor.clone();
        let _under_way = UnderWay { busy: shared.busy.clone(), now: move || executor.now() };
        let latency =
            || shared.faults.plan().disk.slow.latency(&shared.rng, LATENCY_MIN, LATENCY_MAX);
        let (min, max) = match operation {
            DiskOperation::Sync => (FORCE_ANSWER_MIN, FORCE_ANSWER_MAX),
            _ => (LATENCY_MIN, LATENCY_MAX),
        };
        let (before, after) = (latency(), shared.rng.duration(min, max));
        let port = self.clone();
        let result = shared
            .executor
            .after(&self.owner, before, move || effect(&port, port.disk.fails(operation)))
            .await;
        shared.executor.sleep(&self.owner, after).await;
        result
    }

    /// Like [`ProcessDisk::submit`], for operations that a failing device does not carry out.
    async fn submit_plain<T: 'static>(
        &self,
        operation: DiskOperation,
        kind: &'static str,
        path: String,
        effect: impl FnOnce(&ProcessDisk, &str) -> Result<T, DiskError> + 'static,
    ) -> Result<T, DiskError> {
        self.submit(operation, move |port, fails| {
            let result = if fails { Err(io_error(&path)) } else { effect(port, &path) };
            port.disk.note(&port.owner, kind, format_args!("{path}: {}", outcome(&result)));
            result
        })
        .await
    }

    fn names(&self) -> std::cell::RefMut<'_, Names> {
        self.disk.shared.names.borrow_mut()
    }
}

impl Disk for ProcessDisk {
    fn open(
        &self,
        path: &str,
        mode: OpenMode,
    ) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>> {
        let path = path.to_owned();
        Box::pin(async move {
            self.submit_plain(DiskOperation::Name, "disk.open", path, move |port, path| {
                let mut names = port.names();
                let file = match (mode, names.exists(path)?) {
                    (OpenMode::CreateNew, true) => {
                        return Err(DiskError::Exists { path: path.to_owned() });
                    }
                    (OpenMode::Existing, _) | (OpenMode::Create, true) => names.file(path)?,
                    (OpenMode::Create | OpenMode::CreateNew, false) => {
                        names.create_file(path, &port.disk.shared.used_bytes.borrow())?
                    }
                };
                let open: Rc<dyn DiskFile> =
                    Rc::new(OpenFile { port: port.clone(), path: path.to_owned(), file });
                Ok(open)
            })
            .await
        })
    }

    fn rename(&self, from: &str, to: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        Box::pin(async move {
            self.submit_plain(DiskOperation::Name, "disk.rename", from, move |port, from| {
                port.names().rename(from, &to)
            })
            .await
        })
    }

    fn remove(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.submit_plain(
            DiskOperation::Name,
            "disk.remove",
            path.to_owned(),
            |port, path| port.names().remove(path),
        ))
    }

    fn create_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.submit_plain(
            DiskOperation::Name,
            "disk.create_dir",
            path.to_owned(),
            |port, path| port.names().create_dir(path),
        ))
    }

    fn list(&self, path: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>> {
        Box::pin(self.submit_plain(
            DiskOperation::Name,
            "disk.list",
            path.to_owned(),
            |port, path| port.names().list(path),
        ))
    }

    fn sync_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(self.submit_plain(
            DiskOperation::Sync,
            "disk.sync_dir",
            path.to_owned(),
            |port, path| {
                if port.disk.shared.faults.plan().disk.lying_sync {
                    return Ok(());
                }
                port.names().sync_dir(path)
            },
        ))
    }

    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>> {
        Box::pin(self.submit_plain(DiskOperation::Name, "disk.space", String::new(), |port, _| {
            Ok(DiskSpace {
                free_bytes: port.disk.room_bytes(),
                total_bytes: port.disk.capacity_bytes(),
            })
        }))
    }

    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async { Ok(u64::MAX) })
    }

    fn lock(&self) -> Result<(), DiskError> {
        let mut locked_by = self.disk.shared.locked_by.borrow_mut();
        match &*locked_by {
            Some(owner) if owner.is_alive() && *owner != self.owner => {
                Err(DiskError::InUse { owner: owner.name().to_owned() })
            }
            _ => {
                *locked_by = Some(self.owner.clone());
                Ok(())
            }
        }
    }

    fn boot_id(&self) -> u128 {
        self.disk.shared.boot_id.get()
    }
}

struct OpenFile {
    port: ProcessDisk,
    path: String,
    file: CachedRef,
}

impl OpenFile {
    /// Ranges of the port are 64 bits wide, those of file systems 63.
    fn check_end(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        match offset.checked_add(len) {
            Some(end) if end <= MAX_FILE_BYTES => Ok(()),
            _ => Err(failed(&self.path, "file too large")),
        }
    }
}

impl DiskFile for OpenFile {
    fn read_at(&self, offset: u64, len: usize) -> PortFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            let file = self.file.clone();
            self.port
                .submit_plain(
                    DiskOperation::Read,
                    "disk.read",
                    self.path.clone(),
                    move |port, path| {
                        let shared = &port.disk.shared;
                        let mut file = file.borrow_mut();
                        let readable = (len as u64).min(file.len().saturating_sub(offset));
                        if file.is_spoiled(offset..offset + readable) {
                            return Err(io_error(path));
                        }
                        if readable > 0 && shared.rng.chance(shared.faults.plan().disk.bit_rot) {
                            file.rot(offset + shared.rng.below(readable), 1);
                        }
                        Ok(file.read(offset, len))
                    },
                )
                .await
        })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            self.check_end(offset, data.len() as u64)?;
            let (file, path) = (self.file.clone(), self.path.clone());
            self.port
                .submit(DiskOperation::Write, move |port, fails| {
                    // A write that fails has come to the end of some line of memory.
                    let part = |len: usize| {
                        len.saturating_sub(((offset + len as u64) % LINE_BYTES) as usize)
                    };
                    let wanted = if fails {
                        part(port.disk.shared.rng.index(data.len() + 1))
                    } else {
                        data.len()
                    };
                    port.disk.draw_shortage();
                    let written =
                        file.borrow_mut().write(offset, &data[..wanted], port.disk.room_bytes());
                    let result = if written < wanted {
                        Err(DiskError::NoSpace)
                    } else if fails {
                        Err(io_error(&path))
                    } else {
                        Ok(())
                    };
                    let (sum, outcome) = (fingerprint(&data), outcome(&result));
                    port.disk.note(
                        &port.owner,
                        "disk.write",
                        format_args!("{path} at {offset} {written} bytes {sum:016x}: {outcome}"),
                    );
                    result
                })
                .await
        })
    }

    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let (file, path) = (self.file.clone(), self.path.clone());
            let until = file.borrow().sequence();
            self.port
                .submit(DiskOperation::Sync, move |port, fails| {
                    let shared = &port.disk.shared;
                    let result = if fails {
                        file.borrow_mut().strand(&shared.rng);
                        Err(io_error(&path))
                    } else {
                        if !shared.faults.plan().disk.lying_sync {
                            file.borrow_mut().sync(until);
                        }
                        Ok(())
                    };
                    port.disk.note(
                        &port.owner,
                        "disk.sync",
                        format_args!("{path}: {}", outcome(&result)),
                    );
                    result
                })
                .await
        })
    }

    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            self.check_end(0, len)?;
            let file = self.file.clone();
            let effect = move |_: &ProcessDisk, _: &str| {
                file.borrow_mut().set_len(len);
                Ok(())
            };
            self.port
                .submit_plain(DiskOperation::Write, "disk.set_len", self.path.clone(), effect)
                .await
        })
    }

    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async move {
            let file = self.file.clone();
            self.port
                .submit_plain(DiskOperation::Read, "disk.len", self.path.clone(), move |_, _| {
                    Ok(file.borrow().len())
                })
                .await
        })
    }

    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let file = self.file.clone();
            let effect = move |_: &ProcessDisk, _: &str| {
                file.borrow_mut().punch(offset, len);
                Ok(())
            };
            self.port
                .submit_plain(DiskOperation::Write, "disk.punch", self.path.clone(), effect)
                .await
        })
    }

    fn is_held(&self) -> Option<bool> {
        Some(self.file.borrow().holders > 0)
    }

    /// Refers to an unrelated pipe: the user of a passthrough grant calls [`SimDisk::hold`]
    /// instead.
    fn descriptor(&self) -> Option<OwnedFd> {
        std::io::pipe().ok().map(|(end, _)| end.into())
    }
}

fn io_error(path: &str) -> DiskError {
    failed(path, "input/output error")
}

fn outcome<T>(result: &Result<T, DiskError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Of a local NVMe drive, with its tail: wide enough that operations overtake each other.
const LATENCY_MIN: Duration = Duration::from_micros(10);
const LATENCY_MAX: Duration = Duration::from_micros(200);

/// From the effect of a force to its answer: flushes of drives under load take as long.
const FORCE_ANSWER_MIN: Duration = Duration::from_millis(1);
const FORCE_ANSWER_MAX: Duration = Duration::from_millis(30);

const CAPACITY_BYTES: u64 = 64 << 30;

const MAX_FILE_BYTES: u64 = i64::MAX as u64;
