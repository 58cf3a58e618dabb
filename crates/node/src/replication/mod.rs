//! Volumes on several nodes: each has a replica of the metadata, and one of them leads.
//!
//! Laws:
//! - All nodes of a volume own the head of its bucket under one name. Of them the one that leads
//!   writes to the bucket.
//! - A node that has led, and does not any more, ends: its process starts anew as one that follows.
//! - Dirty bytes of a file are on its holder's disk alone ([`ebb_core::nodes`]). The node that leads
//!   brings them to its own disk before it shows, changes or uploads them.

mod bring;
mod host;
mod identity;
mod lead;
mod members;
mod messages;
mod monitor;
mod peers;
mod receive;
mod serve;
mod snapshots;

pub use host::{Host, HostOptions};

use std::time::Duration;

/// Consensus counts time in these steps.
const TICK: Duration = Duration::from_millis(50);

/// A leader that is silent for this long is replaced, within twice the time.
const ELECTION_TICKS: u64 = 14;

/// Entries that stay in memory for followers that are a little behind.
const KEPT_ENTRIES: u64 = 4096;

/// How long a question to another node may take.
const PATIENCE: Duration = Duration::from_secs(5);
