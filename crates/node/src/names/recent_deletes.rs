//! Keys that this node has deleted lately. A store may list a deleted key for a while, and the
//! removed file would be back: a listed key of these counts only if the object, requested by
//! itself, is there.

use crate::Node;
use crate::names::listings::LIST_LIMIT;
use ebb_core::backing::Listed;
use ebb_model::*;
use ebb_ports::{ListRequest, ObjectMeta};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::ready;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

/// A listing may show a deleted key for so long.
const LISTED_FOR: Duration = Duration::from_secs(600);

/// With more keys than this the oldest are forgotten.
const MOST_KEYS: usize = 1 << 16;

/// Objects that are requested at one time.
const ASKED_AT_ONCE: usize = 16;

#[derive(Default)]
pub struct RecentDeletes {
    keys: RefCell<Keys>,
}

#[derive(Default)]
struct Keys {
    /// When it was last deleted.
    deleted: BTreeMap<Rc<str>, Duration>,
    /// The same in order of time, with earlier deletions of keys that were deleted again.
    oldest: VecDeque<(Duration, Rc<str>)>,
}

impl RecentDeletes {
    pub fn note(&self, key: &str, now: Duration) {
        let mut keys = self.keys.borrow_mut();
        let key: Rc<str> = key.into();
        keys.deleted.insert(key.clone(), now);
        keys.oldest.push_back((now, key));
        keys.expire(now);
    }

    fn has(&self, key: &str, now: Duration) -> bool {
        let mut keys = self.keys.borrow_mut();
        keys.expire(now);
        keys.deleted.contains_key(key)
    }

    fn has_below(&self, prefix: &str, now: Duration) -> bool {
        let mut keys = self.keys.borrow_mut();
        keys.expire(now);
        keys.deleted
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .next()
            .is_some_and(|(key, _)| key.starts_with(prefix))
    }
}

impl Keys {
    fn expire(&mut self, now: Duration) {
        while let Some((at, key)) = self.oldest.front() {
            if now < *at + LISTED_FOR && self.oldest.len() <= MOST_KEYS {
                return;
            }
            if self.deleted.get(key) == Some(at) {
                self.deleted.remove(key);
            }
            self.oldest.pop_front();
        }
    }
}

impl Node {
    /// Filters the listed entries for those that are there.
    pub(crate) async fn drop_stale(&self, entries: Vec<Listed>) -> Result<Vec<Listed>, RpcError> {
        let drop_stale =
            stream::iter(entries).map(|entry| self.confirm_entry(entry)).buffered(ASKED_AT_ONCE);
        drop_stale.try_filter_map(|entry| ready(Ok(entry))).try_collect().await
    }

    async fn confirm_entry(&self, entry: Listed) -> Result<Option<Listed>, RpcError> {
        let now = self.ports.clock.monotonic();
        let is_doubtful = match &entry {
            Listed::Object { key, .. } => self.names.recent_deletes.has(key, now),
            Listed::Prefix { key } => self.names.recent_deletes.has_below(key, now),
        };
        if !is_doubtful || self.is_known(&entry) || Planted::StaleListingTrusted.is_on() {
            return Ok(Some(entry));
        }
        match entry {
            Listed::Object { key, .. } => self.ask_for_object(key).await,
            Listed::Prefix { key } => self.ask_for_prefix(key).await,
        }
    }

    fn is_known(&self, entry: &Listed) -> bool {
        let state = self.replica.view();
        state.backing().agrees(state.namespace(), entry).is_some()
    }

    /// The object in its present state, if it exists.
    pub(crate) async fn ask_for_object(&self, key: String) -> Result<Option<Listed>, RpcError> {
        match self.bucket_read("head", &key, 0, || self.buckets.bucket().head(&key)).await {
            Ok(ObjectMeta { etag, len_bytes, modified_secs, .. }) => Ok(Some(Listed::Object {
                key,
                etag: etag.0,
                len_bytes,
                modified: Time::from_secs(modified_secs),
            })),
            Err(RpcError::Refused(FsError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The prefix, if any object is below it.
    pub(crate) async fn ask_for_prefix(&self, key: String) -> Result<Option<Listed>, RpcError> {
        let now = self.ports.clock.monotonic();
        let limit = if self.names.recent_deletes.has_below(&key, now) { LIST_LIMIT } else { 1 };
        let request = ListRequest { prefix: key.clone(), by_directory: false, after: None, limit };
        let found = self
            .bucket_read("list", &key, 0, || self.buckets.bucket().list(request.clone()))
            .await?;
        let (doubtful, certain): (Vec<_>, Vec<_>) = found
            .entries
            .into_iter()
            .partition(|entry| self.names.recent_deletes.has(entry.key(), now));
        let asked = stream::iter(doubtful)
            .map(|entry| self.ask_for_object(entry.key().to_owned()))
            .buffer_unordered(ASKED_AT_ONCE);
        let is_there = !certain.is_empty() || asked.try_any(|found| ready(found.is_some())).await?;
        Ok(is_there.then_some(Listed::Prefix { key }))
    }
}
