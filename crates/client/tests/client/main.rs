//! The client against a scripted node and scripted connections.

mod attach;
mod bounds;
mod caching;
mod exactly_once;
mod leases;
mod locks;
mod node;
mod open_table;
mod process;
mod references;
mod replay;
mod routing;
mod succession;
mod wire;
mod world;
