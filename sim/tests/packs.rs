//! Small files in pack files: forced data survives moves and power cuts, truncated data never
//! reappears, and space is reclaimed.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig::{attach_embedded, open};
use ebb_sim::{
    DiskFaults, DiskOperation, FaultPlan, Machine, Process, Rate, SimBucket, Slowness, World,
};
use futures_util::future::join;
use std::time::Duration;

/// The seed draws the effect of a power cut; each danger occurs for some of these seeds.
const SEEDS: u64 = 6;

/// Longer than most scenarios, which force explicitly.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1200);

const OLD: u8 = b'a';
const NEW: u8 = b'b';

struct Volume {
    machine: Machine,
    bucket: SimBucket,
    process: Process,
    client: Client,
    other: Ino,
}

impl Volume {
    async fn new(world: &World) -> Volume {
        Volume::with(world, PACKED_BYTES).await
    }

    async fn with(world: &World, pack_bytes: u64) -> Volume {
        let (machine, bucket) = (world.machine("a"), world.bucket());
        let (process, client) = mount_with(&machine, &bucket, pack_bytes).await;
        let other = make(&client, "other").await;
        Volume { machine, bucket, process, client, other }
    }

    async fn file(&self, name: &str, len: usize) -> Ino {
        let ino = make(&self.client, name).await;
        self.write(ino, 0, len, OLD).await;
        ino
    }

    async fn write(&self, ino: Ino, offset: u64, len: usize, with: u8) {
        self.client
            .write(&Caller::ROOT, ino, offset, Bytes::from(vec![with; len]), false)
            .await
            .unwrap();
    }

    async fn resize(&self, ino: Ino, size_bytes: u64) {
        let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        self.client.setattr(&Caller::ROOT, ino, set).await.unwrap();
    }

    async fn read(&self, ino: Ino) -> Bytes {
        self.client.read(ino, 0, MAX_IO_BYTES).await.unwrap()
    }

    async fn force(&self, ino: Ino) {
        self.client.fsync(ino).await.unwrap();
    }

    /// Forces the log, and of other bytes only the current pack file.
    async fn force_log(&self) {
        self.force(self.other).await;
    }

    /// Forces everything, and reclaims obsolete files.
    async fn force_all(&self) {
        self.client.sync_fs().await.unwrap();
    }

    /// Stops when the disk is full.
    async fn fill_log(&self) {
        for len in [50_000, 100, 1] {
            let (name, value) = (Bytes::from_static(b"user.a"), Bytes::from(vec![1; len]));
            let set = async || {
                self.client
                    .setxattr(
                        &Caller::ROOT,
                        self.other,
                        name.clone(),
                        value.clone(),
                        XattrMode::Set,
                    )
                    .await
            };
            while set().await.is_ok() {}
        }
    }

    async fn restart(&mut self) {
        self.process.kill();
        (self.process, self.client) = mount(&self.machine, &self.bucket).await;
    }

    async fn cut_power(&mut self) {
        self.machine.power_cut();
        (self.process, self.client) = mount(&self.machine, &self.bucket).await;
    }

    async fn unlink(&self, name: &str) {
        self.client
            .unlink(&Caller::ROOT, Ino::ROOT, &Name::new(name.as_bytes()).unwrap())
            .await
            .unwrap();
    }

    async fn flush(&self) {
        self.client.admin(AdminRequest::Flush { path: vec![] }).await.unwrap();
    }

    fn paths(&self, dir: &str) -> Vec<String> {
        self.machine.disk("data").paths().into_iter().filter(|path| path.starts_with(dir)).collect()
    }

    async fn expect_sound(&self) {
        let AdminReply::Fsck(report) = self.client.admin(AdminRequest::Fsck).await.unwrap() else {
            unreachable!("it was asked for")
        };
        assert_eq!(report.problems, vec![]);
    }

    async fn packs(&self) -> PackStatus {
        let AdminReply::Status(status) = self.client.admin(AdminRequest::Status).await.unwrap()
        else {
            unreachable!("it was asked for")
        };
        status.packs
    }
}

async fn mount(machine: &Machine, bucket: &SimBucket) -> (Process, Client) {
    mount_with(machine, bucket, PACKED_BYTES).await
}

async fn mount_with(machine: &Machine, bucket: &SimBucket, pack_bytes: u64) -> (Process, Client) {
    let process = machine.process_on("node", "data");
    let (commit_interval, flush_interval) = (COMMIT_INTERVAL, 2 * COMMIT_INTERVAL);
    let options = Options {
        volume: "ebb".into(),
        embedded: true,
        commit_interval,
        flush_interval,
        pack_bytes,
        ..Options::default()
    };
    let node = open(&process, bucket, &options).await.unwrap().unwrap();
    let client = attach_embedded(&process, &node).await.unwrap().unwrap();
    (process, client)
}

async fn make(client: &Client, name: &str) -> Ino {
    let name = Name::new(name.as_bytes()).unwrap();
    client.make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, false).await.unwrap().ino
}

fn is_all(bytes: &[u8], with: u8) -> bool {
    bytes.iter().all(|byte| *byte == with)
}

/// Danger: the log records a file's new location, and the copy of its forced bytes is lost.
#[test]
fn pack_move_keeps_forced_bytes() {
    for (seed, len) in (0..SEEDS).flat_map(|seed| [20_000, 200_000].map(|len| (seed, len))) {
        for restarted in [false, true] {
            let world = World::new(seed);
            let scenario = async {
                let mut volume = Volume::new(&world).await;
                let file = volume.file("file", 5000).await;
                volume.force(file).await;
                // The last file of the current pack file would grow in place.
                volume.file("behind", 100).await;
                if restarted {
                    volume.restart().await;
                }
                volume.write(file, 5000, len, NEW).await;
                volume.force_log().await;
                volume.cut_power().await;
                let bytes = volume.read(file).await;
                assert!(
                    is_all(&bytes[..5000], OLD),
                    "seed {seed}, {len} bytes more: what was forced is gone"
                );
                volume.expect_sound().await;
            };
            world.run(scenario).unwrap();
        }
    }
}

/// Danger: bytes behind the end of a small file stay where they are, and show when it grows over
/// them.
#[test]
fn truncated_small_file_grows_with_zeros() {
    for seed in 0..SEEDS {
        for write_behind in [false, true] {
            let world = World::new(seed);
            let scenario = async {
                let mut volume = Volume::new(&world).await;
                let file = volume.file("file", 8000).await;
                volume.force(file).await;
                volume.resize(file, 100).await;
                volume.force(file).await;
                volume.restart().await;
                match write_behind {
                    true => volume.write(file, 7000, 1000, NEW).await,
                    false => volume.resize(file, 8000).await,
                }
                let bytes = volume.read(file).await;
                assert!(
                    bytes.len() == 8000
                        && is_all(&bytes[..100], OLD)
                        && is_all(&bytes[100..7000], 0)
                );
                volume.force_log().await;
                volume.cut_power().await;
                let bytes = volume.read(file).await;
                assert!(is_all(&bytes[..100], OLD), "seed {seed}: what was forced is gone");
                assert!(
                    is_all(&bytes[100..7000.min(bytes.len())], 0),
                    "seed {seed}: what was cut off came back"
                );
            };
            world.run(scenario).unwrap();
        }
    }
}

/// A small file uses no disk file of its own, and no space once it is removed.
#[test]
fn space_is_given_back() {
    let world = World::new(1);
    let scenario = async {
        let mut volume = Volume::new(&world).await;
        let files: Vec<String> = (0..100).map(|at| format!("file {at}")).collect();
        for name in &files {
            volume.file(name, 4000).await;
        }
        volume.force_all().await;
        let packs = volume.packs().await;
        assert_eq!((packs.files, packs.used_bytes), (100, 100 * PACK_UNIT_BYTES));
        assert_eq!(volume.paths("store/"), Vec::<String>::new());
        assert_eq!(
            volume.paths("packs/").len() as u64,
            (100 * PACK_UNIT_BYTES).div_ceil(PACKED_BYTES)
        );
        let used = volume.machine.disk("data").used_bytes();
        for name in &files[..90] {
            volume.unlink(name).await;
        }
        assert!(
            volume.machine.disk("data").used_bytes() >= used,
            "a power cut may bring them back"
        );
        volume.force_all().await;
        assert!(volume.machine.disk("data").used_bytes() + 80 * PACK_UNIT_BYTES < used);
        volume.restart().await;
        for name in &files[90..] {
            volume.unlink(name).await;
        }
        volume.force_all().await;
        assert_eq!(
            (volume.paths("packs/"), volume.packs().await),
            (Vec::new(), PackStatus::default())
        );
    };
    world.run(scenario).unwrap();
}

/// Situation: on a full disk a large file is removed and the removal forced. Danger: its space is
/// reclaimed only a commit interval later.
#[test]
fn room_of_a_large_file_comes_with_the_next_fsync() {
    let world = World::new(1);
    let scenario = async {
        let volume = Volume::new(&world).await;
        let large = volume.file("large", 1_000_000).await;
        volume.force(large).await;
        let used = volume.machine.disk("data").used_bytes();
        volume.unlink("large").await;
        volume.force_log().await;
        assert!(volume.machine.disk("data").used_bytes() + 900_000 < used);
    };
    world.run(scenario).unwrap();
}

/// The last file of the current pack file is removed before another pack file is begun: no later
/// removal would reclaim the empty one.
#[test]
fn an_empty_pack_file_goes_once_nothing_is_added() {
    let world = World::new(1);
    let scenario = async {
        let volume = Volume::new(&world).await;
        volume.file("first", 100_000).await;
        volume.unlink("first").await;
        volume.force_all().await;
        assert_eq!(volume.paths("packs/").len(), 1, "files are added to it");
        volume.file("second", 100_000).await;
        volume.force_all().await;
        assert_eq!(volume.paths("packs/").len(), 1, "the empty one is left");
        volume.expect_sound().await;
    };
    world.run(scenario).unwrap();
}

/// A pack file fails to sync: every file with unforced bytes in it is affected, since the system
/// reports the failure once and drops the bytes.
#[test]
fn failed_pack_sync_affects_every_file_in_it() {
    let world = World::new(1);
    let scenario = async {
        let volume = Volume::new(&world).await;
        let first = volume.file("first", 100).await;
        volume.force(first).await;
        let (one, two) = (volume.file("one", 100).await, volume.file("two", 100).await);
        volume.machine.disk("data").fail_nth(DiskOperation::Sync, 1);
        assert_eq!(volume.client.fsync(one).await, Err(FsError::Io));
        assert_eq!(volume.client.fsync(two).await, Err(FsError::Io), "its bytes may be lost");
        let later = volume.file("later", 100).await;
        assert!(volume.client.fsync(later).await.is_ok(), "it is in another pack file");
    };
    world.run(scenario).unwrap();
}

/// The remaining files of sparse pack files are compacted unchanged, also across a power cut.
#[test]
fn sparse_pack_files_are_compacted() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Volume::new(&world).await;
            let mut kept = Vec::new();
            for at in 0..128 {
                let ino = volume.file(&format!("file {at}"), 3000 + at).await;
                volume.force(ino).await;
                if at % 16 == 0 {
                    kept.push((ino, 3000 + at));
                }
            }
            for at in (0..128).filter(|at| at % 16 != 0) {
                volume.unlink(&format!("file {at}")).await;
            }
            volume.force_all().await;
            let before = volume.packs().await;
            assert_eq!((before.packs, before.files), (4, 8));
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!(volume.packs().await, PackStatus { packs: 1, ..before });
            volume.force_all().await;
            assert_eq!(volume.paths("packs/").len(), 1);
            volume.cut_power().await;
            for (ino, len) in kept {
                let bytes = volume.read(ino).await;
                assert!(
                    bytes.len() == len && is_all(&bytes, OLD),
                    "seed {seed}: inode {ino} is not what it was"
                );
            }
            volume.expect_sound().await;
        };
        world.run(scenario).unwrap();
    }
}

/// Danger: two files are removed one after the other, and their pack file is removed with the
/// first, before the second removal is forced.
#[test]
fn a_pack_file_stays_until_all_that_left_it_is_forced() {
    let mut back = 0;
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Volume::new(&world).await;
            for name in ["one", "two"] {
                let ino = volume.file(name, 5000).await;
                volume.force(ino).await;
            }
            // A restart begins a new pack file.
            volume.restart().await;
            volume.unlink("one").await;
            join(volume.force_log(), volume.unlink("two")).await;
            volume.cut_power().await;
            let two = volume.client.lookup(Ino::ROOT, &Name::new(b"two").unwrap()).await;
            let Ok(two) = two else { return };
            back += 1;
            let bytes = volume.read(two.ino).await;
            assert!(
                bytes.len() == 5000 && is_all(&bytes, OLD),
                "seed {seed}: it is back without its bytes"
            );
            volume.expect_sound().await;
        };
        world.run(scenario).unwrap();
    }
    assert!(back > 0, "no power cut took the second command");
}

/// Danger: a pack file that is about to be removed, together with other files, counts as unknown.
/// (Seed 10702 of volumes.)
#[test]
fn pack_file_being_removed_is_no_stray() {
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Volume::new(&world).await;
            for (name, len) in [("large", 200_000), ("small", 5000)] {
                let ino = volume.file(name, len).await;
                volume.force(ino).await;
            }
            // A restart begins a new pack file.
            volume.restart().await;
            volume.unlink("large").await;
            volume.unlink("small").await;
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(100) };
            world.set_faults(FaultPlan {
                disk: DiskFaults { slow, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let watch = async {
                while !volume.paths("packs/").is_empty() {
                    volume.expect_sound().await;
                }
            };
            join(volume.force_log(), watch).await;
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Danger: data that is also in the bucket is moved without a force, and the log records it as
/// present.
#[test]
fn moved_clean_data_lost_in_a_power_cut_is_fetched_again() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Volume::new(&world).await;
            let kept = volume.file("kept", 5000).await;
            for at in 0..31 {
                volume.file(&format!("file {at}"), 4000).await;
            }
            volume.force(kept).await;
            volume.flush().await;
            volume.restart().await;
            for at in 0..31 {
                volume.unlink(&format!("file {at}")).await;
            }
            volume.force_log().await;
            let before = volume.paths("packs/");
            world.sleep(Duration::from_secs(60)).await;
            volume.force_log().await;
            assert_ne!(volume.paths("packs/"), before, "nothing was moved");
            volume.cut_power().await;
            volume.expect_sound().await;
            let bytes = volume.read(kept).await;
            assert!(
                bytes.len() == 5000 && is_all(&bytes, OLD),
                "seed {seed}: it is not what it was"
            );
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: in the emptiest pack file one file is unreadable, and not in the bucket. Danger: its
/// other files, and those of all following pack files, are never compacted.
#[test]
fn a_file_that_cannot_be_moved_keeps_no_other_from_it() {
    let world = World::new(1);
    let scenario = async {
        let volume = Volume::new(&world).await;
        for at in 0..128 {
            let ino = volume.file(&format!("file {at}"), 3000).await;
            volume.force(ino).await;
        }
        let packs = volume.paths("packs/");
        assert_eq!(packs.len(), 4);
        // Two are left in the first one, and three in each of the others.
        for at in (0..128).filter(|at| at % 16 != 0 && !(at > &32 && at % 32 == 1)) {
            volume.unlink(&format!("file {at}")).await;
        }
        volume.force_all().await;
        volume.machine.disk("data").spoil(&packs[0], 0..3000).unwrap();
        let before = volume.packs().await;
        assert_eq!((before.packs, before.files), (4, 11));
        world.sleep(Duration::from_secs(60)).await;
        volume.force_all().await;
        assert_eq!(volume.packs().await, PackStatus { packs: 2, ..before });
        let left = volume.paths("packs/");
        assert!(left.len() == 2 && left.contains(&packs[0]), "{left:?}");
        volume.unlink("file 0").await;
        volume.force_all().await;
        assert_eq!(volume.packs().await.packs, 1, "it was not alone there");
        let moved = volume.client.lookup(Ino::ROOT, &Name::new(b"file 16").unwrap()).await.unwrap();
        assert!(is_all(&volume.read(moved.ino).await, OLD));
    };
    world.run(scenario).unwrap();
}

/// Situation: the disk has room to copy a file, but not to log its move. Danger: the space of the
/// copy is never reclaimed.
#[test]
fn a_move_that_a_full_disk_refuses_takes_no_room() {
    // To another range, and to a store file of its own.
    for grown_bytes in [5_000, 150_000] {
        let world = World::new(1);
        let scenario = async {
            let volume = Volume::with(&world, PACK_BYTES).await;
            let files = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| format!("file {at}"));
            let mut moved = Vec::new();
            for name in &files {
                moved.push(volume.file(name, 60_000).await);
            }
            // The last file of the current pack file would grow in place.
            volume.file("behind", 100).await;
            volume.force(moved[0]).await;
            let disk = volume.machine.disk("data");
            disk.set_capacity(disk.used_bytes());
            volume.fill_log().await;
            // When the log has room again, it continues in a new segment.
            let log_bytes = || volume.paths("log/").len() as u64 * Options::default().segment_bytes;
            let before = disk.used_bytes() - log_bytes();
            for ino in moved.iter().cycle().take(40) {
                disk.set_capacity(disk.used_bytes() + 100_000);
                let grown = volume
                    .client
                    .write(&Caller::ROOT, *ino, 60_000, Bytes::from(vec![NEW; grown_bytes]), false)
                    .await;
                assert_eq!(grown.map(drop), Err(FsError::NoSpace));
            }
            disk.set_capacity(64 << 30);
            volume.force_all().await;
            let more = (disk.used_bytes() - log_bytes()).saturating_sub(before);
            assert!(more < 100_000, "{more} bytes are nobody's");
            for ino in moved {
                let bytes = volume.read(ino).await;
                assert!(bytes.len() == 60_000 && is_all(&bytes, OLD));
            }
            volume.expect_sound().await;
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("{grown_bytes}: {failure}"));
    }
}

/// Situation: the disk has no room for the record that bytes are forced. Danger: an fsync fails
/// although its bytes are safe.
#[test]
fn a_full_disk_fails_no_fsync() {
    let world = World::new(1);
    let scenario = async {
        let mut volume = Volume::new(&world).await;
        let mut files = Vec::new();
        for at in 0..40 {
            files.push(volume.file(&format!("file {at}"), 100).await);
        }
        let disk = volume.machine.disk("data");
        disk.set_capacity(disk.used_bytes());
        volume.fill_log().await;
        for ino in &files {
            assert_eq!(volume.client.fsync(*ino).await, Ok(()));
        }
        disk.set_capacity(64 << 30);
        volume.cut_power().await;
        for ino in files {
            assert!(is_all(&volume.read(ino).await, OLD));
        }
    };
    world.run(scenario).unwrap();
}

/// Situation: the disk becomes full during the first write of a small file, part of which is in the
/// pack file. Danger: the space of that part is never reclaimed, since no record mentions it.
#[test]
fn a_first_write_that_a_full_disk_refuses_takes_no_room() {
    let world = World::new(1);
    let scenario = async {
        let volume = Volume::with(&world, PACK_BYTES).await;
        volume.file("before", 100).await;
        let ino = make(&volume.client, "new").await;
        // The first time it is logged that all is forced, and the second time that is.
        volume.client.sync_fs().await.unwrap();
        volume.client.sync_fs().await.unwrap();
        let disk = volume.machine.disk("data");
        let before = disk.used_bytes();
        for _ in 0..20 {
            disk.set_capacity(disk.used_bytes() + 30_000);
            let written = volume
                .client
                .write(&Caller::ROOT, ino, 0, Bytes::from(vec![NEW; 50_000]), false)
                .await;
            assert_eq!(written.map(drop), Err(FsError::NoSpace));
        }
        disk.set_capacity(64 << 30);
        // The log is empty, and nothing else needs a force.
        world.sleep(COMMIT_INTERVAL).await;
        let more = disk.used_bytes().saturating_sub(before);
        assert!(more < 100_000, "{more} bytes are nobody's");
        volume.write(ino, 0, 50_000, NEW).await;
        assert!(is_all(&volume.read(ino).await, NEW));
        volume.expect_sound().await;
    };
    world.run(scenario).unwrap();
}
