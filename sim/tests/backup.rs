//! Backups of a volume's metadata, and data directories that are made of them.

use bytes::Bytes;
use ebb_client::Client;
use ebb_format::backup::{self, Backup};
use ebb_model::*;
use ebb_node::head::{HeadError, TakeOver};
use ebb_node::{
    BackupError, Loss, Node, Of, OpenError, Options, Outlook, Restoring, Stopped, TakingOver,
};
use ebb_sim::volume::rig;
use ebb_sim::{Process, Rng, SimBucket, World};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;
const SELDOM: Duration = Duration::from_secs(3600);

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

async fn try_mount(
    world: &World,
    machine: &str,
    flush_interval: Duration,
    take_over: TakeOver,
) -> Result<Mount, OpenError> {
    let process = world.machine(machine).process_on("node", "data");
    let options = Options {
        owner: machine.into(),
        embedded: true,
        flush_interval,
        take_over,
        scrub_interval: None,
        ..Options::default()
    };
    let node = rig::open(&process, &world.bucket(), &options).await.unwrap()?;
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    Ok(Mount { process, node, client })
}

async fn mount(world: &World, machine: &str, flush_interval: Duration) -> Mount {
    try_mount(world, machine, flush_interval, TakeOver::IfAbandoned).await.unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Mount {
    async fn make(&self, dir: Ino, text: &str, what: Make) -> Ino {
        self.client.make(&ROOT, dir, &name(text), 0o640, what, false).await.unwrap().ino
    }

    async fn write(&self, ino: Ino, content: &str) {
        let size = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
        self.client.setattr(&ROOT, ino, size).await.unwrap();
        self.client
            .write(&ROOT, ino, 0, Bytes::copy_from_slice(content.as_bytes()), false)
            .await
            .unwrap();
    }

    async fn file(&self, dir: Ino, text: &str, content: &str) -> Ino {
        let ino = self.make(dir, text, Make::Regular).await;
        self.write(ino, content).await;
        ino
    }

    async fn flush(&self) {
        self.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    }

    async fn read(&self, text: &str) -> Result<Bytes, FsError> {
        let mut at = Ino::ROOT;
        for part in text.split('/') {
            at = self.client.lookup(at, &name(part)).await?.ino;
        }
        self.client.read(at, 0, 1 << 20).await
    }

    /// A backup of this moment, below `target`.
    async fn back_up(&self, target: &SimBucket) -> Result<Backup, BackupError> {
        let AdminReply::Snapshot { cluster, incarnation, index, .. } =
            self.client.admin(AdminRequest::Snapshot).await.unwrap()
        else {
            panic!("another reply")
        };
        let of = Of { cluster, incarnation, backing: "sim".into(), index, encryption: None };
        let (ports, target) = (self.process.ports.clone(), self.process.bucket(target));
        let copying = async move {
            ebb_node::backup(&ports, of, &*ports.disk.clone(), &*target, |_| {}).await
        };
        self.process.call(copying).await.unwrap()
    }
}

/// Reads the backup into the machine's data directory; returns the report on each file.
async fn prepare(
    process: &Process,
    world: &World,
    from: &SimBucket,
) -> Result<(Rc<Restoring>, Outlook), BackupError> {
    let (ports, source, bucket) =
        (process.ports.clone(), process.bucket(from), process.bucket(&world.bucket()));
    let preparing = async move {
        ports.disk.lock()?;
        let found = ebb_node::find_backup(&ports, &*source).await?;
        ebb_node::fetch_backup(&ports, &found, &*source, &*ports.disk, |_| {}).await?;
        let restoring = Restoring::read(ports, found, (0, 0)).await?;
        let outlook = restoring.outlook(&*bucket).await?;
        Ok((Rc::new(restoring), outlook))
    };
    process.call(preparing).await.unwrap()
}

async fn restore_with(
    world: &World,
    machine: &str,
    from: &SimBucket,
    take_over: TakeOver,
) -> Result<Outlook, BackupError> {
    let process = world.machine(machine).process_on("restore", "data");
    let (restoring, _) = prepare(&process, world, from).await?;
    let bucket = process.bucket(&world.bucket());
    let taking_over =
        TakingOver { owner: machine.into(), term: Duration::from_secs(30), take_over };
    let outlook =
        process.call(async move { restoring.carry_out(bucket, taking_over).await }).await.unwrap();
    process.kill();
    outlook
}

async fn restore(world: &World, machine: &str, from: &SimBucket) -> Result<Outlook, BackupError> {
    restore_with(world, machine, from, TakeOver::IfAbandoned).await
}

fn told(outlook: &Outlook) -> BTreeMap<String, Loss> {
    let path = |path: &Vec<Name>| {
        path.iter()
            .map(|name| String::from_utf8_lossy(name.as_bytes()))
            .collect::<Vec<_>>()
            .join("/")
    };
    outlook.losses.iter().map(|(names, loss)| (path(names), *loss)).collect()
}

fn run(seed: u64, scene: impl AsyncFnOnce(&World)) {
    let world = World::new(seed);
    world.run(scene(&world)).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a node's disk is lost, with files that were never uploaded, changed since their
/// upload, or being renamed; there is a backup. Danger: wrong bytes or missing names. Expectation:
/// names and attributes are restored; content is the bucket's or an error; every deviation is
/// reported in advance.
#[test]
fn restore_brings_back_a_lost_disk() {
    run(1, async |world| {
        let a = mount(world, "a", SELDOM).await;
        let dir = a.make(Ino::ROOT, "d", Make::Directory).await;
        a.file(dir, "kept", "kept").await;
        let changed = a.file(dir, "changed", "old").await;
        let cut = a.file(dir, "cut", "cut short").await;
        a.file(dir, "from", "moved").await;
        a.flush().await;
        a.write(changed, "newer than the bucket").await;
        a.client
            .setattr(&ROOT, cut, SetAttr { size_bytes: Some(3), ..SetAttr::default() })
            .await
            .unwrap();
        a.client
            .rename(&ROOT, dir, &name("from"), dir, &name("to"), RenameMode::Replace)
            .await
            .unwrap();
        a.file(dir, "from", "in its place").await;
        a.file(dir, "new", "never sent").await;
        a.make(dir, "empty", Make::Regular).await;
        let link = a.make(dir, "link", Make::Symlink { target: "kept".into() }).await;
        let ids = (dir, changed, link);
        let backup = world.bucket_named("backup");
        a.back_up(&backup).await.unwrap();
        a.process.kill();

        let outlook = restore(world, "b", &backup).await.unwrap();
        let expected = [
            ("d/changed", Loss::Older),
            ("d/cut", Loss::Older),
            ("d/from", Loss::Lost),
            ("d/new", Loss::Lost),
        ];
        assert_eq!(told(&outlook), expected.map(|(path, loss)| (path.to_owned(), loss)).into());
        let b = mount(world, "b", SELDOM).await;
        let found = async |text: &str| b.client.lookup(dir, &name(text)).await.unwrap();
        assert_eq!(
            (
                b.client.lookup(Ino::ROOT, &name("d")).await.unwrap().ino,
                found("changed").await.ino,
                found("link").await.ino
            ),
            ids
        );
        assert_eq!(found("new").await.mode, 0o640);
        assert_eq!(b.client.readlink(link).await.unwrap(), "kept");
        for (path, content) in [
            ("d/kept", "kept"),
            ("d/changed", "old"),
            ("d/cut", "cut short"),
            ("d/to", "moved"),
            ("d/empty", ""),
        ] {
            assert_eq!(b.read(path).await.unwrap(), content, "{path}");
        }
        for path in ["d/new", "d/from"] {
            assert_eq!(b.read(path).await, Err(FsError::Io), "{path}");
        }
        // After a new write it is a normal file.
        b.write(found("new").await.ino, "written anew").await;
        b.client.unlink(&ROOT, dir, &name("from")).await.unwrap();
        assert_eq!(b.read("d/new").await.unwrap(), "written anew");
        b.flush().await;
        assert_eq!(rig::fsck(&b.client).await.unwrap().problems, []);
        assert_eq!(b.node.stop(true).await.unwrap(), Stopped::Released);
        b.process.kill();
        let c = mount(world, "c", SELDOM).await;
        for (path, content) in [
            ("d/kept", "kept"),
            ("d/changed", "old"),
            ("d/cut", "cut short"),
            ("d/to", "moved"),
            ("d/new", "written anew"),
        ] {
            assert_eq!(c.read(path).await.unwrap(), content, "{path}");
        }
        assert_eq!(c.read("d/from").await, Err(FsError::NotFound));
    });
}

/// Situation: after the backup, files are changed, removed, renamed and created, and reach the
/// bucket. Expectation: names are as in the backup; a renamed file is found by its object's
/// metadata; new files are present too.
#[test]
fn restore_undoes_changes_since_the_backup() {
    run(2, async |world| {
        let a = mount(world, "a", SELDOM).await;
        let dir = a.make(Ino::ROOT, "d", Make::Directory).await;
        let other = a.make(Ino::ROOT, "other", Make::Directory).await;
        let changed = a.file(dir, "changed", "old").await;
        for text in ["kept", "renamed", "removed"] {
            a.file(dir, text, text).await;
        }
        a.flush().await;
        let backup = world.bucket_named("backup");
        a.back_up(&backup).await.unwrap();
        a.write(changed, "new").await;
        a.client.unlink(&ROOT, dir, &name("removed")).await.unwrap();
        a.client
            .rename(&ROOT, dir, &name("renamed"), other, &name("x"), RenameMode::Replace)
            .await
            .unwrap();
        a.client
            .rename(&ROOT, Ino::ROOT, &name("d"), other, &name("d2"), RenameMode::Replace)
            .await
            .unwrap();
        let made = a.file(other, "made", "made").await;
        a.flush().await;
        world.sleep(Duration::from_secs(60)).await;
        a.flush().await;
        assert_eq!(a.node.stop(true).await.unwrap(), Stopped::Released);
        a.process.kill();

        let outlook = restore(world, "b", &backup).await.unwrap();
        let b = mount(world, "b", SELDOM).await;
        let losses = told(&outlook);
        assert_eq!(losses.get("d/removed"), Some(&Loss::Lost), "{losses:?}");
        assert_eq!(losses.get("d/changed"), Some(&Loss::Changed), "{losses:?}");
        for (path, content) in [
            ("d/kept", "kept"),
            ("d/changed", "new"),
            ("d/renamed", "renamed"),
            ("other/made", "made"),
        ] {
            let read = b.read(path).await;
            assert!(read.as_ref().is_ok_and(|read| read == content), "{path}: {read:?} {losses:?}");
        }
        assert_eq!(b.read("other/x").await, Err(FsError::NotFound));
        let fresh = b.make(other, "fresh", Make::Regular).await;
        assert!(fresh.epoch() > made.epoch(), "{fresh} may have been given out since the backup");
        b.client.unlink(&ROOT, dir, &name("removed")).await.unwrap();
        b.flush().await;
        world.sleep(Duration::from_secs(60)).await;
        b.flush().await;
        let problems = rig::fsck(&b.client).await.unwrap().problems;
        assert!(problems.iter().all(|problem| problem.what.contains(".ebb/d/")), "{problems:?}");
        b.node.stop(true).await.unwrap();
        b.process.kill();
        let c = mount(world, "c", SELDOM).await;
        for (path, content) in [
            ("d/kept", "kept"),
            ("d/changed", "new"),
            ("d/renamed", "renamed"),
            ("other/made", "made"),
        ] {
            assert_eq!(c.read(path).await.unwrap(), content, "{path}");
        }
    });
}

/// Situation: a directory is renamed, and the backup is made before its objects have moved, which
/// they do afterwards; a file is created in it. Danger: its files are looked up at the old prefix.
/// Expectation: all files are present.
#[test]
fn a_directory_is_found_where_its_objects_have_followed() {
    run(6, async |world| {
        let a = mount(world, "a", SELDOM).await;
        let dir = a.make(Ino::ROOT, "d", Make::Directory).await;
        a.file(dir, "file", "content").await;
        a.flush().await;
        a.client
            .rename(&ROOT, Ino::ROOT, &name("d"), Ino::ROOT, &name("e"), RenameMode::Replace)
            .await
            .unwrap();
        let backup = world.bucket_named("backup");
        a.back_up(&backup).await.unwrap();
        a.file(dir, "made", "since").await;
        for _ in 0..3 {
            a.flush().await;
            world.sleep(Duration::from_secs(30)).await;
        }
        assert!(world.bucket().objects().contains_key("e/made"));
        a.process.kill();
        assert_eq!(told(&restore(world, "b", &backup).await.unwrap()), BTreeMap::new());
        let b = mount(world, "b", SELDOM).await;
        assert_eq!(
            (b.read("e/file").await.unwrap(), b.read("e/made").await.unwrap()),
            ("content".into(), "since".into())
        );
    });
}

/// Situation: a volume is restored while its node runs; it is restored twice. Danger: two nodes
/// write to the bucket. Expectation: a running node keeps the volume; the restore that takes it is
/// the only owner, and the others report the owner.
#[test]
fn restore_gives_the_volume_to_the_last_node() {
    run(3, async |world| {
        let a = mount(world, "a", Duration::from_secs(20)).await;
        a.file(Ino::ROOT, "file", "content").await;
        a.flush().await;
        let backup = world.bucket_named("backup");
        let incarnation = a.back_up(&backup).await.unwrap().incarnation;
        let held = restore(world, "b", &backup).await;
        assert!(matches!(held, Err(BackupError::Head(HeadError::Held { .. }))), "{held:?}");

        a.file(Ino::ROOT, "late", "from a").await;
        restore_with(world, "c", &backup, TakeOver::Now).await.unwrap();
        world.sleep(Duration::from_secs(60)).await;
        assert!(
            !world.bucket().objects().contains_key("late"),
            "who has lost the volume writes nothing"
        );
        restore_with(world, "d", &backup, TakeOver::Now).await.unwrap();
        let d = mount(world, "d", SELDOM).await;
        let AdminReply::Status(status) = d.client.admin(AdminRequest::Status).await.unwrap() else {
            panic!("another reply")
        };
        assert_eq!(status.incarnation, Incarnation(incarnation.0 + 2));
        assert_eq!(d.read("file").await.unwrap(), "content");
        let refused = try_mount(world, "c", SELDOM, TakeOver::IfAbandoned)
            .await
            .err()
            .map(|error| error.to_string());
        assert!(
            refused.as_ref().is_some_and(|error| error.contains("is served by d")),
            "{refused:?}"
        );
    });
}

/// Situation: parts of a backup are missing, truncated, changed, or of another backup; the manifest
/// is missing, damaged or of another version; the target exists, the data directory is used, the
/// volume is another one. Expectation: each error is reported as such, and neither the bucket nor a
/// used data directory has changed.
#[test]
fn restore_refuses_an_incomplete_backup() {
    run(4, async |world| {
        let a = mount(world, "a", SELDOM).await;
        a.file(Ino::ROOT, "file", "content").await;
        a.flush().await;
        let backup = world.bucket_named("backup");
        let made = a.back_up(&backup).await.unwrap();
        let taken = a.back_up(&backup).await;
        assert!(matches!(taken, Err(BackupError::Taken { .. })), "{taken:?}");
        a.process.kill();
        let untouched = world.bucket().objects().keys().cloned().collect::<Vec<_>>();

        let part = backup::part_key(made.run, 0);
        let whole = backup.objects();
        let body = |key: &str| whole[key].body.clone();
        let put = |key: &str, body: Bytes| drop(backup.put_as_outsider(key, body, vec![]).unwrap());
        let refused = async |expected: &str| {
            let process = world.machine("b").process_on("restore", "data");
            let error = prepare(&process, world, &backup)
                .await
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            process.kill();
            assert!(error.contains(expected), "{expected}: {error}");
        };
        let flipped = |key: &str, at: usize| {
            let mut bytes = body(key).to_vec();
            bytes[at] ^= 1;
            Bytes::from(bytes)
        };
        put(&part, flipped(&part, 100));
        refused("has another checksum").await;
        put(&part, body(&part).slice(..body(&part).len() - 1));
        refused("has another checksum").await;
        backup.delete_as_outsider(&part);
        refused("is gone").await;
        put(&part, body(&part));
        let at = body(backup::KEY).iter().position(|byte| *byte == b's').unwrap();
        put(backup::KEY, flipped(backup::KEY, at));
        refused("is not what was written").await;
        put(backup::KEY, body(backup::KEY).slice(..40));
        refused("is not what was written").await;
        put(backup::KEY, Bytes::from_static(b"{\"format\": 9}"));
        refused("use another version of ebb").await;
        backup.delete_as_outsider(backup::KEY);
        refused("there is no backup in").await;
        // Whole parts that are no snapshot.
        let junk = Bytes::from_static(b"no snapshot at all");
        let parts =
            vec![backup::Part { len_bytes: junk.len() as u32, crc32c: ebb_format::crc32c(&junk) }];
        put(&part, junk);
        put(backup::KEY, backup::encode(&Backup { parts, ..made.clone() }));
        refused("not snapshot").await;
        put(&part, body(&part));
        put(backup::KEY, body(backup::KEY));

        let process = world.machine("a").process_on("restore", "data");
        let used = prepare(&process, world, &backup).await.err();
        assert!(matches!(used, Some(BackupError::Used(_))), "{used:?}");
        process.kill();
        assert_eq!(world.bucket().objects().keys().cloned().collect::<Vec<_>>(), untouched);

        world.sleep(Duration::from_secs(60)).await;
        restore(world, "b", &backup).await.unwrap();
        let again = restore(world, "b", &backup).await;
        assert!(matches!(again, Err(BackupError::Used(_))), "{again:?}");

        let head = ".ebb/head";
        let another = world.bucket_named("another");
        let c = world.machine("c").process_on("node", "other");
        let node = rig::open(&c, &another, &Options { owner: "c".into(), ..Options::default() })
            .await
            .unwrap()
            .unwrap();
        node.stop(true).await.unwrap();
        c.kill();
        world.bucket().put_as_outsider(head, another.objects()[head].body.clone(), vec![]).unwrap();
        let foreign = restore(world, "e", &backup).await;
        assert!(
            matches!(foreign, Err(BackupError::Head(HeadError::OtherVolume { .. }))),
            "{foreign:?}"
        );
        // Another program has removed all objects.
        world.bucket().objects().keys().for_each(|key| world.bucket().delete_as_outsider(key));
        assert_eq!(
            told(&restore(world, "f", &backup).await.unwrap()),
            [("file".into(), Loss::Lost)].into()
        );
        let f = mount(world, "f", SELDOM).await;
        assert_eq!(f.read("file").await, Err(FsError::Io));
    });
}

/// Situation: a power cut at any moment of a restore. Expectation: the data directory is either
/// restored, or accepts another restore once the obstacle is removed; the volume has no owner or
/// this one.
#[test]
fn a_power_cut_during_a_restore_leaves_all_or_nothing() {
    for step in 0..24 {
        run(100 + step, async |world| {
            let a = mount(world, "a", SELDOM).await;
            a.file(Ino::ROOT, "file", "content").await;
            a.flush().await;
            let backup = world.bucket_named("backup");
            a.back_up(&backup).await.unwrap();
            a.node.stop(true).await.unwrap();
            a.process.kill();
            let machine = world.machine("b");
            let process = machine.process_on("restore", "data");
            let (restoring, _) = prepare(&process, world, &backup).await.unwrap();
            let bucket = process.bucket(&world.bucket());
            let taking_over = TakingOver {
                owner: "b".into(),
                term: Duration::from_secs(30),
                take_over: TakeOver::IfAbandoned,
            };
            process.spawn(async move { drop(restoring.carry_out(bucket, taking_over).await) });
            world.sleep(Duration::from_millis(5 * step)).await;
            machine.power_cut();
            let b = mount(world, "b", SELDOM).await;
            assert_eq!(b.read("file").await.unwrap(), "content");
            assert_eq!(rig::fsck(&b.client).await.unwrap().problems, []);
        });
    }
}

/// The expected state of a file at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    attr: Attr,
    target: Bytes,
    xattrs: BTreeMap<Bytes, Bytes>,
    content: Result<Bytes, FsError>,
}

type Tree = BTreeMap<String, Seen>;

async fn walk(client: &Client) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), Ino::ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let attr = client.getattr(ino).await.unwrap();
        let target = if attr.kind == FileKind::Symlink {
            client.readlink(ino).await.unwrap()
        } else {
            Bytes::new()
        };
        let content = if attr.kind == FileKind::Regular {
            client.read(ino, 0, MAX_IO_BYTES).await
        } else {
            Ok(Bytes::new())
        };
        let mut xattrs = BTreeMap::new();
        for name in client.listxattr(ino).await.unwrap() {
            xattrs.insert(name.clone(), client.getxattr(ino, name).await.unwrap());
        }
        if attr.kind == FileKind::Directory {
            let mut after = Cookie::START;
            loop {
                let page = client.readdir(ino, after, 1000).await.unwrap();
                for (entry, _) in &page.entries {
                    let name = String::from_utf8_lossy(entry.name.as_bytes());
                    todo.push((
                        if path.is_empty() { name.into() } else { format!("{path}/{name}") },
                        entry.ino,
                    ));
                    after = entry.cookie;
                }
                if page.end {
                    break;
                }
            }
        }
        // Read again, since names loaded in between count.
        let attr = client.getattr(ino).await.unwrap();
        tree.insert(path, Seen { attr, target, xattrs, content });
    }
    tree
}

/// A client with random operations on a volume.
struct Worker<'a> {
    mount: &'a Mount,
    rng: Rng,
    dirs: Vec<Ino>,
    made: u64,
    /// All contents that a file has ever had.
    held: BTreeMap<Ino, BTreeSet<Bytes>>,
}

impl Worker<'_> {
    async fn step(&mut self) {
        let client = &self.mount.client;
        let dir = self.dirs[self.rng.index(self.dirs.len())];
        let other = self.dirs[self.rng.index(self.dirs.len())];
        let (one, two) =
            (name(&format!("n{}", self.rng.below(6))), name(&format!("n{}", self.rng.below(6))));
        // Invalid operations are rejected without effect.
        match self.rng.below(15) {
            12 => {
                if let Ok(attr) = client.lookup(dir, &one).await {
                    let value = Bytes::from(format!("{}", self.rng.next_u64()));
                    client
                        .setxattr(&ROOT, attr.ino, "user.x".into(), value, XattrMode::Set)
                        .await
                        .ok();
                }
            }
            // Open without a name until the node dies.
            13 => {
                if let Ok(attr) = client.tmpfile(&ROOT, dir, 0o600).await {
                    self.write(attr.ino).await;
                }
            }
            14 => drop(
                client
                    .admin(AdminRequest::Evict {
                        path: vec![],
                        from: (Ino(0), 0),
                        limit_bytes: u64::MAX,
                    })
                    .await,
            ),
            0 => {
                if let Ok(attr) = client.make(&ROOT, dir, &one, 0o750, Make::Directory, false).await
                {
                    self.dirs.push(attr.ino);
                }
            }
            1 => drop(
                client
                    .make(&ROOT, dir, &one, 0o777, Make::Symlink { target: "there".into() }, false)
                    .await,
            ),
            2 => drop(client.unlink(&ROOT, dir, &one).await),
            3 => {
                if let Ok(attr) = client.lookup(dir, &one).await
                    && client.rmdir(&ROOT, dir, &one).await.is_ok()
                {
                    self.dirs.retain(|known| *known != attr.ino);
                }
            }
            4 | 5 => {
                let replaced = client.lookup(other, &two).await.ok();
                if client.rename(&ROOT, dir, &one, other, &two, RenameMode::Replace).await.is_ok() {
                    self.dirs
                        .retain(|known| replaced.as_ref().is_none_or(|attr| attr.ino != *known));
                }
            }
            6 => {
                if let Ok(attr) = client.lookup(dir, &one).await {
                    drop(client.link(&ROOT, attr.ino, other, &two).await);
                }
            }
            7 => {
                if let Ok(attr) = client.lookup(dir, &one).await {
                    let mode = Some(0o600 | self.rng.below(64) as u16);
                    drop(
                        client
                            .setattr(&ROOT, attr.ino, SetAttr { mode, ..SetAttr::default() })
                            .await,
                    );
                }
            }
            8 => drop(client.admin(AdminRequest::Flush { path: vec![] }).await),
            _ => {
                let found = match client.lookup(dir, &one).await {
                    Ok(attr) => Ok(attr),
                    Err(_) => client.make(&ROOT, dir, &one, 0o640, Make::Regular, false).await,
                };
                if let Ok(attr) = found.as_ref()
                    && attr.kind == FileKind::Regular
                {
                    self.write(attr.ino).await;
                }
            }
        }
    }

    async fn write(&mut self, ino: Ino) {
        let client = &self.mount.client;
        if self.rng.below(2) == 0 {
            let size_bytes = Some(self.rng.below(100_000));
            client.setattr(&ROOT, ino, SetAttr { size_bytes, ..SetAttr::default() }).await.unwrap();
            self.note(ino).await;
        }
        self.made += 1;
        let (salt, len) = (self.made, 1 + self.rng.below(100_000) as usize);
        let content: Vec<u8> = (0..len)
            .map(|at| (at as u64 * 31 + salt * 7919 + (at as u64 >> 8) * salt) as u8 | 1)
            .collect();
        client.write(&ROOT, ino, self.rng.below(2) * 3000, content.into(), false).await.unwrap();
        self.note(ino).await;
    }

    async fn note(&mut self, ino: Ino) {
        let content = self.mount.client.read(ino, 0, MAX_IO_BYTES).await.unwrap();
        self.held.entry(ino).or_default().insert(content);
    }
}

/// Situation: a client works on a volume, a backup is made at some moment, work continues, and the
/// node dies with its disk; the bucket is behind or ahead of the backup. Expectation: every name
/// and attribute is as of that moment; content is as of that moment, or the file is reported and
/// has an earlier or later content, the current object at its key, or an error; and a new mount
/// sees the same.
#[test]
fn any_moment_of_a_busy_volume_comes_back() {
    let given = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = given("EBB_BACKUP_FIRST").unwrap_or(0);
    for seed in first..first + given("EBB_BACKUP_SEEDS").unwrap_or(24) {
        run(1000 + seed, async |world| at_any_moment(world, seed).await);
    }
}

async fn at_any_moment(world: &World, seed: u64) {
    let rng = world.rng("work");
    let interval = Duration::from_secs([1, 5, 3600][seed as usize % 3]);
    let (steps, pause) =
        (world.rng("steps"), async || world.sleep(Duration::from_millis(rng.below(300))).await);
    let mut a = mount(world, "a", interval).await;
    let mut worker =
        Worker { mount: &a, rng: steps, dirs: vec![Ino::ROOT], made: 0, held: BTreeMap::new() };
    for _ in 0..20 + rng.below(80) {
        worker.step().await;
        pause().await;
    }
    let Worker { rng: steps, mut dirs, made, mut held, .. } = worker;
    // Another node, that has loaded little; or the same one after its death.
    let is_cold = seed % 4 == 3;
    if is_cold || rng.below(3) == 0 {
        if is_cold {
            a.flush().await;
            a.node.stop(true).await.unwrap();
        }
        a.process.kill();
        a = mount(world, if is_cold { "other" } else { "a" }, interval).await;
        if is_cold {
            dirs = vec![Ino::ROOT];
            for number in 0..4 {
                let found = a.client.lookup(Ino::ROOT, &name(&format!("n{number}"))).await;
                dirs.extend(
                    found.ok().filter(|attr| attr.kind == FileKind::Directory).map(|attr| attr.ino),
                );
            }
        }
    }
    let mut worker = Worker { mount: &a, rng: steps, dirs, made, held: std::mem::take(&mut held) };
    for _ in 0..rng.below(20) {
        worker.step().await;
        pause().await;
    }
    let backup = world.bucket_named("backup");
    a.back_up(&backup).await.unwrap();
    let then = walk(&a.client).await;
    // Names that are not loaded have the bucket's current state.
    for _ in 0..if is_cold { 0 } else { rng.below(80) } {
        worker.step().await;
        pause().await;
    }
    let mut held = std::mem::take(&mut worker.held);
    if rng.below(2) == 0 {
        a.node.stop(true).await.unwrap();
    }
    a.process.kill();
    // Another program removes and replaces objects.
    let bucket = world.bucket();
    let files: Vec<String> = bucket
        .objects()
        .into_keys()
        .filter(|key| !key.starts_with(".ebb/") && !key.ends_with('/'))
        .collect();
    for key in files.iter().filter(|_| !is_cold && rng.below(8) == 0) {
        let content = Bytes::from(format!("of others {}", rng.next_u64()));
        match rng.below(2) {
            0 => bucket.delete_as_outsider(key),
            _ => {
                bucket.put_as_outsider(key, content.clone(), vec![]).unwrap();
                held.entry(Ino(0)).or_default().insert(content);
            }
        }
    }

    let losses = told(&restore(world, "b", &backup).await.unwrap());
    let b = mount(world, "b", SELDOM).await;
    let now = walk(&b.client).await;
    let ever: BTreeSet<&Bytes> = held.values().flatten().collect();
    for (path, was) in &then {
        let is = now.get(path).unwrap_or_else(|| panic!("seed {seed}: {path} is gone"));
        let of = |seen: &Seen| {
            (
                seen.attr.ino,
                seen.attr.kind,
                seen.attr.mode,
                seen.attr.uid,
                seen.attr.nlink,
                seen.target.clone(),
                seen.xattrs.clone(),
            )
        };
        if was.attr.kind != FileKind::Directory || is.attr.nlink == was.attr.nlink {
            assert_eq!(of(is), of(was), "seed {seed}: {path}");
        }
        let named = then
            .iter()
            .find_map(|(other, seen)| losses.get(other).filter(|_| seen.attr.ino == was.attr.ino));
        match named {
            None => assert!(is.content == was.content, "seed {seed}: {path} has another content"),
            Some(Loss::Lost) => assert_eq!(is.content, Err(FsError::Io), "seed {seed}: {path}"),
            Some(Loss::Older) => {
                let content = is.content.as_ref().unwrap();
                assert!(
                    content.is_empty() || held[&was.attr.ino].contains(content),
                    "seed {seed}: {path}"
                );
            }
            Some(Loss::Changed) => {
                let content = is.content.as_ref().unwrap();
                assert!(content.is_empty() || ever.contains(content), "seed {seed}: {path}");
            }
        }
        if named.is_none() && was.attr.kind == FileKind::Regular {
            assert_eq!(
                (is.attr.size_bytes, is.attr.mtime),
                (was.attr.size_bytes, was.attr.mtime),
                "seed {seed}: {path}"
            );
        }
    }
    for (path, is) in now.iter().filter(|(path, _)| !then.contains_key(*path)) {
        let content =
            is.content.as_ref().unwrap_or_else(|error| panic!("seed {seed}: {path}: {error}"));
        assert!(content.is_empty() || ever.contains(content), "seed {seed}: {path}");
    }
    let AdminReply::Fsck(report) = b.client.admin(AdminRequest::Fsck).await.unwrap() else {
        panic!("another reply")
    };
    assert_eq!(report.problems, [], "seed {seed}");
    for (path, is) in &now {
        if is.content == Err(FsError::Io) {
            let (dir, base) = path.rsplit_once('/').unwrap_or(("", path));
            b.client.unlink(&ROOT, now[dir].attr.ino, &name(base)).await.unwrap();
        }
    }
    for _ in 0..3 {
        b.flush().await;
        world.sleep(Duration::from_secs(30)).await;
    }
    let settled = walk(&b.client).await;
    b.node.stop(true).await.unwrap();
    b.process.kill();
    let c = mount(world, "c", SELDOM).await;
    let newcomer = walk(&c.client).await;
    let told = |tree: &Tree| -> BTreeMap<String, (FileKind, u16, Bytes, Result<Bytes, FsError>)> {
        tree.iter()
            .map(|(path, seen)| {
                (
                    path.clone(),
                    (seen.attr.kind, seen.attr.mode, seen.target.clone(), seen.content.clone()),
                )
            })
            .collect()
    };
    let (settled, newcomer) = (told(&settled), told(&newcomer));
    // A new object at the key of a name in the backup is hidden as long as that name exists.
    let is_taken = |path: &String| {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]).chain([path.as_str()]);
        let is_other = |at: &str| {
            then.get(at).zip(newcomer.get(at)).is_some_and(|(was, is)| was.attr.kind != is.0)
        };
        let was_lost = |at: &str| now.get(at).is_some_and(|seen| seen.content == Err(FsError::Io));
        let beside = path.strip_suffix(".ebb%object").is_some_and(|at| then.contains_key(at));
        // Objects that blocked a move back were kept as copies.
        let is_copy = path.contains(".ebb-conflict-");
        is_copy || beside || above.into_iter().any(|at| is_other(at) || was_lost(at))
    };
    for path in settled.keys().chain(newcomer.keys()).filter(|path| !is_taken(path)) {
        let (here, there) = (settled.get(path), newcomer.get(path));
        let short = |seen: Option<&(FileKind, u16, Bytes, Result<Bytes, FsError>)>| {
            seen.map(|(kind, mode, target, content)| {
                (*kind, *mode, target.clone(), content.as_ref().map(|content| content.len()).ok())
            })
        };
        assert!(
            here == there,
            "seed {seed}: {path} is another for a newcomer: {:?} and {:?}",
            short(here),
            short(there)
        );
    }
}

/// Situation: a new snapshot is written while one is copied, and replaces it. Expectation: the
/// backup is of one of the two.
#[test]
fn a_backup_does_not_mind_later_snapshots() {
    run(5, async |world| {
        let a = mount(world, "a", SELDOM).await;
        a.file(Ino::ROOT, "file", "content").await;
        let first = a.back_up(&world.bucket_named("first")).await.unwrap();
        a.file(Ino::ROOT, "more", "content").await;
        let second = a.back_up(&world.bucket_named("second")).await.unwrap();
        assert!(second.index > first.index && second.run != first.run);
        let gone = Of {
            index: LogIndex(u64::MAX),
            cluster: first.cluster,
            incarnation: first.incarnation,
            backing: String::new(),
            encryption: None,
        };
        let (ports, target) =
            (a.process.ports.clone(), a.process.bucket(&world.bucket_named("third")));
        let copied = a.process.call(async move {
            ebb_node::backup(&ports, gone, &*ports.disk.clone(), &*target, |_| {}).await
        });
        assert!(matches!(copied.await.unwrap(), Err(BackupError::Gone)));
        assert!(world.bucket_named("third").objects().is_empty());
    });
}
