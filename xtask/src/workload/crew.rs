//! Workers side by side.

use super::history::Forces;
use super::tree::TreeWorker;
use super::{Mix, Worker};
use crate::Outcome;
use crate::rng::Rng;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

pub struct Crew {
    workers: Vec<Worker>,
    of_trees: Vec<TreeWorker>,
}

const WORKERS: usize = 4;
const TREES: usize = 2;

impl Crew {
    /// Each in a directory of its own below `root`.
    pub fn new(root: &Path, mix: Mix, rng: &mut Rng) -> Outcome<Crew> {
        let forces = Arc::new(Forces::of(WORKERS));
        let worker = |number| Worker::new(root, number, mix, rng.draw(), forces.clone());
        let workers = (0..WORKERS).map(worker).collect::<Outcome<_>>()?;
        let trees = if mix == Mix::WithTrees { TREES } else { 0 };
        let of_trees = (0..trees)
            .map(|number| TreeWorker::new(root, number, rng.draw()))
            .collect::<Outcome<_>>()?;
        Ok(Crew { workers, of_trees })
    }

    pub fn start(self) -> AtWork {
        let stop = Arc::new(AtomicBool::new(false));
        let begin = |worker: Worker| {
            let stop = stop.clone();
            thread::spawn(move || worker.work(&stop))
        };
        let workers = self.workers.into_iter().map(begin).collect();
        let begin = |worker: TreeWorker| {
            let stop = stop.clone();
            thread::spawn(move || worker.work(&stop))
        };
        AtWork { workers, of_trees: self.of_trees.into_iter().map(begin).collect(), stop }
    }

    /// Successful operations.
    pub fn done(&self) -> u64 {
        self.workers
            .iter()
            .map(Worker::done)
            .chain(self.of_trees.iter().map(TreeWorker::done))
            .sum()
    }

    /// The first failed operation, as text.
    pub fn failed(&self) -> Option<&str> {
        self.workers
            .iter()
            .find_map(Worker::failed)
            .or_else(|| self.of_trees.iter().find_map(TreeWorker::failed))
    }

    pub fn verify(&mut self) -> Outcome<()> {
        self.workers.iter_mut().try_for_each(Worker::verify)?;
        self.of_trees.iter_mut().try_for_each(TreeWorker::verify)
    }

    /// Returns the number of lost operations. Trees have no model of a power cut and are skipped.
    pub fn verify_after_power_cut(&mut self) -> Outcome<u64> {
        self.workers.iter_mut().map(Worker::verify_after_power_cut).sum()
    }
}

/// Workers on threads of their own.
pub struct AtWork {
    workers: Vec<JoinHandle<Worker>>,
    of_trees: Vec<JoinHandle<TreeWorker>>,
    stop: Arc<AtomicBool>,
}

impl AtWork {
    /// Lets each worker finish its operation.
    pub fn stop(self) -> Outcome<Crew> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(Crew { workers: join(self.workers)?, of_trees: join(self.of_trees)? })
    }
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Outcome<Vec<T>> {
    threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| "a worker panicked".into()))
        .collect()
}
