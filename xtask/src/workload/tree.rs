//! Workloads on a predicted tree: directories, links, symbolic links, extended attributes, bytes,
//! copies and holes.
//!
//! As in [`super`], one operation may be in flight when the daemon dies. It has happened or not; a
//! write or a copy may be cut to a prefix.

use super::read;
use crate::finding::Finding;
use crate::rng::Rng;
use crate::{Outcome, xattr};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File as OsFile, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names per directory; few, so that many operations replace and remove.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

const DEEPEST: u64 = 3;

const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "user.c"];

/// Maximum length of a write, copy or hole.
const LONGEST: u64 = 100_000;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    File(Vec<u8>),
    Directory,
    Symlink(PathBuf),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Inode {
    kind: Kind,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Paths are relative to the worker's directory, which is not in the tree.
#[derive(Clone, Default)]
struct Tree {
    names: BTreeMap<PathBuf, u64>,
    inodes: BTreeMap<u64, Inode>,
    last: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Create {
        path: PathBuf,
    },
    MakeDirectory {
        path: PathBuf,
    },
    Symlink {
        path: PathBuf,
        target: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    /// Replaces an existing target.
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    RemoveDirectory {
        path: PathBuf,
    },
    Set {
        path: PathBuf,
        name: &'static str,
        value: Vec<u8>,
    },
    Unset {
        path: PathBuf,
        name: &'static str,
    },
    Write {
        path: PathBuf,
        offset: usize,
        data: Vec<u8>,
    },
    Copy {
        from: PathBuf,
        at: usize,
        len: usize,
        to: PathBuf,
        offset: usize,
    },
    Punch {
        path: PathBuf,
        offset: usize,
        len: usize,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Write { path, offset, data } => {
                write!(f, "write to {} of {} bytes at {offset}", path.display(), data.len())
            }
            Operation::Set { path, name, value } => {
                write!(f, "{name} of {}, {} bytes", path.display(), value.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

pub struct TreeWorker {
    dir: PathBuf,
    rng: Rng,
    tree: Tree,
    /// The operation with an unknown outcome, and its error.
    doubt: Option<(Operation, String)>,
    done: u64,
}

impl TreeWorker {
    /// In a directory of its own below `root`.
    pub fn new(root: &Path, number: usize, seed: u64) -> Outcome<TreeWorker> {
        let dir = root.join(format!("tree {number}"));
        fs::create_dir(&dir)?;
        Ok(TreeWorker { dir, rng: Rng(seed), tree: Tree::default(), doubt: None, done: 0 })
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
    pub fn work(mut self, stop: &AtomicBool) -> TreeWorker {
        while !stop.load(Ordering::Relaxed) {
            let Some(operation) = self.draw() else { continue };
            match self.perform(&operation) {
                Ok(()) => self.take(&operation),
                Err(error) => {
                    let why = format!("{operation}: {error}");
                    self.doubt = Some((operation, why));
                    break;
                }
            }
        }
        self
    }

    fn take(&mut self, operation: &Operation) {
        self.tree.apply(operation);
        self.done += 1;
    }

    /// `None` if the drawn operation is not possible.
    fn draw(&mut self) -> Option<Operation> {
        let path = self.draw_place()?;
        let Some(inode) = self.tree.get(&path) else {
            return Some(match self.rng.below(6) {
                0 | 1 => Operation::Create { path },
                2 | 3 => Operation::MakeDirectory { path },
                4 => Operation::Symlink { path, target: self.draw_path() },
                _ => Operation::Link { from: self.draw_file()?, to: path },
            });
        };
        let (kind, attributes) = (inode.kind.clone(), inode.attributes.clone());
        match (kind, self.rng.below(10)) {
            (Kind::Directory, 0..3) => {
                self.tree.is_empty(&path).then_some(Operation::RemoveDirectory { path })
            }
            (Kind::File(_), 0) | (Kind::Symlink(_), 0..5) => Some(Operation::Remove { path }),
            (Kind::Directory, 3..5) | (Kind::File(_), 1) | (Kind::Symlink(_), _) => {
                let to = self.draw_place()?;
                self.tree.can_rename(&path, &to).then_some(Operation::Rename { from: path, to })
            }
            (Kind::Directory, 5) | (Kind::File(_), 2) => {
                let name = ATTRIBUTES[self.rng.below(ATTRIBUTES.len() as u64) as usize];
                attributes.contains_key(name.as_bytes()).then_some(Operation::Unset { path, name })
            }
            (Kind::Directory, _) | (Kind::File(_), 3) => {
                let name = ATTRIBUTES[self.rng.below(ATTRIBUTES.len() as u64) as usize];
                let len = self.rng.below(200) as usize;
                Some(Operation::Set { path, name, value: self.rng.bytes(len) })
            }
            (Kind::File(content), kind) => {
                let offset = self.rng.below(content.len() as u64 + 5000) as usize;
                let len = 1 + self.rng.below(LONGEST) as usize;
                match kind {
                    4 | 5 => Some(Operation::Punch { path, offset, len }),
                    6 | 7 => self.draw_copy(path, offset, len),
                    _ => Some(Operation::Write { path, offset, data: self.rng.bytes(len) }),
                }
            }
        }
    }

    fn draw_path(&mut self) -> PathBuf {
        (0..1 + self.rng.below(DEEPEST))
            .map(|_| NAMES[self.rng.below(NAMES.len() as u64) as usize])
            .collect()
    }

    /// A path that exists or could be created.
    fn draw_place(&mut self) -> Option<PathBuf> {
        let path = self.draw_path();
        let parent = path.parent()?;
        let is_there = parent == Path::new("")
            || self.tree.get(parent).is_some_and(|inode| inode.kind == Kind::Directory);
        is_there.then_some(path)
    }

    fn draw_file(&mut self) -> Option<PathBuf> {
        let path = self.draw_path();
        self.tree.content(&path).is_some().then_some(path)
    }

    /// A copy of an existing range of another file.
    fn draw_copy(&mut self, to: PathBuf, offset: usize, len: usize) -> Option<Operation> {
        let from = self.draw_file()?;
        let there = self.tree.content(&from)?.len();
        let at = self.rng.below(there as u64 + 1) as usize;
        let len = len.min(there - at);
        let is_other = self.tree.names.get(&from) != self.tree.names.get(&to);
        (is_other && len > 0).then_some(Operation::Copy { from, at, len, to, offset })
    }

    fn perform(&self, operation: &Operation) -> io::Result<()> {
        let at = |path: &Path| self.dir.join(path);
        let open = |path: &Path| OpenOptions::new().write(true).open(at(path));
        match operation {
            Operation::Create { path } => {
                OpenOptions::new().write(true).create_new(true).open(at(path)).map(drop)
            }
            Operation::MakeDirectory { path } => fs::create_dir(at(path)),
            Operation::Symlink { path, target } => symlink(target, at(path)),
            Operation::Link { from, to } => fs::hard_link(at(from), at(to)),
            Operation::Rename { from, to } => fs::rename(at(from), at(to)),
            Operation::Remove { path } => fs::remove_file(at(path)),
            Operation::RemoveDirectory { path } => fs::remove_dir(at(path)),
            Operation::Set { path, name, value } => xattr::set(&at(path), name, value),
            Operation::Unset { path, name } => xattr::remove(&at(path), name),
            Operation::Write { path, offset, data } => {
                open(path)?.write_all_at(data, *offset as u64)
            }
            Operation::Copy { from, at: from_offset, len, to, offset } => {
                copy(&OsFile::open(at(from))?, *from_offset, *len, &open(to)?, *offset)
            }
            Operation::Punch { path, offset, len } => punch(&open(path)?, *offset, *len),
        }
    }

    /// Compares the tree, and resolves the operation with an unknown outcome.
    pub fn verify(&mut self) -> Outcome<()> {
        let found = self.look()?;
        let doubt = self.doubt.take();
        let operations =
            doubt.iter().flat_map(|(operation, _)| self.tree.outcomes(operation, &found));
        for outcome in [None].into_iter().chain(operations.map(Some)) {
            let mut expected = self.tree.clone();
            outcome.iter().for_each(|operation| expected.apply(operation));
            if expected.shown() == found.shown() {
                outcome.iter().for_each(|operation| self.take(operation));
                return Ok(());
            }
        }
        let doubt = doubt.map_or("nothing".into(), |(_, why)| why);
        Err(Finding(format!(
            "{}: {}; in doubt: {doubt}",
            self.dir.display(),
            self.tree.differences(&found).join("; ")
        ))
        .into())
    }

    /// Reads the tree; inodes have the mount's numbers.
    fn look(&self) -> Outcome<Tree> {
        let (mut found, mut links) = (Tree::default(), BTreeMap::new());
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(self.dir.join(&dir))? {
                let path = dir.join(entry?.file_name());
                let place = self.dir.join(&path);
                let metadata = fs::symlink_metadata(&place)?;
                let kind = match metadata.file_type() {
                    kind if kind.is_dir() => Kind::Directory,
                    kind if kind.is_symlink() => Kind::Symlink(fs::read_link(&place)?),
                    _ => Kind::File(read(&place)?.0),
                };
                if kind == Kind::Directory {
                    todo.push(path.clone());
                } else {
                    links.insert(metadata.ino(), metadata.nlink());
                }
                found.inodes.insert(
                    metadata.ino(),
                    Inode { kind, attributes: xattr::all(&place, &[b"user."])? },
                );
                found.names.insert(path, metadata.ino());
            }
        }
        for (ino, links) in links {
            let names: Vec<&PathBuf> = found
                .names
                .iter()
                .filter(|(_, other)| **other == ino)
                .map(|(path, _)| path)
                .collect();
            if names.len() as u64 != links {
                return Err(Finding(format!(
                    "{}: {links} names are counted of {names:?}",
                    self.dir.display()
                ))
                .into());
            }
        }
        Ok(found)
    }
}

impl Tree {
    fn get(&self, path: &Path) -> Option<&Inode> {
        self.inodes.get(self.names.get(path)?)
    }

    fn content(&self, path: &Path) -> Option<&Vec<u8>> {
        match &self.get(path)?.kind {
            Kind::File(content) => Some(content),
            Kind::Directory | Kind::Symlink(_) => None,
        }
    }

    fn is_empty(&self, dir: &Path) -> bool {
        self.names.keys().all(|path| path == dir || !path.starts_with(dir))
    }

    /// The target does not exist, or neither source nor target is a directory.
    fn can_rename(&self, from: &Path, to: &Path) -> bool {
        let is_directory =
            |path: &Path| self.get(path).is_some_and(|inode| inode.kind == Kind::Directory);
        let replaces = self.names.contains_key(to);
        let fits = !replaces || !is_directory(from) && !is_directory(to);
        fits && !to.starts_with(from) && self.names.get(from) != self.names.get(to)
    }

    fn add(&mut self, path: &Path, kind: Kind) {
        self.last += 1;
        self.names.insert(path.to_owned(), self.last);
        self.inodes.insert(self.last, Inode { kind, attributes: BTreeMap::new() });
    }

    fn remove(&mut self, path: &Path) {
        if let Some(ino) = self.names.remove(path)
            && !self.names.values().any(|other| *other == ino)
        {
            self.inodes.remove(&ino);
        }
    }

    fn change(&mut self, path: &Path, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.names.get(path).and_then(|ino| self.inodes.get_mut(ino)) {
            change(inode);
        }
    }

    fn change_content(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        self.change(path, |inode| {
            if let Kind::File(content) = &mut inode.kind {
                change(content);
            }
        });
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { path } => self.add(path, Kind::File(Vec::new())),
            Operation::MakeDirectory { path } => self.add(path, Kind::Directory),
            Operation::Symlink { path, target } => self.add(path, Kind::Symlink(target.clone())),
            Operation::Link { from, to } => {
                if let Some(ino) = self.names.get(from) {
                    self.names.insert(to.clone(), *ino);
                }
            }
            Operation::Rename { from, to } => {
                self.remove(to);
                let moved: Vec<PathBuf> =
                    self.names.keys().filter(|path| path.starts_with(from)).cloned().collect();
                for path in moved {
                    let rest = path.strip_prefix(from).map(Path::to_owned).unwrap_or_default();
                    let place = if rest == Path::new("") { to.clone() } else { to.join(rest) };
                    let ino = self.names.remove(&path).unwrap_or_default();
                    self.names.insert(place, ino);
                }
            }
            Operation::Remove { path } | Operation::RemoveDirectory { path } => self.remove(path),
            Operation::Set { path, name, value } => {
                self.change(path, |inode| {
                    drop(inode.attributes.insert(name.as_bytes().to_vec(), value.clone()))
                });
            }
            Operation::Unset { path, name } => {
                self.change(path, |inode| drop(inode.attributes.remove(name.as_bytes())))
            }
            Operation::Write { path, offset, data } => self.change_content(path, |content| {
                if !data.is_empty() {
                    content.resize(content.len().max(offset + data.len()), 0);
                    content[*offset..offset + data.len()].copy_from_slice(data);
                }
            }),
            Operation::Copy { to, offset, .. } => {
                let data = self.written(operation);
                self.apply(&Operation::Write { path: to.clone(), offset: *offset, data });
            }
            Operation::Punch { path, offset, len } => self.change_content(path, |content| {
                let end = content.len().min(offset + len);
                content[(*offset).min(end)..end].fill(0);
            }),
        }
    }

    /// The bytes that a write, a copy or a hole puts at its offset.
    fn written(&self, operation: &Operation) -> Vec<u8> {
        match operation {
            Operation::Write { data, .. } => data.clone(),
            Operation::Copy { from, at, len, .. } => self
                .content(from)
                .and_then(|content| content.get(*at..at + len))
                .unwrap_or_default()
                .to_vec(),
            Operation::Punch { path, offset, len } => {
                let there = self
                    .content(path)
                    .and_then(|content| content.get(*offset..))
                    .unwrap_or_default();
                vec![0; there.len().min(*len)]
            }
            _ => Vec::new(),
        }
    }

    /// Possible effects of an operation without a reply.
    fn outcomes(&self, operation: &Operation, found: &Tree) -> Vec<Operation> {
        let mut possible = vec![operation.clone()];
        if let Operation::Write { path, offset, .. }
        | Operation::Copy { to: path, offset, .. }
        | Operation::Punch { path, offset, .. } = operation
        {
            // A prefix, as far as it agrees with the result.
            let data = self.written(operation);
            let there =
                found.content(path).and_then(|content| content.get(*offset..)).unwrap_or_default();
            let agreed =
                data.iter().zip(there).take_while(|(wanted, there)| wanted == there).count();
            for len in [agreed, data.len().min(there.len())] {
                possible.push(Operation::Write {
                    path: path.clone(),
                    offset: *offset,
                    data: data[..len].to_vec(),
                });
            }
        }
        possible
    }

    /// Each path with its inode and the first path of that inode.
    fn shown(&self) -> BTreeMap<&Path, (&Inode, &Path)> {
        let mut first: BTreeMap<u64, &Path> = BTreeMap::new();
        for (path, ino) in &self.names {
            first.entry(*ino).or_insert(path);
        }
        self.names
            .iter()
            .filter_map(|(path, ino)| {
                Some((path.as_path(), (self.inodes.get(ino)?, *first.get(ino)?)))
            })
            .collect()
    }

    fn differences(&self, found: &Tree) -> Vec<String> {
        let (expected, found) = (self.shown(), found.shown());
        let mut said = Vec::new();
        for (path, (inode, first)) in &expected {
            let what = match found.get(path) {
                None => "is lost",
                Some((other, _)) if other.kind != inode.kind => "holds something else",
                Some((other, _)) if other.attributes != inode.attributes => "has other attributes",
                Some((_, other)) if other != first => "is a name of something else",
                Some(_) => continue,
            };
            said.push(format!("{} {what}", path.display()));
        }
        said.extend(
            found
                .keys()
                .filter(|path| !expected.contains_key(*path))
                .map(|path| format!("{} has come back", path.display())),
        );
        said
    }
}

fn copy(from: &OsFile, at: usize, len: usize, to: &OsFile, offset: usize) -> io::Result<()> {
    let (mut at, mut offset) = (at as i64, offset as i64);
    // SAFETY: both descriptors are open, and the offsets outlive the call.
    match unsafe {
        libc::copy_file_range(from.as_raw_fd(), &mut at, to.as_raw_fd(), &mut offset, len, 0)
    } {
        copied if copied == len as isize => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        copied => Err(io::Error::other(format!("{copied} bytes are copied"))),
    }
}

fn punch(file: &OsFile, offset: usize, len: usize) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate takes plain integers, and the descriptor is open.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// Situation: the same operations on the oracle and on this machine's disk. Danger: the oracle
    /// is wrong. Expectation: it agrees with the disk, and detects every injected change.
    #[test]
    fn the_oracle_knows_what_a_file_system_does() {
        let place = Scratch::new("tree").unwrap();
        let mut worker = TreeWorker::new(&place, 0, 7).unwrap();
        while worker.done() < 2000 {
            let Some(operation) = worker.draw() else { continue };
            worker.perform(&operation).unwrap_or_else(|error| panic!("{operation}: {error}"));
            worker.take(&operation);
            if worker.done().is_multiple_of(100) {
                worker.verify().unwrap();
            }
        }
        let dir = worker.dir.clone();
        let is_finding =
            |worker: &mut TreeWorker| worker.verify().is_err_and(|error| error.is::<Finding>());
        let file = worker
            .tree
            .names
            .keys()
            .find(|path| worker.tree.content(path).is_some_and(|content| !content.is_empty()))
            .unwrap()
            .clone();
        xattr::set(&dir.join(&file), "user.other", b"").unwrap();
        assert!(is_finding(&mut worker), "an attribute");
        xattr::remove(&dir.join(&file), "user.other").unwrap();
        worker.verify().unwrap();
        punch(&OpenOptions::new().write(true).open(dir.join(&file)).unwrap(), 0, 1 << 20).unwrap();
        assert!(is_finding(&mut worker), "a hole");
    }

    impl Tree {
        /// Whether an operation without a reply may have left this content.
        fn explains(&self, operation: &Operation, path: &Path, content: &[u8]) -> bool {
            let mut found = self.clone();
            found.change_content(path, |old| *old = content.to_vec());
            self.outcomes(operation, &found).iter().any(|outcome| {
                let mut then = self.clone();
                then.apply(outcome);
                then.shown() == found.shown()
            })
        }
    }

    /// Situation: the daemon dies during a copy. Expectation: only a prefix of the copy may be
    /// present.
    #[test]
    fn of_a_copy_a_beginning_may_be_there() {
        let mut tree = Tree::default();
        let (from, to) = (PathBuf::from("a"), PathBuf::from("b"));
        for (path, data) in [(&from, b"abcdef"), (&to, b"......")] {
            tree.apply(&Operation::Create { path: path.clone() });
            tree.apply(&Operation::Write { path: path.clone(), offset: 0, data: data.to_vec() });
        }
        let copy = Operation::Copy { from, at: 1, len: 4, to: to.clone(), offset: 2 };
        assert!(
            tree.explains(&copy, &to, b"..bcde")
                && tree.explains(&copy, &to, b"..b...")
                && tree.explains(&copy, &to, b"......")
        );
        assert!(!tree.explains(&copy, &to, b"..b.d.") && !tree.explains(&copy, &to, b"x.bcde"));
    }

    /// Situation: the daemon dies while a hole across block boundaries is made. Expectation: as
    /// with a copy.
    #[test]
    fn of_a_hole_a_beginning_may_be_there() {
        let mut tree = Tree::default();
        let path = PathBuf::from("a");
        tree.apply(&Operation::Create { path: path.clone() });
        tree.apply(&Operation::Write { path: path.clone(), offset: 0, data: b"abcdef".to_vec() });
        let punch = Operation::Punch { path: path.clone(), offset: 2, len: 9 };
        for content in [&b"abcdef"[..], b"ab\0def", b"ab\0\0\0\0"] {
            assert!(tree.explains(&punch, &path, content), "{content:?}");
        }
        for content in [&b"ab\0d\0f"[..], b"ab\0\0\0\0\0", b"\0bcdef"] {
            assert!(!tree.explains(&punch, &path, content), "{content:?}");
        }
    }
}
