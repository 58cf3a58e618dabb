use crate::faults::Rate;
use crate::trace::fingerprint;
use std::cell::Cell;
use std::time::Duration;

/// One stream of pseudo-random numbers (splitmix64). Every component has a stream of its own, so
/// that an additional draw in the disk does not change the network's behaviour.
///
/// Laws: the numbers are a function of the seed and the labels of its splits; splitting draws
/// nothing.
pub struct Rng {
    origin: u64,
    state: Cell<u64>,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { origin: seed, state: Cell::new(seed) }
    }

    pub fn split(&self, label: &str) -> Rng {
        Rng::new(mix(mix(self.origin) ^ fingerprint(label.as_bytes())))
    }

    pub fn next_u64(&self) -> u64 {
        self.state.set(self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        mix(self.state.get())
    }

    /// Evenly from `0..limit`; `limit` is not 0.
    pub fn below(&self, limit: u64) -> u64 {
        assert!(limit > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Evenly from `0..limit` for things in memory; `limit` is not 0.
    pub fn index(&self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    pub fn chance(&self, rate: Rate) -> bool {
        self.below(Rate::ALWAYS.0.into()) < rate.0.into()
    }

    /// Evenly from `min..=max`, to the nanosecond.
    pub fn duration(&self, min: Duration, max: Duration) -> Duration {
        let width =
            u64::try_from(max.saturating_sub(min).as_nanos()).expect("durations here are short");
        min + Duration::from_nanos(self.below(width + 1))
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
