//! Random work, random ends, many lives of one disk.

use crate::disk::{Fault, TestDisk};
use crate::world::{
    GROUPS, Random, Recovered, Tagged, Tasks, command, local, of_group, pause, recover, run,
    snapshot_of,
};
use ebb_format::record::{GroupId, Position, Term};
use ebb_journal::{Entry, Frontier, Log, LogError, Start};
use ebb_model::LogIndex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The knowledge of the log's callers.
#[derive(Default)]
pub struct Oracle {
    /// The commands that count, in the order of their positions, and those that may be under way.
    pub history: RefCell<Vec<Tagged>>,
    /// Commands of the history, of all groups.
    pub written: Cell<u64>,
    pub forced: Cell<u64>,
    pub next_tag: Cell<u64>,
    appends: Cell<u64>,
    /// The machine has been down since the last recovery.
    pub power_cut: Cell<bool>,
    pub begun: Cell<bool>,
    /// Commands by group, term and index, also those that a power cut has taken.
    names: RefCell<BTreeMap<(GroupId, Term, LogIndex), u64>>,
    /// The terms of the last run that was begun.
    terms: RefCell<BTreeMap<GroupId, Term>>,
}

impl Oracle {
    /// Compares the recovered commands with the promised ones, and goes on from there.
    pub fn check(&self, log: &Log, recovered: &Recovered, what: &str) {
        let mut history = self.history.borrow_mut();
        let count = recovered.count();
        assert!(count <= history.len() as u64, "{what}: {recovered:?} of {history:?}");
        let kept = &history[..count as usize];
        for group in GROUPS {
            assert_eq!(
                recovered.tags.get(&group).cloned().unwrap_or_default(),
                of_group(kept, group),
                "{what}: {group:?} of {history:?}"
            );
        }
        assert_eq!(recovered.behind, self.behind(kept, recovered), "{what}");
        assert!(
            count >= self.forced.get(),
            "{what}: {count} of {} forced commands",
            self.forced.get()
        );
        assert!(
            self.power_cut.get() || count >= self.written.get(),
            "{what}: {count} of {} written commands",
            self.written.get()
        );
        match recovered.start {
            Start::First => assert!(!self.begun.get(), "{what}"),
            Start::SameBoot => {}
            Start::PowerCut { cut_after, .. } => {
                assert!(self.power_cut.get(), "{what}");
                let all = (log.written_position(), log.written_position());
                assert_eq!((cut_after, log.durable_position()), all, "{what}");
            }
        }
        let durable = durable(log);
        assert!(durable >= self.forced.get() && durable <= count, "{what}");
        for &(group, term, index, tag) in &recovered.names {
            self.name(group, term, index, tag);
        }
        for group in GROUPS {
            let (term, before) = (log.term(group), self.terms.borrow().get(&group).copied());
            assert!(before.is_none_or(|before| before < term), "{what}: {term:?} of {group:?}");
            self.terms.borrow_mut().insert(group, term);
        }
        history.truncate(count as usize);
        self.written.set(count);
        self.forced.set(durable);
        self.power_cut.set(false);
        self.begun.set(true);
    }

    /// The commands that no snapshot has.
    fn behind(&self, history: &[Tagged], recovered: &Recovered) -> Vec<Tagged> {
        let mut seen: BTreeMap<GroupId, u64> = BTreeMap::new();
        let is_behind = |(group, _): &&Tagged| {
            let index = seen.entry(*group).or_default();
            *index += 1;
            recovered.snapshots.get(group).is_none_or(|upto| *index > upto.0)
        };
        history.iter().filter(is_behind).copied().collect()
    }

    /// Term and index of a group name one command for ever.
    fn name(&self, group: GroupId, term: Term, index: LogIndex, tag: u64) {
        let before = self.names.borrow_mut().insert((group, term, index), tag);
        assert!(
            before.is_none_or(|before| before == tag),
            "{group:?}, {term:?}, {index:?}: {before:?} and {tag}"
        );
    }

    /// Appends one command of either group, or one of each.
    pub async fn append(&self, log: &Log, len: usize) -> Result<(), LogError> {
        let call = self.appends.replace(self.appends.get() + 1);
        match call % 3 {
            0 => self.append_batch(log, &[(GroupId::LOCAL, 30), (GroupId::PARTITION, len)]).await,
            1 => self.append_batch(log, &[(GroupId::PARTITION, len)]).await,
            _ => self.append_batch(log, &[(GroupId::LOCAL, len)]).await,
        }
    }

    /// Appends commands of these groups and lengths at once.
    pub async fn append_batch(
        &self,
        log: &Log,
        batch: &[(GroupId, usize)],
    ) -> Result<(), LogError> {
        let first = self.next_tag.get();
        self.next_tag.set(first + batch.len() as u64);
        let tagged = || batch.iter().zip(first..).map(|((group, _), tag)| (*group, tag));
        let commands: Vec<_> = batch
            .iter()
            .zip(first..)
            .map(|((_, len), tag)| (command(tag, *len), local(tag, *len)))
            .collect();
        let entries: Vec<Entry<'_>> = batch
            .iter()
            .zip(&commands)
            .map(|((group, _), (command, local))| match *group {
                GroupId::LOCAL => Entry::Local(local),
                group => Entry::Command(group, command),
            })
            .collect();
        let before = self.history.borrow().len();
        self.history.borrow_mut().extend(tagged());
        match log.append(&entries).await {
            Ok(frontier) => {
                self.written.set(before as u64 + batch.len() as u64);
                self.check_frontier(log, &frontier, before + batch.len());
                for (at, (group, tag)) in tagged().enumerate() {
                    let upto = &self.history.borrow()[..=before + at];
                    let index = LogIndex(of_group(upto, group).len() as u64);
                    self.name(group, log.term(group), index, tag);
                }
                Ok(())
            }
            Err(error) => {
                if log.failed().is_none() {
                    self.history.borrow_mut().truncate(before);
                }
                Err(error)
            }
        }
    }

    /// The log's indices are those of the first `count` commands.
    fn check_frontier(&self, log: &Log, frontier: &Frontier, count: usize) {
        for group in GROUPS {
            let index = LogIndex(of_group(&self.history.borrow()[..count], group).len() as u64);
            assert_eq!((frontier.index(group), log.written(group)), (index, index), "{group:?}");
        }
        assert_eq!(log.written_position(), frontier.position);
    }

    pub async fn force(&self, log: &Log) -> Result<(), LogError> {
        let (upto, count) = (log.written_position(), self.written.get());
        let forced = log.force().await?;
        assert!(forced.position >= upto);
        let in_frontier = GROUPS.map(|group| forced.index(group).0).iter().sum::<u64>();
        assert!(in_frontier >= count, "{in_frontier} of {count} commands are forced");
        assert!(durable(log) >= in_frontier);
        self.forced.set(self.forced.get().max(in_frontier));
        Ok(())
    }

    pub async fn snapshot(&self, log: &Log) -> Result<(), LogError> {
        let (position, count) = (log.written_position(), self.written.get());
        self.snapshot_at(log, position, count).await
    }

    /// Takes snapshots of all groups after `count` commands of the history.
    pub async fn snapshot_at(
        &self,
        log: &Log,
        position: Position,
        count: u64,
    ) -> Result<(), LogError> {
        let history = self.history.borrow()[..count as usize].to_vec();
        for group in GROUPS {
            snapshot_of(log, group, &history, position).await?;
        }
        self.forced.set(self.forced.get().max(count));
        Ok(())
    }
}

/// How many commands of the history are forced: the log returns the forced index of each group.
fn durable(log: &Log) -> u64 {
    GROUPS.map(|group| log.durable(group).0).iter().sum()
}

async fn work(log: &Log, oracle: &Oracle, random: &Random) {
    let appender = async {
        for _ in 0..random.below(120) {
            let len = if random.below(10) == 0 { random.below(3000) } else { random.below(200) };
            oracle.append(log, len as usize).await.expect("nothing fails here");
        }
    };
    let forcer = async {
        for _ in 0..random.below(12) {
            for _ in 0..random.below(30) {
                pause().await;
            }
            oracle.force(log).await.expect("nothing fails here");
        }
    };
    let other_forcer = async {
        for _ in 0..random.below(12) {
            for _ in 0..random.below(30) {
                pause().await;
            }
            oracle.force(log).await.expect("nothing fails here");
        }
    };
    let snapshotter = async {
        for _ in 0..random.below(3) {
            for _ in 0..random.below(200) {
                pause().await;
            }
            oracle.snapshot(log).await.expect("nothing fails here");
        }
    };
    // Commands written, forced or given up during the verification are no damage.
    let prover = async {
        for _ in 0..random.below(6) {
            for _ in 0..random.below(60) {
                pause().await;
            }
            let pace = async |bytes: u64| {
                pause().await;
                bytes.min(1 + random.below(40_000))
            };
            let damage = log.prove(pace).await;
            assert!(damage.is_none(), "{damage}");
        }
    };
    let beginner = async {
        if random.below(3) == 0 {
            for _ in 0..random.below(300) {
                pause().await;
            }
            log.begin_segment().await.expect("nothing fails here");
        }
    };
    futures_util::join!(appender, forcer, other_forcer, snapshotter, prover, beginner);
}

fn live(seed: u64) -> (u64, u64) {
    let random = Random::new(seed);
    let disk = TestDisk::new(seed);
    let oracle = Oracle::default();
    let mut survived = 0;
    for life in 0..12 {
        let what = format!("seed {seed}, life {life}");
        let tasks = Rc::new(Tasks::default());
        if random.below(4) != 0 {
            disk.set_fault(Fault::Die(disk.operations() + 1 + random.below(400)));
        }
        run(&disk, &tasks, async {
            let (log, recovered) =
                recover(&disk, &tasks).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            oracle.check(&log, &recovered, &what);
            survived += recovered.count();
            work(&log, &oracle, &random).await;
        });
        if random.below(2) == 0 {
            disk.kill();
        } else {
            disk.power_cut();
            oracle.power_cut.set(true);
        }
    }
    (survived, disk.operations())
}

/// Situation: appends, forces, snapshots, kills and power cuts in any order. Danger: a promise is
/// broken, or an old command comes back. Expectation: as in [`Oracle::check`].
#[test]
fn promises_hold_over_many_lives() {
    for seed in 0..400 {
        let (survived, _) = live(seed);
        assert!(seed != 0 || survived > 0);
    }
}

/// Situation: a snapshot was written right after the log had gone on in a new segment. Danger: it
/// gave up the only synced one, and a power cut left a log without its first record. Expectation:
/// the seed that found it stays whole.
#[test]
fn a_log_that_has_just_gone_on_is_synced_before_a_snapshot_gives_up_the_rest() {
    live(5268);
}

/// A run is a function of its seed, so that a failure can be repeated.
#[test]
fn a_seed_says_it_all() {
    assert_eq!(live(41), live(41));
}

/// Situation: eight callers force at once. Expectation: those that come while a sync is
/// under way share one: two syncs in all, and each caller's commands are covered.
#[test]
fn callers_share_a_sync() {
    let disk = TestDisk::new(1);
    let tasks = Rc::new(Tasks::default());
    let oracle = Oracle::default();
    let ended = run(&disk, &tasks, async {
        let (log, _) = recover(&disk, &tasks).await.expect("an empty disk");
        oracle.append(&log, 10).await.expect("there is space");
        let before = disk.operations();
        let late = async {
            for _ in 0..8 {
                pause().await;
            }
            oracle.append(&log, 10).await.expect("there is space");
            oracle.force(&log).await.expect("nothing fails here");
        };
        let eight = futures_util::future::join_all((0..8).map(|_| oracle.force(&log)));
        let (all, ()) = futures_util::join!(eight, late);
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(log.durable_position(), log.written_position());
        // Two markers, two syncs, one append.
        assert!(disk.operations() - before <= 5, "{} operations", disk.operations() - before);
    });
    assert!(ended.is_some());
}

/// Situation: appends follow one another without a pause while another task forces. Danger: the
/// force waits until they end. Expectation: it has its turn after the append under way.
#[test]
fn a_stream_of_appends_does_not_hold_up_a_force() {
    let disk = TestDisk::new(1);
    let tasks = Rc::new(Tasks::default());
    let oracle = Oracle::default();
    let ended = run(&disk, &tasks, async {
        let (log, _) = recover(&disk, &tasks).await.expect("an empty disk");
        let appender = async {
            for _ in 0..200 {
                oracle.append(&log, 10).await.expect("there is space");
            }
        };
        let forcer = async {
            pause().await;
            log.force().await.expect("nothing fails here")
        };
        let ((), forced) = futures_util::join!(appender, forcer);
        assert!(forced.index(GroupId::PARTITION).0 < 10, "{forced:?}");
    });
    assert!(ended.is_some());
}

/// Situation: eight writers that force each of their commands. Danger: one of them has every turn,
/// and there is a sync per command. Expectation: they share syncs in any order.
#[test]
fn busy_writers_share_their_syncs() {
    let disk = TestDisk::new(1);
    let tasks = Rc::new(Tasks::default());
    let ended = run(&disk, &tasks, async {
        let (log, _) = recover(&disk, &tasks).await.expect("an empty disk");
        let turn = futures_util::lock::Mutex::new(());
        let before = disk.operations();
        let writer = async || {
            for _ in 0..3 {
                {
                    let _turn = turn.lock().await;
                    let command = command(1, 1);
                    let entry = Entry::Command(GroupId::PARTITION, &command);
                    log.append(&[entry]).await.expect("there is space");
                }
                log.force().await.expect("nothing fails here");
            }
        };
        futures_util::future::join_all((0..8).map(|_| writer())).await;
        // One write per command; per sync one more, for its marker.
        let syncs = (disk.operations() - before - 24) / 2;
        assert!(syncs <= 9, "{syncs} syncs for 24 commands");
    });
    assert!(ended.is_some());
}
