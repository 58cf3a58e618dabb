//! A process with successors, and the expectations of its users.

use super::Amnesia;
use super::memory::Memory;
use crate::oracle::{ClientId, Op, Outcome};
use crate::volume::plan::Plan;
use crate::volume::rig::{attach_resumed, local_link, open_on, wire_link};
use crate::volume::workload::perform;
use crate::{Executor, Process, Rng, SimBucket, World};
use ebb_client::{AttachError, Client, HandoverState, Open};
use ebb_model::*;
use ebb_node::Node;
use futures_channel::oneshot;
use futures_util::future::{Either, pending, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// The location of the process's node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the process.
    Inside,
    /// On [`SERVER`].
    Elsewhere,
}

/// The reason why no process takes over.
#[derive(Debug)]
pub enum Unserved {
    /// No process can.
    Lost(&'static str),
    Failed(String),
}

impl From<Unserved> for String {
    fn from(unserved: Unserved) -> String {
        match unserved {
            Unserved::Lost(why) => format!("nobody can take over: {why}"),
            Unserved::Failed(why) => why,
        }
    }
}

/// One mount: for the oracle a client that never ends, through all its processes.
pub struct Scene {
    place: Place,
    pub client: ClientId,
    bucket: SimBucket,
    plan: Plan,
    memory: Rc<RefCell<Vec<u64>>>,
    amnesia: Option<Amnesia>,
    executor: Executor,
    rng: Rng,
    life: RefCell<Option<Rc<Life>>>,
    lives: Cell<u64>,
    requests: Cell<u64>,
    /// Requests that have no answer.
    under_way: RefCell<BTreeSet<u64>>,
    /// Handles by inode.
    open: RefCell<BTreeMap<Ino, Vec<u64>>>,
}

pub struct Life {
    number: u64,
    pub process: Process,
    /// Where it is in the process.
    pub node: Option<Rc<Node>>,
    pub client: Client,
    pub handover: Rc<HandoverState>,
    memory: Rc<Memory>,
}

impl Scene {
    pub fn new(
        world: &World,
        place: Place,
        client: ClientId,
        plan: Plan,
        amnesia: Option<Amnesia>,
    ) -> Rc<Scene> {
        Rc::new(Scene {
            place,
            client,
            bucket: world.bucket(),
            plan,
            memory: Rc::new(RefCell::new(vec![0; HandoverState::words_for(OPEN_FILES)])),
            amnesia,
            executor: world.executor().clone(),
            rng: world.rng(&format!("mount {}", client.0)),
            life: RefCell::default(),
            lives: Cell::new(0),
            requests: Cell::new(0),
            under_way: RefCell::default(),
            open: RefCell::default(),
        })
    }

    pub fn life(&self) -> Result<Rc<Life>, String> {
        self.life.borrow().clone().ok_or("nobody serves".into())
    }

    /// Handles that users have by inode.
    pub fn open(&self) -> BTreeMap<Ino, Vec<u64>> {
        self.open
            .borrow()
            .iter()
            .filter(|(_, handles)| !handles.is_empty())
            .map(|(ino, handles)| (*ino, handles.clone()))
            .collect()
    }

    pub fn under_way(&self) -> BTreeSet<u64> {
        self.under_way.borrow().clone()
    }

    /// A request without an answer will be repeated.
    pub fn expect_again(&self, request: u64) {
        self.under_way.borrow_mut().insert(request);
    }

    pub fn kill(&self) {
        if let Some(life) = self.life.take() {
            life.memory.dies();
            life.process.kill();
        }
    }

    /// Starts a process, however often that takes.
    pub async fn begin(&self, world: &World) -> Result<(), Unserved> {
        let mut last = String::new();
        for attempt in 0..MAX_STARTS {
            let process = world.machine(MACHINE).process_on("ebb", "data");
            let forgotten = (self.amnesia == Some(Amnesia::Undurable)).then_some(UNDURABLE);
            let memory = Memory::of(&self.memory, forgotten);
            let handover = Rc::new(
                HandoverState::take(memory.clone())
                    .map_err(|error| Unserved::Failed(error.to_string()))?,
            );
            if self.amnesia == Some(Amnesia::Opens) {
                for open in handover.opens() {
                    handover.closed(open.handle);
                }
            }
            // It may die while it takes over.
            let dies = async {
                match self.rng.below(3) {
                    0 if attempt < SHORT_LIVES => {
                        world.sleep(self.rng.duration(Duration::ZERO, SHORT_LIFE)).await
                    }
                    _ => pending().await,
                }
            };
            let taken = match select(pin!(self.take_over(&process, &handover)), pin!(dies)).await {
                Either::Left((taken, _)) => taken,
                Either::Right(_) => {
                    memory.dies();
                    process.kill();
                    continue;
                }
            };
            match taken {
                Ok((node, client)) => {
                    let (again, all) = (self.under_way(), client.clone());
                    process.call(async move { all.all_came(&again) }).await;
                    self.lives.set(self.lives.get() + 1);
                    *self.life.borrow_mut() = Some(Rc::new(Life {
                        number: self.lives.get(),
                        process,
                        node,
                        client,
                        handover,
                        memory,
                    }));
                    return Ok(());
                }
                Err(Unserved::Lost(why)) => {
                    process.kill();
                    return Err(Unserved::Lost(why));
                }
                Err(Unserved::Failed(why)) => last = why,
            }
            process.kill();
            world.sleep(Duration::from_secs(1)).await;
        }
        Err(Unserved::Failed(format!("nobody takes over: {last}")))
    }

    async fn take_over(
        &self,
        process: &Process,
        handover: &Rc<HandoverState>,
    ) -> Result<(Option<Rc<Node>>, Client), Unserved> {
        let (node, link) = match self.place {
            Place::Elsewhere => (None, wire_link(process, SERVER)),
            Place::Inside => {
                let options =
                    ebb_node::Options { resumes: handover.session(), ..self.plan.options.clone() };
                let bucket = &self.bucket;
                match open_on(process, bucket, &options, self.plan.medium).await {
                    Some(Ok(node)) => (Some(node.clone()), local_link(&node)),
                    other => {
                        return Err(Unserved::Failed(format!(
                            "{:?}",
                            other.map(|node| node.err())
                        )));
                    }
                }
            }
        };
        match attach_resumed(process, link, handover.clone()).await {
            Some(Ok(client)) => {
                // Drops all kernel caches of the previous process at once.
                client.on_change(|_, _| Box::pin(async {}));
                client.on_lease_recall(|_| Box::pin(async {}));
                Ok((node, client))
            }
            Some(Err(AttachError::Lost(why))) => Err(Unserved::Lost(why)),
            Some(Err(error)) => Err(Unserved::Failed(error.to_string())),
            None => Err(Unserved::Failed("the process has died".into())),
        }
    }

    /// Repeats a request until it is answered.
    pub async fn request(&self, op: Op) -> Outcome {
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
                // A dead user ignores the answer.
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
    /// Serves a request like a mount. Returns the answer with the handle that it opens.
    async fn serve(
        &self,
        number: u64,
        handle: Option<u64>,
        op: Op,
        lag: Duration,
    ) -> (Outcome, Option<(Ino, u64)>) {
        if let Some(handle) = handle {
            if let Some(open) = self.handover.closed(handle) {
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
        // The process may die between the open and its handover record.
        self.lag(lag).await;
        let handle = self.number << 32 | number;
        let before = self.handover.opened_before(number);
        assert!(
            self.handover.opened(Open { request: number, ino, handle, detail: 0 }),
            "few files are open"
        );
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

/// Where the processes run.
pub const MACHINE: &str = "a";

/// Where a node serves that is elsewhere.
pub const SERVER: &str = "server";

const OPEN_FILES: usize = 1000;

const MAX_STARTS: u32 = 200;

/// Processes in a row that may die while they take over.
const SHORT_LIVES: u32 = 4;
const SHORT_LIFE: Duration = Duration::from_millis(20);

/// The word of an estate that says whether something was answered that need not be durable yet.
const UNDURABLE: usize = 10;
