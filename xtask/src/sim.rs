//! Whole volumes in the simulated world: any number of seeds, on all processors.

use crate::Outcome;
use clap::ValueEnum;
use ebb_sim::volume::{Broken, Deployment, Report, deployment, run as run_seed, run_replicated};
use std::fmt;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval of seeds that run twice: two runs of one seed must agree on every event.
const TWICE_EVERY: u64 = 20;

/// Broken seeds that are printed; further ones are only counted.
const TOLD: u64 = 10;

/// Interval of progress lines, in seeds.
const TOLD_EVERY: u64 = 1000;

/// The stories whose seeds run.
#[derive(Clone, Copy)]
pub struct Stories {
    /// That of a volume on so many nodes; `None`: those of a volume on one.
    pub cluster: Option<usize>,
    pub only: Option<Only>,
}

fn run_story(seed: u64, cluster: Option<usize>) -> Result<Report, Broken> {
    match cluster {
        Some(nodes) => run_replicated(seed, nodes),
        None => run_seed(seed),
    }
}

/// Runs one seed twice and prints everything about it.
pub fn one(seed: u64, cluster: Option<usize>) -> Outcome<()> {
    let report = run_story(seed, cluster).map_err(|broken| broken.to_string())?;
    let again = run_story(seed, cluster).map_err(|broken| broken.to_string())?;
    if report != again {
        return Err(format!("seed {seed}: two runs differ: {report:?} and {again:?}").into());
    }
    println!("seed {seed}: {} operations, {}", report.operations, report.scenario);
    Ok(())
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Only {
    Embedded,
    Detached,
}

impl Only {
    fn takes(self, seed: u64) -> bool {
        match self {
            Only::Embedded => deployment(seed) == Deployment::Embedded,
            Only::Detached => deployment(seed) == Deployment::Detached,
        }
    }
}

/// Runs `count` seeds from `first` on, or as many as fit `time`; `stories` selects a deployment.
/// With `until_broken` the first broken seed ends the run.
pub fn many(
    first: u64,
    count: Option<u64>,
    time: Option<Duration>,
    Stories { cluster, only }: Stories,
    until_broken: bool,
) -> Outcome<()> {
    let began = Instant::now();
    let next = AtomicU64::new(first);
    let end = first.saturating_add(count.unwrap_or(u64::MAX - first));
    let tally = Mutex::new(Tally::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || time.is_some_and(|time| began.elapsed() >= time) {
                return;
            }
            if only.is_some_and(|only| !only.takes(seed)) {
                continue;
            }
            let outcome = judged(seed, cluster);
            if outcome.is_err() && until_broken {
                next.store(end, Ordering::Relaxed);
            }
            let mut tally = tally.lock().expect("no worker panics while it holds the tally");
            tally.add(outcome);
            if tally.seeds.is_multiple_of(TOLD_EVERY) {
                println!("{tally}, {:.0} s", began.elapsed().as_secs_f64());
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let tally = tally.into_inner().expect("every worker has ended");
    println!("from {first}: {tally}, {:.1} s", began.elapsed().as_secs_f64());
    if tally.broken == 0 {
        Ok(())
    } else {
        Err(format!("{} of {} seeds are broken", tally.broken, tally.seeds).into())
    }
}

#[derive(Default)]
struct Tally {
    seeds: u64,
    operations: usize,
    undecided: u64,
    broken: u64,
}

struct Judged {
    operations: usize,
    undecided: bool,
}

impl Tally {
    fn add(&mut self, outcome: Result<Judged, String>) {
        self.seeds += 1;
        match outcome {
            Ok(judged) => {
                self.operations += judged.operations;
                self.undecided += u64::from(judged.undecided);
            }
            Err(text) => {
                self.broken += 1;
                if self.broken <= TOLD {
                    println!("{text}\n");
                }
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { seeds, operations, undecided, broken } = self;
        write!(f, "{seeds} seeds, {operations} operations, {undecided} undecided, {broken} broken")
    }
}

fn judged(seed: u64, cluster: Option<usize>) -> Result<Judged, String> {
    let flag = cluster.map_or(String::new(), |nodes| format!(" --cluster {nodes}"));
    let run = || {
        catch_unwind(|| run_story(seed, cluster))
            .map_err(|_| format!("seed {seed} panics: cargo xtask sim{flag} --seed {seed}"))
    };
    let short = |Broken { what, .. }| {
        format!("seed {seed}: {what}\nrepeat with: cargo xtask sim{flag} --seed {seed}")
    };
    let report = run()?.map_err(short)?;
    if seed.is_multiple_of(TWICE_EVERY) && run()?.map_err(short)? != report {
        return Err(format!("seed {seed}: two runs differ"));
    }
    Ok(Judged { operations: report.operations, undecided: report.undecided })
}
