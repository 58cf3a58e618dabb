//! As many names as a file can have, in one directory over a bucket. What one of them costs does
//! not grow with how many there are, or this takes minutes.

use ebb_core::backing::{Listing, Scope};
use ebb_core::partition::Partition;
use ebb_model::*;

const SESSION: SessionId = SessionId(1);

struct Volume {
    partition: Partition,
    sequence: u64,
}

impl Volume {
    fn new() -> Volume {
        let time = Time::from_secs(1);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let root = InstalledRecord { mode: 0o755, nlink: 2, uid: 0, gid: 0, atime, mtime, ctime, btime, xattrs: vec![], links: vec![] };
        let mut volume = Volume { partition: Partition::new(Incarnation(1), root, true), sequence: 0 };
        volume.apply(&Command::SessionOpen { session: SESSION, client: "test".into(), replaces: None });
        volume
    }

    fn apply(&mut self, command: &Command) -> Option<Result<Mutated, RpcError>> {
        let next = LogIndex(self.partition.applied().0 + 1);
        self.partition.apply(next, command).answer
    }

    fn mutate(&mut self, mutation: Mutation) -> Mutated {
        self.sequence += 1;
        let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
        let stamp = Stamp { time: Time::from_secs(self.sequence as i64), version: self.partition.next_version() };
        let command = Command::Client { tx, caller: Caller::ROOT, stamp, mutation };
        self.apply(&command).expect("a mutation is answered").expect("nothing is wrong with it")
    }

    fn make(&mut self, parent: Ino, name: Name, what: Make) -> Ino {
        let ino = self.partition.namespace().next_ino(parent);
        self.mutate(Mutation::Make { parent, name, ino, mode: 0o755, what });
        ino
    }
}

fn name(number: u32) -> Name {
    Name::new(format!("name-{number}").as_bytes()).expect("a good name")
}

#[test]
fn no_name_costs_as_much_as_all_before() {
    let mut volume = Volume::new();
    let dir = volume.make(Ino::ROOT, name(0), Make::Directory);
    let ino = volume.make(dir, name(1), Make::Regular);
    for number in 2..=MAX_LINKS {
        volume.mutate(Mutation::Link { ino, parent: dir, name: name(number) });
    }
    assert_eq!(volume.partition.namespace().attr(ino).map(|attr| attr.nlink), Ok(MAX_LINKS));
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    for number in 1..=MAX_LINKS {
        volume.mutate(Mutation::Unlink { parent: dir, name: name(number), holders: vec![] });
    }
    assert_eq!(volume.partition.namespace().attr(ino), Err(FsError::Stale));
    assert_eq!(volume.partition.check(), Vec::<String>::new());
}

/// Situation: a node that has nothing but the bucket loads many names of one inode, in pieces.
/// Danger: the page is as long as the square of what it is about. Expectation: it tells all names
/// once, and all of them are found.
#[test]
fn a_page_tells_all_names_once() {
    const NAMES: u32 = 10_000;
    const PIECE: usize = 3000;
    let mut volume = Volume::new();
    let ino = volume.make(Ino::ROOT, name(1), Make::Special { kind: FileKind::Fifo, rdev: 0 });
    for number in 2..=NAMES {
        volume.mutate(Mutation::Link { ino, parent: Ino::ROOT, name: name(number) });
    }
    let page = volume.partition.backing().page(volume.partition.namespace(), Ino::ROOT, None).expect("the root has a page");
    assert_eq!(page.entries.len(), NAMES as usize);
    let links = |entry: &Installed| entry.record.as_ref().map_or(0, |record| record.links.len());
    assert_eq!(page.entries.iter().map(links).sum::<usize>(), NAMES as usize + (NAMES as usize - 1));

    let mut cold = Volume::new();
    let mut after: Option<Name> = None;
    loop {
        let (backing, namespace) = (cold.partition.backing(), cold.partition.namespace());
        let epoch = backing.load_epoch(Ino::ROOT).expect("it is a directory of the bucket");
        let listing = Listing { dir: Ino::ROOT, entries: &[], page: Some(&page), scope: Scope::First, after: after.as_ref() };
        let mut entries = backing.interpret(namespace, &listing, || unreachable!("its id is on record")).entries;
        let more = entries.len() > PIECE;
        entries.truncate(PIECE);
        after = entries.last().map(|entry| entry.name.clone());
        let progress = if more { LoadProgress::Unchanged } else { LoadProgress::Complete };
        let stamp = Stamp { time: Time::from_secs(1), version: cold.partition.next_version() };
        let install = BackingCommand::Install { dir: Ino::ROOT, epoch, entries, hidden: vec![], owner: (0, 0), progress, stamp };
        assert_eq!(cold.apply(&Command::Backing(install)), None);
        if !more {
            break;
        }
        // Nobody changes the inode before all its names are here.
        assert!(!cold.partition.backing().unseen_names(ino).is_empty());
    }
    let (backing, namespace) = (cold.partition.backing(), cold.partition.namespace());
    assert_eq!(backing.unseen_names(ino), []);
    assert_eq!(namespace.attr(ino).map(|attr| attr.nlink), Ok(NAMES));
    assert_eq!(namespace.primary_name(ino), Some((Ino::ROOT, name(1))));
    assert!((1..=NAMES).all(|number| namespace.dentry(Ino::ROOT, &name(number)).is_some_and(|dentry| dentry.ino == ino)));
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}
