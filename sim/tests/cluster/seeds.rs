//! Random troubles of a volume on several machines.

use ebb_sim::volume::run_replicated;

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

#[test]
fn random_troubles_of_three_nodes_lose_nothing() {
    let first = number("EBB_SEED", 0);
    for seed in first..first + number("EBB_SEEDS", 6) {
        if let Err(broken) = run_replicated(seed, 3) {
            panic!("{broken}");
        }
    }
}
