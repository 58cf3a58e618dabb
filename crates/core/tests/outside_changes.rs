//! Changes of other writers to the bucket, refused mutations, and volumes without a bucket.

mod staging;

use ebb_core::backing::{BackingItem, FlushStep, PageStep};
use ebb_core::byte_map::{ByteOrigin, Segment};
use ebb_core::partition::{Partition, SnapshotItem};
use ebb_core::state::{Applied, State};
use ebb_model::*;
use staging::staged;

struct Node {
    state: State,
    sequence: u64,
}

const FILE: Ino = Ino(1 << 48 | 100);
const DIR: Ino = Ino(1 << 48 | 101);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn record() -> InstalledRecord {
    let time = Time::from_secs(1);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord {
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: vec![],
        links: vec![],
    }
}

fn found(name: Name, ino: Ino, what: InstalledKind) -> Installed {
    Installed { name, ino, what, record: None }
}

fn object(etag: &str, len_bytes: u64) -> InstalledKind {
    InstalledKind::Object { key: None, etag: etag.into(), len_bytes, modified: Time::from_secs(2) }
}

impl Node {
    fn new(backed: bool) -> Node {
        let mut node = Node {
            state: State::of(Partition::new(IdRange::whole(IdEpoch(1)), record(), backed)),
            sequence: 0,
        };
        node.apply(Command::SessionOpen {
            session: SessionId(1),
            client: "test".into(),
            replaces: None,
        });
        node
    }

    /// The root has the file `f` of 10 bytes and the directory `d`; the bucket can have more names.
    fn with_names() -> Node {
        let mut node = Node::new(true);
        let dir = InstalledKind::Directory { prefix: None, page: false };
        let entries = vec![found(name("d"), DIR, dir), found(name("f"), FILE, object("e1", 10))];
        node.install(Ino::ROOT, entries, LoadProgress::UpTo("f".into()));
        node
    }

    fn apply(&mut self, command: Command) -> Applied {
        for staged in staged(&command, None) {
            self.state.stage(&staged);
        }
        let index = LogIndex(self.state.applied().0 + 1);
        let applied = self.state.apply(index, &command);
        assert_eq!(self.state.check(), Vec::<String>::new(), "after {command:?}");
        applied
    }

    fn log(&mut self, command: BackingCommand) -> Applied {
        self.apply(Command::Backing(command))
    }

    fn stamp(&self) -> Stamp {
        Stamp { time: Time::from_secs(9), version: self.state.next_version() }
    }

    fn install(&mut self, dir: Ino, entries: Vec<Installed>, progress: LoadProgress) {
        let stamp = self.stamp();
        self.log(BackingCommand::Install {
            dir,
            epoch: 0,
            entries,
            hidden: vec![],
            owner: (0, 0),
            progress,
            stamp,
        });
    }

    fn mutate(&mut self, mutation: Mutation) -> Result<(), FsError> {
        self.sequence += 1;
        let tx = TxId { session: SessionId(1), slot: 0, sequence: self.sequence };
        let stamp = self.stamp();
        match self
            .apply(Command::Client { tx, caller: Caller::ROOT, stamp, mutation })
            .answer
            .unwrap()
        {
            Ok(_) => Ok(()),
            Err(RpcError::Refused(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, offset: u64, len_bytes: u64) {
        self.mutate(Mutation::Write { ino: FILE, offset, len_bytes, drop_set_id: false }).unwrap();
    }

    fn size(&self) -> u64 {
        self.state.namespace().attr(FILE).unwrap().size_bytes
    }

    fn replaced(&mut self) -> Applied {
        let stamp = self.stamp();
        self.log(BackingCommand::Replaced {
            ino: FILE,
            etag: "e2".into(),
            len_bytes: 4,
            modified: Time::from_secs(3),
            stamp,
        })
    }

    fn vanished(&mut self, text: &str) -> Applied {
        let stamp = self.stamp();
        self.log(BackingCommand::Vanished { parent: Ino::ROOT, name: name(text), stamp })
    }
}

/// Another writer replaces the object of a cached file. Cached bytes of the old one must not be
/// read again, and client caches must be invalidated.
#[test]
fn replaced_object_becomes_the_content_of_the_file() {
    let mut node = Node::with_names();
    node.apply(Command::Extent(LocalCommand::Present {
        ino: FILE,
        etag: "e1".into(),
        first: 0,
        sums: vec![1],
    }));
    assert_eq!(node.state.extents().resident_bytes(), BLOCK_BYTES);
    assert_eq!(node.replaced().touched, [FILE]);
    let segments = node.state.extents().plan_read(FILE, 0..10, node.size());
    assert_eq!(segments, [Segment { origin: ByteOrigin::Remote, range: 0..4 }]);
    assert!(node.state.backing().is_settled(), "nothing is to be written back");
}

/// The same with a dirty file: the local changes stay, and the next put replaces the new object.
#[test]
fn dirty_data_outlives_a_replaced_object() {
    let mut node = Node::with_names();
    node.write(0, 10);
    node.replaced();
    assert_eq!(node.size(), 10);
    let segments = node.state.extents().plan_read(FILE, 0..10, 10);
    assert_eq!(segments, [Segment { origin: ByteOrigin::Local, range: 0..10 }]);
    let step = node.state.backing().flush_step(node.state.namespace(), FILE);
    assert_eq!(step, FlushStep::Put { key: "f".into(), replaces: Some("e2".into()) });
}

/// Another writer deletes the object of a file: the name is removed, and no delete of this node may
/// hit a later object at the key. A dirty file stays and is uploaded again.
#[test]
fn a_vanished_object_takes_its_name_along() {
    let mut node = Node::with_names();
    node.vanished("f");
    assert_eq!(node.state.namespace().lookup(Ino::ROOT, &name("f")), Err(FsError::NotFound));
    assert_eq!(node.state.backing().deletes().count(), 0);

    let mut node = Node::with_names();
    node.write(0, 10);
    node.vanished("f");
    let step = node.state.backing().flush_step(node.state.namespace(), FILE);
    assert_eq!(step, FlushStep::Put { key: "f".into(), replaces: None });
}

/// Refused: removing a directory of which the bucket can have more names, and creating the reserved
/// name or one that encodes an impossible key.
#[test]
fn mutations_that_the_bucket_forbids_are_refused() {
    let mut node = Node::with_names();
    let rmdir = || Mutation::Rmdir { parent: Ino::ROOT, name: name("d"), holders: vec![] };
    let make = |text: &str| Mutation::Make {
        parent: Ino::ROOT,
        name: name(text),
        ino: Ino(1 << 48 | 200),
        mode: 0o644,
        what: Make::Regular,
    };
    assert_eq!(node.mutate(rmdir()), Err(FsError::Busy));
    let to_itself = Mutation::Rename {
        from: Ino::ROOT,
        name: name("d"),
        to: Ino::ROOT,
        new_name: name("d"),
        mode: RenameMode::Replace,
        holders: vec![],
    };
    assert_eq!(node.mutate(to_itself), Ok(()), "a rename that changes nothing waits for nothing");
    assert_eq!(node.mutate(make(".ebb")), Err(FsError::AccessDenied));
    assert_eq!(node.mutate(make(".ebb%2e")), Err(FsError::AccessDenied));
    let what = InstalledKind::Object {
        key: Some("d/.".into()),
        etag: "e".into(),
        len_bytes: 1,
        modified: Time::from_secs(1),
    };
    let borrowed = Installed { name: name(".ebb%2e"), ino: Ino(1 << 48 | 300), what, record: None };
    node.install(DIR, vec![borrowed], LoadProgress::Complete);
    let away = |mode| Mutation::Rename {
        from: DIR,
        name: name(".ebb%2e"),
        to: Ino::ROOT,
        new_name: name("away"),
        mode,
        holders: vec![],
    };
    let whiteout = RenameMode::Whiteout { keep_target: false, ino: Some(Ino(1 << 48 | 301)) };
    assert_eq!(node.mutate(away(whiteout)), Err(FsError::AccessDenied));
    assert_eq!(node.mutate(away(RenameMode::Replace)), Ok(()));
    assert_eq!(node.mutate(rmdir()), Ok(()));
    assert_eq!(node.mutate(make(".ebb%other")), Ok(()));
}

/// A file has two names and only one is loaded. Its records in both directories must change
/// together, so nothing of it changes before the other name is loaded, or found missing.
#[test]
fn an_inode_waits_for_all_its_names() {
    let mut node = Node::with_names();
    let ino = Ino(1 << 48 | 300);
    let links = vec![(Ino::ROOT, name("g")), (DIR, name("h"))];
    let record = Some(InstalledRecord { nlink: 2, links, ..record() });
    let what = InstalledKind::Object {
        key: Some("g".into()),
        etag: "e".into(),
        len_bytes: 1,
        modified: Time::from_secs(1),
    };
    node.install(
        DIR,
        vec![Installed { name: name("h"), ino, what, record }],
        LoadProgress::Unchanged,
    );
    let chmod =
        || Mutation::SetAttr { ino, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } };
    assert_eq!(node.mutate(chmod()), Err(FsError::Busy));
    assert_eq!(node.state.backing().unresolved_links(ino), [(Ino::ROOT, name("g"))]);
    node.vanished("g");
    assert_eq!(node.mutate(chmod()), Ok(()));
    assert_eq!(node.state.namespace().attr(ino).unwrap().nlink, 1);
}

/// A listing arrives after the name was removed, or in a later epoch.
#[test]
fn a_late_listing_brings_nothing_back() {
    let mut node = Node::with_names();
    node.mutate(Mutation::Unlink { parent: Ino::ROOT, name: name("f"), holders: vec![] }).unwrap();
    node.log(BackingCommand::Deleted { key: "f".into() });
    node.install(
        Ino::ROOT,
        vec![found(name("f"), Ino(1 << 48 | 400), object("e1", 10))],
        LoadProgress::Unchanged,
    );
    assert_eq!(node.state.namespace().lookup(Ino::ROOT, &name("f")), Err(FsError::NotFound));
    assert!(node.state.backing().knows_absent(node.state.namespace(), Ino::ROOT, &name("f")));
    let stamp = node.stamp();
    let entries = vec![found(name("late"), Ino(1 << 48 | 401), object("e", 1))];
    node.log(BackingCommand::Install {
        dir: Ino::ROOT,
        epoch: 7,
        entries,
        hidden: vec![],
        owner: (0, 0),
        progress: LoadProgress::Complete,
        stamp,
    });
    assert!(!node.state.backing().is_complete(Ino::ROOT));
}

/// The file is removed during its upload: the resulting object is deleted, and only after the
/// upload has ended.
#[test]
fn an_upload_outlived_by_nothing_leaves_no_object() {
    let mut node = Node::new(true);
    node.mutate(Mutation::Make {
        parent: Ino::ROOT,
        name: name("n"),
        ino: FILE,
        mode: 0o644,
        what: Make::Regular,
    })
    .unwrap();
    node.log(BackingCommand::UploadBegun { ino: FILE, key: "n".into(), upload: Some("u".into()) });
    node.mutate(Mutation::Unlink { parent: Ino::ROOT, name: name("n"), holders: vec![] }).unwrap();
    assert_eq!(node.state.backing().uploads().map(|(ino, _)| ino).collect::<Vec<_>>(), [FILE]);
    node.log(BackingCommand::Uploaded {
        ino: FILE,
        key: "n".into(),
        etag: "e".into(),
        len_bytes: 0,
        version: Version(1),
    });
    assert_eq!(
        node.state.backing().deletes().collect::<Vec<_>>(),
        [("n".into(), Some("e".into()))]
    );
}

/// A file is renamed back while its object is being copied to the new name's key. The copy becomes
/// the backing object, at the wrong key: it has to move back.
#[test]
fn a_move_that_is_overtaken_goes_back() {
    let mut node = Node::with_names();
    let rename = |from: &str, to: &str| {
        let (name, new_name, mode) = (name(from), name(to), RenameMode::Replace);
        Mutation::Rename { from: Ino::ROOT, name, to: Ino::ROOT, new_name, mode, holders: vec![] }
    };
    node.mutate(rename("f", "g")).unwrap();
    node.log(BackingCommand::UploadBegun { ino: FILE, key: "g".into(), upload: None });
    node.mutate(rename("g", "f")).unwrap();
    node.log(BackingCommand::Moved { ino: FILE, key: "g".into(), etag: "e2".into() });
    let step = |node: &Node| node.state.backing().flush_step(node.state.namespace(), FILE);
    assert_eq!(step(&node), FlushStep::AwaitDelete { key: "f".into() });
    node.log(BackingCommand::Deleted { key: "f".into() });
    assert_eq!(
        step(&node),
        FlushStep::Move { from: "g".into(), to: "f".into(), etag: "e2".into() }
    );
    assert_eq!(node.state.backing().dirt().since, Some(Time::from_secs(9)));
}

/// Without a bucket nothing is dirty, no name is reserved and every directory is complete.
#[test]
fn a_volume_without_bucket_owes_it_nothing() {
    let mut node = Node::new(false);
    let make = |text: &str, ino, what| Mutation::Make {
        parent: Ino::ROOT,
        name: name(text),
        ino,
        mode: 0o755,
        what,
    };
    node.mutate(make(".ebb", DIR, Make::Directory)).unwrap();
    node.mutate(make("f", FILE, Make::Regular)).unwrap();
    node.write(0, 10);
    let (backing, namespace) = (node.state.backing(), node.state.namespace());
    assert!(
        backing.is_settled()
            && backing.is_complete(DIR)
            && backing.load_plan(namespace, DIR).is_none()
    );
    assert!(backing.knows_absent(namespace, DIR, &name("x")));
    assert_eq!(backing.flush_step(namespace, FILE), FlushStep::Nothing);
    assert_eq!(backing.page_step(namespace, Ino::ROOT), PageStep::Nothing);
    node.mutate(Mutation::Rmdir { parent: Ino::ROOT, name: name(".ebb"), holders: vec![] })
        .unwrap();
}

/// A modified snapshot is refused, item by item.
#[test]
fn a_snapshot_that_breaks_a_law_is_refused() {
    let mut node = Node::with_names();
    node.write(0, 10);
    let items: Vec<SnapshotItem> = node.state.partition().items().collect();
    assert!(Partition::from_items(items.clone()).unwrap().items().eq(items.iter().cloned()));
    let mut refused = 0;
    for at in 0..items.len() {
        let rest = items
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, item)| item.clone());
        match (&items[at], Partition::from_items(rest)) {
            (SnapshotItem::Session { .. }, Ok(_)) => {}
            (item, Ok(_)) => panic!("the loss of {item:?} is not detected"),
            (_, Err(error)) => {
                assert!(!error.problems.is_empty());
                refused += 1;
            }
        }
    }
    assert_eq!(refused, items.len() - 1);
}

/// Situation: a page in the bucket is newer than the state here, which comes from a backup:
/// directory `d` has been renamed to `e`. Danger: two directories own the same objects, or `d` is
/// hidden from a node that has only the bucket. Expectation: the local state stays, and the page's
/// `e` is ignored.
#[test]
fn newer_page_does_not_take_the_prefix_of_a_local_directory() {
    let mut node = Node::with_names();
    let renamed = InstalledKind::Directory { prefix: Some("d/".into()), page: false };
    let entries = vec![Installed {
        name: name("e"),
        ino: Ino(DIR.0 + 1),
        what: renamed,
        record: Some(record()),
    }];
    let stamp = node.stamp();
    let (progress, hidden) = (LoadProgress::Complete, vec!["d".into()]);
    node.log(BackingCommand::Install {
        dir: Ino::ROOT,
        epoch: 0,
        entries,
        hidden,
        owner: (0, 0),
        progress,
        stamp,
    });
    let (listed, _) = node.state.namespace().read_dir(Ino::ROOT, Cookie::START, 10).unwrap();
    let names: Vec<Name> = listed.into_iter().map(|(entry, _)| entry.name).collect();
    assert_eq!(names, [name("d"), name("f")]);
    let is_hidden =
        |item: SnapshotItem| matches!(item, SnapshotItem::Backing(BackingItem::Hidden { .. }));
    assert!(!node.state.partition().items().any(is_hidden));
}

/// Situation: a file has changes here and cached bytes of its object, which another program
/// removes. Danger: the cached bytes are the only copy, and as clean ones can be evicted.
/// Expectation: they are dirty, stay, and go to the bucket with the file.
#[test]
fn cached_bytes_of_a_removed_object_become_dirty() {
    let mut node = Node::new(true);
    let entries = vec![found(name("f"), FILE, object("e1", 2 * BLOCK_BYTES))];
    node.install(Ino::ROOT, entries, LoadProgress::UpTo("f".into()));
    let present = LocalCommand::Present { ino: FILE, etag: "e1".into(), first: 0, sums: vec![7] };
    node.apply(Command::Extent(present));
    node.write(BLOCK_BYTES, BLOCK_BYTES);
    let kept = node.state.extents().kept_without_object(FILE);
    let kept = kept.into_iter().map(|run| (run.start, run.end)).collect();
    let (parent, stamp) = (Ino::ROOT, node.stamp());
    node.log(BackingCommand::VanishedKept { parent, name: name("f"), kept, stamp });
    node.apply(Command::Extent(LocalCommand::Absent { ino: FILE, first: 0, count: 2 }));
    let first = node.state.extents().block(FILE, 0).expect("it stays");
    assert_eq!((first.dirty, first.sum), (true, Some(7)));
    assert_eq!(node.state.extents().object(FILE), None);
    let is_sent = matches!(
        node.state.backing().flush_step(node.state.namespace(), FILE),
        FlushStep::Put { .. }
    );
    assert!(is_sent, "the file is to be sent");
}
