//! Whole volumes under one seed: the shipped node and client, the operations of clients, the faults
//! of the world, and the laws that must hold all the same.

pub mod cluster;
mod detached;
mod embedded;
mod kernel_cache;
mod outsiders;
mod plan;
mod replicated;
mod report;
pub mod rig;
mod succession;
mod verify;
mod workload;

use ebb_model::{Planted, planted_during};

pub use kernel_cache::KernelCache;
pub use replicated::run as run_replicated;
pub use report::{Broken, Report};
pub use succession::{
    Amnesia, Fates, nameless, run as run_succession, run_elsewhere as run_succession_elsewhere,
};

/// How node and clients are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deployment {
    /// In one process.
    Embedded,
    /// On machines of their own.
    Detached,
}

/// Which deployment a seed is about: each has every other seed.
pub fn deployment(seed: u64) -> Deployment {
    if seed.is_multiple_of(2) { Deployment::Embedded } else { Deployment::Detached }
}

/// Runs the scenario of a seed.
pub fn run(seed: u64) -> Result<Report, Broken> {
    match deployment(seed) {
        Deployment::Embedded => embedded::run(seed),
        Deployment::Detached => detached::run(seed),
    }
}

/// Runs the scenario of a seed with a bug in the product.
pub fn run_planted(seed: u64, bug: Planted) -> Result<Report, Broken> {
    planted_during(Some(bug), || run(seed))
}
