//! Whole volumes under one seed: the shipped node and client, what clients do to them,
//! what the world does to them, and what must hold all the same.

mod detached;
mod embedded;
mod plan;
mod report;
pub mod rig;
mod verify;
mod workload;

pub use report::{Broken, Report};

/// Runs the scenario of a seed.
pub fn run(seed: u64) -> Result<Report, Broken> {
    match seed % 2 {
        0 => embedded::run(seed / 2),
        _ => detached::run(seed / 2),
    }
}
