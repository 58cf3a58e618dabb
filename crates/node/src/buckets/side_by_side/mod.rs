//! Several buckets as one (O-24): the *root bucket* has the volume's `.ebb/` and the objects at the
//! root; each *member* has the objects below one directory of the root. The first segment of a key
//! selects the bucket, and a member stores its objects under the rest of the key.
//!
//! - The directory of a member is an empty object, its marker. It exists whether or not the member
//!   can be reached, and cannot be written or deleted.
//! - Objects of the root bucket below such a directory are not shown and not touched.
//! - `.ebb` of a member is not shown; nothing is written there but its head, which this node holds
//!   for as long as it writes to the member.

mod across;
mod listing;

use crate::buckets::head::HeadLease;
use bytes::Bytes;
use ebb_core::backing::keys::MAX_KEY_BYTES;
use ebb_model::MemberDir;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListPage, ListRequest, Object, ObjectMeta,
    ObjectTags, PartTag, Piece, PortFuture, UploadId,
};
use std::future::ready;
use std::ops::Range;
use std::rc::Rc;

/// A bucket that a volume shows at a directory of its root.
pub struct Member {
    dir: MemberDir,
    /// The prefix of its keys in the volume: the directory and `/`.
    prefix: String,
    bucket: Rc<dyn Bucket>,
    /// The right to write to it; none where nothing is written at all.
    head_lease: Option<Rc<HeadLease>>,
}

impl Member {
    pub fn new(dir: MemberDir, bucket: Rc<dyn Bucket>) -> Member {
        Member { prefix: format!("{dir}/"), dir, bucket, head_lease: None }
    }

    pub fn dir(&self) -> &MemberDir {
        &self.dir
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn bucket(&self) -> &Rc<dyn Bucket> {
        &self.bucket
    }

    /// The same member with another bucket around its own.
    pub(crate) fn within(self, wrap: impl FnOnce(Rc<dyn Bucket>) -> Rc<dyn Bucket>) -> Member {
        Member { bucket: wrap(self.bucket), ..self }
    }

    pub(crate) fn head_lease(&self) -> Option<&Rc<HeadLease>> {
        self.head_lease.as_ref()
    }

    pub(crate) fn hold(&mut self, head_lease: Rc<HeadLease>) {
        self.head_lease = Some(head_lease);
    }

    /// Its name for people and logs.
    pub fn describe(&self) -> String {
        format!("{} over {}", self.dir, self.bucket.describe())
    }

    /// In errors the key is the volume's, and the message begins with the member's name.
    fn outward(&self, error: BucketError) -> BucketError {
        let named = |what| format!("{}: {what}", self.dir);
        match error {
            BucketError::NotFound { key } => {
                BucketError::NotFound { key: self.prefix.clone() + &key }
            }
            BucketError::Precondition { key } => {
                BucketError::Precondition { key: self.prefix.clone() + &key }
            }
            BucketError::Forbidden { what } => BucketError::Forbidden { what: named(what) },
            BucketError::Unended { why } => {
                BucketError::Unended { why: Box::new(self.outward(*why)) }
            }
            BucketError::Refused { what } => BucketError::Refused { what: named(what) },
            BucketError::Nested { what } => BucketError::Nested { what: named(what) },
            BucketError::Corrupt { what } => BucketError::Corrupt { what: named(what) },
            BucketError::Unavailable { what, retry_after } => {
                BucketError::Unavailable { what: named(what), retry_after }
            }
            BucketError::Unknown { what } => BucketError::Unknown { what: named(what) },
        }
    }
}

pub struct SideBySide {
    root: Rc<dyn Bucket>,
    members: Rc<[Member]>,
}

/// The bucket that a key of the volume is in.
enum KeyOwner<'a, 'k> {
    Root,
    Member(&'a Member, &'k str),
    /// The directory of a member.
    Marker,
    /// `.ebb` of a member.
    Hidden,
}

impl SideBySide {
    /// `root` itself where there are no members. Their directories must differ.
    pub fn over(root: Rc<dyn Bucket>, members: Rc<[Member]>) -> Rc<dyn Bucket> {
        if members.is_empty() { root } else { Rc::new(SideBySide { root, members }) }
    }

    fn owner_of<'k>(&self, key: &'k str) -> KeyOwner<'_, 'k> {
        let Some(member) = member_of(&self.members, key) else { return KeyOwner::Root };
        match &key[member.prefix.len()..] {
            "" => KeyOwner::Marker,
            rest if listing::is_reserved(rest) => KeyOwner::Hidden,
            rest => KeyOwner::Member(member, rest),
        }
    }

    fn read<'a, T: 'a>(
        &'a self,
        key: &str,
        ask: impl FnOnce(&'a dyn Bucket, &str) -> PortFuture<'a, Result<T, BucketError>>,
        marker: impl FnOnce() -> Result<T, BucketError>,
    ) -> PortFuture<'a, Result<T, BucketError>> {
        match self.owner_of(key) {
            KeyOwner::Root => ask(&*self.root, key),
            KeyOwner::Marker => Box::pin(ready(marker())),
            KeyOwner::Hidden => Box::pin(ready(Err(BucketError::NotFound { key: key.into() }))),
            KeyOwner::Member(member, rest) => {
                let answer = ask(&*member.bucket, rest);
                Box::pin(async move { answer.await.map_err(|error| member.outward(error)) })
            }
        }
    }

    fn write<'a, T: 'a>(
        &'a self,
        key: &str,
        ask: impl FnOnce(&'a dyn Bucket, &str) -> PortFuture<'a, Result<T, BucketError>>,
    ) -> PortFuture<'a, Result<T, BucketError>> {
        match self.owner_of(key) {
            KeyOwner::Root => ask(&*self.root, key),
            KeyOwner::Marker | KeyOwner::Hidden => Box::pin(ready(Err(not_to_be_written(key)))),
            KeyOwner::Member(..) if key.len() > MAX_KEY_BYTES => {
                let what = format!("a key of {} bytes is longer than {MAX_KEY_BYTES}", key.len());
                Box::pin(ready(Err(BucketError::Refused { what })))
            }
            KeyOwner::Member(member, rest) => {
                let answer = ask(&*member.bucket, rest);
                Box::pin(async move { answer.await.map_err(|error| member.outward(error)) })
            }
        }
    }
}

/// The member that has a key.
pub(crate) fn member_of<'a>(members: &'a [Member], key: &str) -> Option<&'a Member> {
    members.iter().find(|member| key.starts_with(&member.prefix))
}

fn not_to_be_written(key: &str) -> BucketError {
    BucketError::Refused {
        what: format!("{key}: the directory of a bucket and its .ebb cannot be written"),
    }
}

/// The tag of every marker.
const MARKER: &str = "ebb-member";

fn marker_meta() -> ObjectMeta {
    ObjectMeta { etag: ETag(MARKER.into()), len_bytes: 0, modified_secs: 0, tags: Vec::new() }
}

impl Bucket for SideBySide {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        let marker = || match if_match {
            Some(tag) if tag.0 != MARKER => Err(BucketError::Precondition { key: key.into() }),
            _ => Ok(Object { meta: marker_meta(), body: Bytes::new() }),
        };
        self.read(key, |bucket, key| bucket.get(key, range, if_match), marker)
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        self.read(key, |bucket, key| bucket.head(key), || Ok(marker_meta()))
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.write(key, |bucket, key| bucket.put(key, body, condition, tags))
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.write(key, |bucket, key| bucket.delete(key, if_match))
    }

    /// A copy between two buckets goes through this node.
    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let bucket_index =
            |key: &str| member_of(&self.members, key).map(|member| member.dir.clone());
        let (from, if_match) = (from.to_owned(), if_match.cloned());
        if bucket_index(&from) != bucket_index(to) {
            let to = to.to_owned();
            return Box::pin(async move {
                across::copy(self, &from, &to, if_match.as_ref(), condition).await
            });
        }
        match self.owner_of(&from) {
            KeyOwner::Marker | KeyOwner::Hidden => Box::pin(ready(Err(not_to_be_written(&from)))),
            KeyOwner::Root => {
                self.write(to, |bucket, to| bucket.copy(&from, to, if_match.as_ref(), condition))
            }
            KeyOwner::Member(_, inner) => {
                self.write(to, |bucket, to| bucket.copy(inner, to, if_match.as_ref(), condition))
            }
        }
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        Box::pin(listing::list(&*self.root, &self.members, request))
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        self.write(key, |bucket, key| bucket.upload_begin(key, tags))
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        self.write(key, |bucket, key| bucket.upload_part(key, upload, number, body))
    }

    /// Only within one bucket.
    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let bucket_index = |key: &str| member_of(&self.members, key).map(|member| &member.dir);
        if bucket_index(&from.key) != bucket_index(key) {
            let what = format!("{key}: a part cannot be copied from another bucket");
            return Box::pin(ready(Err(BucketError::Refused { what })));
        }
        match self.owner_of(&from.key) {
            KeyOwner::Marker | KeyOwner::Hidden => {
                Box::pin(ready(Err(not_to_be_written(&from.key))))
            }
            KeyOwner::Root => {
                self.write(key, |bucket, key| bucket.upload_part_copy(key, upload, number, from))
            }
            KeyOwner::Member(_, inner) => {
                let from = Piece { key: inner.to_owned(), ..from.clone() };
                self.write(key, |bucket, key| bucket.upload_part_copy(key, upload, number, from))
            }
        }
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        self.write(key, |bucket, key| bucket.upload_complete(key, upload, parts, condition))
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        self.read(key, |bucket, key| bucket.uploads(key), || Ok(Vec::new()))
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        self.write(key, |bucket, key| bucket.upload_abort(key, upload))
    }

    /// The capabilities that all of them have.
    fn capabilities(&self) -> Capabilities {
        self.members.iter().fold(self.root.capabilities(), |all, member| {
            let one = member.bucket.capabilities();
            Capabilities {
                conditional_put: all.conditional_put && one.conditional_put,
                conditional_delete: all.conditional_delete && one.conditional_delete,
                copies_parts: all.copies_parts && one.copies_parts,
                copies_remotely: all.copies_remotely && one.copies_remotely,
                min_part_bytes: all.min_part_bytes.max(one.min_part_bytes),
                max_parts: all.max_parts.min(one.max_parts),
                max_object_bytes: all.max_object_bytes.min(one.max_object_bytes),
                max_key_bytes: all
                    .max_key_bytes
                    .min(one.max_key_bytes + member.prefix.len())
                    .min(MAX_KEY_BYTES),
                max_put_bytes: all.max_put_bytes.min(one.max_put_bytes),
            }
        })
    }

    fn describe(&self) -> String {
        let members = self.members.iter().map(|member| format!(", {}", member.describe()));
        self.root.describe() + &members.collect::<String>()
    }

    fn endpoint(&self) -> Option<String> {
        self.root.endpoint()
    }
}
