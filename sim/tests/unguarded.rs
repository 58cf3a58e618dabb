//! A store without conditional requests: nothing stops a late request from taking effect, and only
//! the user can declare a node dead.

use bytes::Bytes;
use ebb_client::Client;
use ebb_format::head;
use ebb_model::*;
use ebb_node::head::{HEAD_KEY, TakeOver};
use ebb_node::{Node, Options};
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, SimBucket, Slowness, World};
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn late() -> FaultPlan {
    let bucket =
        BucketFaults { late: Rate::ALWAYS, late_limit: 9 * SECOND, ..BucketFaults::default() };
    FaultPlan { bucket, ..FaultPlan::default() }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn world(seed: u64) -> (World, SimBucket) {
    let world = World::new(seed);
    let bucket = world.bucket();
    bucket.forget_conditions();
    (world, bucket)
}

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

async fn mount(world: &World, machine: &str, bucket: &SimBucket, head_term: Duration) -> Mount {
    let process = world.machine(machine).process_on("node", "data");
    let options = Options {
        owner: machine.into(),
        embedded: true,
        take_over: TakeOver::Now,
        head_term,
        flush_interval: SECOND,
        // Only mandatory forces happen.
        commit_interval: 3600 * SECOND,
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

    async fn make(&self, file: &'static str) {
        self.call(|client| async move {
            let made = client
                .make(&Caller::ROOT, Ino::ROOT, &name(file), 0o644, Make::Regular, false)
                .await
                .unwrap();
            client
                .write(&Caller::ROOT, made.ino, 0, Bytes::from_static(b"content"), false)
                .await
                .unwrap();
        })
        .await;
    }

    async fn flush(&self) -> Result<(), FsError> {
        self.call(|client| async move {
            client.admin(AdminRequest::Flush { path: vec![] }).await.map(drop)
        })
        .await
    }

    async fn end(self) {
        let Mount { process, node, client } = self;
        let ended = process.call(async move {
            client.detach(5 * SECOND).await.unwrap();
            node.stop(true).await.unwrap();
        });
        ended.await.expect("the node lives");
        process.kill();
    }
}

/// The next put of the head is delayed, and its reply lost.
async fn renew_late(world: &World, bucket: &SimBucket) {
    let puts = || bucket.requests().get("put").copied().unwrap_or(0);
    let before = puts();
    while puts() == before {
        world.sleep(Duration::from_millis(1)).await;
    }
    world.set_faults(late());
    world.sleep(Duration::from_millis(30)).await;
    world.set_faults(FaultPlan::default());
}

fn owner(bucket: &SimBucket) -> String {
    head::decode(&bucket.objects()[HEAD_KEY].body).unwrap().owner
}

fn run(world: &World, scene: impl Future<Output = ()>) {
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a node dies while it renews the head; the put takes effect late, after another node
/// has taken the volume. Danger: the other node believes that it lost the volume and never writes
/// again; or it ends, and its successor counts on from the late head: two nodes get the same
/// incarnation, and with it the same inode ids.
#[test]
fn a_late_head_of_a_dead_node_takes_nothing() {
    for (seed, head_term) in (0..16).flat_map(|seed| [(seed, 12 * SECOND), (seed, 60 * SECOND)]) {
        let (world, bucket) = world(seed);
        run(&world, async {
            let first = mount(&world, "a", &bucket, 3 * SECOND).await;
            renew_late(&world, &bucket).await;
            first.process.kill();
            let second = mount(&world, "b", &bucket, head_term).await;
            second.make("file").await;
            let made = async {
                while !bucket.objects().contains_key("file") {
                    world.sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(owner(&bucket), "b", "seed {seed}: who writes is not who has the head");
            };
            let waiting = world.sleep(60 * SECOND);
            futures_util::pin_mut!(made, waiting);
            futures_util::future::select(made, waiting).await;
            assert!(bucket.objects().contains_key("file"), "seed {seed}: nothing is written");
            second.make("other").await;
            second.flush().await.unwrap();
            second.end().await;
            assert!(
                head::decode(&bucket.objects()[HEAD_KEY].body).unwrap().released,
                "seed {seed}"
            );
        });
    }
}

/// Situation: the reply to a renewal is lost, and then the node ends. Danger: the renewal takes
/// effect after the release, and replaces the next node's head, or the released one.
#[test]
fn nothing_comes_after_a_volume_was_given_back() {
    for seed in 0..16 {
        let (world, bucket) = world(seed);
        run(&world, async {
            let first = mount(&world, "a", &bucket, 3 * SECOND).await;
            renew_late(&world, &bucket).await;
            if seed % 2 == 1 {
                // Nor that it was given back.
                let giving_back = renew_late(&world, &bucket);
                futures_util::future::join(first.end(), giving_back).await;
            } else {
                first.end().await;
            }
            let ended = world.now();
            world.sleep(20 * SECOND).await;
            let last = bucket.history().into_iter().rfind(|change| change.key == HEAD_KEY).unwrap();
            assert!(last.at <= ended, "seed {seed}: at {:?}, after {ended:?}", last.at);
            assert!(
                head::decode(&bucket.objects()[HEAD_KEY].body).unwrap().released,
                "seed {seed}"
            );
        });
    }
}

/// Situation: some requests take seconds, and a node that has taken the volume from a dead one
/// releases it, with one more renewal in flight. Danger: that renewal takes effect last.
#[test]
fn a_renewal_that_nobody_waits_for_does_not_come_after_a_volume_was_given_back() {
    for seed in 0..100 {
        let (world, bucket) = world(seed);
        run(&world, async {
            mount(&world, "a", &bucket, 3 * SECOND).await.process.kill();
            let second = mount(&world, "b", &bucket, 10 * SECOND).await;
            let slow = Slowness { rate: Rate::one_in(3), limit: 9 * SECOND };
            world.set_faults(FaultPlan {
                bucket: BucketFaults { slow, ..BucketFaults::default() },
                ..FaultPlan::default()
            });
            second.end().await;
            world.sleep(20 * SECOND).await;
            assert!(
                head::decode(&bucket.objects()[HEAD_KEY].body).unwrap().released,
                "seed {seed}"
            );
        });
    }
}

/// Situation: a power cut right after an upload of a file that was never forced. Danger: the object
/// is not recognised as that upload, since a later one might follow, and the remains of the local
/// bytes are shown.
#[test]
fn upload_of_an_unforced_file_is_recognised_after_a_power_cut() {
    for seed in 0..16 {
        let (world, bucket) = world(seed);
        run(&world, async {
            let first = mount(&world, "a", &bucket, 60 * SECOND).await;
            first.make("file").await;
            while !bucket.objects().contains_key("file") {
                world.sleep(Duration::from_millis(1)).await;
            }
            world.sleep(Duration::from_millis(seed)).await;
            world.machine("a").power_cut();
            let second = mount(&world, "a", &bucket, 60 * SECOND).await;
            let content = second.call(|client| async move {
                let file = client.lookup(Ino::ROOT, &name("file")).await.unwrap();
                client.read(file.ino, 0, 100).await
            });
            assert_eq!(content.await.unwrap(), "content", "seed {seed}");
            second.end().await;
        });
    }
}

/// Situation: a node dies while it creates a volume, and its first put of the head takes effect
/// after its next run has created the volume and was killed before it read the head again. Danger:
/// that counts as another volume, and the data directory is rejected for ever.
#[test]
fn a_volume_is_made_once() {
    for seed in 0..16 {
        let (world, bucket) = world(seed);
        run(&world, async {
            world.set_faults(late());
            let process = world.machine("a").process_on("node", "data");
            let options =
                Options { embedded: true, take_over: TakeOver::Now, ..Options::default() };
            let opening = rig::open(&process, &bucket, &options);
            let dying = async {
                while !bucket.requests().contains_key("put") {
                    world.sleep(Duration::from_millis(1)).await;
                }
                world.sleep(Duration::from_millis(20)).await;
                process.kill();
            };
            let (opened, ()) = futures_util::future::join(opening, dying).await;
            assert!(opened.is_none(), "it dies in the midst of it");
            world.set_faults(FaultPlan::default());
            let second = mount(&world, "a", &bucket, 60 * SECOND).await;
            second.make("file").await;
            second.call(|client| async move { client.sync_fs().await.unwrap() }).await;
            second.process.kill();
            world.sleep(10 * SECOND).await;
            let third = mount(&world, "a", &bucket, 60 * SECOND).await;
            third.flush().await.unwrap();
            third.end().await;
            assert!(bucket.objects().contains_key("file"), "seed {seed}");
        });
    }
}

/// Situation: the store rejects conditional writes. Another program has made a directory with a
/// non-empty marker. Danger: directories and their pages are never written, or the marker is
/// replaced.
#[test]
fn directories_are_written_without_conditions() {
    let (world, bucket) = world(1);
    let said = vec![("note".to_owned(), "theirs".to_owned())];
    run(&world, async {
        let first = mount(&world, "a", &bucket, 12 * SECOND).await;
        first
            .call(|client| async move {
                let root = Caller::ROOT;
                let made = client
                    .make(&root, Ino::ROOT, &name("dir"), 0o755, Make::Directory, false)
                    .await
                    .unwrap();
                let target = Make::Symlink { target: Bytes::from_static(b"elsewhere") };
                client.make(&root, made.ino, &name("link"), 0o777, target, false).await.unwrap();
                client
                    .make(&root, Ino::ROOT, &name("both"), 0o755, Make::Directory, false)
                    .await
                    .unwrap();
            })
            .await;
        bucket.put_as_outsider("both/", Bytes::new(), said.clone()).unwrap();
        first.flush().await.unwrap();
        first.end().await;
        assert_eq!(bucket.objects()["both/"].meta.tags, said);
        let second = mount(&world, "b", &bucket, 12 * SECOND).await;
        let target = second.call(|client| async move {
            let dir = client.lookup(Ino::ROOT, &name("dir")).await.unwrap();
            let link = client.lookup(dir.ino, &name("link")).await.unwrap();
            client.readlink(link.ino).await.unwrap()
        });
        assert_eq!(target.await, "elsewhere");
        second.end().await;
    });
}
