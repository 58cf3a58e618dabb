//! Early uploads: parts of a file that is still growing. Each part is put as an object of its own,
//! below [`EARLY`], once the file has grown past it. The later upload of the file has the bucket
//! copy those parts that still equal the file, and then they are removed. So a long write ends with
//! a short wait, also after a rename of the file (decision 20).
//!
//! Only the memory of this node refers to these objects: those of a dead node are removed before
//! this one puts any.

use super::transact::FlushError;
use super::upload::PARTS_AT_ONCE;
use super::{POLL, Work};
use crate::Node;
use crate::buckets::ask::Backoff;
use crate::buckets::borders::BucketIndex;
use bytes::Bytes;
use ebb_core::backing::keys::EARLY;
use ebb_core::blocks::touched_blocks;
use ebb_core::extent::Block;
use ebb_model::*;
use ebb_ports::{BucketError, Condition, ETag, ListRequest, PartTag, Piece, Signal, UploadId};
use ebb_store::Mode;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::ready;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Early {
    /// By their first byte.
    files: RefCell<BTreeMap<Ino, BTreeMap<u64, Part>>>,
    /// Files that have grown past the end of a part, or have parts that could not be sent, and
    /// since when, by the monotonic clock.
    grown: RefCell<VecDeque<(Ino, Duration)>>,
    woken: Signal,
    /// Raised when a part has arrived or has failed.
    arrivals: Signal,
    /// Keys of parts that are of no use any more.
    waste: RefCell<Vec<String>>,
    /// Parts on their way.
    sending: Cell<usize>,
    /// The parts that earlier nodes have left are known.
    swept: Cell<bool>,
}

struct Part {
    key: String,
    range: Range<u64>,
    version: Version,
    /// The checksums of its blocks, as they were read.
    sums: Vec<u32>,
    /// Set once the part has arrived.
    etag: Option<ETag>,
}

/// A part on its way, until dropped.
struct Sending<'a>(&'a Cell<usize>);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Early {
    /// The bucket has the file up to there: earlier parts of that are of no use any more.
    pub fn forget(&self, ino: Ino, upto: u64) {
        let mut files = self.files.borrow_mut();
        let Some(parts) = files.get_mut(&ino) else { return };
        let rest = parts.split_off(&upto);
        std::mem::replace(parts, rest).into_values().for_each(|part| self.discard(part));
    }

    /// The file has been cut to this length.
    pub fn cut(&self, ino: Ino, len_bytes: u64) {
        let mut files = self.files.borrow_mut();
        let cut = files
            .get_mut(&ino)
            .into_iter()
            .flat_map(|parts| parts.extract_if(.., |_, part| part.range.end > len_bytes));
        cut.for_each(|(_, part)| self.discard(part));
    }

    fn note_grown(&self, ino: Ino, now: Duration) {
        let mut grown = self.grown.borrow_mut();
        if !grown.iter().any(|(known, _)| *known == ino) {
            grown.push_back((ino, now));
        }
        self.woken.raise();
    }

    fn next_grown(&self, now: Duration) -> Option<Ino> {
        let next = self.grown.borrow_mut().pop_front_if(|(_, since)| *since + EARLY_AFTER <= now);
        next.map(|(ino, _)| ino)
    }

    fn begin(&self) -> Sending<'_> {
        self.sending.set(self.sending.get() + 1);
        Sending(&self.sending)
    }

    fn has(&self, ino: Ino, start: u64, key: &str) -> bool {
        self.files
            .borrow()
            .get(&ino)
            .and_then(|parts| parts.get(&start))
            .is_some_and(|part| part.key == key)
    }

    /// A part on its way is found to be of no use when it arrives.
    fn discard(&self, part: Part) {
        self.arrivals.raise();
        if part.etag.is_some() {
            self.waste.borrow_mut().push(part.key);
        }
    }

    /// Forgets files that need no early parts.
    fn retain(&self, is_wanted: impl Fn(Ino) -> bool) {
        let unwanted: Vec<Ino> =
            self.files.borrow().keys().filter(|ino| !is_wanted(**ino)).copied().collect();
        for ino in unwanted {
            self.forget(ino, u64::MAX);
            self.files.borrow_mut().remove(&ino);
        }
    }

    pub fn is_sending(&self) -> bool {
        self.sending.get() > 0
    }

    fn arrived(
        &self,
        ino: Ino,
        start: u64,
        key: String,
        sent: Result<ETag, BucketError>,
    ) -> Result<(), BucketError> {
        self.arrivals.raise();
        let is_wanted = self.has(ino, start, &key);
        let mut files = self.files.borrow_mut();
        let parts = files.get_mut(&ino).filter(|_| is_wanted);
        match (parts, sent) {
            (Some(parts), Ok(etag)) => {
                parts.entry(start).and_modify(|part| part.etag = Some(etag));
                Ok(())
            }
            (parts, sent) => {
                parts.and_then(|parts| parts.remove(&start));
                // A put that has failed may have stored it.
                self.waste.borrow_mut().push(key);
                sent.map(drop)
            }
        }
    }
}

impl Node {
    /// A file was written to, beyond its former end.
    pub(crate) fn has_grown(&self, ino: Ino, from_bytes: u64, to_bytes: u64) {
        let least = self.options.early_bytes.max(CHUNK_BYTES);
        let part_bytes = self.options.part_bytes.max(BLOCK_BYTES);
        if self.options.early_bytes > 0
            && to_bytes >= least
            && from_bytes / part_bytes != to_bytes / part_bytes
            && self.buckets.is_some()
        {
            self.flusher.early.note_grown(ino, self.ports.clock.monotonic());
        }
    }

    pub(crate) async fn send_early_for_ever(self: Rc<Self>) {
        let mut backoff = Backoff::default();
        while !self.is_stopping() {
            let woken = Box::pin(self.flusher.early.woken.wait());
            match self.send_next_early().await {
                Ok(true) => backoff = Backoff::default(),
                Ok(false) => drop(select(woken, self.ports.clock.sleep(POLL)).await),
                // The upload sends the part later.
                Err(error) => {
                    tracing::debug!(?error, "nothing is sent early");
                    backoff.wait(&self.ports, None).await;
                }
            }
        }
    }

    /// Nothing is sent while useless parts cannot be removed.
    async fn send_next_early(self: &Rc<Self>) -> Result<bool, FlushError> {
        if !self.may_flush() {
            return Ok(false);
        }
        let cleared = self.clear_early().await;
        let what = cleared
            .as_ref()
            .err()
            .map(|error| format!("parts that were sent early cannot be removed: {error}"));
        self.trouble(EARLY, what);
        let cleared = cleared?;
        let next = self.flusher.early.next_grown(self.ports.clock.monotonic());
        if let Some(ino) = next.filter(|ino| !self.lacks_bytes(*ino)) {
            self.send_early(ino).await.inspect_err(|_| {
                self.flusher.early.note_grown(ino, self.ports.clock.monotonic())
            })?;
        }
        let asked = cleared || next.is_some();
        if asked {
            self.trouble(&self.buckets.subject("bucket writes", BucketIndex::ROOT), None);
        }
        Ok(asked)
    }

    /// Sends the parts that have become whole. A part that has begun is completed, as long as it is
    /// wanted.
    async fn send_early(self: &Rc<Self>, ino: Ino) -> Result<(), FlushError> {
        let early = &self.flusher.early;
        let failed: RefCell<Option<FlushError>> = RefCell::default();
        let goes_on = || failed.borrow().is_none() && !self.is_stopping();
        let read = stream::iter(self.whole_parts(ino)).take_while(|_| ready(goes_on())).filter_map(
            |range| async {
                // Flushes that are due go first.
                drop(self.flusher.queue(BucketIndex::ROOT).cycling.lock().await);
                let room =
                    self.flusher.buffers(BucketIndex::ROOT).take(range.end - range.start).await;
                let sending = early.begin();
                if !goes_on() {
                    return None;
                }
                let part = self.read_early(ino, range).await;
                part.unwrap_or_else(|error| failed.replace(Some(error)).and(None))
                    .map(|part| (part, (room, sending)))
            },
        );
        let sent = read.for_each_concurrent(EARLY_AT_ONCE, |((start, key, body), held)| {
            let failed = &failed;
            async move {
                let put = Box::pin(self.call_until_answered(&key, || {
                    self.buckets.bucket().put(&key, body.clone(), Condition::Always, vec![])
                }));
                let sent = match select(put, Box::pin(self.until_unwanted(ino, start, &key))).await
                {
                    Either::Left((sent, _)) => sent,
                    Either::Right(_) => {
                        self.note_unknown_outcomes([key.clone()]);
                        Err(BucketError::Unknown { what: format!("{key} is not wanted any more") })
                    }
                };
                if let Err(error) = early.arrived(ino, start, key, sent) {
                    failed.replace(Some(error.into()));
                }
                drop(held);
            }
        });
        sent.await;
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Completes once the part that is being sent is not needed any more.
    async fn until_unwanted(&self, ino: Ino, start: u64, key: &str) {
        while !self.is_stopping() && self.flusher.early.has(ino, start, key) {
            self.ports.clock.sleep(POLL).await;
        }
    }

    /// Unsent parts near the end.
    fn whole_parts(&self, ino: Ino) -> Vec<Range<u64>> {
        let queue = self.flusher.queue(BucketIndex::ROOT);
        let limits = self.buckets.bucket().capabilities();
        let size = self.replica.view().namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
        let part_bytes = self.part_bytes(size);
        // Only as long as all parts have one length at any final size of the file.
        let fits = part_bytes == self.part_bytes(0) && part_bytes <= limits.max_put_bytes;
        // A bucket other than the root bucket takes only keys of the volume.
        let copies = limits.copies_remotely
            && queue.copies_parts.get()
            && self.bucket_of(ino) == BucketIndex::ROOT;
        if !fits
            || !copies
            || queue.buffers.limit_bytes() < EARLY_SHARE * part_bytes
            || !self.is_early_wanted(ino)
        {
            return vec![];
        }
        let whole = size - size % part_bytes;
        let from = whole.saturating_sub(LOOKED_BACK * part_bytes);
        let (files, state) = (self.flusher.early.files.borrow(), self.replica.view());
        let is_sent = |start| files.get(&ino).is_some_and(|parts| parts.contains_key(&start));
        let is_dirty = |start| {
            state.extents().block(ino, start / BLOCK_BYTES).is_some_and(|block| block.dirty)
        };
        let unsent = (from..whole)
            .step_by(part_bytes as usize)
            .filter(|start| !is_sent(*start) && is_dirty(*start));
        unsent.map(|start| start..start + part_bytes).collect()
    }

    /// A file without a name goes to no bucket, and a refused one is retried later.
    fn is_early_wanted(&self, ino: Ino) -> bool {
        self.replica.view().backing().is_dirty(ino)
            && !self.flusher.refused.is_paused(&Work::Inode(ino))
    }

    /// Reads a part in its present state, if all of it is dirty and no upload sends it.
    async fn read_early(
        self: &Rc<Self>,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<Option<(u64, String, Bytes)>, FlushError> {
        let _guard = self.data.latches().hold(ino, Mode::Shared).await;
        let content = self.content(ino)?;
        let is_there = range.end <= content.size_bytes && self.dirty_blocks(ino, &range).is_some();
        if !is_there || !self.is_early_wanted(ino) || self.flusher.preserved.is_sending(ino, &range)
        {
            return Ok(None);
        }
        let body = self.read_for_upload(ino, range.clone(), content.size_bytes).await?;
        let sums = self
            .dirty_blocks(ino, &range)
            .and_then(|blocks| blocks.iter().map(|block| block.sum).collect());
        let Some(sums) = sums else { return Ok(None) };
        let key = format!("{EARLY}{:016x}", self.ports.entropy.next_u64());
        let (start, part) = (
            range.start,
            Part { key: key.clone(), range, version: content.version, sums, etag: None },
        );
        let mut files = self.flusher.early.files.borrow_mut();
        let before = files.entry(ino).or_default().insert(start, part);
        before.into_iter().for_each(|part| self.flusher.early.discard(part));
        Ok(Some((start, key, body)))
    }

    /// The blocks of a range, if all of them are dirty, and none is stored into past the node.
    fn dirty_blocks(&self, ino: Ino, range: &Range<u64>) -> Option<Vec<Block>> {
        let state = self.replica.view();
        let dirty = |block| state.extents().block(ino, block).filter(|block| block.dirty);
        let blocks = touched_blocks(range.start, range.end - range.start).map(dirty);
        if state.extents().is_exposed(ino) { None } else { blocks.collect() }
    }

    /// The object with a part of the file in its present state, once it has arrived.
    pub(super) async fn early_piece(&self, ino: Ino, range: &Range<u64>) -> Option<Piece> {
        loop {
            let arrived = self.flusher.early.arrivals.wait();
            let piece = {
                let files = self.flusher.early.files.borrow();
                let part =
                    files.get(&ino)?.get(&range.start).filter(|part| part.range == *range)?;
                let now = self.dirty_blocks(ino, range)?;
                let is_same = |(now, sum): (&Block, &u32)| {
                    now.version <= part.version && now.sum == Some(*sum)
                };
                if now.len() != part.sums.len() || !now.iter().zip(&part.sums).all(is_same) {
                    return None;
                }
                part.etag.clone().map(|etag| Piece {
                    key: part.key.clone(),
                    etag,
                    range: 0..range.end - range.start,
                })
            };
            if piece.is_some() {
                return piece;
            }
            arrived.await;
        }
    }

    /// Has the bucket copy a part from such an object. `None` if it does not, for any reason: the
    /// bytes are here.
    pub(super) async fn copy_early(
        &self,
        key: &str,
        upload: &UploadId,
        number: u32,
        piece: &Piece,
    ) -> Option<PartTag> {
        let mut backoff = Backoff::default();
        for _ in 0..COPY_ATTEMPTS {
            if !self.may_write() || self.is_stopping() {
                return None;
            }
            let copied = self.buckets.bucket().upload_part_copy(key, upload, number, piece.clone());
            let error =
                match select(copied, self.ports.clock.sleep(self.options.bucket_timeout)).await {
                    Either::Left((Ok(part), _)) => return Some(part),
                    Either::Left((Err(error), _)) => error,
                    Either::Right(_) => BucketError::Unknown { what: "no answer in time".into() },
                };
            tracing::debug!(key, number, %error, "a part is not copied");
            match &error {
                BucketError::Refused { what } => {
                    tracing::warn!(
                        key,
                        what,
                        "the bucket does not copy parts: nothing is sent early from now on"
                    );
                    self.flusher.queue(BucketIndex::ROOT).copies_parts.set(false);
                    return None;
                }
                error if error.is_silence() => {}
                _ => return None,
            }
            backoff
                .wait(
                    &self.ports,
                    error.retry_after().map(|asked| asked.min(self.options.bucket_timeout)),
                )
                .await;
        }
        None
    }

    /// Removes parts that are of no use any more, and first those that earlier nodes have left.
    /// Returns whether there were any.
    async fn clear_early(&self) -> Result<bool, BucketError> {
        self.sweep_early().await?;
        let early = &self.flusher.early;
        // An upload that takes a part needs it also when the file is removed.
        let is_wanted = |ino| {
            self.replica.view().backing().is_dirty(ino)
                || self.flusher.preserved.is_sending(ino, &(0..1))
        };
        early.retain(is_wanted);
        // Parts that may still arrive are removed later.
        let waste: Vec<String> = early
            .waste
            .borrow()
            .iter()
            .filter(|key| self.await_late_effects(key).is_ok())
            .cloned()
            .collect();
        let is_any = !waste.is_empty();
        let removed = stream::iter(waste.into_iter().map(Ok)).try_for_each_concurrent(
            PARTS_AT_ONCE,
            |key| async move {
                match self
                    .call_until_answered(&key, || self.buckets.bucket().delete(&key, None))
                    .await
                {
                    Ok(()) | Err(BucketError::NotFound { .. }) => {
                        early.waste.borrow_mut().retain(|waste| *waste != key)
                    }
                    Err(error) => return Err(error),
                }
                Ok(())
            },
        );
        removed.await.map(|()| is_any)
    }

    /// The same before the volume is given back. Parts that remain are removed by the next node.
    pub(crate) async fn clear_early_at_last(&self) {
        let Some(head_lease) = self.buckets.head_lease() else { return };
        let cleared = Box::pin(self.clear_early());
        match select(cleared, self.ports.clock.sleep(head_lease.term() / 3)).await {
            Either::Left((Ok(_), _)) => {}
            Either::Left((Err(_), _)) | Either::Right(_) => {
                tracing::warn!(
                    "parts that were sent early may be left in the bucket until the volume is next \
                     mounted"
                );
            }
        }
    }

    async fn sweep_early(&self) -> Result<(), BucketError> {
        let early = &self.flusher.early;
        let mut left: Vec<String> = Vec::new();
        while !early.swept.get() {
            let after = left.last().cloned();
            let request = ListRequest {
                prefix: EARLY.into(),
                by_directory: false,
                after,
                limit: LISTED_AT_ONCE,
            };
            let page = self
                .bucket_retry("list", EARLY, 0, || self.buckets.bucket().list(request.clone()))
                .await?;
            left.extend(page.entries.iter().map(|entry| entry.key().to_owned()));
            // Another task may have been faster, and the parts there may be in use.
            if !page.more && !early.swept.replace(true) {
                early.waste.borrow_mut().append(&mut left);
            }
        }
        Ok(())
    }
}

/// A part that has become whole is sent so much later: a writer at the machine's full speed gets
/// its processors, and a long write waits for no more than this at the end.
const EARLY_AFTER: Duration = Duration::from_secs(1);

/// Few, for flushes that become due in between have to wait for them.
const EARLY_AT_ONCE: usize = 4;

/// So many parts before the end of a file are looked at: those that could not be sent before, or
/// were written later than the parts behind them.
const LOOKED_BACK: u64 = 128;

/// After so many the part is sent from here.
const COPY_ATTEMPTS: usize = 4;

/// Nothing is sent early unless the memory for uploads has room for so many parts.
const EARLY_SHARE: u64 = 8;

const LISTED_AT_ONCE: usize = 1000;
