use crate::PortFuture;
use bytes::Bytes;
use std::fmt;
use std::future::ready;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// A client treats a line that carries a body more slowly as lost.
pub const SLOWEST_UPLOAD_BYTES_PER_SECOND: u64 = 128 << 10;

/// External storage: a flat map of keys to objects, as S3 has it. Keys are any UTF-8
/// text (`a//b`, `../x` and a trailing `/` among them) and are never normalised.
///
/// Operations are atomic per key and strongly consistent. An error other than
/// [`BucketError::Unknown`] means that nothing was changed.
pub trait Bucket {
    /// `range` is cut at the end of the object; one that begins there or later gives an empty body.
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

    /// Deleting what is not there succeeds. With `if_match` only that object is deleted;
    /// a store that cannot ([`Capabilities::conditional_delete`]) is asked with HEAD first.
    fn delete(&self, key: &str, if_match: Option<&ETag>)
    -> PortFuture<'_, Result<(), BucketError>>;

    /// Server-side copy with the object's tags. `if_match` guards the source, and `condition` what
    /// stands at `to`, where the store guards that at all: several of S3 do not.
    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>>;

    /// Keys that begin with `prefix`, in byte order, one page.
    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>>;

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>>;

    /// Parts are numbered from 1. Sending a number again replaces the part.
    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>>;

    /// As [`Bucket::upload_part`], of bytes that the store has already. Only where
    /// [`Capabilities::copies_parts`]. [`BucketError::NotFound`] can mean as well that another
    /// upload would do.
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

    /// Aborting what is not there succeeds.
    fn upload_abort(&self, key: &str, upload: &UploadId)
    -> PortFuture<'_, Result<(), BucketError>>;

    /// Uploads of exactly this key that have not ended, whoever began them, in no order.
    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>>;

    fn capabilities(&self) -> Capabilities;

    /// How many bytes more there is room for; `None` where that has no end.
    fn room_bytes(&self) -> PortFuture<'_, Result<Option<u64>, BucketError>> {
        Box::pin(ready(Ok(None)))
    }

    /// How people and logs call it: scheme, bucket and prefix; never a credential.
    fn describe(&self) -> String;
}

/// The store's tag of one object's content, without quotes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ETag(pub String);

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The store's name of an unfinished multipart upload.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UploadId(pub String);

/// The store's receipt of one part. What is in it is for the store that gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartTag {
    pub number: u32,
    pub receipt: String,
}

/// Some bytes of one object: `range` is not empty, and not beyond its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub key: String,
    pub etag: ETag,
    pub range: Range<u64>,
}

/// User metadata of an object (`x-amz-meta-*`): short ASCII names and values. Read back by HEAD and
/// GET.
pub type ObjectTags = Vec<(String, String)>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMeta {
    pub etag: ETag,
    pub len_bytes: u64,
    /// Seconds since the epoch.
    pub modified_secs: i64,
    pub tags: ObjectTags,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub meta: ObjectMeta,
    pub body: Bytes,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    Always,
    /// Only if no object has the key.
    Absent,
    /// Only if the object there has this tag.
    Match(ETag),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListRequest {
    pub prefix: String,
    /// Keys with a `/` after the prefix are answered once, as the common prefix up to and with that
    /// `/`.
    pub by_directory: bool,
    /// Only keys and common prefixes greater than this.
    pub after: Option<String>,
    /// At most 1000.
    pub limit: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListPage {
    /// Objects and common prefixes in one byte order.
    pub entries: Vec<ListEntry>,
    /// False only when nothing follows the last entry.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    pub conditional_put: bool,
    pub conditional_delete: bool,
    /// Parts of an upload can be copied from objects that are there.
    pub copies_parts: bool,
    /// Their bytes do not come here for that.
    pub copies_remotely: bool,
    /// A listing that begins behind any key takes no longer than one that goes on behind the last.
    pub lists_from_anywhere: bool,
    /// Smallest part of an upload except the last.
    pub min_part_bytes: u64,
    pub max_parts: u32,
    pub max_object_bytes: u64,
    pub max_key_bytes: usize,
    /// Objects at most this long may be put with one request.
    pub max_put_bytes: u64,
}

impl Capabilities {
    /// What a put can be guarded by.
    pub fn guard(&self, condition: Condition) -> Condition {
        if self.conditional_put { condition } else { Condition::Always }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BucketError {
    #[error("{key}: no such object")]
    NotFound { key: String },
    /// The condition did not hold.
    #[error("{key}: changed by somebody else")]
    Precondition { key: String },
    #[error("{what}: access denied by the store")]
    Forbidden { what: String },
    /// Nothing was done, for that reason, but that an upload was begun, which the store forbade to
    /// end.
    #[error("{why}; the store forbids to end the upload that was begun for it")]
    Unended { why: Box<BucketError> },
    /// The store does not take such a key, size or request; asking again is of no use.
    #[error("{what}")]
    Refused { what: String },
    /// An object is at a key above this one, or below it, and the store has no place for both: `a`
    /// beside `a/b`.
    #[error("{what}")]
    Nested { what: String },
    /// What came is not what was put there, also when it was asked for again.
    #[error("{what}")]
    Corrupt { what: String },
    /// Nothing was done; ask again, not before `retry_after` where the store said so.
    #[error("{what}")]
    Unavailable { what: String, retry_after: Option<Duration> },
    /// The request was sent and its answer lost: it may have taken effect, now or later.
    #[error("{what}: outcome unknown")]
    Unknown { what: String },
}

impl BucketError {
    /// The bucket has not answered, and may be asked again. Whatever else it says is an answer.
    pub fn is_silence(&self) -> bool {
        matches!(self, BucketError::Unavailable { .. } | BucketError::Unknown { .. })
    }

    /// How long the store asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            BucketError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// This error, of which an upload is left that nobody else has heard of: why it could not be
    /// ended is `left`. Who is told that it is unended, or that an outcome is unknown, looks for
    /// uploads of the key; nothing is to be said of one that is gone, or that cannot be ended.
    pub fn leaving_upload(self, left: BucketError) -> BucketError {
        match (self, left) {
            (unknown @ BucketError::Unknown { .. }, _) => unknown,
            (error, BucketError::NotFound { .. } | BucketError::Refused { .. }) => error,
            (error, BucketError::Forbidden { .. }) => BucketError::Unended { why: Box::new(error) },
            (_, left) => BucketError::Unknown { what: left.to_string() },
        }
    }
}
