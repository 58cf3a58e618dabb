//! Random worlds.

mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Plan, Report, World};

/// Runs a world; a panic is a violation too.
fn run(seed: u64) -> Result<Report, String> {
    let result = catch_unwind(AssertUnwindSafe(|| World::run(Plan::new(seed))));
    let panicked = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        format!("panic: {}", text.unwrap_or_default())
    };
    result.unwrap_or_else(|panic| Err(panicked(panic)))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_worlds_keep_all_laws() {
    let (from, count) = (number("EBB_SEED", 0), number("EBB_SEEDS", 300));
    let mut sum = Report::default();
    for seed in from..from + count {
        let report = run(seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        sum.writes += report.writes;
        sum.reads += report.reads;
        sum.terms += report.terms;
        sum.snapshots += report.snapshots;
        sum.changes += report.changes;
        sum.packets += report.packets;
        sum.forces += report.forces;
        sum.refused += report.refused;
    }
    println!("{count} seeds: {sum:?}");
}
