//! Clients: their sessions, their requests, and the notices to them.

pub(crate) mod attach;
pub(crate) mod attachments;
pub(crate) mod barrier;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod mutate;
pub(crate) mod recall;
pub(crate) mod repeat;
pub(crate) mod serve;
pub mod wire;
