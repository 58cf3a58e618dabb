//! Estimates the bandwidth of the line from a bucket. Read-ahead keeps the line busy for a moment
//! and no longer: more would share a slow line with the fetches that a client waits for.

use ebb_ports::Clock;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub struct BandwidthEstimator {
    clock: Rc<dyn Clock>,
    under_way: Cell<u64>,
    count: Cell<Count>,
    bytes_per_sec: Cell<Option<u64>>,
}

/// The bytes that have arrived since some moment, with fetches in progress without a break.
#[derive(Clone, Copy, Default)]
struct Count {
    since: Duration,
    /// When the last bytes arrived.
    last: Duration,
    bytes: u64,
    /// No fetch was under way before that moment.
    first: bool,
}

/// A fetch under way, until dropped.
pub struct Fetching<'a> {
    estimator: &'a BandwidthEstimator,
}

impl BandwidthEstimator {
    pub fn new(clock: Rc<dyn Clock>) -> BandwidthEstimator {
        BandwidthEstimator {
            clock,
            under_way: Cell::default(),
            count: Cell::default(),
            bytes_per_sec: Cell::default(),
        }
    }

    pub fn fetch(&self) -> Fetching<'_> {
        if self.under_way.get() == 0 {
            self.measure();
            let now = self.clock.monotonic();
            self.count.set(Count { since: now, last: now, bytes: 0, first: true });
        }
        self.under_way.set(self.under_way.get() + 1);
        Fetching { estimator: self }
    }

    /// How many bytes may be fetched ahead for one reader.
    pub fn ahead_bytes(&self) -> u64 {
        self.measure();
        let carried =
            |bytes_per_sec: u64| bytes_per_sec.saturating_mul(AHEAD.as_secs()).max(LEAST_BYTES);
        self.bytes_per_sec.get().map_or(u64::MAX, carried)
    }

    fn measure(&self) {
        let Count { since, last, bytes, first } = self.count.get();
        let took = last - since;
        if bytes == 0 {
            return;
        }
        let carried = u64::try_from(u128::from(bytes) * 1_000_000 / took.as_micros().max(1))
            .unwrap_or(u64::MAX);
        let known = self.bytes_per_sec.get();
        if took >= LEAST_TIME {
            // One stuck request shows little about the line.
            self.bytes_per_sec.set(Some(carried.max(known.unwrap_or_default() / 2)));
            self.count.set(Count { since: last, last, bytes: 0, first: false });
        } else if first && self.under_way.get() == 0 {
            // A short fetch gives a lower bound of the bandwidth, unless the line may be fast for a
            // moment only.
            let most = known.map_or(u64::MAX, |known| known.saturating_mul(2));
            self.bytes_per_sec.set(known.max(Some(carried.min(most))));
            self.count.set(Count { bytes: 0, ..self.count.get() });
        }
    }
}

impl Fetching<'_> {
    pub fn came(&self, bytes: u64) {
        let (estimator, now) = (self.estimator, self.estimator.clock.monotonic());
        if now - estimator.count.get().last > BURST {
            estimator.measure();
        }
        let count = estimator.count.get();
        estimator.count.set(Count { last: now, bytes: count.bytes + bytes, ..count });
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.estimator.under_way.set(self.estimator.under_way.get() - 1);
    }
}

/// The line is kept busy for this long. With less than the first-byte latency of a store, a
/// sequential reader would never have more requested ahead.
const AHEAD: Duration = Duration::from_secs(2);

/// Answers that share the line arrive at about one time, and are counted together.
const BURST: Duration = Duration::from_millis(50);

const LEAST_BYTES: u64 = 512 << 10;

/// A shorter measurement is chance: several requests share the line, and most bytes of an answer
/// that ends in a moment came before it.
const LEAST_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::Time;
    use ebb_ports::PortFuture;

    const MIB: u64 = 1 << 20;

    #[derive(Default)]
    struct Watch(Cell<u64>);

    impl Clock for Watch {
        fn wall(&self) -> Time {
            unreachable!("nobody asks what day it is")
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.get())
        }

        fn sleep(&self, _: Duration) -> PortFuture<'static, ()> {
            unreachable!("nobody sleeps")
        }
    }

    struct Scene {
        watch: Rc<Watch>,
        estimator: BandwidthEstimator,
    }

    impl Scene {
        fn new() -> Scene {
            let watch = Rc::new(Watch::default());
            Scene { estimator: BandwidthEstimator::new(watch.clone()), watch }
        }

        /// Pieces of 1 MiB that share the line.
        fn fetch(&self, pieces: u64, millis: u64) {
            let under_way: Vec<_> = (0..pieces).map(|_| self.estimator.fetch()).collect();
            self.watch.0.set(self.watch.0.get() + millis);
            under_way.iter().for_each(|fetching| fetching.came(MIB));
        }
    }

    #[test]
    fn as_much_as_two_seconds_carry() {
        let scene = Scene::new();
        assert_eq!(scene.estimator.ahead_bytes(), u64::MAX, "nothing is known");
        scene.fetch(1, 1000);
        assert_eq!(scene.estimator.ahead_bytes(), 2 * MIB);
        scene.fetch(4, 1000);
        assert_eq!(scene.estimator.ahead_bytes(), 8 * MIB);
    }

    #[test]
    fn a_line_that_becomes_slow_or_fast() {
        let scene = Scene::new();
        scene.fetch(1, 10);
        let fast = scene.estimator.ahead_bytes();
        assert_eq!(fast, 200 * MIB);
        // A stuck fetch.
        scene.fetch(1, 20_000);
        assert_eq!(scene.estimator.ahead_bytes(), fast / 2);
        (0..10).for_each(|_| scene.fetch(1, 20_000));
        assert_eq!(scene.estimator.ahead_bytes(), LEAST_BYTES);
        // A fetch that is let through at once while others wait.
        scene.fetch(1, 1);
        assert_eq!(scene.estimator.ahead_bytes(), LEAST_BYTES);
        scene.fetch(10, 1000);
        assert_eq!(scene.estimator.ahead_bytes(), 20 * MIB);
    }

    /// The estimate counts all bytes that arrived, however many fetches share the line.
    #[test]
    fn a_busy_line_is_counted_as_a_whole() {
        let scene = Scene::new();
        let mut under_way: std::collections::VecDeque<_> =
            (0..8).map(|_| scene.estimator.fetch()).collect();
        for _ in 0..40 {
            scene.watch.0.set(scene.watch.0.get() + 100);
            under_way.push_back(scene.estimator.fetch());
            under_way.pop_front().unwrap().came(MIB);
            scene.estimator.ahead_bytes();
        }
        assert_eq!(scene.estimator.ahead_bytes(), 20 * MIB);
    }

    #[test]
    fn bandwidth_estimate_ignores_dropped_fetches() {
        let scene = Scene::new();
        drop(scene.estimator.fetch());
        assert_eq!(scene.estimator.ahead_bytes(), u64::MAX);
    }
}
