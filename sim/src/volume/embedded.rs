//! Node and client in one process: process kills, power cuts and clean stops at any
//! moment, on one data directory or, after a clean stop, on an empty one elsewhere.

use super::outsiders::Outsiders;
use super::plan::{LATE, Plan};
use super::report::{Broken, Report, judge};
use super::rig::{
    Medium, OTHERS, attach_embedded, empty_trash, fsck, limit_inodes, open_on, read_trash, walk,
};
use super::verify::{bucket_holds, differences, empty_trashes};
use super::workload::{Known, Warmer, Worker, ask};
use crate::oracle::{ClientId, Event, History, Identity, SeenTree};
use crate::{FaultPlan, Process, Rate, Rng, SimBucket, World};
use ebb_client::Client;
use ebb_journal::LogError;
use ebb_model::*;
use ebb_node::{Node, OpenError, Stopped};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Runs the story of a seed.
pub fn run(seed: u64) -> Result<Report, Broken> {
    let rng = Rng::new(seed).split("embedded");
    let mut plan = Plan::draw(&rng);
    plan.options.embedded = true;
    let lives = 1 + rng.below(5);
    let life_limit = Duration::from_millis([50, 1000, 10_000][rng.index(3)]);
    let world = World::with_faults(seed, plan.faults);
    let initial = plan.fill(&world.bucket());
    let history = History::new(&world);
    let scenario = format!("embedded, {lives} lives of at most {life_limit:?}, {plan:?}");
    let permitted = plan.permitted();
    let mut story = Story::new(
        &world,
        history.clone(),
        plan,
        rng,
        Home { machine: "a".into(), data: "data0".into() },
    );
    let ended = world.run(story.tell(lives, life_limit));
    judge(&world, seed, scenario, ended, &history.events(), initial, permitted)
}

/// Where the volume is served.
pub struct Home {
    pub machine: String,
    pub data: String,
}

pub struct Story<'a> {
    world: &'a World,
    bucket: SimBucket,
    history: History,
    known: Known,
    plan: Plan,
    rng: Rng,
    /// Decides which lives of a volume with a large directory begin with a look.
    looks: Rng,
    outsiders: Option<Outsiders>,
    clients: u32,
    home: Home,
    /// Operations that were answered before this moment survive a power cut.
    durable: Duration,
}

struct Life {
    /// When its node was ready.
    began: Duration,
    process: Process,
    node: Rc<Node>,
    client: Client,
    id: ClientId,
    leaving: Rc<Cell<bool>>,
}

impl Story<'_> {
    pub fn new(world: &World, history: History, plan: Plan, rng: Rng, home: Home) -> Story<'_> {
        Story {
            world,
            bucket: world.bucket(),
            history,
            known: Known::default(),
            looks: rng.split("looks"),
            outsiders: None,
            plan,
            rng,
            clients: FIRST_CLIENT,
            home,
            durable: Duration::ZERO,
        }
    }

    async fn tell(&mut self, lives: u64, life_limit: Duration) -> Result<(), String> {
        self.outsiders = Outsiders::begin(self.world, &self.plan, &self.rng);
        let mut inos = Identity::Kept;
        for number in 0..lives {
            let life = self.begin().await?;
            if number == 0 {
                self.limit(&life).await?;
            }
            // A look loads every directory. Without one, the large directory stays loaded in part.
            let is_partly_loaded = self.plan.pace.numbered > 0 && inos == Identity::Kept;
            if !is_partly_loaded || self.looks.below(2) == 0 {
                self.look(&life, inos).await?;
            }
            inos = self.live(life, life_limit).await?;
        }
        self.end(inos).await
    }

    /// Starts a node and its client, however often that takes.
    async fn begin(&mut self) -> Result<Life, String> {
        let machine = self.world.machine(&self.home.machine);
        self.history.add(Event::Served { clock: machine.wall_record() });
        for attempt in 0.. {
            let process = self.world.machine(&self.home.machine).process_on("ebb", &self.home.data);
            match open_on(&process, &self.bucket, &self.plan.options, self.plan.medium).await {
                Some(Ok(node)) => {
                    let began = self.world.now();
                    let client = match attach_embedded(&process, &node).await {
                        Some(Ok(client)) => client,
                        Some(Err(error)) if !self.disk_may_refuse() || attempt > MAX_STARTS => {
                            return Err(format!("attach: {error}"));
                        }
                        _ => {
                            process.kill();
                            continue;
                        }
                    };
                    self.clients += 1;
                    self.history.note(format!("client {} begins", self.clients));
                    return Ok(Life {
                        began,
                        process,
                        node,
                        client,
                        id: ClientId(self.clients),
                        leaving: Rc::default(),
                    });
                }
                Some(Err(error)) if is_damage(&error) || attempt > MAX_STARTS => {
                    return Err(format!("the node does not start: {error}"));
                }
                Some(Err(error)) => self.history.note(format!("the node does not start: {error}")),
                None => return Err("the process has died".into()),
            }
            process.kill();
            if attempt > STARTS_UNDER_FAULTS {
                self.world.set_faults(FaultPlan::default());
            }
            self.world.sleep(Duration::from_secs(2)).await;
        }
        unreachable!("the last attempt returns")
    }

    /// The node's disk fails or is full at times.
    fn disk_may_refuse(&self) -> bool {
        let permitted = self.plan.permitted();
        permitted.io || permitted.room
    }

    /// Looks at the whole tree, in calm.
    async fn look(&mut self, life: &Life, inos: Identity) -> Result<SeenTree, String> {
        self.world.set_faults(FaultPlan::default());
        let client = life.client.clone();
        let mut seen = Err(FsError::Io);
        for _ in 0..LOOKS {
            let client = client.clone();
            seen = life
                .process
                .call(async move { walk(&client).await })
                .await
                .ok_or("the process has died")?;
            if seen.is_ok() {
                break;
            }
            // An outage that had begun goes on for a while.
            self.world.sleep(Duration::from_secs(10)).await;
        }
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => {
                let status = life
                    .process
                    .call(async move { client.admin(AdminRequest::Status).await })
                    .await;
                let troubles = match status {
                    Some(Ok(AdminReply::Status(status))) => status.troubles,
                    _ => vec![],
                };
                return Err(format!("the tree cannot be read: {error}; {troubles:?}"));
            }
        };
        self.history.add(Event::Seen { tree: Rc::new(seen.clone()), inos });
        self.known.reset(&seen);
        // A failed sync during the start of the node is reported as long as that node runs.
        let disk = self.plan.faults.disk;
        // To open a file that is encrypted is to read from it.
        let opens_fail = disk.name_error != Rate::NEVER
            || self.plan.medium == Medium::Encrypted && disk.read_error != Rate::NEVER;
        let may_fail = disk.sync_error != Rate::NEVER || opens_fail;
        let is_told =
            |problem: &Problem| may_fail && problem.what.contains("could not be forced to disk");
        let is_told = |problem: &Problem| is_told(problem) || is_outdated_record(problem);
        let mut checked = Err(FsError::Io);
        for _ in 0..LOOKS {
            let client = life.client.clone();
            let checking = async move {
                read_trash(&client).await?;
                fsck(&client).await
            };
            checked = life.process.call(checking).await.ok_or("the process has died")?;
            if checked.is_ok() {
                break;
            }
            self.world.sleep(Duration::from_secs(10)).await;
        }
        match checked {
            Ok(report)
                if report.problems.iter().all(is_told)
                    && report.others.iter().all(|change| is_by_others(change)) => {}
            other => return Err(format!("fsck: {other:?}")),
        }
        self.world.set_faults(self.plan.faults);
        Ok(seen)
    }

    /// Without faults and after the last outside change, the client sees the objects of other
    /// programs.
    async fn look_at_others(&self, life: &Life) -> Result<(), String> {
        let Some(outsiders) = self.outsiders.clone() else { return Ok(()) };
        let looking = outsiders.look(life.client.clone());
        let problems = life.process.call(looking).await.ok_or("the process has died")?;
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// Lets clients work until something ends it.
    async fn live(&mut self, life: Life, limit: Duration) -> Result<Identity, String> {
        for worker in 0..self.plan.workers {
            let worker = Worker {
                ask: ask(&life.client),
                id: life.id,
                history: self.history.clone(),
                known: self.known.clone(),
                rng: self.world.rng(&format!("{} worker {worker}", life.process.name())),
                executor: self.world.executor().clone(),
                pace: self.plan.pace,
                leaving: life.leaving.clone(),
            };
            life.process.spawn(worker.work());
        }
        if let Some(outsiders) = &self.outsiders {
            let rng = self.world.rng(&format!("{} reader", life.process.name()));
            let (client, leaving) = (life.client.clone(), life.leaving.clone());
            life.process.spawn(outsiders.clone().read(client, rng, leaving));
        }
        let rng = self.world.rng(&format!("{} warmer", life.process.name()));
        if rng.below(3) == 0 {
            let (client, known, executor) =
                (life.client.clone(), self.known.clone(), self.world.executor().clone());
            life.process.spawn(
                Warmer { client, known, rng, executor, leaving: life.leaving.clone() }.work(),
            );
        }
        self.world.sleep(self.rng.duration(Duration::ZERO, limit)).await;
        if self.rng.below(3) == 0 {
            let path = vec![];
            let request = if self.rng.below(2) == 0 {
                AdminRequest::Evict { path, from: (Ino(0), 0), limit_bytes: u64::MAX }
            } else {
                AdminRequest::Flush { path }
            };
            let client = life.client.clone();
            life.process.spawn(async move { drop(client.admin(request).await) });
            self.world.sleep(self.rng.duration(Duration::ZERO, limit)).await;
        }
        self.note_durable(&life);
        let mut identity = Identity::Kept;
        match self.rng.below(5) {
            0 | 1 => {
                life.process.kill();
                self.history.note("killed");
            }
            2 | 3 => {
                self.history.add(Event::PowerCut { durable: self.durable });
                self.world.machine(&self.home.machine).power_cut();
                identity = Identity::Anew;
            }
            _ => return self.stop(life).await,
        }
        self.history.add(Event::Gone { client: life.id });
        self.history.add(Event::Settled);
        // Requests that are still on their way to the bucket arrive.
        let slow = self.plan.faults.bucket.slow;
        if slow.rate != Rate::NEVER {
            self.world.sleep(slow.limit).await;
        }
        self.world.sleep(LATE * 2).await;
        Ok(identity)
    }

    /// The node forces all operations once per commit interval (S-3), not counting the time in
    /// which its disk is busy. Nothing is promised on a disk that fails.
    fn note_durable(&mut self, life: &Life) {
        if self.plan.disk_fails() {
            return;
        }
        let disk = self.world.machine(&self.home.machine).disk(&self.home.data);
        let interval = self.plan.options.commit_interval + INTERVAL_SLACK;
        if let Some(durable) = disk.idle_for(interval, life.began) {
            self.durable = self.durable.max(durable);
        }
    }

    /// Sets the quota of the root.
    async fn limit(&mut self, life: &Life) -> Result<(), String> {
        let Some(inodes) = self.plan.inode_limit else { return Ok(()) };
        self.world.set_faults(FaultPlan::default());
        for _ in 0..LOOKS {
            let client = life.client.clone();
            let limiting = async move { limit_inodes(&client, inodes).await };
            if life.process.call(limiting).await.ok_or("the process has died")?.is_ok() {
                self.world.set_faults(self.plan.faults);
                return Ok(());
            }
            self.world.sleep(Duration::from_secs(10)).await;
        }
        Err("the quota of the root cannot be set".into())
    }

    /// Stops in good order. Where the volume was given back, it goes on elsewhere.
    async fn stop(&mut self, life: Life) -> Result<Identity, String> {
        let flush = self.rng.below(3) != 0;
        life.leaving.set(true);
        let (node, client) = (life.node.clone(), life.client.clone());
        let stopped = life
            .process
            .call(async move {
                let left = client.detach(Duration::from_secs(30)).await;
                (left, node.stop(flush).await)
            })
            .await;
        life.process.kill();
        self.history.note(format!("stopped: {stopped:?}"));
        self.history.add(Event::Gone { client: life.id });
        self.history.add(Event::Settled);
        if let Some((_, Ok(Stopped::Released))) = stopped
            && self.rng.below(2) == 0
        {
            let next = self.clients;
            self.home =
                Home { machine: ["a", "b"][self.rng.index(2)].into(), data: format!("data{next}") };
            self.bucket.list_all_so_far();
            self.history.note("goes on with an empty data directory");
            return Ok(Identity::Anew);
        }
        Ok(Identity::Kept)
    }

    /// In calm everything comes to rest in the bucket, and the bucket alone gives it back.
    pub async fn end(&mut self, inos: Identity) -> Result<(), String> {
        self.plan.faults = FaultPlan::default();
        self.world.set_faults(self.plan.faults);
        self.world.net().heal();
        if let Some(outsiders) = &self.outsiders {
            outsiders.stop();
        }
        self.world.sleep(QUIET).await;
        let life = self.begin().await?;
        let before = self.look(&life, inos).await?;
        self.look_at_others(&life).await?;
        let (node, client) = (life.node.clone(), life.client.clone());
        let stopped = life.process.call(async move {
            let emptied = empty_trash(&client).await;
            let flushed = emptied.and(client.admin(AdminRequest::Flush { path: vec![] }).await);
            let checked = fsck(&client).await;
            let left = client.detach(Duration::from_secs(30)).await;
            (flushed, checked, left, node.stop(true).await)
        });
        let stopped = stopped.await.ok_or("the process has died")?;
        self.history.note(format!("the end: {stopped:?}"));
        let is_clean = |report: &FsckReport| {
            report.problems.iter().all(is_outdated_record)
                && report.others.iter().all(|change| is_by_others(change))
                && report.waiting + report.undecided == 0
        };
        if !matches!(&stopped, (Ok(_), Ok(report), Ok(()), Ok(Stopped::Released)) if is_clean(report))
        {
            return Err(format!("the node does not come to rest: {stopped:?}"));
        }
        life.process.kill();
        self.history.add(Event::Gone { client: life.id });
        let mut others = empty_trashes(&self.bucket);
        others.extend(self.outsiders.iter().flat_map(Outsiders::objects));
        let problems = bucket_holds(&self.bucket, &before, &others);
        if !problems.is_empty() {
            return Err(format!("the bucket is not what it should be: {}", problems.join("; ")));
        }
        self.home = Home { machine: "z".into(), data: "empty".into() };
        let life = self.begin().await?;
        let after = self.look(&life, Identity::Anew).await?;
        self.look_at_others(&life).await?;
        let problems = differences(&self.bucket, &before, &after);
        if !problems.is_empty() {
            return Err(format!(
                "the bucket alone does not give the tree back: {}",
                problems.join("; ")
            ));
        }
        Ok(())
    }
}

/// After a power cut the root's page can have another record of the directory that other programs
/// change. Nothing is lost, and the check names the page with its remedy; the cause is not known.
fn is_outdated_record(problem: &Problem) -> bool {
    problem.what.ends_with("differs in others")
}

/// A change in the directory that other programs change.
fn is_by_others(change: &str) -> bool {
    change.contains(&format!("{OTHERS}/"))
}

/// Nothing but a failing or full disk excuses these.
fn is_damage(error: &OpenError) -> bool {
    !matches!(
        error,
        OpenError::Disk(_)
            | OpenError::Head(_)
            | OpenError::Request(_)
            | OpenError::Identity(_)
            | OpenError::Log(LogError::Disk(_) | LogError::NoSpace)
    )
}

/// For clocks that are slow and timers that are late.
const INTERVAL_SLACK: Duration = Duration::from_millis(50);

const MAX_STARTS: u32 = 80;
const STARTS_UNDER_FAULTS: u32 = 30;
const LOOKS: u32 = 60;

/// Above the numbers of clients that came before.
const FIRST_CLIENT: u32 = 1000;

/// Longer than any outage or late change that was still to come.
const QUIET: Duration = Duration::from_secs(300);
