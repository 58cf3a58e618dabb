//! A copy from one bucket to another, through this node. Files stay in their bucket. Only objects
//! that had to make room for a while are copied across (`docs/format/names.md`).

use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ETag, ObjectMeta, PartTag};

/// Held in memory at one time, unless the store's limit of parts asks for more.
const PIECE_BYTES: u64 = 8 << 20;

/// `if_match` guards the source, and the tag found there guards every read of it.
pub(super) async fn copy(
    bucket: &dyn Bucket,
    from: &str,
    to: &str,
    if_match: Option<&ETag>,
    condition: Condition,
) -> Result<ETag, BucketError> {
    let source = bucket.head(from).await?;
    if if_match.is_some_and(|tag| *tag != source.etag) {
        return Err(BucketError::Precondition { key: from.into() });
    }
    let limits = bucket.capabilities();
    if source.len_bytes <= PIECE_BYTES.min(limits.max_put_bytes) {
        let body = piece(bucket, from, &source, 0, source.len_bytes).await?;
        return bucket.put(to, body, condition, source.tags).await;
    }
    let even = source.len_bytes.div_ceil(u64::from(limits.max_parts));
    let piece_bytes = PIECE_BYTES.max(limits.min_part_bytes).max(even);
    let upload = bucket.upload_begin(to, source.tags.clone()).await?;
    let sent = async {
        let mut parts: Vec<PartTag> = Vec::new();
        let mut start = 0;
        while start < source.len_bytes {
            let end = (start + piece_bytes).min(source.len_bytes);
            let body = piece(bucket, from, &source, start, end).await?;
            let part = bucket.upload_part(to, &upload, parts.len() as u32 + 1, body).await;
            parts.push(part.map_err(|error| nothing_done(gone(error, to)))?);
            start = end;
        }
        Ok(parts)
    };
    let completed = match sent.await {
        Ok(parts) => bucket
            .upload_complete(to, &upload, parts, condition)
            .await
            .map_err(|error| gone(error, to)),
        Err(error) => Err(error),
    };
    let Err(error) = completed else { return completed };
    match bucket.upload_abort(to, &upload).await {
        Ok(()) => Err(error),
        Err(left) => {
            tracing::warn!(key = to, upload = upload.0, error = %left, "the upload of a failed \
                copy could not be ended");
            Err(error.leaving_upload(left))
        }
    }
}

async fn piece(
    bucket: &dyn Bucket,
    from: &str,
    source: &ObjectMeta,
    start: u64,
    end: u64,
) -> Result<Bytes, BucketError> {
    let object =
        bucket.get(from, Some(start..end), Some(&source.etag)).await.map_err(nothing_done)?;
    if object.body.len() as u64 != end - start {
        let what = format!(
            "{from}: {} bytes came where {} were asked for",
            object.body.len(),
            end - start
        );
        return Err(BucketError::Unavailable { what, retry_after: None });
    }
    Ok(object.body)
}

/// Nothing is visible before the completion.
fn nothing_done(error: BucketError) -> BucketError {
    match error {
        BucketError::Unknown { what } => BucketError::Unavailable { what, retry_after: None },
        other => other,
    }
}

/// The caller would take a missing upload for a missing source.
fn gone(error: BucketError, to: &str) -> BucketError {
    match error {
        BucketError::NotFound { .. } => BucketError::Unavailable {
            what: format!("{to}: the upload is gone, somebody has ended it"),
            retry_after: None,
        },
        other => other,
    }
}
