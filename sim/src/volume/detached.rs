//! A node on one machine, clients on others. There are two kinds of trouble, since the permitted
//! loss differs. In [`Trouble::Cuts`] the node's machine loses power, and the clients either live
//! on and repeat the lost operations, or all die with it. In [`Trouble::Isolation`] clients die,
//! freeze and are cut off until their sessions expire, and the node's machine keeps its power.

use super::embedded::{Home, Story};
use super::kernel_cache::KernelCache;
use super::plan::{LATE, Plan};
use super::report::{Broken, Report, judge};
use super::rig::{attach_wire, limit_inodes, open_on, serve, walk};
use super::workload::{Known, Worker};
use crate::oracle::{ClientId, Event, History, Identity};
use crate::{FaultPlan, Process, Rate, Rng, World};
use ebb_client::Client;
use ebb_model::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Cuts,
    Isolation,
}

const SERVER: &str = "server";
const PROGRAM: &str = "node";
const DATA: &str = "data0";
const SECOND: Duration = Duration::from_secs(1);

/// Runs the story of a seed.
pub fn run(seed: u64) -> Result<Report, Broken> {
    let rng = Rng::new(seed).split("detached");
    let trouble = [Trouble::Cuts, Trouble::Isolation][rng.index(2)];
    let clients = 1 + rng.below(3) as u32;
    let rounds = 1 + rng.below(6);
    let mut plan = Plan::draw(&rng);
    plan.workers = 1 + rng.below(2);
    plan.pace.operations += 20;
    if trouble == Trouble::Cuts {
        // A session that cannot reattach within its term loses its changes that are not durable:
        // that is the other kind of trouble.
        plan.keep_sessions();
        plan.keep_room();
    }
    let world = World::with_faults(seed, plan.faults);
    let initial = plan.fill(&world.bucket());
    let history = History::new(&world);
    history.add(Event::Served { clock: world.machine(SERVER).wall_record() });
    let scenario = format!("detached, {clients} clients, {rounds} rounds of {trouble:?}, {plan:?}");
    let mut permitted = plan.permitted();
    // The outcome of operations in progress when a session expired stays unknown.
    permitted.io |= trouble == Trouble::Isolation;
    permitted.expiry = trouble == Trouble::Isolation;
    let mut story = Detached {
        world: &world,
        history: history.clone(),
        known: Known::default(),
        losses: rng.split("losses"),
        has_repeated: false,
        plan,
        rng,
        trouble,
        server: world.machine(SERVER).process_on(PROGRAM, DATA),
        clients: vec![],
        begun: 0,
    };
    let ended = world.run(story.tell(clients, rounds));
    judge(&world, seed, scenario, ended, &history.events(), initial, permitted)
}

struct Attached {
    process: Process,
    client: Client,
    id: ClientId,
    machine: String,
    leaving: Rc<Cell<bool>>,
}

struct Detached<'a> {
    world: &'a World,
    history: History,
    known: Known,
    plan: Plan,
    rng: Rng,
    trouble: Trouble,
    server: Process,
    clients: Vec<Attached>,
    begun: u32,
    /// Decides when all clients die together with the power of the node.
    losses: Rng,
    /// The clients have replayed the operations that a power cut reverted, in an order of their
    /// own.
    has_repeated: bool,
}

impl Detached<'_> {
    async fn tell(&mut self, clients: u32, rounds: u64) -> Result<(), String> {
        self.server = self.start().await?;
        if self.plan.inode_limit.is_some() {
            let first = self.connect().await?;
            self.clients.push(first);
            self.limit().await?;
            // Inodes that were not looked at do not count yet.
            self.look().await?;
            self.begin_work(&self.clients[0]);
        }
        while self.clients.len() < clients as usize {
            self.attach().await?;
        }
        for _ in 0..rounds {
            self.world.sleep(self.rng.duration(Duration::ZERO, 3 * SECOND)).await;
            self.supervise().await?;
            self.disturb().await?;
        }
        self.world.sleep(self.rng.duration(Duration::ZERO, 5 * SECOND)).await;
        self.rest().await?;
        self.server.kill();
        for attached in std::mem::take(&mut self.clients) {
            attached.process.kill();
            self.history.add(Event::Gone { client: attached.id });
        }
        self.history.add(Event::Settled);
        let mut plan = self.plan.clone();
        plan.options.embedded = true;
        let home = Home { machine: SERVER.into(), data: DATA.into() };
        let rng = self.rng.split("end");
        Story::new(self.world, self.history.clone(), plan, rng, home).end(Identity::Kept).await
    }

    /// A node whose disk has failed ends by itself, and is started again.
    async fn supervise(&mut self) -> Result<(), String> {
        if !self.server.is_alive() {
            self.history.add(Event::NodeDied { of: "its disk" });
            self.restart().await?;
        }
        Ok(())
    }

    /// Starts the node, however often that takes.
    async fn start(&self) -> Result<Process, String> {
        for attempt in 0..MAX_STARTS {
            let process = self.world.machine(SERVER).process_on(PROGRAM, DATA);
            match open_on(&process, &self.world.bucket(), &self.plan.options, self.plan.medium)
                .await
            {
                Some(Ok(node)) => {
                    serve(&process, SERVER, &node).await;
                    self.history.note("the node serves");
                    return Ok(process);
                }
                Some(Err(error)) => self.history.note(format!("the node does not start: {error}")),
                None => return Err("the node has died".into()),
            }
            process.kill();
            if attempt > STARTS_UNDER_FAULTS {
                self.world.set_faults(FaultPlan::default());
            }
            self.world.sleep(SECOND).await;
        }
        Err("the node does not start".into())
    }

    async fn attach(&mut self) -> Result<(), String> {
        let attached = self.connect().await?;
        self.begin_work(&attached);
        self.clients.push(attached);
        Ok(())
    }

    fn begin_work(&self, attached: &Attached) {
        let rng = self.world.rng(&format!("{} kernel", attached.process.name()));
        let cache = KernelCache::new(&attached.process, &attached.client, rng);
        for worker in 0..self.plan.workers {
            let worker = Worker {
                ask: cache.ask(),
                id: attached.id,
                history: self.history.clone(),
                known: self.known.clone(),
                rng: self.world.rng(&format!("{} worker {worker}", attached.process.name())),
                executor: self.world.executor().clone(),
                pace: self.plan.pace,
                leaving: attached.leaving.clone(),
            };
            attached.process.spawn(worker.work());
        }
    }

    /// Attaches a client that does nothing yet.
    async fn connect(&mut self) -> Result<Attached, String> {
        for _ in 0..MAX_STARTS {
            self.supervise().await?;
            self.begun += 1;
            let machine = format!("client{}", self.begun);
            let process = self.world.machine(&machine).process("mount");
            match attach_wire(&process, SERVER).await {
                Some(Ok(client)) => {
                    let attached = Attached {
                        process,
                        client,
                        id: ClientId(self.begun),
                        machine,
                        leaving: Rc::default(),
                    };
                    self.history.note(format!("client {} begins", self.begun));
                    return Ok(attached);
                }
                Some(Err(error)) => self.history.note(format!("attach: {error}")),
                None => return Err("a client has died".into()),
            }
            process.kill();
            self.world.sleep(SECOND).await;
        }
        Err("no client can attach".into())
    }

    async fn disturb(&mut self) -> Result<(), String> {
        // The order in which several clients repeat their changes is not in the history, so a later
        // power cut could leave a state that the oracle does not know.
        let is_ordered = !self.has_repeated || self.clients.len() == 1;
        if self.trouble == Trouble::Cuts && is_ordered && self.losses.below(5) == 0 {
            return self.lose_all().await;
        }
        let which = self.rng.index(self.clients.len());
        let machine = self.clients[which].machine.clone();
        match (self.rng.below(6), self.trouble) {
            (0, _) => {
                self.history.add(Event::NodeDied { of: "a signal" });
                self.server.kill();
                self.restart().await?;
            }
            (1, _) => {
                self.history.note(format!("connections of {machine} break"));
                self.world.net().reset(SERVER, &machine);
            }
            (2, _) => self.world.machine(&machine).jump_wall(self.rng.below(7200) as i64 - 3600),
            (_, Trouble::Cuts) => {
                self.history.add(Event::NodeDied { of: "a power cut" });
                self.world.machine(SERVER).power_cut();
                self.has_repeated = true;
                self.restart().await?;
            }
            (3, Trouble::Isolation) => {
                let until = self.rng.duration(Duration::ZERO, 20 * SECOND);
                self.history.note(format!("{machine} is cut off for {until:?}"));
                self.world.net().partition(SERVER, &machine);
                self.world.sleep(until).await;
                self.world.net().heal();
            }
            (4, Trouble::Isolation) => {
                self.history.note(format!("{machine} freezes"));
                self.clients[which].process.pause(self.rng.duration(Duration::ZERO, 20 * SECOND));
            }
            (_, Trouble::Isolation) => {
                let attached = self.clients.swap_remove(which);
                attached.process.kill();
                self.history.note(format!("{machine} is killed"));
                self.history.add(Event::Gone { client: attached.id });
                self.attach().await?;
            }
        }
        Ok(())
    }

    /// All clients die, and the node's machine loses power at that moment or a little later: no
    /// client repeats the lost changes. Other clients follow, as many.
    async fn lose_all(&mut self) -> Result<(), String> {
        let lost = std::mem::take(&mut self.clients);
        for attached in &lost {
            self.history.note(format!("{} is killed", attached.machine));
            attached.process.kill();
        }
        let later = [Duration::ZERO, Duration::from_millis(10), 3 * SECOND][self.losses.index(3)];
        self.world.sleep(self.losses.duration(Duration::ZERO, later)).await;
        self.history.add(Event::PowerCut { durable: Duration::ZERO });
        self.world.machine(SERVER).power_cut();
        for attached in &lost {
            self.history.add(Event::Gone { client: attached.id });
        }
        self.history.add(Event::Settled);
        self.restart().await?;
        // Until their sessions end, files without a name that they had open count in quotas.
        self.world.sleep(self.plan.options.session_term + 2 * SECOND).await;
        for _ in 0..lost.len() {
            let attached = self.connect().await?;
            self.clients.push(attached);
        }
        self.look().await?;
        self.has_repeated = false;
        self.clients.iter().for_each(|attached| self.begin_work(attached));
        Ok(())
    }

    /// Sets the quota of the root.
    async fn limit(&mut self) -> Result<(), String> {
        let Some(inodes) = self.plan.inode_limit else { return Ok(()) };
        self.world.set_faults(FaultPlan::default());
        for _ in 0..LOOKS {
            self.supervise().await?;
            let Some(Attached { client, process, .. }) = self.clients.last() else { return Ok(()) };
            let client = client.clone();
            let limiting = process.call(async move { limit_inodes(&client, inodes).await });
            if limiting.await.ok_or("the client has died")?.is_ok() {
                return Ok(());
            }
            self.world.sleep(10 * SECOND).await;
        }
        Err("the quota of the root cannot be set".into())
    }

    /// Looks at the whole tree, in calm and before any client works.
    async fn look(&mut self) -> Result<(), String> {
        self.world.set_faults(FaultPlan::default());
        let mut seen = Err(FsError::Io);
        for _ in 0..LOOKS {
            self.supervise().await?;
            let Some(Attached { client, process, .. }) = self.clients.last() else { return Ok(()) };
            let client = client.clone();
            let walking = process.call(async move { walk(&client).await });
            seen = walking.await.ok_or("the client has died")?;
            if seen.is_ok() {
                break;
            }
            // An outage that had begun goes on for a while.
            self.world.sleep(10 * SECOND).await;
        }
        let seen = seen.map_err(|error| format!("the tree cannot be read: {error}"))?;
        self.known.reset(&seen);
        self.history.add(Event::Seen { tree: Rc::new(seen), inos: Identity::Anew });
        self.world.set_faults(self.plan.faults);
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), String> {
        let slow = self.plan.faults.bucket.slow;
        if slow.rate != Rate::NEVER {
            self.world.sleep(slow.limit).await;
        }
        self.world.sleep(LATE * 2 + self.rng.duration(Duration::ZERO, 2 * SECOND)).await;
        self.server = self.start().await?;
        Ok(())
    }

    /// Without faults every client finishes, and the tree that one of them then sees is the final
    /// one.
    async fn rest(&mut self) -> Result<(), String> {
        self.world.set_faults(FaultPlan::default());
        self.world.net().heal();
        self.supervise().await?;
        self.world.sleep(CALM).await;
        for attached in &self.clients {
            attached.leaving.set(true);
        }
        self.world.sleep(CALM).await;
        let Some(last) = self.clients.last() else { return Ok(()) };
        let client = last.client.clone();
        let seen = last
            .process
            .call(async move { walk(&client).await })
            .await
            .ok_or("the client has died")?;
        let seen = seen.map_err(|error| format!("the tree cannot be read: {error}"))?;
        self.history.add(Event::Seen { tree: Rc::new(seen), inos: Identity::Kept });
        for attached in &self.clients {
            let client = attached.client.clone();
            let left = attached.process.call(async move { client.detach(60 * SECOND).await }).await;
            match left {
                Some(Ok(())) => {}
                Some(Err(FsError::Io)) if self.plan.disk_fails() => {}
                // Operations in progress or files open when a session expired.
                Some(Err(FsError::Io | FsError::Stale)) if self.trouble == Trouble::Isolation => {}
                other => {
                    return Err(format!(
                        "client {} does not leave in good order: {other:?}",
                        attached.id.0
                    ));
                }
            }
        }
        Ok(())
    }
}

const MAX_STARTS: u32 = 180;
const STARTS_UNDER_FAULTS: u32 = 30;
const LOOKS: u32 = 60;

/// Longer than any wait: outages, sessions of dead clients, uploads.
const CALM: Duration = Duration::from_secs(150);
