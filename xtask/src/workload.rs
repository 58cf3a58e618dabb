//! Work on files of which every byte is known.
//!
//! Workers change files of their own and keep in memory what each name must hold. One
//! operation of each may be under way when the daemon dies: its file may be as before, as
//! after, or hold a beginning of what was being written; nothing else may differ.

use crate::Outcome;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names of each worker.
const NAMES: u64 = 40;

/// Small enough to be one request, so that it happens whole or not at all, or in part
/// only at its end.
const LONGEST_WRITE: u64 = 100_000;

/// What a name holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct File {
    content: Vec<u8>,
    mode: u32,
}

pub struct Worker {
    dir: PathBuf,
    rng: Rng,
    files: BTreeMap<u64, File>,
    /// The operation that may or may not have happened, and why.
    doubt: Option<(Operation, String)>,
    done: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Create { name: u64 },
    Write { name: u64, offset: usize, data: Vec<u8> },
    Truncate { name: u64, len: usize },
    Chmod { name: u64, mode: u32 },
    Rename { from: u64, to: u64 },
    Remove { name: u64 },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Write { name, offset, data } => write!(f, "write to name {name} of {} bytes at {offset}", data.len()),
            other => write!(f, "{other:?}"),
        }
    }
}

impl Worker {
    /// In a directory of its own below `root`.
    pub fn new(root: &Path, number: usize, seed: u64) -> Outcome<Worker> {
        let dir = root.join(format!("worker {number}"));
        fs::create_dir(&dir)?;
        Ok(Worker { dir, rng: Rng(seed), files: BTreeMap::new(), doubt: None, done: 0 })
    }

    /// Operations that have succeeded.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The operation that did not succeed, in words.
    pub fn failed(&self) -> Option<&str> {
        self.doubt.as_ref().map(|(_, why)| why.as_str())
    }

    /// Works until it is told to stop or the mount is gone.
    pub fn work(mut self, stop: &AtomicBool) -> Worker {
        while !stop.load(Ordering::Relaxed) {
            let operation = self.draw();
            match self.perform(&operation) {
                Ok(()) => {
                    apply(&mut self.files, &operation);
                    self.done += 1;
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

    fn draw(&mut self) -> Operation {
        let name = self.rng.below(NAMES);
        let Some(file) = self.files.get(&name) else { return Operation::Create { name } };
        let len = file.content.len();
        match self.rng.below(12) {
            0 => Operation::Remove { name },
            1 => Operation::Rename { from: name, to: (name + 1 + self.rng.below(NAMES - 1)) % NAMES },
            2 => Operation::Truncate { name, len: self.rng.below(len as u64 * 2 + 1000) as usize },
            3 => Operation::Chmod { name, mode: 0o400 | self.rng.below(0o400) as u32 },
            // Appends and writes within, with and without a hole.
            kind => {
                let offset = if kind < 8 { len } else { self.rng.below(len as u64 + 5000) as usize };
                let data_len = 1 + self.rng.below(LONGEST_WRITE) as usize;
                Operation::Write { name, offset, data: self.rng.bytes(data_len) }
            }
        }
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(format!("name {name}"))
    }

    fn perform(&self, operation: &Operation) -> io::Result<()> {
        let open = |name: u64| OpenOptions::new().write(true).open(self.path(name));
        match operation {
            Operation::Create { name } => {
                OpenOptions::new().write(true).create_new(true).open(self.path(*name))?;
                // The umask is not part of the test.
                fs::set_permissions(self.path(*name), fs::Permissions::from_mode(0o644))
            }
            Operation::Write { name, offset, data } => open(*name)?.write_all_at(data, *offset as u64),
            Operation::Truncate { name, len } => open(*name)?.set_len(*len as u64),
            Operation::Chmod { name, mode } => fs::set_permissions(self.path(*name), fs::Permissions::from_mode(*mode)),
            Operation::Rename { from, to } => fs::rename(self.path(*from), self.path(*to)),
            Operation::Remove { name } => fs::remove_file(self.path(*name)),
        }
    }

    /// Compares everything, and takes what the operation in doubt has become for the truth.
    pub fn verify(&mut self) -> Outcome<()> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name().into_string().map_err(|name| format!("{name:?} was never made"))?;
            let number =
                name.strip_prefix("name ").and_then(|number| number.parse().ok()).ok_or_else(|| format!("{name} was never made"))?;
            let path = self.path(number);
            let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
            found.insert(number, File { content: fs::read(&path)?, mode });
        }
        let mut possible = vec![self.files.clone()];
        let doubt = self.doubt.take();
        if let Some((operation, _)) = &doubt {
            possible.extend(outcomes(&self.files, operation, &found));
        }
        if possible.contains(&found) {
            self.files = found;
            return Ok(());
        }
        let expected = &possible[0];
        let names: BTreeSet<&u64> = expected.keys().chain(found.keys()).filter(|name| expected.get(name) != found.get(name)).collect();
        let wrong: Vec<String> = names.into_iter().map(|name| describe(*name, expected.get(name), found.get(name))).collect();
        let doubt = doubt.map_or("nothing".into(), |(_, why)| why);
        Err(format!("{}: {}; in doubt: {doubt}", self.dir.display(), wrong.join("; ")).into())
    }
}

fn apply(files: &mut BTreeMap<u64, File>, operation: &Operation) {
    match operation {
        Operation::Create { name } => drop(files.insert(*name, File { content: Vec::new(), mode: 0o644 })),
        Operation::Write { name, offset, data } => {
            let content = &mut files.entry(*name).or_default().content;
            if data.is_empty() {
                return;
            }
            content.resize(content.len().max(offset + data.len()), 0);
            content[*offset..offset + data.len()].copy_from_slice(data);
        }
        Operation::Truncate { name, len } => files.entry(*name).or_default().content.resize(*len, 0),
        Operation::Chmod { name, mode } => files.entry(*name).or_default().mode = *mode,
        Operation::Rename { from, to } => {
            if let Some(file) = files.remove(from) {
                files.insert(*to, file);
            }
        }
        Operation::Remove { name } => drop(files.remove(name)),
    }
}

/// What the operation may have left besides nothing.
fn outcomes(before: &BTreeMap<u64, File>, operation: &Operation, found: &BTreeMap<u64, File>) -> Vec<BTreeMap<u64, File>> {
    let mut whole = before.clone();
    apply(&mut whole, operation);
    let mut possible = vec![whole];
    match operation {
        // Made, with the mode that the umask left.
        Operation::Create { name } => {
            let mut made = before.clone();
            made.insert(*name, File { content: Vec::new(), mode: found.get(name).map_or(0, |file| file.mode) });
            possible.push(made);
        }
        // A beginning of it, as far as what is found agrees.
        Operation::Write { name, offset, data } => {
            let found = found.get(name).and_then(|file| file.content.get(*offset..)).unwrap_or_default();
            let len = data.iter().zip(found).take_while(|(wanted, found)| wanted == found).count();
            let mut part = before.clone();
            apply(&mut part, &Operation::Write { name: *name, offset: *offset, data: data[..len].to_vec() });
            possible.push(part);
        }
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
            format!("name {name} holds {} bytes, not {}, and differs from byte {differs:?}", found.content.len(), expected.content.len())
        }
        (None, None) => String::new(),
    }
}
