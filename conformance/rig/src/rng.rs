pub use ebb_bench::Rng;
use std::time::{SystemTime, UNIX_EPOCH};

/// For a run that is given none.
pub fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
}
