//! Unresolved links: names of inodes that records list and that are not loaded.

use super::observe::first_name;
use crate::tree::Tree;
use ebb_model::{Ino, Name};

/// Inode, directory and name, with the position in the inode's record.
#[derive(Clone, Default)]
pub(super) struct UnresolvedLinks(Tree<(Ino, Ino, Name), u32>);

impl UnresolvedLinks {
    pub fn memory_bytes(&self) -> usize {
        self.0.bytes()
    }

    pub fn has(&self, ino: Ino) -> bool {
        self.range(ino).next().is_some()
    }

    /// In the order of the record.
    pub fn of(&self, ino: Ino) -> Vec<(Ino, Name)> {
        let mut names: Vec<_> =
            self.range(ino).map(|((_, dir, name), order)| (order, (dir, name))).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    pub fn contains(&self, ino: Ino, dir: Ino, name: &Name) -> bool {
        self.0.contains_key(&(ino, dir, name.clone()))
    }

    pub fn insert(&mut self, ino: Ino, names: &[(Ino, Name)]) {
        for (order, (dir, name)) in (0..).zip(names) {
            self.0.insert(&(ino, *dir, name.clone()), &order);
        }
    }

    /// Returns false if it did not exist.
    pub fn remove(&mut self, ino: Ino, dir: Ino, name: &Name) -> bool {
        self.0.remove(&(ino, dir, name.clone())).is_some()
    }

    pub fn forget(&mut self, ino: Ino) {
        for (dir, name) in self.of(ino) {
            self.remove(ino, dir, &name);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ino, Ino, Name)> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Each inode with unresolved links.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        let mut last = None;
        self.iter().filter_map(move |(ino, ..)| (last.replace(ino) != Some(ino)).then_some(ino))
    }

    fn range(&self, ino: Ino) -> impl Iterator<Item = ((Ino, Ino, Name), u32)> {
        self.0.range((ino, Ino(0), first_name())..).take_while(move |((of, ..), _)| *of == ino)
    }
}
