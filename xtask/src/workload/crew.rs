//! Workers side by side.

use super::history::Forces;
use super::{Mix, Worker};
use crate::Outcome;
use crate::rng::Rng;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

pub struct Crew(Vec<Worker>);

const WORKERS: usize = 4;

impl Crew {
    /// Each in a directory of its own below `root`.
    pub fn new(root: &Path, mix: Mix, rng: &mut Rng) -> Outcome<Crew> {
        let forces = Arc::new(Forces::of(WORKERS));
        let worker = |number| Worker::new(root, number, mix, rng.draw(), forces.clone());
        Ok(Crew((0..WORKERS).map(worker).collect::<Outcome<_>>()?))
    }

    pub fn start(self) -> AtWork {
        let stop = Arc::new(AtomicBool::new(false));
        let begin = |worker: Worker| {
            let stop = stop.clone();
            thread::spawn(move || worker.work(&stop))
        };
        AtWork { threads: self.0.into_iter().map(begin).collect(), stop }
    }

    /// Operations that have succeeded.
    pub fn done(&self) -> u64 {
        self.0.iter().map(Worker::done).sum()
    }

    /// An operation that did not succeed, in words.
    pub fn failed(&self) -> Option<&str> {
        self.0.iter().find_map(Worker::failed)
    }

    pub fn verify(&mut self) -> Outcome<()> {
        self.0.iter_mut().try_for_each(Worker::verify)
    }

    /// Gives the number of operations that are lost.
    pub fn verify_after_power_cut(&mut self) -> Outcome<u64> {
        self.0.iter_mut().map(Worker::verify_after_power_cut).sum()
    }
}

/// Workers on threads of their own.
pub struct AtWork {
    threads: Vec<JoinHandle<Worker>>,
    stop: Arc<AtomicBool>,
}

impl AtWork {
    /// Lets each end what it does.
    pub fn stop(self) -> Outcome<Crew> {
        self.stop.store(true, Ordering::Relaxed);
        let workers = self.threads.into_iter().map(|thread| thread.join().map_err(|_| "a worker panicked"));
        Ok(Crew(workers.collect::<Result<_, _>>()?))
    }
}
