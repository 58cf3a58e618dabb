//! A bucket in memory: for tests, and the simplest definition of the port's semantics.

use crate::tags::checked;
use bytes::Bytes;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListEntry, ListPage, ListRequest, Object,
    ObjectMeta, ObjectTags, PartTag, Piece, PortFuture, UploadId,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Default)]
pub struct Memory {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Upload>,
    /// Source of ETags and upload ids; never repeats.
    serial: u64,
}

/// As it was sent: the parts of an upload are joined when a read crosses them, so its sender does
/// not wait.
#[derive(Clone)]
struct Stored {
    meta: ObjectMeta,
    parts: Vec<Bytes>,
}

struct Upload {
    key: String,
    tags: ObjectTags,
    parts: BTreeMap<u32, (String, Bytes)>,
}

impl Memory {
    pub fn new() -> Memory {
        Memory::default()
    }
}

impl Stored {
    /// A range that is in it.
    fn cut(&mut self, range: Range<u64>) -> Bytes {
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len() as u64;
            if (start..=end).contains(&range.start) && range.end <= end {
                return part.slice((range.start - start) as usize..(range.end - start) as usize);
            }
            start = end;
        }
        let whole = Bytes::from(self.parts.concat());
        self.parts = vec![whole.clone()];
        whole.slice(range.start as usize..range.end as usize)
    }
}

impl State {
    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn find(&mut self, key: &str, if_match: Option<&ETag>) -> Result<&mut Stored, BucketError> {
        let object =
            self.objects.get_mut(key).ok_or_else(|| BucketError::NotFound { key: key.into() })?;
        match if_match {
            Some(tag) if *tag != object.meta.etag => {
                Err(BucketError::Precondition { key: key.into() })
            }
            _ => Ok(object),
        }
    }

    fn check(&self, key: &str, condition: &Condition) -> Result<(), BucketError> {
        let there = self.objects.get(key).map(|object| &object.meta.etag);
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => there.is_none(),
            Condition::Match(tag) => there == Some(tag),
        };
        if holds { Ok(()) } else { Err(BucketError::Precondition { key: key.into() }) }
    }

    fn store(
        &mut self,
        key: &str,
        parts: Vec<Bytes>,
        condition: &Condition,
        tags: ObjectTags,
    ) -> Result<ETag, BucketError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(BucketError::Refused {
                what: format!("{key:?}: a key is 1 to {MAX_KEY_BYTES} bytes long"),
            });
        }
        self.check(key, condition)?;
        let tags = checked(tags)?;
        let etag = ETag(format!("m{}", self.serial()));
        let modified_secs =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let len_bytes = parts.iter().map(|part| part.len() as u64).sum();
        let meta = ObjectMeta { etag: etag.clone(), len_bytes, modified_secs, tags };
        self.objects.insert(key.into(), Stored { meta, parts });
        Ok(etag)
    }

    fn piece(&mut self, Piece { key, etag, range }: &Piece) -> Result<Bytes, BucketError> {
        let object = self.find(key, Some(etag))?;
        if range.is_empty() || range.end > object.meta.len_bytes {
            return Err(BucketError::Refused {
                what: format!("{key}: it does not have bytes {range:?}"),
            });
        }
        Ok(object.cut(range.clone()))
    }

    fn upload(&mut self, key: &str, upload: &UploadId) -> Result<&mut Upload, BucketError> {
        self.uploads
            .get_mut(&upload.0)
            .filter(|upload| upload.key == key)
            .ok_or_else(|| BucketError::NotFound { key: key.into() })
    }

    fn list(&self, request: &ListRequest) -> ListPage {
        let mut entries: Vec<ListEntry> = Vec::new();
        // A key up to `after` cannot show as an entry above it either.
        let first =
            request.after.as_ref().map_or(&request.prefix, |after| after.max(&request.prefix));
        for (key, object) in self.objects.range(first.clone()..) {
            let Some(rest) = key.strip_prefix(&request.prefix) else { break };
            let entry = match rest.find('/') {
                Some(slash) if request.by_directory => {
                    ListEntry::Prefix { key: key[..request.prefix.len() + slash + 1].into() }
                }
                _ => ListEntry::Object {
                    key: key.clone(),
                    etag: object.meta.etag.clone(),
                    len_bytes: object.meta.len_bytes,
                    modified_secs: object.meta.modified_secs,
                },
            };
            let seen = entries.last().is_some_and(|last| last == &entry);
            let skipped = request.after.as_deref().is_some_and(|after| entry.key() <= after);
            if seen || skipped {
                continue;
            }
            if entries.len() == request.limit.min(MAX_PAGE) {
                return ListPage { entries, more: true };
            }
            entries.push(entry);
        }
        ListPage { entries, more: false }
    }
}

impl Bucket for Memory {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        let found = self.state.borrow_mut().find(key, if_match).map(|object| {
            let end = object.meta.len_bytes;
            let range = range.unwrap_or(0..end);
            let cut = range.start.min(end)..range.end.clamp(range.start.min(end), end);
            Object { meta: object.meta.clone(), body: object.cut(cut) }
        });
        answer(found)
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        answer(self.state.borrow_mut().find(key, None).map(|object| object.meta.clone()))
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        answer(self.state.borrow_mut().store(key, vec![body], &condition, tags))
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let mut state = self.state.borrow_mut();
        answer(match state.find(key, if_match) {
            Ok(_) => {
                state.objects.remove(key);
                Ok(())
            }
            Err(BucketError::NotFound { .. }) => Ok(()),
            Err(other) => Err(other),
        })
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let mut state = self.state.borrow_mut();
        let source = state.find(from, if_match).cloned();
        answer(
            source.and_then(|source| state.store(to, source.parts, &condition, source.meta.tags)),
        )
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        answer(Ok(self.state.borrow().list(&request)))
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        let mut state = self.state.borrow_mut();
        let id = format!("u{}", state.serial());
        let begun = checked(tags).map(|tags| {
            state
                .uploads
                .insert(id.clone(), Upload { key: key.into(), tags, parts: BTreeMap::new() })
        });
        answer(begun.map(|_| UploadId(id)))
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let mut state = self.state.borrow_mut();
        let etag = format!("p{}", state.serial());
        let stored = state
            .upload(key, upload)
            .map(|upload| upload.parts.insert(number, (etag.clone(), body)));
        answer(stored.map(|_| PartTag { number, receipt: etag }))
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let mut state = self.state.borrow_mut();
        let etag = format!("p{}", state.serial());
        let copied = state.piece(&from).and_then(|body| {
            Ok(state.upload(key, upload)?.parts.insert(number, (etag.clone(), body)))
        });
        answer(copied.map(|_| PartTag { number, receipt: etag }))
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let mut state = self.state.borrow_mut();
        let assembled = state
            .upload(key, upload)
            .and_then(|upload| Ok((upload.assemble(&parts)?, upload.tags.clone())));
        let done = assembled.and_then(|(parts, tags)| state.store(key, parts, &condition, tags));
        if done.is_ok() {
            state.uploads.remove(&upload.0);
        }
        answer(done)
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let mut state = self.state.borrow_mut();
        if state.upload(key, upload).is_ok() {
            state.uploads.remove(&upload.0);
        }
        answer(Ok(()))
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        let state = self.state.borrow();
        let of_key = state.uploads.iter().filter(|(_, upload)| upload.key == key);
        answer(Ok(of_key.map(|(id, _)| UploadId(id.clone())).collect()))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            conditional_put: true,
            conditional_delete: true,
            copies_parts: true,
            copies_remotely: true,
            min_part_bytes: 1,
            max_parts: 10_000,
            max_object_bytes: 1 << 40,
            max_key_bytes: MAX_KEY_BYTES,
            max_put_bytes: 1 << 40,
        }
    }

    fn describe(&self) -> String {
        "mem://".into()
    }
}

impl Upload {
    fn assemble(&self, parts: &[PartTag]) -> Result<Vec<Bytes>, BucketError> {
        let ascending = parts.windows(2).all(|pair| pair[0].number < pair[1].number);
        if parts.is_empty() || !ascending {
            return Err(BucketError::Refused {
                what: format!("{}: the parts of an upload are given once each, in order", self.key),
            });
        }
        let sent = parts.iter().map(|part| match self.parts.get(&part.number) {
            Some((etag, bytes)) if *etag == part.receipt => Ok(bytes.clone()),
            _ => Err(BucketError::Refused {
                what: format!("{}: part {} was not sent", self.key, part.number),
            }),
        });
        sent.collect()
    }
}

fn answer<T: 'static>(
    result: Result<T, BucketError>,
) -> PortFuture<'static, Result<T, BucketError>> {
    Box::pin(std::future::ready(result))
}

/// The limit of S3.
const MAX_KEY_BYTES: usize = 1024;
const MAX_PAGE: usize = 1000;
