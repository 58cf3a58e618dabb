//! Data that a power cut must neither lose nor bring back, for every outcome on the disk.

use bytes::Bytes;
use ebb_client::Client;
use ebb_model::*;
use ebb_node::Options;
use ebb_sim::volume::rig::{attach_embedded, open, store_file};
use ebb_sim::{
    DiskFaults, DiskOperation, FaultPlan, Machine, Process, Rate, SimBucket, Slowness, World,
};
use futures_util::future::{Either, join, select};
use std::future::pending;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

const OLD: u8 = b'a';
const NEW: u8 = b'b';
/// The seed draws the effect of a power cut; each danger occurs for some of these seeds.
const SEEDS: u64 = 8;

/// Danger: the hole is forced, its file is not, and the block is written again and lost.
#[test]
fn a_forced_hole_stays_under_a_write_that_is_lost() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.make_hole().await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.fill(NEW).await;
            volume.force_log().await;
            volume.cut_power().await;
            volume.expect_no_old_bytes(seed).await;
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: the power fails right after an fsync, before the log records that the bytes are
/// forced. Danger: they count as unknown: damage in them is not detected, and those in the bucket
/// are fetched again. Expectation: they are intact.
#[test]
fn forced_bytes_are_known_right_after_fsync() {
    for (seed, is_sent) in (0..SEEDS).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::new(&world).await;
            volume.fill(OLD).await;
            if is_sent {
                volume.client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
            }
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            if is_sent {
                volume.bucket.vanish_for(Duration::from_secs(3600));
                volume.expect_beginning(OLD, seed).await;
            } else {
                assert_eq!(
                    volume.machine.disk("data").flip("packs/0000000000000001", 100, 1),
                    Ok(true)
                );
                assert_eq!(
                    volume.client.read(volume.file, 0, 10).await,
                    Err(FsError::Io),
                    "seed {seed}"
                );
            }
        };
        world.run(scenario).unwrap();
    }
}

/// Danger: a first power cut keeps the hole from the file, a second one the write that came after.
#[test]
fn a_hole_that_a_power_cut_undid_is_made_again() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.make_hole().await;
            volume.force_log().await;
            volume.cut_power().await;
            volume.fill(NEW).await;
            volume.force_log().await;
            volume.cut_power().await;
            volume.expect_no_old_bytes(seed).await;
        };
        world.run(scenario).unwrap();
    }
}

/// Danger: the log of a hole is forced slowly, and a snapshot is taken before the hole is in its
/// file. The next start does not hear of the hole any more, and the file has the old bytes.
#[test]
fn a_hole_is_in_its_file_before_a_snapshot_counts() {
    let mut survived = 0;
    for seed in 0..24 {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            world.sleep(Duration::from_millis(3000 + 40 * seed)).await;
            let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_secs(2) };
            world.set_faults(FaultPlan {
                disk: DiskFaults { slow, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let cut = world.sleep(Duration::from_secs(20));
            select(
                pin!(async {
                    volume.make_hole().await;
                    pending::<()>().await
                }),
                cut,
            )
            .await;
            world.set_faults(FaultPlan::default());
            volume.cut_power().await;
            if volume.client.read(volume.file, 0, 1).await.unwrap()[0] == OLD {
                return false;
            }
            volume.fill(NEW).await;
            volume.force_log().await;
            volume.cut_power().await;
            volume.expect_no_old_bytes(seed).await;
            true
        };
        survived += u32::from(world.run(scenario).unwrap());
    }
    assert!(survived > 8, "{survived} holes survived");
}

/// Danger: a start removes a pack file that the log does not mention, and dies. The next run
/// creates another one of that name, with a hole, and a power cut brings back the first one, with
/// another file's bytes. (Seed 224156 of volumes.)
#[test]
fn a_removed_pack_file_does_not_come_back_under_the_name_of_another() {
    for seed in 0..SEEDS * 8 {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::new(&world).await;
            volume
                .client
                .write(&Caller::ROOT, volume.file, 0, Bytes::from(vec![OLD; 2000]), false)
                .await
                .unwrap();
            volume.cut_power().await;
            volume.kill().await;
            let other = make(&volume.client, b"third").await;
            volume
                .client
                .write(&Caller::ROOT, other, 1500, Bytes::from(vec![NEW; 500]), false)
                .await
                .unwrap();
            // The log is forced, and not the file.
            volume.client.fsync(Ino::ROOT).await.unwrap();
            volume.cut_power().await;
            let Ok(found) = volume.client.read(other, 0, 2000).await else { return };
            assert!(!found.contains(&OLD), "seed {seed}: bytes of another file");
        };
        world.run(scenario).unwrap();
    }
}

/// Danger: a file is cut, and its node dies before that is forced. The next one finds it as
/// short as it should be, and has nothing to force when it is extended.
#[test]
fn truncated_bytes_do_not_return_after_a_kill() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            let rest = BLOCK_BYTES - CHANGED_BYTES;
            volume.resize(rest).await;
            volume.kill().await;
            volume.resize(BLOCK_BYTES).await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let end = volume.client.read(volume.file, rest, CHANGED_BYTES as usize).await.unwrap();
            assert!(end.iter().all(|byte| *byte == 0), "seed {seed}: what was cut off came back");
        };
        world.run(scenario).unwrap();
    }
}

/// Danger: a range of a fetched, unforced block is changed. The log keeps the change, the disk
/// loses the block, and only the bucket has the rest.
#[test]
fn partial_change_keeps_fetched_bytes_after_a_power_cut() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            for change in [Change::Write, Change::Zero, Change::Truncate] {
                volume.fill(OLD).await;
                volume.flush_and_evict().await;
                volume.change_end(change).await;
                volume.force_log().await;
                volume.cut_power().await;
                volume.expect_beginning(OLD, seed).await;
                volume.flush_and_evict().await;
                volume.expect_beginning(OLD, seed).await;
            }
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: a file that was never forced is flushed, and a range of its block is changed at each
/// moment of the flush. The log is forced, the file is not, and the power fails. Danger: the log
/// records the whole block as dirty, its bytes are lost, and the next flush uploads zeros over the
/// object. Expectation: unchanged bytes are as uploaded, here and in the bucket.
#[test]
fn partial_change_keeps_uploaded_bytes_after_a_power_cut() {
    let mut sent = 0;
    for (moment, blocks) in (0..40).flat_map(|moment| [1, 3].map(|blocks| (moment, blocks))) {
        for change in [Change::Write, Change::Zero, Change::Truncate] {
            let world = World::new(moment);
            let scenario = async {
                let mut volume = Mounted::new(&world).await;
                // In a pack, or in a store file of its own.
                let end = (blocks - 1) * BLOCK_BYTES;
                volume
                    .client
                    .write(&Caller::ROOT, volume.file, end, Bytes::from_static(b"end"), false)
                    .await
                    .unwrap();
                volume.fill(OLD).await;
                let slow = Slowness { rate: Rate::ALWAYS, limit: Duration::from_millis(10) };
                world.set_faults(FaultPlan {
                    disk: DiskFaults { slow, ..DiskFaults::default() },
                    ..FaultPlan::default()
                });
                let changed = async {
                    world.sleep(Duration::from_millis(3 * moment)).await;
                    volume.change_end(change).await;
                    volume.force_log().await;
                };
                let flush = async {
                    volume.client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
                    pending::<()>().await
                };
                select(pin!(changed), pin!(flush)).await;
                let is_sent = volume.bucket.objects().contains_key("file");
                world.set_faults(FaultPlan::default());
                volume.cut_power().await;
                if !is_sent {
                    return false;
                }
                volume.expect_beginning(OLD, moment).await;
                volume.flush_and_evict().await;
                volume.expect_beginning(OLD, moment).await;
                true
            };
            let done = world.run(scenario);
            sent += u32::from(done.unwrap_or_else(|failure| {
                panic!("moment {moment}, {blocks} blocks, {change:?}: {failure}")
            }));
        }
    }
    assert!(sent > 50, "{sent} times it was sent");
}

/// Situation: a file was fetched; later changes of it are forced, and only those, since fetched
/// data needs no force. Danger: the fetched data counts as forced after a power cut that lost it,
/// and a change of a range uploads zeros.
#[test]
fn fetched_bytes_do_not_count_as_forced_after_a_power_cut() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            // In a store file of its own, as files from this length on are.
            volume
                .client
                .write(&Caller::ROOT, volume.file, 2 * BLOCK_BYTES, vec![OLD; 100].into(), false)
                .await
                .unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.flush_and_evict().await;
            volume.expect_beginning(OLD, seed).await;
            volume
                .client
                .write(&Caller::ROOT, volume.other, 0, vec![NEW; 100].into(), false)
                .await
                .unwrap();
            volume.client.sync_fs().await.unwrap();
            let fetched = format!("disk.sync      {}", store_file(&volume.bucket, volume.file));
            let evicted = "disk.punch";
            let since = world.last_events();
            let since = since.rsplit_once(evicted).map_or(&*since, |(_, since)| since);
            assert!(!since.contains(&fetched), "seed {seed}: what was fetched was waited for");
            volume.cut_power().await;
            volume.change_end(Change::Write).await;
            volume.force_log().await;
            volume.expect_beginning(OLD, seed).await;
            volume.flush_and_evict().await;
            volume.expect_beginning(OLD, seed).await;
        };
        world.run(scenario).unwrap();
    }
}

/// Of the last bytes of the block.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write,
    Zero,
    Truncate,
}

const CHANGED_BYTES: u64 = 1000;

/// Situation: a process dies during an unlogged write into a block without a checksum, whose bytes
/// later reads may return. Danger: they count as forced even after an fsync, and a power cut
/// reverts them.
#[test]
fn fsync_forces_bytes_of_an_unlogged_write() {
    let mut left = 0;
    for (seed, micros) in (0..60).map(|round| (round % SEEDS, 20 * round)) {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.change_end(Change::Write).await;
            volume.client.fsync(volume.file).await.unwrap();
            let caller = Caller::ROOT;
            let write =
                volume.client.write(&caller, volume.file, 0, Bytes::from(vec![NEW; 8192]), false);
            let acknowledged = matches!(
                select(pin!(write), pin!(world.sleep(Duration::from_micros(micros)))).await,
                Either::Left(_)
            );
            volume.kill().await;
            let seen = volume.client.read(volume.file, 0, BLOCK_BYTES as usize).await.unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, 0, BLOCK_BYTES as usize).await.unwrap();
            assert!(kept == seen, "seed {seed}, killed after {micros} us");
            !acknowledged && seen[0] == NEW
        };
        left += u32::from(world.run(scenario).unwrap());
    }
    assert!(left > 0, "no process died at that moment");
}

/// Situation: an fsync fails, which the kernel reports once, and the pages then count as clean
/// though the disk never received them. The process ends, and the next one forces the file. Danger:
/// the kernel has nothing to write, the fsync succeeds, and a power cut loses the bytes.
#[test]
fn bytes_of_a_failed_fsync_are_rewritten_by_the_next_process() {
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.fill(NEW).await;
            volume.machine.disk("data").fail_nth(DiskOperation::Sync, 1);
            assert_eq!(volume.client.fsync(volume.file).await, Err(FsError::Io), "seed {seed}");
            volume.kill().await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, 0, BLOCK_BYTES as usize).await.unwrap();
            assert!(
                kept.iter().all(|byte| *byte == NEW),
                "seed {seed}: what was forced in the end is lost"
            );
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: as before, but a force of everything runs while the fsync fails, and the kernel
/// reports only to the fsync. Danger: the other force claims that everything is on the disk, and
/// the next process rewrites nothing.
#[test]
fn sync_fs_fails_with_a_concurrent_failed_fsync() {
    let mut failed = 0;
    for seed in 0..16 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.fill(NEW).await;
            volume.machine.disk("data").fail_nth(DiskOperation::Sync, 1 + seed % 2);
            let (one, all) = join(volume.client.fsync(volume.file), volume.client.sync_fs()).await;
            volume.kill().await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, 0, BLOCK_BYTES as usize).await.unwrap();
            assert!(
                kept.iter().all(|byte| *byte == NEW),
                "seed {seed}: what was forced in the end is lost, {one:?} and {all:?}"
            );
            one.is_err()
        };
        failed += u64::from(world.run(scenario).unwrap());
    }
    assert!(failed > SEEDS, "{failed} fsyncs failed");
}

/// Situation: a small file could not be forced, and is removed. Danger: nothing as a whole can be
/// forced any more, nor a snapshot written, as long as the process lives.
#[test]
fn a_file_that_is_gone_is_forced_no_more() {
    let world = World::new(1);
    let scenario = async {
        let volume = Mounted::with_old_bytes(&world).await;
        volume.fill(NEW).await;
        volume.machine.disk("data").fail_nth(DiskOperation::Sync, 1);
        assert_eq!(volume.client.fsync(volume.file).await, Err(FsError::Io));
        let name = Name::new(b"file").unwrap();
        volume.client.unlink(&Caller::ROOT, Ino::ROOT, &name).await.unwrap();
        volume.client.close(volume.file);
        // Its name is gone for good with the first one.
        let first = volume.client.sync_fs().await;
        world.sleep(Duration::from_secs(1)).await;
        volume.client.sync_fs().await.unwrap_or_else(|error| panic!("{error}, after {first:?}"));
    };
    world.run(scenario).unwrap();
}

/// Situation: a file is truncated within a block, and the force fails. The next process extends and
/// forces it. Danger: the kernel takes the zeros behind the truncation for clean, and a power cut
/// brings back the truncated bytes.
#[test]
fn zeros_behind_a_cut_are_written_once_more() {
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            // Too large for a pack file.
            let (len, cut) = (3 * BLOCK_BYTES, 2 * BLOCK_BYTES + CHANGED_BYTES);
            volume
                .client
                .write(&Caller::ROOT, volume.file, 0, vec![OLD; len as usize].into(), false)
                .await
                .unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.resize(cut).await;
            volume.machine.disk("data").fail_nth(DiskOperation::Sync, 1);
            assert_eq!(volume.client.fsync(volume.file).await, Err(FsError::Io), "seed {seed}");
            volume.kill().await;
            volume.resize(len).await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, cut, (len - cut) as usize).await.unwrap();
            assert!(!kept.contains(&OLD), "seed {seed}: what was cut off is back");
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: a range of a block was written and not forced, and the disk is full when the next
/// process rewrites unforced data. Danger: the rest of the block takes space, so the volume cannot
/// be opened, or the written range is left out.
#[test]
fn a_full_disk_keeps_nobody_from_starting() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            let at = 3 * BLOCK_BYTES + 20_000;
            volume
                .client
                .write(&Caller::ROOT, volume.file, at, vec![NEW; 1000].into(), false)
                .await
                .unwrap();
            let disk = volume.machine.disk("data");
            disk.fail_nth(DiskOperation::Sync, 1);
            assert_eq!(volume.client.fsync(volume.file).await, Err(FsError::Io), "seed {seed}");
            disk.set_capacity(disk.used_bytes());
            volume.kill().await;
            volume.client.fsync(volume.file).await.unwrap();
            disk.set_capacity(1 << 40);
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, at, 1000).await.unwrap();
            assert!(kept.iter().all(|byte| *byte == NEW), "seed {seed}");
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: a small unforced file outgrows its range in a pack file, and the process dies before
/// the log records its move to a store file. Danger: the next start removes that store file, and
/// with it the record that the bytes in the pack file are unforced; a later fsync does nothing, and
/// a power cut loses them.
#[test]
fn fsync_forces_a_file_with_an_unlogged_move() {
    let mut removed = 0;
    for (seed, micros) in (0..40).map(|round| (round % SEEDS, 25 * round)) {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.fill(NEW).await;
            let caller = Caller::ROOT;
            let grow = volume.client.write(
                &caller,
                volume.file,
                2 * BLOCK_BYTES,
                Bytes::from_static(b"end"),
                false,
            );
            let (Either::Left(_) | Either::Right(_)) =
                select(pin!(grow), pin!(world.sleep(Duration::from_micros(micros)))).await;
            let store_files = async |machine: &Machine| {
                let disk = machine.process_on("look", "data").ports.disk.clone();
                let volume = disk.list("store").await.unwrap().remove(0);
                disk.list(&format!("store/{volume}")).await.unwrap().len()
            };
            volume.process.kill();
            let before = store_files(&volume.machine).await;
            (volume.process, volume.client) = mount(&volume.machine, &volume.bucket).await;
            let after = store_files(&volume.machine).await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, 0, BLOCK_BYTES as usize).await.unwrap();
            assert!(kept.iter().all(|byte| *byte == NEW), "seed {seed}, killed after {micros} us");
            before - after
        };
        removed += world.run(scenario).unwrap();
    }
    assert!(removed > 0, "no process died at that moment");
}

/// Danger: a file was truncated, the log is forced by another operation, and the truncation was
/// not.
#[test]
fn truncated_bytes_do_not_return_under_a_later_write() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            // Files from this length on have store files of their own, which are cut.
            for ino in [volume.file, volume.other] {
                volume
                    .client
                    .write(&Caller::ROOT, ino, 2 * BLOCK_BYTES, vec![OLD; 100].into(), false)
                    .await
                    .unwrap();
                volume.client.fsync(ino).await.unwrap();
            }
            volume.resize(0).await;
            volume
                .client
                .write(
                    &Caller::ROOT,
                    volume.file,
                    100,
                    vec![NEW; BLOCK_BYTES as usize].into(),
                    false,
                )
                .await
                .unwrap();
            // Before that file is cut the log is forced, and no file.
            let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
            volume.client.setattr(&Caller::ROOT, volume.other, cut).await.unwrap();
            volume.cut_power().await;
            volume.expect_no_old_bytes(seed).await;
        };
        world.run(scenario).unwrap();
    }
}

/// Danger: truncated bytes of a small file are still behind its end in the pack file; they are
/// overwritten, and the write is lost.
#[test]
fn truncated_bytes_of_a_small_file_do_not_return_under_a_lost_write() {
    const KEPT_BYTES: u64 = 10_000;
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.write_other(KEPT_BYTES, OLD).await;
            volume.client.fsync(volume.other).await.unwrap();
            let set = SetAttr { size_bytes: Some(KEPT_BYTES), ..SetAttr::default() };
            volume.client.setattr(&Caller::ROOT, volume.other, set).await.unwrap();
            volume.client.fsync(volume.other).await.unwrap();
            volume.write_other(KEPT_BYTES, NEW).await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let bytes = volume.client.read(volume.other, 0, BLOCK_BYTES as usize).await.unwrap();
            assert_eq!(bytes.len() as u64, KEPT_BYTES + 30_000);
            assert!(!bytes.contains(&OLD), "seed {seed}: what was cut off came back");
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: a power cut keeps the bytes of a write and loses its command, which leaves zeros in
/// the file. Then the whole block is written, and the power is cut again. Danger: bytes that the
/// first cut dropped reappear where the second one loses a sector. (Seed 10388 of volumes.)
#[test]
fn a_write_that_was_lost_does_not_come_back_under_another_one() {
    let mut lost = 0;
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.write_other(2 * BLOCK_BYTES, NEW).await;
            volume.client.fsync(volume.other).await.unwrap();
            volume.write_other(0, OLD).await;
            volume.cut_power().await;
            let is_lost =
                !volume.client.read(volume.other, 0, 30_000).await.unwrap().contains(&OLD);
            let block = Bytes::from(vec![NEW; BLOCK_BYTES as usize]);
            volume.client.write(&Caller::ROOT, volume.other, 0, block, false).await.unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let bytes = volume.client.read(volume.other, 0, BLOCK_BYTES as usize).await.unwrap();
            assert!(!is_lost || !bytes.contains(&OLD), "seed {seed}: what was lost came back");
            is_lost
        };
        lost += u64::from(world.run(scenario).unwrap());
    }
    assert!(lost > SEEDS / 2, "{lost} writes were lost");
}

/// Situation: the disk fails once while a file is truncated, or while the leftover of a failed
/// write is cut off; the length is as intended. Danger: the store file is longer, and the truncated
/// bytes reappear in the file when it grows, here and in the bucket.
#[test]
fn failed_truncation_leaves_no_bytes_when_the_file_grows() {
    const LEN: u64 = 200_000;
    const CUT: u64 = 131_172;
    let mut cut = 0;
    // The operation, and the length before.
    let operations = [(DiskOperation::Write, 3), (DiskOperation::Read, 3)];
    for (seed, failing) in (0..SEEDS).flat_map(|seed| operations.map(|one| (seed, one))) {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::new(&world).await;
            volume
                .client
                .write(&Caller::ROOT, volume.file, 0, vec![OLD; LEN as usize].into(), false)
                .await
                .unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.machine.disk("data").fail_nth(failing.0, failing.1);
            let set = SetAttr { size_bytes: Some(CUT), ..SetAttr::default() };
            let failed = volume.client.setattr(&Caller::ROOT, volume.file, set).await;
            let size = volume.client.getattr(volume.file).await.unwrap().size_bytes;
            if failed != Err(FsError::Io) || size != CUT {
                return false;
            }
            volume.resize(LEN).await;
            volume.expect_zeros(CUT..LEN, seed).await;
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            volume.expect_zeros(CUT..LEN, seed).await;
            volume.client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
            assert!(
                volume.bucket.objects()["file"].body[CUT as usize..].iter().all(|byte| *byte == 0),
                "seed {seed}: in the bucket"
            );
            true
        };
        cut += u64::from(
            world
                .run(scenario)
                .unwrap_or_else(|failure| panic!("seed {seed}, {failing:?}: {failure}")),
        );
    }
    assert_eq!(cut, 2 * SEEDS, "cuts failed");
}

/// Situation: a write beyond the end of a file fails, and so does the cleanup of its leftover.
#[test]
fn failed_write_leaves_no_bytes_when_the_file_grows() {
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let volume = Mounted::new(&world).await;
            volume
                .client
                .write(&Caller::ROOT, volume.file, 0, vec![NEW; 200_000].into(), false)
                .await
                .unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            world.set_faults(FaultPlan {
                disk: DiskFaults { write_error: Rate::ALWAYS, ..DiskFaults::default() },
                ..FaultPlan::default()
            });
            let failed = volume
                .client
                .write(&Caller::ROOT, volume.file, 200_000, vec![OLD; 50_000].into(), false)
                .await;
            assert_eq!(failed.map(drop), Err(FsError::Io));
            world.set_faults(FaultPlan::default());
            volume.resize(300_000).await;
            volume.expect_zeros(200_000..300_000, seed).await;
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: a block is written while its file is being forced, and the file is forced once more.
/// Danger: the first force counts for that write, so the second one does nothing, and a power cut
/// loses the block. Expectation: it is kept.
#[test]
fn fsync_forces_bytes_written_during_another_fsync() {
    for (seed, micros) in (0..32).map(|round| (round % SEEDS, 500 * round)) {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::with_old_bytes(&world).await;
            volume.change_end(Change::Write).await;
            let written = async {
                world.sleep(Duration::from_micros(micros)).await;
                volume.fill(NEW).await;
            };
            join(volume.client.fsync(volume.file), written).await.0.unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.cut_power().await;
            let kept = volume.client.read(volume.file, 0, BLOCK_BYTES as usize).await;
            assert!(
                kept.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == NEW)),
                "seed {seed}, written after {micros} us: what was forced is lost"
            );
        };
        world.run(scenario).unwrap();
    }
}

/// Situation: a forced file is removed while another one is being forced, and the power fails.
/// Danger: its store file goes with that force, and the record of its removal is lost. Expectation:
/// a file that is back has its bytes.
#[test]
fn bytes_of_a_removed_file_stay_until_its_removal_is_forced() {
    const LEN: u64 = 3 * BLOCK_BYTES;
    let mut back = 0;
    for (seed, micros) in (0..64).map(|round| (round, 500 * (round % 32))) {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::new(&world).await;
            // Too large for a pack file.
            let old = Bytes::from(vec![OLD; LEN as usize]);
            volume.client.write(&Caller::ROOT, volume.file, 0, old.clone(), false).await.unwrap();
            volume.client.fsync(volume.file).await.unwrap();
            volume.client.close(volume.file);
            volume.write_other(0, NEW).await;
            let name = Name::new(b"file").unwrap();
            let removed = async {
                world.sleep(Duration::from_micros(micros)).await;
                volume.client.unlink(&Caller::ROOT, Ino::ROOT, &name).await.unwrap();
            };
            join(volume.client.fsync(volume.other), removed).await.0.unwrap();
            volume.cut_power().await;
            match volume.client.lookup(Ino::ROOT, &name).await {
                Ok(there) => {
                    let kept = volume.client.read(there.ino, 0, LEN as usize).await;
                    assert!(
                        kept == Ok(old),
                        "seed {seed}, removed after {micros} us: the file is back without its bytes"
                    );
                    true
                }
                Err(error) => {
                    assert_eq!(error, FsError::NotFound, "seed {seed}");
                    false
                }
            }
        };
        back += u32::from(world.run(scenario).unwrap());
    }
    assert!(back > 4, "{back} files came back");
}

/// Situation: a file whose bytes are in the bucket alone is removed in the midst of a flush,
/// and the power fails once its object is deleted. Danger: the record of the removal is lost,
/// and the file is back without bytes. Expectation: it is gone for good.
#[test]
fn file_does_not_come_back_once_its_object_is_deleted() {
    const KEY: &str = "dir/gone";
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::new(&world).await;
            let name = Name::new(b"gone").unwrap();
            let dir = volume
                .client
                .make(
                    &Caller::ROOT,
                    Ino::ROOT,
                    &Name::new(b"dir").unwrap(),
                    0o755,
                    Make::Directory,
                    false,
                )
                .await
                .unwrap()
                .ino;
            let gone = volume
                .client
                .make(&Caller::ROOT, dir, &name, 0o644, Make::Regular, false)
                .await
                .unwrap()
                .ino;
            let content = Bytes::from_static(b"content");
            volume.client.write(&Caller::ROOT, gone, 0, content, false).await.unwrap();
            volume.flush_and_evict().await;
            // The flush puts this file, and then the page of another directory.
            volume.write_other(0, NEW).await;
            let puts = || volume.bucket.requests()["put"];
            let before = puts();
            let deleted = async {
                while puts() < before + 2 {
                    world.sleep(Duration::from_micros(100)).await;
                }
                volume.client.unlink(&Caller::ROOT, dir, &name).await.unwrap();
                while volume.bucket.objects().contains_key(KEY) {
                    world.sleep(Duration::from_micros(100)).await;
                }
            };
            let flush = async {
                volume.client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
                pending::<()>().await
            };
            select(pin!(deleted), pin!(flush)).await;
            volume.cut_power().await;
            // Without an answer of the bucket the node shows the names that it has.
            volume.bucket.vanish_for(Duration::from_secs(3600));
            let found = volume.client.lookup(dir, &name).await.map(|attr| attr.size_bytes);
            assert_eq!(found, Err(FsError::NotFound), "seed {seed}");
        };
        world.run(scenario).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Situation: a small file is truncated, neither forced, and grows again by less; the power fails.
/// Danger: the truncated bytes were cleared in the pack file, and a power cut takes back the
/// truncation. Expectation: a file of its old length has its old bytes.
#[test]
fn truncated_bytes_of_a_small_file_are_cleared_after_the_truncation_is_forced() {
    const OLD_BYTES: usize = 60_000;
    const KEPT_BYTES: u64 = 10_000;
    for seed in 0..4 * SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let mut volume = Mounted::new(&world).await;
            let old = Bytes::from(vec![OLD; OLD_BYTES]);
            volume.client.write(&Caller::ROOT, volume.other, 0, old.clone(), false).await.unwrap();
            volume.client.fsync(volume.other).await.unwrap();
            let set = SetAttr { size_bytes: Some(KEPT_BYTES), ..SetAttr::default() };
            volume.client.setattr(&Caller::ROOT, volume.other, set).await.unwrap();
            volume.write_other(KEPT_BYTES, NEW).await;
            volume.cut_power().await;
            let kept = volume.client.read(volume.other, 0, BLOCK_BYTES as usize).await.unwrap();
            let is_truncated = kept.len() < OLD_BYTES;
            assert!(
                is_truncated && !kept[KEPT_BYTES as usize..].contains(&OLD) || kept == old,
                "seed {seed}: {} bytes, with others than they were",
                kept.len()
            );
        };
        world.run(scenario).unwrap();
    }
}

/// A volume with a file of one block, and another by which the log alone can be forced.
/// Situation: bytes are written, and the log is forced for another file. Danger: the commit
/// interval takes them for forced, and they are lost with a later power cut.
#[test]
fn commit_interval_forces_bytes_though_the_log_is_forced() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        let scenario = async {
            let (machine, bucket) = (world.machine("a"), world.bucket());
            let process = machine.process_on("node", "data");
            let (volume, never) = ("ebb".into(), Duration::from_secs(3600));
            let options =
                Options { volume, embedded: true, flush_interval: never, ..Options::default() };
            let node = open(&process, &bucket, &options).await.unwrap().unwrap();
            let client = attach_embedded(&process, &node).await.unwrap().unwrap();
            let (file, other) = (make(&client, b"file").await, make(&client, b"other").await);
            let block = Bytes::from(vec![NEW; BLOCK_BYTES as usize]);
            client.write(&Caller::ROOT, file, 0, block.clone(), false).await.unwrap();
            client.fsync(other).await.unwrap();
            world.sleep(3 * options.commit_interval).await;
            machine.power_cut();
            let (_process, client) = mount(&machine, &bucket).await;
            let bytes = client.read(file, 0, BLOCK_BYTES as usize).await.unwrap();
            assert!(bytes == block, "seed {seed}: bytes of before the commit interval are lost");
        };
        world.run(scenario).unwrap();
    }
}

struct Mounted {
    machine: Machine,
    bucket: SimBucket,
    process: Process,
    client: Client,
    file: Ino,
    other: Ino,
}

impl Mounted {
    async fn new(world: &World) -> Mounted {
        let (machine, bucket) = (world.machine("a"), world.bucket());
        let (process, client) = mount(&machine, &bucket).await;
        let file = make(&client, b"file").await;
        let other = make(&client, b"other").await;
        Mounted { machine, bucket, process, client, file, other }
    }

    async fn with_old_bytes(world: &World) -> Mounted {
        let volume = Mounted::new(world).await;
        volume.fill(OLD).await;
        volume.client.fsync(volume.file).await.unwrap();
        volume
    }

    async fn fill(&self, with: u8) {
        let block = Bytes::from(vec![with; BLOCK_BYTES as usize]);
        self.client.write(&Caller::ROOT, self.file, 0, block, false).await.unwrap();
    }

    async fn write_other(&self, at: u64, with: u8) {
        self.client
            .write(&Caller::ROOT, self.other, at, vec![with; 30_000].into(), false)
            .await
            .unwrap();
    }

    async fn change_end(&self, change: Change) {
        let at = BLOCK_BYTES - CHANGED_BYTES;
        match change {
            Change::Write => {
                let data = Bytes::from(vec![NEW; CHANGED_BYTES as usize]);
                self.client.write(&Caller::ROOT, self.file, at, data, false).await.map(drop)
            }
            Change::Zero => {
                let span = (at, CHANGED_BYTES);
                self.client
                    .fallocate(&Caller::ROOT, self.file, span, Allocation::Zero, true, false)
                    .await
                    .map(drop)
            }
            Change::Truncate => return self.resize(at).await,
        }
        .unwrap();
    }

    async fn flush_and_evict(&self) {
        self.client.admin(AdminRequest::Flush { path: Vec::new() }).await.unwrap();
        self.client
            .admin(AdminRequest::Evict {
                path: Vec::new(),
                from: (Ino(0), 0),
                limit_bytes: u64::MAX,
            })
            .await
            .unwrap();
    }

    async fn make_hole(&self) {
        self.client
            .fallocate(&Caller::ROOT, self.file, (0, BLOCK_BYTES), Allocation::Zero, false, false)
            .await
            .unwrap();
    }

    async fn force_log(&self) {
        self.client.fsync(self.other).await.unwrap();
    }

    async fn cut_power(&mut self) {
        self.machine.power_cut();
        (self.process, self.client) = mount(&self.machine, &self.bucket).await;
    }

    async fn kill(&mut self) {
        self.process.kill();
        (self.process, self.client) = mount(&self.machine, &self.bucket).await;
    }

    async fn resize(&self, size_bytes: u64) {
        let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        self.client.setattr(&Caller::ROOT, self.file, set).await.unwrap();
    }

    /// Every sector of an unforced block may be lost, but no older bytes reappear.
    async fn expect_no_old_bytes(&self, seed: u64) {
        let bytes = self.client.read(self.file, 0, BLOCK_BYTES as usize).await.unwrap();
        assert!(!bytes.contains(&OLD), "seed {seed}: what a hole had replaced came back");
    }

    async fn expect_zeros(&self, range: Range<u64>, seed: u64) {
        let bytes = self
            .client
            .read(self.file, range.start, (range.end - range.start) as usize)
            .await
            .unwrap();
        assert!(
            bytes.len() as u64 == range.end - range.start && bytes.iter().all(|byte| *byte == 0),
            "seed {seed}: other bytes than zeros"
        );
    }

    async fn expect_beginning(&self, with: u8, seed: u64) {
        let bytes =
            self.client.read(self.file, 0, (BLOCK_BYTES - CHANGED_BYTES) as usize).await.unwrap();
        assert!(
            bytes.iter().all(|byte| *byte == with),
            "seed {seed}: bytes that nobody changed are others now"
        );
    }
}

async fn mount(machine: &Machine, bucket: &SimBucket) -> (Process, Client) {
    let process = machine.process_on("node", "data");
    let (volume, never) = ("ebb".into(), Duration::from_secs(3600));
    let options = Options {
        volume,
        embedded: true,
        commit_interval: never,
        flush_interval: never,
        snapshot_operations: 1,
        ..Options::default()
    };
    let node = open(&process, bucket, &options).await.unwrap().unwrap();
    let client = attach_embedded(&process, &node).await.unwrap().unwrap();
    (process, client)
}

async fn make(client: &Client, name: &[u8]) -> Ino {
    let name = Name::new(name).unwrap();
    client.make(&Caller::ROOT, Ino::ROOT, &name, 0o644, Make::Regular, true).await.unwrap().ino
}
