//! The rules of ebb as deterministic state machines.
//!
//! Laws:
//! - No clock, thread, file, socket or randomness: time, ids and entropy arrive in commands.
//! - A [`partition::Partition`] is the replicated state: the same log yields the same state
//!   everywhere.
//! - A [`state::State`] is a partition beside the extents of one node's disk, which no other node
//!   knows.
//! - Every other module is a component of them, or a planner of the node's next action ([`cache`],
//!   [`locks`]) without replicated state.

pub mod backing;
pub mod blocks;
pub mod byte_map;
pub mod cache;
pub mod content;
pub mod extent;
pub mod locks;
pub mod namespace;
pub mod nodes;
pub mod partition;
pub mod session;
pub mod state;
pub mod tree;
