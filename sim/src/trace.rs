use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::time::Duration;

/// Every event of a run as one rolling hash, and the last events as text for a report.
///
/// Law: two runs of one seed end with the same hash. A difference means that the run depends on
/// more than the seed, and no other finding is reproducible.
pub(crate) struct Trace {
    hash: u64,
    tail: VecDeque<String>,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace { hash: START, tail: VecDeque::with_capacity(TAIL_EVENTS) }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Takes in that a task was polled. Only hashed: as text, polls would push out everything else.
    pub(crate) fn poll(&mut self, at: Duration, task: u64) {
        self.hash = fold(self.hash, &at.as_nanos().to_le_bytes());
        self.hash = fold(self.hash, &task.to_le_bytes());
    }

    pub(crate) fn event(
        &mut self,
        at: Duration,
        process: &str,
        kind: &str,
        details: fmt::Arguments<'_>,
    ) {
        let mut line = if self.tail.len() < TAIL_EVENTS {
            String::new()
        } else {
            self.tail.pop_front().unwrap_or_default()
        };
        line.clear();
        write!(line, "{:>14.9} {process:<12} {kind:<14} {details}", at.as_secs_f64())
            .expect("a String takes all text");
        self.hash = fold(self.hash, &at.as_nanos().to_le_bytes());
        self.hash = fold(self.hash, line.as_bytes());
        self.tail.push_back(line);
    }

    /// The last events, oldest first, one a line.
    pub(crate) fn tail(&self) -> String {
        self.tail.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A short hash of bytes for traces and tags; not collision-resistant against attackers.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    fold(START, bytes)
}

/// Each word is taken in by a bijection, so texts that differ in one word differ in the
/// result; by words, because whole objects pass through here in unoptimised builds.
fn fold(hash: u64, bytes: &[u8]) -> u64 {
    let take_in = |hash: u64, word: u64| (hash ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(hash, |hash, word| take_in(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = rest.len() as u8;
    take_in(hash, u64::from_le_bytes(last))
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Odd, so that multiplying loses nothing.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Enough to see how a run got where it failed, short enough to read.
const TAIL_EVENTS: usize = 20000;
