//! Other projects' suites on real mounts, with this machine's disk as the reference.

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
    /// pjdfstest (the Rust crate), compared with this machine's disk.
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
        /// Operations per seed.
        #[arg(long, default_value_t = 10_000)]
        operations: u64,
    },
    /// posixtest, go-fuse's suite for file systems.
    Posixtest {
        #[command(flatten)]
        on: Mounts,
    },
    /// SQLite, PostgreSQL, Redis, git, tar, rsync, cp, make and cargo.
    Programs {
        #[command(flatten)]
        on: Mounts,
        /// Programs to run; all by default.
        #[arg(long, value_enum, default_values_t = programs::Program::value_variants(), hide_default_value = true)]
        only: Vec<programs::Program>,
        /// Kills of each database, and of SQLite's writers with each journal mode.
        #[arg(long, default_value_t = 10)]
        kills: u32,
    },
    /// stress-ng's class of file system stressors.
    StressNg {
        #[command(flatten)]
        on: Mounts,
        /// Stressors; all by default.
        #[arg(long)]
        only: Vec<String>,
        /// Seconds for each.
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// The clauses of the bucket port and a real mount, over emulators of other clouds or other S3
    /// servers.
    Stores {
        /// Servers; the emulators by default.
        #[arg(long, value_enum, default_values_t = stores::Server::USUAL, hide_default_value = true)]
        only: Vec<stores::Server>,
        #[arg(long)]
        release: bool,
    },
}

/// Where a suite runs.
#[derive(Args)]
pub struct Mounts {
    /// Shapes to test; all by default.
    #[arg(long, value_enum, default_values_t = Shape::value_variants(), hide_default_value = true)]
    mount: Vec<Shape>,
    #[arg(long)]
    release: bool,
    /// Skip this machine's disk, whose own failures excuse the same failures of mounts.
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
