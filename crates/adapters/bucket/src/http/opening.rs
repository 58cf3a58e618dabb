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
        Attempts { opening: self, made: 0, next_pause: FIRST_PAUSE }
    }

    /// How long one attempt may take.
    pub fn left(&self) -> Duration {
        self.patience.saturating_sub(self.began.elapsed()).max(LEAST_ATTEMPT)
    }
}

impl Attempts<'_> {
    /// Waits before the next attempt; false if this fault is the last. The store may request a
    /// pause.
    pub async fn wait(&mut self, fault: &str, asked: Option<Duration>) -> bool {
        self.made += 1;
        let pause = self.next_pause.max(asked.unwrap_or_default());
        self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        let limit = self.opening.limit();
        if self.opening.is_hopeless.load(Relaxed) || self.opening.began.elapsed() + pause > limit {
            return false;
        }
        if self.made == 1 {
            tracing::warn!("{fault}: asking again, for up to {} s", limit.as_secs());
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
