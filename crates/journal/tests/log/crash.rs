//! Every single operation of the disk as the last one.

use crate::disk::{Fault, TestDisk};
use crate::property::Oracle;
use crate::world::{Tasks, recover, run};
use ebb_format::record::GroupId;
use ebb_journal::{Entry, Frontier, Log, LogError};
use std::rc::Rc;

/// Fills segments, forces, snapshots twice, so that segments are made, begun, truncated and
/// recycled and snapshots replaced.
pub async fn script(log: &Log, oracle: &Oracle) -> Result<(), LogError> {
    for part in 0..4 {
        for at in 0..25 {
            oracle.append(log, 40 + 60 * (at % 7)).await?;
            if at % 10 == 9 {
                oracle.force(log).await?;
            }
        }
        if part % 2 == 1 {
            oracle.snapshot(log).await?;
        }
    }
    for _ in 0..12 {
        oracle.append(log, 100).await?;
    }
    oracle.force(log).await?;
    oracle.append(log, 10).await
}

async fn append_one(log: &Log, tag: u64) -> Result<Frontier, LogError> {
    let command = crate::world::command(tag, 10);
    log.append(&[Entry::Command(GroupId::PARTITION, &command)]).await
}

/// One life, which may end in any way.
fn live(disk: &Rc<TestDisk>, oracle: &Oracle, what: &str) -> Option<Result<(), LogError>> {
    let tasks = Rc::new(Tasks::default());
    run(disk, &tasks, async {
        let (log, recovered) = recover(disk, &tasks).await?;
        oracle.check(&log, &recovered, what);
        script(&log, oracle).await
    })
}

fn end(disk: &TestDisk, oracle: &Oracle, power_cut: bool) {
    disk.kill();
    if power_cut {
        disk.power_cut();
        oracle.power_cut.set(true);
    }
}

/// How many operations the script takes. Other disks may differ by the background work.
fn length() -> u64 {
    let disk = TestDisk::new(0);
    live(&disk, &Oracle::default(), "undisturbed").expect("nobody dies").expect("nothing fails");
    disk.operations()
}

/// Situation: the process or the machine stops at the n-th operation of a script that makes, fills,
/// truncates and recycles segments and replaces snapshots; then it all happens again, stopping at
/// another place. Expectation: all promised commands are there each time.
#[test]
fn any_operation_may_be_the_last() {
    let length = length();
    assert!(length > 150, "{length}");
    for power_cut in [false, true] {
        for last in 1..=length {
            let what = format!("stopped at operation {last}, power cut: {power_cut}");
            let disk = TestDisk::new(last);
            let oracle = Oracle::default();
            disk.set_fault(Fault::Die(last));
            live(&disk, &oracle, &what);
            end(&disk, &oracle, power_cut);
            // The recovery itself is stopped, at each of its first operations in turn.
            disk.set_fault(Fault::Die(disk.operations() + 1 + last % 23));
            live(&disk, &oracle, &what);
            end(&disk, &oracle, last % 2 == 0);
            live(&disk, &oracle, &what)
                .expect("nobody dies")
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

/// Situation: the n-th operation fails, the process notices or not, ends, and after it the machine.
/// Danger: a sync that failed is trusted later, or something is acknowledged after it. Expectation:
/// all earlier promises hold; a log that failed reports it for ever.
#[test]
fn any_operation_may_fail() {
    let length = length();
    let mut refused = 0;
    for failing in 1..=length {
        let what = format!("operation {failing} fails");
        let disk = TestDisk::new(failing);
        let oracle = Oracle::default();
        disk.set_fault(Fault::Fail(failing));
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            let Ok((log, recovered)) = recover(&disk, &tasks).await else { return };
            oracle.check(&log, &recovered, &what);
            let result = script(&log, &oracle).await;
            if let Some(first) = log.failed() {
                refused += 1;
                assert_eq!(result, Err(first.clone()), "{what}");
                let positions = || (log.written_position(), log.durable_position());
                let before = positions();
                assert_eq!(append_one(&log, 0).await, Err(first.clone()), "{what}");
                assert_eq!(log.force().await, Err(first), "{what}");
                assert_eq!(positions(), before, "{what}");
            } else if result.is_err() {
                // A segment or a snapshot could not be made: the same can be tried again.
                script(&log, &oracle)
                    .await
                    .unwrap_or_else(|error| panic!("{what}, again: {error}"));
            }
        });
        end(&disk, &oracle, failing % 3 == 0);
        // The next run trusts nothing that the failed one left in the page cache.
        run(&disk, &tasks, async {
            let (log, recovered) =
                recover(&disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            oracle.check(&log, &recovered, &what);
            oracle.force(&log).await.expect("nothing fails now");
        });
        end(&disk, &oracle, true);
        live(&disk, &oracle, &what)
            .expect("nobody dies")
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert!(refused > 50, "{refused}");
}

/// Situation: a snapshot gives up all segments but one that was just begun, and the machine stops.
/// Danger: the beginning of that one was in the page cache alone, and nothing behind it can be
/// read. Expectation: the log begins with it.
#[test]
fn a_snapshot_leaves_a_log_that_begins() {
    let mut begun = 0;
    for seed in 0..200 {
        let disk = TestDisk::new(seed);
        let oracle = Oracle::default();
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            let (log, _) = recover(&disk, &tasks).await.expect("an empty disk");
            for _ in 0..seed {
                oracle.append(&log, 100).await.expect("there is space");
            }
            oracle.force(&log).await.expect("nothing fails here");
            let segments = disk.paths();
            // A command that fits is written behind the forced ones, and the last one may not fit.
            let (position, count) = (log.written_position(), oracle.written.get());
            oracle.append(&log, 3000).await.expect("there is space");
            begun += u32::from(disk.paths() != segments);
            oracle.snapshot_at(&log, position, count).await.expect("nothing fails here");
        });
        end(&disk, &oracle, true);
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks)
                .await
                .unwrap_or_else(|error| panic!("{seed} commands: {error}"));
            oracle.check(&log, &recovered, "after a power cut");
        });
    }
    assert!(begun > 10, "{begun}");
}

/// Situation: the task that appends is dropped while its record is on its way. Danger: the
/// next record is written over it while it still arrives. Expectation: nothing more is taken.
#[test]
fn an_abandoned_append_ends_the_log() {
    let disk = TestDisk::new(5);
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, _) = recover(&disk, &tasks).await.expect("an empty disk");
        let mut abandoned = false;
        for _ in 0..50 {
            let first = futures_util::future::select(
                Box::pin(append_one(&log, 1)),
                Box::pin(std::future::ready(())),
            )
            .await;
            if let futures_util::future::Either::Right((_, append)) = first {
                drop(append);
                abandoned = true;
                break;
            }
        }
        assert!(abandoned);
        assert_eq!(append_one(&log, 2).await, Err(LogError::Abandoned));
        assert_eq!(log.failed(), Some(LogError::Abandoned));
    });
}
