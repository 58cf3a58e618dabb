//! A volume on three or five machines, and clients on others. Nodes are killed, cut off, paused and
//! lose power, a minority at a time; what was answered is there all the same.

use super::cluster::Cluster;
use super::kernel_cache::KernelCache;
use super::plan::Plan;
use super::report::{Broken, Report, judge};
use super::rig::walk;
use super::workload::{Known, Worker};
use crate::oracle::{ClientId, Event, History, Identity, Permitted};
use crate::{BucketFaults, DiskFaults, FaultPlan, Process, Rng, World};
use ebb_client::Client;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A node is away for no longer than this: others wait so long for its bytes.
const AWAY: Duration = Duration::from_secs(4);

/// Longer than any wait: sessions of dead clients, elections, uploads.
const CALM: Duration = Duration::from_secs(60);

/// A client that finds no leader tries again so often.
const ATTEMPTS: u32 = 20;

/// Runs the story of a seed.
pub fn run(seed: u64, machines: usize) -> Result<Report, Broken> {
    let rng = Rng::new(seed).split("replicated");
    let clients = 1 + rng.below(3) as u32;
    let rounds = 1 + rng.below(8);
    let mut plan = Plan::draw(&rng);
    plan.workers = 1 + rng.below(2);
    plan.pace.operations += 20;
    plan.keep_sessions();
    plan.keep_room();
    plan.keep_conditions();
    plan.faults.disk = DiskFaults::default();
    plan.faults.bucket = BucketFaults::default();
    plan.inode_limit = None;
    plan.options.revalidate = None;
    plan.options.ack_durable = false;
    let world = World::with_faults(seed, plan.faults);
    let initial = plan.fill(&world.bucket());
    let history = History::new(&world);
    for at in 0..machines {
        history.add(Event::Served { clock: world.machine(&format!("node{at}")).wall_record() });
    }
    let scenario =
        format!("{machines} nodes, {clients} clients, {rounds} rounds of trouble, {plan:?}");
    let permitted = Permitted { durable_answers: true, ..plan.permitted() };
    let mut story = Story {
        world: &world,
        history: history.clone(),
        known: Known::default(),
        cluster: Cluster::new(&world, machines, machines, plan.options.clone()),
        plan,
        rng,
        clients: vec![],
    };
    let ended = world.run(story.tell(clients, rounds));
    judge(&world, seed, scenario, ended, &history.events(), initial, permitted)
}

struct Attached {
    process: Process,
    client: Client,
    id: ClientId,
    leaving: Rc<Cell<bool>>,
}

struct Story<'a> {
    world: &'a World,
    history: History,
    known: Known,
    cluster: Cluster<'a>,
    plan: Plan,
    rng: Rng,
    clients: Vec<Attached>,
}

impl Story<'_> {
    async fn tell(&mut self, clients: u32, rounds: u64) -> Result<(), String> {
        let machines = self.cluster.servers.len();
        self.cluster.until("all vote", CALM, |cluster| cluster.votes(machines)).await?;
        for id in 1..=clients {
            self.attach(ClientId(id)).await?;
        }
        for _ in 0..rounds {
            let pause = self.rng.duration(Duration::ZERO, 3 * SECOND);
            self.cluster.pass(pause).await;
            self.disturb().await?;
        }
        let pause = self.rng.duration(Duration::ZERO, 5 * SECOND);
        self.cluster.pass(pause).await;
        self.rest().await
    }

    async fn attach(&mut self, id: ClientId) -> Result<(), String> {
        let mut attempts = 0;
        let (process, client) = loop {
            let process = self.world.machine(&format!("client{}", id.0)).process("mount");
            match self.cluster.attach(&process).await {
                Some(Ok(client)) => break (process, client),
                Some(Err(error)) if attempts == ATTEMPTS => {
                    return Err(format!("a client cannot attach: {error}"));
                }
                Some(Err(_)) => process.kill(),
                None => return Err("a client has died".into()),
            }
            attempts += 1;
            self.cluster.pass(SECOND).await;
        };
        let attached = Attached { process, client, id, leaving: Rc::default() };
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

    /// One trouble of one node, or of the network.
    async fn disturb(&mut self) -> Result<(), String> {
        let machines = self.cluster.servers.len();
        let leader = self.cluster.leader().filter(|_| self.rng.below(3) > 0);
        let which = leader.unwrap_or_else(|| self.rng.index(machines));
        let machine = self.cluster.servers[which].machine.clone();
        let away = self.rng.duration(Duration::ZERO, AWAY);
        match self.rng.below(7) {
            0 => {
                self.history.add(Event::NodeDied { of: "a signal" });
                self.history.note(format!("{machine} is killed for {away:?}"));
                self.cluster.stop(which);
                self.cluster.pass(away).await;
                self.cluster.resume(which);
            }
            1 => {
                self.history.add(Event::NodeDied { of: "a power cut" });
                self.history.note(format!("{machine} loses power for {away:?}"));
                self.world.machine(&machine).power_cut();
                self.cluster.stop(which);
                self.cluster.pass(away).await;
                self.cluster.resume(which);
            }
            2 => {
                self.history.note(format!("{machine} stands still for {away:?}"));
                self.cluster.servers[which].process.pause(away);
                self.cluster.pass(away).await;
            }
            3 => {
                self.history.note(format!("{machine} is cut off from the others for {away:?}"));
                for other in self.others(which) {
                    self.world.net().partition(&machine, &other);
                }
                self.cluster.pass(away).await;
                self.world.net().heal();
            }
            4 => {
                self.history.note(format!("{machine} reaches no other for {away:?}"));
                for other in self.others(which) {
                    self.world.net().partition_one_way(&machine, &other);
                }
                self.cluster.pass(away).await;
                self.world.net().heal();
            }
            5 => {
                let client = format!("client{}", 1 + self.rng.index(self.clients.len()));
                self.history.note(format!("{client} is cut off from {machine} for {away:?}"));
                self.world.net().partition(&machine, &client);
                self.cluster.pass(away).await;
                self.world.net().heal();
            }
            _ => self.world.machine(&machine).jump_wall(self.rng.below(7200) as i64 - 3600),
        }
        // Others can reach its bytes before the next one is away.
        self.cluster.until("one serves", CALM, |cluster| cluster.leader().is_some()).await
    }

    fn others(&self, than: usize) -> Vec<String> {
        let servers = self.cluster.servers.iter().enumerate();
        let others = servers.filter(|(at, _)| *at != than);
        others.map(|(_, server)| server.machine.clone()).collect()
    }

    /// Without faults every client finishes, all replicas are equal, and the tree that a client
    /// then sees is the final one.
    async fn rest(&mut self) -> Result<(), String> {
        self.world.set_faults(FaultPlan::default());
        self.world.net().heal();
        self.cluster.pass(CALM).await;
        for attached in &self.clients {
            attached.leaving.set(true);
        }
        self.cluster.pass(CALM).await;
        let Some(last) = self.clients.last() else { return Ok(()) };
        let client = last.client.clone();
        let walking = last.process.call(async move { walk(&client).await });
        let seen = walking.await.ok_or("the client has died")?;
        let seen = seen.map_err(|error| format!("the tree cannot be read: {error}"))?;
        self.history.add(Event::Seen { tree: Rc::new(seen), inos: Identity::Kept });
        for attached in &self.clients {
            let client = attached.client.clone();
            let left = attached.process.call(async move { client.detach(CALM).await }).await;
            if !matches!(left, Some(Ok(()))) {
                let id = attached.id.0;
                return Err(format!("client {id} does not leave in good order: {left:?}"));
            }
        }
        self.cluster.until("all agree", CALM, |cluster| cluster.agrees()).await
    }
}
