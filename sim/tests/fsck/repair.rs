//! Repair changes exactly the findings, and a crash at any step of it loses nothing.

use super::*;
use ebb_core::backing::page_key;
use ebb_ports::OpenMode;

impl Mount {
    async fn mend(&self, report: &FsckReport) {
        for problem in &report.problems {
            let remedy = problem.remedy.clone().unwrap_or_else(|| panic!("{problem:?}"));
            self.client.admin(AdminRequest::Repair { remedy }).await.unwrap();
        }
        // Updates the pages with the tags of repeated uploads.
        self.flush().await;
    }

    async fn read(&self, path: &str) -> Bytes {
        let mut at = Ino::ROOT;
        for text in path.split('/') {
            at = self.client.lookup(at, &name(text)).await.unwrap().ino;
        }
        self.client.read(at, 0, content(0).len()).await.unwrap()
    }

    /// The tree is as [`Mount::tree`] made it.
    async fn is_whole(&self) {
        assert_eq!(self.read("a").await, content(0));
        assert_eq!(self.read("d/b").await, content(1));
        assert_eq!(self.read("also-b").await, content(1));
        self.client.lookup(Ino::ROOT, &name("d")).await.unwrap();
    }

    async fn is_clean(&self) {
        let report = self.fsck().await;
        assert_eq!((told(&report), &report.others, report.waiting), (vec![], &vec![], 0));
    }

    /// Creates an unknown file in the data directory.
    async fn plant(&self, path: &str) {
        let file = self.process.ports.disk.open(path, OpenMode::Create).await.unwrap();
        file.write_at(0, Bytes::from_static(b"stray")).await.unwrap();
    }

    /// The tree, and the traces of a large and a small file that were removed.
    async fn worn(&self) -> Ino {
        self.tree().await;
        let gone = self.file(Ino::ROOT, "gone", 7).await;
        let small = self.make(Ino::ROOT, "small", Make::Regular).await;
        self.client
            .write(&Caller::ROOT, small, 0, Bytes::from_static(b"small"), false)
            .await
            .unwrap();
        for text in ["gone", "small"] {
            self.client.unlink(&Caller::ROOT, Ino::ROOT, &name(text)).await.unwrap();
        }
        self.flush().await;
        self.client.sync_fs().await.unwrap();
        gone
    }
}

/// Kinds of damage with one remedy.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Plant {
    ObjectGone,
    PageGone,
    PageUnreadable,
    PageOther,
    PageLeft,
    FileLeft,
    PackLeft,
    BlockRotten,
    SnapshotRotten,
    LogRotten,
}

const PLANTS: [Plant; 10] = [
    Plant::ObjectGone,
    Plant::PageGone,
    Plant::PageUnreadable,
    Plant::PageOther,
    Plant::PageLeft,
    Plant::FileLeft,
    Plant::PackLeft,
    Plant::BlockRotten,
    Plant::SnapshotRotten,
    Plant::LogRotten,
];

impl Plant {
    async fn put(self, world: &World, mount: &Mount, bucket: &SimBucket, gone: Ino) {
        let dir = mount.ino(Ino::ROOT, "d").await;
        let a = mount.ino(Ino::ROOT, "a").await;
        let disk = world.machine("a").disk("node");
        match self {
            Plant::ObjectGone => bucket.delete_as_outsider("a"),
            Plant::PageGone => bucket.delete_as_outsider(&page_key(dir)),
            Plant::PageUnreadable => put(bucket, &page_key(dir), "no page"),
            Plant::PageOther => {
                put(bucket, &page_key(dir), bucket.objects()[&page_key(Ino::ROOT)].body.clone())
            }
            Plant::PageLeft => put(bucket, &page_key(gone), "left"),
            Plant::FileLeft => mount.plant(&rig::store_file(&world.bucket(), gone)).await,
            Plant::PackLeft => mount.plant("packs/0000000000000000").await,
            Plant::BlockRotten => assert_eq!(
                disk.flip(&rig::store_file(&world.bucket(), a), BLOCK_BYTES + 7, 4),
                Ok(true)
            ),
            Plant::SnapshotRotten => {
                let snapshot =
                    disk.paths().into_iter().find(|path| path.starts_with("snapshot/")).unwrap();
                assert_eq!(disk.flip(&snapshot, 70, 4), Ok(true));
            }
            Plant::LogRotten => assert_eq!(disk.flip("log/00000001", 8100, 4), Ok(true)),
        }
    }

    fn remedy(self) -> fn(&Remedy) -> bool {
        match self {
            Plant::ObjectGone | Plant::PageGone | Plant::PageUnreadable | Plant::PageOther => {
                |remedy| matches!(remedy, Remedy::SendAgain { .. })
            }
            Plant::PageLeft => |remedy| matches!(remedy, Remedy::Delete { .. }),
            Plant::FileLeft | Plant::PackLeft => |remedy| matches!(remedy, Remedy::Remove { .. }),
            Plant::BlockRotten => |remedy| matches!(remedy, Remedy::Refetch { .. }),
            Plant::SnapshotRotten | Plant::LogRotten => |remedy| *remedy == Remedy::Snapshot,
        }
    }
}

/// Each kind of damage is found and repaired by its remedy alone, and the volume is as before: in
/// this run, after a crash, and from the bucket alone.
#[test]
fn repair_corrects_each_planted_damage() {
    for plant in PLANTS {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let gone = mount.worn().await;
            let dir = mount.ino(Ino::ROOT, "d").await;
            mount.is_clean().await;
            plant.put(&world, &mount, &bucket, gone).await;
            let before = bucket.objects();
            let report = mount.fsck().await;
            match &report.problems[..] {
                [problem] => assert!(
                    problem.remedy.as_ref().is_some_and(plant.remedy()),
                    "{plant:?}: {report:?}"
                ),
                _ => panic!("{plant:?}: {report:?}"),
            }
            mount.mend(&report).await;
            mount.is_clean().await;
            mount.is_whole().await;
            let after = bucket.objects();
            let changed: Vec<&String> = before
                .keys()
                .chain(after.keys())
                .filter(|key| {
                    before.get(*key).map(|it| &it.meta.etag)
                        != after.get(*key).map(|it| &it.meta.etag)
                })
                .collect();
            let is_its_own = |key: &&String| match plant {
                // The recorded tag of the file differs now.
                Plant::ObjectGone => ["a", ".ebb/d/1", ".ebb/head"].contains(&key.as_str()),
                Plant::PageGone | Plant::PageUnreadable | Plant::PageOther => {
                    [page_key(dir).as_str(), ".ebb/head"].contains(&key.as_str())
                }
                Plant::PageLeft => [page_key(gone).as_str(), ".ebb/head"].contains(&key.as_str()),
                _ => *key == ".ebb/head",
            };
            assert!(changed.iter().all(is_its_own), "{plant:?}: {changed:?}");
            // Done again it does nothing.
            mount.mend(&report).await;
            mount.is_clean().await;

            world.machine("a").power_cut();
            let again = Mount::new(&world, "a", &bucket).await;
            again.is_clean().await;
            again.is_whole().await;
            again.node.stop(true).await.unwrap();
            let elsewhere = Mount::new(&world, "b", &bucket).await;
            elsewhere.is_whole().await;
        });
    }
}

/// Situation: the process is killed, or the power fails, at any time during a repair. Expectation:
/// nothing is lost, and another repair ends it.
#[test]
fn a_crash_during_repair_loses_nothing() {
    for plant in PLANTS {
        for step in 0..10u64 {
            let world = World::new(step);
            let bucket = world.bucket();
            run(&world, async {
                let mount = Mount::new(&world, "a", &bucket).await;
                let gone = mount.worn().await;
                plant.put(&world, &mount, &bucket, gone).await;
                let report = mount.fsck().await;
                let (client, remedy) =
                    (mount.client.clone(), report.problems[0].remedy.clone().unwrap());
                mount.process.spawn(async move {
                    drop(client.admin(AdminRequest::Repair { remedy }).await)
                });
                world.sleep(Duration::from_millis(10 * step * step)).await;
                match step % 2 {
                    0 => mount.process.kill(),
                    _ => world.machine("a").power_cut(),
                }
                // Before they are repaired the only snapshot and the log are lost with the process.
                let Ok(again) = Mount::open(&world, "a", &bucket, Options::default()).await else {
                    assert!(
                        matches!(plant, Plant::SnapshotRotten | Plant::LogRotten) && step < 5,
                        "{plant:?}, step {step}"
                    );
                    return;
                };
                again.flush().await;
                again.mend(&again.fsck().await).await;
                again.is_whole().await;
                again.is_clean().await;
            });
        }
    }
}

/// Damage with several possible remedies is reported with its size and left to the user. One remedy
/// is a rollback to the last upload (O-74), which survives a power cut.
#[test]
fn repair_leaves_ambiguous_damage_to_the_user() {
    for cut in [false, true] {
        let world = World::new(1);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let (_, a) = mount.tree().await;
            let before = mount.client.getattr(a).await.unwrap();
            let longer = Bytes::from([&content(5)[..], &content(6)[..]].concat());
            mount.client.write(&Caller::ROOT, a, 0, longer.clone(), false).await.unwrap();
            mount.client.fsync(a).await.unwrap();
            let disk = world.machine("a").disk("node");
            assert_eq!(
                disk.flip(&rig::store_file(&world.bucket(), a), BLOCK_BYTES + 7, 4),
                Ok(true)
            );
            let report = mount.fsck().await;
            let expected = format!(
                "/a (inode {a}): block 1 is damaged on the node's disk, and the bucket does not \
                 have it: bytes 65536 to 131072 are \
                 lost. Write them anew, remove the file, or give up what was written to it since \
                 it was last sent (`ebb rollback`)"
            );
            assert_eq!(report.problems, [Problem { what: expected, remedy: None }]);
            assert_eq!(mount.client.read(a, BLOCK_BYTES, 1).await, Err(FsError::Io));

            let rolled_back =
                mount.client.admin(AdminRequest::RollBack { path: vec![name("a")] }).await.unwrap();
            let (before_bytes, bytes) = (longer.len() as u64, content(0).len() as u64);
            assert!(
                matches!(rolled_back, AdminReply::RolledBack { before_bytes: before, bytes: now, lost_bytes } if (before, now) == (before_bytes, bytes) && lost_bytes >= before_bytes),
                "{rolled_back:?}"
            );
            let mount = match cut {
                false => mount,
                true => {
                    world.machine("a").power_cut();
                    Mount::new(&world, "a", &bucket).await
                }
            };
            assert_eq!(mount.read("a").await, content(0));
            let after = mount.client.getattr(a).await.unwrap();
            assert_eq!((after.size_bytes, after.mtime), (before.size_bytes, before.mtime));
            mount.flush().await;
            mount.is_clean().await;
            mount.is_whole().await;
            let AdminReply::Status(status) =
                mount.client.admin(AdminRequest::Status).await.unwrap()
            else {
                panic!("another answer")
            };
            assert_eq!(status.troubles, vec![]);
            // Unchanged files are left alone.
            mount.client.admin(AdminRequest::RollBack { path: vec![name("a")] }).await.unwrap();
            mount.is_clean().await;
        });
    }
}

/// A rollback fails if the file was never in the bucket, or its object is lost.
#[test]
fn roll_back_without_an_object_is_refused() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        mount.tree().await;
        let new = mount.file(Ino::ROOT, "new", 4).await;
        assert!(
            mount.client.admin(AdminRequest::RollBack { path: vec![name("new")] }).await.is_err()
        );
        assert_eq!(mount.client.read(new, 0, content(4).len()).await, Ok(content(4)));
        bucket.delete_as_outsider("a");
        assert!(
            mount.client.admin(AdminRequest::RollBack { path: vec![name("a")] }).await.is_err()
        );
        mount.is_whole().await;
        assert!(
            mount.client.admin(AdminRequest::RollBack { path: vec![name("d")] }).await.is_err()
        );
    });
}

/// A rollback is atomic under power cuts, and the dropped changes never reappear.
#[test]
fn a_power_cut_during_a_rollback_leaves_one_of_two() {
    for step in 0..16 {
        let world = World::new(step);
        let bucket = world.bucket();
        run(&world, async {
            let mount = Mount::new(&world, "a", &bucket).await;
            let (_, a) = mount.tree().await;
            mount.client.write(&Caller::ROOT, a, 0, content(5), false).await.unwrap();
            mount.client.fsync(a).await.unwrap();
            let (client, done) = (mount.client.clone(), Rc::new(std::cell::Cell::new(false)));
            let ended = done.clone();
            mount.process.spawn(async move {
                client.admin(AdminRequest::RollBack { path: vec![name("a")] }).await.unwrap();
                ended.set(true);
            });
            world.sleep(Duration::from_millis(step * 4)).await;
            world.machine("a").power_cut();
            let again = Mount::new(&world, "a", &bucket).await;
            let found = again.read("a").await;
            assert!(found == content(0) || !done.get() && found == content(5), "step {step}");
            again.flush().await;
            again.is_clean().await;
            assert_eq!(again.read("a").await, found);
        });
    }
}

/// An object that came back, or is another's by now, is left alone.
#[test]
fn repair_skips_damage_that_has_gone() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let mount = Mount::new(&world, "a", &bucket).await;
        let gone = mount.worn().await;
        let kept = bucket.objects()["a"].clone();
        bucket.delete_as_outsider("a");
        put(&bucket, &page_key(gone), "left");
        let report = mount.fsck().await;
        assert_eq!(report.problems.len(), 2, "{report:?}");
        bucket.put_as_outsider("a", kept.body.clone(), kept.meta.tags.clone()).unwrap();
        put(&bucket, &page_key(gone), "another");
        let left = bucket.objects()[&page_key(gone)].meta.etag.clone();
        for problem in &report.problems {
            let mended = mount
                .client
                .admin(AdminRequest::Repair { remedy: problem.remedy.clone().unwrap() })
                .await;
            assert_eq!(mended.is_ok(), problem.what.contains("its object a"), "{mended:?}");
        }
        assert_eq!(bucket.objects()[&page_key(gone)].meta.etag, left);
        assert_eq!(bucket.objects()["a"].meta.etag, kept.meta.etag);
        mount.is_whole().await;
    });
}

/// Situation: a client on another machine has written without a force; the file is rolled back;
/// then the power fails. Danger: the client replays its write over the rolled-back file.
/// Expectation: the file equals its object.
#[test]
fn roll_back_survives_a_client_replay() {
    let world = World::new(1);
    let bucket = world.bucket();
    run(&world, async {
        let options = Options {
            owner: "n".into(),
            flush_interval: Duration::from_secs(3600),
            scrub_interval: None,
            ..Options::default()
        };
        let start = async || {
            let process = world.machine("n").process("node");
            let node = rig::open(&process, &bucket, &options).await.unwrap().unwrap();
            rig::serve(&process, "n", &node).await;
        };
        start().await;
        let process = world.machine("c").process("client");
        let client = rig::attach_wire(&process, "n").await.unwrap().unwrap();
        let done = process.call(async move {
            let a = client
                .make(&Caller::ROOT, Ino::ROOT, &name("a"), 0o600, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            client.write(&Caller::ROOT, a, 0, content(0), false).await.unwrap();
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            client.write(&Caller::ROOT, a, 0, content(5), false).await.unwrap();
            client.admin(AdminRequest::RollBack { path: vec![name("a")] }).await.unwrap();
            // Overwriting a block with a checksum forces the log record, but not the
            // bytes.
            client.write(&Caller::ROOT, a, 0, Bytes::from_static(b"new"), false).await.unwrap();
            let b = client
                .make(&Caller::ROOT, Ino::ROOT, &name("b"), 0o600, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            for _ in 0..2 {
                client
                    .write(&Caller::ROOT, b, 0, vec![7; BLOCK_BYTES as usize].into(), false)
                    .await
                    .unwrap();
            }
            (client, a)
        });
        let (client, a) = done.await.unwrap();
        world.machine("n").power_cut();
        world.sleep(Duration::from_secs(1)).await;
        start().await;
        let read = process.call(async move {
            let read = client.read(a, 0, content(0).len()).await;
            (read, rig::fsck(&client).await)
        });
        let (read, report) = read.await.unwrap();
        let expected = [b"new", &content(0)[3..]].concat();
        assert!(read.unwrap() == expected, "neither what was given up nor what was there before");
        assert_eq!(told(&report.unwrap()), Vec::<&str>::new());
    });
}
