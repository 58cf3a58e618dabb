//! Time, random numbers and tasks.

use crate::PortFuture;
use ebb_model::Time;
use std::time::Duration;

/// Time. Wall time stamps files; monotonic time measures and waits. The two never mix.
pub trait Clock {
    /// Wall-clock time. It can jump in both directions.
    fn wall(&self) -> Time;

    /// Time since an arbitrary origin. It never decreases and includes suspension.
    fn monotonic(&self) -> Duration;

    /// Completes after `duration` of monotonic time.
    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()>;
}

/// Random numbers: unpredictable in production, derived from the seed in simulation.
pub trait Entropy {
    fn next_u64(&self) -> u64;
}

/// Starts a task on the caller's executor. A task ends with its future; a component's tasks end
/// when its stop signal resolves.
pub trait Spawn {
    fn spawn(&self, task: PortFuture<'static, ()>);
}
