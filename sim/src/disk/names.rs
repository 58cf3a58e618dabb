//! The names of a data directory, as the process sees them and as the platter has them.

use super::cache::{CachedFile, CutMode, Stored};
use crate::rng::Rng;
use ebb_ports::DiskError;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub(crate) type CachedRef = Rc<RefCell<CachedFile>>;

type DirId = u64;
type Key = (DirId, String);

enum Node<File> {
    File(File),
    Dir(DirId),
}

/// Current names, durable names, and the changes between them that no [`Names::sync_dir`] has
/// forced yet, oldest first.
///
/// Laws: a power cut keeps or drops a change as a whole. A force of one of the two directories of a
/// rename forces that half only, since the port promises no more. A name is lost with its
/// directory.
pub(crate) struct Names {
    visible: BTreeMap<Key, Node<CachedRef>>,
    durable: BTreeMap<Key, Node<Rc<Stored>>>,
    pending: Vec<Change>,
    next_id: u64,
}

/// New values of some names; `None` removes a name.
type Change = Vec<(Key, Option<Node<Rc<Stored>>>)>;

impl Names {
    pub(crate) fn new() -> Names {
        Names {
            visible: BTreeMap::new(),
            durable: BTreeMap::new(),
            pending: Vec::new(),
            next_id: ROOT + 1,
        }
    }

    pub(crate) fn file(&self, path: &str) -> Result<CachedRef, DiskError> {
        match self.visible.get(&self.key(path)?) {
            Some(Node::File(file)) => Ok(file.clone()),
            Some(Node::Dir(_)) => Err(failed(path, "is a directory")),
            None => Err(not_found(path)),
        }
    }

    pub(crate) fn exists(&self, path: &str) -> Result<bool, DiskError> {
        Ok(self.visible.contains_key(&self.key(path)?))
    }

    pub(crate) fn create_file(
        &mut self,
        path: &str,
        used_bytes: &Rc<Cell<u64>>,
    ) -> Result<CachedRef, DiskError> {
        let key = self.key(path)?;
        let stored = Rc::new(Stored {
            id: self.take_id(),
            content: RefCell::default(),
            spoiled: RefCell::default(),
        });
        let file = Rc::new(RefCell::new(CachedFile::new(stored, used_bytes.clone())));
        self.change([(key, Some(Node::File(file.clone())))]);
        Ok(file)
    }

    pub(crate) fn create_dir(&mut self, path: &str) -> Result<(), DiskError> {
        let mut dir = ROOT;
        for name in parts(path)? {
            let key = (dir, name.to_owned());
            dir = match self.visible.get(&key) {
                Some(Node::Dir(id)) => *id,
                Some(Node::File(_)) => return Err(failed(path, "is not a directory")),
                None => {
                    let id = self.take_id();
                    self.change([(key, Some(Node::Dir(id)))]);
                    id
                }
            };
        }
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let (from_key, to_key) = (self.key(from)?, self.key(to)?);
        let moved = match (self.visible.get(&from_key), self.visible.get(&to_key)) {
            (None, _) => return Err(not_found(from)),
            (Some(Node::File(_)), Some(Node::Dir(_))) => return Err(failed(to, "is a directory")),
            (Some(Node::Dir(_)), Some(_)) => {
                return Err(failed(to, "is in the way of a directory"));
            }
            (Some(Node::Dir(id)), None) if self.is_within(to_key.0, *id) => {
                return Err(failed(to, "lies within the directory moved"));
            }
            (Some(Node::Dir(id)), None) => Node::Dir(*id),
            (Some(Node::File(file)), _) => Node::File(file.clone()),
        };
        if from_key != to_key {
            self.change([(from_key, None), (to_key, Some(moved))]);
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &str) -> Result<(), DiskError> {
        self.file(path)?;
        let key = self.key(path)?;
        self.change([(key, None)]);
        Ok(())
    }

    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, DiskError> {
        match self.dir(path)? {
            Some(dir) => {
                Ok(in_dir(&self.visible, dir).map(|((_, name), _)| name.clone()).collect())
            }
            None => Ok(Vec::new()),
        }
    }

    pub(crate) fn sync_dir(&mut self, path: &str) -> Result<(), DiskError> {
        let dir = self.dir(path)?.ok_or_else(|| not_found(path))?;
        for change in &mut self.pending {
            for (key, node) in change.extract_if(.., |(key, _)| key.0 == dir) {
                put(&mut self.durable, key, node);
            }
        }
        self.pending.retain(|change| !change.is_empty());
        Ok(())
    }

    /// Settles all that was not forced and begins again from the platter, with an empty cache.
    pub(crate) fn power_cut(&mut self, rng: &Rng, mode: CutMode) -> Rc<Cell<u64>> {
        for node in self.visible.values() {
            if let Node::File(file) = node {
                file.borrow_mut().settle(rng, mode);
            }
        }
        for change in std::mem::take(&mut self.pending) {
            if mode.choose(rng, 2) == 1 {
                change.into_iter().for_each(|(key, node)| put(&mut self.durable, key, node));
            }
        }
        self.reload()
    }

    /// Files by path, in path order.
    pub(crate) fn files(&self) -> Vec<(String, CachedRef)> {
        let mut found = Vec::new();
        let mut dirs = vec![(ROOT, String::new())];
        while let Some((dir, prefix)) = dirs.pop() {
            for ((_, name), node) in in_dir(&self.visible, dir) {
                match node {
                    Node::File(file) => found.push((format!("{prefix}{name}"), file.clone())),
                    Node::Dir(id) => dirs.push((*id, format!("{prefix}{name}/"))),
                }
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Drops durable names that cannot be reached and makes the rest visible.
    fn reload(&mut self) -> Rc<Cell<u64>> {
        let used_bytes = Rc::new(Cell::new(0));
        let mut files: BTreeMap<u64, CachedRef> = BTreeMap::new();
        let mut reached = BTreeSet::from([ROOT]);
        let mut dirs = vec![ROOT];
        self.visible.clear();
        while let Some(dir) = dirs.pop() {
            for (key, node) in in_dir(&self.durable, dir) {
                let node = match node {
                    Node::Dir(id) => {
                        if reached.insert(*id) {
                            dirs.push(*id);
                        }
                        Node::Dir(*id)
                    }
                    Node::File(stored) => {
                        let cached = || {
                            Rc::new(RefCell::new(CachedFile::new(
                                stored.clone(),
                                used_bytes.clone(),
                            )))
                        };
                        Node::File(files.entry(stored.id).or_insert_with(cached).clone())
                    }
                };
                self.visible.insert(key.clone(), node);
            }
        }
        self.durable.retain(|(dir, _), _| reached.contains(dir));
        used_bytes
    }

    fn change<const N: usize>(&mut self, entries: [(Key, Option<Node<CachedRef>>); N]) {
        let mut change = Change::new();
        for (key, node) in entries {
            let durable = node.as_ref().map(|node| match node {
                Node::File(file) => Node::File(file.borrow().stored.clone()),
                Node::Dir(id) => Node::Dir(*id),
            });
            change.push((key.clone(), durable));
            put(&mut self.visible, key, node);
        }
        self.pending.push(change);
    }

    /// The key of a path. The path's directory must exist.
    fn key(&self, path: &str) -> Result<Key, DiskError> {
        let mut names = parts(path)?;
        let name = names.pop().ok_or_else(|| failed(path, "names no file"))?;
        let dir = self.walk(path, &names)?.ok_or_else(|| not_found(path))?;
        Ok((dir, name.to_owned()))
    }

    fn dir(&self, path: &str) -> Result<Option<DirId>, DiskError> {
        self.walk(path, &parts(path)?)
    }

    fn walk(&self, path: &str, names: &[&str]) -> Result<Option<DirId>, DiskError> {
        let mut dir = ROOT;
        for name in names {
            match self.visible.get(&(dir, (*name).to_owned())) {
                Some(Node::Dir(id)) => dir = *id,
                Some(Node::File(_)) => return Err(failed(path, "is not a directory")),
                None => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    fn is_within(&self, dir: DirId, ancestor: DirId) -> bool {
        let mut below = vec![ancestor];
        while let Some(at) = below.pop() {
            if at == dir {
                return true;
            }
            below.extend(
                in_dir(&self.visible, at).filter_map(|(_, node)| {
                    if let Node::Dir(id) = node { Some(*id) } else { None }
                }),
            );
        }
        false
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

fn in_dir<File>(
    names: &BTreeMap<Key, Node<File>>,
    dir: DirId,
) -> impl Iterator<Item = (&Key, &Node<File>)> {
    names.range((dir, String::new())..(dir + 1, String::new()))
}

fn put<File>(names: &mut BTreeMap<Key, Node<File>>, key: Key, node: Option<Node<File>>) {
    match node {
        Some(node) => names.insert(key, node),
        None => names.remove(&key),
    };
}

/// The names of a relative path; the data directory itself is the empty path.
fn parts(path: &str) -> Result<Vec<&str>, DiskError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = path.split('/').collect();
    if names
        .iter()
        .any(|name| name.is_empty() || *name == "." || *name == ".." || name.contains('\0'))
    {
        return Err(failed(path, "is not a relative path"));
    }
    Ok(names)
}

fn not_found(path: &str) -> DiskError {
    DiskError::NotFound { path: path.to_owned() }
}

pub(crate) fn failed(path: &str, what: &str) -> DiskError {
    DiskError::Failed { path: path.to_owned(), what: what.to_owned() }
}

const ROOT: DirId = 0;
