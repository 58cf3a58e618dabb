use crate::PortFuture;
use ebb_model::Time;
use std::time::Duration;

/// Time. Wall time stamps files; monotonic time measures and waits. The two are never mixed.
pub trait Clock {
    /// Wall-clock time. It may jump in both directions.
    fn wall(&self) -> Time;

    /// Time since an arbitrary origin; never goes backwards; counts while suspended.
    fn monotonic(&self) -> Duration;

    /// Completes once `duration` of monotonic time has passed.
    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()>;
}

/// Unpredictable numbers in production, the seed's numbers in simulation.
pub trait Entropy {
    fn next_u64(&self) -> u64;
}

/// Starts a task on the executor that the caller runs on. A task ends with its future;
/// tasks that serve a component end when the component's stop signal resolves.
pub trait Spawn {
    fn spawn(&self, task: PortFuture<'static, ()>);
}
