//! Time, counted in ticks of the caller's clock.

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};

#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Ticks(pub u64);

impl Add for Ticks {
    type Output = Ticks;

    fn add(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_add(other.0))
    }
}

impl Sub for Ticks {
    type Output = Ticks;

    fn sub(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(other.0))
    }
}

/// Law: `0 < heartbeat_ticks < election_ticks`, and `0 < beat_ticks < election_ticks`.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two beats of a pair of nodes.
    pub beat_ticks: Ticks,
    /// Between two heartbeats of a group that is not idle.
    pub heartbeat_ticks: Ticks,
    /// A follower that has no sign of its leader for this long, and up to twice as long, starts an
    /// election. Also the length of a promise of support, and of the leader's check for a quorum.
    pub election_ticks: Ticks,
}

/// When a replica without a leader starts an election: after one to two election time-outs, drawn
/// anew for each election from the caller's seed.
pub(crate) struct ElectionTimer {
    state: u64,
    election_ticks: u64,
    timeout: u64,
}

impl ElectionTimer {
    pub(crate) fn new(seed: u64, election_ticks: Ticks) -> ElectionTimer {
        let mut timer = ElectionTimer { state: seed, election_ticks: election_ticks.0, timeout: 0 };
        timer.draw();
        timer
    }

    /// Draws the next time-out (splitmix64).
    pub(crate) fn draw(&mut self) {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.timeout = self.election_ticks + (z ^ (z >> 31)) % self.election_ticks;
    }

    pub(crate) fn is_over(&self, elapsed: usize) -> bool {
        elapsed as u64 >= self.timeout
    }
}
