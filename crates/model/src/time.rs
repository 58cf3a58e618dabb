//! Wall-clock time.

use serde::{Deserialize, Serialize};

/// A wall-clock instant: seconds since the Unix epoch and nanoseconds below one second.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Time {
    pub secs: i64,
    /// Below 1,000,000,000.
    pub nanos: u32,
}

impl Time {
    pub const fn from_secs(secs: i64) -> Time {
        Time { secs, nanos: 0 }
    }
}
