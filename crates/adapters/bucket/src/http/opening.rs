//! The patience of an opening: a request that meets a passing fault is sent again, within a stated
//! time. After the opening the node repeats requests itself.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Opening {
    patience: Duration,
    began: Instant,
    /// The store has answered a request, with success or failure.
    answered: AtomicBool,
    /// A connection was made, and ended without an answer.
    was_cut: AtomicBool,
    /// No later attempt can end otherwise: a certificate, a protocol or a name is wrong.
    is_hopeless: AtomicBool,
}

/// One request's attempts.
pub(crate) struct Attempts<'a> {
    opening: &'a Opening,
    made: u32,
    next_pause: Duration,
    /// The time for all attempts that was last reported.
    reported: Option<Duration>,
}

impl Opening {
    pub fn new(patience: Duration) -> Opening {
        Opening {
            patience,
            began: Instant::now(),
            answered: AtomicBool::new(false),
            was_cut: AtomicBool::new(false),
            is_hopeless: AtomicBool::new(false),
        }
    }

    pub fn note_answer(&self) {
        self.answered.store(true, Relaxed);
    }

    pub fn note_cut(&self) {
        self.was_cut.store(true, Relaxed);
    }

    /// Every connection ended without an answer.
    pub fn was_only_cut(&self) -> bool {
        self.was_cut.load(Relaxed) && !self.was_answered()
    }

    pub fn note_hopeless(&self) {
        self.is_hopeless.store(true, Relaxed);
    }

    pub fn was_answered(&self) -> bool {
        self.answered.load(Relaxed)
    }

    /// An address at which nothing answers is more often wrong than at fault.
    fn limit(&self) -> Duration {
        if self.was_answered() { self.patience } else { self.patience.min(UNREACHED_PATIENCE) }
    }

    pub fn attempts(&self) -> Attempts<'_> {
        Attempts { opening: self, made: 0, next_pause: FIRST_PAUSE, reported: None }
    }
}

impl Attempts<'_> {
    /// How long the next attempt may take. The first one may take all of the patience: a store
    /// can be slow to answer for the first time. Later ones end within the time that was reported.
    pub fn left(&self) -> Duration {
        let limit = self.reported.unwrap_or(self.opening.patience);
        limit.saturating_sub(self.opening.began.elapsed()).max(least_attempt(limit))
    }

    /// Waits before the next attempt; false if this fault is the last. The store may request a
    /// pause.
    pub async fn wait(&mut self, fault: &str, asked: Option<Duration>) -> bool {
        self.made += 1;
        let pause = self.next_pause.max(asked.unwrap_or_default());
        self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        let limit = self.opening.limit();
        let elapsed = self.opening.began.elapsed();
        if self.opening.is_hopeless.load(Relaxed) || elapsed + pause + least_attempt(limit) > limit
        {
            return false;
        }
        // An answer of the store makes it longer.
        if self.reported != Some(limit) {
            let left = (limit - elapsed).as_secs().max(1);
            tracing::warn!("{fault}: asking again, for up to {left} s");
            self.reported = Some(limit);
        }
        tokio::time::sleep(pause).await;
        true
    }

    /// The attempts so far, for the final error.
    pub fn tried(&self) -> String {
        match self.made {
            0 | 1 => String::new(),
            made => format!(
                " (asked {made} times within {} s)",
                self.opening.began.elapsed().as_secs().max(1)
            ),
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long to retry a store that has answered nothing.
const UNREACHED_PATIENCE: Duration = Duration::from_secs(10);
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);

/// With less time left than this no attempt begins.
fn least_attempt(limit: Duration) -> Duration {
    LEAST_ATTEMPT.min(limit / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Situation: nothing answers at the address. Expectation: the attempts after the report end
    /// within the reported 10 s, though the patience is longer, and those after an answer within
    /// the patience.
    #[tokio::test]
    async fn opening_attempt_ends_within_the_reported_time() {
        let patience = 6 * UNREACHED_PATIENCE;
        let opening = Opening::new(patience);
        let mut attempts = opening.attempts();
        assert!(attempts.left() > UNREACHED_PATIENCE);
        assert!(attempts.wait("refused", None).await);
        assert!(attempts.left() < UNREACHED_PATIENCE);
        assert!(!attempts.wait("refused", Some(UNREACHED_PATIENCE)).await);
        opening.note_answer();
        assert!(attempts.wait("busy", None).await);
        assert!((UNREACHED_PATIENCE..patience).contains(&attempts.left()));
    }
}
