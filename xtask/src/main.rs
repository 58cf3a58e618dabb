//! Developer commands: `cargo xtask --help`.

mod advisories;
mod arrows;
mod bench;
mod conformance;
mod crash;
mod fuzz;
mod licences;
mod linearize;
mod memory;
mod mutants;
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
    /// Check the dependencies between crates against ARCHITECTURE.md.
    Arrows,
    /// Check the licences of all dependencies against deny.toml.
    Licences,
    /// Check the versions of all dependencies against advisories.toml.
    Advisories {
        /// Rewrite advisories.toml from this checkout of the RustSec database.
        #[arg(long, value_name = "DIR")]
        database: Option<PathBuf>,
    },
    /// Run other projects' suites and programs on real mounts.
    Conformance {
        #[command(subcommand)]
        suite: conformance::Suite,
    },
    /// Run whole volumes in the simulated world.
    Sim {
        /// Run one seed and print everything about it.
        #[arg(long, conflicts_with_all = ["seeds", "minutes"])]
        seed: Option<u64>,
        /// Number of seeds.
        #[arg(long)]
        seeds: Option<u64>,
        /// Run as many seeds as fit this time, in minutes.
        #[arg(long)]
        minutes: Option<u64>,
        /// First seed.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Run the story of a volume on so many nodes.
        #[arg(long, value_name = "NODES", conflicts_with = "only")]
        cluster: Option<usize>,
        /// Run only the seeds of this deployment.
        #[arg(long, value_enum)]
        only: Option<sim::Only>,
        /// End with the first seed that breaks.
        #[arg(long)]
        until_broken: bool,
    },
    /// Plant bugs one after the other and print which check finds each.
    Mutants(mutants::Wanted),
    /// Fuzz every parser of outside bytes.
    Fuzz {
        /// Targets; all by default.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(fuzz::targets()))]
        targets: Vec<String>,
        /// Seconds per target.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Mount a bucket with very many objects; print the time until it is usable, and the memory.
    Scale {
        #[arg(long, default_value_t = 1_000_000)]
        keys: u64,
        #[arg(long)]
        release: bool,
    },
    /// Measure the memory of an embedded mount, idle and under load.
    Memory {
        /// Files in one directory.
        #[arg(long, default_value_t = 1_000_000)]
        entries: u64,
        #[arg(long)]
        release: bool,
    },
    /// Benchmark ebb beside the kernel's limits and other file systems (docs/benchmarks.md).
    Bench(bench::Wanted),
    /// Inject store faults under load; check for lost data and leftover objects.
    StoreFaults {
        /// Faults to inject, one after the other; all by default.
        #[arg(value_enum, default_values_t = Fault::value_variants(), hide_default_value = true)]
        faults: Vec<Fault>,
        /// Duration of each fault, in seconds.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long)]
        release: bool,
    },
    /// Cut the power of nodes under load; check that forced changes survive. Needs root.
    Powercut(Rounds),
    /// Cut the power under a directory that serves as bucket. Needs root.
    PowercutBucket {
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Kill daemons under load; check that acknowledged changes survive.
    Crash(Rounds),
    /// Check that several mounts of a volume behave as one file system.
    Linearize(linearize::Wanted),
}

/// Seeds of a run without a given number or time.
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
        Command::Licences => licences::run(),
        Command::Advisories { database } => advisories::run(database),
        Command::Conformance { suite } => conformance::run(suite),
        Command::Sim { seed: Some(seed), cluster, .. } => sim::one(seed, cluster),
        Command::Sim { seeds, minutes, from, cluster, only, until_broken, .. } => {
            let time = minutes.map(|minutes| Duration::from_secs(60 * minutes));
            let seeds = seeds.or(time.is_none().then_some(DEFAULT_SEEDS));
            let stories = sim::Stories { cluster, only };
            sim::many(from, seeds, time, stories, until_broken)
        }
        Command::Mutants(wanted) => mutants::run(&wanted),
        Command::Fuzz { targets, seconds } => fuzz::run(&targets, Duration::from_secs(seconds)),
        Command::Scale { keys, release } => scale::run(keys, release),
        Command::Memory { entries, release } => memory::run(entries, release),
        Command::Bench(wanted) => bench::run(wanted),
        Command::StoreFaults { faults, seconds, seed, release } => {
            store_faults::run(&faults, seconds, seed, release)
        }
        Command::Powercut(rounds) => powercut::run(&rounds),
        Command::PowercutBucket { seed } => powercut::under_bucket(seed),
        Command::Crash(rounds) => crash::run(&rounds),
        Command::Linearize(wanted) => linearize::run(&wanted),
    }
}
