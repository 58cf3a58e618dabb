pub use ebb_bench::Rng;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of a run without a given one.
pub fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
}
