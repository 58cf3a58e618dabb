//! A bucket wrapper with two limits: bodies pass at the stated rate and at the speed of the line at
//! most, and writes pass only while this node owns the bucket.
//!
//! A body is let through once the bodies before it have taken their time at the stated rate. The
//! next one is the request that would end first over the slowest line that is waited for. So a
//! small body waits for one large body at most and not for all earlier ones, and no large one waits
//! for ever. Requests without a body, lists and the head of the volume bypass the queue: a rate
//! limit never costs a node its volume.

use crate::buckets::ask::slow_download;
use crate::buckets::head::HeadLease;
use crate::buckets::upload_window::{Fate, UploadWindow};
use bytes::Bytes;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Clock, Condition, ETag, ListPage, ListRequest, Object,
    ObjectMeta, ObjectTags, PartTag, Piece, PortFuture, Signal, UploadId,
};
use futures_util::future::select;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How fast all buckets of a volume may be used together; `None`: without limit.
pub struct RateLimits {
    clock: Rc<dyn Clock>,
    download: Option<TokenBucket>,
    upload: Option<TokenBucket>,
}

impl RateLimits {
    pub fn new(
        clock: &Rc<dyn Clock>,
        download_bytes_per_sec: Option<u64>,
        upload_bytes_per_sec: Option<u64>,
    ) -> RateLimits {
        let tokens = |rate| TokenBucket::new(clock.clone(), rate);
        RateLimits {
            clock: clock.clone(),
            download: download_bytes_per_sec.map(tokens),
            upload: upload_bytes_per_sec.map(tokens),
        }
    }
}

/// Requests that wait until the time of earlier ones is over.
struct TokenBucket {
    clock: Rc<dyn Clock>,
    bytes_per_sec: u64,
    /// Monotonic time at which all bodies let through have taken their time.
    free_at: Cell<Duration>,
    waiting: RefCell<BTreeSet<Turn>>,
    last_number: Cell<u64>,
    /// A request has left the queue.
    left: Signal,
}

/// When a request would end over the slowest line, and its number.
type Turn = (Duration, u64);

struct Waiting<'a> {
    tokens: &'a TokenBucket,
    turn: Turn,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.tokens.waiting.borrow_mut().remove(&self.turn);
        self.tokens.left.raise();
    }
}

impl TokenBucket {
    fn new(clock: Rc<dyn Clock>, bytes_per_sec: u64) -> TokenBucket {
        TokenBucket {
            clock,
            bytes_per_sec: bytes_per_sec.max(1),
            free_at: Cell::default(),
            waiting: RefCell::default(),
            last_number: Cell::default(),
            left: Signal::default(),
        }
    }

    /// Waits for the turn of so many bytes.
    async fn pass(&self, bytes: u64) {
        let ends = self.clock.monotonic() + slow_download(bytes);
        self.last_number.set(self.last_number.get() + 1);
        let turn = (ends, self.last_number.get());
        self.waiting.borrow_mut().insert(turn);
        let waiting = Waiting { tokens: self, turn };
        loop {
            let left = self.left.wait();
            let (now, free_at) = (self.clock.monotonic(), self.free_at.get());
            let is_first = self.waiting.borrow().first() == Some(&waiting.turn);
            match is_first {
                true if now >= free_at => break,
                true => drop(select(pin!(left), self.clock.sleep(free_at - now)).await),
                false => left.await,
            }
        }
        self.charge(bytes);
    }

    fn charge(&self, bytes: u64) {
        self.free_at.set(self.free_at.get().max(self.clock.monotonic()) + self.time_of(bytes));
    }

    /// Corrects the charge if the received bytes differ from the expected ones.
    fn settle(&self, expected_bytes: u64, bytes: u64) {
        self.charge(bytes.saturating_sub(expected_bytes));
        self.free_at.set(
            self.free_at.get().saturating_sub(self.time_of(expected_bytes.saturating_sub(bytes))),
        );
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_millis(bytes.saturating_mul(1000) / self.bytes_per_sec)
    }
}

pub struct RateLimitedBucket {
    inner: Rc<dyn Bucket>,
    rate_limits: Rc<RateLimits>,
    window: UploadWindow,
    /// None where nothing is written at all.
    head_lease: Option<Rc<HeadLease>>,
}

impl RateLimitedBucket {
    /// Several buckets may share the same `rate_limits`.
    pub fn new(
        inner: Rc<dyn Bucket>,
        rate_limits: Rc<RateLimits>,
        head_lease: Option<Rc<HeadLease>>,
    ) -> RateLimitedBucket {
        RateLimitedBucket {
            inner,
            window: UploadWindow::new(rate_limits.clock.clone()),
            rate_limits,
            head_lease,
        }
    }

    /// Refuses a write once another node may have the bucket, also after a long wait for its turn.
    async fn write<'a, T>(
        &'a self,
        body_bytes: u64,
        send: impl FnOnce(&'a dyn Bucket) -> PortFuture<'a, Result<T, BucketError>>,
    ) -> Result<T, BucketError> {
        if let Some(tokens) = self.rate_limits.upload.as_ref().filter(|_| body_bytes > 0) {
            tokens.pass(body_bytes).await;
        }
        let sending = self.window.send(body_bytes).await;
        self.head_lease.as_ref().map_or(Ok(()), |head_lease| head_lease.check())?;
        let sent = send(&*self.inner).await;
        if let Some(sending) = sending {
            sending.ended(match &sent {
                Ok(_) => Fate::Taken,
                Err(error) if error.is_silence() => Fate::Lost,
                Err(_) => Fate::Refused,
            });
        }
        sent
    }
}

impl Bucket for RateLimitedBucket {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        let Some(tokens) = &self.rate_limits.download else {
            return self.inner.get(key, range, if_match);
        };
        let (key, if_match) = (key.to_owned(), if_match.cloned());
        Box::pin(async move {
            // The length of a whole object is unknown before its answer.
            let expected_bytes =
                range.as_ref().map_or(0, |range| range.end.saturating_sub(range.start));
            tokens.pass(expected_bytes).await;
            let answer = self.inner.get(&key, range, if_match.as_ref()).await;
            tokens.settle(
                expected_bytes,
                answer.as_ref().map_or(0, |object| object.body.len() as u64),
            );
            answer
        })
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        self.inner.head(key)
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let key = key.to_owned();
        Box::pin(self.write(body.len() as u64, move |inner| inner.put(&key, body, condition, tags)))
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, if_match) = (key.to_owned(), if_match.cloned());
        Box::pin(self.write(0, move |inner| inner.delete(&key, if_match.as_ref())))
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (from, to, if_match) = (from.to_owned(), to.to_owned(), if_match.cloned());
        Box::pin(self.write(0, move |inner| inner.copy(&from, &to, if_match.as_ref(), condition)))
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        self.inner.list(request)
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        let key = key.to_owned();
        Box::pin(self.write(0, move |inner| inner.upload_begin(&key, tags)))
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(
            self.write(body.len() as u64, move |inner| {
                inner.upload_part(&key, &upload, number, body)
            }),
        )
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(self.write(0, move |inner| inner.upload_part_copy(&key, &upload, number, from)))
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(self.write(0, move |inner| inner.upload_complete(&key, &upload, parts, condition)))
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(self.write(0, move |inner| inner.upload_abort(&key, &upload)))
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        self.inner.uploads(key)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn room_bytes(&self) -> PortFuture<'_, Result<Option<u64>, BucketError>> {
        self.inner.room_bytes()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn endpoint(&self) -> Option<String> {
        self.inner.endpoint()
    }
}
