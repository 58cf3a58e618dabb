//! A whole cluster in one process under one seed.
//!
//! [`World`] replaces the adapters: it gives each [`Process`] the ports that the shipped code runs
//! on, advances time only when no task can run, and injects the faults of its [`FaultPlan`].
//!
//! Law: everything is a function of the seed. [`World::trace_hash`] checks it: two runs of one seed
//! agree on every event.
//!
//! Three kinds of failure are distinct, since durability promises differ for each:
//! - [`Process::kill`] is SIGKILL. Written data stays on disk, connections close.
//! - [`Machine::power_cut`] loses unforced data and notifies nobody.
//! - [`Process::pause`] is a stall, after which the process continues unaware.

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
pub use clock::WallRecord;
pub use disk::{DiskOperation, Holder, SECTOR_BYTES, SimDisk};
pub use executor::{Executor, Owner, POLLS_PER_INSTANT, Stuck};
pub use faults::{
    BucketFaults, ClockFaults, DiskFaults, FaultPlan, Faults, NetFaults, Rate, Slowness,
};
pub use net::Network;
pub use rng::Rng;
pub use trace::fingerprint;
pub use world::{Failure, Machine, Process, RUN_LIMIT, World};
