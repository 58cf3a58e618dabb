//! The simulated store: [`Store`] behind a network that loses, delays and refuses.

mod store;

use crate::clock::true_wall_secs;
use crate::executor::{Executor, Owner};
use crate::faults::Faults;
use crate::net::Network;
use crate::oracle::StoredObject;
use crate::rng::Rng;
use bytes::Bytes;
use ebb_format::sums::Sums;
use ebb_ports::{
    Bucket, BucketError, Capabilities, Condition, ETag, ListPage, ListRequest, Object, ObjectMeta,
    ObjectTags, PartTag, Piece, PortFuture, SLOWEST_UPLOAD_BYTES_PER_SECOND, UploadId,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
pub use store::{Mutation, UnfinishedUpload};
use store::{Request, Store};

/// One bucket, shared by all machines. Scenarios inject faults and inspect its contents here.
///
/// A request travels for a while, takes effect at one instant, and its reply travels back. A
/// request that was sent takes effect even if its process has died.
#[derive(Clone)]
pub struct SimBucket {
    shared: Rc<Shared>,
}

struct Shared {
    name: String,
    executor: Executor,
    faults: Faults,
    net: Network,
    rng: Rng,
    stale_rng: Rng,
    /// No listing shows the bucket as it was before this moment.
    listed_since: Cell<Duration>,
    store: RefCell<Store>,
    requests: RefCell<BTreeMap<&'static str, u64>>,
    forbidden_until: Cell<Duration>,
    aborts_forbidden: Cell<bool>,
    changes_forbidden: Cell<bool>,
    gone_until: Cell<Duration>,
    uplink: Line,
    downlink: Line,
}

/// The line that all bodies share on their way to the store, or from there.
#[derive(Default)]
struct Line {
    bytes_per_sec: Cell<Option<u64>>,
    bodies: Cell<u64>,
}

/// A body on its way.
struct OnLine<'a>(&'a Line);

impl Drop for OnLine<'_> {
    fn drop(&mut self) {
        self.0.bodies.set(self.0.bodies.get() - 1);
    }
}

impl Line {
    fn enter(&self) -> OnLine<'_> {
        self.bodies.set(self.bodies.get() + 1);
        OnLine(self)
    }
}

/// The outcome of one request.
enum Fate {
    Served,
    Refused(BucketError),
    /// The answer is lost. The change is made at once, after a while, or (`None`) never.
    Lost(Option<Duration>),
}

impl SimBucket {
    pub(crate) fn new(
        name: &str,
        executor: Executor,
        faults: Faults,
        net: Network,
        rng: Rng,
    ) -> SimBucket {
        SimBucket {
            shared: Rc::new(Shared {
                name: name.to_owned(),
                executor,
                faults,
                net,
                stale_rng: rng.split("stale"),
                rng,
                listed_since: Cell::default(),
                store: RefCell::new(Store::new()),
                requests: RefCell::default(),
                forbidden_until: Cell::new(Duration::ZERO),
                aborts_forbidden: Cell::new(false),
                changes_forbidden: Cell::new(false),
                gone_until: Cell::new(Duration::ZERO),
                uplink: Line::default(),
                downlink: Line::default(),
            }),
        }
    }

    pub fn set_capabilities(&self, capabilities: Capabilities) {
        self.shared.store.borrow_mut().capabilities = capabilities;
    }

    /// Does not support conditions of writes and deletes.
    pub fn forget_conditions(&self) {
        self.guard_puts_alone();
        self.shared.store.borrow_mut().capabilities.conditional_put = false;
    }

    /// Supports conditions neither of deletes nor of the targets of copies.
    pub fn guard_puts_alone(&self) {
        let mut store = self.shared.store.borrow_mut();
        (store.capabilities.conditional_delete, store.guards_copies) = (false, false);
    }

    pub fn say_no_part_is_copied(&self) {
        self.shared.store.borrow_mut().capabilities.copies_parts = false;
    }

    /// While tags are weak no condition of a read holds, as behind a gateway that makes them so.
    pub fn weaken_tags(&self, weak: bool) {
        self.shared.store.borrow_mut().weak_tags = weak;
    }

    /// No two objects put after this call have the same tag: a copy cannot be recognised by the tag
    /// of its source.
    pub fn give_own_tags(&self) {
        self.shared.store.borrow_mut().own_tags = true;
    }

    /// Uploads are assembled from objects of their own, as in stores without multipart uploads.
    /// These are deleted when the client has received the reply to the completion, or aborts the
    /// upload.
    pub fn keep_parts(&self) {
        self.shared.store.borrow_mut().keeps_parts = true;
    }

    /// Says that it copies parts, and refuses to.
    pub fn refuse_part_copies(&self) {
        self.shared.store.borrow_mut().refuses_part_copies = true;
    }

    /// An object longer than one request may carry is copied as an upload whose id the caller does
    /// not get.
    pub fn copy_in_parts(&self) {
        self.shared.store.borrow_mut().copies_in_parts = true;
    }

    /// Everything is allowed but to end uploads.
    pub fn forbid_aborts(&self) {
        self.shared.aborts_forbidden.set(true);
    }

    /// Nothing may be changed from now on, or everything again.
    pub fn forbid_changes(&self, forbidden: bool) {
        self.shared.changes_forbidden.set(forbidden);
    }

    /// Gives no more entries of a listing at one time.
    pub fn list_at_most(&self, entries: usize) {
        self.shared.store.borrow_mut().most_listed = entries;
    }

    /// Has no place for an object at a key and one below it, as a file system.
    pub fn exclude_nested(&self) {
        self.shared.store.borrow_mut().excludes_nested = true;
    }

    /// Listings stay as they are now until they are no longer `stale`.
    pub fn keep_listings(&self, stale: bool) {
        let mut store = self.shared.store.borrow_mut();
        store.listed = stale.then(|| store.objects().clone());
    }

    /// From now on every listing shows at least the changes made so far.
    pub fn list_all_so_far(&self) {
        self.shared.listed_since.set(self.shared.executor.now());
    }

    /// Every request is answered [`BucketError::Forbidden`] for a while.
    pub fn forbid_for(&self, duration: Duration) {
        self.shared.forbidden_until.set(self.shared.executor.now().saturating_add(duration));
    }

    /// The store cannot be reached for a while.
    pub fn vanish_for(&self, duration: Duration) {
        self.shared.gone_until.set(self.shared.executor.now().saturating_add(duration));
    }

    /// The line to the store carries so many bytes a second, of all that is sent at one time
    /// together.
    pub fn set_uplink(&self, bytes_per_sec: u64) {
        self.shared.uplink.bytes_per_sec.set(Some(bytes_per_sec));
    }

    /// The same for bytes from the store.
    pub fn set_downlink(&self, bytes_per_sec: u64) {
        self.shared.downlink.bytes_per_sec.set(Some(bytes_per_sec));
    }

    /// Records every version of every object from now on, without `.ebb/` and markers.
    pub fn keep_versions(&self) {
        self.shared.store.borrow_mut().versions.get_or_insert_default();
    }

    /// The recorded versions, in the order of their times.
    pub fn versions_of_files(&self) -> Vec<StoredObject> {
        self.shared.store.borrow().versions.clone().unwrap_or_default()
    }

    /// The current objects of the bucket.
    pub fn objects(&self) -> BTreeMap<String, Object> {
        self.shared.store.borrow().objects().clone()
    }

    /// Puts an object at once, as another program that uses the bucket does.
    pub fn put_as_outsider(
        &self,
        key: &str,
        body: impl Into<Bytes>,
        tags: ObjectTags,
    ) -> Result<ETag, BucketError> {
        self.perform(OUTSIDER, |store, request| {
            store.put(request, key, body.into(), &Condition::Always, tags)
        })
    }

    /// Deletes an object at once, as another program that uses the bucket does.
    pub fn delete_as_outsider(&self, key: &str) {
        self.perform(OUTSIDER, |store, request| store.delete(request, key, None))
            .expect("deleting unconditionally succeeds");
    }

    /// Flips a bit of an object, which the store does not notice.
    pub fn rot(&self, key: &str, at: usize) {
        self.shared.store.borrow_mut().rot(key, |body| flipped(body, at));
    }

    /// Every change that was made, in order.
    pub fn history(&self) -> Vec<Mutation> {
        self.shared.store.borrow().history.clone()
    }

    pub fn unfinished_uploads(&self) -> Vec<UnfinishedUpload> {
        self.shared.store.borrow().unfinished_uploads()
    }

    /// Requests sent so far, by kind: `get`, `put`, `list` and so on.
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.shared.requests.borrow().clone()
    }

    pub(crate) fn port(&self, owner: &Owner, machine: &str) -> Rc<dyn Bucket> {
        Rc::new(ProcessBucket {
            bucket: self.clone(),
            owner: owner.clone(),
            machine: machine.to_owned(),
        })
    }

    fn perform<T>(&self, process: &str, effect: impl FnOnce(&mut Store, &Request<'_>) -> T) -> T {
        let executor = &self.shared.executor;
        let request = Request { at: executor.now(), wall_secs: true_wall_secs(executor), process };
        effect(&mut self.shared.store.borrow_mut(), &request)
    }

    fn latency(&self) -> Duration {
        self.shared.faults.plan().bucket.slow.latency(&self.shared.rng, LATENCY_MIN, LATENCY_MAX)
    }

    /// Decides whether a listing is stale: the moment that it shows.
    fn draw_stale(&self) -> Option<Duration> {
        let Shared { executor, faults, stale_rng: rng, listed_since, .. } = &*self.shared;
        let plan = faults.plan().bucket;
        rng.chance(plan.stale_listing).then(|| {
            let age = rng.duration(Duration::ZERO, plan.stale_limit);
            executor.now().saturating_sub(age).max(listed_since.get())
        })
    }

    /// Decides the outcome of a request when it arrives.
    fn draw_fate(&self, what: &str, changes: bool) -> Fate {
        let Shared { rng, executor, forbidden_until, gone_until, .. } = &*self.shared;
        let (plan, now) = (self.shared.faults.plan().bucket, executor.now());
        let outage = |rate, until: &Cell<Duration>| {
            if rng.chance(rate) {
                until.set(until.get().max(now + rng.duration(Duration::ZERO, plan.outage_limit)));
            }
            now < until.get()
        };
        if outage(plan.gone, gone_until) {
            return Fate::Refused(unavailable(what, "connection refused"));
        }
        if outage(plan.forbidden, forbidden_until) || changes && self.shared.changes_forbidden.get()
        {
            return Fate::Refused(BucketError::Forbidden { what: what.to_owned() });
        }
        if rng.chance(plan.unavailable) {
            return Fate::Refused(unavailable(what, "internal error, try again"));
        }
        if rng.chance(plan.throttled) {
            let retry_after = Some(rng.duration(Duration::ZERO, plan.retry_after_limit));
            return Fate::Refused(BucketError::Unavailable {
                what: format!("{what}: slow down"),
                retry_after,
            });
        }
        if !changes {
            Fate::Served
        } else if rng.chance(plan.lost_request) {
            Fate::Lost(None)
        } else if rng.chance(plan.lost_answer) {
            Fate::Lost(Some(Duration::ZERO))
        } else if rng.chance(plan.late) {
            Fate::Lost(Some(rng.duration(Duration::ZERO, plan.late_limit)))
        } else {
            Fate::Served
        }
    }
}

/// The bucket as one process has it.
#[derive(Clone)]
struct ProcessBucket {
    bucket: SimBucket,
    owner: Owner,
    machine: String,
}

/// Whether a lost answer leaves the outcome unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads(&'static str),
    Changes(&'static str),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Reads(name) | Kind::Changes(name) => name,
        }
    }
}

impl ProcessBucket {
    /// Sends a body. A client gives its request up if it takes longer than over the slowest line
    /// that it knows.
    async fn send(&self, what: &str, bytes: u64) -> Result<(), BucketError> {
        let patience = BODY_PATIENCE + Duration::from_secs(bytes / SLOWEST_UPLOAD_BYTES_PER_SECOND);
        match self.carry(&self.bucket.shared.uplink, bytes, patience).await {
            true => Ok(()),
            false => Err(BucketError::Unknown { what: what.to_owned() }),
        }
    }

    /// False if it takes longer than that.
    async fn carry(&self, line: &Line, bytes: u64, patience: Duration) -> bool {
        let executor = &self.bucket.shared.executor;
        let Some(bytes_per_sec) = line.bytes_per_sec.get() else { return true };
        let until = executor.now().saturating_add(patience);
        let _on_line = line.enter();
        let mut left = bytes;
        while left > 0 {
            if executor.now() >= until {
                return false;
            }
            let piece = left.min(LINE_PIECE_BYTES);
            let took = Duration::from_micros(piece * line.bodies.get() * 1_000_000 / bytes_per_sec);
            executor.sleep(&self.owner, took).await;
            left -= piece;
        }
        true
    }

    /// As S3 wants it.
    async fn copy_by_parts(
        &self,
        from: &str,
        to: &str,
        source: ObjectMeta,
        condition: Condition,
    ) -> Result<ETag, BucketError> {
        let ObjectMeta { etag, len_bytes, tags, .. } = source;
        let part_bytes = self.capabilities().max_put_bytes;
        let upload = self.upload_begin(to, tags).await?;
        let copying = async {
            let mut parts = Vec::new();
            for (number, start) in (1..).zip((0..len_bytes).step_by(part_bytes as usize)) {
                let piece = Piece {
                    key: from.to_owned(),
                    etag: etag.clone(),
                    range: start..len_bytes.min(start + part_bytes),
                };
                let copied =
                    self.upload_part_copy(to, &upload, number, piece).await.map_err(|error| {
                        match error {
                            // Nothing is visible before the completion.
                            BucketError::Unknown { what } => {
                                BucketError::Unavailable { what, retry_after: None }
                            }
                            other => other,
                        }
                    });
                parts.push(copied?);
            }
            self.upload_complete(to, &upload, parts, condition).await
        };
        match copying.await {
            Ok(etag) => Ok(etag),
            Err(error) => match self.upload_abort(to, &upload).await {
                Ok(()) => Err(error),
                Err(left) => Err(error.leaving_upload(left)),
            },
        }
    }

    async fn request<T: 'static>(
        &self,
        kind: Kind,
        key: &str,
        effect: impl FnOnce(&mut Store, &Request<'_>) -> Result<T, BucketError> + 'static,
    ) -> Result<T, BucketError> {
        self.owner.lives().await;
        let Shared { executor, net, requests, .. } = &*self.bucket.shared;
        let what = format!("{} {key}", kind.name());
        *requests.borrow_mut().entry(kind.name()).or_default() += 1;
        if net.is_blocked(&self.machine, BUCKET_HOST) {
            executor.sleep(&self.owner, PATIENCE).await;
            return Err(unavailable(&what, "connection timed out"));
        }
        let (port, asked) = (self.clone(), what.clone());
        let arrive = move || port.arrive(kind, asked, effect);
        let answer = executor.after(executor.world(), self.bucket.latency(), arrive).await;
        executor.sleep(&self.owner, self.bucket.latency()).await;
        if net.is_blocked(BUCKET_HOST, &self.machine) {
            executor.sleep(&self.owner, PATIENCE).await;
            return Err(match kind {
                Kind::Reads(_) => unavailable(&what, "answer timed out"),
                Kind::Changes(_) => BucketError::Unknown { what },
            });
        }
        answer
    }

    /// The request has reached the store.
    fn arrive<T: 'static>(
        &self,
        kind: Kind,
        what: String,
        effect: impl FnOnce(&mut Store, &Request<'_>) -> Result<T, BucketError> + 'static,
    ) -> Result<T, BucketError> {
        let executor = &self.bucket.shared.executor;
        match self.bucket.draw_fate(&what, matches!(kind, Kind::Changes(_))) {
            Fate::Served => self.serve(&what, effect),
            Fate::Refused(error) => {
                executor.note(&self.owner, "bucket.refused", format_args!("{error}"));
                Err(error)
            }
            Fate::Lost(done) => {
                executor.note(
                    &self.owner,
                    "bucket.lost",
                    format_args!("{what}, takes effect after {done:?}"),
                );
                if let Some(delay) = done {
                    let (port, what) = (self.clone(), what.clone());
                    // Nobody hears whether it succeeded: the trace has it.
                    executor.schedule(executor.world(), executor.now() + delay, move || {
                        drop(port.serve(&what, effect))
                    });
                }
                Err(BucketError::Unknown { what })
            }
        }
    }

    /// Only where ebb can detect it: in pages, and in files whose checksums are in the metadata of
    /// their object.
    fn garble(&self, key: &str, first_byte: u64, object: Object) -> Object {
        let Shared { rng, faults, executor, .. } = &*self.bucket.shared;
        let is_page = PAGES.iter().any(|prefix| key.starts_with(prefix));
        let sums = Sums::decode(&object.meta.tags, object.meta.len_bytes);
        if !is_page && sums.is_none()
            || object.body.is_empty()
            || !rng.chance(faults.plan().bucket.garbled)
        {
            return object;
        }
        let at = rng.below(object.body.len() as u64);
        let byte = first_byte + at;
        if sums.is_some_and(|sums| sums.spans_of(byte..byte + 1).next().is_none()) {
            return object;
        }
        executor.note(&self.owner, "bucket.garbled", format_args!("byte {at}"));
        Object { body: flipped(&object.body, at as usize), ..object }
    }

    fn serve<T>(
        &self,
        what: &str,
        effect: impl FnOnce(&mut Store, &Request<'_>) -> Result<T, BucketError>,
    ) -> Result<T, BucketError> {
        let result = self.bucket.perform(self.owner.name(), effect);
        let outcome = result.as_ref().err().map_or_else(|| "ok".to_owned(), BucketError::to_string);
        self.bucket.shared.executor.note(&self.owner, "bucket", format_args!("{what}: {outcome}"));
        result
    }
}

impl Bucket for ProcessBucket {
    fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<Object, BucketError>> {
        let (key, if_match) = (key.to_owned(), if_match.cloned());
        Box::pin(async move {
            let (asked, first_byte) = (key.clone(), range.as_ref().map_or(0, |range| range.start));
            let object = self
                .request(Kind::Reads("get"), &key, move |store, _| {
                    store.get(&asked, range, if_match.as_ref())
                })
                .await?;
            // A reader does not give up while bytes arrive.
            self.carry(&self.bucket.shared.downlink, object.body.len() as u64, Duration::MAX).await;
            Ok(self.garble(&key, first_byte, object))
        })
    }

    fn head(&self, key: &str) -> PortFuture<'_, Result<ObjectMeta, BucketError>> {
        let key = key.to_owned();
        Box::pin(async move {
            let asked = key.clone();
            self.request(Kind::Reads("head"), &key, move |store, _| store.head(&asked)).await
        })
    }

    fn put(
        &self,
        key: &str,
        body: Bytes,
        condition: Condition,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let key = key.to_owned();
        Box::pin(async move {
            let asked = key.clone();
            self.send(&key, body.len() as u64).await?;
            self.request(Kind::Changes("put"), &key, move |store, request| {
                store.put(request, &asked, body, &condition, tags)
            })
            .await
        })
    }

    fn delete(
        &self,
        key: &str,
        if_match: Option<&ETag>,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, mut if_match) = (key.to_owned(), if_match.cloned());
        Box::pin(async move {
            if !self.capabilities().conditional_delete
                && let Some(expected) = if_match.take()
            {
                match self.head(&key).await {
                    Ok(meta) if meta.etag == expected => {}
                    Ok(_) => return Err(BucketError::Precondition { key }),
                    Err(BucketError::NotFound { .. }) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            let asked = key.clone();
            self.request(Kind::Changes("delete"), &key, move |store, request| {
                store.delete(request, &asked, if_match.as_ref())
            })
            .await
        })
    }

    fn copy(
        &self,
        from: &str,
        to: &str,
        if_match: Option<&ETag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (from, to, if_match) = (from.to_owned(), to.to_owned(), if_match.cloned());
        Box::pin(async move {
            if self.bucket.shared.store.borrow().copies_in_parts {
                let source = self.head(&from).await?;
                if if_match.as_ref().is_some_and(|expected| *expected != source.etag) {
                    return Err(BucketError::Precondition { key: from });
                }
                if source.len_bytes > self.capabilities().max_put_bytes {
                    return self.copy_by_parts(&from, &to, source, condition).await;
                }
            }
            let what = format!("{from} to {to}");
            self.request(Kind::Changes("copy"), &what, move |store, request| {
                store.copy(request, &from, &to, if_match.as_ref(), &condition)
            })
            .await
        })
    }

    fn list(&self, request: ListRequest) -> PortFuture<'_, Result<ListPage, BucketError>> {
        Box::pin(async move {
            let prefix = request.prefix.clone();
            let bucket = self.bucket.clone();
            let page = self
                .request(Kind::Reads("list"), &prefix, move |store, _| {
                    Ok(store.list(&request, bucket.draw_stale()))
                })
                .await?;
            self.carry(
                &self.bucket.shared.downlink,
                page.entries.len() as u64 * LISTED_BYTES,
                Duration::MAX,
            )
            .await;
            Ok(page)
        })
    }

    fn upload_begin(
        &self,
        key: &str,
        tags: ObjectTags,
    ) -> PortFuture<'_, Result<UploadId, BucketError>> {
        let key = key.to_owned();
        Box::pin(async move {
            let asked = key.clone();
            self.request(Kind::Changes("upload_begin"), &key, move |store, request| {
                store.upload_begin(request, &asked, tags)
            })
            .await
        })
    }

    fn upload_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        body: Bytes,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(async move {
            let asked = key.clone();
            self.send(&key, body.len() as u64).await?;
            self.request(Kind::Changes("upload_part"), &key, move |store, _| {
                store.upload_part(&asked, &upload, number, body)
            })
            .await
        })
    }

    fn upload_part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        from: Piece,
    ) -> PortFuture<'_, Result<PartTag, BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(async move {
            let asked = key.clone();
            self.request(Kind::Changes("upload_part_copy"), &key, move |store, _| {
                store.upload_part_copy(&asked, &upload, number, &from)
            })
            .await
        })
    }

    fn upload_complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartTag>,
        condition: Condition,
    ) -> PortFuture<'_, Result<ETag, BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(async move {
            let (asked, parts_of) = (key.clone(), upload.clone());
            let completed = self
                .request(Kind::Changes("upload_complete"), &key, move |store, request| {
                    store.upload_complete(request, &asked, &upload, &parts, &condition)
                })
                .await?;
            self.bucket.shared.store.borrow_mut().upload_abort(&key, &parts_of);
            Ok(completed)
        })
    }

    fn upload_abort(
        &self,
        key: &str,
        upload: &UploadId,
    ) -> PortFuture<'_, Result<(), BucketError>> {
        let (key, upload) = (key.to_owned(), upload.clone());
        Box::pin(async move {
            if self.bucket.shared.aborts_forbidden.get() {
                return Err(BucketError::Forbidden { what: key });
            }
            let asked = key.clone();
            self.request(Kind::Changes("upload_abort"), &key, move |store, _| {
                store.upload_abort(&asked, &upload);
                Ok(())
            })
            .await
        })
    }

    fn uploads(&self, key: &str) -> PortFuture<'_, Result<Vec<UploadId>, BucketError>> {
        let key = key.to_owned();
        Box::pin(async move {
            let asked = key.clone();
            self.request(Kind::Reads("uploads"), &key, move |store, _| Ok(store.uploads_of(&asked)))
                .await
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.bucket.shared.store.borrow().capabilities
    }

    fn describe(&self) -> String {
        format!("sim://{}", self.bucket.shared.name)
    }
}

fn flipped(body: &Bytes, at: usize) -> Bytes {
    let mut body = body.to_vec();
    body[at] ^= 1;
    body.into()
}

fn unavailable(what: &str, why: &str) -> BucketError {
    BucketError::Unavailable { what: format!("{what}: {why}"), retry_after: None }
}

/// The bucket's name in [`Network::partition`].
pub const BUCKET_HOST: &str = "bucket";

/// Prefixes of objects whose bodies verify themselves.
const PAGES: [&str; 2] = [".ebb/d/", ".ebb/e/"];

/// The recorded author of changes that no process of this world made.
const OUTSIDER: &str = "outsider";

/// One way to a store in the same region, and its work.
const LATENCY_MIN: Duration = Duration::from_millis(1);
const LATENCY_MAX: Duration = Duration::from_millis(20);

/// How long a request into silence takes to give up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A body that takes longer than this and than a slow line would is given up.
const BODY_PATIENCE: Duration = Duration::from_secs(35);
/// The size of one entry of a listing, about as with S3.
const LISTED_BYTES: u64 = 256;

/// A body shares the line anew after so much of it.
const LINE_PIECE_BYTES: u64 = 16 << 10;
