//! A process with a client, which dies at any moment, and the memory that outlives it.

use crate::node::Node;
use crate::world::World;
use ebb_client::{AttachError, Client, ClientPorts, HandoverState, Link, LinkEvent, Options};
use ebb_model::{Reply, Request, RpcError};
use ebb_ports::{PortFuture, SharedMemory, Spawn};
use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The memory that one process leaves to the next.
pub type Left = Rc<RefCell<Vec<u64>>>;

pub fn nothing_left() -> Left {
    Rc::new(RefCell::new(vec![0; HandoverState::words_for(64)]))
}

/// The moment at which a process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// After this number of turns of the executor.
    Turn(u64),
    /// After this number of words was written to the memory: in the middle of a turn.
    Write(u64),
}

/// Once the process is dead none of its tasks runs. Everything that it sends, spawns and writes in
/// the rest of its last turn, and during its removal, has no effect.
pub struct Process {
    world: World,
    link: Rc<dyn Link>,
    left: Left,
    alive: Cell<bool>,
    writes: Cell<u64>,
    most_writes: Cell<u64>,
    tasks: RefCell<Vec<Task>>,
}

type Task = Rc<RefCell<Option<PortFuture<'static, ()>>>>;

impl Process {
    pub fn new(world: &World, link: Rc<dyn Link>, left: &Left) -> Rc<Process> {
        Rc::new(Process {
            world: world.clone(),
            link,
            left: left.clone(),
            alive: Cell::new(true),
            writes: Cell::new(0),
            most_writes: Cell::new(u64::MAX),
            tasks: RefCell::default(),
        })
    }

    pub fn on(node: &Rc<Node>, left: &Left) -> Rc<Process> {
        Process::new(&node.world, node.clone(), left)
    }

    /// Attaches as the successor of the process that has left state, if any. Must run as a part of
    /// the process.
    pub fn attaching(
        self: &Rc<Process>,
        options: Options,
    ) -> impl Future<Output = Result<Client, AttachError>> + use<> {
        let ports = ClientPorts { spawn: self.clone(), ..self.world.ports() };
        let handover =
            Rc::new(HandoverState::take(self.clone()).expect("what was left can be read"));
        Client::attach_resumed(self.clone(), ports, options, handover)
    }

    pub fn start_attach(
        self: &Rc<Process>,
        options: Options,
    ) -> Rc<RefCell<Option<Result<Client, AttachError>>>> {
        self.start(self.attaching(options))
    }

    pub fn try_attach(self: &Rc<Process>) -> Result<Client, AttachError> {
        self.attach_with(Node::options())
    }

    pub fn attach_with(self: &Rc<Process>, options: Options) -> Result<Client, AttachError> {
        let attached = self.start_attach(options);
        self.world.await_result(&attached)
    }

    pub fn attach(self: &Rc<Process>) -> Client {
        self.try_attach().expect("takes over")
    }

    /// Starts a part of the process. Its result appears when it has ended.
    pub fn start<T: 'static>(
        self: &Rc<Process>,
        future: impl Future<Output = T> + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let result = Rc::new(RefCell::new(None));
        let (place, process) = (result.clone(), self.clone());
        self.spawn(Box::pin(async move {
            let value = future.await;
            if process.alive.get() {
                place.replace(Some(value));
            }
        }));
        result
    }

    /// Runs a part of the process to its end.
    pub fn run<T: 'static>(self: &Rc<Process>, future: impl Future<Output = T> + 'static) -> T {
        let result = self.start(future);
        self.world.await_result(&result)
    }

    /// Runs the world until the process dies, and removes it. False if the test ends before that.
    pub fn lives_until(&self, death: Death, is_over: impl Fn() -> bool) -> bool {
        if let Death::Write(words) = death {
            self.most_writes.set(self.writes.get() + words);
        }
        let limit = self.world.now() + Duration::from_secs(100);
        let mut turns = 0;
        while self.alive.get() && death != Death::Turn(turns) {
            if is_over() {
                return false;
            }
            assert!(self.world.step(limit), "it is never over");
            turns += 1;
        }
        self.kill();
        true
    }

    pub fn kill(&self) {
        self.alive.set(false);
        // Dropping a task may start others.
        loop {
            let tasks = self.tasks.take();
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                let task = task.take();
                drop(task);
            }
        }
    }

    /// The output of the turn in which the process dies has no effect.
    pub fn is_alive(&self) -> bool {
        self.alive.get()
    }
}

/// Runs a test once for each possible death. The test returns false if it ended before its process
/// died.
pub fn with_every_death(story: impl Fn(Death) -> bool) {
    for death in [Death::Turn, Death::Write] {
        let mut deaths = 0;
        while story(death(deaths)) {
            deaths += 1;
        }
        assert!(deaths > 0, "there is a middle to die in");
    }
}

impl Spawn for Process {
    fn spawn(&self, task: PortFuture<'static, ()>) {
        let place: Task = Rc::new(RefCell::new(Some(task)));
        self.tasks.borrow_mut().push(place.clone());
        if !self.alive.get() {
            return;
        }
        self.world.spawn(Box::pin(poll_fn(move |context| {
            let Some(mut task) = place.take() else { return Poll::Ready(()) };
            let polled = task.as_mut().poll(context);
            if polled.is_pending() {
                place.replace(Some(task));
            }
            polled
        })));
    }
}

impl SharedMemory for Process {
    fn count(&self) -> usize {
        self.left.borrow().len()
    }

    fn load(&self, at: usize) -> u64 {
        self.left.borrow()[at]
    }

    fn store(&self, at: usize, word: u64) {
        if self.writes.get() == self.most_writes.get() {
            self.alive.set(false);
        }
        if self.alive.get() {
            self.writes.set(self.writes.get() + 1);
            self.left.borrow_mut()[at] = word;
        }
    }
}

impl Link for Process {
    fn call(&self, request: Request) -> PortFuture<'_, Result<Reply, RpcError>> {
        Box::pin(async move {
            match self.alive.get() {
                true => self.link.call(request).await,
                false => pending().await,
            }
        })
    }

    fn event(&self) -> PortFuture<'_, LinkEvent> {
        self.link.event()
    }

    fn is_local(&self) -> bool {
        self.link.is_local()
    }

    fn trouble(&self) -> String {
        self.link.trouble()
    }
}
