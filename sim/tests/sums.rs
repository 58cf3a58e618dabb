//! Checksums of files that grow, are cut and written over, while they are sent, and nodes die:
//! nothing is called damaged that is not.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig;
use ebb_sim::{
    BucketFaults, DiskFaults, DiskOperation, FaultPlan, Process, Rate, Rng, SimBucket, Slowness,
    World,
};
use futures_util::future::join;
use std::time::Duration;

struct Mount {
    process: Process,
    client: Client,
    file: Ino,
}

impl Mount {
    async fn new(world: &World, bucket: &SimBucket, flush_interval: Duration) -> Mount {
        Mount::with(world, bucket, options(flush_interval)).await
    }

    async fn with(world: &World, bucket: &SimBucket, options: Options) -> Mount {
        let process = world.machine("a").process("node");
        let node = rig::open(&process, bucket, &options).await.unwrap().unwrap();
        let client = rig::attach_embedded(&process, &node).await.unwrap().unwrap();
        let name = Name::new(&b"file"[..]).unwrap();
        let file = match client.lookup(Ino::ROOT, &name).await {
            Ok(attr) => attr.ino,
            Err(_) => {
                client
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, true)
                    .await
                    .unwrap()
                    .ino
            }
        };
        Mount { process, client, file }
    }

    async fn write(&self, at: usize, data: &[u8]) {
        self.client
            .write(&Caller::ROOT, self.file, at as u64, Bytes::copy_from_slice(data), false)
            .await
            .unwrap();
    }

    async fn resize(&self, len: usize) {
        let set = SetAttr { size_bytes: Some(len as u64), ..SetAttr::default() };
        self.client.setattr(&Caller::ROOT, self.file, set).await.unwrap();
    }

    async fn zero(&self, at: usize, len: usize) {
        let span = (at as u64, len as u64);
        self.client
            .fallocate(&Caller::ROOT, self.file, span, Allocation::Zero, true, false)
            .await
            .unwrap();
    }

    async fn read(&self) -> Vec<u8> {
        let len = self.client.getattr(self.file).await.unwrap().size_bytes as usize;
        let bytes = self.client.read(self.file, 0, len).await;
        bytes.unwrap_or_else(|error| panic!("{len} bytes: {error:?}")).to_vec()
    }
}

fn options(flush_interval: Duration) -> Options {
    Options { owner: "sums".into(), embedded: true, flush_interval, ..Options::default() }
}

/// Situation: a file is appended to, overwritten, truncated and extended in ranges of all lengths
/// while it is constantly uploaded, over a slow disk and a slow connection; its node is killed at
/// times, and its machine loses power.
#[test]
fn file_stays_readable_through_changes_and_crashes() {
    for seed in 0..30 {
        let world = World::new(seed);
        let scene = async {
            let (bucket, rng) = (world.bucket(), world.rng("work"));
            let slow = |limit| Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(limit) };
            let disk = DiskFaults { slow: slow(1 + rng.below(10)), ..DiskFaults::default() };
            let line = BucketFaults { slow: slow(1 + rng.below(50)), ..BucketFaults::default() };
            world.set_faults(FaultPlan { disk, bucket: line, ..FaultPlan::default() });
            let often = Duration::from_millis(rng.below(30));
            let mut mount = Mount::new(&world, &bucket, often).await;
            let most = [3_000, 70_000, 120_000, 300_000][rng.index(4)];
            let mut model: Vec<u8> = Vec::new();
            let mut is_forced = false;
            for step in 0..150 {
                let (at, len) = (rng.index(model.len() + 1), 1 + piece(&rng, most));
                match rng.below(20) {
                    0..6 if model.len() < most => write(&mount, &mut model, None, len, step).await,
                    0..9 => write(&mount, &mut model, Some(at), len.min(most), step).await,
                    9..12 => {
                        // Over its end.
                        let at = model.len().saturating_sub(1 + rng.index(len));
                        write(&mount, &mut model, Some(at), len, step).await;
                    }
                    12 => {
                        model.resize(rng.index(most), 0);
                        mount.resize(model.len()).await;
                    }
                    13 => {
                        let end = model.len().min(at + len);
                        model[at..end].fill(0);
                        mount.zero(at, len).await;
                    }
                    14..16 => mount.client.fsync(mount.file).await.unwrap(),
                    16 => world.sleep(Duration::from_millis(rng.below(400))).await,
                    17 => drop(
                        mount
                            .client
                            .admin(AdminRequest::Evict {
                                path: vec![],
                                from: (Ino(0), 0),
                                limit_bytes: u64::MAX,
                            })
                            .await,
                    ),
                    18 => {
                        mount.process.kill();
                        mount = Mount::new(&world, &bucket, often).await;
                    }
                    _ => {
                        world.machine("a").power_cut();
                        mount = Mount::new(&world, &bucket, often).await;
                        let left = mount.read().await;
                        assert!(
                            !is_forced || left == model,
                            "step {step}: what was forced is lost"
                        );
                        model = left;
                    }
                }
                is_forced = is_forced_after(&rng, &mount).await;
                assert!(mount.read().await == model, "step {step}: other bytes");
            }
            world.set_faults(FaultPlan::default());
            mount.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
            assert_eq!(rig::fsck(&mount.client).await.unwrap().problems, vec![]);
            if !model.is_empty() {
                assert!(
                    bucket.objects()["file"].body.to_vec() == model,
                    "other bytes in the bucket"
                );
            }
        };
        world.run(scene).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

async fn is_forced_after(rng: &Rng, mount: &Mount) -> bool {
    let forces = rng.below(4) == 0;
    if forces {
        mount.client.fsync(mount.file).await.unwrap();
    }
    forces
}

/// Short ones more often.
fn piece(rng: &Rng, most: usize) -> usize {
    let limit = [20, 5_000, most][rng.index(3)];
    rng.index(limit)
}

/// At the end, if not anywhere else.
async fn write(mount: &Mount, model: &mut Vec<u8>, at: Option<usize>, len: usize, step: u64) {
    let at = at.unwrap_or(model.len());
    let data: Vec<u8> = (0..len).map(|byte| (byte as u64 * 31 + step * 7 + 1) as u8).collect();
    model.resize(model.len().max(at + len), 0);
    model[at..at + len].copy_from_slice(&data);
    mount.write(at, &data).await;
}

/// Situation: a forced file is truncated and written beyond the truncation, and the power fails.
/// Danger: the disk keeps the bytes, the log loses both commands, and the checksum of the forced
/// bytes fails every read.
#[test]
fn lost_truncation_keeps_forced_bytes_readable() {
    // How many bytes are written, how long the file is, to where it is cut, and where it is written
    // then.
    let cuts = [
        (1_000, 1_000, 500, 0),
        (100_000, 100_000, 65_536, 65_536),
        (100_000, 100_000, 500, 700),
        (140_000, 200_000, 140_000, 135_000),
    ];
    for (seed, (written, len, cut, at)) in (0..24).flat_map(|seed| cuts.map(|cut| (seed, cut))) {
        let world = World::new(seed);
        let scene = async {
            let bucket = world.bucket();
            let mount = Mount::new(&world, &bucket, Duration::from_secs(3600)).await;
            // Of the second block zeros, so that nothing has to be cleared there.
            let content: Vec<u8> = (0..len)
                .map(|at| if at < written && at < 65_536 || at > 131_072 { 7 } else { 0 })
                .collect();
            mount.write(0, &content[..written]).await;
            mount.resize(len).await;
            mount.client.fsync(mount.file).await.unwrap();
            mount.resize(cut).await;
            mount.write(at, b"over it").await;
            world.machine("a").power_cut();
            let mount = Mount::new(&world, &bucket, Duration::from_secs(3600)).await;
            let left = mount.read().await;
            assert!(left.len() >= cut, "{} bytes", left.len());
            assert_eq!(rig::fsck(&mount.client).await.unwrap().problems, vec![]);
        };
        world.run(scene).unwrap_or_else(|failure| {
            panic!("seed {seed}, {written}, {len}, {cut}, {at}: {failure}")
        });
    }
}

/// Situation: the end of a file is overwritten at each moment of its upload, also while the log
/// records its end. Danger: the end of the upload drops the block, and the bytes around the write
/// become zeros.
#[test]
fn an_upload_that_ends_under_a_write_takes_no_checksum_along() {
    let world = World::new(1);
    let scene = async {
        let bucket = world.bucket();
        let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(10) };
        world.set_faults(FaultPlan {
            disk: DiskFaults { slow, ..DiskFaults::default() },
            ..FaultPlan::default()
        });
        let mount = Mount::new(&world, &bucket, Duration::ZERO).await;
        for moment in 0..400 {
            let mut model = vec![moment as u8; 1000];
            mount.write(0, &model).await;
            mount.client.fsync(mount.file).await.unwrap();
            world.sleep(Duration::from_micros(moment * 150)).await;
            write(&mount, &mut model, Some(600), 400, moment).await;
            assert!(mount.read().await == model, "moment {moment}: other bytes");
        }
    };
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a write to a range of a file in upload fails on the node's disk, with some of its
/// bytes written. Danger: they get the checksum of the uploaded bytes, and are read as long as they
/// are cached.
#[test]
fn failed_write_during_an_upload_gets_no_uploaded_checksum() {
    for seed in 0..20 {
        let world = World::new(seed);
        let scene = async {
            let bucket = world.bucket();
            let mount = Mount::new(&world, &bucket, Duration::from_secs(3600)).await;
            let content: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
            mount.write(0, &content).await;
            mount.client.fsync(mount.file).await.unwrap();
            let line = BucketFaults {
                slow: Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(5) },
                ..BucketFaults::default()
            };
            world.set_faults(FaultPlan { bucket: line, ..FaultPlan::default() });
            let flush = mount.client.admin(AdminRequest::Flush { path: vec![] });
            let fail = async {
                world.sleep(Duration::from_millis(100)).await;
                // After the record of the log.
                world.machine("a").disk("node").fail_nth(DiskOperation::Write, 3);
                mount
                    .client
                    .write(&Caller::ROOT, mount.file, 70_000, vec![255; 50_000].into(), false)
                    .await
                    .map(drop)
            };
            let (flushed, failed) = join(flush, fail).await;
            flushed.unwrap();
            assert_eq!(failed, Err(FsError::Io));
            world.set_faults(FaultPlan::default());
            assert!(mount.read().await == content, "other bytes than were sent");
            mount
                .client
                .admin(AdminRequest::Evict {
                    path: vec![],
                    from: (Ino(0), 0),
                    limit_bytes: u64::MAX,
                })
                .await
                .unwrap();
            assert!(mount.read().await == content, "other bytes than the bucket has");
            assert_eq!(rig::fsck(&mount.client).await.unwrap().problems, vec![]);
        };
        world.run(scene).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: the disk is full, and small pieces of a file are written over until its log has no
/// room for more. Danger: the write that is refused has been made.
#[test]
fn write_refused_by_a_full_disk_changes_nothing() {
    let world = World::new(1);
    let scene = async {
        let bucket = world.bucket();
        let mount = Mount::with(
            &world,
            &bucket,
            Options { segment_bytes: 16 << 10, ..options(Duration::from_secs(3600)) },
        )
        .await;
        mount.write(0, &[1; 8192]).await;
        mount.client.fsync(mount.file).await.unwrap();
        mount.write(0, &[2; 8192]).await;
        let disk = world.machine("a").disk("node");
        disk.set_capacity(disk.used_bytes());
        let mut model = mount.read().await;
        for step in 0..10_000usize {
            let (at, data) = (step % 8 * 1000, vec![step as u8; 1000]);
            let written = mount
                .client
                .write(&Caller::ROOT, mount.file, at as u64, data.clone().into(), false)
                .await;
            match written.map(drop) {
                Ok(()) => model[at..at + 1000].copy_from_slice(&data),
                refused => {
                    assert_eq!(refused, Err(FsError::NoSpace), "step {step}");
                    assert!(mount.read().await == model, "step {step}: other bytes");
                    break;
                }
            }
            assert!(step < 9_999, "the log is never full");
        }
        // Nor are failed reads replaced by zeros.
        let zeroed = mount
            .client
            .fallocate(&Caller::ROOT, mount.file, (100, 500), Allocation::Zero, true, false)
            .await;
        assert_eq!(zeroed.map(drop), Err(FsError::NoSpace));
        assert!(mount.read().await == model, "zeros in place of bytes");
        disk.set_capacity(64 << 30);
        write(&mount, &mut model, Some(3), 7, 1).await;
        assert!(mount.read().await == model, "other bytes");
    };
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Situation: a range of a small file in upload is overwritten, so that no checksum of it is left;
/// at the end of the upload it cannot be read for one, and while the end is logged the file
/// outgrows its range. Danger: the end of the upload drops blocks that have just moved, and clears
/// their new location.
#[test]
fn an_upload_that_ends_under_a_move_takes_no_bytes_along() {
    let world = World::new(1);
    let scene = async {
        let bucket = world.bucket();
        let mount = Mount::new(&world, &bucket, Duration::from_secs(3600)).await;
        let client = &mount.client;
        for moment in 0..250u64 {
            let make = async |name: String| {
                let name = Name::new(name.as_bytes()).unwrap();
                client
                    .make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false)
                    .await
                    .unwrap()
                    .ino
            };
            let mut model: Vec<u8> = (0..100_000).map(|at| (at % 251 + 1) as u8).collect();
            let (file, next) =
                (make(format!("file {moment}")).await, make(format!("next {moment}")).await);
            for (ino, data) in [(file, model.clone()), (next, vec![1; 100])] {
                client.write(&Caller::ROOT, ino, 0, data.into(), false).await.unwrap();
            }
            client.fsync(file).await.unwrap();
            let slow = |limit| Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(limit) };
            let line = BucketFaults { slow: slow(100), ..BucketFaults::default() };
            world.set_faults(FaultPlan { bucket: line, ..FaultPlan::default() });
            let flush = client.admin(AdminRequest::Flush { path: vec![] });
            let change = async {
                world.sleep(Duration::from_millis(8)).await;
                client.write(&Caller::ROOT, file, 0, vec![255; 10].into(), false).await.unwrap();
                model[..10].fill(255);
                let disk = DiskFaults { slow: slow(10), ..DiskFaults::default() };
                world.set_faults(FaultPlan { bucket: line, disk, ..FaultPlan::default() });
                world.machine("a").disk("node").fail_nth(DiskOperation::Read, 1);
                world.sleep(Duration::from_micros(moment * 500)).await;
                client.write(&Caller::ROOT, file, 100_000, vec![254; 5_000].into(), false).await
            };
            let (_, grown) = join(flush, change).await;
            world.set_faults(FaultPlan::default());
            if grown.is_ok() {
                model.resize(105_000, 254);
            }
            let read = client.read(file, 0, model.len()).await.unwrap();
            assert!(
                read == model,
                "moment {moment}: other bytes from {:?} on",
                read.iter().zip(&model).position(|(read, byte)| read != byte)
            );
        }
    };
    world.run(scene).unwrap_or_else(|failure| panic!("{failure}"));
}
