//! The port's operations as requests of Google Cloud Storage.

use super::Gcs;
use crate::http::base64;
use crate::http::client::{Call, Outcome, Service};
use crate::http::remote::{Got, Listed, Operations, unclear, unclear_change};
use crate::http::staging::{self, random};
use crate::http::time::{now_secs, parse_http};
use crate::http::transport::Answer;
use bytes::{BufMut, Bytes, BytesMut};
use ebb_model::Planted;
use ebb_ports::{
    BucketError, Condition, ETag, ListRequest, Object, ObjectMeta, ObjectTags, PartTag, UploadId,
};
use serde_json::{Map, Value, json};
use std::ops::Range;

impl Operations for Gcs {
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
        // An object that is stored compressed is returned as stored, not decompressed in transit.
        let mut call = Call::read("GET", Some(key), self.service.content(key))
            .content(range.as_ref())
            .header("accept-encoding", "gzip");
        if let Some(tag) = if_match {
            call = call.header("x-goog-if-generation-match", generation(tag).to_string());
        }
        if let Some(range) = &range {
            call = call.header("range", format!("bytes={}-{}", range.start, range.end - 1));
        }
        let answer = match self.try_call(&call).await? {
            Outcome::Done(answer) => answer,
            Outcome::Refused(refusal) if refusal.status == 416 => return Ok(Got::NothingThere),
            Outcome::Refused(refusal) => return Err(self.error(&call, &refusal)),
        };
        let (body, len_bytes) = answer.content(key, range)?;
        Ok(Got::Object(Object { meta: meta(key, &answer, len_bytes)?, body }))
    }

    async fn head(&self, key: &str) -> Result<ObjectMeta, BucketError> {
        let call = Call::read("HEAD", Some(key), self.service.content(key))
            .header("accept-encoding", "gzip");
        let answer = self.call(&call).await?;
        let len_bytes = answer
            .header("x-goog-stored-content-length")
            .or_else(|| answer.header("content-length"));
        let len_bytes = len_bytes
            .and_then(|len| len.parse().ok())
            .ok_or_else(|| unclear("HEAD", key, "a length"))?;
        meta(key, &answer, len_bytes)
    }

    async fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: &Condition,
        tags: &ObjectTags,
    ) -> Result<ETag, BucketError> {
        let about =
            json!({ "name": key, "metadata": metadata(tags), "crc32c": base64::crc32c(&body) });
        let (boundary, body) = two_parts(&about, &body);
        let call = Call::mutation("POST", key, self.service.upload(), body)
            .query("uploadType", "multipart")
            .header("content-type", format!("multipart/related; boundary={boundary}"));
        let answer = self.call(&conditional(self.with_key(call, "kmsKeyName"), condition)).await?;
        generation_of(&parse(&answer)).ok_or_else(|| unclear_change("PUT", key, "a generation"))
    }

    async fn delete(&self, key: &str, if_match: Option<&ETag>) -> Result<(), BucketError> {
        let mut call = Call::mutation("DELETE", key, self.service.object(key), Bytes::new());
        if let Some(tag) = if_match {
            call = call.query("ifGenerationMatch", generation(tag).to_string());
        }
        self.call(&call).await.map(drop)
    }

    /// One call completes a copy within one location and storage class; other copies take several
    /// calls, each of which continues where the last one stopped.
    async fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        self.service.check_key(from)?;
        self.service.check_key(to)?;
        if let Some(tag) = if_match.filter(|_| !self.service.guarded)
            && self.head(from).await?.etag != *tag
        {
            return Err(BucketError::Precondition { key: from.into() });
        }
        self.check_unguarded(to, condition).await?;
        let path = format!("{}/rewriteTo/{}", self.service.object(from), self.service.resource(to));
        let mut token: Option<String> = None;
        for _ in 0..MAX_REWRITES {
            let call = self.with_key(
                Call::mutation("POST", to, path.clone(), Bytes::new()).slow(),
                "destinationKmsKeyName",
            );
            let mut call = conditional(call, condition);
            if let Some(tag) = if_match {
                call = call.query("ifSourceGenerationMatch", generation(tag).to_string());
            }
            if let Some(token) = &token {
                call = call.query("rewriteToken", token);
            }
            let answer = parse(&self.call(&call).await?);
            if let Some(etag) = answer.get("resource").and_then(generation_of) {
                return Ok(etag);
            }
            token = match answer.get("rewriteToken").and_then(Value::as_str) {
                Some(next) if answer.get("done") == Some(&Value::Bool(false)) => Some(next.into()),
                _ => return Err(unclear_change("COPY", to, "a generation")),
            };
        }
        Err(unclear_change("COPY", to, "an end"))
    }

    async fn list(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> Result<Listed, BucketError> {
        self.list_page(request, token).await
    }

    async fn upload_begin(&self, key: &str, tags: &ObjectTags) -> Result<UploadId, BucketError> {
        self.begin(key, tags).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, BucketError> {
        self.stage(key, upload, number, body).await
    }

    async fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        self.compose_all(key, upload, parts, condition).await
    }

    async fn upload_abort(&self, key: &str, upload: &UploadId) -> Result<(), BucketError> {
        self.abort(key, upload).await
    }

    async fn uploads(&self, key: &str) -> Result<Vec<UploadId>, BucketError> {
        staging::uploads(self, &self.service.prefix, key).await
    }
}

/// A tag as the store compares it. One that is no generation matches no object: 0 would mean "no
/// object", and generations are times in microseconds.
impl Gcs {
    /// Sets the encryption key of the object that the call creates.
    pub(super) fn with_key<'a>(&self, call: Call<'a>, name: &'static str) -> Call<'a> {
        match &self.service.kms_key {
            Some(key) => call.query(name, key),
            None => call,
        }
    }
}

fn generation(tag: &ETag) -> u64 {
    const NOBODY: u64 = 1;
    tag.0
        .parse()
        .ok()
        .filter(|number: &u64| number.to_string() == tag.0 && *number != 0)
        .unwrap_or(NOBODY)
}

pub(super) fn conditional<'a>(call: Call<'a>, condition: &Condition) -> Call<'a> {
    match condition {
        _ if Planted::GcsUnconditional.is_on() => call,
        Condition::Always => call,
        Condition::Absent => call.query("ifGenerationMatch", "0"),
        Condition::Match(tag) => call.query("ifGenerationMatch", generation(tag).to_string()),
    }
}

pub(super) fn metadata(tags: &ObjectTags) -> Value {
    Value::Object(
        tags.iter()
            .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
            .collect::<Map<_, _>>(),
    )
}

/// The store's description of an object, or null.
pub(super) fn parse(answer: &Answer) -> Value {
    crate::http::json::parse(&answer.body).unwrap_or(Value::Null)
}

/// The generation in an object's resource: digits, as JSON's numbers are too short for it.
pub(super) fn generation_of(resource: &Value) -> Option<ETag> {
    tag_of(resource.get("generation")?.as_str()?)
}

fn tag_of(text: &str) -> Option<ETag> {
    (!text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| ETag(text.into()))
}

fn meta(key: &str, answer: &Answer, len_bytes: u64) -> Result<ObjectMeta, BucketError> {
    let etag = answer
        .header("x-goog-generation")
        .and_then(tag_of)
        .ok_or_else(|| unclear("read", key, "a generation"))?;
    let modified_secs =
        answer.header("last-modified").and_then(parse_http).unwrap_or_else(now_secs);
    Ok(ObjectMeta { etag, len_bytes, modified_secs, tags: answer.tags("x-goog-meta-") })
}

/// An object's resource and its content as one body, and the boundary between them: 128 random
/// bits, which occur in no content.
fn two_parts(about: &Value, content: &[u8]) -> (String, Bytes) {
    let boundary = format!("ebb-{}", random());
    let head =
        format!("--{boundary}\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n{about}\r\n");
    let middle = format!("--{boundary}\r\ncontent-type: application/octet-stream\r\n\r\n");
    let tail = format!("\r\n--{boundary}--\r\n");
    let mut body = BytesMut::with_capacity(head.len() + middle.len() + content.len() + tail.len());
    for part in [head.as_bytes(), middle.as_bytes(), content, tail.as_bytes()] {
        body.put_slice(part);
    }
    (boundary, body.freeze())
}

/// Each call continues for half a minute or a gigabyte, so that this is never reached.
const MAX_REWRITES: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_generation_matches_no_object() {
        assert_eq!(generation(&ETag("1700000000000000".into())), 1_700_000_000_000_000);
        for other in [
            "",
            "0",
            "00",
            "-1",
            "+5",
            "05",
            "d41d8cd98f00b204e9800998ecf8427e",
            "99999999999999999999999",
        ] {
            assert_eq!(generation(&ETag(other.into())), 1, "{other}");
        }
    }
}
