//! The rules of ebb as deterministic state machines: no clock, no thread, no file, no
//! socket, no randomness. A [`partition::Partition`] is what a log replicates; everything
//! else here is a part of it or plans what a node does next.

pub mod backing;
pub mod cache;
pub mod extent;
pub mod locks;
pub mod namespace;
pub mod partition;
pub mod session;
pub mod tree;
