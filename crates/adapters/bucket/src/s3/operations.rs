//! The port's operations as requests of the S3 protocol.

use super::S3;
use super::checksums::{ALGORITHM, by_crc32c, of_receipt, receipt};
use crate::http::base64::{self, crc32c};
use crate::http::client::{Call, Outcome, Service};
use crate::http::etag::{changed_etag_of, etag_of, quoted, unquoted};
use crate::http::remote::{Got, Listed, Operations, unclear, unclear_change};
use crate::http::time::{now_secs, parse_http};
use crate::http::transport::Answer;
use crate::http::xml::{Element, escape};
use bytes::Bytes;
use ebb_model::Planted;
use ebb_ports::{
    BucketError, Condition, ETag, ListRequest, Object, ObjectMeta, ObjectTags, PartTag, Piece,
    UploadId,
};
use std::ops::Range;

impl Operations for S3 {
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
            let short = u64::from(Planted::S3RangeShort.is_on() && range.end > range.start + 1);
            let last = range.end - 1 - short;
            call = call.header("range", format!("bytes={}-{last}", range.start));
        }
        match self.try_call(&call).await? {
            Outcome::Done(answer) => {
                let (body, len_bytes) = answer.content(key, range)?;
                Ok(Got::Object(Object { meta: meta(key, &answer, len_bytes)?, body }))
            }
            Outcome::Refused(refusal) if refusal.status == 416 || refusal.is("InvalidRange") => {
                Ok(Got::NothingThere)
            }
            Outcome::Refused(refusal) => Err(self.error(&call, &refusal)),
        }
    }

    async fn head(&self, key: &str) -> Result<ObjectMeta, BucketError> {
        let answer = self.call(&self.read("HEAD", key)).await?;
        let len_bytes = answer.header("content-length").and_then(|len| len.parse().ok());
        let len_bytes = len_bytes.ok_or_else(|| unclear("HEAD", key, "a Content-Length"))?;
        meta(key, &answer, len_bytes)
    }

    async fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: &Condition,
        tags: &ObjectTags,
    ) -> Result<ETag, BucketError> {
        let crc = self.service.checksums.of_puts().then(|| crc32c(&body));
        let call = by_crc32c(self.making("PUT", key, body), crc.as_deref());
        let call = tagged(conditional(call, condition), tags);
        changed_etag_of(&self.call(&call).await?, "PUT", key)
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
        let mut call = self
            .making("PUT", to, Bytes::new())
            .slow()
            .header("x-amz-copy-source", self.service.endpoint.copy_source(from));
        if let Some(tag) = if_match {
            call = call.header("x-amz-copy-source-if-match", quoted(tag));
        }
        match self.call(&conditional(call.clone(), condition)).await {
            Ok(answer) => result_etag(&answer, "COPY", to),
            Err(refused @ BucketError::Refused { .. }) => {
                let source = self.head(from).await?;
                if if_match.is_some_and(|tag| *tag != source.etag) {
                    return Err(BucketError::Precondition { key: from.into() });
                }
                match *condition {
                    _ if source.len_bytes > MAX_PUT_BYTES => {
                        self.copy_by_parts(from, to, &source, condition).await
                    }
                    Condition::Always => Err(refused),
                    // Some stores report that they do not know the condition.
                    _ => result_etag(&self.call(&call).await?, "COPY", to),
                }
            }
            Err(other) => Err(other),
        }
    }

    async fn list(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> Result<Listed, BucketError> {
        self.list_page(request, token).await
    }

    async fn upload_begin(&self, key: &str, tags: &ObjectTags) -> Result<UploadId, BucketError> {
        let plain = tagged(self.making("POST", key, Bytes::new()).query("uploads", ""), tags);
        if !self.service.checksums.of_uploads() {
            return self.begin(key, &plain).await.map(|(upload, _)| upload);
        }
        let (name, algorithm) = ALGORITHM;
        match self.begin(key, &plain.clone().header(name, algorithm)).await {
            // On an error from here on the caller does not learn the upload's id, and searches for
            // the upload.
            Ok((upload, named)) => {
                match named && self.checks_parts(key, &upload).await.map_err(unheard)? {
                    true => {
                        self.service.checksums.begun(&upload);
                        return Ok(upload);
                    }
                    false => {
                        self.service.checksums.leave_uploads();
                        match self.give_up(key, &upload).await {
                            Err(left) if left.is_silence() => return Err(unheard(left)),
                            // An upload that cannot be aborted is left to the store's own rules.
                            Ok(()) | Err(_) => {}
                        }
                    }
                }
            }
            Err(BucketError::Refused { .. }) => {}
            Err(other) => return Err(other),
        }
        let (upload, _) = self.begin(key, &plain).await?;
        self.service.checksums.leave_uploads();
        Ok(upload)
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, BucketError> {
        let crc = self.service.checksums.of_upload(upload).then(|| crc32c(&body));
        let call = by_crc32c(self.part(key, upload, number, body)?, crc.as_deref());
        let answer = self
            .call(&call)
            .await
            .inspect_err(|error| self.service.checksums.refused(upload, error))?;
        Ok(PartTag {
            number,
            receipt: receipt(etag_of(&answer, "upload part", key)?, crc.as_deref()),
        })
    }

    async fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: &Piece,
    ) -> Result<PartTag, BucketError> {
        self.service.check_key(&from.key)?;
        let Piece { key: source, etag, range } = from;
        let call = self
            .part(key, upload, number, Bytes::new())?
            .slow()
            .header("x-amz-copy-source", self.service.endpoint.copy_source(source))
            .header("x-amz-copy-source-if-match", quoted(etag))
            .header("x-amz-copy-source-range", format!("bytes={}-{}", range.start, range.end - 1));
        let is_checked = self.service.checksums.of_upload(upload);
        let answer = match self.call(&call).await {
            // Some stores copy no part without its checksum.
            Err(BucketError::Refused { .. })
                if is_checked && !self.service.checksums.of_copies() =>
            {
                return Err(self.to_be_begun_anew(key));
            }
            answered => answered?,
        };
        // A store that does not know the header has stored an empty part, and does not report that.
        if answer.body.trim_ascii().is_empty() {
            return Err(BucketError::Refused {
                what: format!("copy part of {key}: the store copies no parts"),
            });
        }
        let etag = result_etag(&answer, "copy part of", key)?;
        if !is_checked {
            // Ignore a checksum in the answer that was not requested.
            return Ok(PartTag { number, receipt: receipt(etag, None) });
        }
        let root = Element::parse(&answer.body);
        // Some stores return a checksum of the part checksums, for the whole object: that is none
        // of a part.
        let is_one =
            |crc: &&str| base64::decode(crc).is_some_and(|bytes| bytes.len() == size_of::<u32>());
        match root.as_ref().and_then(|root| root.text_of("ChecksumCRC32C")).filter(is_one) {
            Some(crc) => {
                self.service.checksums.gave_one_of_a_copy();
                Ok(PartTag { number, receipt: receipt(etag, Some(crc)) })
            }
            // The upload could not be completed: that needs the checksums of all parts.
            None => Err(self.to_be_begun_anew(key)),
        }
    }

    async fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let listed: String = parts.iter().map(completed_part).collect();
        let body = format!(
            "<CompleteMultipartUpload \
             xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{listed}</CompleteMultipartUpload>"
        );
        let call = self
            .mutation("POST", key, body.into())
            .slow()
            .query("uploadId", &upload.0)
            .header("content-type", "application/xml");
        let completed = self.call(&conditional(call, condition)).await;
        let answer =
            completed.inspect_err(|error| self.service.checksums.refused(upload, error))?;
        let etag = result_etag(&answer, "complete", key)?;
        self.service.checksums.ended(upload);
        Ok(etag)
    }

    async fn upload_abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        // No more parts are sent, with or without success.
        self.service.checksums.ended(upload);
        self.call(&self.mutation("DELETE", key, Bytes::new()).query("uploadId", &upload.0))
            .await
            .map(drop)
    }

    async fn uploads(&self, key: &str) -> Result<Vec<UploadId>, BucketError> {
        self.uploads_of(key).await
    }
}

impl S3 {
    /// An object too long for one copy request is copied as an upload, and the store copies its
    /// parts.
    async fn copy_by_parts(
        &self,
        from: &str,
        to: &str,
        source: &ObjectMeta,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        // Nothing of it passes through here: there is nothing to check.
        let (upload, _) = self
            .begin(
                to,
                &tagged(self.making("POST", to, Bytes::new()).query("uploads", ""), &source.tags),
            )
            .await?;
        let copied = self.copy_parts(from, to, source, &upload).await;
        let completed = match copied {
            Ok(parts) => self.upload_complete(to, &upload, &parts, condition).await,
            Err(error) => Err(error),
        };
        let Err(error) = completed else { return completed };
        match self.give_up(to, &upload).await {
            Ok(()) => Err(error),
            Err(left) => Err(error.leaving_upload(left)),
        }
    }

    /// Ends an upload that the caller does not know of.
    async fn give_up(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        let ended = self.upload_abort(key, upload).await;
        if let Err(error) = &ended {
            tracing::warn!(key, upload = upload.0, %error, "an upload that is of no use could not \
                be ended");
        }
        ended
    }

    async fn copy_parts(
        &self,
        from: &str,
        to: &str,
        source: &ObjectMeta,
        upload: &UploadId,
    ) -> Result<Vec<PartTag>, BucketError> {
        let mut parts = Vec::new();
        let mut start = 0;
        while start < source.len_bytes {
            let (number, end) =
                (parts.len() as u32 + 1, (start + COPY_PART_BYTES).min(source.len_bytes));
            let piece = Piece { key: from.into(), etag: source.etag.clone(), range: start..end };
            let copied = self.upload_part_copy(to, upload, number, &piece).await.map_err(
                |error| match error {
                    // Nothing is visible before the completion.
                    BucketError::Unknown { what } => {
                        BucketError::Unavailable { what, retry_after: None }
                    }
                    other => other,
                },
            )?;
            parts.push(copied);
            start = end;
        }
        Ok(parts)
    }

    fn read<'a>(&self, method: &'static str, key: &'a str) -> Call<'a> {
        Call::read(method, Some(key), self.service.endpoint.path(Some(key)))
    }

    fn mutation<'a>(&self, method: &'static str, key: &'a str, body: Bytes) -> Call<'a> {
        Call::mutation(method, key, self.service.endpoint.path(Some(key)), body)
    }

    /// The error for an upload with checksums that rejects a request which uploads without
    /// checksums accept. No more uploads with such checksums are begun.
    fn to_be_begun_anew(&self, key: &str) -> BucketError {
        self.service.checksums.leave_uploads();
        BucketError::NotFound { key: key.into() }
    }

    /// The upload, and whether its parts must have their CRC-32C.
    async fn begin(&self, key: &str, call: &Call<'_>) -> Result<(UploadId, bool), BucketError> {
        let answer = self.call(call).await?;
        let id = Element::parse(&answer.body)
            .and_then(|root| Some(root.text_of("UploadId")?.to_string()));
        let id = id
            .filter(|id| !id.is_empty())
            .ok_or_else(|| unclear_change("begin upload", key, "an UploadId"))?;
        let (name, algorithm) = ALGORITHM;
        Ok((UploadId(id), answer.header(name) == Some(algorithm)))
    }

    /// A mutation with the headers for the storage of the object. Parts are stored as their upload.
    pub(super) fn making<'a>(&self, method: &'static str, key: &'a str, body: Bytes) -> Call<'a> {
        let call = self.mutation(method, key, body);
        self.service.at_rest.iter().fold(call, |call, (name, value)| call.header(*name, value))
    }

    pub(super) fn part<'a>(
        &self,
        key: &'a str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> Result<Call<'a>, BucketError> {
        if upload.0.is_empty() {
            // Some stores would take this for a put of the whole object.
            return Err(BucketError::NotFound { key: key.into() });
        }
        Ok(self
            .mutation("PUT", key, body)
            .query("partNumber", number.to_string())
            .query("uploadId", &upload.0))
    }
}

/// The error of a request that has begun an upload of which the caller does not learn.
fn unheard(error: BucketError) -> BucketError {
    BucketError::Unknown { what: error.to_string() }
}

fn completed_part(part: &PartTag) -> String {
    let (etag, crc) = of_receipt(&part.receipt);
    let crc = crc
        .map(|crc| format!("<ChecksumCRC32C>{}</ChecksumCRC32C>", escape(crc)))
        .unwrap_or_default();
    format!(
        "<Part><PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag>{crc}</Part>",
        part.number,
        escape(etag)
    )
}

fn conditional<'a>(call: Call<'a>, condition: &Condition) -> Call<'a> {
    match condition {
        _ if Planted::S3Unconditional.is_on() => call,
        Condition::Always => call,
        Condition::Absent => call.header("if-none-match", "*"),
        Condition::Match(tag) => call.header("if-match", quoted(tag)),
    }
}

fn tagged<'a>(mut call: Call<'a>, tags: &ObjectTags) -> Call<'a> {
    for (name, value) in tags {
        call = call.header(format!("x-amz-meta-{name}"), value);
    }
    call
}

fn meta(key: &str, answer: &Answer, len_bytes: u64) -> Result<ObjectMeta, BucketError> {
    let etag = etag_of(answer, "read", key)?;
    let modified_secs =
        answer.header("last-modified").and_then(parse_http).unwrap_or_else(now_secs);
    Ok(ObjectMeta { etag, len_bytes, modified_secs, tags: answer.tags("x-amz-meta-") })
}

/// The tag in the body of a copy's or completion's answer.
fn result_etag(answer: &Answer, what: &str, key: &str) -> Result<ETag, BucketError> {
    let root = Element::parse(&answer.body);
    let etag = root
        .as_ref()
        .and_then(|root| root.text_of("ETag"))
        .map(unquoted)
        .filter(|etag| !etag.0.is_empty());
    etag.ok_or_else(|| unclear_change(what, key, "an ETag"))
}

/// No store has longer objects, and no request goes beyond: some read positions as signed numbers.
pub(super) const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// The longest body of one PUT or CopyObject.
pub(super) const MAX_PUT_BYTES: u64 = 5 << 30;
/// A part may be 5 GiB as well; smaller ones answer within the patience of a request.
const COPY_PART_BYTES: u64 = 1 << 30;
