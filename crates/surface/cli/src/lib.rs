//! The command line: flags, environment, configuration files, and output.
//!
//! One table ([`args`]) defines every setting: its flag, its environment variable, its key in a
//! configuration file and its default. Precedence is that order.

pub mod args;
pub mod config;
mod explain;
pub mod fsck;
pub mod helper;
pub mod member;
pub mod metrics;
pub mod nodes;
pub mod page;
pub mod places;
pub mod profile;
mod quota;
pub mod render;
pub mod stats;
mod trash;
pub mod units;

pub use args::{Cli, Command};
pub use config::parse;
