//! A whole cluster in one process under one seed.
//!
//! [`World`] stands in place of the adapters: it gives each [`Process`] the ports that
//! the shipped code runs on, lets time pass only when nothing is left to do, and breaks
//! things as its [`FaultPlan`] says. Everything that happens is a function of the seed,
//! and [`World::trace_hash`] proves it: two runs of one seed agree on every event.
//!
//! Three ends are kept apart, because durability is a different promise against each:
//! - [`Process::kill`] is SIGKILL. What was written to disk stays, connections close.
//! - [`Machine::power_cut`] loses what was not synced and tells nobody.
//! - [`Process::pause`] is a stall, after which the process goes on as if nothing had been.

mod bucket;
mod clock;
mod disk;
mod executor;
mod faults;
mod net;
pub mod oracle;
mod rng;
mod trace;
pub mod volume;
mod world;

pub use bucket::{BUCKET_HOST, Mutation, SimBucket, UnfinishedUpload};
pub use disk::{DiskOperation, Holder, SECTOR_BYTES, SimDisk};
pub use executor::{Executor, Owner, POLLS_PER_INSTANT, Stuck};
pub use faults::{
    BucketFaults, ClockFaults, DiskFaults, FaultPlan, Faults, NetFaults, Rate, Slowness,
};
pub use net::Network;
pub use rng::Rng;
pub use trace::fingerprint;
pub use world::{Failure, Machine, Process, RUN_LIMIT, World};
