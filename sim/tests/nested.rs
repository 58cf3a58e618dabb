//! Stores that cannot have both an object at a key and objects below it, such as directories:
//! through any exchange of names, every object reaches its key.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options, Stopped};
use ebb_sim::oracle::SeenTree;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, World};
use std::rc::Rc;
use std::time::Duration;

const ROOT: Caller = Caller::ROOT;

/// Steps in order: `hold` opens a file until the end, `FLUSH` uploads everything.
const CHANGES_OF_PLACE: [(&str, &str); 13] = [
    ("a file goes below its name", "write b; FLUSH; mv b t; mkdir b; mv t b/b"),
    ("a file takes its directory's name", "mkdir b; write b/b; FLUSH; mv b/b t; rmdir b; mv t b"),
    ("a file and a directory change places", "mkdir d; write d/x; write b; FLUSH; swap b d"),
    (
        "so do two below others",
        "mkdir p; mkdir p/d; write p/d/x; mkdir q; write q/b; FLUSH; swap q/b p/d",
    ),
    (
        "a directory takes the name of an open file",
        "write b; FLUSH; hold b; rm b; mkdir b; write b/x",
    ),
    (
        "a file takes the name of a directory with an open file",
        "mkdir d; write d/x; FLUSH; hold d/x; rm d/x; rmdir d; write d",
    ),
    (
        "a directory comes where one had an open file",
        "mkdir d; write d/x; FLUSH; hold d/x; rm d/x; rmdir d; mkdir d; write d/x",
    ),
    ("a changed file goes below its name", "write b; FLUSH; mv b t; mkdir b; mv t b/b; write b/b"),
    (
        "a new file is below what was a file",
        "write b; FLUSH; mv b t; mkdir b; mkdir b/c; write b/c/x",
    ),
    (
        "a new file is where a directory was",
        "mkdir d; mkdir d/e; write d/e/x; FLUSH; mv d/e e; rmdir d; write d",
    ),
    (
        "two files go below each other",
        "mkdir a; mkdir c; write a/b; write c/d; FLUSH; mv a/b t; mv c/d u; rmdir a; rmdir c; mv t \
         c; mv u a",
    ),
    (
        "three in a circle",
        "write a; mkdir b; write b/x; mkdir c; write c/y; FLUSH; swap a b; swap b c; swap a c",
    ),
    (
        "a file goes, and a directory comes",
        "write b; FLUSH; rm b; mkdir b; write b/x; FLUSH; rm b/x; rmdir b; write b",
    ),
];

/// The seed draws the order of late events; each danger occurs for some of these seeds.
const LATE_SEEDS: u64 = 3;

fn options() -> Options {
    Options {
        owner: "nested".into(),
        embedded: true,
        flush_interval: Duration::from_secs(3600),
        page_piece_entries: 500,
        ..Options::default()
    }
}

/// Situation: names of files and directories are exchanged between two flushes. Danger: each object
/// waits for the other's key, for ever. Expectation: a flush completes, and the bucket alone shows
/// the same tree.
#[test]
fn exchanged_names_are_flushed() {
    for (what, steps) in CHANGES_OF_PLACE {
        println!("{what}");
        run(async |world| {
            let mount = mount(world, "one").await;
            mount.act(steps).await;
            mount.act("FLUSH").await;
            mount.shown_by_the_bucket(world).await;
        })
        .unwrap_or_else(|failure| panic!("{what}: {failure}"));
    }
}

/// Situation: as before, with lost replies of the bucket, also of requests that are repeated after
/// every lost one has lost its effect. Danger: an object that appears once its key is free counts
/// as another program's, and is kept beside the file. (Seed 28 of detached succession.)
#[test]
fn exchanged_names_are_flushed_with_late_requests() {
    let late = BucketFaults {
        late: Rate::one_in(2),
        late_limit: Duration::from_secs(8),
        ..BucketFaults::default()
    };
    for (seed, (what, steps)) in
        (1..=LATE_SEEDS).flat_map(|seed| CHANGES_OF_PLACE.map(|change| (seed, change)))
    {
        run_with(seed, async |world| {
            let mount = mount(world, "one").await;
            mount.act(steps).await;
            world.set_faults(FaultPlan { bucket: late, ..FaultPlan::default() });
            // It can take longer than the caller's timeout.
            let client = mount.client.clone();
            mount.process.call(async move { perform(&client, "FLUSH").await }).await.unwrap().ok();
            world.set_faults(FaultPlan::default());
            mount.act("FLUSH").await;
            mount.shown_by_the_bucket(world).await;
        })
        .unwrap_or_else(|failure| panic!("seed {seed}, {what}: {failure}"));
    }
}

/// Situation: as before, and the second half is done by a node that starts with only the bucket and
/// has not loaded all of it. Danger: names that are not loaded are lost, or block a key for ever.
/// Expectation: the same.
#[test]
fn exchanged_names_of_another_node_are_flushed() {
    let halves = [
        (
            "mkdir a; mkdir a/b; mv a/b t; rmdir a; mkdir a; mkdir a/s; write a/s/x; FLUSH",
            "mv a/s u; write a/s; FLUSH; look u/x; look a/s; look t",
        ),
        (
            "mkdir a; mkdir b; write a/f; link a/f b/g; FLUSH",
            "look b/g; mv a z; write a; FLUSH; look z/f; look b/g; look a",
        ),
        (
            "mkdir d; write d/x; write b; FLUSH",
            "swap b d; FLUSH; mv b/x d.x; rmdir b; mkdir b; write b/d; mv d b/x",
        ),
    ];
    for (first, second) in halves {
        println!("{first}, then {second}");
        run(async |world| {
            let one = mount(world, "one").await;
            one.act(first).await;
            one.shown_by_the_bucket(world).await;
            let two = mount(world, "two").await;
            two.act(second).await;
            two.act("FLUSH").await;
            two.shown_by_the_bucket(world).await;
        })
        .unwrap_or_else(|failure| panic!("{first}, then {second}: {failure}"));
    }
}

/// Situation: a directory is created where the bucket still has a file. Danger: its marker is
/// rejected once, and never written. Expectation: clients that see only keys see the directory.
#[test]
fn a_directory_in_the_place_of_a_file_is_marked() {
    run(async |world| {
        let mount = mount(world, "one").await;
        mount.act("write b; FLUSH; rm b; mkdir b; FLUSH").await;
        assert!(world.bucket().objects().contains_key("b/"));
        mount.shown_by_the_bucket(world).await;
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a directory with so many names that its objects stay at their keys is renamed, and a
/// file gets its name. Danger: the file's object has no key. Expectation: the directory's objects
/// move.
#[test]
fn a_large_directory_makes_way() {
    run(async |world| {
        let mount = mount(world, "one").await;
        mount.act("mkdir d").await;
        for number in 0..MORE_THAN_MOVE_BY_THEMSELVES {
            mount.act(&format!("touch d/{number}")).await;
        }
        mount.act("FLUSH; mv d e; FLUSH").await;
        assert!(world.bucket().objects().contains_key("d/0"), "its objects stay");
        mount.act("write d; FLUSH").await;
        mount.shown_by_the_bucket(world).await;
        assert!(world.bucket().objects().contains_key("d"));
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: directories are nested into each other, one after the other. Danger: each object
/// moves once per level, which is quadratic in deep trees. Expectation: each object is copied once,
/// each page written a few times.
#[test]
fn a_deep_tree_moves_once() {
    run(async |world| {
        let mount = mount(world, "one").await;
        for number in 0..DEPTH {
            mount.act(&format!("mkdir {number:03}; write {number:03}/file")).await;
        }
        mount.act("FLUSH").await;
        let requests =
            |operation: &str| world.bucket().requests().get(operation).copied().unwrap_or_default();
        let before = (requests("copy"), requests("put"));
        for number in 1..DEPTH {
            mount.act(&format!("mv {:03} {number:03}/in", number - 1)).await;
        }
        mount.act("FLUSH").await;
        let (copies, puts) = (requests("copy") - before.0, requests("put") - before.1);
        assert!(copies <= DEPTH as u64 && puts <= 6 * DEPTH as u64, "{copies} copies, {puts} puts");
        mount.shown_by_the_bucket(world).await;
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

const DEPTH: usize = 240;

const MORE_THAN_MOVE_BY_THEMSELVES: u64 = 10_001;

fn run(scene: impl AsyncFnOnce(&World)) -> Result<(), String> {
    run_with(1, scene)
}

fn run_with(seed: u64, scene: impl AsyncFnOnce(&World)) -> Result<(), String> {
    let world = World::new(seed);
    world.bucket().exclude_nested();
    world.run(scene(&world)).map_err(|failure| failure.to_string())
}

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Rc<Client>,
}

async fn mount(world: &World, machine: &str) -> Mount {
    let process = world.machine(machine).process("ebb");
    let node = rig::open(&process, &world.bucket(), &options()).await.unwrap().unwrap();
    let client = Rc::new(rig::attach_embedded(&process, &node).await.unwrap().unwrap());
    Mount { process, node, client }
}

impl Mount {
    async fn act(&self, steps: &str) {
        for step in steps.split("; ").map(str::to_owned) {
            let client = self.client.clone();
            self.process
                .call(async move {
                    perform(&client, &step).await.unwrap_or_else(|error| panic!("{step}: {error}"))
                })
                .await
                .unwrap();
        }
    }

    /// Without versions, which are the node's own.
    async fn walk(&self) -> SeenTree {
        let client = self.client.clone();
        let mut tree =
            self.process.call(async move { rig::walk(&client).await.unwrap() }).await.unwrap();
        tree.values_mut().for_each(|node| node.attr.version = Version(0));
        tree
    }

    async fn stop(&self) {
        let (node, client) = (self.node.clone(), self.client.clone());
        let stopped = self.process.call(async move {
            client.detach(Duration::from_secs(30)).await.unwrap();
            node.stop(true).await
        });
        assert_eq!(stopped.await.unwrap(), Ok(Stopped::Released));
        self.process.kill();
    }

    /// Ends the node. Another one that has nothing but the bucket shows the same.
    async fn shown_by_the_bucket(self, world: &World) {
        let before = self.walk().await;
        self.stop().await;
        let other = mount(world, &format!("other than {}", self.process.name())).await;
        assert_eq!(other.walk().await, before);
        let client = other.client.clone();
        let report =
            other.process.call(async move { rig::fsck(&client).await.unwrap() }).await.unwrap();
        assert_eq!((report.problems, report.others), (vec![], vec![]));
        other.stop().await;
    }
}

async fn perform(client: &Client, step: &str) -> Result<(), FsError> {
    let words: Vec<&str> = step.split(' ').collect();
    match words[..] {
        ["FLUSH"] => client.admin(AdminRequest::Flush { path: vec![] }).await.map(drop),
        ["mkdir", path] => make(client, path, Make::Directory).await.map(drop),
        ["touch", path] => make(client, path, Make::Regular).await.map(drop),
        ["write", path] => {
            let (dir, name) = place(client, path).await?;
            let ino = match client.lookup(dir, &name).await {
                Ok(attr) => attr.ino,
                Err(_) => make(client, path, Make::Regular).await?,
            };
            client.write(&ROOT, ino, 0, Bytes::from(step.repeat(3)), false).await.map(drop)
        }
        ["hold", path] => {
            let (dir, name) = place(client, path).await?;
            client.open(client.lookup(dir, &name).await?.ino).await
        }
        ["look", path] => {
            let (dir, name) = place(client, path).await?;
            client.lookup(dir, &name).await.map(drop)
        }
        ["link", from, to] => {
            let ((from, name), (to, new_name)) =
                (place(client, from).await?, place(client, to).await?);
            client.link(&ROOT, client.lookup(from, &name).await?.ino, to, &new_name).await.map(drop)
        }
        ["rm", path] => {
            let (dir, name) = place(client, path).await?;
            client.unlink(&ROOT, dir, &name).await.map(drop)
        }
        ["rmdir", path] => {
            let (dir, name) = place(client, path).await?;
            client.rmdir(&ROOT, dir, &name).await.map(drop)
        }
        ["mv", from, to] => rename(client, from, to, RenameMode::Replace).await,
        ["swap", one, other] => rename(client, one, other, RenameMode::Exchange).await,
        _ => panic!("{step} is no step"),
    }
}

async fn make(client: &Client, path: &str, what: Make) -> Result<Ino, FsError> {
    let (dir, name) = place(client, path).await?;
    client.make(&ROOT, dir, &name, 0o755, what, false).await.map(|attr| attr.ino)
}

async fn rename(client: &Client, from: &str, to: &str, mode: RenameMode) -> Result<(), FsError> {
    let ((from, name), (to, new_name)) = (place(client, from).await?, place(client, to).await?);
    client.rename(&ROOT, from, &name, to, &new_name, mode).await.map(drop)
}

/// The directory of a path, and its name in that.
async fn place(client: &Client, path: &str) -> Result<(Ino, Name), FsError> {
    let mut names =
        path.split('/').map(|name| Name::new(name.as_bytes()).expect("paths of tests are good"));
    let last = names.next_back().expect("a path has a name");
    let mut dir = Ino::ROOT;
    for name in names {
        dir = client.lookup(dir, &name).await?.ino;
    }
    Ok((dir, last))
}
