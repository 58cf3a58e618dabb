//! Somebody else changes the bucket while a volume over it is used (O-55).

use bytes::Bytes;
use ebb_client::Client;
use ebb_core::backing::keys;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, SimBucket, Slowness, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Changes of other programs are visible after this time.
const INTERVAL: Duration = Duration::from_secs(8);

type Files = BTreeMap<String, Bytes>;

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn mount(world: &World, machine: &str, bucket: &SimBucket) -> Mount {
    let process = world.machine(machine).process("node");
    let flush_interval = Duration::from_secs(1);
    let options = Options {
        owner: machine.into(),
        embedded: true,
        revalidate: Some(INTERVAL),
        flush_interval,
        ..Options::default()
    };
    let node = rig::open(&process, bucket, &options).await.unwrap().unwrap();
    let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
    Mount { process, node, client }
}

impl Mount {
    async fn call<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        ask: impl FnOnce(Client) -> F,
    ) -> T {
        self.process.call(ask(self.client.clone())).await.expect("the node lives")
    }

    async fn find(&self, path: &str) -> Result<Attr, FsError> {
        let path = path.to_owned();
        self.call(|client| async move {
            let mut attr = client.getattr(Ino::ROOT).await?;
            for segment in path.split('/').filter(|segment| !segment.is_empty()) {
                attr = client.lookup(attr.ino, &name(segment)).await?;
            }
            Ok(attr)
        })
        .await
    }

    async fn read(&self, path: &str) -> Result<Bytes, FsError> {
        let attr = self.find(path).await?;
        self.call(
            |client| async move { client.read(attr.ino, 0, attr.size_bytes as usize + 1).await },
        )
        .await
    }

    async fn names(&self, dir: Ino) -> Result<BTreeMap<String, (Ino, FileKind)>, FsError> {
        self.call(|client| async move {
            let mut names = BTreeMap::new();
            let mut after = Cookie::START;
            loop {
                let page = client.readdir(dir, after, 500).await?;
                for (entry, _) in &page.entries {
                    after = entry.cookie;
                    names.insert(
                        String::from_utf8(entry.name.as_bytes().to_vec()).unwrap(),
                        (entry.ino, entry.kind),
                    );
                }
                if page.end {
                    return Ok(names);
                }
            }
        })
        .await
    }

    /// Every file by its path, and every directory with a `/` behind it.
    async fn tree(&self) -> Files {
        let mut tree = Files::new();
        let mut dirs = vec![(String::new(), Ino::ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, (ino, kind)) in self.names(dir).await.unwrap() {
                let path = format!("{path}{name}");
                match kind {
                    FileKind::Directory => {
                        tree.insert(format!("{path}/"), Bytes::new());
                        dirs.push((format!("{path}/"), ino));
                    }
                    _ => drop(tree.insert(path.clone(), self.read(&path).await.unwrap())),
                }
            }
        }
        tree
    }

    async fn admin(&self, request: AdminRequest) -> AdminReply {
        self.call(|client| async move { client.admin(request).await }).await.unwrap()
    }

    async fn flush(&self) {
        self.admin(AdminRequest::Flush { path: vec![] }).await;
        let AdminReply::Fsck(report) = self.admin(AdminRequest::Fsck).await else {
            panic!("another answer")
        };
        assert_eq!(report.problems, vec![]);
    }

    async fn troubles(&self) -> Vec<String> {
        let AdminReply::Status(status) = self.admin(AdminRequest::Status).await else {
            panic!("another answer")
        };
        status.troubles.into_iter().map(|trouble| trouble.what).collect()
    }
}

fn put(bucket: &SimBucket, key: &str, body: impl Into<Bytes>) {
    bucket.put_as_outsider(key, body, vec![]).unwrap();
}

fn asked(bucket: &SimBucket, what: &str) -> u64 {
    bucket.requests().get(what).copied().unwrap_or(0)
}

fn run(world: &World, scene: impl Future<Output = ()>) {
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn outside_additions_replacements_and_removals_are_seen() {
    let world = World::new(1);
    let bucket = world.bucket();
    for key in ["a", "d/b", "d/e/c"] {
        put(&bucket, key, key);
    }
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        let before = mount.tree().await;
        assert_eq!(before.keys().collect::<Vec<_>>(), ["a", "d/", "d/b", "d/e/", "d/e/c"]);
        put(&bucket, "a", "longer than before");
        put(&bucket, "d/x/y", "new");
        put(&bucket, "z", "new");
        bucket.delete_as_outsider("d/e/c");
        let lists = asked(&bucket, "list");
        mount.names(Ino::ROOT).await.unwrap();
        assert_eq!(asked(&bucket, "list"), lists, "a fresh listing is not asked for again");
        let root = mount.find("").await.unwrap();

        world.sleep(INTERVAL).await;
        let after = mount.tree().await;
        assert_eq!(after.keys().collect::<Vec<_>>(), ["a", "d/", "d/b", "d/x/", "d/x/y", "z"]);
        assert_eq!(after["a"], "longer than before");
        assert!(
            mount.find("").await.unwrap().mtime > root.mtime,
            "programs see that the directory has changed"
        );
        assert_eq!(mount.troubles().await, Vec::<String>::new());
        mount.flush().await;
        let keys: Vec<String> =
            bucket.objects().into_keys().filter(|key| !key.starts_with(".ebb/")).collect();
        assert_eq!(keys, ["a", "d/b", "d/x/y", "z"], "nothing of others is touched");
    });
}

/// A directory of ebb's own is on record, so it stays when others have emptied it.
#[test]
fn directories_made_here_stay() {
    let world = World::new(2);
    let bucket = world.bucket();
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        let made = mount.call(|client| async move {
            client
                .make(&Caller::ROOT, Ino::ROOT, &name("mine"), 0o755, Make::Directory, false)
                .await
        });
        made.await.unwrap();
        mount.flush().await;
        put(&bucket, "mine/theirs", "x");
        world.sleep(INTERVAL).await;
        assert_eq!(mount.read("mine/theirs").await.unwrap(), "x");
        bucket.delete_as_outsider("mine/theirs");
        bucket.delete_as_outsider("mine/");
        world.sleep(INTERVAL).await;
        assert_eq!(mount.tree().await.into_keys().collect::<Vec<_>>(), ["mine/"]);
    });
}

/// A directory of more names than one listing gives is not listed for one of them.
#[test]
fn names_of_large_directories_are_asked_for_one_by_one() {
    let world = World::new(3);
    let bucket = world.bucket();
    for at in 0..2500 {
        put(&bucket, &format!("big/{at:04}"), "old");
    }
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        let big = mount.find("big").await.unwrap().ino;
        assert_eq!(mount.names(big).await.unwrap().len(), 2500);
        put(&bucket, "big/0007", "replaced");
        put(&bucket, "big/new", "new");
        bucket.delete_as_outsider("big/0008");
        world.sleep(INTERVAL).await;
        let lists = asked(&bucket, "list");
        assert_eq!(mount.read("big/0007").await.unwrap(), "replaced");
        assert_eq!(mount.read("big/new").await.unwrap(), "new");
        assert_eq!(mount.find("big/0008").await, Err(FsError::NotFound));
        assert_eq!(mount.read("big/0009").await.unwrap(), "old");
        assert!(asked(&bucket, "list") <= lists + 4, "the root, and whether names are directories");
        put(&bucket, "big/newer", "newer");
        let names = mount.names(big).await.unwrap();
        assert_eq!((names.len(), names.contains_key("newer")), (2501, true));
    });
}

/// Danger: a listing that is older than the mount's own changes brings back removed names, or
/// removes created ones.
#[test]
fn a_listing_of_before_undoes_nothing() {
    let world = World::new(5);
    let bucket = world.bucket();
    for key in ["a", "d/b", "d/e/c", "kept/x"] {
        put(&bucket, key, key);
    }
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        mount.tree().await;
        let (root, d) = (Ino::ROOT, mount.find("d").await.unwrap().ino);
        let (e, kept) =
            (mount.find("d/e").await.unwrap().ino, mount.find("kept").await.unwrap().ino);
        bucket.keep_listings(true);
        mount
            .call(|client| async move {
                let caller = Caller::ROOT;
                client.unlink(&caller, root, &name("a")).await.unwrap();
                client.unlink(&caller, e, &name("c")).await.unwrap();
                client.rmdir(&caller, d, &name("e")).await.unwrap();
                client
                    .rename(&caller, d, &name("b"), root, &name("moved"), RenameMode::Replace)
                    .await
                    .unwrap();
                client.rmdir(&caller, root, &name("d")).await.unwrap();
                client.make(&caller, kept, &name("y"), 0o644, Make::Regular, false).await.unwrap();
            })
            .await;
        let expected = ["kept/", "kept/x", "kept/y", "moved"];
        for _ in 0..3 {
            mount.flush().await;
            assert_eq!(mount.tree().await.into_keys().collect::<Vec<_>>(), expected);
            assert_eq!(mount.find("a").await, Err(FsError::NotFound));
            assert_eq!(mount.find("d").await, Err(FsError::NotFound));
            world.sleep(INTERVAL).await;
        }
        put(&bucket, "a", "somebody else's");
        put(&bucket, "d/b", "somebody else's");
        bucket.keep_listings(false);
        world.sleep(INTERVAL).await;
        let expected = ["a", "d/", "d/b", "kept/", "kept/x", "kept/y", "moved"];
        assert_eq!(mount.tree().await.into_keys().collect::<Vec<_>>(), expected);
    });
}

/// Cached entries are shown while the bucket is away, and no client waits for long.
#[test]
fn a_bucket_that_is_away_hides_nothing() {
    let world = World::new(4);
    let bucket = world.bucket();
    put(&bucket, "a", "a");
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        let before = mount.tree().await;
        bucket.vanish_for(Duration::from_secs(600));
        world.sleep(INTERVAL).await;
        let clock = mount.process.ports.clock.clone();
        let began = clock.monotonic();
        assert_eq!(mount.tree().await, before);
        assert!(clock.monotonic() - began < Duration::from_secs(10));
        assert!(
            mount
                .troubles()
                .await
                .iter()
                .any(|trouble| trouble.starts_with("what others have changed"))
        );
        world.sleep(Duration::from_secs(600)).await;
        put(&bucket, "b", "b");
        assert_eq!(mount.tree().await.len(), 2);
        assert_eq!(mount.troubles().await, Vec::<String>::new());
    });
}

/// A local change that is not uploaded yet is not given up for an object that another program puts:
/// both are kept.
#[test]
fn changes_of_both_sides_are_kept() {
    let world = World::new(5);
    let bucket = world.bucket();
    put(&bucket, "a", "old");
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        let ino = mount.find("a").await.unwrap().ino;
        world.sleep(INTERVAL).await;
        bucket.vanish_for(INTERVAL);
        mount
            .call(|client| async move {
                client.write(&Caller::ROOT, ino, 0, Bytes::from_static(b"here"), false).await
            })
            .await
            .unwrap();
        put(&bucket, "a", "there");
        world.sleep(INTERVAL * 2).await;
        mount.flush().await;
        world.sleep(INTERVAL).await;
        let tree = mount.tree().await;
        assert_eq!(tree["a"], "here");
        assert_eq!(tree.values().filter(|body| **body == "there").count(), 1, "{tree:?}");
    });
}

impl Mount {
    async fn write(&self, path: &str, at: u64, text: &'static [u8]) {
        let ino = self.find(path).await.unwrap().ino;
        self.call(move |client| async move {
            client.write(&Caller::ROOT, ino, at, Bytes::from_static(text), false).await
        })
        .await
        .unwrap();
    }

    async fn rename(&self, from: &str, to: &str) {
        let (from, to) = (name(from), name(to));
        let renaming = |client: Client| async move {
            client
                .rename(&Caller::ROOT, Ino::ROOT, &from, Ino::ROOT, &to, RenameMode::Replace)
                .await
        };
        self.call(renaming).await.unwrap();
    }

    async fn make(&self, text: &str, content: &'static [u8]) {
        let name = name(text);
        self.call(|client| async move {
            client.make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false).await
        })
        .await
        .unwrap();
        self.write(text, 0, content).await;
    }
}

const LEN_BYTES: usize = 3 * BLOCK_BYTES as usize;

/// All objects beside a key, in the order of their names.
fn beside(bucket: &SimBucket, key: &str) -> Vec<Bytes> {
    let begin = format!("{key}.ebb-conflict-");
    bucket
        .objects()
        .into_iter()
        .filter(|(key, _)| key.starts_with(&begin))
        .map(|(_, object)| object.body)
        .collect()
}

/// Situation: while a file is changed, another program puts back an earlier object of it, or an
/// edited one with all of ebb's metadata, as tools do that copy objects. Danger: it is taken for an
/// object that ebb itself has written.
#[test]
fn copied_back_earlier_object_counts_as_foreign() {
    let world = World::new(8);
    let bucket = world.bucket();
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        mount.make("file", b"first").await;
        mount.flush().await;
        let first = bucket.objects()["file"].clone();
        mount.write("file", 0, b"second").await;
        mount.flush().await;
        for (body, change) in
            [(first.body.clone(), &b"third"[..]), (Bytes::from_static(b"edited"), b"fourth")]
        {
            mount.write("file", 0, change).await;
            bucket.put_as_outsider("file", body.clone(), first.meta.tags.clone()).unwrap();
            mount.flush().await;
            assert!(bucket.objects()["file"].body.starts_with(change));
            assert!(beside(&bucket, "file").contains(&body), "{body:?} is gone");
        }
    });
}

/// Situation: another program replaces the object of a file again and again while it is changed, at
/// times with content that it has put before, and edits the kept conflict copies. Danger: one
/// conflict hides another.
#[test]
fn each_conflict_is_kept() {
    let world = World::new(9);
    let bucket = world.bucket();
    let long = "n".repeat(250);
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        for file in ["file", &long] {
            mount.make(file, b"ours").await;
            mount.flush().await;
            let mut kept = Vec::new();
            for theirs in ["theirs", "others", "theirs"] {
                put(&bucket, file, theirs);
                mount.write(file, 0, b"ours").await;
                mount.flush().await;
                assert_eq!(bucket.objects()[file].body, "ours");
                let (key, _) = bucket
                    .objects()
                    .into_iter()
                    .find(|(key, object)| key.len() > file.len() && object.body == theirs)
                    .expect(theirs);
                put(&bucket, &key, format!("edited {}", kept.len()));
                kept.push(key);
                assert!(
                    kept.iter()
                        .enumerate()
                        .all(|(at, key)| bucket.objects()[key].body == format!("edited {at}")),
                    "{kept:?}"
                );
            }
            assert!(kept.iter().all(|key| key.len() <= 255));
        }
        // They are files as any other.
        world.sleep(INTERVAL).await;
        assert_eq!(mount.tree().await.len(), 2 * 4);
    });
}

/// Situation: a partly cached file is changed, and another program replaces its object before the
/// upload. Danger: the uploaded object mixes both, and neither is left. Expectation: the foreign
/// object is kept.
#[test]
fn partly_cached_change_does_not_replace_a_foreign_object() {
    let world = World::new(10);
    let bucket = world.bucket();
    let (old, theirs) = (Bytes::from(vec![b'o'; LEN_BYTES]), Bytes::from(vec![b't'; LEN_BYTES]));
    bucket.put_as_outsider("file", old, vec![]).unwrap();
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        mount.write("file", 70_000, b"here").await;
        bucket.put_as_outsider("file", theirs.clone(), vec![]).unwrap();
        mount.flush().await;
        let sent = bucket.objects()["file"].body.clone();
        assert_eq!((&sent[70_000..70_004], sent.len()), (&b"here"[..], LEN_BYTES));
        assert_eq!(beside(&bucket, "file"), [theirs]);
    });
}

/// Situation: a file is renamed, and others put an object where it goes: while the answer of the
/// copy is lost, or before the copy gets there. Danger: theirs is taken for the copy, and ours is
/// deleted; or theirs is gone.
#[test]
fn a_rename_takes_nobody_elses_place() {
    for (seed, (lost, own_tags)) in
        (12..).zip([(true, true), (true, false), (false, true), (false, false)])
    {
        let world = World::new(seed);
        let bucket = world.bucket();
        if own_tags {
            bucket.give_own_tags();
        }
        run(&world, async {
            let mount = mount(&world, "a", &bucket).await;
            mount.make("old", b"ours").await;
            mount.flush().await;
            let always = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(1) };
            let faults = match lost {
                true => BucketFaults { lost_answer: Rate::ALWAYS, ..BucketFaults::default() },
                false => BucketFaults { slow: always, ..BucketFaults::default() },
            };
            world.set_faults(FaultPlan { bucket: faults, ..FaultPlan::default() });
            mount.rename("old", "new").await;
            while asked(&bucket, "copy") == 0 || lost && !bucket.objects().contains_key("new") {
                world.sleep(Duration::from_micros(100)).await;
            }
            world.set_faults(FaultPlan::default());
            if lost {
                world.sleep(Duration::from_secs(5)).await;
            }
            put(&bucket, "new", "another's");
            mount.flush().await;
            assert_eq!(bucket.objects()["new"].body, "ours", "{lost}, {own_tags}");
            assert_eq!(beside(&bucket, "new"), ["another's"], "{lost}, {own_tags}");
            assert_eq!(mount.read("new").await.unwrap(), "ours");
            assert!(!bucket.objects().contains_key("old"));
        });
    }
}

/// Situation: a bucket whose copies have tags of their own refuses every other request, while
/// another program replaces a file changed here. Expectation: the foreign object is kept once.
#[test]
fn a_conflict_is_kept_once() {
    for seed in 20..30 {
        let world = World::new(seed);
        let bucket = world.bucket();
        bucket.give_own_tags();
        run(&world, async {
            let mount = mount(&world, "a", &bucket).await;
            mount.make("file", b"ours").await;
            mount.flush().await;
            put(&bucket, "file", "another's");
            let faults = BucketFaults {
                unavailable: Rate::one_in(2),
                lost_answer: Rate::one_in(4),
                ..BucketFaults::default()
            };
            world.set_faults(FaultPlan { bucket: faults, ..FaultPlan::default() });
            mount.write("file", 0, b"OURS").await;
            world.sleep(INTERVAL * 4).await;
            world.set_faults(FaultPlan::default());
            mount.flush().await;
            assert_eq!(bucket.objects()["file"].body, "OURS");
            assert_eq!(beside(&bucket, "file"), ["another's"], "seed {seed}");
        });
    }
}

/// Situation: beside a key there is a foreign object at every conflict name that is tried.
/// Expectation: the foreign object stays where it is, and the local change is uploaded once a name
/// is free.
#[test]
fn foreign_object_without_a_free_conflict_name_is_not_replaced() {
    let world = World::new(11);
    let bucket = world.bucket();
    run(&world, async {
        let mount = mount(&world, "a", &bucket).await;
        mount.make("file", b"ours").await;
        mount.flush().await;
        let theirs = bucket.put_as_outsider("file", "theirs", vec![]).unwrap();
        let aside =
            |number| keys::conflict_key("file", ebb_format::crc32c(theirs.0.as_bytes()), number);
        (1..=100).for_each(|number| put(&bucket, &aside(number), "of another conflict"));
        mount.write("file", 0, b"OURS").await;
        world.sleep(INTERVAL * 4).await;
        assert_eq!(bucket.objects()["file"].body, "theirs");
        assert!(
            mount.troubles().await.iter().any(|trouble| trouble.contains("100 versions of others"))
        );
        bucket.delete_as_outsider(&aside(7));
        mount.flush().await;
        assert_eq!(
            (&bucket.objects()["file"].body[..], &bucket.objects()[&aside(7)].body[..]),
            (&b"OURS"[..], &b"theirs"[..])
        );
    });
}

/// Other programs and a client change the same directories at the same time, over a slow bucket. In
/// the end each sees the changes of both, and no removed name ever comes back.
#[test]
fn others_and_a_client_share_directories() {
    for seed in 0..24 {
        let world = World::new(seed);
        let slow = Slowness { rate: Rate::one_in(2), limit: Duration::from_secs(2) };
        world.set_faults(FaultPlan {
            bucket: BucketFaults { slow, ..BucketFaults::default() },
            ..FaultPlan::default()
        });
        let bucket = world.bucket();
        run(&world, share(seed, &world, &bucket));
    }
}

const DIRECTORIES: [&str; 4] = ["", "d/", "d/e/", "n/"];
const STEPS: u64 = 60;

async fn share(seed: u64, world: &World, bucket: &SimBucket) {
    let mount = mount(world, "a", bucket).await;
    // Of others: `o` and, put once for the client to take, `p`. Of the client: `l`.
    let theirs = RefCell::new(Files::new());
    let others = async {
        let draw = world.machine("b").process("others").ports.entropy.clone();
        for step in 0..STEPS {
            let dir = DIRECTORIES[draw.next_u64() as usize % DIRECTORIES.len()];
            let passing = draw.next_u64().is_multiple_of(4);
            let key = if passing {
                format!("{dir}p{step}")
            } else {
                format!("{dir}o{}", draw.next_u64() % 4)
            };
            if theirs.borrow().contains_key(&key) && draw.next_u64().is_multiple_of(2) {
                bucket.delete_as_outsider(&key);
                theirs.borrow_mut().remove(&key);
            } else {
                let body = Bytes::from(vec![step as u8; 1 + (step as usize * 1777) % 100_000]);
                put(bucket, &key, body.clone());
                theirs.borrow_mut().insert(key, body);
            }
            world.sleep(Duration::from_millis(draw.next_u64() % 2000)).await;
        }
    };
    let mut mine = Files::new();
    let mut taken = Vec::new();
    let client = async {
        let draw = mount.process.ports.entropy.clone();
        for step in 0..STEPS {
            let dir = DIRECTORIES[draw.next_u64() as usize % DIRECTORIES.len()];
            let outcome =
                act(seed, &mount, dir, step, draw.next_u64(), &theirs, &mut mine, &mut taken).await;
            // The directory has gone, with all that others had in it.
            assert!(
                matches!(outcome, Ok(()) | Err(FsError::NotFound | FsError::Stale)),
                "seed {seed}: {outcome:?}"
            );
            world.sleep(Duration::from_millis(draw.next_u64() % 2000)).await;
        }
    };
    futures_util::future::join(others, client).await;

    let mut expected = theirs.into_inner();
    expected.extend(mine);
    let files =
        |tree: Files| tree.into_iter().filter(|(path, _)| !path.ends_with('/')).collect::<Files>();
    world.sleep(INTERVAL).await;
    assert!(files(mount.tree().await) == expected, "seed {seed}: what the client sees");
    mount.flush().await;
    let objects = bucket
        .objects()
        .into_iter()
        .filter(|(key, _)| !key.starts_with(".ebb/"))
        .map(|(key, object)| (key, object.body));
    assert!(files(objects.collect()) == expected, "seed {seed}: what the bucket has");
    world.sleep(INTERVAL).await;
    assert!(
        files(mount.tree().await) == expected,
        "seed {seed}: what the client sees when all is settled"
    );
    let Mount { process, node, client } = mount;
    let stopped = process.call(async move {
        client.detach(Duration::from_secs(60)).await.unwrap();
        node.stop(true).await.map(drop)
    });
    stopped.await.unwrap().unwrap();
    let cold = self::mount(world, "c", bucket).await;
    assert!(
        files(cold.tree().await) == expected,
        "seed {seed}: what a node sees that has nothing but the bucket"
    );
}

/// One thing that a client does in a directory.
#[expect(clippy::too_many_arguments, reason = "both sides' files")]
async fn act(
    seed: u64,
    mount: &Mount,
    dir: &str,
    step: u64,
    draw: u64,
    theirs: &RefCell<Files>,
    mine: &mut Files,
    taken: &mut Vec<String>,
) -> Result<(), FsError> {
    let parent = match mount.find(dir).await {
        Err(FsError::NotFound) if dir == "n/" => {
            mount
                .call(|client| async move {
                    client
                        .make(&Caller::ROOT, Ino::ROOT, &name("n"), 0o755, Make::Directory, false)
                        .await
                })
                .await?
                .ino
        }
        found => found?.ino,
    };
    let path = format!("{dir}l{}", draw / 8 % 3);
    let own = name(&path[dir.len()..]);
    match draw % 8 {
        0..=2 => {
            let body = Bytes::from(vec![!step as u8; 1 + (step as usize * 2791) % 100_000]);
            let ino = match mine.contains_key(&path) {
                true => {
                    mount.call(|client| async move { client.unlink(&Caller::ROOT, parent, &own).await }).await.unwrap();
                    mine.remove(&path);
                    return Ok(());
                }
                false => {
                    mount
                        .call(|client| async move {
                            client
                                .make(&Caller::ROOT, parent, &own, 0o644, Make::Regular, false)
                                .await
                        })
                        .await?
                        .ino
                }
            };
            mine.insert(path, body.clone());
            mount
                .call(
                    |client| async move { client.write(&Caller::ROOT, ino, 0, body, false).await },
                )
                .await
                .unwrap();
        }
        3..=5 => {
            let listed = mount.names(parent).await?;
            let seen: Vec<&String> = listed.keys().filter(|name| name.starts_with('l')).collect();
            let made: Vec<&str> = mine
                .keys()
                .filter_map(|path| path.strip_prefix(dir))
                .filter(|name| name.starts_with('l'))
                .collect();
            assert_eq!(
                seen, made,
                "seed {seed}: what is made here is seen, and nothing else, in {dir:?}"
            );
            let again = taken
                .iter()
                .filter_map(|path| path.strip_prefix(dir))
                .find(|name| listed.contains_key(*name));
            assert_eq!(again, None, "seed {seed}: what was taken from {dir:?} stays away");
        }
        _ => {
            let Some((old, _)) =
                mount.names(parent).await?.into_iter().find(|(name, _)| name.starts_with('p'))
            else {
                return Ok(());
            };
            let (from, key) = (name(&old), format!("{dir}{old}"));
            let body = theirs.borrow_mut().remove(&key).expect("what others put once stays there");
            taken.push(key);
            if (draw / 64).is_multiple_of(2) || mine.contains_key(&path) {
                mount
                    .call(|client| async move { client.unlink(&Caller::ROOT, parent, &from).await })
                    .await
                    .unwrap();
            } else {
                let rename = |client: Client| async move {
                    client
                        .rename(&Caller::ROOT, parent, &from, parent, &own, RenameMode::Replace)
                        .await
                };
                mount.call(rename).await.unwrap();
                mine.insert(path, body);
            }
        }
    }
    Ok(())
}

/// Situation: a directory is listed in part, by a lookup or by an earlier run of the node. Danger:
/// names of that part are never asked for again, neither those that it has nor those that it has
/// not.
#[test]
fn names_of_directories_listed_in_part_are_asked_for_one_by_one() {
    for restarts in [false, true] {
        let world = World::new(1);
        let bucket = world.bucket();
        bucket.list_at_most(4);
        for number in 0..20 {
            bucket.put_as_outsider(&format!("d/{number:02}"), "before", vec![]).unwrap();
        }
        let scene = async {
            let mut mount = mount(&world, "a", &bucket).await;
            assert_eq!(mount.read("d/00").await.unwrap(), "before");
            assert_eq!(mount.find("d/0").await, Err(FsError::NotFound));
            if restarts {
                mount.process.kill();
                mount = self::mount(&world, "a", &bucket).await;
            }
            bucket.put_as_outsider("d/0", "added", vec![]).unwrap();
            bucket.put_as_outsider("d/00", "replaced", vec![]).unwrap();
            bucket.delete_as_outsider("d/01");
            world.sleep(INTERVAL).await;
            assert_eq!(mount.read("d/0").await.unwrap(), "added");
            assert_eq!(mount.read("d/00").await.unwrap(), "replaced");
            assert_eq!(mount.find("d/01").await, Err(FsError::NotFound));
            assert_eq!(mount.read("d/02").await.unwrap(), "before");
        };
        world.run(scene).unwrap();
    }
}
