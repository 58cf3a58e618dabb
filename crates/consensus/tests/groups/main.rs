//! Tests of the crate: groups as a node uses them.

mod directed;
mod hostile;
mod planted;
mod seeds;
mod world;
