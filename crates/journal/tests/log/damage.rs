//! Bits that differ from the written ones.

use crate::crash::script;
use crate::disk::{Fault, TestDisk};
use crate::property::Oracle;
use crate::world::{Random, Tasks, VOLUME, options, recover, run};
use ebb_format::record::{GroupId, Position};
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, LogError, Options, Start};
use ebb_model::Incarnation;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A disk with a forced log over several segments and a snapshot, as a power cut leaves it.
pub fn forced_log(seed: u64) -> (Rc<TestDisk>, Oracle) {
    let disk = TestDisk::new(seed);
    let oracle = Oracle::default();
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
        oracle.check(&log, &recovered, "begin");
        script(&log, &oracle).await.expect("nothing fails");
        for _ in 0..60 {
            oracle.append(&log, 200).await.expect("nothing fails");
        }
        oracle.force(&log).await.expect("nothing fails");
        oracle.append(&log, 10).await.expect("nothing fails");
        oracle.force(&log).await.expect("nothing fails");
    })
    .expect("nobody dies");
    (disk, oracle)
}

/// The highest number of bytes of each file that are not zeros.
pub fn used(disk: &TestDisk) -> BTreeMap<String, usize> {
    let end = |bytes: Vec<u8>| bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    disk.paths().into_iter().map(|path| (path.clone(), end(disk.content(&path)))).collect()
}

/// Situation: one bit of forced data flips, anywhere in a segment or snapshot, before or after the
/// machine was down. Danger: the log is cut there, or the command skipped. Expectation: corrupt,
/// the file and the place named, and nothing on the disk changed.
#[test]
fn flipped_bit_in_forced_data_is_named() {
    let random = Random::new(7);
    let (mut in_segments, mut in_snapshots) = (0, 0);
    for round in 0..1500 {
        let (disk, _) = forced_log(round % 5);
        if round % 2 == 0 {
            disk.power_cut();
        }
        let files: Vec<(String, usize)> =
            used(&disk).into_iter().filter(|(path, _)| !path.contains("spare")).collect();
        let (path, used) = &files[random.below(files.len() as u64) as usize];
        // No later record shows that the last ones are missing.
        let from = if random.below(2) == 0 { used.saturating_sub(400) } else { 0 };
        let byte = from + random.below((used - from) as u64) as usize;
        disk.flip(path, byte, random.below(8) as usize);
        let before = disk.image();
        let tasks = Rc::new(Tasks::default());
        let result = run(&disk, &tasks, async {
            recover(&disk, &tasks).await.map(|(_, recovered)| recovered)
        })
        .expect("nobody dies");
        match result {
            Err(LogError::Corrupt { file, offset, .. }) => {
                assert_eq!(&file, path, "round {round}, byte {byte}");
                // A snapshot with wrong lengths is noticed where it ends.
                assert!(
                    offset <= byte as u64 || path.starts_with("snapshot/"),
                    "round {round}: byte {byte} was reported at {offset}"
                );
            }
            other => panic!("round {round}, {path} byte {byte} of {used}: {other:?}"),
        }
        assert_eq!(disk.image(), before, "round {round}");
        match path.starts_with("snapshot/") {
            true => in_snapshots += 1,
            false => in_segments += 1,
        }
    }
    assert!(in_segments > 300 && in_snapshots > 200, "{in_segments} and {in_snapshots}");
}

/// Situation: a whole sector of zeros in the middle of forced data, as some devices return for lost
/// data. Danger: it looks like the end of the log. Expectation: corrupt. The last two sectors are
/// left out: after a power cut no record vouches for the bytes that the last force covered
/// (`docs/format/log.md`, limits).
#[test]
fn a_lost_sector_in_the_middle_is_named() {
    for power_cut in [false, true] {
        let (disk, _) = forced_log(3);
        if power_cut {
            disk.power_cut();
        }
        let (path, used) = used(&disk)
            .into_iter()
            .rfind(|(path, used)| path.starts_with("log/0") && *used > 8192)
            .expect("a long segment");
        for sector in 8..used / 512 - 2 {
            let content = disk.content(&path);
            for (at, byte) in content.iter().enumerate().skip(sector * 512).take(512) {
                (0..8).filter(|bit| byte >> bit & 1 == 1).for_each(|bit| disk.flip(&path, at, bit));
            }
            let tasks = Rc::new(Tasks::default());
            let result = run(&disk, &tasks, async {
                recover(&disk, &tasks).await.map(|(_, recovered)| recovered)
            })
            .expect("nobody dies");
            assert!(
                matches!(&result, Err(LogError::Corrupt { file, .. }) if *file == path),
                "sector {sector}: {result:?}"
            );
            for (at, byte) in content.iter().enumerate().skip(sector * 512).take(512) {
                (0..8).filter(|bit| byte >> bit & 1 == 1).for_each(|bit| disk.flip(&path, at, bit));
            }
        }
    }
}

/// Situation: a segment is missing, the first, the last or one between, or the snapshot is.
/// Expectation: corrupt, unless it held nothing that was forced.
#[test]
fn a_missing_file_is_named() {
    let (disk, _) = forced_log(4);
    let paths: Vec<String> = used(&disk)
        .into_iter()
        .filter(|(path, used)| !path.contains("spare") && *used > 4096)
        .map(|(path, _)| path)
        .collect();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let (disk, _) = forced_log(4);
        disk.remove_now(&path);
        let tasks = Rc::new(Tasks::default());
        let result = run(&disk, &tasks, async {
            recover(&disk, &tasks).await.map(|(_, recovered)| recovered)
        })
        .expect("nobody dies");
        // No other record shows how far the log went, if its last segment disappears as a whole.
        let last = used(&disk)
            .into_keys()
            .rfind(|other| other.starts_with("log/0"))
            .is_none_or(|other| other < path);
        assert!(
            last && path.starts_with("log/") || matches!(result, Err(LogError::Corrupt { .. })),
            "{path}: {result:?}"
        );
    }
}

/// Situation: a segment has been cut short, between two records or within one, before or after the
/// machine was down. Danger: the records behind that were promised, and the log ends without them.
/// Expectation: corrupt, and nothing changed.
#[test]
fn a_segment_that_was_cut_short_is_named() {
    let random = Random::new(11);
    for round in 0..200 {
        let (disk, _) = forced_log(round % 5);
        if round % 2 == 0 {
            disk.power_cut();
        }
        let segments: Vec<String> =
            disk.paths().into_iter().filter(|path| path.starts_with("log/0")).collect();
        let path = &segments[random.below(segments.len() as u64) as usize];
        let len = disk.content(path).len() as u64;
        let left =
            if random.below(2) == 0 { random.below(len) } else { random.below(len / 4096) * 4096 };
        disk.cut(path, left as usize);
        let before = disk.image();
        let tasks = Rc::new(Tasks::default());
        let result = run(&disk, &tasks, async {
            recover(&disk, &tasks).await.map(|(_, recovered)| recovered)
        })
        .expect("nobody dies");
        assert!(
            matches!(&result, Err(LogError::Corrupt { file, .. }) if file == path),
            "{path} at {left}: {result:?}"
        );
        assert_eq!(disk.image(), before, "{path} at {left}");
    }
}

/// Situation: the newest snapshot is damaged while the one before and the log since then still
/// exist, because the node stopped between the two. Expectation: they stand in, and the recovery
/// reports the damage of the newest.
#[test]
fn an_older_snapshot_stands_in() {
    let mut stood_in = 0;
    for last in 1..400 {
        let disk = TestDisk::new(2);
        let oracle = Oracle::default();
        let tasks = Rc::new(Tasks::default());
        disk.set_fault(Fault::Die(last));
        let ended = run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
            oracle.check(&log, &recovered, "begin");
            script(&log, &oracle).await.expect("nothing fails");
        });
        if ended.is_some() {
            break;
        }
        disk.kill();
        let snapshots: Vec<String> =
            disk.paths().into_iter().filter(|path| path.starts_with("snapshot/0")).collect();
        // Of one group there are two.
        let group = |path: &str| path.split('-').next().map(str::to_string);
        let newest = snapshots.windows(2).find(|pair| group(&pair[0]) == group(&pair[1]));
        if let Some([_, newest]) = newest {
            disk.flip(newest, 70, 3);
            let tasks = Rc::new(Tasks::default());
            run(&disk, &tasks, async {
                let (log, recovered) =
                    recover(&disk, &tasks).await.expect("the older one is whole");
                assert!(
                    matches!(&recovered.damaged, Some(LogError::Corrupt { file, .. }) if file == newest)
                );
                assert!(recovered.snapshots.contains_key(&GroupId::PARTITION));
                oracle.check(&log, &recovered, "fallen back");
            });
            stood_in += 1;
        }
    }
    assert!(stood_in > 0);
}

/// Situation: flipped bits and junk everywhere, many at once. Expectation: an answer, never a
/// panic.
#[test]
fn any_damage_is_answered() {
    let random = Random::new(11);
    for round in 0..300 {
        let (disk, _) = forced_log(round % 3);
        if random.below(2) == 0 {
            disk.power_cut();
        }
        let files: Vec<(String, usize)> = used(&disk).into_iter().collect();
        for _ in 0..random.below(40) {
            let (path, used) = &files[random.below(files.len() as u64) as usize];
            if *used > 0 {
                disk.flip(path, random.below(*used as u64) as usize, random.below(8) as usize);
            }
        }
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            recover(&disk, &tasks).await.map(|(_, recovered)| recovered.start)
        })
        .expect("nobody dies")
        .ok();
    }
}

/// Situation: the data directory of another volume. Expectation: refused, and nothing changed.
#[test]
fn another_volume_is_refused() {
    let (disk, _) = forced_log(1);
    let before = disk.image();
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let options = Options { volume: VolumeId(VOLUME.0 + 1), ..options() };
        let result = Log::recover(crate::disk::port(&disk), tasks.clone(), options).await;
        assert!(matches!(result.err(), Some(LogError::Foreign { .. })));
    });
    assert_eq!(disk.image(), before);
}

/// Each recovery learns of the run before it.
#[test]
fn a_start_is_told_from_the_next() {
    let disk = TestDisk::new(1);
    let oracle = Oracle::default();
    let starts: Vec<(Start, Option<Incarnation>)> = (0..4)
        .map(|life| {
            let tasks = Rc::new(Tasks::default());
            let start = run(&disk, &tasks, async {
                let options = Options { incarnation: Incarnation(life), ..options() };
                let (log, recovery) =
                    Log::recover(crate::disk::port(&disk), tasks.clone(), options)
                        .await
                        .expect("nothing is wrong");
                let written = log.written(GroupId::PARTITION).0;
                oracle.history.borrow_mut().truncate(written as usize);
                let append = async || {
                    let one = [(GroupId::PARTITION, 10)];
                    oracle.append_batch(&log, &one).await.expect("there is space");
                };
                append().await;
                append().await;
                if life < 2 {
                    oracle.force(&log).await.expect("nothing fails");
                    append().await;
                }
                assert_eq!(recovery.is_empty(), life == 0);
                (recovery.start, recovery.incarnation)
            });
            match life {
                0 => disk.kill(),
                _ => disk.power_cut(),
            }
            start.expect("nobody dies")
        })
        .collect();
    assert_eq!(starts[0], (Start::First, None));
    assert_eq!(starts[1], (Start::SameBoot, Some(Incarnation(0))));
    // Records 1, 4, 6 and 9 are markers.
    let cut_after = Position(8);
    assert!(
        matches!(starts[2], (Start::PowerCut { cut_after: after, dropped: 0..=1 }, Some(Incarnation(1))) if after == cut_after)
    );
    assert!(
        matches!(starts[3], (Start::PowerCut { cut_after: after, dropped: 0..=2 }, Some(Incarnation(2))) if after == cut_after)
    );
}
