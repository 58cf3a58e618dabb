//! A client of the same node that has no successor and needs none.

use super::scene::SERVER;
use crate::oracle::{ClientId, History};
use crate::volume::plan::Plan;
use crate::volume::rig::attach_wire;
use crate::volume::workload::{Known, Worker, ask};
use crate::{Process, World};
use ebb_client::Client;
use ebb_model::FsError;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub struct Other {
    process: Process,
    client: Client,
    done: Rc<Cell<bool>>,
}

impl Other {
    /// Attaches, however often that takes, and begins to work.
    pub async fn attach(
        world: &World,
        history: &History,
        known: &Known,
        plan: &Plan,
    ) -> Result<Other, String> {
        for _ in 0..MAX_ATTACHES {
            let process = world.machine(MACHINE).process("mount");
            match attach_wire(&process, SERVER).await {
                Some(Ok(client)) => {
                    history.note(format!("client {} begins", OTHER_CLIENT.0));
                    let worker = Worker {
                        ask: ask(&client),
                        id: OTHER_CLIENT,
                        history: history.clone(),
                        known: known.clone(),
                        rng: world.rng("other worker"),
                        executor: world.executor().clone(),
                        pace: plan.pace,
                        leaving: Rc::default(),
                    };
                    let done = Rc::new(Cell::new(false));
                    let is_done = done.clone();
                    process.spawn(async move {
                        worker.work().await;
                        is_done.set(true);
                    });
                    return Ok(Other { process, client, done });
                }
                Some(Err(error)) => history.note(format!("attach: {error}")),
                None => return Err("the other client has died".into()),
            }
            process.kill();
            world.sleep(Duration::from_secs(1)).await;
        }
        Err("the other client cannot attach".into())
    }

    /// Detaches without faults, after its work; returns the result of the detach.
    pub async fn leave(self) -> Result<Result<(), FsError>, String> {
        if !self.done.get() {
            return Err("the other client is never answered".into());
        }
        let client = self.client.clone();
        let left =
            self.process.call(async move { client.detach(Duration::from_secs(60)).await }).await;
        self.process.kill();
        left.ok_or("the other client has died".into())
    }
}

/// Where it runs.
pub const MACHINE: &str = "b";

/// Above the numbers of mounts.
pub const OTHER_CLIENT: ClientId = ClientId(1000);

const MAX_ATTACHES: u32 = 180;
