//! A write to the bucket as a transaction: logged before it begins, repeated until its outcome is
//! clear, and its end logged (O-75…77).

use crate::Node;
use crate::buckets::ask::Backoff;
use crate::buckets::head::LATE_EFFECT;
use crate::flush::POLL;
use ebb_core::state::State;
use ebb_model::*;
use ebb_ports::{BucketError, PortFuture, UploadId};
use futures_util::future::join_all;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

/// Keys of requests that were given up without an answer, and until when those may have effects.
#[derive(Default)]
pub struct UnknownOutcomes {
    until: RefCell<BTreeMap<String, Duration>>,
}

impl UnknownOutcomes {
    fn add(&self, keys: impl IntoIterator<Item = String>, now: Duration) {
        let mut until = self.until.borrow_mut();
        until.retain(|_, until| *until > now);
        until.extend(keys.into_iter().map(|key| (key, now + LATE_EFFECT)));
    }

    fn until(&self, key: &str) -> Duration {
        self.until.borrow().get(key).copied().unwrap_or_default()
    }

    /// When the last of them can no longer arrive.
    fn last(&self) -> Duration {
        self.until.borrow().values().max().copied().unwrap_or_default()
    }
}

/// Why one piece of work has not succeeded.
#[derive(Debug)]
pub(crate) enum FlushError {
    Bucket(BucketError),
    Node(RpcError),
    /// Another step must end first; the next cycle tries again.
    Later,
}

impl From<BucketError> for FlushError {
    fn from(error: BucketError) -> Self {
        FlushError::Bucket(error)
    }
}

impl From<RpcError> for FlushError {
    fn from(error: RpcError) -> Self {
        FlushError::Node(error)
    }
}

impl Node {
    /// Whether this node may write to the bucket.
    pub(super) fn may_write(&self) -> bool {
        match self.buckets.head_lease() {
            Some(head_lease) if head_lease.holds() => {
                self.trouble("head lease", None);
                true
            }
            Some(head_lease) => {
                let what = match head_lease.lost_to() {
                    Some(owner) => format!(
                        "the volume was taken over by {owner}: nothing more is \
                        written to the bucket from here"
                    ),
                    None => {
                        "the volume's head could not be renewed in time: nothing is written to \
                        the bucket until it is"
                            .into()
                    }
                };
                self.trouble("head lease", Some(what));
                false
            }
            None => false,
        }
    }

    /// Logs that `key` is about to be written for `ino`, unless it is no longer the key to write.
    /// That and all earlier commands are forced: the bucket is never ahead of the state that a
    /// power cut would leave here.
    pub(crate) async fn log_upload_begun(
        &self,
        ino: Ino,
        key: &str,
        planned: impl FnOnce(&State) -> bool,
    ) -> Result<(), FlushError> {
        self.await_late_effects(key)?;
        let mut stands = true;
        let begun = self
            .replica
            .propose(|state| {
                // A rename since the step was planned may have given the key to another file.
                stands = planned(state);
                match stands {
                    true => Ok(Command::Backing(BackingCommand::UploadBegun {
                        ino,
                        key: key.into(),
                        upload: None,
                    })),
                    false => Err(RpcError::Retry),
                }
            })
            .await;
        if !stands {
            return Err(FlushError::Later);
        }
        self.perform_effects(begun?.1, None).await?;
        if !Planted::ClaimNotForced.is_on()
            && let Err(error) = self.force_log().await
        {
            self.log_upload_aborted(ino).await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// How long the end of an upload is waited for: earlier requests may have to end first.
    pub(crate) fn upload_patience(&self) -> Duration {
        self.options.bucket_timeout + LATE_EFFECT
    }

    /// An earlier request could still undo the next change of the key.
    pub(super) fn await_late_effects(&self, key: &str) -> Result<(), FlushError> {
        let until = self.flusher.unknown_outcomes.until(key).max(self.buckets.late_until());
        let is_over = Planted::LateEffectIgnored.is_on() || self.ports.clock.monotonic() >= until;
        if !is_over { Err(FlushError::Later) } else { Ok(()) }
    }

    /// Waits until no earlier request can take effect any more, and keeps the volume during that
    /// time.
    pub(crate) async fn outlast_late_effects(&self) {
        let until = self.flusher.unknown_outcomes.last().max(self.buckets.late_until());
        join_all(self.buckets.head_leases().map(|head_lease| head_lease.keep_until(until))).await;
    }

    /// Waits until no earlier request can change the key any more.
    pub(super) async fn outlast_unknown_outcomes(&self, key: &str) {
        self.ports
            .clock
            .sleep(
                self.flusher
                    .unknown_outcomes
                    .until(key)
                    .saturating_sub(self.ports.clock.monotonic()),
            )
            .await;
    }

    pub(super) fn note_unknown_outcomes(&self, keys: impl IntoIterator<Item = String>) {
        self.flusher.unknown_outcomes.add(keys, self.ports.clock.monotonic());
    }

    pub(crate) async fn log_upload_aborted(&self, ino: Ino) -> Result<(), RpcError> {
        self.log_upload_ended(BackingCommand::UploadAborted { ino }).await
    }

    /// Logs how a write to the bucket has ended. A write that has begun must end, or its key is
    /// blocked: while the node's disk is full, the end waits.
    pub(crate) async fn log_upload_ended(&self, end: BackingCommand) -> Result<(), RpcError> {
        let mut backoff = Backoff::default();
        loop {
            match self.try_log_upload_ended(end.clone()).await {
                Err(RpcError::Refused(FsError::NoSpace)) if !self.is_stopping() => {
                    self.trouble("space", Some("the node's disk is full".into()));
                    backoff.wait(&self.ports, None).await;
                }
                ended => return ended,
            }
        }
    }

    pub(super) async fn try_log_upload_ended(&self, end: BackingCommand) -> Result<(), RpcError> {
        let sent = match &end {
            BackingCommand::Uploaded { ino, .. } => Some(*ino),
            _ => None,
        };
        let (index, applied) =
            self.replica.propose(|state| Ok(Command::Backing(with_findings(state, end)))).await?;
        if let Some(ino) = sent {
            self.flusher.note_sent(ino, index, self.replica.durable());
        }
        self.perform_effects(applied, None).await
    }

    /// Repeats a request for as long as its outcome is unknown, which ends with an answer or with
    /// the node. A repeated request is guarded by its condition, or changes nothing when it is done
    /// twice.
    pub(crate) async fn call_until_answered<'a, T>(
        &'a self,
        key: &str,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        self.ask_until_clear(key, &Cell::new(false), ask).await
    }

    /// Ends uploads of a key that were begun without an answer, so that no task will ever complete
    /// them.
    pub(super) async fn abort_unanswered(
        &self,
        key: &str,
        heard: Option<&UploadId>,
    ) -> Result<(), BucketError> {
        self.abort_where_allowed(key, async || {
            let uploads = self.buckets.bucket().uploads(key).await?;
            let ends = |upload: &&UploadId| Some(*upload) != heard;
            for upload in uploads.iter().filter(ends).filter(|_| !Planted::UploadsLeft.is_on()) {
                self.buckets.bucket().upload_abort(key, upload).await?;
            }
            Ok(())
        })
        .await
    }

    /// Ends an upload that must not be completed.
    pub(super) async fn abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        self.abort_where_allowed(key, async || {
            self.buckets.bucket().upload_abort(key, upload).await
        })
        .await
    }

    /// Credentials for everything else may still not permit to list uploads or to end them: then
    /// that is left to the store's own rules. An error says that the node stops before it is clear.
    async fn abort_where_allowed(
        &self,
        key: &str,
        abort: impl AsyncFn() -> Result<(), BucketError>,
    ) -> Result<(), BucketError> {
        let final_if_forbidden = |error| match error {
            BucketError::Forbidden { what } => BucketError::Refused { what },
            other => other,
        };
        for _ in 0..MAX_REFUSED_ABORTS {
            match self
                .persist(key, || Box::pin(async { abort().await.map_err(final_if_forbidden) }))
                .await
            {
                Ok(()) | Err(BucketError::NotFound { .. }) => return Ok(()),
                Err(unclear @ BucketError::Unknown { .. }) => return Err(unclear),
                Err(error) => {
                    tracing::warn!(key, %error, "an upload that nobody will complete may be left \
                        open")
                }
            }
            // The bucket may refuse all changes for a while: waits until the head can be renewed.
            self.await_renewal(key).await?;
        }
        Ok(())
    }

    /// Waits until the head of the key's bucket is written once more, which this node does all the
    /// time. An error means that the node stops.
    async fn await_renewal(&self, key: &str) -> Result<(), BucketError> {
        let now = self.ports.clock.monotonic();
        let Some(head_lease) = self.buckets.head_lease_of(self.buckets.bucket_of_key(key)) else {
            return Ok(());
        };
        while head_lease.renewed() <= now {
            if self.is_stopping() {
                return Err(BucketError::Unknown {
                    what: format!("{key} is left to the next start"),
                });
            }
            self.ports.clock.sleep(POLL).await;
        }
        Ok(())
    }

    /// Repeats a request also for as long as the bucket cannot be asked or forbids it: a half-done
    /// change cannot be left before the answer.
    pub(crate) async fn persist<'a, T>(
        &'a self,
        key: &str,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        self.ask_until_clear(key, &Cell::new(true), ask).await
    }

    /// `is_unknown`: a request may have been carried out without an answer. An error that says that
    /// nothing was done then concerns only the last one.
    pub(crate) async fn ask_until_clear<'a, T>(
        &'a self,
        key: &str,
        is_unknown: &Cell<bool>,
        ask: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        let mut backoff = Backoff::default();
        let mut outlasted = false;
        loop {
            let asked = match self.may_write() {
                true => ask().await,
                false => Err(BucketError::Unavailable {
                    what: "the volume is not this node's to write".into(),
                    retry_after: None,
                }),
            };
            self.buckets.heard(key, &asked, self.ports.clock.monotonic());
            let (what, retry_after) = match asked {
                Err(BucketError::Unknown { what }) => {
                    is_unknown.set(true);
                    outlasted = false;
                    self.note_unknown_outcomes([key.to_owned()]);
                    (what, None)
                }
                Err(BucketError::Unavailable { what, retry_after }) if is_unknown.get() => {
                    (what, retry_after)
                }
                Err(BucketError::Forbidden { what }) if is_unknown.get() => (what, None),
                // The conflict with this request may be gone before an earlier one arrives, which
                // would then succeed.
                Err(BucketError::Nested { .. }) if is_unknown.get() && !outlasted => {
                    self.outlast_unknown_outcomes(key).await;
                    outlasted = true;
                    continue;
                }
                answer => return answer,
            };
            if self.is_stopping() || self.buckets.lost_to().is_some() {
                return Err(BucketError::Unknown { what });
            }
            self.trouble(
                &self.buckets.subject("bucket writes", self.buckets.bucket_of_key(key)),
                Some(what),
            );
            backoff.wait(&self.ports, retry_after).await;
        }
    }
}

const MAX_REFUSED_ABORTS: usize = 3;

/// The end of an upload, with the blocks that a store through a mapping can have changed since.
fn with_findings(state: &State, end: BackingCommand) -> BackingCommand {
    let BackingCommand::Uploaded { ino, key, etag, len_bytes, version } = end else { return end };
    let changed = state.extents().changed_since(ino, version);
    if changed.is_empty() {
        return BackingCommand::Uploaded { ino, key, etag, len_bytes, version };
    }
    let changed = changed.into_iter().map(|run| (run.start, run.end)).collect();
    BackingCommand::UploadedMapped { ino, key, etag, len_bytes, version, changed }
}
