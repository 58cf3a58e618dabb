//! External storage as a flat map of keys to objects.

use crate::PortFuture;
use bytes::Bytes;
use std::fmt;
use std::future::ready;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// Minimum upload rate that a client tolerates; it aborts a slower request.
pub const SLOWEST_UPLOAD_BYTES_PER_SECOND: u64 = 128 << 10;

/// External storage: a flat map of keys to objects, as in S3. Keys are any UTF-8 text (`a//b`,
/// `../x` and a trailing `/` among them) and are never normalised.
///
/// Laws:
/// - Operations are atomic per key and strongly consistent.
/// - An error other than [`BucketError::Unknown`] means that nothing changed.
pub trait Bucket {
    /// Reads an object or a range of it. `range` is cut at the end of the object; a range that
    /// starts at the end or beyond it returns an empty body.
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>>;

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>>;

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>>;

    /// Deletes an object; a missing object is a success. With `if_match` only that object is
    /// deleted. A store without [`Capabilities::conditional_delete`] compares with HEAD first.
    fn delete(&self, key: &str, if_match: Option<&ETag>)
    -> PortFuture<'_, Result<(), BucketError>>;

    /// Server-side copy with the object's tags. `if_match` guards the source. `condition` guards
    /// the object at `to` where the store supports it: several S3 stores do not.
    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>>;

    /// Lists the keys that begin with `prefix`, in byte order, one batch per request.
    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>>;

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>>;

    /// Parts are numbered from 1. A repeated number replaces the part.
    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>>;

    /// Like [`Bucket::upload_part`], with a range of an existing object as the body. Requires
    /// [`Capabilities::copies_parts`]. [`BucketError::NotFound`] can also mean that this upload
    /// cannot copy and a new upload can.
    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>>;

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>>;

    /// Aborts an upload; a missing upload is a success.
    fn upload_abort(&self, key: &str, upload: &UploadId)
    -> PortFuture<'_, Result<(), BucketError>>;

    /// Unfinished uploads of exactly this key, of any writer, in no order.
    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>>;

    fn capabilities(&self) -> Capabilities;

    /// Remaining capacity in bytes; `None` without a limit.
    fn room_bytes(&self) -> PortFuture<'_, Result<Option<u64>, BucketError>> {
        Box::pin(ready(Ok(None)))
    }

    /// URL for logs and operators: scheme, bucket and prefix, without credentials.
    fn describe(&self) -> String;

    /// Where it is reached, which [`Bucket::describe`] does not say; never a credential.
    fn endpoint(&self) -> Option<String> {
        None
    }
}

/// The store's tag of one version of an object, without quotes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ETag(pub String);

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The store's id of an unfinished multipart upload.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UploadId(pub String);

/// The store's receipt of one part, opaque to ebb.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartTag {
    pub number: u32,
    pub receipt: String,
}

/// A byte range of one object. `range` is not empty and ends within the object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub key: String,
    pub etag: ETag,
    pub range: Range<u64>,
}

/// User metadata of an object (`x-amz-meta-*`): short ASCII names and values, returned by HEAD and
/// GET.
pub type ObjectTags = Vec<(String, String)>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMeta {
    pub etag: ETag,
    pub len_bytes: u64,
    /// Unix time in seconds.
    pub modified_secs: i64,
    pub tags: ObjectTags,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub meta: ObjectMeta,
    pub body: Bytes,
}

/// Condition of a write to a key, checked atomically with the write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    Always,
    /// Only if no object has the key.
    Absent,
    /// Only if the object at the key has this tag.
    Match(ETag),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListRequest {
    pub prefix: String,
    /// Reports keys with a `/` after the prefix once, as the common prefix up to and including that
    /// `/`.
    pub by_directory: bool,
    /// Only keys and common prefixes greater than this.
    pub after: Option<String>,
    /// At most 1000.
    pub limit: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListPage {
    /// Objects and common prefixes, merged in byte order.
    pub entries: Vec<ListEntry>,
    /// False only if no entry follows the last one.
    pub more: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListEntry {
    Object {
        key: String,
        etag: ETag,
        len_bytes: u64,
        modified_secs: i64,
    },
    /// Ends with `/`.
    Prefix {
        key: String,
    },
}

impl ListEntry {
    pub fn key(&self) -> &str {
        match self {
            ListEntry::Object { key, .. } | ListEntry::Prefix { key } => key,
        }
    }
}

/// Features and limits of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    pub conditional_put: bool,
    pub conditional_delete: bool,
    /// The store can copy ranges of existing objects into an upload.
    pub copies_parts: bool,
    /// Such copies happen within the store, without a transfer through this process.
    pub copies_remotely: bool,
    /// Minimum length of a part, except of the last.
    pub min_part_bytes: u64,
    pub max_parts: u32,
    pub max_object_bytes: u64,
    pub max_key_bytes: usize,
    /// Maximum length of an object that one PUT request can write.
    pub max_put_bytes: u64,
}

impl Capabilities {
    /// The condition that a PUT can carry on this store.
    pub fn guard(&self, condition: Condition) -> Condition {
        if self.conditional_put { condition } else { Condition::Always }
    }
}

/// A failed request. The variant decides the caller's remedy.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BucketError {
    #[error("{key}: no such object")]
    NotFound { key: String },
    /// The condition did not hold.
    #[error("{key}: changed by another writer")]
    Precondition { key: String },
    #[error("{what}: access denied by the store")]
    Forbidden { what: String },
    /// Nothing changed for the reason `why`, except that an upload was begun, and the store forbids
    /// to abort it.
    #[error("{why}; the store forbids to abort the upload that was begun for it")]
    Unended { why: Box<BucketError> },
    /// The store rejects the key, size or request; a retry fails again.
    #[error("{what}")]
    Refused { what: String },
    /// An object exists at a key above or below this one, and the store cannot hold both: `a`
    /// beside `a/b`.
    #[error("{what}")]
    Nested { what: String },
    /// The body differs from the one that was written, also after a retry.
    #[error("{what}")]
    Corrupt { what: String },
    /// Nothing changed. Retry, not before `retry_after` if the store sent one.
    #[error("{what}")]
    Unavailable { what: String, retry_after: Option<Duration> },
    /// The request was sent and its reply lost: it took effect, or can still take effect.
    #[error("{what}: outcome unknown")]
    Unknown { what: String },
}

impl BucketError {
    /// The store did not reply and a retry makes sense. Any other error is a reply of the store.
    pub fn is_silence(&self) -> bool {
        matches!(self, BucketError::Unavailable { .. } | BucketError::Unknown { .. })
    }

    /// The delay that the store requests before a retry.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            BucketError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// This error, after an upload was begun that could not be aborted because of `left`. The
    /// caller looks for uploads of the key on [`BucketError::Unended`] and
    /// [`BucketError::Unknown`]. An upload that does not exist any more, or that the store refuses
    /// to abort, leaves the error unchanged.
    pub fn leaving_upload(self, left: BucketError) -> BucketError {
        match (self, left) {
            (unknown @ BucketError::Unknown { .. }, _) => unknown,
            (error, BucketError::NotFound { .. } | BucketError::Refused { .. }) => error,
            (error, BucketError::Forbidden { .. }) => BucketError::Unended { why: Box::new(error) },
            (_, left) => BucketError::Unknown { what: left.to_string() },
        }
    }
}
