//! Developer commands: `cargo xtask --help`.

mod advisories;
mod arrows;
mod bans;
mod bench;
mod conformance;
mod crash;
mod fuzz;
mod licences;
mod memory;
mod powercut;
mod recoveries;
mod rounds;
mod scale;
mod sim;
mod store_faults;
mod workload;

use clap::{Parser, Subcommand, ValueEnum};
use ebb_rig::{
    Outcome, finding, guard, mounts, name_of, rig, rng, scratch, tool, tree, work, xattr,
};
use rounds::Rounds;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use store_faults::Fault;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of ebb")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that crates depend on each other only as ARCHITECTURE.md says.
    Arrows,
    /// Check that core, node and client do not touch the world but through ports.
    Bans,
    /// Check the licences of all dependencies against deny.toml.
    Licences,
    /// Check the versions of all dependencies against what advisories.toml knows.
    Advisories {
        /// Write advisories.toml anew from this checkout of the RustSec database.
        #[arg(long, value_name = "DIR")]
        database: Option<PathBuf>,
    },
    /// Run programs of others against real mounts.
    Conformance {
        #[command(subcommand)]
        suite: conformance::Suite,
    },
    /// Run whole volumes in the simulated world.
    Sim {
        /// One seed, with all that is known about it.
        #[arg(long, conflicts_with_all = ["seeds", "minutes"])]
        seed: Option<u64>,
        /// How many seeds.
        #[arg(long)]
        seeds: Option<u64>,
        /// For how long.
        #[arg(long)]
        minutes: Option<u64>,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Leave out the seeds of the other deployment.
        #[arg(long, value_enum)]
        only: Option<sim::Only>,
    },
    /// Give everything that reads bytes from outside any bytes at all.
    Fuzz {
        /// Which targets; all if none is named.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(fuzz::targets()))]
        targets: Vec<String>,
        /// Seconds for each.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Mount a bucket of very many objects: how long until it can be used, and what it takes.
    Scale {
        #[arg(long, default_value_t = 1_000_000)]
        keys: u64,
        #[arg(long)]
        release: bool,
    },
    /// What an embedded mount holds in memory, idle and under work.
    Memory {
        /// How many files in one directory.
        #[arg(long, default_value_t = 1_000_000)]
        entries: u64,
        #[arg(long)]
        release: bool,
    },
    /// Measure ebb beside what machine and kernel can do (docs/benchmarks.md).
    Bench(bench::Wanted),
    /// Let the bucket misbehave under load, and look for what was acknowledged and what is left
    /// over.
    StoreFaults {
        /// Which faults; all, one after the other, if none is named.
        #[arg(value_enum, default_values_t = Fault::value_variants(), hide_default_value = true)]
        faults: Vec<Fault>,
        /// How long each lasts.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long)]
        release: bool,
    },
    /// Cut the power of nodes under load and look for what they had forced. Needs root.
    Powercut(Rounds),
    /// Kill daemons under load and look for what they had acknowledged.
    Crash(Rounds),
}

/// Seeds of a run that names no number and no time.
const DEFAULT_SEEDS: u64 = 200;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let outcome =
        if guard::is_above() { perform(command).map(|()| ExitCode::SUCCESS) } else { guard::run() };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error}");
        ExitCode::FAILURE
    })
}

fn perform(command: Command) -> Outcome<()> {
    match command {
        Command::Arrows => arrows::run(),
        Command::Bans => bans::run(),
        Command::Licences => licences::run(),
        Command::Advisories { database } => advisories::run(database),
        Command::Conformance { suite } => conformance::run(suite),
        Command::Sim { seed: Some(seed), .. } => sim::one(seed),
        Command::Sim { seeds, minutes, from, only, .. } => {
            let time = minutes.map(|minutes| Duration::from_secs(60 * minutes));
            sim::many(from, seeds.or(time.is_none().then_some(DEFAULT_SEEDS)), time, only)
        }
        Command::Fuzz { targets, seconds } => fuzz::run(&targets, Duration::from_secs(seconds)),
        Command::Scale { keys, release } => scale::run(keys, release),
        Command::Memory { entries, release } => memory::run(entries, release),
        Command::Bench(wanted) => bench::run(wanted),
        Command::StoreFaults { faults, seconds, seed, release } => {
            store_faults::run(&faults, seconds, seed, release)
        }
        Command::Powercut(rounds) => powercut::run(&rounds),
        Command::Crash(rounds) => crash::run(&rounds),
    }
}
