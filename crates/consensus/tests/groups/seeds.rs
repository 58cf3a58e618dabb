//! Random worlds, and that they can be repeated.
//!
//! `EBB_SEEDS` is the number of seeds and `EBB_SEED` the first.

use crate::world::{Plan, Report, World};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn run(from: u64, count: u64) {
    let mut sum = Report::default();
    for seed in from..from + count {
        let result = World::try_run(Plan::new(seed));
        sum.add(&result.unwrap_or_else(|violation| panic!("seed {seed}: {violation}")));
    }
    println!("{count} seeds: {sum:?}");
}

#[test]
fn random_worlds_keep_all_laws() {
    run(number("EBB_SEED", 0), number("EBB_SEEDS", 300));
}

/// Seeds that broke a law once: a late packet of an earlier run locked the present one out; a
/// removed replica asked a replica that its node did not have any more; the leader of resting
/// followers was removed; and a candidate missed the end of an election.
#[test]
fn fixed_seeds_keep_all_laws() {
    for seed in [2752, 51555, 58674, 13792] {
        run(seed, 1);
    }
}

#[test]
#[ignore = "takes an hour"]
fn many_random_worlds_keep_all_laws() {
    run(number("EBB_SEED", 0), number("EBB_SEEDS", 100_000));
}

#[test]
fn random_worlds_repeat() {
    for seed in 0..20 {
        let [first, second] = [(); 2].map(|()| World::try_run(Plan::new(seed)));
        assert_eq!(first, second, "seed {seed}");
    }
}
