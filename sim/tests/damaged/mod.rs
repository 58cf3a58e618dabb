//! Damaged bytes in the bucket and on the node's disk.

mod bucket;
mod disk;
mod said;

use bytes::Bytes;
use ebb_client::Client;
use ebb_format::sums::Sums;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_ports::{Capabilities, Object, OpenMode};
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, DiskFaults, FaultPlan, Process, Rate, SimBucket, Slowness, World};
use futures_util::future::{Either, join, select};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = BLOCK_BYTES as usize;

const MIB: usize = 1 << 20;

/// The most checksums that an object has.
const SPANS: usize = 256;

const SCRUB: Duration = Duration::from_secs(60);

struct Mount {
    process: Process,
    node: Rc<Node>,
    client: Client,
}

impl Mount {
    async fn new(world: &World, machine: &str, bucket: &SimBucket) -> Mount {
        Mount::sending(world, machine, bucket, Options::default().part_bytes).await
    }

    /// In parts of so many bytes.
    async fn sending(world: &World, machine: &str, bucket: &SimBucket, part_bytes: u64) -> Mount {
        Mount::with(world, machine, bucket, options(part_bytes)).await
    }

    async fn with(world: &World, machine: &str, bucket: &SimBucket, options: Options) -> Mount {
        let process = world.machine(machine).process("node");
        let node = rig::open(&process, bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        Mount { process, node, client }
    }

    /// A file that only the bucket has.
    async fn cold(&self, name: &str, content: &Bytes) -> Ino {
        let name = Name::new(name.as_bytes()).unwrap();
        let ino = self
            .client
            .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
            .await
            .unwrap()
            .ino;
        self.write(ino, content).await;
        self.flush_and_evict().await;
        ino
    }

    async fn write(&self, ino: Ino, content: &Bytes) {
        for at in (0..content.len().max(1)).step_by(MIB) {
            let piece = content.slice(at..content.len().min(at + MIB));
            self.client.write(&Caller::ROOT, ino, at as u64, piece, false).await.unwrap();
        }
    }

    async fn flush_and_evict(&self) {
        self.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
        self.client
            .admin(AdminRequest::Evict { path: vec![], from: (Ino(0), 0), limit_bytes: u64::MAX })
            .await
            .unwrap();
    }

    async fn read(&self, ino: Ino, offset: usize, len: usize) -> Result<Bytes, FsError> {
        self.client.read(ino, offset as u64, len).await
    }

    /// How far a file of the data directory has something else than zeros.
    async fn used(&self, path: &str) -> u64 {
        let file = self.process.ports.disk.open(path, OpenMode::Existing).await.unwrap();
        let bytes = file.read_at(0, file.len().await.unwrap() as usize).await.unwrap();
        bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1
    }

    /// In which file of the data directory these bytes are, and where.
    async fn find(&self, content: &[u8]) -> (String, u64) {
        let stores = self.process.ports.disk.list("store").await.unwrap();
        let stores = stores.into_iter().map(|volume| format!("store/{volume}"));
        for directory in stores.chain(["packs".to_owned()]) {
            for name in self.process.ports.disk.list(&directory).await.unwrap() {
                let path = format!("{directory}/{name}");
                let file = self.process.ports.disk.open(&path, OpenMode::Existing).await.unwrap();
                let bytes = file.read_at(0, file.len().await.unwrap() as usize).await.unwrap();
                if let Some(at) = bytes.windows(content.len()).position(|window| window == content)
                {
                    return (path, at as u64);
                }
            }
        }
        panic!("they are nowhere")
    }

    async fn status(&self) -> Status {
        let Ok(AdminReply::Status(status)) = self.client.admin(AdminRequest::Status).await else {
            panic!("there is no status")
        };
        *status
    }

    async fn troubles(&self) -> Vec<String> {
        self.status().await.troubles.into_iter().map(|trouble| trouble.what).collect()
    }
}

fn options(part_bytes: u64) -> Options {
    let (flush_interval, scrub_interval) = (Duration::from_secs(3600), Some(SCRUB));
    let (owner, embedded, segment_bytes) = ("damaged".into(), true, 1 << 20);
    Options {
        owner,
        embedded,
        flush_interval,
        scrub_interval,
        segment_bytes,
        part_bytes,
        ..Options::default()
    }
}

fn run(world: &World, scene: impl Future<Output = ()>) {
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Small enough for one upload request.
fn content(salt: usize) -> Bytes {
    (0..3 * BLOCK + 1000).map(|at| ((at + salt) % 251) as u8).collect::<Vec<u8>>().into()
}

/// A file that only the bucket has, as an object that was sent in parts.
async fn large(mount: &Mount, mib: usize) -> (Ino, Bytes) {
    let content: Bytes = (0..(mib * MIB + 1000) as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect::<Vec<u8>>()
        .into();
    let name = Name::new(b"large").unwrap();
    let ino = mount
        .client
        .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
        .await
        .unwrap()
        .ino;
    mount.write(ino, &content).await;
    mount.flush_and_evict().await;
    (ino, content)
}
