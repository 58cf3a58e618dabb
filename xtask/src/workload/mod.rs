//! Workloads on files of which every byte is predicted.
//!
//! Workers change files of their own and keep the expected content of each name in memory. One
//! operation per worker may be in flight when the daemon dies: its file may be unchanged, changed,
//! or hold a prefix of the written bytes; nothing else may differ. For a power cut of the machine
//! of daemon and mount see [`history`].

mod crew;
mod history;
mod tree;

pub use crew::{AtWork, Crew};

use crate::Outcome;
use crate::finding::Finding;
use crate::rng::Rng;
use history::{Forces, History};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File as OsFile, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Names per worker.
const NAMES: u64 = 40;

/// Small enough for one request, or two if it begins within a page, so that it is atomic except for
/// a missing end.
const LONGEST_WRITE: u64 = 100_000;

/// Expected content of a name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct File {
    content: Vec<u8>,
    mode: u32,
}

type Files = BTreeMap<u64, File>;

/// Kinds of workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    Plain,
    /// With a force now and then.
    Forcing,
    /// As `Plain`, with workers that change trees ([`tree`]).
    WithTrees,
}

pub struct Worker {
    number: usize,
    dir: PathBuf,
    rng: Rng,
    mix: Mix,
    files: Files,
    /// The operations since the last state that is safe from a power cut.
    history: History,
    forces: Arc<Forces>,
    /// The operation with an unknown outcome, and its error.
    doubt: Option<(Operation, String)>,
    done: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Create {
        name: u64,
    },
    Write {
        name: u64,
        offset: usize,
        data: Vec<u8>,
        sync: bool,
    },
    Truncate {
        name: u64,
        len: usize,
    },
    Chmod {
        name: u64,
        mode: u32,
    },
    Rename {
        from: u64,
        to: u64,
    },
    Remove {
        name: u64,
    },
    /// fsync(2) of a file.
    Force {
        name: u64,
    },
    /// fsync(2) of the worker's directory.
    ForceNames,
    /// fsync(2) of the mount's root directory.
    ForceAll,
}

/// Mode of new files, which a test's umask does not change.
const NEW_MODE: u32 = 0o600;

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Write { name, offset, data, .. } => {
                write!(f, "write to name {name} of {} bytes at {offset}", data.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

impl Worker {
    /// In a directory of its own below `root`.
    fn new(
        root: &Path,
        number: usize,
        mix: Mix,
        seed: u64,
        forces: Arc<Forces>,
    ) -> Outcome<Worker> {
        let dir = root.join(format!("worker {number}"));
        fs::create_dir(&dir)?;
        // It holds everything that workers find after a power cut.
        OsFile::open(root)?.sync_all()?;
        let (files, history) = (Files::new(), History::default());
        Ok(Worker {
            number,
            dir,
            rng: Rng(seed),
            mix,
            files,
            history,
            forces,
            doubt: None,
            done: 0,
        })
    }

    /// Successful operations.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The failed operation, as text.
    pub fn failed(&self) -> Option<&str> {
        self.doubt.as_ref().map(|(_, why)| why.as_str())
    }

    /// Works until it is told to stop or the mount is gone.
    fn work(mut self, stop: &AtomicBool) -> Worker {
        while !stop.load(Ordering::Relaxed) {
            let operation = self.draw();
            let before = self.forces.begin();
            match self.perform(&operation) {
                Ok(()) => {
                    self.take(operation);
                    self.forces.ended(self.number, &self.history, before);
                }
                Err(error) => {
                    let why = format!("{operation}: {error}");
                    self.doubt = Some((operation, why));
                    break;
                }
            }
        }
        self
    }

    /// Records an operation that has happened.
    fn take(&mut self, operation: Operation) {
        apply(&mut self.files, &operation);
        if self.mix == Mix::Forcing {
            self.history.add(operation);
        }
        self.done += 1;
    }

    fn draw(&mut self) -> Operation {
        let name = self.rng.below(NAMES);
        let Some(file) = self.files.get(&name) else { return Operation::Create { name } };
        let len = file.content.len();
        let forcing = self.mix == Mix::Forcing;
        if forcing && self.rng.below(24) == 0 {
            return match self.rng.below(8) {
                0 => Operation::ForceAll,
                1 => Operation::ForceNames,
                _ => Operation::Force { name },
            };
        }
        match self.rng.below(12) {
            0 => Operation::Remove { name },
            1 => {
                Operation::Rename { from: name, to: (name + 1 + self.rng.below(NAMES - 1)) % NAMES }
            }
            2 => Operation::Truncate { name, len: self.rng.below(len as u64 * 2 + 1000) as usize },
            3 => Operation::Chmod { name, mode: 0o400 | self.rng.below(0o400) as u32 },
            // Appends and writes within the file, with and without a hole.
            kind => {
                let offset =
                    if kind < 8 { len } else { self.rng.below(len as u64 + 5000) as usize };
                let data_len = 1 + self.rng.below(LONGEST_WRITE) as usize;
                let sync = forcing && self.rng.below(48) == 0;
                Operation::Write { name, offset, data: self.rng.bytes(data_len), sync }
            }
        }
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(format!("name {name}"))
    }

    fn perform(&self, operation: &Operation) -> io::Result<()> {
        let open = |name: u64| OpenOptions::new().write(true).open(self.path(name));
        match operation {
            Operation::Create { name } => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(NEW_MODE)
                .open(self.path(*name))
                .map(drop),
            Operation::Write { name, offset, data, sync } => {
                let flags = if *sync { libc::O_DSYNC } else { 0 };
                let file =
                    OpenOptions::new().write(true).custom_flags(flags).open(self.path(*name))?;
                file.write_all_at(data, *offset as u64)
            }
            Operation::Truncate { name, len } => open(*name)?.set_len(*len as u64),
            Operation::Chmod { name, mode } => {
                fs::set_permissions(self.path(*name), fs::Permissions::from_mode(*mode))
            }
            Operation::Rename { from, to } => fs::rename(self.path(*from), self.path(*to)),
            Operation::Remove { name } => fs::remove_file(self.path(*name)),
            Operation::Force { name } => open(*name)?.sync_all(),
            Operation::ForceNames => OsFile::open(&self.dir)?.sync_all(),
            Operation::ForceAll => OsFile::open(self.dir.parent().unwrap_or(&self.dir))?.sync_all(),
        }
    }

    /// Compares all files, and resolves the operation with an unknown outcome.
    pub fn verify(&mut self) -> Outcome<()> {
        let found = self.look()?;
        let doubt = self.doubt.take();
        let operations = doubt.iter().flat_map(|(operation, _)| outcomes(operation, &found));
        for outcome in [None].into_iter().chain(operations.map(Some)) {
            let mut expected = self.files.clone();
            outcome.iter().for_each(|operation| apply(&mut expected, operation));
            if expected == found {
                outcome.into_iter().for_each(|operation| self.take(operation));
                return Ok(());
            }
        }
        let expected = &self.files;
        let names: BTreeSet<&u64> = expected
            .keys()
            .chain(found.keys())
            .filter(|name| expected.get(name) != found.get(name))
            .collect();
        let wrong: Vec<String> = names
            .into_iter()
            .map(|name| describe(*name, expected.get(name), found.get(name)))
            .collect();
        let doubt = doubt.map_or("nothing".into(), |(_, why)| why);
        Err(Finding(format!("{}: {}; in doubt: {doubt}", self.dir.display(), wrong.join("; ")))
            .into())
    }

    /// As [`Worker::verify`] after a power cut of the machine of mount and node: unforced changes
    /// may be lost. Returns the number of lost operations, and continues from the result.
    pub fn verify_after_power_cut(&mut self) -> Outcome<u64> {
        let found = self.look()?;
        let doubt = self.doubt.take();
        let unanswered =
            doubt.iter().flat_map(|(operation, _)| outcomes(operation, &found)).collect();
        let lost = self
            .history
            .explain(&found, unanswered, self.forces.of_worker(self.number))
            .map_err(|why| {
                let doubt = doubt.map_or("nothing".into(), |(_, why)| why);
                Finding(format!("{}: {why}; in doubt: {doubt}", self.dir.display()))
            })?;
        self.files = found;
        Ok(lost)
    }

    /// Reads all files.
    fn look(&self) -> Outcome<Files> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?
                .file_name()
                .into_string()
                .map_err(|name| Finding(format!("{name:?} was never made")))?;
            let number = name
                .strip_prefix("name ")
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| Finding(format!("{name} was never made")))?;
            let (content, metadata) = read(&self.path(number))?;
            found.insert(number, File { content, mode: metadata.permissions().mode() & 0o7777 });
        }
        Ok(found)
    }
}

/// Reads a file from the mount, not from the page cache of a kernel that survived.
fn read(path: &Path) -> Outcome<(Vec<u8>, fs::Metadata)> {
    let at = |error: io::Error| format!("{}: {error}", path.display());
    let mut file = OsFile::open(path).map_err(at)?;
    let metadata = file.metadata().map_err(at)?;
    // SAFETY: posix_fadvise takes plain integers, and the descriptor is open.
    let dropped = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if dropped != 0 {
        return Err(at(io::Error::from_raw_os_error(dropped)).into());
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(|error| match error.raw_os_error() {
        // EIO: its bytes are damaged or missing, and the node reports it.
        Some(libc::EIO) => Finding(at(error)).into(),
        _ => Box::<dyn std::error::Error>::from(at(error)),
    })?;
    Ok((content, metadata))
}

fn apply(files: &mut Files, operation: &Operation) {
    match operation {
        Operation::Create { name } => {
            drop(files.insert(*name, File { content: Vec::new(), mode: NEW_MODE }))
        }
        Operation::Write { name, offset, data, .. } => {
            let content = &mut files.entry(*name).or_default().content;
            if data.is_empty() {
                return;
            }
            content.resize(content.len().max(offset + data.len()), 0);
            content[*offset..offset + data.len()].copy_from_slice(data);
        }
        Operation::Truncate { name, len } => {
            files.entry(*name).or_default().content.resize(*len, 0)
        }
        Operation::Chmod { name, mode } => files.entry(*name).or_default().mode = *mode,
        Operation::Rename { from, to } => {
            if let Some(file) = files.remove(from) {
                files.insert(*to, file);
            }
        }
        Operation::Remove { name } => drop(files.remove(name)),
        Operation::Force { .. } | Operation::ForceNames | Operation::ForceAll => {}
    }
}

/// Possible effects of an operation without a reply.
fn outcomes(operation: &Operation, found: &Files) -> Vec<Operation> {
    let mut possible = vec![operation.clone()];
    match operation {
        // A prefix, as far as it agrees with the result.
        Operation::Write { name, offset, data, .. } => {
            let found =
                found.get(name).and_then(|file| file.content.get(*offset..)).unwrap_or_default();
            let agreed =
                data.iter().zip(found).take_while(|(wanted, found)| wanted == found).count();
            for len in [agreed, data.len().min(found.len())] {
                possible.push(Operation::Write {
                    name: *name,
                    offset: *offset,
                    data: data[..len].to_vec(),
                    sync: false,
                });
            }
        }
        // Not forced, in this case.
        Operation::Force { .. } | Operation::ForceNames | Operation::ForceAll => possible.clear(),
        _ => {}
    }
    possible
}

fn describe(name: u64, expected: Option<&File>, found: Option<&File>) -> String {
    match (expected, found) {
        (Some(_), None) => format!("name {name} is lost"),
        (None, Some(_)) => format!("name {name} has come back"),
        (Some(expected), Some(found)) if expected.content == found.content => {
            format!("name {name} has mode {:o}, not {:o}", found.mode, expected.mode)
        }
        (Some(expected), Some(found)) => {
            let differs = expected.content.iter().zip(&found.content).position(|(a, b)| a != b);
            format!(
                "name {name} holds {} bytes, not {}, and differs from byte {differs:?}",
                found.content.len(),
                expected.content.len()
            )
        }
        (None, None) => String::new(),
    }
}
