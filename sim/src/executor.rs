//! The seeded executor: one thread, one heap of events, no time but its own.

use crate::rng::Rng;
use crate::trace::Trace;
use ebb_ports::PortFuture;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{self, AtomicBool};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use thiserror::Error;

/// Runs tasks and timed effects in an order that the seed decides.
///
/// Laws:
/// - Events happen in the order of (time, seeded tie, sequence). A woken task is an event
///   of the present instant, so tasks that are ready together run in a seeded order.
/// - Time moves only to the next event, hence only when nothing can run now.
/// - Nothing of a dead [`Owner`] happens any more: its tasks are dropped, its events void.
#[derive(Clone)]
pub struct Executor {
    shared: Rc<Shared>,
}

struct Shared {
    now: Cell<Duration>,
    ties: Rng,
    next_sequence: Cell<u64>,
    next_task: Cell<TaskId>,
    next_owner: Cell<u32>,
    /// Owner of everything outside processes: frames on the wire, requests in the bucket, the
    /// scenario.
    world: Owner,
    events: RefCell<BinaryHeap<Event>>,
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    woken: Arc<WokenQueue>,
    trace: RefCell<Trace>,
    /// Whether a `block_on` runs: a second one inside it would take the first one's events.
    blocking: Cell<bool>,
}

/// One incarnation of a process: its tasks and events end with it.
#[derive(Clone)]
pub struct Owner {
    state: Rc<OwnerState>,
}

struct OwnerState {
    id: u32,
    name: String,
    alive: Cell<bool>,
    paused_until: Cell<Duration>,
}

/// Why a run cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Stuck {
    #[error("deadlock at {at:?}: nothing can run and no timer is set; waiting: {}", tasks.join(", "))]
    Deadlock { at: Duration, tasks: Vec<String> },
    #[error("hot loop at {at:?}: {task} was polled {POLLS_PER_INSTANT} times while no time passed")]
    Spinning { at: Duration, task: String },
    #[error("not done at {limit:?}; waiting: {}", tasks.join(", "))]
    Late { limit: Duration, tasks: Vec<String> },
}

impl Executor {
    pub fn new(rng: &Rng) -> Executor {
        let world = Owner::new(0, "world".to_owned());
        Executor {
            shared: Rc::new(Shared {
                now: Cell::new(Duration::ZERO),
                ties: rng.split("ties"),
                next_sequence: Cell::new(0),
                next_task: Cell::new(0),
                next_owner: Cell::new(1),
                world,
                events: RefCell::default(),
                tasks: RefCell::default(),
                woken: Arc::default(),
                trace: RefCell::new(Trace::new()),
                blocking: Cell::new(false),
            }),
        }
    }

    /// True time of the world, which no process sees.
    pub fn now(&self) -> Duration {
        self.shared.now.get()
    }

    pub fn world(&self) -> &Owner {
        &self.shared.world
    }

    /// A new incarnation. The name gets a number, to distinguish incarnations in a trace.
    pub fn owner(&self, name: &str) -> Owner {
        let id = take_next(&self.shared.next_owner, 1);
        Owner::new(id, format!("{name}#{id}"))
    }

    /// Does nothing for an owner that is dead.
    pub fn spawn(&self, owner: &Owner, future: PortFuture<'static, ()>) {
        if owner.is_alive() {
            let task = self.add_task(owner, Some(future));
            task.wake();
        }
    }

    /// Performs `effect` at `at`, unless the owner is dead by then.
    pub fn schedule(&self, owner: &Owner, at: Duration, effect: impl FnOnce() + 'static) {
        self.push(owner, at, Action::Effect(Box::new(effect)));
    }

    /// Performs `effect` after `delay` and completes with its result. Dropping the future does not
    /// cancel the effect: a sent request is not undone by its sender.
    pub fn after<T: 'static>(
        &self,
        owner: &Owner,
        delay: Duration,
        effect: impl FnOnce() -> T + 'static,
    ) -> Completion<T> {
        let slot = Rc::new(RefCell::new(Slot { value: None, waiting: None }));
        let filled = slot.clone();
        self.schedule(owner, self.now().saturating_add(delay), move || {
            let value = effect();
            let mut slot = filled.borrow_mut();
            slot.value = Some(value);
            if let Some(waiting) = slot.waiting.take() {
                waiting.wake();
            }
        });
        Completion { slot }
    }

    pub fn sleep(&self, owner: &Owner, delay: Duration) -> Completion<()> {
        self.after(owner, delay, || ())
    }

    /// SIGKILL: from now on nothing of the owner runs. Its tasks are dropped after it is marked
    /// dead, so calls of their destructors have no effect. A task that kills its own process runs
    /// until its next await.
    pub fn kill(&self, owner: &Owner) {
        assert!(owner.state.id != self.shared.world.state.id, "the world outlives all");
        owner.state.alive.set(false);
        let dead: Vec<Task> = self
            .shared
            .tasks
            .borrow_mut()
            .extract_if(.., |_, task| task.owner == *owner)
            .map(|(_, task)| task)
            .collect();
        self.note(owner, "killed", format_args!("{} tasks", dead.len()));
        drop(dead);
    }

    /// Nothing of the owner happens before `until`; then everything that was due does.
    pub fn pause(&self, owner: &Owner, until: Duration) {
        owner.state.paused_until.set(until.max(owner.state.paused_until.get()));
        self.note(owner, "paused", format_args!("until {until:?}"));
    }

    /// Runs until `future` is done, at most to the instant `limit`. The future belongs to the
    /// world.
    pub fn block_on<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Result<T, Stuck> {
        assert!(!self.shared.blocking.replace(true), "block_on within block_on");
        let mut future = pin!(future);
        let root = self.add_task(self.world(), None);
        root.wake_by_ref();
        let result = loop {
            match self.next_event(limit) {
                Next::Event(Action::Poll(id)) if id == root.id => match self.begin_poll(id) {
                    Ok(_) => {
                        if let Poll::Ready(value) =
                            future.as_mut().poll(&mut Context::from_waker(&root.clone().into()))
                        {
                            break Ok(value);
                        }
                    }
                    Err(stuck) => break Err(stuck),
                },
                Next::Event(action) => {
                    if let Err(stuck) = self.perform(action) {
                        break Err(stuck);
                    }
                }
                Next::Later => break Err(Stuck::Late { limit, tasks: self.describe_tasks() }),
                Next::Nothing => {
                    break Err(Stuck::Deadlock { at: self.now(), tasks: self.describe_tasks() });
                }
            }
        };
        self.shared.tasks.borrow_mut().remove(&root.id);
        self.shared.blocking.set(false);
        result
    }

    /// Runs everything that is due up to `deadline` and leaves the clock there.
    pub fn run_until(&self, deadline: Duration) -> Result<(), Stuck> {
        while let Next::Event(action) = self.next_event(deadline) {
            self.perform(action)?;
        }
        self.shared.now.set(deadline.max(self.now()));
        Ok(())
    }

    /// Drops all tasks and events. They and the executor reference each other, so a world without
    /// this call is never freed.
    pub fn shut_down(&self) {
        loop {
            let tasks = self.shared.tasks.take();
            let events = self.shared.events.take();
            if tasks.is_empty() && events.is_empty() {
                return;
            }
            for task in tasks.values() {
                task.owner.state.alive.set(false);
            }
        }
    }

    pub fn note(&self, owner: &Owner, kind: &str, details: fmt::Arguments<'_>) {
        self.shared.trace.borrow_mut().event(self.now(), owner.name(), kind, details);
    }

    pub fn trace_hash(&self) -> u64 {
        self.shared.trace.borrow().hash()
    }

    pub fn trace_tail(&self) -> String {
        self.shared.trace.borrow().tail()
    }

    fn add_task(&self, owner: &Owner, future: Option<TaskFuture>) -> Arc<TaskWaker> {
        let id = take_next(&self.shared.next_task, 1);
        let waker = Arc::new(TaskWaker {
            id,
            queued: AtomicBool::new(false),
            queue: self.shared.woken.clone(),
        });
        let task = Task {
            owner: owner.clone(),
            future,
            waker: waker.clone(),
            polls: 0,
            instant: Duration::ZERO,
            polls_at_instant: 0,
        };
        self.shared.tasks.borrow_mut().insert(id, task);
        waker
    }

    fn push(&self, owner: &Owner, at: Duration, action: Action) {
        let sequence = take_next(&self.shared.next_sequence, 1);
        let event = Event {
            at: at.max(self.now()),
            tie: self.shared.ties.next_u64(),
            sequence,
            owner: owner.clone(),
            action,
        };
        self.shared.events.borrow_mut().push(event);
    }

    /// Takes the next event due by `deadline` and moves the clock to it.
    fn next_event(&self, deadline: Duration) -> Next {
        loop {
            self.queue_woken();
            let mut events = self.shared.events.borrow_mut();
            let Some(event) = events.peek() else { return Next::Nothing };
            let (alive, at, resumes) =
                (event.owner.is_alive(), event.at, event.owner.state.paused_until.get());
            if alive && at > deadline {
                return Next::Later;
            }
            let Some(event) = events.pop() else { return Next::Nothing };
            drop(events);
            if alive && at < resumes {
                self.push(&event.owner, resumes, event.action);
            } else if alive {
                self.shared.now.set(at);
                return Next::Event(event.action);
            }
        }
    }

    /// Turns wake-ups, in the order in which they came, into events of this instant.
    fn queue_woken(&self) {
        for id in self.shared.woken.take() {
            let owner = self.shared.tasks.borrow().get(&id).map(|task| task.owner.clone());
            if let Some(owner) = owner {
                self.push(&owner, self.now(), Action::Poll(id));
            }
        }
    }

    fn perform(&self, action: Action) -> Result<(), Stuck> {
        match action {
            Action::Effect(effect) => effect(),
            Action::Poll(id) => {
                let Some((mut future, waker)) = self.begin_poll(id)? else { return Ok(()) };
                let done = future.as_mut().poll(&mut Context::from_waker(&waker.into())).is_ready();
                let mut tasks = self.shared.tasks.borrow_mut();
                let finished = match tasks.get_mut(&id) {
                    Some(task) if !done => {
                        task.future = Some(future);
                        return Ok(());
                    }
                    _ => (tasks.remove(&id), future),
                };
                drop(tasks);
                drop(finished);
            }
        }
        Ok(())
    }

    /// Counts a poll and takes the task's future out, so that the task may do anything
    /// while it is polled, even kill its own process. The root task has no future here.
    fn begin_poll(&self, id: TaskId) -> Result<Option<(TaskFuture, Arc<TaskWaker>)>, Stuck> {
        let now = self.now();
        let mut tasks = self.shared.tasks.borrow_mut();
        let Some(task) = tasks.get_mut(&id) else { return Ok(None) };
        task.waker.queued.store(false, atomic::Ordering::Relaxed);
        task.polls += 1;
        if task.instant != now {
            (task.instant, task.polls_at_instant) = (now, 0);
        }
        task.polls_at_instant += 1;
        if task.polls_at_instant > POLLS_PER_INSTANT {
            return Err(Stuck::Spinning { at: now, task: task.describe() });
        }
        self.shared.trace.borrow_mut().poll(now, id);
        Ok(task.future.take().map(|future| (future, task.waker.clone())))
    }

    fn describe_tasks(&self) -> Vec<String> {
        self.shared.tasks.borrow().values().map(Task::describe).collect()
    }
}

impl Owner {
    fn new(id: u32, name: String) -> Owner {
        Owner {
            state: Rc::new(OwnerState {
                id,
                name,
                alive: Cell::new(true),
                paused_until: Cell::new(Duration::ZERO),
            }),
        }
    }

    pub fn name(&self) -> &str {
        &self.state.name
    }

    pub fn is_alive(&self) -> bool {
        self.state.alive.get()
    }

    /// Never completes for a dead owner, as no call of a dead process does.
    pub(crate) async fn lives(&self) {
        if !self.is_alive() {
            pending::<()>().await;
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.state.id == other.state.id
    }
}

/// The result of an effect that was scheduled with [`Executor::after`].
pub struct Completion<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

struct Slot<T> {
    value: Option<T>,
    waiting: Option<Waker>,
}

impl<T> Future for Completion<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.borrow_mut();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

type TaskId = u64;
type TaskFuture = PortFuture<'static, ()>;

struct Task {
    owner: Owner,
    /// Absent while it is polled, and always for the future of `block_on`.
    future: Option<TaskFuture>,
    waker: Arc<TaskWaker>,
    polls: u64,
    instant: Duration,
    polls_at_instant: u32,
}

impl Task {
    fn describe(&self) -> String {
        format!(
            "task {} of {} ({} polls, last at {:?})",
            self.waker.id,
            self.owner.name(),
            self.polls,
            self.instant
        )
    }
}

/// Wakers must be `Send` though nothing here is: they hold an id and the queue of woken
/// ids, never the task.
struct TaskWaker {
    id: TaskId,
    /// Whether the id is in the queue or the heap, so that many wake-ups make one poll.
    queued: AtomicBool,
    queue: Arc<WokenQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, atomic::Ordering::Relaxed) {
            self.queue.push(self.id);
        }
    }
}

#[derive(Default)]
struct WokenQueue {
    ids: Mutex<Vec<TaskId>>,
}

impl WokenQueue {
    fn push(&self, id: TaskId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    fn take(&self) -> Vec<TaskId> {
        std::mem::take(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

enum Next {
    Event(Action),
    /// The next event lies after the deadline.
    Later,
    Nothing,
}

enum Action {
    Poll(TaskId),
    Effect(Box<dyn FnOnce()>),
}

struct Event {
    at: Duration,
    tie: u64,
    sequence: u64,
    owner: Owner,
    action: Action,
}

impl Event {
    fn key(&self) -> (Duration, u64, u64) {
        (self.at, self.tie, self.sequence)
    }
}

/// Reversed, because the standard heap gives its greatest first.
impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Event {}

fn take_next<T: Copy + std::ops::Add<Output = T>>(counter: &Cell<T>, one: T) -> T {
    counter.replace(counter.get() + one)
}

/// More polls of one task at one instant than any real flow needs: a busy pipeline hands
/// over some thousands of items without waiting, a hot loop has no end.
pub const POLLS_PER_INSTANT: u32 = 100_000;
