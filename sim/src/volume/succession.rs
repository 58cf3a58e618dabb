//! Node and client in one process that is killed again and again, with memory that outlives it, and
//! users who do not notice: what they ask is asked again of the next life until it is answered (O-6).
//!
//! To the oracle there is one client that never ends: an operation that was done twice or lost, or a
//! file that is gone while it is open, is an answer that cannot be.

use super::plan::{LATE, Plan};
use super::report::{Broken, Report, judge};
use super::rig::{attach_heir, empty_trash, open_on, walk};
use super::verify::{bucket_holds, empty_trashes};
use super::workload::{Ask, Known, Worker, perform};
use crate::oracle::{ClientId, Event, History, Identity, Op, Outcome};
use crate::{FaultPlan, Process, Rng, SimBucket, World};
use ebb_client::{Client, Estate, Open};
use ebb_model::*;
use ebb_node::{Node, Stopped};
use ebb_ports::Words;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// What the successor is made to forget, to show that the oracle sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amnesia {
    /// Under which id a request asked for its change.
    Requests,
    /// What is open.
    Opens,
}

/// Runs the story of a seed.
pub fn run(seed: u64, amnesia: Option<Amnesia>) -> Result<Report, Broken> {
    let rng = Rng::new(seed).split("succession");
    let mut plan = Plan::draw(&rng);
    plan.options.embedded = true;
    // A disk that fails ends more than a process.
    plan.faults.disk = Default::default();
    let lives = 1 + rng.below(8);
    let life_limit = Duration::from_millis([5, 50, 1000][rng.index(3)]);
    let world = World::with_faults(seed, plan.faults);
    let initial = plan.fill(&world.bucket());
    let history = History::new(&world);
    let scenario = format!("succession, {lives} lives of at most {life_limit:?}, {plan:?}");
    let permitted = plan.permitted();
    let scene = Scene::new(&world, amnesia);
    let ended = world.run(tell(&world, &scene, &history, plan, rng, (lives, life_limit)));
    judge(&world, seed, scenario, ended, &history.events(), initial, permitted)
}

/// A file is made without a name, and the process dies before it has left to anybody that it is open.
/// Gives what the successor says of the file when it is asked for it again.
pub fn nameless(seed: u64) -> Result<Attr, String> {
    const REQUEST: u64 = 7;
    let world = World::with_faults(seed, FaultPlan::default());
    let mut plan = Plan::draw(&Rng::new(seed));
    plan.options.embedded = true;
    let scene = Scene::new(&world, None);
    let found = world.run(async {
        scene.begin(&world, &plan).await?;
        let made = scene.make_nameless(REQUEST).await?;
        scene.kill();
        scene.under_way.borrow_mut().insert(REQUEST);
        scene.begin(&world, &plan).await?;
        let again = scene.make_nameless(REQUEST).await?;
        assert_eq!(again.ino, made.ino, "it is made once");
        let life = scene.life.borrow().clone().ok_or("nobody serves")?;
        let client = life.client.clone();
        let found = life.process.call(async move {
            client.answered(REQUEST);
            client.getattr(made.ino).await
        });
        found.await.ok_or("the process has died")?.map_err(|error| error.to_string())
    });
    found.map_err(|failure| failure.to_string())?
}

/// The memory that outlives processes, as one of them has it.
struct Memory {
    words: Rc<RefCell<Vec<u64>>>,
    /// What a dead process tidies up here nobody sees.
    dead: Cell<bool>,
}

impl Words for Memory {
    fn count(&self) -> usize {
        self.words.borrow().len()
    }

    fn load(&self, at: usize) -> u64 {
        self.words.borrow()[at]
    }

    fn store(&self, at: usize, word: u64) {
        if !self.dead.get() {
            self.words.borrow_mut()[at] = word;
        }
    }
}

/// What the users know, and what outlives the process.
struct Scene {
    bucket: SimBucket,
    memory: Rc<RefCell<Vec<u64>>>,
    amnesia: Option<Amnesia>,
    executor: crate::Executor,
    life: RefCell<Option<Rc<Life>>>,
    lives: Cell<u64>,
    requests: Cell<u64>,
    /// Requests that have no answer.
    under_way: RefCell<BTreeSet<u64>>,
    /// Handles by inode.
    open: RefCell<BTreeMap<Ino, Vec<u64>>>,
}

struct Life {
    number: u64,
    process: Process,
    node: Rc<Node>,
    client: Client,
    estate: Rc<Estate>,
    memory: Rc<Memory>,
}

async fn tell(
    world: &World,
    scene: &Rc<Scene>,
    history: &History,
    mut plan: Plan,
    rng: Rng,
    (lives, life_limit): (u64, Duration),
) -> Result<(), String> {
    scene.begin(world, &plan).await?;
    let known = Known::default();
    let (done, leaving) = (Rc::new(Cell::new(0)), Rc::default());
    for worker in 0..plan.workers {
        let worker = Worker {
            ask: ask(scene),
            id: CLIENT,
            history: history.clone(),
            known: known.clone(),
            rng: world.rng(&format!("worker {worker}")),
            executor: world.executor().clone(),
            pace: plan.pace,
            leaving: Rc::clone(&leaving),
        };
        let done = done.clone();
        // Users live elsewhere, and on.
        world.machine("users").process("user").spawn(async move {
            worker.work().await;
            done.set(done.get() + 1);
        });
    }
    for _ in 0..lives {
        world.sleep(rng.duration(Duration::ZERO, life_limit)).await;
        history.note("the process is killed");
        scene.kill();
        scene.begin(world, &plan).await?;
    }
    let began = world.now();
    while done.get() < plan.workers {
        if world.now() > began + PATIENCE {
            return Err(format!("requests are never answered: {:?}", scene.under_way.borrow()));
        }
        world.sleep(Duration::from_millis(10)).await;
    }
    plan.faults = FaultPlan::default();
    world.set_faults(plan.faults);
    world.sleep(LATE * 2 + Duration::from_secs(60)).await;
    end(scene, history).await
}

/// In calm: what is open is what users have open, everything comes to rest in the bucket, and
/// nothing is held that nobody has open.
async fn end(scene: &Rc<Scene>, history: &History) -> Result<(), String> {
    let life = scene.life.borrow().clone().ok_or("nobody serves")?;
    let mut left: Vec<u64> = life.estate.opens().iter().map(|open| open.handle).collect();
    let mut held: Vec<u64> = scene.open.borrow().values().flatten().copied().collect();
    left.sort_unstable();
    held.sort_unstable();
    if left != held {
        return Err(format!("open is {held:?}, left would be {left:?}"));
    }
    let opens = life.estate.opens();
    let (client, estate) = (life.client.clone(), life.estate.clone());
    let seen = life.process.call(async move {
        for open in opens {
            estate.closed(open.handle);
            client.close(open.ino);
        }
        let seen = walk(&client).await;
        (seen, client.admin(AdminRequest::Fsck).await)
    });
    let (seen, checked) = seen.await.ok_or("the process has died")?;
    let seen = seen.map_err(|error| format!("the tree cannot be read: {error}"))?;
    history.add(Event::Gone { client: CLIENT });
    history.add(Event::Seen { tree: Rc::new(seen.clone()), inos: Identity::Kept });
    match checked {
        Ok(AdminReply::Fsck(report)) if report.problems.is_empty() => {}
        other => return Err(format!("fsck: {other:?}")),
    }
    let (node, client) = (life.node.clone(), life.client.clone());
    let stopped = life.process.call(async move {
        let emptied = empty_trash(&client).await;
        let flushed = emptied.and(client.admin(AdminRequest::Flush { path: vec![] }).await);
        let left = client.detach(Duration::from_secs(30)).await;
        (flushed, left, node.stop(true).await)
    });
    let stopped = stopped.await.ok_or("the process has died")?;
    // Of whatever has no name and nobody has open something would be left.
    if !matches!(stopped, (Ok(_), Ok(()), Ok(Stopped::Released))) {
        return Err(format!("the node does not come to rest: {stopped:?}"));
    }
    let problems = bucket_holds(&scene.bucket, &seen, &empty_trashes(&scene.bucket));
    if problems.is_empty() { Ok(()) } else { Err(format!("the bucket is not what it should be: {}", problems.join("; "))) }
}

impl Scene {
    fn new(world: &World, amnesia: Option<Amnesia>) -> Rc<Scene> {
        Rc::new(Scene {
            bucket: world.bucket(),
            memory: Rc::new(RefCell::new(vec![0; Estate::words_for(OPEN_FILES)])),
            amnesia,
            executor: world.executor().clone(),
            life: RefCell::default(),
            lives: Cell::new(0),
            requests: Cell::new(0),
            under_way: RefCell::default(),
            open: RefCell::default(),
        })
    }

    fn kill(&self) {
        if let Some(life) = self.life.take() {
            life.memory.dead.set(true);
            life.process.kill();
        }
    }

    async fn make_nameless(&self, request: u64) -> Result<Attr, String> {
        let life = self.life.borrow().clone().ok_or("nobody serves")?;
        let client = life.client.on_behalf_of(request);
        let mode = NewMode { mode: 0o600, umask: 0 };
        let made = life.process.call(async move { client.tmpfile(&Caller::ROOT, Ino::ROOT, mode).await });
        made.await.ok_or("the process has died")?.map_err(|error| error.to_string())
    }

    /// Starts a process, however often that takes.
    async fn begin(self: &Rc<Scene>, world: &World, plan: &Plan) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..MAX_STARTS {
            let process = world.machine("a").process_on("ebb", "data");
            let memory = Rc::new(Memory { words: self.memory.clone(), dead: Cell::new(false) });
            let estate = Rc::new(Estate::take(memory.clone()).map_err(|error| error.to_string())?);
            if self.amnesia == Some(Amnesia::Opens) {
                for open in estate.opens() {
                    estate.closed(open.handle);
                }
            }
            let options = ebb_node::Options { heir_of: estate.session(), ..plan.options.clone() };
            let node = match open_on(&process, &self.bucket, &options, plan.medium).await {
                Some(Ok(node)) => node,
                other => {
                    last = format!("{:?}", other.map(|node| node.err()));
                    process.kill();
                    world.sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let client = attach_heir(&process, &node, estate.clone()).await.ok_or("the process has died")?;
            let client = client.map_err(|error| error.to_string())?;
            let (again, all) = (self.under_way.borrow().clone(), client.clone());
            process.call(async move { all.all_came(&again) }).await;
            self.lives.set(self.lives.get() + 1);
            *self.life.borrow_mut() = Some(Rc::new(Life { number: self.lives.get(), process, node, client, estate, memory }));
            return Ok(());
        }
        Err(format!("the node does not start: {last}"))
    }

    /// Asks until there is an answer.
    async fn request(&self, op: Op) -> Outcome {
        let number = self.next_request();
        let handle = match &op {
            Op::Close { ino } => match self.open.borrow_mut().get_mut(ino).and_then(Vec::pop) {
                Some(handle) => Some(handle),
                None => return Outcome::Done,
            },
            _ => None,
        };
        self.under_way.borrow_mut().insert(number);
        let (mut asked_of, mut as_number) = (0, number);
        loop {
            let life = self.life_after(asked_of).await;
            if asked_of > 0 && self.amnesia == Some(Amnesia::Requests) {
                as_number = self.next_request();
            }
            asked_of = life.number;
            let (sender, answer) = oneshot::channel();
            let (serving, op) = (life.clone(), op.clone());
            let lag = Duration::from_micros(self.requests.get() % 3 * 50);
            life.process.spawn(async move {
                let answer = serving.serve(as_number, handle, op, lag).await;
                // Who has died meanwhile does not care.
                drop(sender.send(answer));
                serving.lag(lag).await;
                serving.client.answered(as_number);
            });
            drop(life);
            if let Ok((outcome, opened)) = answer.await {
                self.under_way.borrow_mut().remove(&number);
                if let Some((ino, handle)) = opened {
                    self.open.borrow_mut().entry(ino).or_default().push(handle);
                }
                return outcome;
            }
        }
    }

    fn next_request(&self) -> u64 {
        self.requests.set(self.requests.get() + 1);
        self.requests.get()
    }

    async fn life_after(&self, number: u64) -> Rc<Life> {
        loop {
            if let Some(life) = self.life.borrow().as_ref().filter(|life| life.number > number) {
                return life.clone();
            }
            self.executor.sleep(self.executor.world(), Duration::from_millis(1)).await;
        }
    }
}

impl Life {
    /// As a mount does it. Gives with the answer what is open by it.
    async fn serve(&self, number: u64, handle: Option<u64>, op: Op, lag: Duration) -> (Outcome, Option<(Ino, u64)>) {
        if let Some(handle) = handle {
            if let Some(open) = self.estate.closed(handle) {
                self.client.close(open.ino);
            }
            return (Outcome::Done, None);
        }
        let outcome = perform(&self.client.on_behalf_of(number), op.clone()).await;
        let ino = match (&op, &outcome) {
            (Op::Open { ino }, Outcome::Done) => *ino,
            (Op::Mutate(mutation), Outcome::Attr(attr)) if mutation.opens() => attr.ino,
            _ => return (outcome, None),
        };
        // It may die once it is open and before that is left to anybody.
        self.lag(lag).await;
        let handle = self.number << 32 | number;
        let before = self.estate.opened_before(number);
        assert!(self.estate.opened(Open { request: number, ino, handle, detail: 0 }), "few files are open");
        if let Some(before) = before {
            self.client.close(before.ino);
        }
        (outcome, Some((ino, handle)))
    }

    /// Time in which the process may be killed.
    async fn lag(&self, lag: Duration) {
        if lag > Duration::ZERO {
            self.process.ports.clock.sleep(lag).await;
        }
    }
}

fn ask(scene: &Rc<Scene>) -> Ask {
    let scene = scene.clone();
    Box::new(move |op| {
        let scene = scene.clone();
        Box::pin(async move { scene.request(op).await })
    })
}

const CLIENT: ClientId = ClientId(1);

const OPEN_FILES: usize = 1000;

const MAX_STARTS: usize = 200;

/// Longer than any outage of the bucket.
const PATIENCE: Duration = Duration::from_secs(1200);
