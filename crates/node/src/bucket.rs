//! Asking the bucket again: what may be repeated is repeated with growing pauses until
//! the stated time is over, and `status` says what is wrong meanwhile.

use crate::Node;
use crate::borders::Side;
use crate::load::bucket_refusal;
use crate::troubles::Subject;
use ebb_model::RpcError;
use ebb_ports::{Bucket, BucketError, Object, PortFuture, Ports};
use futures_util::future::{Either, select};
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One of as many requests as are made at one time over a line of some Mbit/s.
pub(crate) const SLOWEST_BODY_BYTES_PER_SECOND: u64 = 16 << 10;

/// What comes damaged so often in a row is so in the store.
pub(crate) const MAX_DAMAGED: u32 = 4;

/// What is wrong with bytes of an object.
pub struct Damage {
    pub at: Range<u64>,
    pub what: String,
}

/// When a bucket last answered, by the monotonic clock.
#[derive(Default)]
pub struct Answers {
    pub any: Cell<Duration>,
    /// To who writes.
    pub writes: Cell<Duration>,
}

/// The pause before another attempt: doubling, with up to half of it at random so that
/// many clients do not come back together.
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { next: FIRST_PAUSE }
    }
}

impl Backoff {
    pub fn pause(&mut self, draw: u64, asked: Option<Duration>) -> Duration {
        let pause = self.next / 2 + (self.next / 2).mul_f64(draw as f64 / u64::MAX as f64);
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        pause.max(asked.unwrap_or_default())
    }
}

/// Repeats a request that does the same however often it is carried out until it is answered, for the stated
/// time, where no node asks; one with a body of `body_bytes` has the time that a slow line needs for it besides.
pub(crate) async fn ask<'a, T>(
    ports: &Ports,
    patience: Duration,
    body_bytes: u64,
    ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
) -> Result<T, BucketError> {
    let clock = &ports.clock;
    let deadline = clock.monotonic() + patience;
    let slow_body = Duration::from_secs(body_bytes / SLOWEST_BODY_BYTES_PER_SECOND);
    let mut backoff = Backoff::default();
    loop {
        let left = deadline.saturating_sub(clock.monotonic()) + slow_body;
        let error = match select(ask(), clock.sleep(left)).await {
            Either::Left((Ok(answer), _)) => return Ok(answer),
            Either::Left((Err(error), _)) => error,
            Either::Right(_) => BucketError::Unavailable { what: "no answer of the bucket in time".into(), retry_after: None },
        };
        let asked = match &error {
            BucketError::Unavailable { retry_after, .. } => *retry_after,
            BucketError::Unknown { .. } => None,
            _ => return Err(error),
        };
        let pause = backoff.pause(ports.entropy.next_u64(), asked);
        if clock.monotonic() + pause >= deadline {
            return Err(error);
        }
        clock.sleep(pause).await;
    }
}

impl Node {
    /// The bucket of a volume that has one: flows that ask it start only there.
    pub(crate) fn bucket(&self) -> &dyn Bucket {
        &**self.bucket.as_ref().expect("only a volume with a bucket has names or bytes to fetch and to flush")
    }

    pub(crate) fn answers(&self, side: Side) -> &Answers {
        &self.answers[side.0]
    }

    /// What became of a request of who writes.
    pub(crate) fn heard<T>(&self, key: &str, answer: &Result<T, BucketError>) {
        if !answer.as_ref().is_err_and(is_silence) {
            let (answers, now) = (self.answers(self.side_of_key(key)), self.ports.clock.monotonic());
            answers.any.set(now);
            answers.writes.set(now);
        }
    }

    /// Repeats a request that changes nothing, and gives it up when the stated time is over,
    /// also in the midst of an attempt: whoever waits has been told how long that may take. An
    /// answer with `body_bytes` has the time that a slow line needs for them besides.
    pub(crate) async fn bucket_retry<'a, T>(
        &'a self,
        what: &str,
        key: &str,
        body_bytes: u64,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        let deadline = self.ports.clock.monotonic() + self.options.bucket_timeout;
        let slow_body = Duration::from_secs(body_bytes / SLOWEST_BODY_BYTES_PER_SECOND);
        let mut backoff = Backoff::default();
        let side = self.side_of_key(key);
        let subject = self.subject("bucket reads", side);
        loop {
            let left = deadline.saturating_sub(self.ports.clock.monotonic()) + slow_body;
            let answer = match self.waiting("the bucket", select(ask(), self.ports.clock.sleep(left))).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(BucketError::Unavailable { what: format!("no answer to {what} {key} in time"), retry_after: None }),
            };
            if !answer.as_ref().is_err_and(is_silence) {
                self.answers(side).any.set(self.ports.clock.monotonic());
                self.trouble(&subject, None);
            }
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let asked = match &error {
                BucketError::Unavailable { retry_after, .. } => *retry_after,
                BucketError::Unknown { .. } => None,
                _ => return Err(error),
            };
            self.trouble(&subject, Some(format!("{what} is not answered by {}: {error}", self.describe(side))));
            let pause = backoff.pause(self.ports.entropy.next_u64(), asked);
            if self.ports.clock.monotonic() + pause >= deadline || self.is_stopping() {
                return Err(error);
            }
            self.waiting("the bucket", self.ports.clock.sleep(pause)).await;
        }
    }

    /// Gets bytes of an object, and gets them again where they are not what was written: what was
    /// damaged on its way comes whole the next time. That it has come whole is for the caller to say.
    pub(crate) async fn get_sound<'a, T>(
        &'a self,
        key: &str,
        body_bytes: u64,
        get: impl Fn() -> PortFuture<'a, Result<Object, BucketError>>,
        sound: impl Fn(Object) -> Result<T, Damage>,
    ) -> Result<T, BucketError> {
        let mut attempt = 1;
        loop {
            let damage = match sound(self.bucket_retry("get", key, body_bytes, &get).await?) {
                Ok(value) => return Ok(value),
                Err(damage) => damage,
            };
            if attempt == MAX_DAMAGED {
                return Err(BucketError::Corrupt { what: self.is_damaged(key, &damage) });
            }
            let Damage { what, .. } = damage;
            tracing::warn!(attempt, key, "damaged on its way: {what}");
            attempt += 1;
        }
    }

    /// An object is not what was written: what is said of it.
    pub(crate) fn is_damaged(&self, key: &str, Damage { at, what }: &Damage) -> String {
        let what = format!("{key} came from the bucket as it was not written: {what}");
        self.trouble(Subject::Content { key: key.into(), at: at.start, end: at.end }, Some(what.clone()));
        what
    }

    /// These bytes of an object were right just now, or there are none any more. What was wrong with more than them may be still.
    pub(crate) fn is_sound(&self, key: &str, range: &Range<u64>) {
        if !self.troubles.is_empty() {
            let content = |at| Subject::Content { key: key.into(), at, end: at };
            let is_within = |subject: &Subject| matches!(subject, Subject::Content { end, .. } if *end <= range.end);
            self.troubles.end(content(range.start)..content(range.end), |subject, _| is_within(subject));
        }
    }

    /// [`Node::bucket_retry`] for flows of requests.
    pub(crate) async fn bucket_read<'a, T>(
        &'a self,
        what: &str,
        key: &str,
        body_bytes: u64,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, RpcError> {
        self.bucket_retry(what, key, body_bytes, ask).await.map_err(|error| {
            // What is not answered is a trouble.
            if !is_silence(&error) && !matches!(error, BucketError::NotFound { .. }) {
                tracing::warn!(%error, what, "the bucket did not do its part");
            }
            bucket_refusal(&error)
        })
    }
}

/// The bucket has not answered. Whatever else it says is an answer.
fn is_silence(error: &BucketError) -> bool {
    matches!(error, BucketError::Unavailable { .. } | BucketError::Unknown { .. })
}
