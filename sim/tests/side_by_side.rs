//! Several buckets under one volume (O-24), under kills, power cuts and buckets that fail
//! or vanish one at a time.

use bytes::Bytes;
use ebb_client::{Client, ClientPorts, LocalLink, Options as ClientOptions};
use ebb_model::*;
use ebb_node::side_by_side::Member;
use ebb_node::{Node, OpenError, Options, Stopped};
use ebb_sim::{BucketFaults, FaultPlan, Process, Rate, Rng, SimBucket, World};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const SEEDS: u64 = 25;
const DIRS: [&str; 3] = ["logs", "models", "plain"];
const OPERATIONS: u64 = 30;

/// By directory and name.
type Files = BTreeMap<(usize, String), Vec<u8>>;

struct Story<'a> {
    world: &'a World,
    rng: Rng,
    /// The root bucket, then the members.
    buckets: [SimBucket; 3],
    files: Files,
    /// Files that were changed by an operation that failed half-way.
    unsure: BTreeSet<(usize, String)>,
    data: &'static str,
}

struct Life {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn open(process: Process, buckets: [SimBucket; 3]) -> Result<(Rc<Node>, Client), OpenError> {
    let options = Options {
        embedded: true,
        owner: "simulated".into(),
        head_term: Duration::from_secs(10),
        flush_interval: Duration::from_secs(1),
        bucket_timeout: Duration::from_secs(20),
        ..Options::default()
    };
    let [root, first, second] = buckets.map(|bucket| process.bucket(&bucket));
    let members = [(DIRS[0], first), (DIRS[1], second)]
        .map(|(dir, bucket)| Member::new(MemberDir::new(dir).unwrap(), bucket));
    let node =
        Node::open_side_by_side(process.ports.clone(), root, members.into(), options).await?;
    let (handle, notices) = (node.clone(), node.clone());
    let link = LocalLink::new(
        move |request| handle.handle(request),
        move |session| {
            let node = notices.clone();
            Box::pin(async move { node.next_notice(session).await })
        },
    );
    let client = Client::attach(
        Rc::new(link),
        ClientPorts::from(&process.ports),
        ClientOptions::new("ebb", "side by side"),
    )
    .await;
    Ok((node, client.expect("an embedded client attaches")))
}

impl Story<'_> {
    fn new(world: &World, seed: u64) -> Story<'_> {
        let rng = Rng::new(seed).split("side by side");
        let buckets = ["root", "first", "second"].map(|name| world.bucket_named(name));
        Story { world, rng, buckets, files: Files::new(), unsure: BTreeSet::new(), data: "data" }
    }

    async fn tell(&mut self, faults: FaultPlan) {
        for _ in 0..=self.rng.below(3) {
            self.world.set_faults(faults);
            let life = self.begin().await;
            self.live(&life).await;
            match self.rng.below(3) {
                0 => life.process.kill(),
                1 => self.world.machine("a").power_cut(),
                _ => {
                    let (node, client) = (life.node.clone(), life.client.clone());
                    let stopping = life.process.call(async move {
                        client
                            .detach(Duration::from_secs(30))
                            .await
                            .expect("the disk does not fail");
                        node.stop(true).await.map(drop)
                    });
                    stopping.await.expect("nobody kills it").expect("the disk does not fail");
                    life.process.kill();
                }
            }
        }
        self.end().await;
    }

    /// However often that takes.
    async fn begin(&self) -> Life {
        loop {
            let process = self.world.machine("a").process_on("ebb", self.data);
            match process
                .call(open(process.clone(), self.buckets.clone()))
                .await
                .expect("nobody kills it")
            {
                Ok((node, client)) => return Life { process, node, client },
                Err(
                    error @ (OpenError::Head(_) | OpenError::Member { .. } | OpenError::Request(_)),
                ) => drop(error),
                Err(error) => panic!("the node does not start: {error}"),
            }
            process.kill();
            self.world.sleep(Duration::from_secs(1)).await;
        }
    }

    async fn live(&mut self, life: &Life) {
        for _ in 0..self.rng.below(OPERATIONS) {
            let (dir, file) = (self.rng.index(3), format!("{}", self.rng.below(4)));
            let other = format!("{}", self.rng.below(4));
            let content = vec![self.rng.below(256) as u8; self.rng.index(200_000)];
            let client = life.client.clone();
            let at = (dir, file.clone());
            match self.rng.below(8) {
                0 => match life
                    .process
                    .call(remove(client, dir, file))
                    .await
                    .expect("nobody kills it")
                {
                    Ok(()) => self.forget(&at),
                    Err(FsError::NotFound) => {}
                    Err(_) => self.doubt(at),
                },
                1 | 2 => {
                    let to = (dir, other);
                    match life
                        .process
                        .call(rename(client, at.clone(), to.clone()))
                        .await
                        .expect("nobody kills it")
                    {
                        Ok(()) => {
                            let content =
                                self.files.get(&at).filter(|_| !self.unsure.contains(&at)).cloned();
                            self.forget(&at);
                            self.forget(&to);
                            match content {
                                Some(content) => drop(self.files.insert(to, content)),
                                None => self.doubt(to),
                            }
                        }
                        Err(FsError::NotFound) => {}
                        Err(_) => {
                            self.doubt(at);
                            self.doubt(to);
                        }
                    }
                }
                3 => {
                    let to = ((dir + 1) % 3, other);
                    let moved =
                        life.process.call(rename(client, at, to)).await.expect("nobody kills it");
                    assert!(moved.is_err(), "a rename from one bucket to another");
                }
                4 => self.buckets[self.rng.index(3)]
                    .vanish_for(self.rng.duration(Duration::ZERO, Duration::from_secs(30))),
                _ => match life
                    .process
                    .call(write(client, dir, file, content.clone()))
                    .await
                    .expect("nobody kills it")
                {
                    Ok(()) => {
                        self.forget(&at);
                        self.files.insert(at, content);
                    }
                    Err(_) => self.doubt(at),
                },
            }
            self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_secs(2))).await;
        }
    }

    fn forget(&mut self, at: &(usize, String)) {
        self.files.remove(at);
        self.unsure.remove(at);
    }

    fn doubt(&mut self, at: (usize, String)) {
        self.files.remove(&at);
        self.unsure.insert(at);
    }

    /// Without faults, all work completes, each file is in its own bucket, and a restart from the
    /// buckets alone shows the same tree.
    async fn end(&mut self) {
        self.world.set_faults(FaultPlan::default());
        self.world.sleep(Duration::from_secs(60)).await;
        for data in [self.data, "empty"] {
            self.data = data;
            let life = self.begin().await;
            for (dir, file) in std::mem::take(&mut self.unsure) {
                match life
                    .process
                    .call(remove(life.client.clone(), dir, file))
                    .await
                    .expect("nobody kills it")
                {
                    Ok(()) | Err(FsError::NotFound) => {}
                    Err(error) => panic!("in calm: {error}"),
                }
            }
            for ((dir, file), content) in &self.files {
                let read = life
                    .process
                    .call(read(life.client.clone(), *dir, file.clone()))
                    .await
                    .expect("nobody kills it");
                assert!(
                    read.as_ref() == Ok(content),
                    "{}/{file} is {:?} long",
                    DIRS[*dir],
                    read.map(|read| read.len())
                );
            }
            let (node, client) = (life.node.clone(), life.client.clone());
            let ended = life.process.call(async move {
                let AdminReply::Fsck(report) = client.admin(AdminRequest::Fsck).await.unwrap()
                else {
                    panic!("another answer")
                };
                assert_eq!(report.problems, vec![]);
                client.detach(Duration::from_secs(30)).await.unwrap();
                node.stop(true).await
            });
            assert_eq!(ended.await.expect("nobody kills it"), Ok(Stopped::Released));
            life.process.kill();
            self.check_buckets();
        }
    }

    fn check_buckets(&self) {
        let mut found = Files::new();
        for (bucket, side) in self.buckets.iter().zip([2, 0, 1]) {
            for (key, object) in bucket.objects() {
                let member = side < 2;
                assert!(
                    !member || !key.starts_with(".ebb/") || key == ".ebb/head",
                    "{key} in a member"
                );
                if key.starts_with(".ebb/") || key.ends_with('/') {
                    continue;
                }
                let name = if member {
                    key.as_str()
                } else {
                    key.strip_prefix("plain/").expect("what is at the root is below plain")
                };
                found.insert((side, name.into()), object.body.to_vec());
            }
        }
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert!(found == self.files, "{:?} instead of {:?}", names(&found), names(&self.files));
    }
}

async fn dir_of(client: &Client, dir: usize) -> Result<Ino, FsError> {
    match client.lookup(Ino::ROOT, &name(DIRS[dir])).await {
        Ok(attr) => Ok(attr.ino),
        Err(FsError::NotFound) => {
            assert!(dir == 2, "the directory of a bucket is always there");
            let made = client
                .make(&Caller::ROOT, Ino::ROOT, &name(DIRS[dir]), 0o755, Make::Directory, false)
                .await?;
            Ok(made.ino)
        }
        Err(error) => Err(error),
    }
}

async fn write(client: Client, dir: usize, file: String, content: Vec<u8>) -> Result<(), FsError> {
    let dir = dir_of(&client, dir).await?;
    let ino = match client.lookup(dir, &name(&file)).await {
        Ok(_) => {
            client.unlink(&Caller::ROOT, dir, &name(&file)).await?;
            client.make(&Caller::ROOT, dir, &name(&file), 0o644, Make::Regular, false).await?.ino
        }
        Err(FsError::NotFound) => {
            client.make(&Caller::ROOT, dir, &name(&file), 0o644, Make::Regular, false).await?.ino
        }
        Err(error) => return Err(error),
    };
    client.write(&Caller::ROOT, ino, 0, Bytes::from(content), false).await?;
    client.fsync(ino).await
}

async fn read(client: Client, dir: usize, file: String) -> Result<Vec<u8>, FsError> {
    let dir = dir_of(&client, dir).await?;
    let attr = client.lookup(dir, &name(&file)).await?;
    Ok(client.read(attr.ino, 0, 1 << 20).await?.to_vec())
}

async fn remove(client: Client, dir: usize, file: String) -> Result<(), FsError> {
    let dir = dir_of(&client, dir).await?;
    client.unlink(&Caller::ROOT, dir, &name(&file)).await?;
    client.fsync(dir).await
}

async fn rename(
    client: Client,
    (from, file): (usize, String),
    (to, other): (usize, String),
) -> Result<(), FsError> {
    let (from, to) = (dir_of(&client, from).await?, dir_of(&client, to).await?);
    client
        .rename(&Caller::ROOT, from, &name(&file), to, &name(&other), RenameMode::Replace)
        .await?;
    client.fsync(to).await
}

fn faults(rng: &Rng) -> FaultPlan {
    let mut faults = FaultPlan::default();
    if rng.below(2) == 0 {
        faults.bucket = FaultPlan::random(&rng.split("faults")).bucket;
        // A repeated request whose first attempt takes effect late can undo later ones:
        // docs/PLAN.md.
        faults.bucket.late_limit = faults.bucket.late_limit.min(Duration::from_millis(20));
    }
    faults
}

#[test]
fn every_file_ends_in_its_own_bucket() {
    for seed in 0..SEEDS {
        let faults = faults(&Rng::new(seed).split("plan"));
        let world = World::with_faults(seed, faults);
        let mut story = Story::new(&world, seed);
        world.run(story.tell(faults)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: a node dies while it uploads to all buckets, and one of them is away when the
/// outcomes are looked up. Danger: the outcomes in the other buckets stay unknown, and their keys
/// stay blocked.
#[test]
fn a_bucket_that_is_away_does_not_keep_the_others_claimed() {
    for seed in 0..4 {
        for away in 0..2 {
            let world = World::new(seed);
            let buckets = ["root", "first", "second"].map(|name| world.bucket_named(name));
            let process = world.machine("a").process_on("node", "data");
            let late = BucketFaults {
                late: Rate::ALWAYS,
                late_limit: Duration::from_secs(8),
                ..BucketFaults::default()
            };
            let (node, client) = world
                .run(process.call(open(process.clone(), buckets.clone())))
                .unwrap()
                .unwrap()
                .unwrap();
            let writing = process.call(async move {
                for dir in 0..2 {
                    write(client.clone(), dir, "file".into(), vec![7; 1000]).await.unwrap();
                }
                client
            });
            let client = world.run(writing).unwrap().unwrap();
            world.set_faults(FaultPlan { bucket: late, ..FaultPlan::default() });
            process.spawn(
                async move { drop(client.admin(AdminRequest::Flush { path: vec![] }).await) },
            );
            world.run(world.sleep(Duration::from_millis(100))).unwrap();
            drop(node);
            process.kill();
            world.set_faults(FaultPlan::default());
            let process = world.machine("a").process_on("node", "data");
            let (_node, client) = world
                .run(process.call(open(process.clone(), buckets.clone())))
                .unwrap()
                .unwrap()
                .unwrap();
            buckets[1 + away].vanish_for(Duration::from_secs(3600));
            let here = 1 - away;
            let writing = process.call(write(client.clone(), here, "file".into(), vec![8; 1000]));
            world.run(writing).unwrap().unwrap().unwrap();
            world.run(world.sleep(Duration::from_secs(60))).unwrap();
            let object = buckets[1 + here].objects().remove("file").expect("the bucket answers");
            assert_eq!(object.body, vec![8; 1000], "seed {seed}");
        }
    }
}

/// Situation: two files of one bucket exchange names through another bucket, which is away when a
/// part of one arrives and when the upload is to be aborted. Danger: the upload stays, at a cost.
#[test]
fn a_copy_that_fails_leaves_no_upload() {
    for seed in 0..4 {
        let world = World::new(seed);
        let buckets = ["root", "first", "second"].map(|name| world.bucket_named(name));
        let root = buckets[0].clone();
        let process = world.machine("a").process_on("node", "data");
        let (node, client) = world
            .run(process.call(open(process.clone(), buckets.clone())))
            .unwrap()
            .unwrap()
            .unwrap();
        let changing = process.call(async move {
            for file in ["one", "other"] {
                write(client.clone(), 0, file.into(), vec![file.len() as u8; 1 << 20])
                    .await
                    .unwrap();
            }
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            let dir = dir_of(&client, 0).await.unwrap();
            client
                .rename(&Caller::ROOT, dir, &name("one"), dir, &name("other"), RenameMode::Exchange)
                .await
                .unwrap();
            client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            drop((node, client));
        });
        let failing = async {
            while !root.requests().contains_key("upload_part") {
                world.sleep(Duration::from_micros(100)).await;
            }
            root.vanish_for(Duration::from_secs(3));
        };
        world.run(futures_util::future::join(changing, failing)).unwrap().0.unwrap();
        assert_eq!(root.unfinished_uploads(), vec![], "seed {seed}");
        let objects = buckets[1].objects();
        assert_eq!((objects["one"].body[0], objects["other"].body[0]), (5, 3), "seed {seed}");
    }
}
