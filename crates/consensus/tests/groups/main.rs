//! Tests of the crate: groups as a node uses them.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read their environment and measure"
)]

mod directed;
mod hostile;
mod planted;
mod seeds;
mod world;
