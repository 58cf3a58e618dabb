//! Asking the bucket again: what may be repeated is repeated with growing pauses until
//! the stated time is over, and `status` says what is wrong meanwhile.

use crate::Node;
use crate::load::bucket_refusal;
use ebb_model::RpcError;
use ebb_ports::{Bucket, BucketError, PortFuture};
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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

impl Node {
    /// The bucket of a volume that has one: flows that ask it start only there.
    pub(crate) fn bucket(&self) -> &dyn Bucket {
        &**self.bucket.as_ref().expect("only a volume with a bucket has names or bytes to fetch and to flush")
    }

    /// Repeats a request that changes nothing.
    pub(crate) async fn bucket_retry<'a, T>(
        &'a self,
        what: &str,
        key: &str,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        let deadline = self.ports.clock.monotonic() + self.options.bucket_timeout;
        let mut backoff = Backoff::default();
        let side = self.side_of_key(key);
        let subject = self.subject("bucket reads", side);
        loop {
            let error = match ask().await {
                Ok(answer) => {
                    self.trouble(&subject, None);
                    return Ok(answer);
                }
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
            self.ports.clock.sleep(pause).await;
        }
    }

    /// [`Node::bucket_retry`] for flows of requests.
    pub(crate) async fn bucket_read<'a, T>(
        &'a self,
        what: &str,
        key: &str,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, RpcError> {
        self.bucket_retry(what, key, ask).await.map_err(|error| {
            if !matches!(error, BucketError::NotFound { .. }) {
                tracing::warn!(%error, what, "the bucket did not do its part");
            }
            bucket_refusal(&error)
        })
    }
}
