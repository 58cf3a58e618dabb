//! Work for file systems, and how fast it is done: `ebb bench`, and the tables of
//! `cargo xtask bench`, which do the same work beside what the machine can do.

pub mod bench;
mod rng;
pub mod work;

pub use rng::Rng;
