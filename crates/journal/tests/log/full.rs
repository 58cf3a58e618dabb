//! A disk that is full, at every size.

use crate::crash::script;
use crate::disk::TestDisk;
use crate::property::Oracle;
use crate::world::{Tasks, recover, run};
use ebb_format::record::GroupId;
use ebb_journal::LogError;
use std::rc::Rc;

/// Situation: the disk is full at any point of the script. Danger: half a command is written, or a
/// force fails for lack of space for its marker. Expectation: the log refuses before it writes,
/// commands that it took can be forced, work goes on once there is space, and all is there after a
/// kill.
#[test]
fn a_full_disk_refuses_and_breaks_nothing() {
    let mut refused = 0;
    for capacity in (0..90 << 10).step_by(700) {
        let what = format!("{capacity} bytes");
        let disk = TestDisk::new(capacity as u64);
        disk.capacity.set(capacity);
        let oracle = Oracle::default();
        let tasks = Rc::new(Tasks::default());
        let ended = run(&disk, &tasks, async {
            let (log, recovered) = match recover(&disk, &tasks).await {
                Ok(recovered) => recovered,
                Err(error) => {
                    assert_eq!(error, LogError::NoSpace, "{what}");
                    disk.capacity.set(usize::MAX);
                    recover(&disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"))
                }
            };
            oracle.check(&log, &recovered, &what);
            if let Err(error) = script(&log, &oracle).await {
                assert_eq!(error, LogError::NoSpace, "{what}");
                refused += 1;
                assert_eq!(log.failed(), None, "{what}");
                oracle.force(&log).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(log.durable_position(), log.written_position());
            }
        });
        assert!(ended.is_some());
        // Restarted while the disk is still full.
        for _ in 0..3 {
            disk.kill();
            run(&disk, &tasks, async {
                let (log, recovered) =
                    recover(&disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                oracle.check(&log, &recovered, &what);
                oracle.force(&log).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            });
        }
        disk.capacity.set(usize::MAX);
        disk.power_cut();
        oracle.power_cut.set(true);
        run(&disk, &tasks, async {
            let (log, recovered) =
                recover(&disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            oracle.check(&log, &recovered, &what);
            script(&log, &oracle).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        });
    }
    assert!(refused > 30, "{refused}");
}

/// Situation: the same, with the space coming back while the log is open. Expectation: the
/// call that was refused works when it is repeated.
#[test]
fn the_refused_call_works_once_there_is_space() {
    let disk = TestDisk::new(9);
    disk.capacity.set(20 << 10);
    let tasks = Rc::new(Tasks::default());
    let oracle = Oracle::default();
    run(&disk, &tasks, async {
        let (log, _) = recover(&disk, &tasks).await.expect("one segment fits");
        while oracle.append(&log, 300).await.is_ok() {}
        let written = log.written_position();
        let batch = [(GroupId::LOCAL, 300), (GroupId::PARTITION, 300)];
        assert_eq!(oracle.append_batch(&log, &batch).await, Err(LogError::NoSpace));
        assert_eq!(log.written_position(), written);
        disk.capacity.set(usize::MAX);
        oracle.append_batch(&log, &batch).await.expect("there is space");
        assert!(log.written_position() > written);
    })
    .expect("nobody dies");
}

/// A command that no segment holds is refused, and the next one is taken.
#[test]
fn a_command_that_is_too_long_is_refused() {
    let disk = TestDisk::new(9);
    let tasks = Rc::new(Tasks::default());
    let oracle = Oracle::default();
    run(&disk, &tasks, async {
        let (log, _) = recover(&disk, &tasks).await.expect("an empty disk");
        assert!(matches!(oracle.append(&log, 10_000).await, Err(LogError::TooLong { .. })));
        assert!(matches!(oracle.append(&log, 2_000_000).await, Err(LogError::TooLong { .. })));
        oracle.append(&log, 7000).await.expect("it fits a segment of its own");
        let batch = [(GroupId::PARTITION, 5000), (GroupId::LOCAL, 5000)];
        let written = log.written_position();
        let refused = oracle.append_batch(&log, &batch).await;
        assert!(matches!(refused, Err(LogError::TooLong { .. })), "a batch is in one segment");
        assert_eq!(log.written_position(), written);
        oracle.append(&log, 10).await.expect("it fits");
        oracle.force(&log).await.expect("nothing fails here");
    })
    .expect("nobody dies");
}
