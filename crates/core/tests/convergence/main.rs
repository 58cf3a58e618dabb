//! A bucket in memory and the steps of a node that drives a partition over it, in random order:
//! mutations, late listings, slow uploads, moves, deletes and pages, crashes at any point, and cold
//! starts from the bucket alone.
//!
//! Checked properties:
//! - Every law holds after every step.
//! - No claimed object is overwritten or deleted.
//! - Every file reads as it was written.
//! - After a complete flush the bucket has no unclaimed object, and a node with nothing but the
//!   bucket has the same tree.

mod flush;
mod forget;
mod load;
mod mutate;
mod seen;
#[path = "../staging/mod.rs"]
mod staging;
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
