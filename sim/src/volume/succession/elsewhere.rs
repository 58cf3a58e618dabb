//! Succession with the node on another machine, and a second client of it on the same tree, which
//! has no handover memory. The permitted loss depends on the fault.

use super::other::{MACHINE as OTHER, OTHER_CLIENT, Other};
use super::scene::{MACHINE as MOUNT, Place, SERVER, Scene, Unserved};
use super::users::Users;
use super::{Amnesia, Errors, end};
use crate::oracle::{ClientId, Event, History, Identity, Position};
use crate::volume::plan::{LATE, Plan};
use crate::volume::report::{Broken, Report, judge};
use crate::volume::rig::{open_on, serve, walk};
use crate::volume::workload::Known;
use crate::{FaultPlan, Process, Rate, Rng, World};
use ebb_model::{FsError, Ino, LockMode, LockOwner, LockRange, RangeLock};
use ebb_node::Node;
use futures_util::future::join;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// Processes of the mount die and connections break. Expectation: no application notices.
    Mount,
    /// The node's process dies as well, and its machine loses power, but only while all clients
    /// live that can replay the loss. The next process of the mount may find that it cannot take
    /// over.
    Node,
    /// The node's machine loses power at any moment. Only one mount exists: with several clients
    /// the oracle could not tell which client's acknowledged changes may be lost.
    Cuts,
    /// The mount is cut off, and freezes, until its session expires.
    Isolation,
}

/// Outcomes of the mounts of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fates {
    /// Processes that took over.
    pub taken_over: usize,
    /// Mounts that ended because no process could take over.
    pub lost: usize,
}

/// Runs the story of a seed.
pub fn run(seed: u64, amnesia: Option<Amnesia>) -> Result<(Report, Fates), Broken> {
    let rng = Rng::new(seed).split("succession elsewhere");
    let trouble = [Trouble::Mount, Trouble::Node, Trouble::Cuts, Trouble::Isolation][rng.index(4)];
    // Only a power cut loses acknowledged changes.
    let trouble = if amnesia == Some(Amnesia::Undurable) { Trouble::Cuts } else { trouble };
    let rounds = 2 + rng.below(7);
    let pause_limit = Duration::from_millis([20, 200, 2000][rng.index(3)]);
    let mut plan = Plan::draw(&rng);
    plan.workers = 1 + rng.below(2);
    plan.inode_limit = None;
    // A failing disk also loses acknowledged changes, which other scenarios cover.
    let slow = plan.faults.disk.slow;
    plan.faults.disk = Default::default();
    plan.faults.disk.slow = slow;
    if trouble != Trouble::Isolation {
        plan.keep_sessions();
    }
    let world = World::with_faults(seed, plan.faults);
    let initial = plan.fill(&world.bucket());
    let history = History::new(&world);
    history.add(Event::Served { clock: world.machine(SERVER).wall_record() });
    let scenario = format!("succession elsewhere, {rounds} rounds of {trouble:?}, {plan:?}");
    let mut permitted = plan.permitted();
    permitted.io |= trouble == Trouble::Isolation;
    permitted.expiry = trouble == Trouble::Isolation;
    let mut story = Story {
        world: &world,
        history: history.clone(),
        known: Known::default(),
        plan,
        rng,
        trouble,
        amnesia,
        node: None,
        mount: None,
        mounts: 0,
        other: None,
        harm: Cell::new(Harm::None),
        fates: Fates::default(),
    };
    let ended = world.run(story.tell(rounds, pause_limit));
    let fates = story.fates;
    judge(&world, seed, scenario, ended, &history.events(), initial, permitted)
        .map(|report| (report, fates))
}

/// The node's failure since the mount last replayed everything to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Harm {
    None,
    /// It restarted with every acknowledged change.
    Killed,
    /// It may have lost acknowledged changes.
    Cut,
}

struct Story<'a> {
    world: &'a World,
    history: History,
    known: Known,
    plan: Plan,
    rng: Rng,
    trouble: Trouble,
    amnesia: Option<Amnesia>,
    node: Option<(Process, Rc<Node>)>,
    mount: Option<(Rc<Scene>, Users)>,
    mounts: u32,
    other: Option<Other>,
    harm: Cell<Harm>,
    fates: Fates,
}

impl Story<'_> {
    async fn tell(&mut self, rounds: u64, pause_limit: Duration) -> Result<(), String> {
        self.node = Some(self.start().await?);
        let comes = self.rng.below(rounds);
        let scene = self.begin_mount().await?;
        self.begin_users(scene);
        for round in 0..rounds {
            self.world.sleep(self.rng.duration(Duration::ZERO, pause_limit)).await;
            match round == comes && self.trouble != Trouble::Cuts {
                // It waits for the next process of the mount.
                true => self.succeed(Meanwhile::OtherComes).await?,
                false => self.disturb().await?,
            }
        }
        self.rest().await
    }

    /// Starts the node, however often that takes.
    async fn start(&self) -> Result<(Process, Rc<Node>), String> {
        let mut last = String::new();
        for _ in 0..MAX_STARTS {
            let process = self.world.machine(SERVER).process_on("node", "data");
            match open_on(&process, &self.world.bucket(), &self.plan.options, self.plan.medium)
                .await
            {
                Some(Ok(node)) => {
                    serve(&process, SERVER, &node).await;
                    self.history.note("the node serves");
                    return Ok((process, node));
                }
                other => last = format!("{:?}", other.map(|node| node.err())),
            }
            process.kill();
            self.world.sleep(SECOND).await;
        }
        Err(format!("the node does not start: {last}"))
    }

    async fn restart(&self) -> Result<(Process, Rc<Node>), String> {
        let slow = self.plan.faults.bucket.slow;
        if slow.rate != Rate::NEVER {
            self.world.sleep(slow.limit).await;
        }
        self.world.sleep(LATE * 2).await;
        self.start().await
    }

    /// Begins a mount that succeeds to nothing.
    async fn begin_mount(&mut self) -> Result<Rc<Scene>, String> {
        self.mounts += 1;
        let client = ClientId(self.mounts);
        let scene =
            Scene::new(self.world, Place::Elsewhere, client, self.plan.clone(), self.amnesia);
        self.history.note(format!("client {} begins", client.0));
        scene.begin(self.world).await?;
        self.harm.set(Harm::None);
        Ok(scene)
    }

    fn begin_users(&mut self, scene: Rc<Scene>) {
        let users = Users::begin(self.world, &scene, &self.history, &self.known, &self.plan);
        self.mount = Some((scene, users));
    }

    fn scene(&self) -> Result<Rc<Scene>, String> {
        self.mount.as_ref().map(|(scene, _)| scene.clone()).ok_or("there is no mount".into())
    }

    async fn disturb(&mut self) -> Result<(), String> {
        match (self.rng.below(8), self.trouble) {
            (0, _) => {
                self.history.note("connections break");
                self.world.net().reset(SERVER, MOUNT);
                self.world.net().reset(SERVER, OTHER);
            }
            (1, _) => self.world.machine(MOUNT).jump_wall(self.rng.below(7200) as i64 - 3600),
            (2 | 3, Trouble::Node) => {
                self.down(Harm::Killed);
                self.node = Some(self.restart().await?);
                self.perhaps_settle().await?;
            }
            (4, Trouble::Node) => {
                self.settle().await?;
                // Nobody can repeat what a lost mount has written.
                if self.fates.lost > 0 {
                    self.force().await?;
                }
                self.down(Harm::Cut);
                self.node = Some(self.restart().await?);
                self.settle().await?;
            }
            (5, Trouble::Node) => self.succeed(self.node_dies(Harm::Killed)).await?,
            (2 | 3, Trouble::Cuts) => {
                self.down(Harm::Cut);
                self.node = Some(self.restart().await?);
                self.perhaps_settle().await?;
            }
            (4 | 5, Trouble::Cuts) => self.succeed(self.node_dies(Harm::Cut)).await?,
            (2 | 3, Trouble::Isolation) => {
                let until = self.rng.duration(Duration::ZERO, 20 * SECOND);
                self.history.note(format!("the mount is cut off for {until:?}"));
                self.world.net().partition(SERVER, MOUNT);
                self.world.sleep(until).await;
                self.world.net().heal();
            }
            (4, Trouble::Isolation) => {
                self.history.note("the mount freezes");
                self.scene()?.life()?.process.pause(self.rng.duration(Duration::ZERO, 20 * SECOND));
            }
            (5, Trouble::Isolation) => self.succeed(Meanwhile::CutOff).await?,
            _ => self.succeed(Meanwhile::Nothing).await?,
        }
        Ok(())
    }

    /// The process of the mount dies, and another takes over.
    async fn succeed(&mut self, meanwhile: Meanwhile) -> Result<(), String> {
        let scene = self.scene()?;
        self.history.note("the process of the mount is killed");
        let killed = self.history.position();
        scene.kill();
        self.world.sleep(self.rng.duration(Duration::ZERO, ABSENCE)).await;
        let began = match meanwhile {
            Meanwhile::Nothing => scene.begin(self.world).await,
            Meanwhile::OtherComes => {
                let (began, other) = join(
                    scene.begin(self.world),
                    Other::attach(self.world, &self.history, &self.known, &self.plan),
                )
                .await;
                self.other = Some(other?);
                began
            }
            Meanwhile::NodeDies(harm, after) => {
                let dies = async {
                    self.world.sleep(after).await;
                    self.down(harm);
                    self.restart().await
                };
                let (node, began) = join(dies, scene.begin(self.world)).await;
                self.node = Some(node?);
                began
            }
            Meanwhile::CutOff => {
                let until = self.rng.duration(Duration::ZERO, 20 * SECOND);
                self.history.note(format!("the mount is cut off for {until:?}"));
                self.world.net().partition(SERVER, MOUNT);
                let heals = async {
                    self.world.sleep(until).await;
                    self.world.net().heal();
                };
                join(scene.begin(self.world), heals).await.0
            }
        };
        match began {
            Ok(()) => {
                self.history.note("another process has taken over");
                self.fates.taken_over += 1;
                // A process that took over before the node died has yet to replay everything.
                if !matches!(meanwhile, Meanwhile::NodeDies(_, after) if after > Duration::ZERO) {
                    self.harm.set(Harm::None);
                }
                Ok(())
            }
            Err(Unserved::Lost(why))
                if self.harm.get() > Harm::None || self.trouble == Trouble::Isolation =>
            {
                self.lost(why, killed).await
            }
            Err(unserved) => Err(unserved.into()),
        }
    }

    /// The mount has ended; each of its unanswered requests has happened or not. Another mount
    /// begins. The session ends a moment before any client notices, and no request was answered
    /// after `killed`.
    async fn lost(&mut self, why: &str, killed: Position) -> Result<(), String> {
        let Some((scene, users)) = self.mount.take() else {
            return Err("there is no mount".into());
        };
        users.kill();
        self.history.note(format!("client {} cannot be succeeded: {why}", scene.client.0));
        let harm = self.harm.get();
        let gone = Event::Gone { client: scene.client };
        match harm {
            Harm::Cut => {
                self.history.add(Event::PowerCut { durable: Duration::ZERO });
                self.history.add(gone);
            }
            Harm::None | Harm::Killed => self.history.add_at(killed, gone),
        }
        self.fates.lost += 1;
        let scene = self.begin_mount().await?;
        if harm == Harm::Cut {
            self.history.add(Event::Settled);
            self.look(&scene).await?;
        }
        self.begin_users(scene);
        Ok(())
    }

    /// Inspects the state after a power cut, without faults.
    async fn look(&self, scene: &Scene) -> Result<(), String> {
        self.world.set_faults(FaultPlan::default());
        let life = scene.life()?;
        let client = life.client.clone();
        let seen = life
            .process
            .call(async move { walk(&client).await })
            .await
            .ok_or("the process has died")?;
        let seen = seen.map_err(|error| format!("the tree cannot be read: {error}"))?;
        self.known.reset(&seen);
        self.history.add(Event::Seen { tree: Rc::new(seen), inos: Identity::Anew });
        self.world.set_faults(self.plan.faults);
        Ok(())
    }

    fn node_dies(&self, harm: Harm) -> Meanwhile {
        let while_it_is_asked = self.rng.duration(Duration::ZERO, ATTACH);
        Meanwhile::NodeDies(harm, [Duration::ZERO, while_it_is_asked][self.rng.index(2)])
    }

    fn down(&self, harm: Harm) {
        let Some((process, _)) = &self.node else { return };
        match harm {
            Harm::Cut => {
                self.history.add(Event::NodeDied { of: "a power cut" });
                self.world.machine(SERVER).power_cut();
            }
            Harm::Killed | Harm::None => {
                self.history.add(Event::NodeDied { of: "a signal" });
                process.kill();
            }
        }
        self.harm.set(self.harm.get().max(harm));
    }

    /// In half of the cases the mount has time to repeat everything.
    async fn perhaps_settle(&mut self) -> Result<(), String> {
        if self.rng.below(2) == 0 { self.settle().await } else { Ok(()) }
    }

    /// Waits until the mount has replayed everything to the current node: before that, no client
    /// gets an answer about locks.
    async fn settle(&mut self) -> Result<(), String> {
        let life = self.scene()?.life()?;
        let client = life.client.clone();
        let whole = RangeLock { range: LockRange::WHOLE, mode: LockMode::Shared };
        let asked = life
            .process
            .call(async move { client.test_lock(Ino::ROOT, LockOwner::Fcntl(1), whole).await });
        asked
            .await
            .ok_or("the process has died")?
            .map_err(|error| format!("nobody can be asked for locks: {error}"))?;
        self.harm.set(Harm::None);
        Ok(())
    }

    /// Forces everything that was answered so far.
    async fn force(&self) -> Result<(), String> {
        let life = self.scene()?.life()?;
        let client = life.client.clone();
        let forced = life.process.call(async move { client.sync_fs().await });
        forced
            .await
            .ok_or("the process has died")?
            .map_err(|error| format!("nothing can be forced: {error}"))
    }

    /// Without faults, every process completes its work.
    async fn rest(&mut self) -> Result<(), String> {
        if let Some((_, users)) = &self.mount {
            users.finish(self.world).await?;
        }
        self.world.set_faults(FaultPlan::default());
        self.world.net().heal();
        self.world.sleep(CALM).await;
        if let Some(other) = self.other.take() {
            match other.leave().await? {
                Ok(()) => {}
                Err(FsError::Io | FsError::Stale) if self.trouble == Trouble::Isolation => {}
                Err(error) => {
                    return Err(format!("the other client does not leave in good order: {error}"));
                }
            }
            self.history.add(Event::Gone { client: OTHER_CLIENT });
        }
        let (Some((scene, _)), Some((process, node))) = (&self.mount, &self.node) else {
            return Err("nothing is left".into());
        };
        let errors = if self.trouble == Trouble::Isolation { Errors::Ended } else { Errors::None };
        end(self.world, scene, &self.history, (process, node), errors).await
    }
}

/// Events while no daemon serves the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    Nothing,
    OtherComes,
    /// After this time.
    NodeDies(Harm, Duration),
    CutOff,
}

const SECOND: Duration = Duration::from_secs(1);

/// Maximum time without a daemon after a death: much less than a session term.
const ABSENCE: Duration = Duration::from_secs(2);

/// In which a process takes over, as a rule.
const ATTACH: Duration = Duration::from_millis(20);

const MAX_STARTS: u32 = 180;

/// Longer than every timeout: outages, sessions of dead clients, uploads.
const CALM: Duration = Duration::from_secs(200);
