//! Users of a mount, which survive its processes: they repeat each request to the next process
//! until it is answered.

use super::scene::Scene;
use crate::oracle::History;
use crate::volume::plan::Plan;
use crate::volume::workload::{Ask, Known, Worker};
use crate::{Process, World};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub struct Users {
    processes: Vec<Process>,
    scene: Rc<Scene>,
    done: Rc<Cell<usize>>,
}

impl Users {
    pub fn begin(
        world: &World,
        scene: &Rc<Scene>,
        history: &History,
        known: &Known,
        plan: &Plan,
    ) -> Users {
        let (done, leaving) = (Rc::new(Cell::new(0)), Rc::default());
        let begin = |number: u64| {
            let worker = Worker {
                ask: ask(scene),
                id: scene.client,
                history: history.clone(),
                known: known.clone(),
                rng: world.rng(&format!("mount {} worker {number}", scene.client.0)),
                executor: world.executor().clone(),
                pace: plan.pace,
                leaving: Rc::clone(&leaving),
            };
            let (process, done) = (world.machine("users").process("user"), done.clone());
            process.spawn(async move {
                worker.work().await;
                done.set(done.get() + 1);
            });
            process
        };
        Users {
            processes: (0..plan.workers).map(begin).collect(),
            scene: scene.clone(),
            done: done.clone(),
        }
    }

    pub fn are_done(&self) -> bool {
        self.done.get() == self.processes.len()
    }

    /// Waits until all of them are.
    pub async fn finish(&self, world: &World) -> Result<(), String> {
        let began = world.now();
        while !self.are_done() {
            if world.now() > began + PATIENCE {
                return Err(format!("requests are never answered: {:?}", self.scene.under_way()));
            }
            world.sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    pub fn kill(&self) {
        self.processes.iter().for_each(Process::kill);
    }
}

fn ask(scene: &Rc<Scene>) -> Ask {
    let scene = scene.clone();
    Box::new(move |op| {
        let scene = scene.clone();
        Box::pin(async move { scene.request(op).await })
    })
}

/// Longer than any outage of the bucket.
const PATIENCE: Duration = Duration::from_secs(1200);
