//! The port's operations as requests of the S3 protocol.

use super::client::{Call, Client, Outcome};
use super::time::{now_secs, parse_http};
use super::transport::Answer;
use super::xml::{Element, escape};
use crate::tags::checked;
use bytes::Bytes;
use ebb_ports::{BucketError, Condition, ETag, Object, ObjectMeta, ObjectTags, PartTag, UploadId};
use std::ops::Range;

impl Client {
    pub async fn get(&self, key: &str, range: Option<Range<u64>>, if_match: Option<&ETag>) -> Result<Object, BucketError> {
        let mut call = Call::read("GET", key);
        if let Some(tag) = if_match {
            call = call.header("if-match", quoted(tag));
        }
        match &range {
            None => {}
            Some(range) if range.is_empty() || range.start >= MAX_OBJECT_BYTES => return self.no_bytes(key, if_match).await,
            Some(range) => call = call.header("range", format!("bytes={}-{}", range.start, range.end.min(MAX_OBJECT_BYTES) - 1)),
        }
        let answer = match self.try_call(&call).await? {
            Outcome::Done(answer) => answer,
            // It begins at or after the end.
            Outcome::Refused(refusal) if refusal.status == 416 || refusal.is("InvalidRange") => return self.no_bytes(key, if_match).await,
            Outcome::Refused(refusal) => return Err(self.error(&call, &refusal)),
        };
        if answer.header("content-length").is_some_and(|len| len.parse() != Ok(answer.body.len())) {
            return Err(BucketError::Unavailable { what: format!("GET {key}: the body has not the announced length"), retry_after: None });
        }
        let whole = answer.header("content-range").and_then(|range| range.rsplit('/').next()?.parse().ok());
        let mut body = answer.body.clone();
        if let (Some(range), None) = (&range, whole) {
            // The store does not know ranges and sent everything.
            let end = range.end.min(body.len() as u64) as usize;
            body = body.slice((range.start as usize).min(end)..end);
        }
        let len_bytes = whole.unwrap_or(answer.body.len() as u64);
        Ok(Object { meta: meta(key, &answer, len_bytes)?, body })
    }

    async fn no_bytes(&self, key: &str, if_match: Option<&ETag>) -> Result<Object, BucketError> {
        let meta = self.head(key).await?;
        match if_match {
            Some(tag) if *tag != meta.etag => Err(BucketError::Precondition { key: key.into() }),
            _ => Ok(Object { meta, body: Bytes::new() }),
        }
    }

    pub async fn head(&self, key: &str) -> Result<ObjectMeta, BucketError> {
        let answer = self.call(&Call::read("HEAD", key)).await?;
        let len_bytes = answer.header("content-length").and_then(|len| len.parse().ok());
        let len_bytes = len_bytes.ok_or_else(|| unclear("HEAD", key, "a Content-Length"))?;
        meta(key, &answer, len_bytes)
    }

    pub async fn put(&self, key: &str, body: Bytes, condition: &Condition, tags: &ObjectTags) -> Result<ETag, BucketError> {
        let call = tagged(conditional(Call::mutation("PUT", key, body), condition), tags)?;
        let answer = self.call(&call).await.map_err(|error| missing_is_changed(error, condition))?;
        etag_of(&answer).ok_or_else(|| BucketError::Unknown { what: format!("PUT {key}: the answer has no ETag") })
    }

    /// `guarded`: the store knows If-Match on DELETE.
    pub async fn delete(&self, key: &str, if_match: Option<&ETag>, guarded: bool) -> Result<(), BucketError> {
        let mut call = Call::mutation("DELETE", key, Bytes::new());
        match if_match {
            Some(tag) if guarded => call = call.header("if-match", quoted(tag)),
            Some(tag) => match self.head(key).await {
                Ok(meta) if meta.etag == *tag => {}
                Ok(_) => return Err(BucketError::Precondition { key: key.into() }),
                Err(BucketError::NotFound { .. }) => return Ok(()),
                Err(other) => return Err(other),
            },
            None => {}
        }
        match self.call(&call).await {
            Ok(_) | Err(BucketError::NotFound { .. }) => Ok(()),
            // Some stores call a missing object a failed condition.
            Err(BucketError::Precondition { key }) => match self.head(&key).await {
                Err(BucketError::NotFound { .. }) => Ok(()),
                _ => Err(BucketError::Precondition { key }),
            },
            Err(other) => Err(other),
        }
    }

    pub async fn copy(&self, from: &str, to: &str, if_match: Option<&ETag>) -> Result<ETag, BucketError> {
        self.check_key(from)?;
        self.check_key(to)?;
        let mut call = Call::mutation("PUT", to, Bytes::new()).slow().header("x-amz-copy-source", self.endpoint.copy_source(from));
        if let Some(tag) = if_match {
            call = call.header("x-amz-copy-source-if-match", quoted(tag));
        }
        match self.call(&call).await {
            Ok(answer) => result_etag(&answer, "COPY", to),
            Err(refused @ BucketError::Refused { .. }) => {
                let source = self.head(from).await?;
                if source.len_bytes <= MAX_PUT_BYTES {
                    return Err(refused);
                }
                if if_match.is_some_and(|tag| *tag != source.etag) {
                    return Err(BucketError::Precondition { key: from.into() });
                }
                self.copy_by_parts(from, to, &source).await
            }
            Err(BucketError::NotFound { .. }) => Err(BucketError::NotFound { key: from.into() }),
            Err(BucketError::Precondition { .. }) => Err(BucketError::Precondition { key: from.into() }),
            Err(other) => Err(other),
        }
    }

    /// What is too long for one copy goes through an upload whose parts the store copies.
    async fn copy_by_parts(&self, from: &str, to: &str, source: &ObjectMeta) -> Result<ETag, BucketError> {
        let upload = self.upload_begin(to, &source.tags).await?;
        let copied = self.copy_parts(from, to, source, &upload).await;
        let completed = match copied {
            Ok(parts) => self.upload_complete(to, &upload, &parts, &Condition::Always).await,
            Err(error) => Err(error),
        };
        if completed.is_err()
            && let Err(error) = self.upload_abort(to, &upload).await
        {
            tracing::warn!(key = to, upload = upload.0, %error, "an upload of a failed copy is left behind");
        }
        completed
    }

    async fn copy_parts(&self, from: &str, to: &str, source: &ObjectMeta, upload: &UploadId) -> Result<Vec<PartTag>, BucketError> {
        let mut parts = Vec::new();
        let mut start = 0;
        while start < source.len_bytes {
            let (number, end) = (parts.len() as u32 + 1, (start + COPY_PART_BYTES).min(source.len_bytes));
            let call = part(to, upload, number, Bytes::new())
                .slow()
                .header("x-amz-copy-source", self.endpoint.copy_source(from))
                .header("x-amz-copy-source-if-match", quoted(&source.etag))
                .header("x-amz-copy-source-range", format!("bytes={start}-{}", end - 1));
            let answer = self.call(&call).await.map_err(|error| match error {
                BucketError::Precondition { .. } => BucketError::Precondition { key: from.into() },
                // Nothing is visible before the completion.
                BucketError::Unknown { what } => BucketError::Unavailable { what, retry_after: None },
                other => other,
            })?;
            parts.push(PartTag { number, etag: result_etag(&answer, "COPY", to)?.0 });
            start = end;
        }
        Ok(parts)
    }

    pub async fn upload_begin(&self, key: &str, tags: &ObjectTags) -> Result<UploadId, BucketError> {
        let call = tagged(Call::mutation("POST", key, Bytes::new()).query("uploads", ""), tags)?;
        let answer = self.call(&call).await?;
        let id = Element::parse(&answer.body).and_then(|root| Some(root.text_of("UploadId")?.to_string()));
        id.filter(|id| !id.is_empty()).map(UploadId).ok_or_else(|| unclear("begin upload", key, "an UploadId"))
    }

    pub async fn upload_part(&self, key: &str, upload: &UploadId, number: u32, body: Bytes) -> Result<PartTag, BucketError> {
        if upload.0.is_empty() {
            // Some stores would take this for a put of the whole object.
            return Err(BucketError::NotFound { key: key.into() });
        }
        let answer = self.call(&part(key, upload, number, body)).await?;
        let etag = etag_of(&answer).ok_or_else(|| unclear("upload part", key, "an ETag"))?;
        Ok(PartTag { number, etag: etag.0 })
    }

    pub async fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let listed: String = parts
            .iter()
            .map(|part| format!("<Part><PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag></Part>", part.number, escape(&part.etag)))
            .collect();
        let body = format!("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{listed}</CompleteMultipartUpload>");
        let call = Call::mutation("POST", key, body.into()).slow().query("uploadId", &upload.0).header("content-type", "application/xml");
        let answer = self.call(&conditional(call, condition)).await?;
        result_etag(&answer, "complete", key)
    }

    pub async fn upload_abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        match self.call(&Call::mutation("DELETE", key, Bytes::new()).query("uploadId", &upload.0)).await {
            Ok(_) | Err(BucketError::NotFound { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

fn part<'a>(key: &'a str, upload: &UploadId, number: u32, body: Bytes) -> Call<'a> {
    Call::mutation("PUT", key, body).query("partNumber", number.to_string()).query("uploadId", &upload.0)
}

fn conditional<'a>(call: Call<'a>, condition: &Condition) -> Call<'a> {
    match condition {
        Condition::Always => call,
        Condition::Absent => call.header("if-none-match", "*"),
        Condition::Match(tag) => call.header("if-match", quoted(tag)),
    }
}

/// AWS answers If-Match on a missing key with 404.
fn missing_is_changed(error: BucketError, condition: &Condition) -> BucketError {
    match (error, condition) {
        (BucketError::NotFound { key }, Condition::Match(_)) => BucketError::Precondition { key },
        (other, _) => other,
    }
}

fn tagged<'a>(mut call: Call<'a>, tags: &ObjectTags) -> Result<Call<'a>, BucketError> {
    for (name, value) in checked(tags.clone())? {
        call = call.header(format!("x-amz-meta-{name}"), value);
    }
    Ok(call)
}

fn meta(key: &str, answer: &Answer, len_bytes: u64) -> Result<ObjectMeta, BucketError> {
    let etag = etag_of(answer).ok_or_else(|| unclear("read", key, "an ETag"))?;
    let modified_secs = answer.header("last-modified").and_then(parse_http).unwrap_or_else(now_secs);
    let tag = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        let name = name.as_str().strip_prefix("x-amz-meta-")?.to_string();
        Some((name, String::from_utf8_lossy(value.as_bytes()).into_owned()))
    };
    let mut tags: ObjectTags = answer.headers.iter().filter_map(tag).collect();
    tags.sort();
    Ok(ObjectMeta { etag, len_bytes, modified_secs, tags })
}

/// The tag in the body of a copy's or completion's answer.
fn result_etag(answer: &Answer, what: &str, key: &str) -> Result<ETag, BucketError> {
    let root = Element::parse(&answer.body);
    let etag = root.as_ref().and_then(|root| root.text_of("ETag")).map(unquoted).filter(|etag| !etag.0.is_empty());
    etag.ok_or_else(|| BucketError::Unknown { what: format!("{what} {key}: the answer has no ETag") })
}

fn etag_of(answer: &Answer) -> Option<ETag> {
    answer.header("etag").map(unquoted).filter(|etag| !etag.0.is_empty())
}

pub(super) fn unquoted(text: &str) -> ETag {
    let text = text.trim();
    ETag(text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).into())
}

fn quoted(tag: &ETag) -> String {
    format!("\"{}\"", tag.0)
}

/// The store said yes, and left out what makes the yes of use.
pub(super) fn unclear(what: &str, key: &str, lacks: &str) -> BucketError {
    BucketError::Unavailable { what: format!("{what} {key}: the answer lacks {lacks}; is this an S3 endpoint?"), retry_after: None }
}

/// No store has longer objects, and none is asked beyond: some read positions as signed numbers.
pub(super) const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// The longest body of one PUT or CopyObject.
pub(super) const MAX_PUT_BYTES: u64 = 5 << 30;
/// A part may be 5 GiB as well; smaller ones answer within the patience of a request.
const COPY_PART_BYTES: u64 = 1 << 30;
