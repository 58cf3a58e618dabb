//! One thread, one clock that moves when nothing else does, one seed.

use ebb_client::ClientPorts;
use ebb_model::Time;
use ebb_ports::{Clock, Entropy, PortFuture, Spawn};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[derive(Clone, Default)]
pub struct World {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    now: Cell<Duration>,
    random: Cell<u64>,
    next: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, Option<PortFuture<'static, ()>>>>,
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(Mutex<VecDeque<u64>>);

struct TaskWaker {
    id: u64,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.0.lock().unwrap().push_back(self.id);
    }
}

impl World {
    pub fn new(seed: u64) -> World {
        let world = World::default();
        world.inner.random.set(seed);
        world
    }

    pub fn ports(&self) -> ClientPorts {
        let ports = Rc::new(self.clone());
        ClientPorts { clock: ports.clone(), entropy: ports.clone(), spawn: ports }
    }

    pub fn now(&self) -> Duration {
        self.inner.now.get()
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn sleep_ms(&self, ms: u64) -> PortFuture<'static, ()> {
        self.sleep(Duration::from_millis(ms))
    }

    /// Runs until the future ends. A future that never does fails the test.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = self.start(future);
        self.await_result(&result)
    }

    /// Runs until a result has appeared.
    pub fn await_result<T>(&self, result: &RefCell<Option<T>>) -> T {
        let limit = self.now() + Duration::from_secs(100_000);
        while result.borrow().is_none() {
            assert!(self.step(limit), "nothing can run any more, and the test has not ended");
        }
        result.take().unwrap()
    }

    /// Starts a future. Its result appears when it has ended.
    pub fn start<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        self.spawn(Box::pin(async move {
            let value = future.await;
            place.replace(Some(value));
        }));
        result
    }

    /// Lets time pass.
    pub fn pass(&self, duration: Duration) {
        let until = self.now() + duration;
        while self.step(until) {}
        self.inner.now.set(until);
    }

    pub fn tasks(&self) -> usize {
        self.inner.tasks.borrow().len()
    }

    /// Polls one task or moves the clock to the next timer. False if there is none up to `limit`.
    pub fn step(&self, limit: Duration) -> bool {
        let next = self.inner.woken.0.lock().unwrap().pop_front();
        let Some(id) = next else {
            let first = self.inner.timers.borrow().keys().next().copied();
            let Some(key) = first.filter(|(at, _)| *at <= limit) else { return false };
            let waker = self.inner.timers.borrow_mut().remove(&key).unwrap();
            self.inner.now.set(key.0);
            waker.wake();
            return true;
        };
        let taken = self.inner.tasks.borrow_mut().get_mut(&id).and_then(Option::take);
        if let Some(mut task) = taken {
            let waker = Waker::from(Arc::new(TaskWaker { id, woken: self.inner.woken.clone() }));
            match task.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => drop(self.inner.tasks.borrow_mut().remove(&id)),
                Poll::Pending => {
                    self.inner.tasks.borrow_mut().insert(id, Some(task));
                }
            }
        }
        true
    }

    fn id(&self) -> u64 {
        self.inner.next.replace(self.inner.next.get() + 1)
    }
}

impl Spawn for World {
    fn spawn(&self, task: PortFuture<'static, ()>) {
        let id = self.id();
        self.inner.tasks.borrow_mut().insert(id, Some(task));
        self.inner.woken.0.lock().unwrap().push_back(id);
    }
}

impl Entropy for World {
    /// splitmix64
    fn next_u64(&self) -> u64 {
        let state = self.inner.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.inner.random.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Clock for World {
    fn wall(&self) -> Time {
        Time { secs: self.now().as_secs() as i64, nanos: self.now().subsec_nanos() }
    }

    fn monotonic(&self) -> Duration {
        self.now()
    }

    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()> {
        let world = self.clone();
        let at = self.now().saturating_add(duration);
        let timer = Timer { world: self.clone(), key: (at, self.id()) };
        Box::pin(poll_fn(move |context| {
            let timer = &timer;
            if world.now() >= at {
                return Poll::Ready(());
            }
            world.inner.timers.borrow_mut().insert(timer.key, context.waker().clone());
            Poll::Pending
        }))
    }
}

/// Removes the timer together with its future.
struct Timer {
    world: World,
    key: (Duration, u64),
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.world.inner.timers.borrow_mut().remove(&self.key);
    }
}
