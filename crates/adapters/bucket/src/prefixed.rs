//! A volume in a part of a bucket: the prefix is put before every key and taken off
//! every answer, once for all back ends.

use bytes::Bytes;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListEntry, ListPage, ListRequest, Object,
    ObjectMeta, ObjectTags, PartTag, Piece, PortFuture, UploadId,
};
use std::ops::Range;
use std::rc::Rc;

pub struct Prefixed {
    inner: Rc<dyn Bucket>,
    prefix: String,
}

impl Prefixed {
    /// `inner` itself where the prefix is empty.
    pub fn over(inner: Rc<dyn Bucket>, prefix: &str) -> Rc<dyn Bucket> {
        if prefix.is_empty() { inner } else { Rc::new(Prefixed { inner, prefix: prefix.into() }) }
    }

    fn outer(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn strip(&self, key: String) -> String {
        match key.strip_prefix(&self.prefix) {
            Some(rest) => rest.into(),
            None => key,
        }
    }

    fn strip_error(&self, error: BucketError) -> BucketError {
        match error {
            BucketError::NotFound { key } => BucketError::NotFound { key: self.strip(key) },
            BucketError::Precondition { key } => BucketError::Precondition { key: self.strip(key) },
            other => other,
        }
    }

    fn stripped<'a, T: 'a>(
        &'a self,
        answer: PortFuture<'a, Result<T, BucketError>>,
    ) -> PortFuture<'a, Result<T, BucketError>> {
        Box::pin(async move { answer.await.map_err(|error| self.strip_error(error)) })
    }
}

impl Bucket for Prefixed {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        self.stripped(self.inner.get(&self.outer(key), range, if_match))
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        self.stripped(self.inner.head(&self.outer(key)))
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.stripped(self.inner.put(&self.outer(key), body, condition, tags))
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.stripped(self.inner.delete(&self.outer(key), if_match))
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.stripped(self.inner.copy(&self.outer(from), &self.outer(to), if_match, condition))
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        // The directory marker of the prefix itself is no object of the volume: listings begin
        // behind it.
        let after = Some(self.outer(&request.after.unwrap_or_default()));
        let outer = ListRequest { prefix: self.outer(&request.prefix), after, ..request };
        let page = self.inner.list(outer);
        Box::pin(async move {
            let mut page = page.await.map_err(|error| self.strip_error(error))?;
            for entry in &mut page.entries {
                let (ListEntry::Object { key, .. } | ListEntry::Prefix { key }) = entry;
                *key = self.strip(std::mem::take(key));
            }
            Ok(page)
        })
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        self.stripped(self.inner.upload_begin(&self.outer(key), tags))
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        self.stripped(self.inner.upload_part(&self.outer(key), upload, number, body))
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let from = Piece { key: self.outer(&from.key), ..from };
        self.stripped(self.inner.upload_part_copy(&self.outer(key), upload, number, from))
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.stripped(self.inner.upload_complete(&self.outer(key), upload, parts, condition))
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.stripped(self.inner.upload_abort(&self.outer(key), upload))
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        self.stripped(self.inner.uploads(&self.outer(key)))
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities {
            max_key_bytes: inner.max_key_bytes.saturating_sub(self.prefix.len()),
            ..inner
        }
    }

    fn room_bytes(&self) -> PortFuture<'_, Result<Option<u64>, BucketError>> {
        self.stripped(self.inner.room_bytes())
    }

    fn describe(&self) -> String {
        format!("{}/{}", self.inner.describe(), self.prefix)
    }

    fn endpoint(&self) -> Option<String> {
        self.inner.endpoint()
    }
}
