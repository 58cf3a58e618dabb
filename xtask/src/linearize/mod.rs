//! Whether several mounts of one volume behave as one file system: short random histories on real
//! mounts, each judged by `ebb_linearize`.

mod calls;
mod chaos;
mod judge;
mod worker;

use crate::finding::Finding;
use crate::rig::{Rig, Shape, Store};
use crate::rng::Rng;
use crate::{rng, tool};
use chaos::{Chaos, Event};
use clap::{Args, ValueEnum};
use ebb_linearize::{Answer, Budget, History, Op, Operation, Outcome, Owner, Verdict, check};
use judge::{Judge, Porcupine};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use worker::{Common, Worker};

#[derive(Args)]
pub struct Wanted {
    /// Mounts of the volume; the first one serves the others.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    mounts: u32,
    /// Threads of each mount, with one operation in flight each.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// How long histories are begun.
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// Kill daemons of mounts that have joined.
    #[arg(long)]
    kill: bool,
    /// Stop daemons for a while.
    #[arg(long)]
    stop: bool,
    /// Kill the daemon that serves the volume.
    #[arg(long)]
    restart: bool,
    /// Neither move nor remove directories.
    #[arg(long)]
    keep_directories: bool,
    /// Plant a bug, which the run must find.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
    /// Compare each verdict with that of another program.
    #[arg(long, value_enum)]
    judge: Option<Judge>,
    /// Judge this recorded history, without mounts.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// The seed of all random choices. The default is drawn from the clock.
    #[arg(long, default_value_t = rng::seed(), hide_default_value = true)]
    seed: u64,
    #[arg(long)]
    release: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    /// The threads of the last mount answer half of their reads and fstats from a cache of 1 s.
    Stale,
}

/// The fewest operations of a history. The most are four times as many.
const FEWEST_OPERATIONS: u64 = 50;

/// Violations that are written to files and printed.
const REPORTED: u64 = 3;

pub fn run(wanted: &Wanted) -> crate::Outcome<()> {
    let mut porcupine = wanted.judge.map(|Judge::Porcupine| Porcupine::start()).transpose()?;
    if let Some(file) = &wanted.history {
        let history = History::read(BufReader::new(File::open(file)?))?;
        let mut totals = Totals::default();
        totals.judge(&history, &mut porcupine, wanted)?;
        totals.print(wanted, 0);
        return totals.outcome(wanted);
    }
    println!("{} mounts, seed {}", wanted.mounts, wanted.seed);
    let binaries = tool::build(&["ebb"], wanted.release)?;
    let rigs = mounts(wanted.mounts, &binaries)?;
    let mut chaos = Chaos::new(wanted.events(), rigs.len(), wanted.seed);
    let mut rng = Rng(wanted.seed);
    let mut totals = Totals::default();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60 * wanted.minutes) {
        let history = one(&rigs, wanted, &mut chaos, &mut rng, totals.histories)?;
        totals.judge(&history, &mut porcupine, wanted)?;
    }
    totals.print(wanted, chaos.done());
    for mut rig in rigs.into_iter().rev() {
        rig.umount()?;
    }
    totals.outcome(wanted)
}

impl Wanted {
    fn events(&self) -> Vec<Event> {
        [(self.kill, Event::Kill), (self.stop, Event::Stop), (self.restart, Event::Restart)]
            .into_iter()
            .filter_map(|(is_wanted, event)| is_wanted.then_some(event))
            .collect()
    }
}

/// The mounts of a new volume; the first one serves the others.
fn mounts(count: u32, binaries: &Path) -> crate::Outcome<Vec<Rig>> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let first = Rig::named(Shape::EmbeddedDir, "linearize-0", binaries)?;
    let mut rigs = vec![first.with(&["--listen", &address])];
    for number in 1..count {
        let node = Store::of(format!("ebb://{address}"), Vec::new());
        let name = format!("linearize-{number}");
        rigs.push(Rig::over(Shape::EmbeddedDir, &name, node, binaries)?);
    }
    rigs.iter_mut().try_for_each(|rig| rig.mount("").map(drop))?;
    Ok(rigs)
}

/// Runs one history in a directory of its own, which it removes.
fn one(
    rigs: &[Rig],
    wanted: &Wanted,
    chaos: &mut Chaos,
    rng: &mut Rng,
    number: u64,
) -> crate::Outcome<History> {
    let name = format!("history-{number}");
    let own = |rig: &Rig| rig.mountpoint().join(&name);
    patiently(|| match fs::create_dir(own(&rigs[0])) {
        // An earlier attempt without an answer.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    })?;
    let operations = FEWEST_OPERATIONS * (1 + rng.below(4));
    let common =
        Arc::new(Common::new(operations as i64, !chaos.is_calm(), wanted.keep_directories));
    let mut workers = Vec::new();
    for (mount, rig) in rigs.iter().enumerate() {
        for thread in 0..wanted.threads {
            let root = patiently(|| File::open(own(rig)))?;
            let is_planted = wanted.plant.is_some() && mount + 1 == rigs.len();
            let owner = Owner::new(mount as u32, thread);
            workers.push(Worker::new(owner, root, rng.draw(), common.clone(), is_planted));
        }
    }
    workers[0].prepare();
    let start = Barrier::new(workers.len());
    let (done, struck) = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(|| {
                    start.wait();
                    worker.work();
                    worker.finish()
                })
            })
            .collect();
        let struck = chaos.strike(rigs);
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        (done, struck)
    });
    struck?;
    let mut all = Vec::new();
    for operations in done {
        all.extend(operations.map_err(|_| "a worker panicked")?);
    }
    patiently(|| match fs::remove_dir_all(own(&rigs[0])) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    })?;
    Ok(History::new(without_twins(all)))
}

/// Takes the answers from successful renames of one name to one other that overlap. The kernel of
/// the second mount looks up both names, one after the other; if the first rename happens between,
/// it finds one file under both names, and returns success without a request.
fn without_twins(operations: Vec<Operation>) -> Vec<Operation> {
    let is_rename = |operation: &Operation| {
        matches!(operation.op(), Op::Rename { .. })
            && matches!(operation.outcome(), None | Some(Outcome::Done))
    };
    let end_ns = |operation: &Operation| operation.answer().map_or(u64::MAX, Answer::at_ns);
    let has_twin = |operation: &Operation| {
        is_rename(operation)
            && operations.iter().any(|other| {
                is_rename(other)
                    && other.owner() != operation.owner()
                    && other.op() == operation.op()
                    && other.call_ns() <= end_ns(operation)
                    && operation.call_ns() <= end_ns(other)
            })
    };
    operations
        .iter()
        .map(|operation| match has_twin(operation) {
            true => operation.unanswered(),
            false => operation.clone(),
        })
        .collect()
}

/// Repeats a request until the daemon that was killed has a successor.
fn patiently<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> crate::Outcome<T> {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if began.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

/// The sums of a run.
#[derive(Default)]
struct Totals {
    histories: u64,
    operations: u64,
    unanswered: u64,
    /// On objects that several mounts use.
    shared: u64,
    /// Sum over all operations, and over all histories from the first call to the last return.
    busy_ns: u64,
    elapsed_ns: u64,
    violations: u64,
    undecided: u64,
    disagreements: u64,
}

impl Totals {
    fn judge(
        &mut self,
        history: &History,
        porcupine: &mut Option<Porcupine>,
        wanted: &Wanted,
    ) -> crate::Outcome<()> {
        self.count(history);
        let verdict = check(history, Budget::default());
        match &verdict {
            Verdict::Linearizable => {}
            Verdict::Undecided => self.undecided += 1,
            Verdict::Violation(violation) => {
                self.violations += 1;
                if self.violations <= REPORTED {
                    let file = self.keep(history, wanted)?;
                    println!("violation, history in {}", file.display());
                    println!("{}", violation.describe(history));
                }
            }
        }
        if let Some(porcupine) = porcupine
            && porcupine.disagrees(history, &verdict)?
        {
            self.disagreements += 1;
            let file = self.keep(history, wanted)?;
            println!("porcupine disagrees, history in {}", file.display());
        }
        Ok(())
    }

    fn keep(&self, history: &History, wanted: &Wanted) -> crate::Outcome<PathBuf> {
        let name = format!("linearize-{}-{}.jsonl", wanted.seed, self.histories);
        let file = tool::conformance()?.join(name);
        history.write(std::io::BufWriter::new(File::create(&file)?))?;
        Ok(file)
    }

    fn count(&mut self, history: &History) {
        let operations = history.operations();
        let answered = || operations.iter().filter_map(|operation| operation.answer());
        let mut mounts: BTreeMap<Object, BTreeSet<u32>> = BTreeMap::new();
        for operation in operations {
            for object in objects(operation) {
                mounts.entry(object).or_default().insert(operation.owner().mount());
            }
        }
        let is_shared = |operation: &&Operation| {
            objects(operation).iter().any(|object| mounts[object].len() > 1)
        };
        let first = operations.first().map_or(0, Operation::call_ns);
        let last = answered().map(|answer| answer.at_ns()).max().unwrap_or(first);
        self.histories += 1;
        self.operations += operations.len() as u64;
        self.unanswered += operations.len() as u64 - answered().count() as u64;
        self.shared += operations.iter().filter(is_shared).count() as u64;
        self.elapsed_ns += last - first;
        self.busy_ns += operations
            .iter()
            .filter_map(|operation| Some(operation.answer()?.at_ns() - operation.call_ns()))
            .sum::<u64>();
    }

    fn print(&self, wanted: &Wanted, events: u64) {
        let chaos: Vec<String> = wanted.events().iter().map(|event| format!("{event:?}")).collect();
        let chaos = match chaos.is_empty() {
            true => "none".to_owned(),
            false => format!("{}: {events}", chaos.join(", ").to_lowercase()),
        };
        let share = 100.0 * self.shared as f64 / self.operations.max(1) as f64;
        let in_flight = self.busy_ns as f64 / self.elapsed_ns.max(1) as f64;
        println!(
            "| Mounts | Chaos | Histories | Operations | Not answered | On shared objects | In \
             flight | Violations | Undecided |\n|---|---|---|---|---|---|---|---|---|"
        );
        println!(
            "| {} | {chaos} | {} | {} | {} | {share:.0} % | {} threads, {in_flight:.1} on average \
             | {} | {} |",
            wanted.mounts,
            self.histories,
            self.operations,
            self.unanswered,
            wanted.mounts * wanted.threads,
            self.violations,
            self.undecided,
        );
        if wanted.judge.is_some() {
            println!("porcupine disagrees {} times", self.disagreements);
        }
    }

    fn outcome(&self, wanted: &Wanted) -> crate::Outcome<()> {
        if self.disagreements > 0 {
            return Err("the checker and porcupine judge a history differently".into());
        }
        match (self.violations, wanted.plant) {
            (0, Some(plant)) => Err(format!("the planted bug {plant:?} is not found").into()),
            (0, None) | (_, Some(_)) => Ok(()),
            (violations, None) => {
                Err(Finding(format!("{violations} histories are not linearizable")).into())
            }
        }
    }
}

/// A name, or an inode without one.
type Object = (ebb_linearize::InodeId, Option<ebb_linearize::history::Name>);

fn objects(operation: &Operation) -> Vec<Object> {
    match operation.op() {
        Op::Create { dir, name }
        | Op::Mkdir { dir, name }
        | Op::Open { dir, name }
        | Op::Unlink { dir, name }
        | Op::Rmdir { dir, name }
        | Op::Stat { dir, name } => vec![(*dir, Some(name.clone()))],
        Op::Rename { from_dir, from, to_dir, to } => {
            vec![(*from_dir, Some(from.clone())), (*to_dir, Some(to.clone()))]
        }
        Op::Link { inode, dir, name } => vec![(*inode, None), (*dir, Some(name.clone()))],
        Op::Fstat { inode }
        | Op::List { inode }
        | Op::Read { inode, .. }
        | Op::Write { inode, .. }
        | Op::Append { inode, .. }
        | Op::Truncate { inode, .. }
        | Op::Lock { inode, .. }
        | Op::Unlock { inode } => vec![(*inode, None)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_linearize::InodeId;

    /// Danger: renames that the kernel answers by itself pass for a violation of ebb, or renames
    /// that it does not are no longer checked.
    #[test]
    fn only_overlapping_renames_of_the_same_names_lose_their_answers() {
        let rename = |mount, call_ns, return_ns, to: &str| {
            let op = Op::Rename {
                from_dir: InodeId::ROOT,
                from: "x".into(),
                to_dir: InodeId::ROOT,
                to: to.into(),
            };
            let answer = Some(Answer::new(return_ns, Outcome::Done));
            Operation::new(Owner::new(mount, 0), call_ns, op, answer)
        };
        let renames = vec![
            rename(0, 1, 5, "y"),
            rename(1, 4, 8, "y"),
            rename(0, 9, 12, "y"),
            rename(1, 10, 11, "z"),
        ];
        let answered: Vec<bool> =
            without_twins(renames).iter().map(|operation| operation.answer().is_some()).collect();
        assert_eq!(answered, [false, false, true, true]);
    }
}
