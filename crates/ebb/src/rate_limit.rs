//! The rate of work that is done in pieces: never more bytes in a time than the rate allows,
//! however many pieces are in progress at one time.

use crate::failure::Failure;
use ebb_cli::units::Bytes;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Pieces of this size are mostly questions already.
const LEAST_BYTES: u64 = 64 << 10;

pub struct RateLimit {
    /// `None`: as fast as it goes.
    bytes_per_sec: Option<u64>,
    /// When the time of everything allowed so far is over.
    next: Cell<Instant>,
}

impl RateLimit {
    pub fn new(rate: Option<Bytes>) -> Result<RateLimit, Failure> {
        match rate {
            Some(Bytes(rate)) if rate < LEAST_BYTES => {
                Err(Failure::Usage(format!("--rate must be at least {}", Bytes(LEAST_BYTES))))
            }
            _ => Ok(RateLimit {
                bytes_per_sec: rate.map(|Bytes(rate)| rate),
                next: Cell::new(Instant::now()),
            }),
        }
    }

    /// Largest piece: the bytes allowed in a second.
    pub fn piece_bytes(&self, most: u64) -> u64 {
        self.bytes_per_sec.map_or(most, |rate| rate.clamp(LEAST_BYTES, most))
    }

    /// Waits for the turn of a piece.
    pub async fn wait(&self, bytes: u64) {
        if self.bytes_per_sec.is_some() {
            tokio::time::sleep_until(self.turn(bytes, Instant::now()).into()).await;
        }
    }

    /// Returns bytes of a piece that were not moved after all.
    pub fn give_back(&self, bytes: u64) {
        if let Some(next) = self.next.get().checked_sub(self.time_of(bytes)) {
            self.next.set(next);
        }
    }

    fn turn(&self, bytes: u64, now: Instant) -> Instant {
        let begin = self.next.get().max(now);
        self.next.set(begin + self.time_of(bytes));
        begin
    }

    /// At most some minutes, because pieces are small.
    fn time_of(&self, bytes: u64) -> Duration {
        self.bytes_per_sec
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces come no faster than the rate; bytes given back are not waited for; unused time does
    /// not accumulate.
    #[test]
    fn a_rate_is_kept() {
        let rate_limit = RateLimit::new(Some(Bytes(1 << 20))).unwrap();
        assert_eq!(
            (rate_limit.piece_bytes(16 << 20), rate_limit.piece_bytes(1 << 19)),
            (1 << 20, 1 << 19)
        );
        let now = Instant::now() + Duration::from_secs(1);
        let turn = |bytes, now: Instant| (rate_limit.turn(bytes, now) - now).as_secs_f64();
        assert_eq!([turn(1 << 20, now), turn(1 << 19, now), turn(1, now)], [0.0, 1.0, 1.5]);
        let later = now + Duration::from_secs(60);
        assert_eq!([turn(1 << 20, later), turn(1 << 20, later)], [0.0, 1.0]);
        rate_limit.give_back(1 << 20);
        assert_eq!(turn(1, later), 1.0);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let rate_limit = RateLimit::new(None).unwrap();
        assert_eq!(rate_limit.piece_bytes(16 << 20), 16 << 20);
        assert!(RateLimit::new(Some(Bytes(1000))).is_err());
    }
}
