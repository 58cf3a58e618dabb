//! A bucket in memory and the steps of a node that drives a partition over it, in random
//! order: mutations, loads that answer late, uploads, moves, deletes and pages that take
//! their time, crashes at any point, and cold starts from the bucket alone.
//!
//! What must hold: every law at every step; nothing is overwritten or deleted that is
//! somebody's; every file reads as it was written; once all is flushed the bucket holds
//! nothing that nobody owns, and a node that has nothing but the bucket shows the same tree.

mod flush;
mod forget;
mod load;
mod mutate;
mod seen;
mod world;

use proptest::prelude::*;
use world::{Dice, World};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn the_bucket_alone_gives_back_the_tree(foreign in any::<bool>(), nests in any::<bool>(), lives in prop::collection::vec(prop::collection::vec(any::<[u8; 8]>(), 1..120), 1..4)) {
        let mut world = World::over(foreign, nests);
        for steps in lives {
            for step in steps {
                world.step(Dice::new(step));
            }
            world.restart_from_bucket();
        }
    }
}
