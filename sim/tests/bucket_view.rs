//! The view that a mount has of a bucket that other programs use too, and the effect of its own
//! renames and removals on objects that it has not looked at.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_sim::volume::rig;
use ebb_sim::{Process, SimBucket, World};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn path(text: &str) -> Vec<Name> {
    text.split('/').filter(|segment| !segment.is_empty()).map(name).collect()
}

/// Uses the machine's data directory, with the content that an earlier mount has left there.
async fn mount(world: &World, bucket: &SimBucket, revalidate: Option<Duration>) -> Mount {
    mount_on(world, "data", bucket, revalidate).await
}

async fn mount_on(
    world: &World,
    data_dir: &str,
    bucket: &SimBucket,
    revalidate: Option<Duration>,
) -> Mount {
    let process = world.machine("machine").process_on("node", data_dir);
    let options = Options {
        owner: "machine".into(),
        embedded: true,
        revalidate,
        flush_interval: Duration::from_secs(1),
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

    async fn find(&self, at: &str) -> Result<Attr, FsError> {
        let path = path(at);
        self.call(|client| async move {
            let mut attr = client.getattr(Ino::ROOT).await?;
            for name in &path {
                attr = client.lookup(attr.ino, name).await?;
            }
            Ok(attr)
        })
        .await
    }

    /// The directory that a path leads through, and its last name.
    async fn place(&self, at: &str) -> (Ino, Name) {
        let (dir, last) = at.rsplit_once('/').unwrap_or(("", at));
        (self.find(dir).await.unwrap().ino, name(last))
    }

    async fn names(&self, at: &str) -> Vec<String> {
        let dir = self.find(at).await.unwrap().ino;
        self.call(|client| async move {
            let (mut names, mut after) = (Vec::new(), Cookie::START);
            loop {
                let page = client.readdir(dir, after, 500).await.unwrap();
                for (entry, _) in &page.entries {
                    after = entry.cookie;
                    names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
                }
                if page.end {
                    names.sort_unstable();
                    return names;
                }
            }
        })
        .await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FsError> {
        let ((from, old), (to, new)) = (self.place(from).await, self.place(to).await);
        self.call(|client| async move {
            client.rename(&ROOT, from, &old, to, &new, RenameMode::Replace).await.map(drop)
        })
        .await
    }

    async fn mkdir(&self, at: &str) {
        let (dir, name) = self.place(at).await;
        self.call(|client| async move {
            client.make(&ROOT, dir, &name, 0o755, Make::Directory, false).await
        })
        .await
        .unwrap();
    }

    async fn rmdir(&self, at: &str) -> Result<(), FsError> {
        let (dir, name) = self.place(at).await;
        self.call(|client| async move { client.rmdir(&ROOT, dir, &name).await.map(drop) }).await
    }

    async fn admin(&self, request: AdminRequest) -> Result<AdminReply, FsError> {
        self.call(|client| async move { client.admin(request).await }).await
    }

    /// How many renamed directories keep their objects where they were.
    async fn flush(&self, at: &str) -> Result<u64, FsError> {
        match self.admin(AdminRequest::Flush { path: path(at) }).await? {
            AdminReply::Flushed { renamed, .. } => Ok(renamed),
            reply => panic!("{reply:?}"),
        }
    }

    async fn refresh(&self, at: &str) -> u64 {
        let ino = self.find(at).await.unwrap().ino;
        match self.admin(AdminRequest::Refresh { ino }).await {
            Ok(AdminReply::Refreshed { changed }) => changed,
            reply => panic!("{reply:?}"),
        }
    }

    async fn status(&self) -> Status {
        match self.admin(AdminRequest::Status).await {
            Ok(AdminReply::Status(status)) => *status,
            reply => panic!("{reply:?}"),
        }
    }

    async fn explain(&self, at: &str) -> Explained {
        match self.admin(AdminRequest::Explain { path: path(at) }).await {
            Ok(AdminReply::Explained(explained)) => *explained,
            reply => panic!("{reply:?}"),
        }
    }

    async fn expect_sound(&self) {
        let AdminReply::Fsck(report) = self.admin(AdminRequest::Fsck).await.unwrap() else {
            panic!("another answer")
        };
        assert_eq!(report.problems, vec![]);
    }

    async fn unmount(self) {
        let node = self.node.clone();
        self.process.call(async move { node.stop(true).await }).await.unwrap().unwrap();
        self.process.kill();
    }
}

fn put(bucket: &SimBucket, key: &str) {
    bucket.put_as_outsider(key, Bytes::copy_from_slice(key.as_bytes()), vec![]).unwrap();
}

fn put_all(bucket: &SimBucket, keys: &[&str]) {
    keys.iter().for_each(|key| put(bucket, key));
}

fn delete_all(bucket: &SimBucket, keys: &[&str]) {
    keys.iter().for_each(|key| bucket.delete_as_outsider(key));
}

/// Keys that other programs see, without markers of directories. The bodies are the keys at the
/// time of the put.
fn objects(bucket: &SimBucket) -> BTreeMap<String, String> {
    let all = bucket.objects().into_iter();
    all.filter(|(key, _)| !key.starts_with(".ebb/") && !key.ends_with('/'))
        .map(|(key, object)| (key, String::from_utf8(object.body.to_vec()).unwrap()))
        .collect()
}

fn moved(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, body)| (key.to_string(), body.to_string())).collect()
}

fn run<T>(seed: u64, scenario: impl AsyncFnOnce(&World) -> T) -> T {
    let world = World::new(seed);
    world.run(scenario(&world)).unwrap()
}

/// Situation: a directory of others' objects is renamed before anybody has looked into it.
/// Danger: a flush takes it for done, and others find the objects at the keys of before.
/// Expectation: they are where the names say, also below it.
#[test]
fn rename_of_unlisted_directory_moves_objects_by_the_flush() {
    run(1, async |world| {
        let bucket = world.bucket();
        put_all(&bucket, &["old/a", "old/b", "old/in/c", "old/in/deeper/d", "other/e"]);
        let mount = mount(world, &bucket, None).await;
        mount.rename("old", "new").await.unwrap();
        assert_eq!(mount.flush("").await, Ok(0));
        let expected = moved(&[
            ("new/a", "old/a"),
            ("new/b", "old/b"),
            ("new/in/c", "old/in/c"),
            ("new/in/deeper/d", "old/in/deeper/d"),
            ("other/e", "other/e"),
        ]);
        assert_eq!(objects(&bucket), expected);
        assert_eq!(mount.names("new").await, ["a", "b", "in"]);
        let status = mount.status().await;
        assert_eq!((status.dirty_files, status.renamed_dirs), (0, 0));
        mount.expect_sound().await;
    });
}

/// The same at the end of a mount, without a flush before.
#[test]
fn rename_of_unlisted_directory_moves_objects_by_the_end_of_the_mount() {
    run(2, async |world| {
        let bucket = world.bucket();
        put_all(&bucket, &["old/a", "old/in/c"]);
        let mount = mount(world, &bucket, None).await;
        mount.rename("old", "new").await.unwrap();
        mount.unmount().await;
        assert_eq!(objects(&bucket), moved(&[("new/a", "old/a"), ("new/in/c", "old/in/c")]));
    });
}

/// Nobody asks for a flush: the next one of the node itself does it.
#[test]
fn rename_of_unlisted_directory_moves_objects_in_the_background() {
    run(3, async |world| {
        let bucket = world.bucket();
        put(&bucket, "old/a");
        let mount = mount(world, &bucket, None).await;
        mount.rename("old", "new").await.unwrap();
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(objects(&bucket), moved(&[("new/a", "old/a")]));
        drop(mount);
    });
}

/// Situation: a directory is renamed, and renamed again; another one is moved into one that was
/// renamed itself. Only one directory is flushed.
#[test]
fn rename_of_renamed_unlisted_directory_moves_objects() {
    run(4, async |world| {
        let bucket = world.bucket();
        put_all(&bucket, &["old/a", "old/in/c", "more/e"]);
        let mount = mount(world, &bucket, None).await;
        mount.rename("old", "mid").await.unwrap();
        mount.rename("mid", "new").await.unwrap();
        mount.rename("more", "new/in/more").await.unwrap();
        assert_eq!(mount.flush("new/in").await, Ok(0));
        let there = objects(&bucket);
        assert_eq!(there.get("new/in/c"), Some(&"old/in/c".to_owned()), "{there:?}");
        assert_eq!(there.get("new/in/more/e"), Some(&"more/e".to_owned()), "{there:?}");
        mount.rename("new/in", "in").await.unwrap();
        assert_eq!(mount.flush("").await, Ok(0));
        let expected = moved(&[("in/c", "old/in/c"), ("in/more/e", "more/e"), ("new/a", "old/a")]);
        assert_eq!(objects(&bucket), expected);
        mount.expect_sound().await;
    });
}

/// Situation: a marker of others, and nothing else, is below the directory.
#[test]
fn rename_and_removal_of_unlisted_empty_directory_leaves_nothing() {
    run(5, async |world| {
        let bucket = world.bucket();
        put_all(&bucket, &["old/", "kept/", "x"]);
        let mount = mount(world, &bucket, None).await;
        mount.rename("old", "new").await.unwrap();
        mount.rmdir("new").await.unwrap();
        mount.rename("kept", "here").await.unwrap();
        assert_eq!(mount.flush("").await, Ok(0));
        let keys: Vec<String> =
            bucket.objects().into_keys().filter(|key| !key.starts_with(".ebb/")).collect();
        assert_eq!(keys, ["here/", "x"]);
        mount.expect_sound().await;
    });
}

/// Situation: the bucket does not answer when the names are needed. Danger: the flush says that it
/// is done. Expectation: it fails; once the bucket answers the objects move, also by themselves.
#[test]
fn rename_of_unlisted_directory_waits_for_a_bucket_that_is_away() {
    run(6, async |world| {
        let bucket = world.bucket();
        put_all(&bucket, &["old/a", "old/in/c"]);
        let mount = mount(world, &bucket, None).await;
        assert_eq!(mount.names("").await, ["old"]);
        mount.rename("old", "new").await.unwrap();
        bucket.vanish_for(Duration::from_secs(900));
        assert_eq!(mount.flush("").await, Err(FsError::TimedOut));
        assert!(mount.status().await.dirty_files > 0);
        world.sleep(Duration::from_secs(1200)).await;
        assert_eq!(objects(&bucket), moved(&[("new/a", "old/a"), ("new/in/c", "old/in/c")]));
        assert_eq!(mount.flush("").await, Ok(0));
        mount.expect_sound().await;
    });
}

/// Situation: the node is killed at any moment of that, and another one goes on with its data
/// directory, or with none. Expectation: no object is lost, and all are where the names say.
#[test]
fn rename_of_unlisted_directory_survives_a_kill_at_any_moment() {
    for (seed, after_ms) in (7..).zip([0, 20, 60, 100, 150, 200, 300, 400, 600, 900, 1500, 3000]) {
        run(seed, async |world| {
            let bucket = world.bucket();
            put_all(&bucket, &["old/a", "old/b", "old/in/c", "old/in/deeper/d"]);
            let before = mount(world, &bucket, None).await;
            before.rename("old", "new").await.unwrap();
            let flushing = before.client.clone();
            before.process.spawn(async move {
                // It ends with its process.
                flushing.admin(AdminRequest::Flush { path: vec![] }).await.ok();
            });
            world.sleep(Duration::from_millis(after_ms)).await;
            before.process.kill();
            let mount = mount(world, &bucket, None).await;
            assert_eq!(mount.flush("").await, Ok(0));
            // Late effects of requests of the earlier process are over.
            world.sleep(Duration::from_secs(120)).await;
            assert_eq!(mount.flush("").await, Ok(0));
            let expected = moved(&[
                ("new/a", "old/a"),
                ("new/b", "old/b"),
                ("new/in/c", "old/in/c"),
                ("new/in/deeper/d", "old/in/deeper/d"),
            ]);
            assert_eq!(objects(&bucket), expected, "killed after {after_ms} ms");
            assert_eq!(mount.names("").await, ["new"]);
            mount.expect_sound().await;
        });
    }
}

/// Situation: more entries than are copied. Expectation: a flush is done without them, and it, the
/// status and `explain` report where the objects are.
#[test]
fn rename_of_large_unlisted_directory_keeps_objects_and_reports_it() {
    run(30, async |world| {
        let bucket = world.bucket();
        (0..10_001).for_each(|at| put(&bucket, &format!("old/{at:05}")));
        put(&bucket, "old/in/c");
        let mount = mount(world, &bucket, None).await;
        mount.rename("old", "new").await.unwrap();
        assert_eq!(mount.flush("").await, Ok(1));
        let there = objects(&bucket);
        assert!(there.contains_key("old/00000") && there.contains_key("old/in/c"));
        let status = mount.status().await;
        assert_eq!((status.dirty_files, status.renamed_dirs), (0, 1));
        assert_eq!(mount.explain("new").await.prefix.as_deref(), Some("old/"));
        assert_eq!(mount.names("new").await.len(), 10_002);
        assert_eq!(mount.flush("").await, Ok(1));
        mount.unmount().await;
        // A node that has nothing but the bucket.
        let other = mount_on(world, "other", &bucket, None).await;
        assert_eq!(other.names("").await, ["new"]);
        assert_eq!(other.flush("").await, Ok(1));
    });
}

/// Situation: keys that cannot be names. Expectation: they are counted with their directory, keep
/// it from being removed, and stay in it when it is renamed.
#[test]
fn keys_not_shown_are_counted_and_keep_their_directory() {
    run(40, async |world| {
        let bucket = world.bucket();
        let long = "n".repeat(300);
        let keys = [format!("d/{long}"), format!("e/{long}"), format!("e/{long}/x")];
        keys.iter().for_each(|key| put(&bucket, key));
        put_all(&bucket, &["e/shown", "f/a.ebb%object", "f/a", "f/a/b"]);
        let mount = mount(world, &bucket, None).await;
        assert_eq!(mount.names("d").await, [""; 0]);
        assert_eq!(mount.names("e").await, ["shown"]);
        let explained = mount.explain("d").await;
        assert_eq!(explained.not_shown, (1, vec![keys[0].clone()]));
        assert_eq!(mount.explain("e").await.not_shown.0, 2);
        let troubles = mount.status().await.troubles;
        let told = |dir: &str| {
            let dir = format!("directory {dir} of the volume: ");
            troubles
                .iter()
                .any(|trouble| trouble.what.starts_with(&dir) && trouble.what.contains("not shown"))
        };
        assert!(told("/d") && told("/e"), "{troubles:?}");
        assert_eq!(mount.rmdir("d").await, Err(FsError::NotEmpty));
        mount.mkdir("empty").await;
        assert_eq!(mount.rename("empty", "d").await, Err(FsError::NotEmpty));
        mount.rename("e", "e2").await.unwrap();
        assert_eq!(mount.flush("").await, Ok(1));
        assert_eq!(mount.explain("e2").await.not_shown.0, 2);
        assert!(keys.iter().all(|key| bucket.objects().contains_key(key)));
        mount.unmount().await;
        // The next run has not read a listing yet.
        let mount = self::mount(world, &bucket, None).await;
        assert_eq!(mount.rmdir("d").await, Err(FsError::NotEmpty));
        assert_eq!(mount.names("").await, ["d", "e2", "empty", "f"]);
        // Another program removes the objects that were in the way.
        keys.iter().for_each(|key| bucket.delete_as_outsider(key));
        mount.refresh("e2").await;
        mount.rmdir("d").await.unwrap();
        assert_eq!(mount.flush("").await, Ok(0));
        let there = objects(&bucket);
        assert_eq!(there.get("e2/shown"), Some(&"e/shown".to_owned()), "{there:?}");
        assert_eq!(mount.status().await.troubles.len(), 0);
        mount.expect_sound().await;
    });
}

/// Situation: another program changes the bucket while nothing is mounted. Expectation: the next
/// mount on the same data directory shows the changes, without an interval too, and requests them
/// once.
#[test]
fn new_mount_shows_outside_changes() {
    for (seed, large) in [(50, false), (51, true)] {
        run(seed, async |world| {
            let bucket = world.bucket();
            put_all(&bucket, &["d/gone", "d/other", "d/stays", "e/x"]);
            if large {
                (0..1500).for_each(|at| put(&bucket, &format!("d/{at:04}")));
            }
            let before = mount(world, &bucket, None).await;
            before.names("d").await;
            before.names("e").await;
            before.unmount().await;
            delete_all(&bucket, &["d/gone", "e/x"]);
            bucket.put_as_outsider("d/other", "longer than it was", vec![]).unwrap();
            put(&bucket, "d/new");
            let mount = mount(world, &bucket, None).await;
            assert_eq!(mount.find("d/gone").await, Err(FsError::NotFound));
            assert_eq!(mount.find("d/other").await.unwrap().size_bytes, 18);
            assert_eq!(mount.find("d/new").await.unwrap().size_bytes, 5);
            assert_eq!(mount.find("d/stays").await.unwrap().size_bytes, 7);
            assert_eq!(mount.find("e").await, Err(FsError::NotFound));
            let shown = mount.names("d").await;
            assert_eq!(shown.len(), if large { 1503 } else { 3 });
            let asked = bucket.requests();
            mount.names("d").await;
            mount.find("d/stays").await.unwrap();
            assert_eq!(bucket.requests(), asked);
            mount.expect_sound().await;
        });
    }
}

/// Situation: another program changes a directory that this mount has just listed. Expectation:
/// only a refresh shows the changes, and it counts the new entries.
#[test]
fn refresh_shows_outside_changes() {
    run(60, async |world| {
        let bucket = world.bucket();
        put_all(&bucket, &["d/gone", "d/other", "d/stays", "d/in/x"]);
        let mount = mount(world, &bucket, None).await;
        mount.names("d").await;
        mount.names("d/in").await;
        bucket.delete_as_outsider("d/gone");
        bucket.put_as_outsider("d/other", "longer than it was", vec![]).unwrap();
        put_all(&bucket, &["d/new", "d/in/y"]);
        assert_eq!(mount.names("d").await, ["gone", "in", "other", "stays"]);
        assert_eq!(mount.refresh("d").await, 3);
        assert_eq!(mount.names("d").await, ["in", "new", "other", "stays"]);
        assert_eq!(mount.names("d/in").await, ["x"]);
        assert_eq!(mount.refresh("d/in").await, 1);
        assert_eq!(mount.names("d/in").await, ["x", "y"]);
        bucket.delete_as_outsider("d/stays");
        assert_eq!(mount.refresh("d/stays").await, 1);
        assert_eq!(mount.find("d/stays").await, Err(FsError::NotFound));
        mount.expect_sound().await;
        mount.unmount().await;
        // Names that this mount has not known before have not changed.
        let fresh = mount_on(world, "fresh", &bucket, None).await;
        assert_eq!((fresh.refresh("").await, fresh.refresh("d").await), (0, 0));
        put(&bucket, "d/newer");
        assert_eq!(fresh.refresh("d").await, 1);
        fresh.expect_sound().await;
    });
}

/// Situation: another program deletes `a` and puts `a/b`, or the other way round. Danger: the name
/// leads nowhere. Expectation: within the interval the name matches the bucket, in small
/// directories and in large ones that are not listed for one name.
#[test]
fn object_that_becomes_a_directory_is_shown_as_one() {
    const INTERVAL: Duration = Duration::from_secs(8);
    for (seed, large) in [(70, false), (71, true)] {
        run(seed, async |world| {
            let bucket = world.bucket();
            put_all(&bucket, &["d/a", "d/x/y", "d/x/z"]);
            if large {
                (0..1500).for_each(|at| put(&bucket, &format!("d/{at:04}")));
            }
            let mount = mount(world, &bucket, Some(INTERVAL)).await;
            mount.names("d").await;
            mount.names("d/x").await;
            // Names that are not there are looked for one by one in a large directory.
            assert_eq!(mount.find("d/absent").await, Err(FsError::NotFound));
            for _ in 0..2 {
                bucket.delete_as_outsider("d/a");
                put(&bucket, "d/a/b");
                delete_all(&bucket, &["d/x/y", "d/x/z"]);
                put(&bucket, "d/x");
                world.sleep(INTERVAL).await;
                assert_eq!(mount.find("d/a").await.unwrap().kind, FileKind::Directory);
                assert_eq!(mount.names("d/a").await, ["b"]);
                assert_eq!(mount.find("d/x").await.unwrap().kind, FileKind::Regular);
                delete_all(&bucket, &["d/a/b", "d/x"]);
                put_all(&bucket, &["d/a", "d/x/y", "d/x/z"]);
                world.sleep(INTERVAL).await;
                assert_eq!(mount.find("d/a").await.unwrap().kind, FileKind::Regular);
                assert_eq!(mount.names("d/x").await, ["y", "z"]);
            }
            mount.expect_sound().await;
        });
    }
}

/// Situation: another program puts objects below the key of a file that stays, or at the key of a
/// directory that this volume has made. Expectation: the name stays, and the objects that it hides
/// are shown beside it, or counted.
#[test]
fn object_beside_a_directory_is_shown_or_counted() {
    const INTERVAL: Duration = Duration::from_secs(8);
    run(80, async |world| {
        let bucket = world.bucket();
        put(&bucket, "d/a");
        let mount = mount(world, &bucket, Some(INTERVAL)).await;
        mount.mkdir("d/made").await;
        mount.flush("").await.unwrap();
        put_all(&bucket, &["d/a/b", "d/made"]);
        world.sleep(INTERVAL).await;
        assert_eq!(mount.names("d").await, ["a", "made", "made.ebb%object"]);
        assert_eq!(mount.find("d/a").await.unwrap().kind, FileKind::Regular);
        assert_eq!(mount.explain("d").await.not_shown, (1, vec!["d/a/".to_owned()]));
        mount.expect_sound().await;
    });
}
