//! One binary for all formats, so that they share their sample values.

#![allow(clippy::disallowed_methods)] // Golden files are files.

mod backup;
mod encryption;
mod golden;
mod head;
mod hostile;
mod identity;
mod page;
mod pages;
mod record;
mod rpc;
mod samples;
mod segment;
mod snapshot;
mod sums;
mod versions;
