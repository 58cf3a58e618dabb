//! Workloads for file systems, with their speed: for `ebb bench`, and for the tables of
//! `cargo xtask bench`, which run them beside the machine's limits.

pub mod bench;
mod rng;
pub mod work;

pub use rng::Rng;
