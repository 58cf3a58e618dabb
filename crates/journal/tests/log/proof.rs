//! Damage under a log that is in use: found while all its commands are in memory, and replaced.

use crate::damage::{forced_log, used};
use crate::disk::{Fault, TestDisk};
use crate::property::Oracle;
use crate::world::{Random, Tasks, of_group, recover, run};
use ebb_format::record::GroupId;
use ebb_journal::{Damage, Log, LogError};
use std::rc::Rc;

async fn prove(log: &Log) -> Damage {
    log.prove(async |bytes| bytes).await
}

/// The same steps as in a node.
async fn renew(log: &Log, oracle: &Oracle, damage: &Damage) -> Result<(), LogError> {
    if damage.segment.is_some() {
        log.begin_segment().await?;
    }
    oracle.snapshot(log).await
}

/// Flips one bit of a segment with records, of the one made ahead, or of the snapshot.
fn flip(disk: &TestDisk, random: &Random) -> (String, usize) {
    let files: Vec<(String, usize)> =
        used(disk).into_iter().filter(|(path, _)| !path.contains("spare")).collect();
    let (path, used) = &files[random.below(files.len() as u64) as usize];
    let from = if random.below(2) == 0 { used.saturating_sub(400) } else { 0 };
    let byte = from + random.below((used - from) as u64) as usize;
    disk.flip(path, byte, random.below(8) as usize);
    (path.clone(), byte)
}

/// Situation: one bit that a start would read flips while the log is in use; more is written, or
/// not. Danger: it goes unnoticed until the next start, which is refused. Expectation: it is named,
/// with its file; once it is replaced nothing is damaged, and after a power cut or a kill all
/// commands are there.
#[test]
fn a_flipped_bit_under_a_log_in_use_is_named_and_replaced() {
    let random = Random::new(3);
    let (mut in_segments, mut in_snapshots) = (0, 0);
    for round in 0..600 {
        let (disk, oracle) = forced_log(round % 5);
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            let what = format!("round {round}");
            let (log, recovered) = recover(&disk, &tasks).await.expect("nothing is wrong yet");
            oracle.check(&log, &recovered, &what);
            for _ in 0..random.below(30) {
                oracle.append(&log, 200).await.expect("nothing fails");
            }
            oracle.force(&log).await.expect("nothing fails");
            assert!(prove(&log).await.is_none(), "{what}");
            let (path, byte) = flip(&disk, &random);
            for _ in 0..random.below(4) {
                oracle.append(&log, 60).await.expect("nothing fails");
            }
            let damage = prove(&log).await;
            let (found, other) = match path.starts_with("snapshot/") {
                true => (&damage.snapshot, &damage.segment),
                false => (&damage.segment, &damage.snapshot),
            };
            assert!(
                matches!(found, Some(LogError::Corrupt { file, .. }) if *file == path),
                "{what}, {path} at {byte}: {damage}"
            );
            assert_eq!(other, &None, "{what}");
            match path.starts_with("snapshot/") {
                true => in_snapshots += 1,
                false => in_segments += 1,
            }
            renew(&log, &oracle, &damage).await.expect("nothing fails");
            assert!(prove(&log).await.is_none(), "{what}, {path} at {byte}");
            oracle.append(&log, 60).await.expect("nothing fails");
        });
        disk.kill();
        if round % 2 == 0 {
            disk.power_cut();
            oracle.power_cut.set(true);
        }
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks)
                .await
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            oracle.check(&log, &recovered, "replaced");
        });
    }
    assert!(in_segments > 200 && in_snapshots > 100, "{in_segments} and {in_snapshots}");
}

/// Situation: a sector under a log in use has become zeros, the last one too. Danger: it looks as
/// if nothing had been written there. Expectation: it is named.
#[test]
fn a_lost_sector_under_a_log_in_use_is_named() {
    let (disk, oracle) = forced_log(3);
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, recovered) = recover(&disk, &tasks).await.expect("nothing is wrong yet");
        oracle.check(&log, &recovered, "begin");
        for (path, used) in
            used(&disk).into_iter().filter(|(path, used)| path.starts_with("log/0") && *used > 4096)
        {
            for sector in 8..used.div_ceil(512) {
                let content = disk.content(&path);
                let invert = || {
                    for (at, byte) in content.iter().enumerate().skip(sector * 512).take(512) {
                        (0..8)
                            .filter(|bit| byte >> bit & 1 == 1)
                            .for_each(|bit| disk.flip(&path, at, bit));
                    }
                };
                invert();
                let damage = prove(&log).await;
                assert!(
                    matches!(&damage.segment, Some(LogError::Corrupt { .. })),
                    "{path}, sector {sector}: {damage}"
                );
                invert();
            }
        }
        assert!(prove(&log).await.is_none());
    });
}

/// Situation: the process or the machine stops at any operation while damaged files are replaced.
/// Danger: the damaged segment is on its way out, the snapshot that stands in for it is there, and
/// the start is refused all the same. Expectation: from the moment at which that snapshot has its
/// name every start has all; before, it is refused, and nothing has changed.
#[test]
fn replacement_stopped_at_any_step_loses_no_snapshot() {
    for power_cut in [false, true] {
        let (mut refused, mut passed_over) = (0, 0);
        for last in 1.. {
            let (disk, oracle) = forced_log(1);
            let tasks = Rc::new(Tasks::default());
            let ended = run(&disk, &tasks, async {
                let (log, recovered) = recover(&disk, &tasks).await.expect("nothing is wrong yet");
                oracle.check(&log, &recovered, "begin");
                oracle.append(&log, 60).await.expect("nothing fails");
                oracle.force(&log).await.expect("nothing fails");
                let (path, used) = used(&disk)
                    .into_iter()
                    .rfind(|(path, used)| path.starts_with("log/0") && *used > 4096)
                    .expect("a log");
                disk.flip(&path, used - 100, 3);
                let damage = prove(&log).await;
                assert!(damage.segment.is_some(), "{damage}");
                disk.set_fault(Fault::Die(disk.operations() + last));
                renew(&log, &oracle, &damage).await
            });
            disk.kill();
            if power_cut {
                disk.power_cut();
                oracle.power_cut.set(true);
            }
            let before = disk.image();
            let of_partition = |path: &&String| path.starts_with("snapshot/00000001-");
            let newest = before.keys().filter(of_partition).max().cloned();
            run(&disk, &tasks, async {
                match recover(&disk, &tasks).await {
                    Ok((log, recovered)) => {
                        oracle.check(&log, &recovered, &format!("stopped at {last}"));
                        passed_over += u32::from(recovered.damaged.is_some());
                        assert!(prove(&log).await.is_none());
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(disk.image(), before, "stopped at {last}");
                        let at = newest
                            .and_then(|path| u64::from_str_radix(path.split_once('-')?.1, 16).ok());
                        let written = of_group(&oracle.history.borrow(), GroupId::PARTITION).len();
                        assert!(
                            at.is_none_or(|at| at < written as u64),
                            "stopped at {last}: {error}"
                        );
                    }
                }
            });
            if ended.is_some() {
                break;
            }
        }
        assert!(refused > 5 && passed_over > 0, "{refused} and {passed_over}");
    }
}
