//! Real mounts over real stores, with everything that a run needs around them: a scratch
//! directory, an S3 server, a node, a daemon. The demo and `cargo xtask` are built on it; it
//! depends on few crates, so that the demo of a fresh clone builds fast.
//!
//! A command runs under a guard process ([`guard`]), which unmounts, ends and removes everything
//! that the run leaves, also after SIGKILL.

pub mod finding;
pub mod guard;
pub mod mounts;
pub mod rig;
pub mod rng;
pub mod scratch;
pub mod tool;
pub mod tree;
pub mod work;
pub mod xattr;

use clap::ValueEnum;

/// The error is for a developer to read.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The name of a value on the command line.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
