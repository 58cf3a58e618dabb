//! Whole volumes under one seed: the shipped node and client, what clients do to them,
//! what the world does to them, and what must hold all the same.

mod embedded;
mod report;
mod rig;
mod verify;
mod workload;

pub use report::{Broken, Report};

/// Runs the scenario of a seed.
pub fn run(seed: u64) -> Result<Report, Broken> {
    embedded::run(seed)
}
