//! A bucket that counts its requests.

use crate::{
    Bucket, BucketError, Capabilities, Clock, Condition, ETag, ListPage, ListRequest, Object,
    ObjectMeta, ObjectTags, PartTag, Piece, PortFuture, UploadId,
};
use bytes::Bytes;
use ebb_model::Tallies;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Counts the requests to a bucket by kind.
///
/// A missing object and a failed condition count as replies, not as errors. A request whose future
/// is dropped counts as failed.
pub struct CountedBucket {
    inner: Rc<dyn Bucket>,
    clock: Rc<dyn Clock>,
    tallies: Rc<RefCell<Tallies>>,
}

impl CountedBucket {
    /// Several buckets can share one `tallies`.
    pub fn new(
        inner: Rc<dyn Bucket>,
        clock: Rc<dyn Clock>,
        tallies: Rc<RefCell<Tallies>>,
    ) -> CountedBucket {
        CountedBucket { inner, clock, tallies }
    }

    fn count<'a, T: 'a>(
        &'a self,
        kind: &'static str,
        sent_bytes: u64,
        request: PortFuture<'a, Result<T, BucketError>>,
        received_bytes: fn(&T) -> u64,
    ) -> PortFuture<'a, Result<T, BucketError>> {
        Box::pin(async move {
            let mut under_way = UnderWay {
                bucket: self,
                kind,
                began: self.clock.monotonic(),
                bytes: sent_bytes,
                failed: true,
            };
            let answer = request.await;
            under_way.failed = match &answer {
                Ok(value) => {
                    under_way.bytes += received_bytes(value);
                    false
                }
                Err(BucketError::NotFound { .. } | BucketError::Precondition { .. }) => false,
                Err(_) => true,
            };
            answer
        })
    }
}

/// Counts the request when it is dropped.
struct UnderWay<'a> {
    bucket: &'a CountedBucket,
    kind: &'static str,
    began: Duration,
    bytes: u64,
    failed: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let took = self.bucket.clock.monotonic().saturating_sub(self.began);
        self.bucket.tallies.borrow_mut().record(self.kind, took, self.failed, self.bytes);
    }
}

fn nothing<T>(_: &T) -> u64 {
    0
}

impl Bucket for CountedBucket {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        self.count("get", 0, self.inner.get(key, range, if_match), |object| {
            object.body.len() as u64
        })
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        self.count("head", 0, self.inner.head(key), nothing)
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.count("put", body.len() as u64, self.inner.put(key, body, condition, tags), nothing)
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.count("delete", 0, self.inner.delete(key, if_match), nothing)
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.count("copy", 0, self.inner.copy(from, to, if_match, condition), nothing)
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        self.count("list", 0, self.inner.list(request), nothing)
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        self.count("upload-begin", 0, self.inner.upload_begin(key, tags), nothing)
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        self.count(
            "upload-part",
            body.len() as u64,
            self.inner.upload_part(key, upload, number, body),
            nothing,
        )
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        self.count(
            "upload-part-copy",
            0,
            self.inner.upload_part_copy(key, upload, number, from),
            nothing,
        )
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.count(
            "upload-complete",
            0,
            self.inner.upload_complete(key, upload, parts, condition),
            nothing,
        )
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.count("upload-abort", 0, self.inner.upload_abort(key, upload), nothing)
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        self.count("uploads", 0, self.inner.uploads(key), nothing)
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
