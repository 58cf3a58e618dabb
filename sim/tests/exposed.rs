//! Files granted for passthrough, with stores that bypass the node: under all circumstances the
//! stored bytes are in the file, and the forced bytes survive a power cut.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::{Node, Options};
use ebb_ports::Capabilities;
use ebb_sim::volume::rig;
use ebb_sim::{BucketFaults, DiskFaults, FaultPlan, Holder, Process, Rate, Rng, Slowness, World};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// Most that the file has.
const MOST: usize = 600_000;

/// All that one life of the node has.
struct Life {
    process: Process,
    node: Rc<Node>,
    client: Client,
    ino: Ino,
}

/// One file, its expected content, and the contents that a power cut may leave.
struct Scene<'a> {
    world: &'a World,
    rng: Rng,
    options: Options,
    lives: u32,
    life: Life,
    model: Vec<u8>,
    /// Its content when it was last forced, and all contents since then.
    since_forced: Vec<Vec<u8>>,
    holder: Option<Holder>,
    round: u32,
}

/// Whether small files begin in packs.
fn options(packed: bool) -> Options {
    let pack_below_bytes = if packed { Options::default().pack_below_bytes } else { 0 };
    Options { owner: "exposed".into(), embedded: true, pack_below_bytes, ..Options::default() }
}

fn name() -> Name {
    Name::new(&b"file"[..]).unwrap()
}

impl Life {
    async fn begin(world: &World, options: &Options, number: u32) -> Life {
        for attempt in 0..100 {
            let process =
                world.machine("a").process_on(&format!("life {number}.{attempt}"), "data");
            if let Some(Ok(node)) = rig::open(&process, &world.bucket(), options).await
                && let Some(Ok(client)) = rig::attach_embedded(&process, &node).await
            {
                let found = client.clone();
                let found =
                    process.call(async move { found.lookup(Ino::ROOT, &name()).await }).await;
                let ino = found.expect("the process lives").map_or(Ino(0), |attr| attr.ino);
                return Life { process, node, client, ino };
            }
            process.kill();
            world.sleep(Duration::from_secs(2)).await;
        }
        panic!("it never opens")
    }

    async fn call<T: 'static, W: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Client, Ino) -> W,
    ) -> T {
        self.process.call(work(self.client.clone(), self.ino)).await.expect("the process lives")
    }

    async fn grant(&self, request: GrantRequest) -> bool {
        let (node, ino) = (self.node.clone(), self.ino);
        let granted = self.process.call(async move { node.grant(ino, request).await });
        granted.await.expect("the process lives").unwrap().is_some()
    }

    async fn read(&self) -> Vec<u8> {
        self.call(
            |client, ino| async move { client.read(ino, 0, 2 * MOST).await.unwrap().to_vec() },
        )
        .await
    }

    async fn flush(&self) -> Result<(), FsError> {
        self.call(|client, _| async move {
            client.admin(AdminRequest::Flush { path: vec![name()] }).await.map(drop)
        })
        .await
    }

    async fn evict(&self) {
        let evict =
            AdminRequest::Evict { path: vec![name()], from: (Ino(0), 0), limit_bytes: u64::MAX };
        self.call(|client, _| async move { client.admin(evict).await.map(drop) }).await.unwrap();
    }

    async fn is_exposed(&self) -> bool {
        match self
            .call(|client, _| async move {
                client.admin(AdminRequest::Explain { path: vec![name()] }).await.unwrap()
            })
            .await
        {
            AdminReply::Explained(explained) => explained.exposed,
            other => panic!("{other:?}"),
        }
    }
}

impl Scene<'_> {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.round += 1;
        let round = self.round;
        (0..len).map(|at| (at as u32 % 251 + round * 7) as u8 | 1).collect()
    }

    fn changed(&mut self) {
        self.since_forced.push(self.model.clone());
    }

    fn forced(&mut self) {
        self.since_forced = vec![self.model.clone()];
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.model.resize(self.model.len().max(at + bytes.len()), 0);
        self.model[at..][..bytes.len()].copy_from_slice(bytes);
        self.changed();
    }

    async fn store(&mut self) {
        if self.holder.is_none() || self.model.is_empty() {
            return;
        }
        let at = self.rng.index(self.model.len());
        let len = (1 + self.rng.index(90_000)).min(self.model.len() - at);
        let bytes = self.bytes(len);
        self.store_at(at, &bytes);
    }

    fn store_at(&mut self, at: usize, bytes: &[u8]) {
        assert_eq!(
            self.holder.as_ref().map(|holder| holder.store(at as u64, bytes)),
            Some(bytes.len())
        );
        self.put(at, bytes);
    }

    async fn write(&mut self) {
        let (at, len) = (self.rng.index(MOST - 90_000), 1 + self.rng.index(90_000));
        let bytes = self.bytes(len);
        let data = Bytes::from(bytes.clone());
        let written = self.life.call(|client, ino| async move {
            client.write(&Caller::ROOT, ino, at as u64, data, false).await
        });
        written.await.unwrap();
        self.put(at, &bytes);
    }

    async fn set_len(&mut self) {
        let len = self.rng.index(MOST);
        let set = SetAttr { size_bytes: Some(len as u64), ..SetAttr::default() };
        self.life
            .call(|client, ino| async move { client.setattr(&Caller::ROOT, ino, set).await })
            .await
            .unwrap();
        self.model.resize(len, 0);
        self.changed();
    }

    async fn punch(&mut self) {
        let (at, len) = (self.rng.index(MOST), 1 + self.rng.index(250_000));
        let span = (at as u64, len as u64);
        let done = self.life.call(|client, ino| async move {
            client.fallocate(&Caller::ROOT, ino, span, Allocation::Zero, true, false).await
        });
        done.await.unwrap();
        let end = self.model.len().min(at + len);
        self.model[at.min(end)..end].fill(0);
        self.changed();
        if at < end && self.holder.is_some() && self.rng.below(4) == 0 {
            // Into the hole, of which the next start hears.
            let bytes = self.bytes(end - at);
            self.store_at(at, &bytes);
            self.kill().await;
        }
    }

    async fn fsync(&mut self) {
        self.life.call(|client, ino| async move { client.fsync(ino).await }).await.unwrap();
        self.forced();
    }

    /// It is read, lent, and mapped to be stored into, with bytes that have just been written or
    /// fetched; and maybe the power is cut when that has just been done.
    async fn get_hold(&mut self) {
        if self.holder.is_some() {
            return;
        }
        // A file with holes is not lent, nor a small one.
        if self.model.len() < 128 << 10 {
            self.model.resize(200_000, 7);
            self.changed();
        }
        let whole = Bytes::from(self.model.clone());
        self.life.call(|client, ino| async move { client.write(&Caller::ROOT, ino, 0, whole, false).await }).await.unwrap();
        if self.rng.below(2) == 0 && self.life.flush().await.is_ok() {
            self.life.evict().await;
            self.life.read().await;
        }
        assert!(self.life.grant(GrantRequest::Begin).await);
        let path = rig::store_file(&self.world.bucket(), self.life.ino);
        self.holder = Some(self.world.machine("a").disk("data").hold(&path).unwrap());
        assert!(self.life.grant(GrantRequest::Expose).await);
        for _ in 0..2 {
            self.life.node.take_back(self.life.ino);
        }
        match self.rng.below(10) {
            0 => self.cut_power().await,
            1 => {
                self.store().await;
                self.force_stored();
                self.cut_power().await;
            }
            2 => {
                // The content at the end equals the content at the start, and the disk has a
                // different one.
                let before = self.model.clone();
                self.store().await;
                self.store_at(0, &before);
                self.holder = None;
                self.world.sleep(Duration::from_secs(3)).await;
                self.cut_power().await;
            }
            3 => {
                self.fsync().await;
                self.store().await;
                self.fsync().await;
                self.cut_power().await;
            }
            4 => {
                self.fsync().await;
                self.store().await;
                if self.life.flush().await.is_ok() {
                    self.expect_in_bucket();
                    self.forced();
                }
                self.cut_power().await;
            }
            _ => {}
        }
    }

    /// msync(2) of all of it.
    fn force_stored(&mut self) {
        if let Some(holder) = &self.holder {
            holder.force();
            self.forced();
        }
    }

    /// A flush, with stores and writes while it is in progress.
    async fn flush(&mut self) {
        let (client, stores) = (self.life.client.clone(), self.rng.below(4));
        let flush = self
            .life
            .process
            .call(async move { client.admin(AdminRequest::Flush { path: vec![name()] }).await });
        let changes = async {
            for _ in 0..stores {
                self.world
                    .sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(40)))
                    .await;
                match self.rng.below(4) {
                    0 => self.write().await,
                    1 if self.holder.is_some() => {
                        // The bucket may get the content in between.
                        let before = self.model.clone();
                        self.store().await;
                        self.world
                            .sleep(self.rng.duration(Duration::ZERO, Duration::from_millis(40)))
                            .await;
                        self.store_at(0, &before);
                    }
                    _ => self.store().await,
                }
            }
        };
        let (flushed, ()) = futures_util::future::join(flush, changes).await;
        if flushed.expect("the process lives").is_ok() && stores == 0 {
            self.expect_in_bucket();
        }
    }

    fn expect_in_bucket(&self) {
        let objects = self.world.bucket().objects();
        assert!(
            objects.get("file").is_some_and(|object| object.body[..] == self.model[..]),
            "the bucket has it as it is"
        );
    }

    async fn kill(&mut self) {
        self.life.process.kill();
        self.restart().await;
        self.expect().await;
    }

    async fn cut_power(&mut self) {
        self.holder = None;
        self.world.machine("a").power_cut();
        self.restart().await;
        let found = self.life.read().await;
        let sizes: BTreeSet<usize> = self.since_forced.iter().map(Vec::len).collect();
        assert!(sizes.contains(&found.len()), "{} is none of {sizes:?}", found.len());
        for (at, byte) in found.iter().enumerate() {
            let is_known =
                self.since_forced.iter().any(|model| model.get(at).copied().unwrap_or(0) == *byte);
            assert!(is_known, "byte {at} is {byte}, which it never was since it was forced");
        }
        self.model = found;
        self.forced();
    }

    async fn restart(&mut self) {
        self.lives += 1;
        self.life = Life::begin(self.world, &self.options, self.lives).await;
        // As when a mount is taken over by a successor that finds the file open.
        if self.holder.is_some() && self.rng.below(2) == 0 {
            assert!(self.life.grant(GrantRequest::Resume).await);
            self.life.node.take_back(self.life.ino);
        }
    }

    async fn expect(&self) {
        let found = self.life.read().await;
        let differs = found.iter().zip(&self.model).position(|(a, b)| a != b);
        assert!(
            found == self.model,
            "{} bytes, not {}: {differs:?}",
            found.len(),
            self.model.len()
        );
        if let Some(holder) = &self.holder {
            assert!(holder.load() == self.model, "who has it sees what the node sees");
        }
    }

    async fn step(&mut self) {
        match self.rng.below(100) {
            0..32 => self.store().await,
            32..46 => self.write().await,
            46..52 => self.set_len().await,
            52..60 => self.punch().await,
            60..66 => self.fsync().await,
            66..69 => self.force_stored(),
            69..75 => self.flush().await,
            75..79 => self.get_hold().await,
            79..81 => self.holder = None,
            81..89 => {
                self.world.sleep(self.rng.duration(Duration::ZERO, Duration::from_secs(12))).await
            }
            89..92 => self.kill().await,
            92..94 => self.cut_power().await,
            _ => self.expect().await,
        }
    }
}

/// Everything that changes one file, with and without the node's knowledge, and every end of the
/// node, beside a model of the file.
#[test]
fn mapped_stores_reach_the_file() {
    let seeds =
        std::env::var("EBB_SEEDS").map_or(1..13, |count| 1..1 + count.parse::<u64>().unwrap());
    for seed in seeds {
        let bucket = BucketFaults {
            unavailable: Rate::one_in(10),
            lost_request: Rate::one_in(20),
            slow: Slowness { rate: Rate::one_in(4), limit: Duration::from_millis(300) },
            ..Default::default()
        };
        let world = World::with_faults(seed, FaultPlan { bucket, ..FaultPlan::default() });
        if seed % 2 == 0 {
            // While a file is sent in parts, a store can change some of it.
            let usual = world.machine("a").process("asks").bucket(&world.bucket()).capabilities();
            world.bucket().set_capabilities(Capabilities { max_put_bytes: 100_000, ..usual });
        }
        let scene = async {
            let options = options(seed % 3 == 0);
            let mut life = Life::begin(&world, &options, 0).await;
            let made = life.call(|client, _| async move {
                client
                    .make(&Caller::ROOT, Ino::ROOT, &name(), 0o644, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino
            });
            life.ino = made.await;
            let (rng, model) = (world.rng("file"), Vec::new());
            let mut scene = Scene {
                world: &world,
                rng,
                options,
                lives: 0,
                life,
                model,
                since_forced: Vec::new(),
                holder: None,
                round: 0,
            };
            scene.write().await;
            scene.set_len().await;
            scene.fsync().await;
            for _ in 0..150 {
                scene.step().await;
            }
            world.set_faults(FaultPlan::default());
            scene.expect().await;
            scene.holder = None;
            world.sleep(Duration::from_secs(5)).await;
            assert!(!scene.life.is_exposed().await);
            scene.life.flush().await.unwrap();
            scene.expect_in_bucket();
            let report =
                scene.life.call(|client, _| async move { rig::fsck(&client).await.unwrap() }).await;
            assert!(report.problems.is_empty(), "{report:?}");
            scene.life.evict().await;
            scene.expect().await;
        };
        world.run(scene).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: a mapped file is stored into during its upload in parts. Danger: the object's
/// metadata describes the content at the beginning of the upload. Expectation: the metadata is
/// true; the bucket verifies it.
#[test]
fn mapped_stores_during_an_upload_are_no_damage() {
    for delay_ms in (0..800).step_by(40) {
        let world = World::new(delay_ms);
        let usual = world.machine("a").process("asks").bucket(&world.bucket()).capabilities();
        world.bucket().set_capabilities(Capabilities { max_put_bytes: 100_000, ..usual });
        world.bucket().set_uplink(10 << 20);
        let scene = async {
            let options = Options { part_bytes: 256 << 10, ..options(false) };
            let mut life = Life::begin(&world, &options, 0).await;
            let len = 6 << 20;
            let made = life.call(move |client, _| async move {
                let ino = client
                    .make(&Caller::ROOT, Ino::ROOT, &name(), 0o644, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino;
                client.write(&Caller::ROOT, ino, 0, vec![1; len].into(), false).await.unwrap();
                ino
            });
            life.ino = made.await;
            let store = async {
                world.sleep(Duration::from_millis(delay_ms)).await;
                assert!(
                    life.grant(GrantRequest::Begin).await && life.grant(GrantRequest::Expose).await
                );
                let holder = world
                    .machine("a")
                    .disk("data")
                    .hold(&rig::store_file(&world.bucket(), life.ino))
                    .unwrap();
                holder.store(len as u64 - 10, b"stored");
                holder
            };
            let (flushed, holder) = futures_util::future::join(life.flush(), store).await;
            flushed.unwrap();
            life.flush().await.unwrap();
            assert_eq!(&world.bucket().objects()["file"].body[len - 10..len - 4], b"stored");
            drop(holder);
        };
        world.run(scene).unwrap();
    }
}

/// Situation: many clients flush a mapped file at the same time, and a flush must compare all of
/// it. Danger: one comparison for each flush, one after the other. Expectation: they share one
/// after the comparison in progress, and it finds the bytes stored before their requests.
#[test]
fn concurrent_flushes_of_a_mapped_file_share_a_comparison() {
    let world = World::new(1);
    let scene = async {
        let mut life = Life::begin(&world, &options(false), 0).await;
        let len = 16 << 20;
        let made = life.call(move |client, _| async move {
            let ino = client
                .make(&Caller::ROOT, Ino::ROOT, &name(), 0o644, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            client.write(&Caller::ROOT, ino, 0, vec![1; len].into(), false).await.unwrap();
            ino
        });
        life.ino = made.await;
        assert!(life.grant(GrantRequest::Begin).await && life.grant(GrantRequest::Expose).await);
        let holder = world
            .machine("a")
            .disk("data")
            .hold(&rig::store_file(&world.bucket(), life.ino))
            .unwrap();
        life.flush().await.unwrap();
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(50) };
        world.set_faults(FaultPlan {
            disk: DiskFaults { slow, ..DiskFaults::default() },
            ..FaultPlan::default()
        });
        let flushes = async |count: usize| {
            let began = world.now();
            let all = futures_util::future::join_all((0..count).map(|_| life.flush())).await;
            assert!(all.into_iter().all(|flushed| flushed.is_ok()));
            world.now() - began
        };
        let alone = flushes(1).await;
        let together = flushes(12).await;
        assert!(together < alone * 4, "{alone:?} alone, {together:?} together");
        // Bytes stored during a comparison are found by flushes requested after the store.
        let (first, later) = futures_util::future::join(life.flush(), async {
            world.sleep(alone / 2).await;
            holder.store(3, b"stored");
            futures_util::future::join_all((0..4).map(|_| life.flush())).await
        })
        .await;
        assert!(first.is_ok() && later.into_iter().all(|flushed| flushed.is_ok()));
        assert_eq!(&world.bucket().objects()["file"].body[3..9], b"stored");
        drop(holder);
    };
    world.run(scene).unwrap();
}
