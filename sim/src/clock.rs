use crate::executor::{Executor, Owner};
use crate::faults::Faults;
use crate::rng::Rng;
use ebb_model::Time;
use ebb_ports::{Clock, Entropy, PortFuture, Spawn};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The clocks of one machine, shared by its processes.
///
/// Law: the monotonic clock is a fixed multiple of true time since boot, so it never goes back;
/// only the wall clock jumps.
pub(crate) struct MachineClock {
    executor: Executor,
    faults: Faults,
    rng: Rng,
    /// How fast the clocks run: local millionths per true one.
    speed_ppm: i128,
    booted_at: Cell<Duration>,
    /// Error of the wall clock from each jump on, in the order of true time.
    wall_error_nanos: RefCell<Vec<(Duration, i128)>>,
}

impl MachineClock {
    pub(crate) fn new(executor: Executor, faults: Faults, rng: Rng) -> MachineClock {
        let limit = u64::from(faults.plan().clock.drift_limit_ppm);
        let speed_ppm = PPM - i128::from(limit) + i128::from(rng.below(2 * limit + 1));
        assert!(speed_ppm > 0, "clocks drift by less than their whole speed");
        let booted_at = Cell::new(executor.now());
        let wall_error_nanos = RefCell::new(vec![(Duration::ZERO, 0)]);
        MachineClock { executor, faults, rng, speed_ppm, booted_at, wall_error_nanos }
    }

    pub(crate) fn reboot(&self) {
        self.booted_at.set(self.executor.now());
    }

    pub(crate) fn jump_wall(&self, by_nanos: i128) {
        let error_nanos = self.wall_error_nanos() + by_nanos;
        self.wall_error_nanos.borrow_mut().push((self.executor.now(), error_nanos));
    }

    fn wall_error_nanos(&self) -> i128 {
        self.wall_error_nanos.borrow().last().expect("the list begins with no error").1
    }

    fn wall(&self) -> Time {
        let plan = self.faults.plan().clock;
        if self.rng.chance(plan.wall_jump) {
            let limit = plan.wall_jump_limit;
            self.jump_wall(nanos(self.rng.duration(Duration::ZERO, 2 * limit)) - nanos(limit));
        }
        let since_epoch = EPOCH_SECS * NANOS_PER_SEC
            + self.to_local(nanos(self.executor.now()))
            + self.wall_error_nanos();
        Time {
            secs: i64::try_from(since_epoch.div_euclid(NANOS_PER_SEC))
                .expect("jumps are small beside i64 seconds"),
            nanos: since_epoch.rem_euclid(NANOS_PER_SEC) as u32,
        }
    }

    fn monotonic_nanos(&self) -> i128 {
        self.to_local(nanos(self.executor.now() - self.booted_at.get()))
    }

    /// True time until the monotonic clock shows `duration` more; never a nanosecond too little.
    fn true_delay(&self, duration: Duration) -> Duration {
        let since_boot = nanos(self.executor.now() - self.booted_at.get());
        let target = self.to_local(since_boot).saturating_add(nanos(duration));
        let reached = (target * PPM + self.speed_ppm - 1).div_euclid(self.speed_ppm);
        // The true time has advanced by less than the clock's resolution of 1 ns.
        u64::try_from((reached - since_boot).max(0)).map_or(Duration::MAX, Duration::from_nanos)
    }

    fn to_local(&self, true_nanos: i128) -> i128 {
        (true_nanos * self.speed_ppm).div_euclid(PPM)
    }
}

/// The readings of a machine's wall clock in the past, for observers.
#[derive(Clone)]
pub struct WallRecord {
    pub(crate) clock: Rc<MachineClock>,
}

impl WallRecord {
    /// Whether the clock showed `time` at some moment of true time from `from` to `to`.
    pub fn has_shown(&self, time: Time, from: Duration, to: Duration) -> bool {
        let clock = &self.clock;
        let to = to.min(clock.executor.now());
        let errors = clock.wall_error_nanos.borrow();
        let first = errors.partition_point(|(since, _)| *since < from).saturating_sub(1);
        // At the instant of a jump the clock shows the time before it and the time after it.
        (first..errors.len()).take_while(|at| errors[*at].0 <= to).any(|at| {
            let (since, error_nanos) = errors[at];
            let until = errors.get(at + 1).map_or(to, |(next, _)| to.min(*next));
            let shown = |at: Duration| clock.to_local(nanos(at)) + error_nanos;
            let nanos = i128::from(time.secs) * NANOS_PER_SEC + i128::from(time.nanos)
                - EPOCH_SECS * NANOS_PER_SEC;
            (shown(since.max(from))..=shown(until)).contains(&nanos)
        })
    }
}

impl fmt::Debug for WallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallRecord").finish_non_exhaustive()
    }
}

/// Clock, entropy and spawner of one process.
pub(crate) struct ProcessClock {
    pub(crate) executor: Executor,
    pub(crate) owner: Owner,
    pub(crate) machine: Rc<MachineClock>,
    pub(crate) entropy: Rng,
}

impl Clock for ProcessClock {
    fn wall(&self) -> Time {
        self.machine.wall()
    }

    fn monotonic(&self) -> Duration {
        u64::try_from(self.machine.monotonic_nanos()).map_or(Duration::MAX, Duration::from_nanos)
    }

    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()> {
        let late = self
            .machine
            .rng
            .duration(Duration::ZERO, self.machine.faults.plan().clock.timer_late_limit);
        Box::pin(
            self.executor
                .sleep(&self.owner, self.machine.true_delay(duration).saturating_add(late)),
        )
    }
}

impl Entropy for ProcessClock {
    fn next_u64(&self) -> u64 {
        self.entropy.next_u64()
    }
}

impl Spawn for ProcessClock {
    fn spawn(&self, task: PortFuture<'static, ()>) {
        self.executor.spawn(&self.owner, task);
    }
}

/// True wall time in whole seconds, as a store outside sees it.
pub(crate) fn true_wall_secs(executor: &Executor) -> i64 {
    EPOCH_SECS as i64 + executor.now().as_secs() as i64
}

fn nanos(duration: Duration) -> i128 {
    duration.as_nanos() as i128
}

const PPM: i128 = 1_000_000;
pub(crate) const NANOS_PER_SEC: i128 = 1_000_000_000;

/// Every world begins on 2026-01-01.
const EPOCH_SECS: i128 = 1_767_225_600;
