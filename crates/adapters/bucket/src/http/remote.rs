//! The port over any store that is reached over HTTP: passes requests to the adapter's threads, and
//! does the work that is the same for all stores.

use super::page::page;
use crate::OpenError;
use crate::background::Background;
use crate::tags::checked;
use bytes::Bytes;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListEntry, ListPage, ListRequest, Object,
    ObjectMeta, ObjectTags, PartTag, Piece, PortFuture, UploadId,
};
use std::future::{Future, ready};
use std::ops::Range;
use std::sync::Arc;

/// The port's operations as one store's requests. Conditions are handed to the store as
/// they are; whether it keeps them is found out at opening. Tags are checked and in order.
pub(crate) trait Operations: Send + Sync + 'static {
    /// Scheme and bucket, for people.
    fn url(&self) -> String;

    /// Where the store is reached, for people.
    fn endpoint(&self) -> String;

    /// `range` is not empty.
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> impl Future<Output = Result<Got, BucketError>> + Send;

    fn head(&self, key: &str) -> impl Future<Output = Result<ObjectMeta, BucketError>> + Send;

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: &Condition,
        tags: &ObjectTags,
    ) -> impl Future<Output = Result<ETag, BucketError>> + Send;

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> impl Future<Output = Result<(), BucketError>> + Send;

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: &Condition,
    ) -> impl Future<Output = Result<ETag, BucketError>> + Send;

    /// One page of the store's own, from the beginning or from `token`. Entries may be in any
    /// order, and there may be more of them than requested.
    fn list(
        &self,
        request: &ListRequest,
        token: Option<&str>,
    ) -> impl Future<Output = Result<Listed, BucketError>> + Send;

    fn upload_begin(
        &self,
        key: &str,
        tags: &ObjectTags,
    ) -> impl Future<Output = Result<UploadId, BucketError>> + Send;

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> impl Future<Output = Result<PartTag, BucketError>> + Send;

    /// Called only for stores that support it.
    fn upload_part_copy(
        &self,
        key: &str,
        _upload: &UploadId,
        _number: u32,
        _from: &Piece,
    ) -> impl Future<Output = Result<PartTag, BucketError>> + Send {
        ready(Err(BucketError::Refused { what: format!("{key}: the store copies no parts") }))
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[PartTag],
        condition: &Condition,
    ) -> impl Future<Output = Result<ETag, BucketError>> + Send;

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> impl Future<Output = Result<(), BucketError>> + Send;

    fn uploads(&self, key: &str)
    -> impl Future<Output = Result<Vec<UploadId>, BucketError>> + Send;
}

pub(crate) enum Got {
    Object(Object),
    /// The range begins at or after the end.
    NothingThere,
}

pub(crate) struct Listed {
    pub entries: Vec<ListEntry>,
    pub more: bool,
    pub next: Option<String>,
}

pub(crate) struct Remote<O> {
    store: Arc<O>,
    capabilities: Capabilities,
    background: Background,
}

impl<O: Operations> Remote<O> {
    /// Runs `opening` where all requests will run.
    pub async fn open(
        name: &str,
        opening: impl Future<Output = Result<(O, Capabilities), OpenError>> + Send + 'static,
    ) -> Result<Remote<O>, OpenError> {
        let background = Background::start(name, WORKERS, MAX_BLOCKING)
            .map_err(|error| OpenError::Threads { error })?;
        let (store, capabilities) = background.run(opening).await?;
        Ok(Remote { store: Arc::new(store), capabilities, background })
    }

    /// Starts work for the store without a waiting caller. It ends with the adapter.
    pub fn aside<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<O>) -> F) {
        self.background.start_aside(work(self.store.clone()));
    }

    fn run<T: Send + 'static, F>(
        &self,
        operation: impl FnOnce(Arc<O>) -> F,
    ) -> PortFuture<'_, Result<T, BucketError>>
    where
        F: Future<Output = Result<T, BucketError>> + Send + 'static,
    {
        Box::pin(self.background.run(operation(self.store.clone())))
    }
}

impl<O: Operations> Bucket for Remote<O> {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        let (key, if_match) = (key.to_string(), if_match.cloned());
        let longest = self.capabilities.max_object_bytes;
        self.run(move |store| async move {
            let range = range.map(|range| range.start..range.end.min(longest));
            let got = match range.as_ref().is_none_or(|range| !range.is_empty()) {
                true => store.get(&key, range, if_match.as_ref()).await?,
                false => Got::NothingThere,
            };
            let object = match got {
                Got::Object(object) => object,
                Got::NothingThere => Object { meta: store.head(&key).await?, body: Bytes::new() },
            };
            match if_match {
                // A store may not know the condition.
                Some(tag) if tag != object.meta.etag => Err(BucketError::Precondition { key }),
                _ => Ok(object),
            }
        })
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        let key = key.to_string();
        self.run(|store| async move { store.head(&key).await })
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let key = key.to_string();
        self.run(|store| async move {
            let put = store.put(&key, body, &condition, &checked(tags)?).await;
            put.map_err(|error| missing_is_changed(error, &condition))
        })
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, if_match, guarded) =
            (key.to_string(), if_match.cloned(), self.capabilities.conditional_delete);
        self.run(move |store| async move {
            let deleted = match &if_match {
                Some(tag) if !guarded => match store.head(&key).await {
                    Ok(meta) if meta.etag == *tag => store.delete(&key, None).await,
                    Ok(_) => Err(BucketError::Precondition { key: key.clone() }),
                    Err(error) => Err(error),
                },
                _ => store.delete(&key, if_match.as_ref()).await,
            };
            match deleted {
                Err(BucketError::NotFound { .. }) => Ok(()),
                // Some stores call a missing object a failed condition.
                Err(BucketError::Precondition { .. }) => match store.head(&key).await {
                    Err(BucketError::NotFound { .. }) => Ok(()),
                    _ => Err(BucketError::Precondition { key }),
                },
                ended => ended,
            }
        })
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (from, to, if_match) = (from.to_string(), to.to_string(), if_match.cloned());
        self.run(|store| async move {
            store.copy(&from, &to, if_match.as_ref(), &condition).await.map_err(|error| match error
            {
                BucketError::NotFound { .. } => BucketError::NotFound { key: from },
                BucketError::Precondition { .. } => BucketError::Precondition { key: from },
                other => other,
            })
        })
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        self.run(|store| async move {
            let mut token: Option<String> = None;
            // `after` may exclude all entries of a page.
            for _ in 0..MAX_EMPTY_PAGES {
                let listed = store.list(&request, token.as_deref()).await?;
                let page = page(listed.entries, listed.more, &request);
                if !page.entries.is_empty() || !page.more {
                    return Ok(page);
                }
                match listed.next {
                    Some(next) if token.as_ref() != Some(&next) => token = Some(next),
                    _ => return Err(unclear("list", &request.prefix, "a new token to go on with")),
                }
            }
            Err(unclear("list", &request.prefix, "any entry in page after page"))
        })
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        let key = key.to_string();
        self.run(|store| async move { store.upload_begin(&key, &checked(tags)?).await })
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload, limit) = (key.to_string(), upload.clone(), self.capabilities.max_parts);
        self.run(move |store| async move {
            check_number(&key, number, limit)?;
            store.upload_part(&key, &upload, number, body).await
        })
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload, limit) = (key.to_string(), upload.clone(), self.capabilities.max_parts);
        self.run(move |store| async move {
            check_number(&key, number, limit)?;
            store.upload_part_copy(&key, &upload, number, &from).await
        })
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(
            |store| async move { store.upload_complete(&key, &upload, &parts, &condition).await },
        )
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, upload) = (key.to_string(), upload.clone());
        self.run(|store| async move {
            match store.upload_abort(&key, &upload).await {
                Err(BucketError::NotFound { .. }) => Ok(()),
                ended => ended,
            }
        })
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        let key = key.to_string();
        self.run(|store| async move { store.uploads(&key).await })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn describe(&self) -> String {
        self.store.url()
    }

    fn endpoint(&self) -> Option<String> {
        Some(self.store.endpoint())
    }
}

fn check_number(key: &str, number: u32, limit: u32) -> Result<(), BucketError> {
    match number {
        number if (1..=limit).contains(&number) => Ok(()),
        _ => Err(BucketError::Refused {
            what: format!("{key}: parts are numbered from 1 to {limit}, not {number}"),
        }),
    }
}

/// The kinds of conditions that a store honours.
#[derive(Clone, Copy, Default)]
pub(crate) struct Conditions {
    pub put: bool,
    pub delete: bool,
}

/// Tests whether the store honours conditions. A store that does not know a condition ignores it,
/// and performs the operation all the same. One object below the volume's prefix, `.ebb/probe`, is
/// written and deleted again, unless the bucket is opened read-only. A crash may leave it; the next
/// opening deletes it.
pub(crate) async fn conditions<O: Operations>(
    store: &O,
    prefix: &str,
    read_only: bool,
) -> Result<Conditions, OpenError> {
    match read_only {
        true => Ok(Conditions::default()),
        false => ask(store, &probe_key(prefix))
            .await
            .map_err(|error| OpenError::unwritten(store.url(), error)),
    }
}

/// The key of the object that probes a store.
pub(crate) fn probe_key(prefix: &str) -> String {
    format!("{prefix}.ebb/probe")
}

async fn ask<O: Operations>(store: &O, key: &str) -> Result<Conditions, BucketError> {
    let put = |condition: Condition| async move {
        match store.put(key, Bytes::from_static(b"ebb"), &condition, &vec![]).await {
            Ok(_) => Ok(true),
            Err(BucketError::Precondition { .. }) => Ok(false),
            Err(BucketError::NotFound { .. }) if matches!(condition, Condition::Match(_)) => {
                Ok(false)
            }
            // The store reports that it does not know the condition.
            Err(BucketError::Refused { what }) if condition != Condition::Always => {
                tracing::debug!(what, "the store refuses conditional puts");
                Ok(true)
            }
            Err(other) => Err(other),
        }
    };
    let nobody = ETag("00000000000000000000000000000000".into());
    let ignores_match = put(Condition::Match(nobody.clone())).await?;
    put(Condition::Always).await?;
    let ignores_absent = put(Condition::Absent).await?;
    let delete = match store.delete(key, Some(&nobody)).await {
        Err(BucketError::Precondition { .. }) => true,
        // An attempt whose answer was lost may have deleted it.
        Ok(()) | Err(BucketError::NotFound { .. } | BucketError::Refused { .. }) => false,
        Err(other) => return Err(other),
    };
    match store.delete(key, None).await {
        Ok(()) | Err(BucketError::NotFound { .. }) => {
            Ok(Conditions { put: !ignores_match && !ignores_absent, delete })
        }
        Err(other) => Err(other),
    }
}

/// AWS answers If-Match on a missing key with 404.
fn missing_is_changed(error: BucketError, condition: &Condition) -> BucketError {
    match (error, condition) {
        (BucketError::NotFound { key }, Condition::Match(_)) => BucketError::Precondition { key },
        (other, _) => other,
    }
}

/// The store reported success, but its answer lacks a required value.
pub(crate) fn unclear(what: &str, key: &str, lacks: &str) -> BucketError {
    BucketError::Unavailable {
        what: format!("{what} {key}: the answer lacks {lacks}; is this the right endpoint?"),
        retry_after: None,
    }
}

/// The same of a request that may have changed something.
pub(crate) fn unclear_change(what: &str, key: &str, lacks: &str) -> BucketError {
    BucketError::Unknown { what: format!("{what} {key}: the answer lacks {lacks}") }
}

/// TLS and hashing of a few gigabytes a second; more would take the node's cores.
const WORKERS: usize = 2;
/// Name resolution only.
const MAX_BLOCKING: usize = 4;
/// Stores that skip deleted objects return empty pages; one that returns only such pages is broken.
const MAX_EMPTY_PAGES: usize = 10_000;
