//! The port's operations as requests for block blobs.
//!
//! The parts of an upload are blocks of a separate blob below `.ebb/uploads/`, which is created
//! empty at the beginning. Completion commits its blocks and has the service copy it to its key.
//! (Blocks of the key's own blob could not be aborted: the service forgets them after a week, and
//! until then a late completion would find them.) Aborting deletes the separate blob, so operations
//! in progress fail on their conditions.

use super::{Blobs, VERSION};
use crate::http::base64;
use crate::http::client::{Call, Outcome, Service};
use crate::http::etag::{changed_etag_of, etag_of, quoted};
use crate::http::remote::{Got, Listed, Operations, unclear, unclear_change};
use crate::http::staging::{self, random};
use crate::http::time::{now_secs, parse_http};
use crate::http::transport::Answer;
use crate::http::xml::escape;
use bytes::Bytes;
use ebb_model::Planted;
use ebb_ports::{
    BucketError, Condition, ETag, ListRequest, Object, ObjectMeta, ObjectTags, PartTag, UploadId,
};
use std::ops::Range;
use std::time::Duration;

impl Operations for Blobs {
    fn url(&self) -> String {
        self.service.url()
    }

    fn endpoint(&self) -> String {
        self.service.origin().address("", "")
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> Result<Got, BucketError> {
        let mut call = self.read("GET", key).content(range.as_ref());
        if let Some(tag) = if_match {
            call = call.header("if-match", quoted(tag));
        }
        if let Some(range) = &range {
            call = call.header("x-ms-range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        match self.try_call(&call).await? {
            Outcome::Done(answer) => {
                let (body, len_bytes) = answer.content(key, range)?;
                Ok(Got::Object(Object { meta: meta(key, &answer, len_bytes)?, body }))
            }
            Outcome::Refused(refusal) if refusal.status == 416 => Ok(Got::NothingThere),
            Outcome::Refused(refusal) => Err(self.error(&call, &refusal)),
        }
    }

    async fn head(&self, key: &str) -> Result<ObjectMeta, BucketError> {
        let answer = self.call(&self.read("HEAD", key)).await?;
        let len_bytes = answer.header("content-length").and_then(|len| len.parse().ok());
        meta(key, &answer, len_bytes.ok_or_else(|| unclear("HEAD", key, "a Content-Length"))?)
    }

    async fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: &Condition,
        tags: &ObjectTags,
    ) -> Result<ETag, BucketError> {
        let call = self
            .mutation("PUT", key, body)
            .header("x-ms-blob-type", "BlockBlob")
            .header("content-type", BYTES);
        let answer = self.call(&tagged(conditional(call, condition), tags)).await?;
        changed_etag_of(&answer, "PUT", key)
    }

    async fn delete(&self, key: &str, if_match: Option<&ETag>) -> Result<(), BucketError> {
        let mut call = self.mutation("DELETE", key, Bytes::new());
        if let Some(tag) = if_match {
            call = call.header("if-match", quoted(tag));
        }
        self.call(&call).await.map(drop)
    }

    async fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        self.service.check_key(from)?;
        self.service.check_key(to)?;
        self.copy_blob(from, to, if_match, condition).await
    }

    async fn list(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> Result<Listed, BucketError> {
        self.list_page(request, token).await
    }

    async fn upload_begin(&self, key: &str, tags: &ObjectTags) -> Result<UploadId, BucketError> {
        self.service.check_key(key)?;
        let upload = UploadId(random());
        self.put(&self.place(key, &upload)?, Bytes::new(), &Condition::Absent, tags).await?;
        Ok(upload)
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, BucketError> {
        let place = self.place(key, upload)?;
        // A number that is sent again is another block; those that the completion does not name are
        // forgotten.
        let block = block(number, &random());
        let call = self
            .mutation("PUT", &place, body)
            .query("comp", "block")
            .query("blockid", base64::encode(block.as_bytes()));
        self.call(&call).await.map_err(|error| of_upload(key, error))?;
        // A block makes no blob, nor does it need one: an upload that is gone is seen only now.
        self.head(&place).await.map_err(|error| of_upload(key, error))?;
        Ok(PartTag { number, receipt: block })
    }

    async fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let place = self.place(key, upload)?;
        let begun = self.head(&place).await.map_err(|error| of_upload(key, error))?;
        let refused =
            |why: String| Err(BucketError::Refused { what: format!("complete {key}: {why}") });
        if parts.is_empty() {
            return refused("an upload has at least one part".into());
        }
        let mut list = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        let begins = list.len();
        for (position, part) in parts.iter().enumerate() {
            let in_order = position == 0 || parts[position - 1].number < part.number;
            if !in_order || !part.receipt.starts_with(&block(part.number, "")) {
                return refused(format!("part {} is not what was uploaded", part.number));
            }
            let block =
                format!("<Latest>{}</Latest>", escape(&base64::encode(part.receipt.as_bytes())));
            match Planted::AzureBlocksReversed.is_on() {
                true => list.insert_str(begins, &block),
                false => list += &block,
            }
        }
        list += "</BlockList>";
        let call = self
            .mutation("PUT", &place, list.into())
            .slow()
            .query("comp", "blocklist")
            .header("if-match", quoted(&begun.etag));
        let call = tagged(call.header("x-ms-blob-content-type", BYTES), &begun.tags);
        let committed = match self.call(&call).await {
            Ok(answer) => etag_of(&answer, "commit blocks", key)?,
            // Nothing is visible yet.
            Err(BucketError::Unknown { what }) => {
                return Err(BucketError::Unavailable { what, retry_after: None });
            }
            Err(BucketError::Precondition { .. }) => {
                return Err(BucketError::NotFound { key: key.into() });
            }
            Err(error) => return Err(of_upload(key, error)),
        };
        let etag = match self.copy_blob(&place, key, Some(&committed), condition).await {
            Ok(etag) => etag,
            Err(error) => return Err(of_upload(key, error)),
        };
        if let Err(error) = self.delete(&place, None).await {
            tracing::warn!(key = place, %error, "what a completed upload was put together in is \
                left behind");
        }
        Ok(etag)
    }

    async fn upload_abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        self.delete(&self.place(key, upload)?, None).await
    }

    async fn uploads(&self, key: &str) -> Result<Vec<UploadId>, BucketError> {
        staging::uploads(self, &self.service.prefix, key).await
    }
}

impl Blobs {
    /// Within an account the service copies before it answers, or answers that the copy is in
    /// progress.
    async fn copy_blob(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let source = self.service.account.origin.address(&self.service.blob(from), "");
        let mut call =
            self.mutation("PUT", to, Bytes::new()).slow().header("x-ms-copy-source", source);
        if let Some(tag) = if_match {
            call = call.header("x-ms-source-if-match", quoted(tag));
        }
        let mut answer = self.call(&conditional(call, condition)).await?;
        let copy = answer.header("x-ms-copy-id").map(str::to_string);
        let unclear = |lacks: &str| unclear_change("COPY", to, lacks);
        for _ in 0..MAX_LOOKS {
            if copy.is_some() && answer.header("x-ms-copy-id") != copy.as_deref() {
                // Another writer has replaced the blob since.
                return Err(unclear("its own copy"));
            }
            match answer.header("x-ms-copy-status") {
                Some("success") => return changed_etag_of(&answer, "COPY", to),
                Some("pending") => {}
                Some(_) => return Err(unclear("a success")),
                None => return Err(unclear("a status")),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            let looked = self.call(&self.read("HEAD", to)).await;
            answer = looked
                .map_err(|error| BucketError::Unknown { what: format!("COPY {to}: {error}") })?;
        }
        Err(unclear("an end"))
    }

    fn read<'a>(&self, method: &'static str, key: &'a str) -> Call<'a> {
        Call::read(method, Some(key), self.service.blob(key)).header("x-ms-version", VERSION)
    }

    fn mutation<'a>(&self, method: &'static str, key: &'a str, body: Bytes) -> Call<'a> {
        Call::mutation(method, key, self.service.blob(key), body).header("x-ms-version", VERSION)
    }

    fn place(&self, key: &str, upload: &UploadId) -> Result<String, BucketError> {
        staging::place_of(&self.service.prefix, key, upload)
    }
}

/// Reports a missing or changed blob as a missing or changed upload of `key`.
fn of_upload(key: &str, error: BucketError) -> BucketError {
    match error {
        BucketError::NotFound { .. } => BucketError::NotFound { key: key.into() },
        BucketError::Precondition { .. } => BucketError::Precondition { key: key.into() },
        other => other,
    }
}

/// The ids of a blob's blocks must have one length.
fn block(number: u32, sending: &str) -> String {
    format!("{number:05}-{sending}")
}

fn conditional<'a>(call: Call<'a>, condition: &Condition) -> Call<'a> {
    match condition {
        Condition::Always => call,
        Condition::Absent => call.header("if-none-match", "*"),
        Condition::Match(tag) => call.header("if-match", quoted(tag)),
    }
}

/// The service's names are those of a programming language: `_` stands for `-`.
fn tagged<'a>(mut call: Call<'a>, tags: &ObjectTags) -> Call<'a> {
    for (name, value) in tags {
        call = call.header(format!("x-ms-meta-{}", name.replace('-', "_")), value);
    }
    call
}

fn meta(key: &str, answer: &Answer, len_bytes: u64) -> Result<ObjectMeta, BucketError> {
    let etag = etag_of(answer, "read", key)?;
    let modified_secs =
        answer.header("last-modified").and_then(parse_http).unwrap_or_else(now_secs);
    let mut tags: ObjectTags = answer
        .tags("x-ms-meta-")
        .into_iter()
        .map(|(name, value)| (name.replace('_', "-"), value))
        .collect();
    tags.sort();
    Ok(ObjectMeta { etag, len_bytes, modified_secs, tags })
}

const BYTES: &str = "application/octet-stream";
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Half an hour: a copy within an account takes seconds.
const MAX_LOOKS: usize = 3600;
