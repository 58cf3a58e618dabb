//! Planted damage in the bucket and on the disk: findings of a check, and the effect of a repair.

mod bucket;
mod refused;
mod repair;

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, OpenError, Options};
use ebb_sim::volume::rig;
use ebb_sim::{Process, SimBucket, World};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = BLOCK_BYTES as usize;

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

impl Mount {
    async fn new(world: &World, machine: &str, bucket: &SimBucket) -> Mount {
        Mount::with(world, machine, bucket, Options::default()).await
    }

    async fn with(world: &World, machine: &str, bucket: &SimBucket, options: Options) -> Mount {
        Mount::open(world, machine, bucket, options).await.unwrap()
    }

    async fn open(
        world: &World,
        machine: &str,
        bucket: &SimBucket,
        options: Options,
    ) -> Result<Mount, OpenError> {
        let process = world.machine(machine).process("node");
        let flush_interval = Duration::from_secs(3600);
        let options = Options {
            owner: machine.into(),
            embedded: true,
            flush_interval,
            scrub_interval: None,
            segment_bytes: 1 << 20,
            ..options
        };
        let node =
            rig::open(&process, bucket, &options).await.unwrap().inspect_err(|_| process.kill())?;
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        Ok(Mount { process, node, client })
    }

    async fn make(&self, dir: Ino, text: impl AsRef<[u8]>, what: Make) -> Ino {
        let mode = if what == Make::Directory { 0o755 } else { 0o640 };
        self.client.make(&Caller::ROOT, dir, &name(text), mode, what, false).await.unwrap().ino
    }

    async fn ino(&self, dir: Ino, text: impl AsRef<[u8]>) -> Ino {
        self.client.lookup(dir, &name(text)).await.unwrap().ino
    }

    async fn file(&self, dir: Ino, text: impl AsRef<[u8]>, salt: usize) -> Ino {
        let ino = self.make(dir, text, Make::Regular).await;
        self.client.write(&Caller::ROOT, ino, 0, content(salt), false).await.unwrap();
        ino
    }

    /// A tree of everything that a volume can have: `a`, `d/b` with a second name, links, an empty
    /// directory, names that are no parts of keys. Gives the ids of `d` and `a`.
    async fn tree(&self) -> (Ino, Ino) {
        let dir = self.make(Ino::ROOT, "d", Make::Directory).await;
        let a = self.file(Ino::ROOT, "a", 0).await;
        let b = self.file(dir, "b", 1).await;
        self.client.link(&Caller::ROOT, b, Ino::ROOT, &name("also-b")).await.unwrap();
        self.make(dir, "link", Make::Symlink { target: Bytes::from_static(b"../a") }).await;
        self.make(dir, "empty", Make::Directory).await;
        self.file(dir, [0xff; 200], 2).await;
        let unsuitable = self.make(dir, [0xfe; 200], Make::Directory).await;
        self.file(unsuitable, "c", 3).await;
        self.file(unsuitable, [0xff; 200], 4).await;
        self.flush().await;
        (dir, a)
    }

    async fn flush(&self) {
        self.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    }

    async fn evict(&self) {
        self.client
            .admin(AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX })
            .await
            .unwrap();
    }

    async fn fsck(&self) -> FsckReport {
        rig::fsck(&self.client).await.unwrap()
    }

    /// Of the data directory, after the process was killed.
    async fn fsck_dead(&self, world: &World, bucket: &SimBucket) -> FsckReport {
        self.process.kill();
        fsck_dead(world, bucket).await
    }
}

async fn fsck_dead(world: &World, bucket: &SimBucket) -> FsckReport {
    let process = world.machine("a").process("node");
    let (ports, port) = (process.ports.clone(), process.bucket(bucket));
    let report = process
        .call(async move { ebb_node::fsck(ports, Some(port), |_, _| {}).await })
        .await
        .unwrap()
        .unwrap();
    process.kill();
    report
}

fn name(text: impl AsRef<[u8]>) -> Name {
    Name::new(text.as_ref()).unwrap()
}

fn content(salt: usize) -> Bytes {
    (0..3 * BLOCK + 1000).map(|at| ((at + salt) % 251) as u8).collect::<Vec<u8>>().into()
}

fn run(world: &World, scene: impl Future<Output = ()>) {
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

fn told(report: &FsckReport) -> Vec<&str> {
    report.problems.iter().map(|problem| &problem.what[..]).collect()
}

fn put(bucket: &SimBucket, key: &str, body: impl Into<Bytes>) {
    bucket.put_as_outsider(key, body, vec![]).unwrap();
}
