//! A thread of a mount, which performs random operations and records them.

use super::calls;
use crate::rng::Rng;
use ebb_linearize::history::{CELL_BYTES, Name};
use ebb_linearize::{Answer, Data, Errno, InodeId, Kind, Op, Operation, Outcome, Owner, Token};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the threads of one history have in common.
pub struct Common {
    /// Time zero of the history.
    pub epoch: Instant,
    /// Errors of a daemon that is gone count as no answer.
    pub has_chaos: bool,
    /// No directory is moved or removed.
    pub keeps_directories: bool,
    next_token: AtomicU64,
    /// Operations that no thread has begun. A fast mount performs more of them.
    left: AtomicI64,
}

impl Common {
    pub fn new(operations: i64, has_chaos: bool, keeps_directories: bool) -> Common {
        Common {
            epoch: Instant::now(),
            has_chaos,
            keeps_directories,
            next_token: AtomicU64::new(1),
            left: AtomicI64::new(operations),
        }
    }
}

pub struct Worker {
    owner: Owner,
    common: Arc<Common>,
    rng: Rng,
    files: Vec<Handle>,
    /// Open directories; the first one is the root.
    directories: Vec<(InodeId, File)>,
    done: Vec<Operation>,
    /// Answers some requests from a cache, which makes them stale.
    planted: Option<StaleCache>,
}

/// An open file, with an open file description of its own.
struct Handle {
    inode: InodeId,
    file: File,
    /// Opened with O_APPEND; all other bytes of it are appended too.
    appends: bool,
    is_locked: bool,
}

/// Replies of the last second.
#[derive(Default)]
pub struct StaleCache(HashMap<(InodeId, u32, u32), (Outcome, Instant)>);

const STALE: Duration = Duration::from_secs(1);

/// Each request stays within one block of 4 KiB, so that the kernel does not split it (S-11a).
const BLOCK_CELLS: u64 = 4096 / CELL_BYTES as u64;

/// The length of files that are written at random offsets.
const FILE_BLOCKS: u64 = 2;

/// Divides a block, so that no append crosses a block.
const APPEND_CELLS: u32 = 64;

const OPEN_FILES: usize = 4;

/// Of 100 operations by name, the number on names that all threads use.
const SHARED: u64 = 75;

impl Worker {
    pub fn new(owner: Owner, root: File, seed: u64, common: Arc<Common>, planted: bool) -> Worker {
        Worker {
            owner,
            common,
            rng: Rng(seed),
            files: Vec::new(),
            directories: vec![(InodeId::ROOT, root)],
            done: Vec::new(),
            planted: planted.then(StaleCache::default),
        }
    }

    /// Makes what all threads use.
    pub fn prepare(&mut self) {
        self.mkdir(0, "a".into());
        self.create(0, "f0".into());
        self.create(0, "l0".into());
    }

    /// Performs operations until none is left for any thread.
    pub fn work(&mut self) {
        self.open_directory(0, "a".into());
        while self.common.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            if self.rng.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(self.rng.below(300)));
            }
            match self.rng.below(100) {
                _ if self.files.is_empty() => self.open_or_create(),
                0..48 => self.on_file(),
                48..58 => self.on_lock(),
                58..66 => self.list(),
                66..76 => self.on_directory(),
                _ => self.on_name(),
            }
        }
    }

    /// Releases all locks, and returns the operations.
    pub fn finish(mut self) -> Vec<Operation> {
        while !self.files.is_empty() {
            self.close(0);
        }
        self.done
    }

    /// Performs and records one operation.
    fn record<T>(
        &mut self,
        op: Op,
        perform: impl FnOnce(&Worker) -> io::Result<T>,
        outcome: impl FnOnce(&T) -> Option<Outcome>,
    ) -> Option<T> {
        let call_ns = self.now_ns();
        let result = perform(self);
        let at_ns = self.now_ns();
        let answer = match &result {
            Ok(value) => outcome(value),
            Err(error) => self.errno(&op, error).map(Outcome::Error),
        };
        let answer = answer.map(|outcome| Answer::new(at_ns, outcome));
        self.done.push(Operation::new(self.owner, call_ns, op, answer));
        result.ok()
    }

    fn last_outcome(&self) -> Option<&Outcome> {
        self.done.last().and_then(Operation::outcome)
    }

    fn now_ns(&self) -> u64 {
        self.common.epoch.elapsed().as_nanos() as u64
    }

    /// `None` if the operation was not answered.
    fn errno(&self, op: &Op, error: &io::Error) -> Option<Errno> {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        let is_lost = self.common.has_chaos && LOST.contains(&number);
        // The kernel looks the name up again once; what it finds then can be removed too.
        let is_by_name = matches!(op, Op::Open { .. } | Op::Stat { .. });
        let is_removed_twice = is_by_name && number == libc::ESTALE;
        (!is_lost && !is_removed_twice).then(|| Errno::new(number))
    }

    fn token(&self) -> Token {
        Token::new(self.common.next_token.fetch_add(1, Ordering::Relaxed))
    }

    /// A directory, by its index.
    fn pick_directory(&mut self) -> usize {
        self.rng.below(self.directories.len() as u64) as usize
    }

    fn file_name(&mut self) -> String {
        if self.rng.below(100) >= SHARED {
            return format!("p{}-{}", self.owner.mount(), self.owner.thread());
        }
        match self.rng.below(5) {
            number @ 0..3 => format!("f{number}"),
            number => format!("l{}", number - 3),
        }
    }

    fn open_or_create(&mut self) {
        let (dir, name) = (self.pick_directory(), self.file_name());
        if self.rng.below(2) == 0 { self.create(dir, name) } else { self.open(dir, name) }
    }

    fn on_name(&mut self) {
        let (dir, name) = (self.pick_directory(), self.file_name());
        let at = self.directories[dir].0;
        let shared_name = Name::from(name.as_str());
        match self.rng.below(10) {
            0..2 => self.create(dir, name),
            2..4 => self.open(dir, name),
            4..6 => {
                let op = Op::Stat { dir: at, name: shared_name };
                self.record(
                    op,
                    |worker| calls::stat(worker.directory(dir), &name),
                    |stat| Some(attributes(stat)),
                );
            }
            6 => {
                let op = Op::Unlink { dir: at, name: shared_name };
                self.record(op, |worker| calls::unlink(worker.directory(dir), &name, 0), done);
            }
            7..9 => {
                // Files stay of their kind: a renamed log is a log.
                let to = self.name_like(&name);
                self.rename(dir, name, to);
            }
            _ => {
                let handle = self.rng.below(self.files.len() as u64) as usize;
                let like = if self.files[handle].appends { "l" } else { "f" };
                let name = self.name_like(like);
                let op = Op::Link {
                    inode: self.files[handle].inode,
                    dir: at,
                    name: name.as_str().into(),
                };
                self.record(
                    op,
                    |worker| calls::link(&worker.files[handle].file, worker.directory(dir), &name),
                    done,
                );
                // The kernel refuses it without a request if this mount has removed the last name
                // that it had seen of the file.
                if self.last_outcome() == Some(&Outcome::Error(Errno::ENOENT))
                    && let Some(refused) = self.done.pop()
                {
                    self.done.push(refused.unanswered());
                }
            }
        }
    }

    fn name_like(&mut self, name: &str) -> String {
        match name.as_bytes()[0] {
            b'l' => format!("l{}", self.rng.below(2)),
            b'd' => format!("d{}", self.rng.below(2)),
            _ => format!("f{}", self.rng.below(3)),
        }
    }

    fn rename(&mut self, from_dir: usize, from: String, to: String) {
        let to_dir = self.pick_directory();
        let op = Op::Rename {
            from_dir: self.directories[from_dir].0,
            from: from.as_str().into(),
            to_dir: self.directories[to_dir].0,
            to: to.as_str().into(),
        };
        self.record(
            op,
            |worker| {
                calls::rename(worker.directory(from_dir), &from, worker.directory(to_dir), &to)
            },
            done,
        );
    }

    /// Directories that can be removed are in the root alone.
    fn on_directory(&mut self) {
        let name = self.name_like("d");
        let op_name = Name::from(name.as_str());
        let kinds = if self.common.keeps_directories { 3 } else { 5 };
        match self.rng.below(kinds) {
            0..2 => self.mkdir(0, name),
            2 => self.open_directory(0, name),
            3 => {
                let op = Op::Rmdir { dir: InodeId::ROOT, name: op_name };
                let remove = libc::AT_REMOVEDIR;
                self.record(op, |worker| calls::unlink(worker.directory(0), &name, remove), done);
            }
            _ => {
                let to = self.name_like("d");
                let op = Op::Rename {
                    from_dir: InodeId::ROOT,
                    from: op_name,
                    to_dir: InodeId::ROOT,
                    to: to.as_str().into(),
                };
                self.record(
                    op,
                    |worker| calls::rename(worker.directory(0), &name, worker.directory(0), &to),
                    done,
                );
            }
        }
    }

    fn directory(&self, index: usize) -> &File {
        &self.directories[index].1
    }

    fn create(&mut self, dir: usize, name: String) {
        let op = Op::Create { dir: self.directories[dir].0, name: name.as_str().into() };
        self.open_with(op, dir, &name, libc::O_CREAT | libc::O_EXCL);
    }

    fn open(&mut self, dir: usize, name: String) {
        let op = Op::Open { dir: self.directories[dir].0, name: name.as_str().into() };
        self.open_with(op, dir, &name, 0);
    }

    fn open_with(&mut self, op: Op, dir: usize, name: &str, flags: i32) {
        let appends = name.starts_with('l');
        let flags = libc::O_RDWR | flags | if appends { libc::O_APPEND } else { 0 };
        let Some((file, inode)) = self.open_at(op, dir, name, flags) else { return };
        // Locks of one thread must not exclude each other.
        if self.files.iter().any(|handle| handle.inode == inode) {
            return;
        }
        if self.files.len() == OPEN_FILES {
            let index = self.rng.below(OPEN_FILES as u64) as usize;
            self.close(index);
        }
        self.files.push(Handle { inode, file, appends, is_locked: false });
    }

    /// Its inode number does not change, so it can be asked for after the return.
    fn open_at(&mut self, op: Op, dir: usize, name: &str, flags: i32) -> Option<(File, InodeId)> {
        let call_ns = self.now_ns();
        let opened = calls::open(self.directory(dir), name, flags);
        let at_ns = self.now_ns();
        let opened = opened.and_then(|file| calls::fstat(&file).map(|stat| (file, stat)));
        let outcome = match &opened {
            Ok((_, stat)) => Some(Outcome::Inode { inode: inode(stat), kind: kind(stat) }),
            Err(error) => self.errno(&op, error).map(Outcome::Error),
        };
        let answer = outcome.map(|outcome| Answer::new(at_ns, outcome));
        self.done.push(Operation::new(self.owner, call_ns, op, answer));
        opened.ok().map(|(file, stat)| (file, inode(&stat)))
    }

    fn mkdir(&mut self, dir: usize, name: String) {
        let op = Op::Mkdir { dir: self.directories[dir].0, name: name.as_str().into() };
        let call_ns = self.now_ns();
        let made = calls::mkdir(self.directory(dir), &name);
        let at_ns = self.now_ns();
        // mkdir(2) does not return the inode, and another thread can remove or replace it.
        let answer = match made {
            Ok(()) => Some(Outcome::Done),
            Err(error) => self.errno(&op, &error).map(Outcome::Error),
        };
        let answer = answer.map(|outcome| Answer::new(at_ns, outcome));
        self.done.push(Operation::new(self.owner, call_ns, op, answer));
    }

    fn open_directory(&mut self, dir: usize, name: String) {
        let op = Op::Open { dir: self.directories[dir].0, name: name.as_str().into() };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let Some((file, inode)) = self.open_at(op, dir, &name, flags) else { return };
        self.directories.retain(|(other, _)| *other != inode);
        if self.directories.len() == OPEN_DIRECTORIES {
            self.directories.remove(OPEN_DIRECTORIES - 1);
        }
        self.directories.push((inode, file));
    }

    fn list(&mut self) {
        let dir = self.pick_directory();
        let op = Op::List { inode: self.directories[dir].0 };
        // Names of several replies are of several moments.
        self.record(
            op,
            |worker| calls::list(worker.directory(dir), "."),
            |(names, is_complete)| {
                let names = names.iter().map(|name| Name::from(name.as_str())).collect();
                is_complete.then_some(Outcome::Names(names))
            },
        );
    }

    fn on_lock(&mut self) {
        let index = self.rng.below(self.files.len() as u64) as usize;
        let inode = self.files[index].inode;
        if self.files[index].is_locked {
            self.unlock(index);
            return;
        }
        let exclusive = self.rng.below(3) > 0;
        let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        self.record(
            Op::Lock { inode, exclusive },
            |worker| calls::lock(&worker.files[index].file, kind),
            done,
        );
        // A lock without an answer can be held: it is released too.
        let outcome = self.last_outcome();
        self.files[index].is_locked = matches!(outcome, None | Some(Outcome::Done));
    }

    fn unlock(&mut self, index: usize) {
        let inode = self.files[index].inode;
        self.record(
            Op::Unlock { inode },
            |worker| calls::lock(&worker.files[index].file, libc::F_UNLCK),
            done,
        );
        self.files[index].is_locked = false;
    }

    fn close(&mut self, index: usize) {
        if self.files[index].is_locked {
            self.unlock(index);
        }
        self.files.remove(index);
    }

    fn on_file(&mut self) {
        let index = self.rng.below(self.files.len() as u64) as usize;
        let Handle { inode, appends, .. } = self.files[index];
        let start = self.rng.below(BLOCK_CELLS);
        let cells = (1 + self.rng.below(BLOCK_CELLS - start)) as u32;
        let at = (self.rng.below(FILE_BLOCKS) * BLOCK_CELLS + start) as u32;
        match self.rng.below(10) {
            // A cache can have whole blocks.
            0..2 => self.read(index, 0, BLOCK_CELLS as u32),
            2..4 => self.read(index, at, cells),
            4..6 => self.fstat(index),
            6..9 if appends => {
                let token = self.token();
                self.write(
                    Op::Append { inode, cells: APPEND_CELLS, token },
                    APPEND_CELLS,
                    token,
                    |worker, bytes| (&worker.files[index].file).write(bytes),
                );
            }
            6..9 => {
                let token = self.token();
                let at_bytes = u64::from(at) * CELL_BYTES as u64;
                self.write(Op::Write { inode, at, cells, token }, cells, token, |worker, bytes| {
                    worker.files[index].file.write_at(bytes, at_bytes)
                });
            }
            _ => {
                let cells = if appends { 0 } else { at };
                let bytes = u64::from(cells) * CELL_BYTES as u64;
                self.record(
                    Op::Truncate { inode, cells },
                    |worker| worker.files[index].file.set_len(bytes),
                    done,
                );
            }
        }
    }

    fn fstat(&mut self, index: usize) {
        let inode = self.files[index].inode;
        self.observe(
            (inode, 0, 0),
            Op::Fstat { inode },
            |worker| calls::fstat(&worker.files[index].file),
            attributes,
        );
    }

    fn read(&mut self, index: usize, at: u32, cells: u32) {
        let inode = self.files[index].inode;
        let mut buffer = vec![0; cells as usize * CELL_BYTES];
        self.observe(
            (inode, at, cells),
            Op::Read { inode, at, cells },
            |worker| {
                let from = u64::from(at) * CELL_BYTES as u64;
                let len = worker.files[index].file.read_at(&mut buffer, from)?;
                buffer.truncate(len);
                Ok(buffer)
            },
            |bytes| match Data::from_bytes(bytes) {
                Some(data) => Outcome::Data(data),
                None => Outcome::Short { bytes: bytes.len() as u64 },
            },
        );
    }

    /// As [`Worker::record`]; a planted cache answers every second time if it can.
    fn observe<T>(
        &mut self,
        key: (InodeId, u32, u32),
        op: Op,
        perform: impl FnOnce(&Worker) -> io::Result<T>,
        outcome: impl FnOnce(&T) -> Outcome,
    ) {
        let cached = self.planted.as_ref().and_then(|cache| cache.0.get(&key));
        let cached = cached.filter(|(_, since)| since.elapsed() < STALE).cloned();
        if let Some((outcome, _)) = cached
            && self.rng.below(2) == 0
        {
            self.record(op, |_| Ok(()), |()| Some(outcome));
            return;
        }
        self.record(op, perform, |value| Some(outcome(value)));
        let answered = self.last_outcome().cloned();
        if let (Some(cache), Some(outcome)) = (&mut self.planted, answered) {
            cache.0.insert(key, (outcome, Instant::now()));
        }
    }

    fn write(
        &mut self,
        op: Op,
        cells: u32,
        token: Token,
        perform: impl FnOnce(&Worker, &[u8]) -> io::Result<usize>,
    ) {
        let bytes = token.get().to_le_bytes().repeat(cells as usize);
        self.record(
            op,
            |worker| perform(worker, &bytes),
            |written| {
                Some(match *written == bytes.len() {
                    true => Outcome::Done,
                    false => Outcome::Short { bytes: *written as u64 },
                })
            },
        );
    }
}

/// Errors of a mount whose daemon is being replaced.
const LOST: [i32; 7] = [
    libc::EIO,
    libc::ENOTCONN,
    libc::ESTALE,
    libc::ETIMEDOUT,
    libc::ECONNABORTED,
    libc::ECONNRESET,
    libc::EINTR,
];

const OPEN_DIRECTORIES: usize = 4;

fn done(_: &()) -> Option<Outcome> {
    Some(Outcome::Done)
}

fn inode(stat: &libc::stat) -> InodeId {
    InodeId::new(stat.st_ino)
}

fn kind(stat: &libc::stat) -> Kind {
    if stat.st_mode & libc::S_IFMT == libc::S_IFDIR { Kind::Directory } else { Kind::File }
}

fn attributes(stat: &libc::stat) -> Outcome {
    let (inode, kind) = (inode(stat), kind(stat));
    let bytes = stat.st_size as u64;
    match kind {
        Kind::Directory => Outcome::Attributes { inode, kind, cells: 0, links: 0 },
        Kind::File if !bytes.is_multiple_of(CELL_BYTES as u64) => Outcome::Short { bytes },
        Kind::File => {
            let cells = (bytes / CELL_BYTES as u64) as u32;
            Outcome::Attributes { inode, kind, cells, links: stat.st_nlink as u32 }
        }
    }
}
