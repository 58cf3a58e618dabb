//! The sequential file system: for a state and an operation, the permitted outcomes and the next
//! state.
//!
//! A state can also be that of a part of a file system. What it has no fact of has its initial
//! value: a name is free, a file is empty and has no name, a directory exists.

use crate::history::{Data, Errno, InodeId, Kind, Name, Op, Outcome, Owner};
use std::collections::{BTreeMap, BTreeSet};

/// The tree of a history at one moment. Laws: `links` of a file is the number of its names in
/// `names`; `locks` has no exclusive holder beside another one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    names: BTreeMap<(InodeId, Name), Entry>,
    files: BTreeMap<InodeId, File>,
    locks: BTreeMap<InodeId, BTreeMap<Owner, bool>>,
    /// Directories that were removed.
    removed: BTreeSet<InodeId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Entry {
    inode: InodeId,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct File {
    links: u32,
    data: Data,
}

/// The permitted outcomes of an operation in a state.
#[derive(Debug)]
pub struct Reply {
    /// With its change, if it has one.
    outcome: Option<Outcome>,
    errors: &'static [Errno],
}

impl Reply {
    fn success(outcome: Outcome) -> Reply {
        Reply { outcome: Some(outcome), errors: &[] }
    }

    fn errors(errors: &'static [Errno]) -> Reply {
        Reply { outcome: None, errors }
    }

    /// All permitted outcomes; the success first.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        self.outcome.iter().cloned().chain(self.errors.iter().map(|errno| Outcome::Error(*errno)))
    }

    pub fn permits(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Error(errno) => self.errors.contains(errno),
            _ => self.outcome.as_ref() == Some(outcome),
        }
    }
}

/// Of an operation in a removed directory.
const IN_REMOVED: &[Errno] = &[Errno::ENOENT, Errno::ESTALE];

impl State {
    /// The state after an answered operation, or `None` if its outcome is not permitted. An inode
    /// gets the id `created` if the outcome does not have its number.
    pub fn accept(
        &self,
        owner: Owner,
        op: &Op,
        outcome: &Outcome,
        created: InodeId,
    ) -> Option<State> {
        let mut next = self.clone();
        let number = match outcome {
            Outcome::Inode { inode, .. } | Outcome::Attributes { inode, .. } => *inode,
            _ => created,
        };
        if let Op::Open { dir, name } | Op::Stat { dir, name } = op {
            next.identify(*dir, name, number);
        }
        next.perform(owner, op, number).permits(outcome).then_some(next)
    }

    /// The state after a successful operation whose outcome is unknown. A created inode gets the
    /// id `created`. `None` if the operation changes nothing.
    pub fn assume(&self, owner: Owner, op: &Op, created: InodeId) -> Option<State> {
        let mut next = self.clone();
        next.perform(owner, op, created);
        (next != *self).then_some(next)
    }

    /// Gives the inode at a name its number, if its creation did not return it.
    fn identify(&mut self, dir: InodeId, name: &Name, number: InodeId) {
        let Some(Entry { inode: placeholder, .. }) = self.entry(dir, name) else { return };
        let is_used = self.files.contains_key(&number)
            || self.removed.contains(&number)
            || self.names.iter().any(|((dir, _), entry)| *dir == number || entry.inode == number);
        if !placeholder.is_placeholder() || is_used {
            return;
        }
        for entry in self.names.values_mut().filter(|entry| entry.inode == placeholder) {
            entry.inode = number;
        }
        if let Some(file) = self.files.remove(&placeholder) {
            self.files.insert(number, file);
        }
    }

    /// Performs an operation. A created inode gets the id `created`.
    pub fn perform(&mut self, owner: Owner, op: &Op, created: InodeId) -> Reply {
        match op {
            Op::Create { dir, name } => self.create(*dir, name, created, Kind::File),
            Op::Mkdir { dir, name } => self.create(*dir, name, created, Kind::Directory),
            Op::Open { dir, name } => self.lookup(*dir, name, |_, entry| Outcome::Inode {
                inode: entry.inode,
                kind: entry.kind,
            }),
            Op::Stat { dir, name } => {
                self.lookup(*dir, name, |state, entry| state.attributes(entry.inode, entry.kind))
            }
            Op::Unlink { dir, name } => self.unlink(*dir, name),
            Op::Rmdir { dir, name } => self.rmdir(*dir, name),
            Op::Rename { from_dir, from, to_dir, to } => self.rename(*from_dir, from, *to_dir, to),
            Op::Link { inode, dir, name } => self.link(*inode, *dir, name),
            Op::Fstat { inode } => Reply::success(self.attributes(*inode, Kind::File)),
            Op::List { inode } => self.list(*inode),
            Op::Read { inode, at, cells } => {
                let data = self.files.get(inode).map(|file| file.data.slice(*at, *cells));
                Reply::success(Outcome::Data(data.unwrap_or_default()))
            }
            Op::Write { inode, at, cells, token } => {
                self.file(*inode).data.overwrite(*at, *cells, *token);
                Reply::success(Outcome::Done)
            }
            Op::Append { inode, cells, token } => {
                self.file(*inode).data.push(*token, *cells);
                Reply::success(Outcome::Done)
            }
            Op::Truncate { inode, cells } => {
                self.file(*inode).data.resize(*cells);
                Reply::success(Outcome::Done)
            }
            Op::Lock { inode, exclusive } => self.lock(owner, *inode, *exclusive),
            Op::Unlock { inode } => self.unlock(owner, *inode),
        }
    }

    fn entry(&self, dir: InodeId, name: &Name) -> Option<Entry> {
        self.names.get(&(dir, name.clone())).copied()
    }

    fn file(&mut self, inode: InodeId) -> &mut File {
        self.files.entry(inode).or_default()
    }

    fn attributes(&self, inode: InodeId, kind: Kind) -> Outcome {
        let (cells, links) =
            self.files.get(&inode).map_or((0, 0), |file| (file.data.len(), file.links));
        Outcome::Attributes { inode, kind, cells, links }
    }

    fn create(&mut self, dir: InodeId, name: &Name, inode: InodeId, kind: Kind) -> Reply {
        if self.removed.contains(&dir) {
            return Reply::errors(IN_REMOVED);
        }
        if self.entry(dir, name).is_some() {
            return Reply::errors(&[Errno::EEXIST]);
        }
        self.names.insert((dir, name.clone()), Entry { inode, kind });
        if kind == Kind::File {
            self.file(inode).links = 1;
        }
        match kind {
            Kind::File => Reply::success(Outcome::Inode { inode, kind }),
            Kind::Directory => Reply::success(Outcome::Done),
        }
    }

    fn lookup(
        &self,
        dir: InodeId,
        name: &Name,
        outcome: impl FnOnce(&State, Entry) -> Outcome,
    ) -> Reply {
        match self.entry(dir, name) {
            Some(entry) => Reply::success(outcome(self, entry)),
            None if self.removed.contains(&dir) => Reply::errors(IN_REMOVED),
            None => Reply::errors(&[Errno::ENOENT]),
        }
    }

    fn unlink(&mut self, dir: InodeId, name: &Name) -> Reply {
        match self.entry(dir, name) {
            None if self.removed.contains(&dir) => Reply::errors(IN_REMOVED),
            None => Reply::errors(&[Errno::ENOENT]),
            Some(Entry { kind: Kind::Directory, .. }) => Reply::errors(&[Errno::EISDIR]),
            Some(Entry { inode, .. }) => {
                self.names.remove(&(dir, name.clone()));
                self.file(inode).links -= 1;
                Reply::success(Outcome::Done)
            }
        }
    }

    fn is_empty(&self, dir: InodeId) -> bool {
        self.names_of(dir).next().is_none()
    }

    fn names_of(&self, dir: InodeId) -> impl Iterator<Item = &Name> {
        let from = (dir, Name::from(""));
        self.names
            .range(from..)
            .map(|(key, _)| key)
            .take_while(move |key| key.0 == dir)
            .map(|k| &k.1)
    }

    fn rmdir(&mut self, dir: InodeId, name: &Name) -> Reply {
        match self.entry(dir, name) {
            None if self.removed.contains(&dir) => Reply::errors(IN_REMOVED),
            None => Reply::errors(&[Errno::ENOENT]),
            Some(Entry { kind: Kind::File, .. }) => Reply::errors(&[Errno::ENOTDIR]),
            Some(Entry { inode, .. }) if !self.is_empty(inode) => {
                Reply::errors(&[Errno::ENOTEMPTY, Errno::EEXIST])
            }
            Some(Entry { inode, .. }) => {
                self.names.remove(&(dir, name.clone()));
                self.removed.insert(inode);
                Reply::success(Outcome::Done)
            }
        }
    }

    fn rename(&mut self, from_dir: InodeId, from: &Name, to_dir: InodeId, to: &Name) -> Reply {
        let source = match self.entry(from_dir, from) {
            Some(source) if !self.removed.contains(&to_dir) => source,
            None if !self.removed.contains(&from_dir) && !self.removed.contains(&to_dir) => {
                return Reply::errors(&[Errno::ENOENT]);
            }
            _ => return Reply::errors(IN_REMOVED),
        };
        let is_directory = source.kind == Kind::Directory;
        if is_directory && self.is_within(to_dir, source.inode) {
            return Reply::errors(&[Errno::EINVAL]);
        }
        match (self.entry(to_dir, to), is_directory) {
            (Some(target), _) if target.inode == source.inode => {
                return Reply::success(Outcome::Done);
            }
            (Some(Entry { kind: Kind::Directory, .. }), false) => {
                return Reply::errors(&[Errno::EISDIR]);
            }
            (Some(Entry { kind: Kind::File, .. }), true) => {
                return Reply::errors(&[Errno::ENOTDIR]);
            }
            (Some(target), true) if !self.is_empty(target.inode) => {
                return Reply::errors(&[Errno::ENOTEMPTY, Errno::EEXIST]);
            }
            (Some(target), true) => drop(self.removed.insert(target.inode)),
            (Some(target), false) => self.file(target.inode).links -= 1,
            (None, _) => {}
        }
        self.names.remove(&(from_dir, from.clone()));
        self.names.insert((to_dir, to.clone()), source);
        Reply::success(Outcome::Done)
    }

    /// Whether `dir` is `ancestor` or below it.
    fn is_within(&self, mut dir: InodeId, ancestor: InodeId) -> bool {
        while dir != ancestor {
            match self.names.iter().find(|(_, entry)| entry.inode == dir) {
                Some(((parent, _), _)) => dir = *parent,
                None => return false,
            }
        }
        true
    }

    fn link(&mut self, inode: InodeId, dir: InodeId, name: &Name) -> Reply {
        let is_named = self.files.get(&inode).is_some_and(|file| file.links > 0);
        match (self.entry(dir, name), is_named) {
            (Some(_), true) => Reply::errors(&[Errno::EEXIST]),
            (Some(_), false) => Reply::errors(&[Errno::EEXIST, Errno::ENOENT, Errno::ESTALE]),
            (None, true) if !self.removed.contains(&dir) => {
                self.names.insert((dir, name.clone()), Entry { inode, kind: Kind::File });
                self.file(inode).links += 1;
                Reply::success(Outcome::Done)
            }
            (None, _) => Reply::errors(IN_REMOVED),
        }
    }

    /// A removed directory that is open has no names, or cannot be listed.
    fn list(&self, inode: InodeId) -> Reply {
        let names = Outcome::Names(self.names_of(inode).cloned().collect());
        let errors = if self.removed.contains(&inode) { IN_REMOVED } else { &[] };
        Reply { outcome: Some(names), errors }
    }

    fn lock(&mut self, owner: Owner, inode: InodeId, exclusive: bool) -> Reply {
        let holders = self.locks.entry(inode).or_default();
        let conflict = holders
            .iter()
            .any(|(holder, exclusively)| *holder != owner && (exclusive || *exclusively));
        if conflict {
            return Reply::errors(&[Errno::EAGAIN]);
        }
        holders.insert(owner, exclusive);
        Reply::success(Outcome::Done)
    }

    fn unlock(&mut self, owner: Owner, inode: InodeId) -> Reply {
        if let Some(holders) = self.locks.get_mut(&inode) {
            holders.remove(&owner);
        }
        Reply::success(Outcome::Done)
    }
}
