//! Durations until a mount answered again after a crash.

use std::fmt;
use std::time::Duration;

#[derive(Default)]
pub struct Recoveries(Vec<Duration>);

impl Recoveries {
    pub fn add(&mut self, one: Duration) {
        let at = self.0.partition_point(|other| *other <= one);
        self.0.insert(at, one);
    }

    fn percentile(&self, part: usize) -> u128 {
        let at = (self.0.len() * part / 100).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0, Duration::as_millis)
    }
}

impl fmt::Display for Recoveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {} ms, p90 {} ms, most {} ms",
            self.percentile(50),
            self.percentile(90),
            self.percentile(100)
        )
    }
}
