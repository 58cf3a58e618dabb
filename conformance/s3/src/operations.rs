//! The protocol operations that ebb and the tools compared with it use, over the in-memory bucket.

use super::{BUCKET, Server};
use bytes::{Bytes, BytesMut};
use ebb_ports::{
    Bucket, BucketError, Condition, ListEntry, ListRequest, PartTag, Piece, PortFuture, UploadId,
};
use futures_util::{FutureExt, StreamExt};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32c};
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, SystemTime};

impl Server {
    /// Runs one operation; the in-memory bucket completes it at once.
    fn ask<T: 'static>(
        &self,
        bucket: &str,
        question: impl FnOnce(&ebb_bucket::Memory) -> PortFuture<'_, Result<T, BucketError>>,
    ) -> S3Result<T> {
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        question(&self.objects.lock().unwrap())
            .now_or_never()
            .expect("memory does not wait")
            .map_err(|error| match error {
                BucketError::NotFound { .. } => s3_error!(NoSuchKey),
                BucketError::Precondition { .. } => s3_error!(PreconditionFailed),
                BucketError::Refused { what } => {
                    S3Error::with_message(S3ErrorCode::InvalidArgument, what)
                }
                other => S3Error::with_message(S3ErrorCode::InternalError, other.to_string()),
            })
    }
}

impl Server {
    /// Records the checksum of a part if its upload uses checksums. Like Amazon S3 it rejects a
    /// part whose use of checksums differs from its upload's.
    fn checked_part(&self, upload: &UploadId, number: i32, said: Option<String>) -> S3Result<()> {
        match (self.checked.lock().unwrap().get_mut(&upload.0), said) {
            (Some(parts), Some(crc)) => {
                parts.insert(number, crc);
                Ok(())
            }
            (None, None) => Ok(()),
            _ => Err(s3_error!(InvalidRequest)),
        }
    }
}

fn tag(etag: &ETag) -> ebb_ports::ETag {
    ebb_ports::ETag(etag.value().into())
}

fn wanted(condition: &ETagCondition) -> Option<ebb_ports::ETag> {
    condition.as_etag().map(tag)
}

fn condition(if_match: &Option<ETagCondition>, if_none_match: &Option<ETagCondition>) -> Condition {
    match (if_match.as_ref().and_then(wanted), if_none_match) {
        (Some(tag), _) => Condition::Match(tag),
        (None, Some(_)) => Condition::Absent,
        (None, None) => Condition::Always,
    }
}

fn etag(etag: ebb_ports::ETag) -> Option<ETag> {
    Some(ETag::Strong(etag.0))
}

fn time(secs: i64) -> Option<Timestamp> {
    Some((SystemTime::UNIX_EPOCH + Duration::from_secs(secs as u64)).into())
}

/// A key as encoded in a listing.
fn written(key: &str, url: bool) -> String {
    if url { key.bytes().map(|byte| format!("%{byte:02X}")).collect() } else { key.to_string() }
}

/// The tag that holds an object's content type.
const TYPE: &str = "type-of-content";

fn tags(metadata: Option<Metadata>, content_type: Option<ContentType>) -> Vec<(String, String)> {
    metadata
        .unwrap_or_default()
        .into_iter()
        .chain(content_type.map(|of| (TYPE.to_owned(), of)))
        .collect()
}

fn split(tags: Vec<(String, String)>) -> (Option<Metadata>, Option<ContentType>) {
    let mut metadata: Metadata = tags.into_iter().collect();
    let content_type = metadata.remove(TYPE);
    (Some(metadata), content_type)
}

async fn whole(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let mut bytes = BytesMut::new();
    let Some(mut body) = body else { return Ok(bytes.freeze()) };
    while let Some(some) = body.next().await {
        bytes.extend_from_slice(&some.map_err(|error| {
            S3Error::with_message(S3ErrorCode::IncompleteBody, error.to_string())
        })?);
    }
    Ok(bytes.freeze())
}

fn crc32c(body: &[u8]) -> Option<String> {
    let mut hasher = ChecksumHasher { crc32c: Some(Crc32c::new()), ..ChecksumHasher::default() };
    hasher.update(body);
    hasher.finalize().checksum_crc32c
}

/// Rejects a body that does not match the checksum in the request.
fn check(body: &[u8], said: &Option<String>) -> S3Result<()> {
    match said {
        Some(_) if *said != crc32c(body) => Err(s3_error!(BadDigest)),
        _ => Ok(()),
    }
}

/// Parses `bytes=FIRST-LAST`, both inclusive.
fn byte_range(text: &str) -> S3Result<Range<u64>> {
    let ends = text.strip_prefix("bytes=").and_then(|ends| ends.split_once('-'));
    let ends = ends.and_then(|(first, last)| {
        Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
    });
    ends.ok_or_else(|| s3_error!(InvalidArgument))
}

#[async_trait::async_trait]
impl S3 for Server {
    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let meta = self.ask(&input.bucket, |bucket| bucket.head(&input.key))?;
        let range = input.range.map(|range| range.check(meta.len_bytes)).transpose()?;
        let guard = input.if_match.as_ref().and_then(wanted);
        let object = self
            .ask(&input.bucket, |bucket| bucket.get(&input.key, range.clone(), guard.as_ref()))?;
        let content_range = range
            .as_ref()
            .map(|range| format!("bytes {}-{}/{}", range.start, range.end - 1, meta.len_bytes));
        let (metadata, content_type) = split(object.meta.tags);
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(object.body.len() as i64),
            content_range,
            e_tag: etag(object.meta.etag),
            last_modified: time(object.meta.modified_secs),
            metadata,
            content_type,
            body: Some(StreamingBlob::from(s3s::Body::from(object.body))),
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let meta = self.ask(&req.input.bucket, |bucket| bucket.head(&req.input.key))?;
        let (metadata, content_type) = split(meta.tags);
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(meta.len_bytes as i64),
            e_tag: etag(meta.etag),
            last_modified: time(meta.modified_secs),
            metadata,
            content_type,
            ..HeadObjectOutput::default()
        }))
    }

    async fn put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        let body = whole(input.body).await?;
        check(&body, &input.checksum_crc32c)?;
        let condition = condition(&input.if_match, &input.if_none_match);
        let put = self.ask(&input.bucket, |bucket| {
            bucket.put(&input.key, body, condition, tags(input.metadata, input.content_type))
        })?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: etag(put),
            checksum_crc32c: input.checksum_crc32c,
            ..PutObjectOutput::default()
        }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let guard = req.input.if_match.as_ref().and_then(wanted);
        self.ask(&req.input.bucket, |bucket| bucket.delete(&req.input.key, guard.as_ref()))?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn copy_object(
        &self,
        req: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = req.input;
        let CopySource::Bucket { key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let guard = input.copy_source_if_match.as_ref().and_then(wanted);
        // `s3s` does not parse the conditions on the target of a copy.
        let header = |name: &str| req.headers.get(name).and_then(|value| value.to_str().ok());
        let condition = match (header("if-match"), header("if-none-match")) {
            (Some(tag), _) => Condition::Match(ebb_ports::ETag(tag.trim_matches('"').into())),
            (None, Some(_)) => Condition::Absent,
            (None, None) => Condition::Always,
        };
        let copied = match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
            Some(MetadataDirective::REPLACE) => {
                let object =
                    self.ask(&input.bucket, |bucket| bucket.get(key, None, guard.as_ref()))?;
                let tags = tags(input.metadata, input.content_type);
                self.ask(&input.bucket, |bucket| {
                    bucket.put(&input.key, object.body, condition, tags)
                })?
            }
            _ => self.ask(&input.bucket, |bucket| {
                bucket.copy(key, &input.key, guard.as_ref(), condition)
            })?,
        };
        let result = CopyObjectResult { e_tag: etag(copied), ..CopyObjectResult::default() };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..CopyObjectOutput::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        let request = ListRequest {
            prefix: input.prefix.clone().unwrap_or_default(),
            by_directory: input.delimiter.is_some(),
            after: input.continuation_token.or(input.start_after),
            limit: input.max_keys.unwrap_or(1000).clamp(0, 1000) as usize,
        };
        let page = self.ask(&input.bucket, |bucket| bucket.list(request))?;
        let url = input.encoding_type.is_some();
        let name = |key: &str| written(key, url);
        let next_continuation_token =
            page.entries.last().filter(|_| page.more).map(|last| last.key().to_string());
        let (mut contents, mut common_prefixes) = (Vec::new(), Vec::new());
        for entry in page.entries {
            match entry {
                ListEntry::Object { key, etag: tag, len_bytes, modified_secs } => {
                    contents.push(Object {
                        key: Some(name(&key)),
                        e_tag: etag(tag),
                        size: Some(len_bytes as i64),
                        last_modified: time(modified_secs),
                        ..Object::default()
                    })
                }
                ListEntry::Prefix { key } => {
                    common_prefixes.push(CommonPrefix { prefix: Some(name(&key)) })
                }
            }
        }
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            // Present even if empty.
            prefix: Some(name(&input.prefix.unwrap_or_default())),
            delimiter: input.delimiter.as_deref().map(name),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            // False for a request of zero keys.
            is_truncated: Some(next_continuation_token.is_some()),
            next_continuation_token,
            encoding_type: input.encoding_type,
            ..ListObjectsV2Output::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = req.input;
        let upload = self.ask(&input.bucket, |bucket| {
            bucket.upload_begin(&input.key, tags(input.metadata, input.content_type))
        })?;
        let checksum_algorithm = input
            .checksum_algorithm
            .filter(|algorithm| algorithm.as_str() == ChecksumAlgorithm::CRC32C);
        if checksum_algorithm.is_some() {
            self.checked.lock().unwrap().insert(upload.0.clone(), HashMap::new());
        }
        Ok(S3Response::new(CreateMultipartUploadOutput {
            upload_id: Some(upload.0),
            checksum_algorithm,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(
        &self,
        req: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        let (body, upload) = (whole(input.body).await?, UploadId(input.upload_id));
        check(&body, &input.checksum_crc32c)?;
        self.checked_part(&upload, input.part_number, input.checksum_crc32c.clone())?;
        let part = self.ask(&input.bucket, |bucket| {
            bucket.upload_part(&input.key, &upload, input.part_number as u32, body)
        })?;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(ETag::Strong(part.receipt)),
            checksum_crc32c: input.checksum_crc32c,
            ..UploadPartOutput::default()
        }))
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let input = req.input;
        let CopySource::Bucket { key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let guard = input.copy_source_if_match.as_ref().and_then(wanted);
        let source = self.ask(&input.bucket, |bucket| bucket.head(key))?;
        let range = input
            .copy_source_range
            .as_deref()
            .map(byte_range)
            .transpose()?
            .unwrap_or(0..source.len_bytes);
        let from = Piece { key: key.to_string(), etag: guard.unwrap_or(source.etag), range };
        let upload = UploadId(input.upload_id);
        let is_checked = self.checked.lock().unwrap().contains_key(&upload.0);
        let checksum_crc32c = match is_checked {
            true => {
                let piece = self.ask(&input.bucket, |bucket| {
                    bucket.get(key, Some(from.range.clone()), Some(&from.etag))
                })?;
                crc32c(&piece.body)
            }
            false => None,
        };
        self.checked_part(&upload, input.part_number, checksum_crc32c.clone())?;
        let part = self.ask(&input.bucket, |bucket| {
            bucket.upload_part_copy(&input.key, &upload, input.part_number as u32, from)
        })?;
        let result = CopyPartResult {
            e_tag: Some(ETag::Strong(part.receipt)),
            checksum_crc32c,
            ..CopyPartResult::default()
        };
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            ..UploadPartCopyOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        let condition = condition(&input.if_match, &input.if_none_match);
        let listed = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let upload = UploadId(input.upload_id);
        if let Some(checked) = self.checked.lock().unwrap().get(&upload.0) {
            let is_right = |part: &CompletedPart| {
                part.checksum_crc32c.as_ref()
                    == part.part_number.and_then(|number| checked.get(&number))
            };
            if !listed.iter().all(is_right) {
                return Err(s3_error!(InvalidPart));
            }
        }
        let part = |part: CompletedPart| {
            Some(PartTag { number: part.part_number? as u32, receipt: part.e_tag?.value().into() })
        };
        let parts = listed.into_iter().filter_map(part).collect();
        let done = self.ask(&input.bucket, |bucket| {
            bucket.upload_complete(&input.key, &upload, parts, condition)
        })?;
        self.checked.lock().unwrap().remove(&upload.0);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            e_tag: etag(done),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    /// Like some stores, lists only uploads of the key that equals the prefix.
    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = req.input;
        let key = input.prefix.unwrap_or_default();
        let found = self.ask(&input.bucket, |bucket| bucket.uploads(&key))?;
        let name = written(&key, input.encoding_type.is_some());
        let upload = |id: UploadId| MultipartUpload {
            key: Some(name.clone()),
            upload_id: Some(id.0),
            ..MultipartUpload::default()
        };
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(name.clone()),
            uploads: Some(found.into_iter().map(upload).collect()),
            is_truncated: Some(false),
            encoding_type: input.encoding_type,
            ..ListMultipartUploadsOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let upload = UploadId(req.input.upload_id);
        self.ask(&req.input.bucket, |bucket| bucket.upload_abort(&req.input.key, &upload))?;
        self.checked.lock().unwrap().remove(&upload.0);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}
