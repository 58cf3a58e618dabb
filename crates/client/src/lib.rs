//! The client library: the only way to use a volume, in the process of its node or over the wire.
//! FUSE, command line and tests all use it.
//!
//! A [`Client`] is one session. It sends every request until there is an answer, and executes every
//! mutation exactly once. It keeps the operations that the node could still lose, and repeats them
//! after the node's restart. It reports the rule for caching to its user ([`Client::cache_rule`]).
//! Its only access to a node is a [`Link`], and all other access is through ports.

mod backoff;
mod caching;
mod call;
mod client;
mod errors;
mod gate;
mod handover;
mod journal;
mod leases;
mod link;
mod local;
mod locks;
mod mutate;
mod open_table;
mod operations;
mod passthrough;
mod pool;
mod reconnect;
mod references;
mod routes;
mod session;
mod wire;

pub use caching::{CacheRule, Change};
pub use client::{AttachError, Client, ClientPorts, Options, WeakClient};
pub use handover::{HandoverError, HandoverState, Locker, Open, RecordIndex};
pub use journal::{KEPT_BYTES, KEPT_OPERATIONS};
pub use leases::{Lease, Leased, NAME_TERM, Recall};
pub use link::{Link, LinkEvent};
pub use local::LocalLink;
pub use mutate::MUTATIONS_UNDER_WAY;
pub use operations::{Page, Written};
pub use passthrough::{Grant, GrantHandle, Grantee};
pub use routes::{MAX_NODES, is_node_address};
pub use session::SLOTS_FOR_BYTES;
pub use wire::{EVENTS_WAITING, REQUESTS_UNDER_WAY, WireLink};
