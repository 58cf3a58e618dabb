//! Current names, forced names, and the changes between them.

use super::fate::Fate;
use super::{Lost, ROOT};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

pub type Id = u64;

/// A name in a directory.
pub type Key = (Id, OsString);

/// Laws: a power cut keeps an unforced change completely or not at all, in any order. A force of
/// one of the two directories of a rename forces that half only. A name is lost with its directory.
#[derive(Default)]
pub struct Names {
    visible: BTreeMap<Key, Id>,
    stored: BTreeMap<Key, Id>,
    changes: Vec<Change>,
}

struct Change {
    time: u64,
    /// `None` removes the name.
    sets: Vec<(Key, Option<Id>)>,
}

impl Names {
    pub fn get(&self, dir: Id, name: &OsStr) -> Option<Id> {
        self.visible.get(&(dir, name.to_owned())).copied()
    }

    pub fn list(&self, dir: Id) -> Vec<(OsString, Id)> {
        let names = self.visible.range((dir, OsString::new())..(dir + 1, OsString::new()));
        names.map(|((_, name), id)| (name.clone(), *id)).collect()
    }

    pub fn change(&mut self, time: u64, sets: Vec<(Key, Option<Id>)>) {
        sets.iter().for_each(|(key, id)| put(&mut self.visible, key, *id));
        self.changes.push(Change { time, sets });
    }

    /// Forces the names in this directory.
    pub fn force(&mut self, dir: Id) {
        for change in &mut self.changes {
            for (key, id) in change.sets.extract_if(.., |(key, _)| key.0 == dir) {
                put(&mut self.stored, &key, id);
            }
        }
        self.changes.retain(|change| !change.sets.is_empty());
    }

    /// Applies a power cut: afterwards only surviving names exist, and count as forced.
    pub fn settle(&mut self, fate: &mut Fate, lost: &mut Lost) {
        for change in std::mem::take(&mut self.changes) {
            lost.names += 1;
            if fate.keeps_name(change.time) {
                change.sets.iter().for_each(|(key, id)| put(&mut self.stored, key, *id));
            } else {
                lost.names_lost += 1;
            }
        }
        let reached = self.reached();
        self.stored.retain(|(dir, _), _| reached.contains(dir));
        self.visible = self.stored.clone();
    }

    /// All inodes that are reachable by forced names, and the root.
    pub fn reached(&self) -> BTreeSet<Id> {
        let mut reached = BTreeSet::from([ROOT]);
        let mut ways = vec![ROOT];
        while let Some(dir) = ways.pop() {
            let names = self.stored.range((dir, OsString::new())..(dir + 1, OsString::new()));
            ways.extend(names.map(|(_, id)| *id).filter(|id| reached.insert(*id)));
        }
        reached
    }
}

fn put(names: &mut BTreeMap<Key, Id>, key: &Key, id: Option<Id>) {
    match id {
        Some(id) => names.insert(key.clone(), id),
        None => names.remove(key),
    };
}
