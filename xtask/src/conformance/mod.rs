//! Programs of others on real mounts, and the same on this machine's disk as the yardstick.

mod fsx;
mod ground;
mod pjdfstest;
mod posixtest;
mod programs;
mod results;
mod stores;
mod stress;

use crate::Outcome;
use crate::rig::Shape;
use clap::{Args, Subcommand, ValueEnum};
use ground::Ground;
use results::{Results, Verdict};

#[derive(Subcommand)]
pub enum Suite {
    /// pjdfstest (the Rust crate), beside the file system of this machine's disk.
    Pjdfstest {
        #[command(flatten)]
        on: Mounts,
    },
    /// fsx (the Rust crate): random operations on one file.
    Fsx {
        #[command(flatten)]
        on: Mounts,
        #[arg(long, default_value_t = 2)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Of each seed.
        #[arg(long, default_value_t = 10_000)]
        operations: u64,
    },
    /// posixtest, the suite that go-fuse tests its own file systems with.
    Posixtest {
        #[command(flatten)]
        on: Mounts,
    },
    /// SQLite, PostgreSQL, Redis, git, tar, rsync, cp, make and cargo.
    Programs {
        #[command(flatten)]
        on: Mounts,
        /// All if none is named.
        #[arg(long, value_enum, default_values_t = programs::Program::value_variants(), hide_default_value = true)]
        only: Vec<programs::Program>,
        /// How often databases are killed, SQLite's writers with each kind of journal.
        #[arg(long, default_value_t = 10)]
        kills: u32,
    },
    /// stress-ng's class for file systems.
    StressNg {
        #[command(flatten)]
        on: Mounts,
        /// Stressors; all if none is named.
        #[arg(long)]
        only: Vec<String>,
        /// For each.
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// The clauses of the bucket port and a real mount over the emulators of other clouds, or other
    /// servers of S3.
    Stores {
        /// The emulators if none is named.
        #[arg(long, value_enum, default_values_t = stores::Server::USUAL, hide_default_value = true)]
        only: Vec<stores::Server>,
        #[arg(long)]
        release: bool,
    },
}

/// Where a suite runs.
#[derive(Args)]
pub struct Mounts {
    /// Which shapes to try; all, one after the other, if none is named.
    #[arg(long, value_enum, default_values_t = Shape::value_variants(), hide_default_value = true)]
    mount: Vec<Shape>,
    #[arg(long)]
    release: bool,
    /// Leave out this machine's disk, which excuses mounts of what it does not pass itself.
    #[arg(long)]
    mounts_only: bool,
}

pub fn run(suite: Suite) -> Outcome<()> {
    match suite {
        Suite::Pjdfstest { on } => pjdfstest::run(&on),
        Suite::Fsx { on, seeds, from, operations } => {
            fsx::run(&on, from..from.saturating_add(seeds), operations)
        }
        Suite::Posixtest { on } => posixtest::run(&on),
        Suite::Programs { on, only, kills } => programs::run(&on, &only, kills),
        Suite::StressNg { on, only, seconds } => stress::run(&on, &only, seconds),
        Suite::Stores { only, release } => stores::run(&only, release),
    }
}
