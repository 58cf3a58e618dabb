//! The contents of the store, and the exact meaning of each request. No time, no faults.

use crate::oracle::{Content, StoredObject};
use crate::trace::fingerprint;
use bytes::{Bytes, BytesMut};
use ebb_format::sums::Sums;
use ebb_ports::{
    BucketError, Capabilities, Condition, ETag, ListEntry, ListPage, ListRequest, Object,
    ObjectMeta, ObjectTags, PartTag, Piece, UploadId,
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range};
use std::time::Duration;

/// The process that sends the request, and the time when it takes effect.
pub(crate) struct Request<'a> {
    pub(crate) at: Duration,
    pub(crate) wall_secs: i64,
    pub(crate) process: &'a str,
}

/// One change of one key, in the order in which they took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutation {
    pub at: Duration,
    /// The incarnation that asked for it, as in traces.
    pub process: String,
    pub key: String,
    /// The content from then on; `None` when it was deleted.
    pub etag: Option<ETag>,
}

/// A multipart upload that was neither completed nor aborted: storage that somebody pays for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnfinishedUpload {
    pub key: String,
    pub upload: UploadId,
    pub begun_at: Duration,
    pub process: String,
    pub parts: usize,
}

/// Laws: one object per key; a tag is a function of the content, as in S3, so content that comes
/// back brings its tag back, unless each object has its own; the history holds every change and
/// nothing else.
pub(crate) struct Store {
    pub(crate) capabilities: Capabilities,
    pub(crate) history: Vec<Mutation>,
    /// Conditions of reads never hold.
    pub(crate) weak_tags: bool,
    /// No two objects ever have the same tag, as in other stores.
    pub(crate) own_tags: bool,
    /// Completing an upload does not take its parts away.
    pub(crate) keeps_parts: bool,
    pub(crate) refuses_part_copies: bool,
    /// Checks the condition of a copy's target.
    pub(crate) guards_copies: bool,
    /// An object longer than one request may carry is copied as an upload.
    pub(crate) copies_in_parts: bool,
    /// Has no place for an object at a key and one below it, as a file system.
    pub(crate) excludes_nested: bool,
    /// Set once an object was damaged: later objects may contain bytes that no client wrote.
    is_rotten: bool,
    /// A listing has no more entries than these, however many are asked for.
    pub(crate) most_listed: usize,
    /// The objects that listings show instead of the current ones.
    pub(crate) listed: Option<BTreeMap<String, Object>>,
    objects: BTreeMap<String, Object>,
    /// The object that each change of the last [`REMEMBERED`] replaced or deleted, oldest first.
    replaced: VecDeque<(Duration, String, Option<Object>)>,
    uploads: BTreeMap<String, Upload>,
    uploads_begun: u64,
    /// All versions of the objects of files; `None` if they are not recorded.
    pub(crate) versions: Option<Vec<StoredObject>>,
}

struct Upload {
    key: String,
    tags: ObjectTags,
    begun_at: Duration,
    process: String,
    parts: BTreeMap<u32, (String, Bytes)>,
}

impl Store {
    pub(crate) fn new() -> Store {
        Store {
            capabilities: CAPABILITIES,
            history: Vec::new(),
            weak_tags: false,
            own_tags: false,
            keeps_parts: false,
            refuses_part_copies: false,
            guards_copies: true,
            copies_in_parts: false,
            excludes_nested: false,
            is_rotten: false,
            most_listed: MAX_PAGE,
            listed: None,
            objects: BTreeMap::new(),
            replaced: VecDeque::new(),
            uploads: BTreeMap::new(),
            uploads_begun: 0,
            versions: None,
        }
    }

    pub(crate) fn objects(&self) -> &BTreeMap<String, Object> {
        &self.objects
    }

    pub(crate) fn unfinished_uploads(&self) -> Vec<UnfinishedUpload> {
        let describe = |(id, upload): (&String, &Upload)| UnfinishedUpload {
            key: upload.key.clone(),
            upload: UploadId(id.clone()),
            begun_at: upload.begun_at,
            process: upload.process.clone(),
            parts: upload.parts.len(),
        };
        self.uploads.iter().map(describe).collect()
    }

    pub(crate) fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> Result<Object, BucketError> {
        let object = self.objects.get(key).ok_or_else(|| not_found(key))?;
        check_tag(key, object, if_match)?;
        if self.weak_tags && if_match.is_some() {
            return Err(precondition(key));
        }
        let len = object.body.len() as u64;
        let range = range.unwrap_or(0..len);
        let (start, end) = (range.start.min(len), range.end.min(len));
        Ok(Object {
            meta: object.meta.clone(),
            body: object.body.slice(start as usize..end.max(start) as usize),
        })
    }

    pub(crate) fn rot(&mut self, key: &str, damage: impl FnOnce(&Bytes) -> Bytes) {
        self.is_rotten = true;
        let object = self.objects.get_mut(key).expect("what is to rot is there");
        object.body = damage(&object.body);
    }

    pub(crate) fn head(&self, key: &str) -> Result<ObjectMeta, BucketError> {
        self.objects.get(key).map(|object| object.meta.clone()).ok_or_else(|| not_found(key))
    }

    pub(crate) fn put(
        &mut self,
        request: &Request<'_>,
        key: &str,
        body: Bytes,
        condition: &Condition,
        tags: ObjectTags,
    ) -> Result<ETag, BucketError> {
        self.check_key(key)?;
        let tags = check_tags(key, tags)?;
        if body.len() as u64 > self.capabilities.max_put_bytes {
            return Err(refused(key, "too long for one request"));
        }
        self.check_condition(key, condition)?;
        self.check_nesting(key)?;
        Ok(self.insert(request, key, content_tag(&body), body, tags))
    }

    pub(crate) fn delete(
        &mut self,
        request: &Request<'_>,
        key: &str,
        if_match: Option<&ETag>,
    ) -> Result<(), BucketError> {
        if let Some(object) = self.objects.get(key) {
            check_tag(key, object, if_match)?;
            let before = self.objects.remove(key);
            self.record(request, key, None, before);
        }
        Ok(())
    }

    pub(crate) fn copy(
        &mut self,
        request: &Request<'_>,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        self.check_key(to)?;
        let source = self.get(from, None, if_match)?;
        if self.guards_copies || !self.capabilities.conditional_put {
            self.check_condition(to, condition)?;
        }
        self.check_nesting(to)?;
        Ok(self.insert(request, to, content_tag(&source.body), source.body, source.meta.tags))
    }

    /// The objects at a moment of the last [`REMEMBERED`].
    fn objects_at(&self, at: Duration) -> BTreeMap<String, Object> {
        let mut objects = self.objects.clone();
        for (_, key, before) in self.replaced.iter().rev().take_while(|(done, ..)| *done > at) {
            match before {
                Some(object) => objects.insert(key.clone(), object.clone()),
                None => objects.remove(key),
            };
        }
        objects
    }

    /// Lists the bucket as it is, or as it was at the moment `stale`.
    pub(crate) fn list(&self, request: &ListRequest, stale: Option<Duration>) -> ListPage {
        let limit = request.limit.clamp(1, self.most_listed);
        let mut entries: Vec<ListEntry> = Vec::new();
        let after = request.after.as_deref().filter(|after| *after >= request.prefix.as_str());
        let mut from = after.map_or(Bound::Included(request.prefix.clone()), |after| {
            Bound::Excluded(after.to_owned())
        });
        let before = stale.map(|at| self.objects_at(at));
        let listed = before.as_ref().or(self.listed.as_ref()).unwrap_or(&self.objects);
        while let Some((key, object)) = listed
            .range((from, Bound::Unbounded))
            .next()
            .filter(|(key, _)| key.starts_with(&request.prefix))
        {
            let slash =
                if request.by_directory { key[request.prefix.len()..].find('/') } else { None };
            let common = slash.map(|at| &key[..=request.prefix.len() + at]);
            let skipped = common.is_some_and(|common| after.is_some_and(|after| common <= after));
            if !skipped && entries.len() == limit {
                return ListPage { entries, more: true };
            }
            from = match common {
                // '0' is the character after '/', so this is the first key outside the directory.
                Some(common) => Bound::Included(format!("{}0", &common[..common.len() - 1])),
                None => Bound::Excluded(key.clone()),
            };
            match common {
                Some(_) if skipped => {}
                Some(common) => entries.push(ListEntry::Prefix { key: common.to_owned() }),
                None => entries.push(ListEntry::Object {
                    key: key.clone(),
                    etag: object.meta.etag.clone(),
                    len_bytes: object.meta.len_bytes,
                    modified_secs: object.meta.modified_secs,
                }),
            }
        }
        ListPage { entries, more: false }
    }

    pub(crate) fn uploads_of(&self, key: &str) -> Vec<UploadId> {
        let of_key = self.uploads.iter().filter(|(_, upload)| upload.key == key);
        of_key.map(|(id, _)| UploadId(id.clone())).collect()
    }

    pub(crate) fn upload_begin(
        &mut self,
        request: &Request<'_>,
        key: &str,
        tags: ObjectTags,
    ) -> Result<UploadId, BucketError> {
        self.check_key(key)?;
        let tags = check_tags(key, tags)?;
        self.uploads_begun += 1;
        let id = format!("upload-{:08}", self.uploads_begun);
        let upload = Upload {
            key: key.to_owned(),
            tags,
            begun_at: request.at,
            process: request.process.to_owned(),
            parts: BTreeMap::new(),
        };
        self.uploads.insert(id.clone(), upload);
        Ok(UploadId(id))
    }

    pub(crate) fn upload_part(
        &mut self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, BucketError> {
        if number == 0 || number > self.capabilities.max_parts {
            return Err(refused(key, "no such part number"));
        }
        let upload = self
            .uploads
            .get_mut(&upload.0)
            .filter(|upload| upload.key == key)
            .ok_or_else(|| not_found(key))?;
        let etag = content_tag(&body).0;
        upload.parts.insert(number, (etag.clone(), body));
        Ok(PartTag { number, receipt: etag })
    }

    pub(crate) fn upload_part_copy(
        &mut self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: &Piece,
    ) -> Result<PartTag, BucketError> {
        if self.refuses_part_copies {
            return Err(refused(key, "parts are not copied"));
        }
        let Piece { key: source, etag, range } = from;
        let object = self.get(source, Some(range.clone()), Some(etag))?;
        if range.is_empty() || object.body.len() as u64 != range.end - range.start {
            return Err(refused(source, "no such range"));
        }
        self.upload_part(key, upload, number, object.body)
    }

    /// The upload stays when it is not completed.
    pub(crate) fn upload_complete(
        &mut self,
        request: &Request<'_>,
        key: &str,
        id: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> Result<ETag, BucketError> {
        let upload = self
            .uploads
            .get(&id.0)
            .filter(|upload| upload.key == key)
            .ok_or_else(|| not_found(key))?;
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(refused(key, "parts must be some, in ascending order"));
        }
        let mut body = BytesMut::new();
        let mut tags = String::new();
        for (position, part) in parts.iter().enumerate() {
            let (etag, bytes) = upload
                .parts
                .get(&part.number)
                .filter(|(etag, _)| *etag == part.receipt)
                .ok_or_else(|| refused(key, "a part is not there"))?;
            if position + 1 < parts.len() && (bytes.len() as u64) < self.capabilities.min_part_bytes
            {
                return Err(refused(key, "a part is too short"));
            }
            body.extend_from_slice(bytes);
            tags.push_str(etag);
        }
        if body.len() as u64 > self.capabilities.max_object_bytes {
            return Err(refused(key, "too long for an object"));
        }
        self.check_condition(key, condition)?;
        self.check_nesting(key)?;
        let tags_of_object = upload.tags.clone();
        if !self.keeps_parts {
            self.uploads.remove(&id.0);
        }
        let etag = ETag(format!("{}-{}", content_tag(tags.as_bytes()), parts.len()));
        Ok(self.insert(request, key, etag, body.freeze(), tags_of_object))
    }

    pub(crate) fn upload_abort(&mut self, key: &str, upload: &UploadId) {
        if self.uploads.get(&upload.0).is_some_and(|upload| upload.key == key) {
            self.uploads.remove(&upload.0);
        }
    }

    fn insert(
        &mut self,
        request: &Request<'_>,
        key: &str,
        etag: ETag,
        body: Bytes,
        tags: ObjectTags,
    ) -> ETag {
        let sums = Sums::decode(&tags, body.len() as u64).filter(|_| !self.is_rotten);
        assert_eq!(
            sums.and_then(|sums| sums.damage(0, &body)),
            None,
            "{key} is not what its checksums say"
        );
        let etag = if self.own_tags {
            ETag(format!("{}-of-{}", etag.0, self.history.len()))
        } else {
            etag
        };
        if let Some(versions) = &mut self.versions
            && !key.starts_with(".ebb/")
            && !key.ends_with('/')
        {
            let content = Content::from_bytes(&body);
            versions.push(StoredObject { at: request.at, key: key.to_owned(), content });
        }
        let meta = ObjectMeta {
            etag: etag.clone(),
            len_bytes: body.len() as u64,
            modified_secs: request.wall_secs,
            tags,
        };
        let before = self.objects.insert(key.to_owned(), Object { meta, body });
        self.record(request, key, Some(etag.clone()), before);
        etag
    }

    fn record(
        &mut self,
        request: &Request<'_>,
        key: &str,
        etag: Option<ETag>,
        before: Option<Object>,
    ) {
        let since = request.at.saturating_sub(REMEMBERED);
        while self.replaced.front().is_some_and(|(at, ..)| *at < since) {
            self.replaced.pop_front();
        }
        self.replaced.push_back((request.at, key.to_owned(), before));
        self.history.push(Mutation {
            at: request.at,
            process: request.process.to_owned(),
            key: key.to_owned(),
            etag,
        });
    }

    fn check_key(&self, key: &str) -> Result<(), BucketError> {
        match key.len() {
            0 => Err(refused(key, "a key has at least one byte")),
            len if len > self.capabilities.max_key_bytes => Err(refused(key, "key too long")),
            _ => Ok(()),
        }
    }

    fn check_nesting(&self, key: &str) -> Result<(), BucketError> {
        let mut above = key.match_indices('/').map(|(at, _)| &key[..at]);
        let below = format!("{key}/");
        let has_below = !key.ends_with('/')
            && self
                .objects
                .range(below.clone()..)
                .next()
                .is_some_and(|(key, _)| key.starts_with(&below));
        match self.excludes_nested
            && (has_below || above.any(|above| self.objects.contains_key(above)))
        {
            true => {
                Err(BucketError::Nested { what: format!("{key}: an object is above or below it") })
            }
            false => Ok(()),
        }
    }

    fn check_condition(&self, key: &str, condition: &Condition) -> Result<(), BucketError> {
        if *condition != Condition::Always && !self.capabilities.conditional_put {
            return Err(refused(key, "the store knows no conditional put"));
        }
        let holds = match (condition, self.objects.get(key)) {
            (Condition::Always, _) | (Condition::Absent, None) => true,
            (Condition::Absent, Some(_)) | (Condition::Match(_), None) => false,
            (Condition::Match(etag), Some(object)) => object.meta.etag == *etag,
        };
        if holds { Ok(()) } else { Err(precondition(key)) }
    }
}

fn check_tag(key: &str, object: &Object, if_match: Option<&ETag>) -> Result<(), BucketError> {
    if if_match.is_none_or(|etag| object.meta.etag == *etag) {
        Ok(())
    } else {
        Err(precondition(key))
    }
}

/// Tags travel as HTTP headers: values that a header cannot carry are refused, and order is lost.
fn check_tags(key: &str, mut tags: ObjectTags) -> Result<ObjectTags, BucketError> {
    let good_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    let good_value = |value: &str| {
        value.bytes().all(|byte| matches!(byte, b' '..=b'~')) && value.trim() == value
    };
    tags.sort();
    if !tags.iter().all(|(name, value)| good_name(name) && good_value(value)) {
        return Err(refused(key, "tags are lower-case names with printable ASCII values"));
    }
    if tags.windows(2).any(|two| two[0].0 == two[1].0) {
        return Err(refused(key, "a tag is given twice"));
    }
    if tags.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_TAG_BYTES {
        return Err(refused(key, "too many bytes of tags"));
    }
    Ok(tags)
}

fn content_tag(body: &[u8]) -> ETag {
    ETag(format!("{:016x}{:016x}", fingerprint(body), body.len()))
}

fn not_found(key: &str) -> BucketError {
    BucketError::NotFound { key: key.to_owned() }
}

fn precondition(key: &str) -> BucketError {
    BucketError::Precondition { key: key.to_owned() }
}

fn refused(key: &str, what: &str) -> BucketError {
    BucketError::Refused { what: format!("{key}: {what}") }
}

const MAX_PAGE: usize = 1000;

/// The oldest state of the bucket that a listing can show.
const REMEMBERED: Duration = Duration::from_secs(60);

/// As S3 has it for user metadata.
const MAX_TAG_BYTES: usize = 2 << 10;

/// As S3's, scaled down so that small files already take the ways of large ones.
const CAPABILITIES: Capabilities = Capabilities {
    conditional_put: true,
    conditional_delete: true,
    copies_parts: true,
    copies_remotely: true,
    min_part_bytes: 4 << 10,
    max_parts: 1000,
    max_object_bytes: 1 << 30,
    max_key_bytes: 1024,
    max_put_bytes: 256 << 10,
};
