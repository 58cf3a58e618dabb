//! Coverage-guided runs of the fuzz targets without a nightly toolchain: passes cargo-fuzz's
//! compiler flags, except for the address sanitizer.

use crate::{Outcome, tool};
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// A slower input is a finding: bytes from outside must not stall a node.
const SLOWEST: Duration = Duration::from_secs(20);

/// More memory is a finding; the fuzzer's own memory counts, too.
const MOST_MIB: u32 = 512;

/// Names of the targets, for the command line.
pub fn targets() -> Vec<&'static str> {
    ebb_fuzz::TARGETS.iter().map(|target| target.name).collect()
}

/// Runs these targets, or all, for `time` each.
pub fn run(named: &[String], time: Duration) -> Outcome<()> {
    let place = tool::target().join("fuzz");
    let mut build = Command::new(tool::cargo());
    build.args([
        "build",
        "--locked",
        "--quiet",
        "--profile",
        "fuzz",
        "-p",
        "ebb-fuzz",
        "--features",
        "libfuzzer",
        "--bin",
        "fuzz",
    ]);
    // With an explicit target triple, build scripts and macros are built without coverage.
    build
        .args(["--target", HOST, "--target-dir"])
        .arg(&place)
        .env("RUSTFLAGS", COVERAGE)
        .current_dir(tool::root());
    tool::run(&mut build)?;
    let driver = place.join(HOST).join("fuzz/fuzz");
    let is_named = |target: &&ebb_fuzz::Target| {
        named.is_empty() || named.iter().any(|name| name == target.name)
    };
    let left = Mutex::new(ebb_fuzz::TARGETS.iter().filter(is_named));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    // One processor per target.
    let worker = || {
        while let Some(target) = next() {
            search(&driver, &place, target, time).map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err("a search has panicked".into()))
        })
    })?;
    Ok(())
}

const HOST: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

fn search(driver: &Path, place: &Path, target: &ebb_fuzz::Target, time: Duration) -> Outcome<()> {
    let corpus = place.join("corpus").join(target.name);
    let found = place.join("found").join(target.name);
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&found)?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        fs::write(corpus.join(format!("seed-{number}")), seed)?;
    }
    let mut command = Command::new(driver);
    command
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-timeout={}", SLOWEST.as_secs()));
    command
        .arg(format!("-rss_limit_mb={MOST_MIB}"))
        .arg(format!("-artifact_prefix={}/", found.display()));
    command.arg(format!("-max_len={}", target.most_bytes));
    command.arg("-print_final_stats=1").arg(&corpus).env("EBB_FUZZ_TARGET", target.name);
    let output = command.output().map_err(|error| format!("{}: {error}", driver.display()))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let end: Vec<&str> = report.lines().rev().take(40).collect();
        let end: Vec<&str> = end.into_iter().rev().collect();
        let what = "a finding: keep the input below fuzz/found, so that tests hold it";
        return Err(
            format!("{}: {what} ({})\n{}", target.name, found.display(), end.join("\n")).into()
        );
    }
    let runs = report
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .unwrap_or_default()
        .trim();
    println!("{:<10} {runs:>9} inputs, nothing found", target.name);
    Ok(())
}
