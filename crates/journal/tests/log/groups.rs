//! Several groups in one log.

use crate::disk::{Fault, TestDisk, port};
use crate::property::Oracle;
use crate::world::{GROUPS, Random, Tasks, of_group, options, pause, recover, run, snapshot_of};
use ebb_format::record::{self, Decoded, GroupId, LINE_BYTES, Term};
use ebb_journal::{Log, LogError, LoggedCommand};
use ebb_model::LogIndex;
use std::rc::Rc;

const LOCAL: GroupId = GroupId::LOCAL;
const PARTITION: GroupId = GroupId::PARTITION;

/// The segment of all records here.
const SEGMENT: &str = "log/00000001";

const BATCH: [(GroupId, usize); 4] =
    [(LOCAL, 150), (PARTITION, 200), (LOCAL, 10), (PARTITION, 320)];

/// Commands before the batch, all forced.
const BEFORE: u64 = 5;

/// A log with forced commands of both groups, and a batch behind them. With `is_forcing` the
/// process dies while the batch is being forced.
fn log_with_batch(is_forcing: bool) -> (Rc<TestDisk>, Oracle) {
    let (disk, oracle) = (TestDisk::new(3), Oracle::default());
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
        oracle.check(&log, &recovered, "begin");
        for batch in [&[(LOCAL, 20), (PARTITION, 60)][..], &[(PARTITION, 9)], &BATCH[..2]] {
            oracle.append_batch(&log, batch).await.expect("there is space");
        }
        oracle.force(&log).await.expect("nothing fails");
        oracle.append_batch(&log, &BATCH).await.expect("there is space");
        if is_forcing {
            // The marker is written before.
            disk.set_fault(Fault::Die(disk.operations() + 2));
            log.force().await.expect("nobody is left to see an error");
        }
    });
    (disk, oracle)
}

/// The number of whole records in so many lines.
fn records_in(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Decoded::Record(record) = record::decode(bytes) {
        bytes = &bytes[record.consumed..];
        count += 1;
    }
    count
}

/// Recovers after a stop at each operation of a recovery. Each time the same commands are there.
fn recover_stopped(disk: &Rc<TestDisk>, oracle: &Oracle, count: u64, what: &str) {
    let tasks = Rc::new(Tasks::default());
    let recovered = async || {
        let (log, recovered) =
            recover(disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(recovered.count(), count, "{what}");
        oracle.check(&log, &recovered, what);
        log
    };
    for step in 1.. {
        disk.set_fault(Fault::Die(disk.operations() + step));
        let ended = run(disk, &tasks, recovered());
        disk.kill();
        if ended.is_some() {
            break;
        }
    }
    run(disk, &tasks, async {
        let log = recovered().await;
        oracle.append_batch(&log, &BATCH).await.expect("there is space");
        oracle.force(&log).await.expect("nothing fails");
    })
    .expect("nobody dies");
}

/// Situation: the process dies while a batch of two groups is being written, after any line of 64
/// bytes. Danger: a group has a command without those before it. Expectation: the whole records
/// before that line are there, in both groups, however often the recovery is stopped.
#[test]
fn batch_torn_by_a_kill_keeps_a_prefix() {
    let writes = log_with_batch(false).0.unsynced(SEGMENT);
    let [batch] = &writes[..] else { panic!("one write for the batch: {}", writes.len()) };
    let lines = batch.len() / LINE_BYTES;
    assert_eq!(records_in(batch), BATCH.len() as u64);
    for kept in 0..=lines {
        let (disk, oracle) = log_with_batch(false);
        disk.keep_lines(SEGMENT, 0, |line| line < kept);
        disk.kill();
        let mut there = batch[..kept * LINE_BYTES].to_vec();
        there.resize(batch.len() + LINE_BYTES, 0);
        let count = BEFORE + records_in(&there);
        oracle.written.set(count);
        recover_stopped(&disk, &oracle, count, &format!("{kept} of {lines} lines"));
    }
}

/// Situation: a power cut takes any line of a batch of two groups, or all behind it, while the
/// batch is being forced; the marker of the force is there. Danger: the marker counts for a batch
/// that is not whole, or one group's commands count without the other's. Expectation: without any
/// of its lines, all commands behind the last force are cut, in both groups.
#[test]
fn batch_torn_by_a_power_cut_is_cut_in_all_groups() {
    let writes = log_with_batch(true).0.unsynced(SEGMENT);
    let [batch, marker] = &writes[..] else { panic!("a batch and a marker: {}", writes.len()) };
    let lines = [batch.len() / LINE_BYTES, marker.len() / LINE_BYTES];
    for (write, lines) in lines.into_iter().enumerate() {
        for line in 0..=lines {
            for is_prefix in [false, true] {
                let (disk, oracle) = log_with_batch(true);
                disk.keep_lines(SEGMENT, write, |other| match is_prefix {
                    true => other < line,
                    false => other != line,
                });
                disk.power_cut_late();
                oracle.power_cut.set(true);
                let count = match line == lines {
                    true => BEFORE + BATCH.len() as u64,
                    false => BEFORE,
                };
                recover_stopped(&disk, &oracle, count, &format!("line {line} of write {write}"));
            }
        }
    }
}

/// Situation: one force after commands of two groups, and more commands of both behind it. Danger:
/// one group's forced index is taken for the other's, and a caller trusts commands that a power cut
/// takes. Expectation: each group has its own, and all commands up to it are there afterwards.
#[test]
fn forced_position_covers_every_group() {
    for seed in 0..30 {
        let (disk, oracle) = (TestDisk::new(seed), Oracle::default());
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
            oracle.check(&log, &recovered, "begin");
            let durable = || GROUPS.map(|group| log.durable(group).0);
            oracle.append_batch(&log, &[(LOCAL, 9), (LOCAL, 9), (PARTITION, 9)]).await.unwrap();
            assert_eq!(durable(), [0, 0]);
            oracle.force(&log).await.expect("nothing fails");
            assert_eq!(durable(), [2, 1]);
            oracle.append_batch(&log, &[(PARTITION, 9), (PARTITION, 9), (LOCAL, 9)]).await.unwrap();
            assert_eq!(durable(), [2, 1]);
            oracle.force(&log).await.expect("nothing fails");
            assert_eq!(durable(), [3, 3]);
            oracle.append_batch(&log, &[(PARTITION, 9)]).await.unwrap();
            assert_eq!(
                (durable(), log.durable_position() < log.written_position()),
                ([3, 3], true)
            );
        })
        .expect("nobody dies");
        disk.power_cut();
        oracle.power_cut.set(true);
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks).await.expect("nothing is damaged");
            assert_eq!(GROUPS.map(|group| recovered.tags[&group].len()), [3, 3]);
            oracle.check(&log, &recovered, "after a power cut");
        });
    }
}

/// Situation: many runs of one log, with commands that were forced or not, ended by kills and power
/// cuts. Danger: a run gives out a term and an index that a command had which a power cut took, and
/// another node has heard of that one. Expectation: the terms of all groups grow with each run, and
/// none of the names comes back with another command.
#[test]
fn term_and_index_never_name_two_commands() {
    let mut replaced = 0;
    for seed in 0..150 {
        let random = Random::new(seed);
        let (disk, oracle) = (TestDisk::new(seed), Oracle::default());
        for life in 0..10 {
            let what = format!("seed {seed}, life {life}");
            let tasks = Rc::new(Tasks::default());
            if random.below(4) == 0 {
                disk.set_fault(Fault::Die(disk.operations() + 1 + random.below(60)));
            }
            run(&disk, &tasks, async {
                let before = oracle.history.borrow().len() as u64;
                let (log, recovered) =
                    recover(&disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                oracle.check(&log, &recovered, &what);
                replaced += before - recovered.count();
                for _ in 0..random.below(12) {
                    oracle.append(&log, random.below(90) as usize).await.expect("nothing fails");
                    if random.below(6) == 0 {
                        oracle.force(&log).await.expect("nothing fails");
                    }
                    if random.below(20) == 0 {
                        oracle.snapshot(&log).await.expect("nothing fails");
                    }
                    pause().await;
                }
            });
            match random.below(2) {
                0 => disk.kill(),
                _ => {
                    disk.power_cut();
                    oracle.power_cut.set(true);
                }
            }
        }
    }
    assert!(replaced > 1000, "{replaced} commands were taken");
}

/// Situation: a group has its first commands in a run, and a power cut takes them with all that is
/// known of the group. Danger: the group begins again with the same term. Expectation: its next
/// first command has a higher term.
#[test]
fn term_of_a_new_group_is_of_its_run() {
    let disk = TestDisk::new(1);
    let mut terms = Vec::new();
    for _ in 0..3 {
        let tasks = Rc::new(Tasks::default());
        let oracle = Oracle::default();
        run(&disk, &tasks, async {
            let (log, _) = recover(&disk, &tasks).await.expect("nothing is damaged");
            assert_eq!(log.written(PARTITION), LogIndex(0));
            terms.push(log.term(PARTITION));
            oracle.append_batch(&log, &[(PARTITION, 10)]).await.expect("there is space");
        });
        disk.keep_lines(SEGMENT, 0, |_| false);
        disk.power_cut();
    }
    assert_eq!(terms, [1, 2, 3].map(Term));
}

/// The snapshots and segments of a disk.
fn files(disk: &TestDisk, prefix: &str) -> Vec<String> {
    disk.paths().into_iter().filter(|path| path.starts_with(prefix)).collect()
}

/// Situation: several segments have commands of two groups, and one group has a snapshot of them.
/// Danger: the log gives up segments that the other group still needs. Expectation: they stay until
/// both groups have snapshots, and each start has all commands.
#[test]
fn snapshot_of_one_group_keeps_segments_of_the_other() {
    let (disk, oracle) = (TestDisk::new(7), Oracle::default());
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
        oracle.check(&log, &recovered, "begin");
        for _ in 0..90 {
            oracle.append(&log, 300).await.expect("there is space");
        }
        let before = files(&disk, "log/0");
        assert!(before.len() > 3, "{before:?}");
        let (history, position) = (oracle.history.borrow().clone(), log.written_position());
        snapshot_of(&log, LOCAL, &history, position).await.expect("nothing fails");
        oracle.forced.set(history.len() as u64);
        assert!(files(&disk, "log/0").starts_with(&before), "{before:?}");
    });
    for is_whole in [false, true] {
        disk.power_cut();
        oracle.power_cut.set(true);
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks).await.expect("nothing is damaged");
            assert_eq!(recovered.snapshots.contains_key(&PARTITION), is_whole);
            oracle.check(&log, &recovered, "after a power cut");
            oracle.snapshot(&log).await.expect("nothing fails");
            assert!(files(&disk, "log/0").len() <= 2, "{:?}", files(&disk, "log/0"));
        });
    }
}

/// Situation: commands of a group fill segments, a power cut takes them, and the group has no
/// further ones. Danger: they count as commands before the next segment, and no snapshot ever has
/// them, so that the log grows for ever. Expectation: snapshots give up their segments.
#[test]
fn void_commands_of_an_idle_group_keep_no_segments() {
    let (disk, oracle) = (TestDisk::new(4), Oracle::default());
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
        oracle.check(&log, &recovered, "begin");
        oracle.append_batch(&log, &[(LOCAL, 9)]).await.expect("there is space");
        oracle.force(&log).await.expect("nothing fails");
        for _ in 0..60 {
            oracle.append_batch(&log, &[(LOCAL, 300)]).await.expect("there is space");
        }
        assert!(files(&disk, "log/0").len() > 2);
    });
    for commands in [20, 90, 5] {
        disk.power_cut();
        oracle.power_cut.set(true);
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks).await.expect("nothing is damaged");
            oracle.check(&log, &recovered, "after a power cut");
            assert_eq!(log.written(LOCAL), LogIndex(1));
            for _ in 0..commands {
                oracle.append_batch(&log, &[(PARTITION, 300)]).await.expect("there is space");
            }
            oracle.snapshot(&log).await.expect("nothing fails");
            assert!(files(&disk, "log/0").len() <= 2, "{:?}", files(&disk, "log/0"));
            assert!(log.prove(async |bytes| bytes).await.is_none());
        })
        .expect("nobody dies");
    }
}

/// Situation: the node stops after the local group's snapshot, before the partition's. Danger: a
/// command of the partition is applied twice to this disk's state, which has observed it.
/// Expectation: its position is at or below that of the local snapshot.
#[test]
fn commands_that_the_local_snapshot_has_observed_are_told_by_position() {
    let (disk, oracle) = (TestDisk::new(2), Oracle::default());
    let tasks = Rc::new(Tasks::default());
    run(&disk, &tasks, async {
        let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
        oracle.check(&log, &recovered, "begin");
        oracle.append_batch(&log, &[(LOCAL, 9), (PARTITION, 9)]).await.expect("there is space");
        oracle.snapshot(&log).await.expect("nothing fails");
        oracle.append_batch(&log, &[(PARTITION, 9), (LOCAL, 9)]).await.expect("there is space");
        let (history, position) = (oracle.history.borrow().clone(), log.written_position());
        snapshot_of(&log, LOCAL, &history, position).await.expect("nothing fails");
        oracle.append_batch(&log, &[(PARTITION, 9)]).await.expect("there is space");
    });
    disk.kill();
    run(&disk, &tasks, async {
        let (_, mut recovery) =
            Log::recover(port(&disk), tasks.clone(), options()).await.expect("nothing is damaged");
        let observed = recovery.snapshots[&LOCAL].header().position;
        let mut is_observed = Vec::new();
        while let Some(logged) = recovery.entries.next().await.expect("nothing is damaged") {
            assert!(matches!(logged.command, LoggedCommand::Partition(_)), "{logged:?}");
            is_observed.push((logged.index.0, logged.position <= observed));
        }
        assert_eq!(is_observed, [(2, true), (3, false)]);
    });
}

/// Situation: beside a partition's snapshot the local group's one is missing, or is of an earlier
/// position. Danger: the node starts with a state of its disk that lacks commands. Expectation:
/// corrupt, and nothing changed.
#[test]
fn local_snapshot_that_is_missing_or_older_is_named() {
    for is_older in [false, true] {
        let (disk, oracle) = (TestDisk::new(2), Oracle::default());
        let tasks = Rc::new(Tasks::default());
        run(&disk, &tasks, async {
            let (log, recovered) = recover(&disk, &tasks).await.expect("an empty disk");
            oracle.check(&log, &recovered, "begin");
            oracle.append_batch(&log, &BATCH).await.expect("there is space");
            oracle.snapshot(&log).await.expect("nothing fails");
            let older = &files(&disk, "snapshot/00000000-")[0];
            let content = disk.content(older);
            oracle.append_batch(&log, &BATCH).await.expect("there is space");
            oracle.snapshot(&log).await.expect("nothing fails");
            disk.remove_now(&files(&disk, "snapshot/00000000-")[0]);
            if is_older {
                disk.put(older, &content);
            }
        })
        .expect("nobody dies");
        disk.kill();
        let before = disk.image();
        run(&disk, &tasks, async {
            let refused = recover(&disk, &tasks).await.map(drop);
            assert!(
                matches!(&refused, Err(LogError::Corrupt { file, .. }) if file.starts_with("snapshot/00000000-")),
                "{refused:?}"
            );
        });
        assert_eq!(disk.image(), before);
        assert_eq!(of_group(&oracle.history.borrow(), LOCAL).len(), 4);
    }
}
