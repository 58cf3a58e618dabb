//! Retries of bucket requests. A request that may be repeated is repeated with growing pauses until
//! its time limit, and `status` reports the trouble while it lasts.

use crate::Node;
use crate::admin::troubles::Subject;
use crate::buckets::borders::BucketIndex;
use ebb_model::{FsError, RpcError};
use ebb_ports::{BucketError, ListRequest, Object, PortFuture, Ports};
use futures_util::future::{Either, select};
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The share of one request, with the most requests at one time, of a line of some Mbit/s.
const SLOWEST_DOWNLOAD_BYTES_PER_SECOND: u64 = 16 << 10;

/// How often a request that the store has refused is repeated to see whether it still does.
pub(crate) const REFUSAL_INTERVAL: Duration = Duration::from_secs(30);

/// Bytes that arrive damaged so often in a row are damaged in the store.
pub(crate) const MAX_DAMAGED: u32 = 4;

/// Damage found in bytes of an object.
pub struct Damage {
    pub at: Range<u64>,
    pub what: String,
}

/// When a bucket last answered, by the monotonic clock.
#[derive(Default)]
pub struct Answers {
    pub any: Cell<Duration>,
    /// Answers to write requests.
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
    /// `asked` is the pause that the store has asked for, if it has.
    fn pause(&mut self, ports: &Ports, asked: Option<Duration>) -> Duration {
        let draw = ports.entropy.next_u64() as f64 / u64::MAX as f64;
        let pause = self.next / 2 + (self.next / 2).mul_f64(draw);
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        pause.max(asked.unwrap_or_default())
    }

    pub async fn wait(&mut self, ports: &Ports, asked: Option<Duration>) {
        let pause = self.pause(ports, asked);
        ports.clock.sleep(pause).await;
    }
}

/// Attempts at a request that may be repeated, for a stated time. A request with a body has the
/// time that a slow line needs for it in addition.
pub(crate) struct Attempts<'a> {
    ports: &'a Ports,
    deadline: Duration,
    slow_body: Duration,
    backoff: Backoff,
    /// The outcome of the attempt before, for the error of one that was given up.
    last: Option<BucketError>,
}

impl Attempts<'_> {
    pub(crate) fn new(ports: &Ports, patience: Duration, body_bytes: u64) -> Attempts<'_> {
        let deadline = ports.clock.monotonic() + patience;
        Attempts {
            ports,
            deadline,
            slow_body: slow_download(body_bytes),
            backoff: Backoff::default(),
            last: None,
        }
    }

    /// The attempt is given up at the time limit; `late` describes the request for the error.
    async fn attempt<T>(
        &self,
        ask: PortFuture<'_, Result<T, BucketError>>,
        late: impl Fn() -> String,
    ) -> Result<T, BucketError> {
        let left = self.deadline.saturating_sub(self.ports.clock.monotonic()) + self.slow_body;
        match select(ask, self.ports.clock.sleep(left)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                let before =
                    self.last.as_ref().map(|last| format!("; before: {last}")).unwrap_or_default();
                Err(BucketError::Unavailable {
                    what: format!("{}{before}", late()),
                    retry_after: None,
                })
            }
        }
    }

    /// How long to wait before the next attempt, if one follows this error.
    pub(crate) fn pause(&mut self, error: &BucketError) -> Option<Duration> {
        let pause =
            error.is_silence().then(|| self.backoff.pause(self.ports, error.retry_after()))?;
        self.last = Some(error.clone());
        (self.ports.clock.monotonic() + pause < self.deadline).then_some(pause)
    }
}

/// The time for so many bytes on the slowest download line that is waited for.
pub(crate) fn slow_download(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST_DOWNLOAD_BYTES_PER_SECOND)
}

/// Repeats a request until it is answered, without a node.
pub(crate) async fn ask<'a, T>(
    ports: &Ports,
    patience: Duration,
    body_bytes: u64,
    ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
) -> Result<T, BucketError> {
    let mut attempts = Attempts::new(ports, patience, body_bytes);
    let late = || format!("no answer of the bucket within {} s", patience.as_secs());
    loop {
        let error = match attempts.attempt(ask(), late).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match attempts.pause(&error) {
            Some(pause) => {
                tracing::warn!(%error, "the bucket did not answer: asking again");
                ports.clock.sleep(pause).await;
            }
            None => return Err(error),
        }
    }
}

impl Node {
    /// Repeats a request that changes nothing, and gives it up at the time limit, also in the
    /// middle of an attempt: the caller relies on that limit. An answer with `body_bytes` gets the
    /// time for them on a slow line in addition.
    pub(crate) async fn bucket_retry<'a, T>(
        &'a self,
        what: &str,
        key: &str,
        body_bytes: u64,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        let mut attempts = Attempts::new(&self.ports, self.options.bucket_timeout, body_bytes);
        let bucket_index = self.buckets.bucket_of_key(key);
        let subject = self.buckets.subject("bucket reads", bucket_index);
        loop {
            let attempt = attempts.attempt(ask(), || format!("no answer to {what} {key} in time"));
            let answer = self.waiting("the bucket", attempt).await;
            if !answer.as_ref().is_err_and(BucketError::is_silence) {
                self.buckets.answers(bucket_index).any.set(self.ports.clock.monotonic());
                self.trouble(&subject, None);
            }
            self.note_refusal(what, key, bucket_index, &answer);
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.is_silence() {
                self.trouble(
                    &subject,
                    Some(format!(
                        "{what} is not answered by {}: {error}",
                        self.buckets.describe(bucket_index)
                    )),
                );
            }
            match attempts.pause(&error).filter(|_| !self.is_stopping()) {
                Some(pause) => self.waiting("the bucket", self.ports.clock.sleep(pause)).await,
                None => return Err(error),
            }
        }
    }

    /// Reports a refusal for as long as the store repeats it.
    fn note_refusal<T>(
        &self,
        request: &str,
        key: &str,
        bucket_index: BucketIndex,
        answer: &Result<T, BucketError>,
    ) {
        let reason = match answer {
            Err(error) if error.is_silence() => return,
            Err(error @ (BucketError::Forbidden { .. } | BucketError::Refused { .. })) => {
                Some(format!(
                    "{} refuses to {request} {key:?}: {error}",
                    self.buckets.describe(bucket_index)
                ))
            }
            _ => None,
        };
        self.trouble(Subject::Refusal { key: key.into(), request: request.into() }, reason);
    }

    /// Repeats the oldest request that the store has refused, if that is long ago: there may be no
    /// other request to show that the refusal is over.
    pub(crate) async fn repeat_refused(&self) {
        let before = self.ports.clock.monotonic().saturating_sub(REFUSAL_INTERVAL);
        let Some((request, key)) = self.instruments.troubles().take_refusal_of(before) else {
            return;
        };
        // The call records its outcome itself.
        let (Ok(()) | Err(_)) = match request.as_str() {
            "get" => {
                let get = || self.buckets.bucket().get(&key, Some(0..1), None);
                self.bucket_retry("get", &key, 0, get).await.map(drop)
            }
            "head" => self
                .bucket_retry("head", &key, 0, || self.buckets.bucket().head(&key))
                .await
                .map(drop),
            _ => {
                let first =
                    ListRequest { prefix: key.clone(), by_directory: true, after: None, limit: 1 };
                let list = || self.buckets.bucket().list(first.clone());
                self.bucket_retry("list", &key, 0, list).await.map(drop)
            }
        };
    }

    /// Gets bytes of an object, and gets them again if they differ from the written ones: bytes
    /// damaged in transit arrive whole the next time. The caller reports that they have arrived
    /// whole ([`Node::is_sound`]).
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

    /// Reports a damaged object and returns the message for it.
    pub(crate) fn is_damaged(&self, key: &str, Damage { at, what }: &Damage) -> String {
        let what = format!("{key} came from the bucket as it was not written: {what}");
        self.trouble(
            Subject::Content { key: key.into(), at: at.start, end: at.end },
            Some(what.clone()),
        );
        what
    }

    /// These bytes of an object were right just now, or the object is gone. Damage of a wider range
    /// may persist.
    pub(crate) fn is_sound(&self, key: &str, range: &Range<u64>) {
        if !self.instruments.troubles().is_empty() {
            let content = |at| Subject::Content { key: key.into(), at, end: at };
            let is_within = |subject: &Subject| matches!(subject, Subject::Content { end, .. } if *end <= range.end);
            self.instruments
                .troubles()
                .end(content(range.start)..content(range.end), |subject, _| is_within(subject));
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
            // A request without an answer is recorded as a trouble.
            if !error.is_silence() && !matches!(error, BucketError::NotFound { .. }) {
                tracing::warn!(%error, what, "the bucket did not do its part");
            }
            bucket_refusal(&error)
        })
    }
}

/// The error that a request gets when the bucket fails.
pub(crate) fn bucket_refusal(error: &BucketError) -> RpcError {
    RpcError::Refused(match error {
        BucketError::NotFound { .. } => FsError::NotFound,
        BucketError::Forbidden { .. } => FsError::AccessDenied,
        BucketError::Precondition { .. }
        | BucketError::Refused { .. }
        | BucketError::Nested { .. }
        | BucketError::Corrupt { .. } => FsError::Io,
        BucketError::Unavailable { .. } | BucketError::Unknown { .. } => FsError::TimedOut,
        BucketError::Unended { why } => return bucket_refusal(why),
    })
}
