//! Laws of the executor.

use ebb_sim::{Executor, Rng, Stuck, World};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Three sleepers are started in the wrong order: they wake in the order of their times,
/// and the clock shows each time exactly.
#[test]
fn sleepers_wake_in_the_order_of_time() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let woken = Rc::new(RefCell::new(Vec::new()));
    for delay in [3, 1, 2] {
        let (clock, woken) = (process.ports.clock.clone(), woken.clone());
        process.spawn(async move {
            clock.sleep(delay * MS).await;
            woken.borrow_mut().push((delay, clock.monotonic()));
        });
    }
    world.run_for(Duration::from_secs(1)).unwrap();
    assert_eq!(*woken.borrow(), [(1, MS), (2, 2 * MS), (3, 3 * MS)]);
    assert_eq!(world.now(), Duration::from_secs(1));
}

/// Tasks that are ready at one instant run in an order drawn from the seed: equal for equal seeds,
/// different for some others.
#[test]
fn seed_orders_tasks_that_are_ready_at_once() {
    let order = |seed| {
        let executor = Executor::new(&Rng::new(seed));
        let order = Rc::new(RefCell::new(Vec::new()));
        for task in 0..8 {
            let order = order.clone();
            executor
                .spawn(executor.world(), Box::pin(async move { order.borrow_mut().push(task) }));
        }
        executor.run_until(Duration::ZERO).unwrap();
        order.take()
    };
    assert_eq!(order(7), order(7));
    assert!((0..10).any(|seed| order(seed) != order(7)));
    assert_eq!(order(7).len(), 8);
}

struct OnDrop(Rc<Cell<bool>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// A process dies while it sleeps: its task is dropped at that instant, and its later effects never
/// happen.
#[test]
fn a_kill_drops_tasks_at_once_and_voids_their_timers() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let (dropped, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (clock, guard, finished) =
        (process.ports.clock.clone(), OnDrop(dropped.clone()), done.clone());
    process.spawn(async move {
        let _guard = guard;
        clock.sleep(10 * MS).await;
        finished.set(true);
    });
    world.run_for(5 * MS).unwrap();
    assert!(!dropped.get());
    process.kill();
    assert!(dropped.get());
    world.run_for(HOUR).unwrap();
    assert!(!done.get() && !process.is_alive());

    process.spawn(async { panic!("a dead process runs nothing") });
    world.run_for(HOUR).unwrap();
}

/// A process kills itself from within: the task runs on to its next await and no further.
#[test]
fn a_process_may_kill_itself() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let reached = Rc::new(Cell::new(0));
    let (itself, steps) = (process.clone(), reached.clone());
    process.spawn(async move {
        itself.kill();
        steps.set(1);
        itself.ports.clock.sleep(MS).await;
        steps.set(2);
    });
    world.run_for(HOUR).unwrap();
    assert_eq!(reached.get(), 1);
    let answer = world.run(process.call(async { 5 })).unwrap();
    assert_eq!(answer, None);
}

/// A paused process does nothing and then continues; other processes are not delayed.
#[test]
fn a_paused_process_goes_on_later() {
    let world = World::new(1);
    let (slow, quick) = (world.machine("a").process("node"), world.machine("b").process("node"));
    slow.pause(20 * MS);
    let done = |process: &ebb_sim::Process| {
        let clock = process.ports.clock.clone();
        process.call(async move {
            clock.sleep(MS).await;
            clock.monotonic()
        })
    };
    let (slow_done, quick_done) = (done(&slow), done(&quick));
    assert_eq!(world.run(quick_done).unwrap(), Some(MS));
    assert_eq!(world.now(), MS);
    assert_eq!(world.run(slow_done).unwrap(), Some(21 * MS));
}

/// Deadlock: the run ends at once and names the waiting tasks.
#[test]
fn a_deadlock_is_reported_with_its_tasks() {
    let world = World::new(3);
    let process = world.machine("a").process("node");
    process.spawn(pending());
    let failure = world.run(pending::<()>()).unwrap_err();
    let Stuck::Deadlock { tasks, .. } = &failure.stuck else { panic!("{failure}") };
    assert_eq!(tasks.len(), 2);
    assert!(tasks.iter().any(|task| task.contains("a/node#1")), "{tasks:?}");
    assert!(failure.to_string().starts_with("seed 3: deadlock"));
}

/// A task wakes itself for ever without letting time pass: the run ends and names it.
#[test]
fn a_hot_loop_is_reported() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    process.spawn(poll_fn(|context| {
        context.waker().wake_by_ref();
        Poll::Pending
    }));
    let failure = world.run(pending::<()>()).unwrap_err();
    assert!(
        matches!(&failure.stuck, Stuck::Spinning { task, .. } if task.contains("a/node#1")),
        "{failure}"
    );
}

/// A heartbeat hides that the scenario waits in vain: the limit of world time ends it.
#[test]
fn a_run_that_never_ends_is_reported() {
    let world = World::new(1);
    let process = world.machine("a").process("node");
    let clock = process.ports.clock.clone();
    process.spawn(async move {
        loop {
            clock.sleep(Duration::from_secs(1)).await;
        }
    });
    let failure = world.run(pending::<()>()).unwrap_err();
    assert!(matches!(failure.stuck, Stuck::Late { .. }), "{failure}");
}

/// Wakers may leave the thread: one that is called from another thread after its task has
/// ended does no harm.
#[test]
fn a_waker_outlives_its_task() {
    let executor = Executor::new(&Rng::new(1));
    let kept = Rc::new(RefCell::new(None));
    let keep = kept.clone();
    executor.spawn(
        executor.world(),
        Box::pin(poll_fn(move |context| {
            *keep.borrow_mut() = Some(context.waker().clone());
            Poll::Ready(())
        })),
    );
    executor.run_until(MS).unwrap();
    let waker = kept.take().unwrap();
    std::thread::spawn(move || waker.wake()).join().unwrap();
    executor.run_until(2 * MS).unwrap();
}

/// One component draws an additional number: the streams of the others do not change.
#[test]
fn streams_do_not_shift_each_other() {
    let (one, other) = (Rng::new(5), Rng::new(5));
    other.next_u64();
    let (disk, net) = (one.split("disk"), other.split("net"));
    disk.next_u64();
    assert_eq!(one.split("net").next_u64(), net.next_u64());
    assert_ne!(one.split("disk").next_u64(), one.split("net").next_u64());
}

/// Thousands of worlds are made in one test process: pending state of a world, such as a connection
/// that was never accepted, is freed with it.
#[test]
fn a_world_takes_everything_with_it() {
    let dropped = Rc::new(Cell::new(false));
    let world = World::new(1);
    let (client, server) =
        (world.machine("a").process("client"), world.machine("b").process("node"));
    let (guard, clock) = (OnDrop(dropped.clone()), server.ports.clock.clone());
    server.spawn(async move {
        let _guard = guard;
        clock.sleep(HOUR).await;
    });
    let (listening, dialled) = world
        .run(async {
            let listener = server.ports.net.listen("b:7000").await.unwrap();
            (listener, client.ports.net.connect("b:7000").await.unwrap())
        })
        .unwrap();
    let net = Rc::downgrade(&server.ports.net);
    server.spawn(async move {
        let _kept = (listening, dialled);
        pending::<()>().await
    });
    drop((client, server));
    drop(world);
    assert!(dropped.get());
    assert!(net.upgrade().is_none());
}
