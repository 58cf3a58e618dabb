//! Eviction of names that the bucket represents completely.

use super::world::{Dice, World};
use ebb_model::*;
use std::collections::BTreeMap;

impl World {
    /// Evicts some names that can be, and checks that they come back unchanged, for good or only
    /// for the comparison.
    pub fn forget(&mut self, dice: &mut Dice) {
        let dir = dice.of(&self.directories()).unwrap();
        let (namespace, extents) = (self.state.namespace(), self.state.extents());
        let found =
            self.state.backing().forgettable(namespace, extents, dir, Cookie::START, usize::MAX);
        let spared = dice.below(5);
        let inos: Vec<Ino> =
            (0..).zip(found.inos).filter(|(at, _)| at % 4 != spared).map(|(_, ino)| ino).collect();
        let names: Vec<Name> =
            inos.iter().map(|ino| namespace.primary_name(*ino).unwrap().1).collect();
        for ino in &inos {
            if self.state.extents().is_stored(*ino) {
                self.apply(Command::Extent(LocalCommand::Absent { ino: *ino, first: 0, count: 1 }));
                self.stores.insert(*ino, vec![0xee; 64]);
            }
        }
        let before = self.dump_in(dir);
        self.log(BackingCommand::Forget { dir, inos: inos.clone() });
        assert!(
            inos.iter().all(|ino| self.state.namespace().inode(*ino).is_none()),
            "every evictable name is evicted"
        );
        let (forgotten, truth) = (self.state.clone(), self.truth.clone());
        for name in &names {
            self.resolve(dir, name);
        }
        let after = self.dump_in(dir);
        for name in &names {
            let path = [b"/", name.as_bytes()].concat();
            assert_eq!(after.get(&path), before.get(&path), "{name} of {dir}");
        }
        if dice.below(2) == 0 {
            (self.state, self.truth) = (forgotten, truth);
        }
    }

    fn dump_in(&self, dir: Ino) -> BTreeMap<Vec<u8>, super::seen::Seen> {
        let mut seen = BTreeMap::new();
        self.dump_below(dir, b"", &mut seen, &mut BTreeMap::new());
        seen
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl World {
    fn made(&mut self, parent: Ino, text: &str, what: Make) -> Ino {
        let ino = self.state.namespace().next_ino(parent.slot()).unwrap();
        assert!(self.mutate(Mutation::Make { parent, name: name(text), ino, mode: 0o755, what }));
        ino
    }

    fn removed(&mut self, parent: Ino, text: &str) {
        assert!(self.mutate(Mutation::Unlink { parent, name: name(text), holders: vec![] }));
    }

    /// Uploads everything; deletes stay pending.
    fn send(&mut self) {
        while let Some((_, work)) = { self.state.backing().dirty_work().next() } {
            self.begin(work);
            while !self.flights.is_empty() {
                self.advance(0);
            }
        }
    }

    fn may_go(&self, dir: Ino) -> Vec<Ino> {
        let (namespace, extents) = (self.state.namespace(), self.state.extents());
        self.state.backing().forgettable(namespace, extents, dir, Cookie::START, usize::MAX).inos
    }

    fn forget_all(&mut self, dir: Ino) {
        let inos = self.may_go(dir);
        for ino in inos
            .iter()
            .filter(|ino| self.state.extents().is_stored(**ino))
            .copied()
            .collect::<Vec<_>>()
        {
            self.apply(Command::Extent(LocalCommand::Absent { ino, first: 0, count: 1 }));
        }
        self.log(BackingCommand::Forget { dir, inos });
    }
}

/// Situation: the delete of a removed file's object is pending when its directory evicts the other
/// names. Danger: a listing requested before the delete, and received after it, restores the file.
#[test]
fn names_with_pending_deletes_do_not_come_back() {
    let mut world = World::new(false);
    let dir = world.made(Ino::ROOT, "a", Make::Directory);
    let gone = world.made(dir, "b", Make::Regular);
    world.write(gone, 0, 5);
    let stays = world.made(dir, "c", Make::Regular);
    world.write(stays, 0, 5);
    world.send();
    world.removed(dir, "b");
    world.send();
    assert_eq!(world.may_go(dir), [stays]);
    world.forget_all(dir);
    let listing = world.list(dir).unwrap();
    world.drain();
    world.install(&listing);
    while world.load_next(dir) {}
    let names: Vec<Name> = world
        .dentries()
        .into_iter()
        .filter(|(parent, ..)| *parent == dir)
        .map(|(_, name, _)| name)
        .collect();
    assert_eq!(names, [name("c")]);
}

/// Situation: a file changes, is uploaded and evicted during a listing. Danger: the listing
/// restores its old state.
#[test]
fn an_older_listing_says_nothing() {
    let mut world = World::new(true);
    while world.load_next(Ino::ROOT) {}
    let dir = world.state.namespace().dentry(Ino::ROOT, &name("d")).unwrap().ino;
    let listing = world.list(dir).unwrap();
    world.resolve(dir, &name("x"));
    let file = world.state.namespace().dentry(dir, &name("x")).unwrap().ino;
    world.write(file, 0, 9);
    world.send();
    let before = world.dump_in(dir);
    world.forget_all(dir);
    assert!(world.state.namespace().dentry(dir, &name("x")).is_none());
    world.install(&listing);
    world.resolve(dir, &name("x"));
    assert_eq!(world.dump_in(dir).get(&b"/x"[..]), before.get(&b"/x"[..]));
}

/// Situation: a directory is empty after removals, and deletes below it are pending. Danger: it is
/// evicted, and when it is loaded again the deleted objects are found in it.
#[test]
fn a_directory_with_something_to_be_deleted_stays() {
    let mut world = World::new(false);
    let dir = world.made(Ino::ROOT, "a", Make::Directory);
    let below = world.made(dir, "b", Make::Directory);
    let file = world.made(below, "c", Make::Regular);
    world.write(file, 0, 5);
    world.send();
    world.removed(below, "c");
    world.send();
    assert_eq!(world.may_go(dir), []);
    world.drain();
    assert_eq!(world.may_go(dir), [below]);
}

/// A name with changes that the bucket does not have, or cannot represent, is not evicted.
#[test]
fn names_missing_from_the_bucket_are_not_evicted() {
    let mut world = World::new(false);
    let dir = world.made(Ino::ROOT, "a", Make::Directory);
    let file = world.made(dir, "b", Make::Regular);
    world.write(file, 0, 5);
    assert_eq!(world.may_go(dir), [], "nothing has been sent");
    world.send();
    assert_eq!(world.may_go(dir), [file]);
    assert_eq!(world.may_go(Ino::ROOT), [], "there is something in it");
    world.write(file, 5, 5);
    assert_eq!(world.may_go(dir), [], "it is dirty");
    world.send();
    assert!(world.mutate(Mutation::Link { ino: file, parent: Ino::ROOT, name: name("c") }));
    world.send();
    assert_eq!(world.may_go(dir), [], "it has another name");
    world.removed(Ino::ROOT, "c");
    world.send();
    let pin = |value: &'static [u8]| Mutation::SetXattr {
        ino: dir,
        name: PIN.into(),
        value: value.into(),
        mode: XattrMode::Set,
    };
    assert!(world.mutate(pin(b"1")));
    world.send();
    assert_eq!(world.may_go(dir), [], "it is pinned");
    assert!(world.mutate(Mutation::RemoveXattr { ino: dir, name: PIN.into() }));
    world.send();
    assert_eq!(world.may_go(dir), [file]);
    let limits = Some(QuotaLimits { bytes: Some(1 << 20), inodes: None });
    world.apply(Command::Quota { dir: Ino::ROOT, limits, stamp: world.stamp() });
    world.send();
    assert_eq!(world.may_go(dir), [], "it has been counted");
}
