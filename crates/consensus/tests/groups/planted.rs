//! Each bug that is planted into this crate is found by random worlds, within a bounded number of
//! seeds.

use crate::world::{Plan, World};
use ebb_model::{Layer, Planted, planted_during};

const SEEDS: u64 = 500;

#[test]
fn planted_bugs_are_found_by_random_worlds() {
    let of_crate = Planted::ALL.iter().filter(|(_, layer)| *layer == Layer::Consensus);
    for (bug, _) in of_crate {
        let fails = |seed: &u64| planted_during(Some(*bug), || World::try_run(Plan::new(*seed)));
        let found = (0..SEEDS).find_map(|seed| Some((seed, fails(&seed).err()?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?}: {SEEDS} seeds pass"));
        let violation = violation.lines().next().unwrap_or_default();
        println!("{bug:?}: seed {seed}: {violation}");
    }
}
