//! Semantics and faults of the simulated disk.

use bytes::Bytes;
use ebb_ports::{Disk, DiskError, DiskFile, OpenMode};
use ebb_sim::{DiskOperation, FaultPlan, Rate, Rng, SECTOR_BYTES, World};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Restarts the program of the data directory and opens its disk.
fn disk_of(world: &World) -> Rc<dyn Disk> {
    world.machine("a").process("node").ports.disk
}

async fn create(disk: &Rc<dyn Disk>, path: &str) -> Rc<dyn DiskFile> {
    disk.open(path, OpenMode::Create).await.unwrap()
}

async fn content(disk: &Rc<dyn Disk>, path: &str) -> Bytes {
    let file = disk.open(path, OpenMode::Existing).await.unwrap();
    file.read_at(0, 1 << 20).await.unwrap()
}

/// A process writes and dies by SIGKILL: its successor finds everything written.
#[test]
fn a_kill_loses_nothing_that_was_written() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let disk = process.ports.disk.clone();
    world
        .run(async { create(&disk, "log").await.write_at(0, Bytes::from("hello")).await.unwrap() })
        .unwrap();
    process.kill();
    let disk = disk_of(&world);
    assert_eq!(world.run(content(&disk, "log")).unwrap(), "hello");
}

/// A program dies while its writes are on their way to the kernel: each has been done
/// whole or not at all, and both happen.
#[test]
fn a_kill_finds_a_write_done_or_not_done() {
    let mut lengths = BTreeSet::new();
    for seed in 0..50 {
        let world = World::new(seed);
        let process = world.machine("a").process("node");
        let file = world.run(create(&process.ports.disk, "log")).unwrap();
        process.spawn(async move { file.write_at(0, Bytes::from(vec![1; 2000])).await.unwrap() });
        world.run_for(Duration::from_micros(100)).unwrap();
        process.kill();
        let disk = disk_of(&world);
        lengths.insert(world.run(content(&disk, "log")).unwrap().len());
    }
    assert_eq!(lengths, BTreeSet::from([0, 2000]));
}

/// Synced bytes under a synced name, then writes without a sync, then a power cut. Expectation over
/// many seeds: the synced bytes always survive; each other sector sometimes survives, sometimes
/// not, and is sometimes torn.
#[test]
fn power_cut_keeps_synced_sectors_and_may_lose_others() {
    const SECTOR: usize = SECTOR_BYTES as usize;
    let (mut kept, mut dropped, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world
            .run(async {
                let file = create(&disk, "log").await;
                file.write_at(0, Bytes::from(vec![1; 8 * SECTOR])).await.unwrap();
                file.sync_data().await.unwrap();
                disk.sync_dir("").await.unwrap();
                file.write_at(4 * SECTOR as u64, Bytes::from(vec![2; 8 * SECTOR])).await.unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        let bytes = world.run(content(&disk, "log")).unwrap();
        assert!(bytes.len() == 8 * SECTOR || bytes.len() == 12 * SECTOR, "{}", bytes.len());
        assert!(bytes[..4 * SECTOR].iter().all(|byte| *byte == 1), "seed {seed} lost synced bytes");
        for sector in bytes[4 * SECTOR..8 * SECTOR].chunks(SECTOR) {
            match sector.iter().filter(|byte| **byte == 2).count() {
                0 => dropped += 1,
                SECTOR => kept += 1,
                _ => torn += 1,
            }
            assert!(sector.iter().all(|byte| [1, 2].contains(byte)));
        }
    }
    assert!(kept > 50 && dropped > 50 && torn > 5, "kept {kept}, dropped {dropped}, torn {torn}");
}

/// Random writes, cuts and punches run against a plain vector; all agree on every read,
/// and a power cut after a sync leaves exactly the vector.
#[test]
fn a_file_behaves_like_a_plain_vector() {
    for seed in 0..30 {
        let world = World::new(seed);
        let rng = world.rng("model");
        let disk = disk_of(&world);
        let mut model: Vec<u8> = Vec::new();
        world
            .run(async {
                let file = create(&disk, "data").await;
                disk.sync_dir("").await.unwrap();
                for _ in 0..100 {
                    let (offset, len) = (rng.index(5000), rng.index(2000));
                    match rng.below(6) {
                        0 => {
                            file.set_len(offset as u64).await.unwrap();
                            model.resize(offset, 0);
                        }
                        1 => {
                            file.punch(offset as u64, len as u64).await.unwrap();
                            let end = (offset + len).min(model.len());
                            model[offset.min(end)..end].fill(0);
                        }
                        2 => file.sync_data().await.unwrap(),
                        _ => {
                            let byte = rng.below(255) as u8 + 1;
                            file.write_at(offset as u64, Bytes::from(vec![byte; len]))
                                .await
                                .unwrap();
                            if len > 0 {
                                model.resize(model.len().max(offset + len), 0);
                                model[offset..offset + len].fill(byte);
                            }
                        }
                    }
                    assert_eq!(file.len().await.unwrap(), model.len() as u64);
                    let (offset, len) = (rng.index(6000), rng.index(3000));
                    let end = (offset + len).min(model.len());
                    assert_eq!(
                        file.read_at(offset as u64, len).await.unwrap(),
                        model[offset.min(end)..end]
                    );
                }
                file.sync_data().await.unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        assert_eq!(world.run(content(&disk, "data")).unwrap(), model);
        world
            .run(async {
                disk.open("data", OpenMode::Existing).await.unwrap().set_len(0).await.unwrap()
            })
            .unwrap();
        let space = world.run(disk.space()).unwrap().unwrap();
        assert_eq!(space.free_bytes, space.total_bytes);
    }
}

/// A write overtakes a sync that is under way: the sync promises nothing about it.
#[test]
fn sync_covers_only_writes_before_its_call() {
    let mut later = BTreeSet::new();
    for seed in 0..100 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world
            .run(async {
                let file = create(&disk, "log").await;
                disk.sync_dir("").await.unwrap();
                file.write_at(0, Bytes::from(vec![1; 512])).await.unwrap();
                let (synced, written) = futures_util::join!(
                    file.sync_data(),
                    file.write_at(0, Bytes::from(vec![2; 512]))
                );
                synced.and(written).unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        let bytes = world.run(content(&disk, "log")).unwrap();
        assert_eq!(bytes.len(), 512);
        later.insert(bytes[511]);
    }
    assert_eq!(later, BTreeSet::from([1, 2]));
}

/// Cutting and punching without a sync: after a power cut the old bytes may be back.
#[test]
fn unsynced_cuts_and_punches_are_kept_or_dropped() {
    let (mut lengths, mut first) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..60 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world
            .run(async {
                let file = create(&disk, "data").await;
                file.write_at(0, Bytes::from(vec![7; 2048])).await.unwrap();
                file.sync_data().await.unwrap();
                disk.sync_dir("").await.unwrap();
                file.punch(0, 512).await.unwrap();
                file.set_len(1024).await.unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        let bytes = world.run(content(&disk, "data")).unwrap();
        lengths.insert(bytes.len());
        first.insert(bytes[0]);
        assert!(bytes[512..1024].iter().all(|byte| *byte == 7));
    }
    assert_eq!((lengths, first), (BTreeSet::from([1024, 2048]), BTreeSet::from([0, 7])));
}

/// Names are created, renamed and removed without a sync of their directory. Expectation after a
/// power cut: each change is kept or lost, and a replaced file is never missing.
#[test]
fn unsynced_names_are_kept_or_dropped() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world
            .run(async {
                for (path, text) in [("head", "old"), ("head.tmp", "new"), ("gone", "x")] {
                    let file = create(&disk, path).await;
                    file.write_at(0, Bytes::from(text)).await.unwrap();
                    file.sync_data().await.unwrap();
                }
                disk.sync_dir("").await.unwrap();
                disk.rename("head.tmp", "head").await.unwrap();
                disk.remove("gone").await.unwrap();
                create(&disk, "fresh").await;
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        let names = world.run(disk.list("")).unwrap().unwrap();
        let head = world.run(content(&disk, "head")).unwrap();
        let renamed = !names.contains(&"head.tmp".to_owned());
        assert_eq!(head, if renamed { "new" } else { "old" });
        seen.insert(format!("{names:?}"));
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

/// A synced name in a directory whose own name was not synced is lost with the directory; with both
/// synced it survives.
#[test]
fn a_name_is_as_safe_as_its_directory() {
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world
            .run(async {
                disk.create_dir("safe/deep").await.unwrap();
                disk.sync_dir("").await.unwrap();
                disk.sync_dir("safe").await.unwrap();
                disk.create_dir("risky").await.unwrap();
                for dir in ["safe/deep", "risky"] {
                    create(&disk, &format!("{dir}/file")).await;
                    disk.sync_dir(dir).await.unwrap();
                }
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        assert_eq!(world.run(disk.list("safe/deep")).unwrap().unwrap(), ["file"]);
        survived.insert(world.run(disk.list("risky")).unwrap().unwrap().len());
    }
    assert_eq!(survived, BTreeSet::from([0, 1]));
}

/// A file moves between directories and only the source directory is synced: it may be lost.
#[test]
fn a_rename_across_directories_needs_both_synced() {
    let mut survived = BTreeSet::new();
    for seed in 0..50 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world
            .run(async {
                disk.create_dir("from").await.unwrap();
                disk.create_dir("to").await.unwrap();
                disk.sync_dir("").await.unwrap();
                create(&disk, "from/file").await;
                disk.sync_dir("from").await.unwrap();
                disk.rename("from/file", "to/file").await.unwrap();
                disk.sync_dir("from").await.unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        survived.insert(world.machine("a").disk("node").paths());
    }
    assert_eq!(survived, BTreeSet::from([vec![], vec!["to/file".to_owned()]]));
}

/// Invalid names, and operations on missing files, fail one by one.
#[test]
fn impossible_names_are_refused() {
    let world = World::new(1);
    let disk = disk_of(&world);
    world
        .run(async {
            for path in ["", "/abs", "a//b", "a/../b", "./a", "a/"] {
                let refused = disk.open(path, OpenMode::Create).await.err();
                assert!(matches!(refused, Some(DiskError::Failed { .. })), "{path:?}: {refused:?}");
            }
            disk.create_dir("dir/sub").await.unwrap();
            disk.create_dir("dir/sub").await.unwrap();
            create(&disk, "file").await;
            assert!(matches!(
                disk.open("missing", OpenMode::Existing).await,
                Err(DiskError::NotFound { .. })
            ));
            assert!(matches!(
                disk.open("missing/file", OpenMode::Create).await,
                Err(DiskError::NotFound { .. })
            ));
            assert!(matches!(
                disk.open("file", OpenMode::CreateNew).await,
                Err(DiskError::Exists { .. })
            ));
            assert!(matches!(
                disk.open("dir", OpenMode::Existing).await,
                Err(DiskError::Failed { .. })
            ));
            assert!(matches!(disk.rename("missing", "x").await, Err(DiskError::NotFound { .. })));
            assert!(matches!(
                disk.rename("file", "missing/x").await,
                Err(DiskError::NotFound { .. })
            ));
            assert!(matches!(
                disk.rename("dir", "dir/sub/dir").await,
                Err(DiskError::Failed { .. })
            ));
            assert!(matches!(disk.remove("missing").await, Err(DiskError::NotFound { .. })));
            assert!(matches!(disk.remove("dir").await, Err(DiskError::Failed { .. })));
            assert!(matches!(disk.sync_dir("missing").await, Err(DiskError::NotFound { .. })));
            assert_eq!(disk.list("missing").await.unwrap(), Vec::<String>::new());
            disk.rename("file", "dir/file").await.unwrap();
            disk.rename("dir", "moved").await.unwrap();
            assert_eq!(disk.list("moved").await.unwrap(), ["file", "sub"]);
            let file = create(&disk, "moved/file").await;
            assert!(matches!(
                file.write_at(u64::MAX, Bytes::from("x")).await,
                Err(DiskError::Failed { .. })
            ));
            assert!(matches!(file.set_len(u64::MAX).await, Err(DiskError::Failed { .. })));
            file.punch(5, u64::MAX).await.unwrap();
            assert_eq!(file.read_at(u64::MAX, 10).await.unwrap(), "");
        })
        .unwrap();
}

/// The disk becomes full in the middle of a write: a prefix is written and the error reports that.
/// The space of a removed file returns when it is closed, not before.
#[test]
fn a_full_disk_writes_a_part_and_recovers() {
    let world = World::new(1);
    let disk = disk_of(&world);
    world.machine("a").disk("node").set_capacity(4 * SECTOR_BYTES);
    world
        .run(async {
            let file = create(&disk, "a").await;
            assert_eq!(file.write_at(0, Bytes::from(vec![1; 5000])).await, Err(DiskError::NoSpace));
            assert_eq!(file.len().await.unwrap(), 4 * SECTOR_BYTES);
            file.write_at(100, Bytes::from(vec![2; 100]))
                .await
                .expect("overwriting needs no space");
            disk.remove("a").await.unwrap();
            assert_eq!(disk.space().await.unwrap().free_bytes, 0);
            assert_eq!(file.read_at(100, 1).await.unwrap(), vec![2]);
            drop(file);
            assert_eq!(disk.space().await.unwrap().free_bytes, 4 * SECTOR_BYTES);
            create(&disk, "b").await.write_at(0, Bytes::from(vec![1; 2048])).await.unwrap();
        })
        .unwrap();
}

/// Only the second write fails, and it may have written any part.
#[test]
fn the_nth_operation_fails_once() {
    let mut parts = BTreeSet::new();
    for seed in 0..20 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world.machine("a").disk("node").fail_nth(DiskOperation::Write, 2);
        world
            .run(async {
                let file = create(&disk, "a").await;
                file.write_at(0, Bytes::from(vec![1; 1000])).await.unwrap();
                assert!(matches!(
                    file.write_at(0, Bytes::from(vec![2; 1000])).await,
                    Err(DiskError::Failed { .. })
                ));
                parts.insert(
                    file.read_at(0, 1000).await.unwrap().iter().filter(|byte| **byte == 2).count(),
                );
                file.write_at(0, Bytes::from(vec![3; 1000])).await.unwrap();
            })
            .unwrap();
    }
    assert!(parts.len() > 10, "{parts:?}");
}

/// Each kind of operation fails at its own rate, and a failed name change changes nothing.
#[test]
fn errors_come_at_the_planned_rate() {
    let world = World::new(1);
    let disk = disk_of(&world);
    let file = world.run(create(&disk, "a")).unwrap();
    let mut plan = FaultPlan::default();
    plan.disk.read_error = Rate::one_in(4);
    plan.disk.name_error = Rate::ALWAYS;
    world.set_faults(plan);
    world
        .run(async {
            let mut failed = 0;
            for _ in 0..400 {
                file.write_at(0, Bytes::from("x")).await.unwrap();
                failed += u32::from(file.read_at(0, 1).await.is_err());
            }
            assert!((60..140).contains(&failed), "{failed}");
            assert!(disk.rename("a", "b").await.is_err());
        })
        .unwrap();
    assert_eq!(world.machine("a").disk("node").paths(), ["a"]);
}

/// A sync fails and a second one succeeds: the bytes read correctly until the power is cut, and may
/// then be lost. Written again and synced, they survive.
#[test]
fn a_sync_after_a_failed_sync_proves_nothing() {
    let mut survived = BTreeSet::new();
    for seed in 0..100 {
        let world = World::new(seed);
        let disk = disk_of(&world);
        world.machine("a").disk("node").fail_nth(DiskOperation::Sync, 2);
        world
            .run(async {
                let file = create(&disk, "log").await;
                disk.sync_dir("").await.unwrap();
                file.write_at(0, Bytes::from(vec![1; 512])).await.unwrap();
                assert!(file.sync_data().await.is_err());
                file.sync_data().await.unwrap();
                assert_eq!(file.read_at(0, 512).await.unwrap(), vec![1; 512]);
                file.write_at(512, Bytes::from(vec![2; 512])).await.unwrap();
                file.sync_data().await.unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        let disk = disk_of(&world);
        let bytes = world.run(content(&disk, "log")).unwrap();
        assert_eq!(bytes[512..], vec![2; 512]);
        survived.insert(bytes[..512].iter().all(|byte| *byte == 1));
    }
    assert_eq!(survived, BTreeSet::from([false, true]));
}

/// The planted bug: a disk with lying syncs loses bytes within few power cuts.
#[test]
fn a_lying_sync_is_found_out() {
    let lost = (0..50).any(|seed| {
        let mut plan = FaultPlan::default();
        plan.disk.lying_sync = true;
        let world = World::with_faults(seed, plan);
        let disk = disk_of(&world);
        world
            .run(async {
                let file = create(&disk, "log").await;
                file.write_at(0, Bytes::from("x")).await.unwrap();
                file.sync_data().await.unwrap();
                disk.sync_dir("").await.unwrap();
            })
            .unwrap();
        world.machine("a").power_cut();
        world.machine("a").disk("node").paths().is_empty()
    });
    assert!(lost);
}

/// A bit on the platter flips: the reader gets the wrong byte, now and after a power cut.
#[test]
fn rotten_bits_are_read() {
    let world = World::new(1);
    let disk = disk_of(&world);
    world
        .run(async {
            let file = create(&disk, "dir-less").await;
            file.write_at(0, Bytes::from(vec![0; 1024])).await.unwrap();
            file.sync_data().await.unwrap();
            disk.sync_dir("").await.unwrap();
        })
        .unwrap();
    let machine = world.machine("a");
    assert_eq!(machine.disk("node").flip("dir-less", 700, 0x80), Ok(true));
    assert_eq!(machine.disk("node").flip("dir-less", 5000, 0x80), Ok(false));
    assert_eq!(world.run(content(&disk, "dir-less")).unwrap()[700], 0x80);
    machine.power_cut();
    let disk = disk_of(&world);
    assert_eq!(world.run(content(&disk, "dir-less")).unwrap()[700], 0x80);
    assert!(machine.disk("node").flip_any().is_some());

    let mut plan = FaultPlan::default();
    plan.disk.bit_rot = Rate::ALWAYS;
    world.set_faults(plan);
    let before = world.run(content(&disk, "dir-less")).unwrap();
    assert_ne!(world.run(content(&disk, "dir-less")).unwrap(), before);
}

/// Two processes open one data directory: the second gets an error with the owner until the first
/// is dead. Another boot has another boot id.
#[test]
fn a_data_directory_has_one_owner() {
    let world = World::new(1);
    let machine = world.machine("a");
    let (first, second) = (machine.process("node"), machine.process("node"));
    first.ports.disk.lock().unwrap();
    first.ports.disk.lock().expect("the owner may ask again");
    assert_eq!(second.ports.disk.lock(), Err(DiskError::InUse { owner: first.name().to_owned() }));
    machine.process("client").ports.disk.lock().expect("another data directory");
    let boot_id = second.ports.disk.boot_id();
    first.kill();
    second.ports.disk.lock().unwrap();
    assert_eq!(second.ports.disk.boot_id(), boot_id);
    machine.power_cut();
    let third = machine.process("node");
    third.ports.disk.lock().unwrap();
    assert_ne!(third.ports.disk.boot_id(), boot_id);
    assert!(!second.is_alive());
}

/// A slow disk takes longer than a good one, by up to the limit.
#[test]
fn a_slow_disk_is_slow() {
    let mut plan = FaultPlan::default();
    plan.disk.slow.rate = Rate::ALWAYS;
    plan.disk.slow.limit = Duration::from_secs(1);
    let world = World::with_faults(1, plan);
    let disk = disk_of(&world);
    world
        .run(async {
            for _ in 0..20 {
                create(&disk, "a").await;
            }
        })
        .unwrap();
    assert!(world.now() > Duration::from_secs(5), "{:?}", world.now());
}

/// Random namespace changes with random syncs and a power cut: the surviving tree can be listed,
/// opened and read.
#[test]
fn any_power_cut_leaves_a_whole_tree() {
    for seed in 0..60 {
        let world = World::new(seed);
        let rng: Rng = world.rng("names");
        let names = ["a", "b", "d/a", "d/b", "d/e/a", "f/a"];
        let dirs = ["", "d", "d/e", "f"];
        for _ in 0..3 {
            let disk = disk_of(&world);
            world
                .run(async {
                    for _ in 0..60 {
                        let (path, other) =
                            (names[rng.index(names.len())], names[rng.index(names.len())]);
                        let dir = dirs[rng.index(dirs.len())];
                        // Many of these fail, which is part of the mix.
                        drop(match rng.below(6) {
                            0 => disk.create_dir(dir).await,
                            1 => disk.rename(path, other).await,
                            2 => disk.rename(dir, dirs[rng.index(dirs.len())]).await,
                            3 => disk.remove(path).await,
                            4 => disk.sync_dir(dir).await,
                            _ => disk.open(path, OpenMode::Create).await.map(drop),
                        });
                    }
                })
                .unwrap();
            world.machine("a").power_cut();
            let disk = disk_of(&world);
            for path in world.machine("a").disk("node").paths() {
                let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
                assert!(world.run(disk.list(dir)).unwrap().unwrap().contains(&name.to_owned()));
                world.run(content(&disk, &path)).unwrap();
            }
        }
    }
}
