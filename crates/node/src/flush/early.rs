//! Parts of a file that is still growing. Each is put as an object of its own, below [`EARLY`], once the file has grown
//! past it; the upload that the file comes to then has the bucket copy those that are still what the file is, and they
//! go. So whoever writes for long waits for little at the end, whatever the file is called by then (decision 20).
//!
//! Nothing refers to these objects but the memory of this node: what a dead one has left there is removed before this one
//! puts any.

use super::transact::FlushError;
use super::upload::PARTS_AT_ONCE;
use super::{POLL, Work};
use crate::Node;
use crate::borders::Side;
use crate::bucket::Backoff;
use crate::locks::Mode;
use crate::signal::Signal;
use bytes::Bytes;
use ebb_core::backing::keys::EARLY;
use ebb_core::extent::{Block, touched_blocks};
use ebb_model::*;
use ebb_ports::{BucketError, Condition, ETag, ListRequest, Piece};
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::ops::Range;
use std::rc::Rc;

#[derive(Default)]
pub(super) struct Early {
    files: RefCell<BTreeMap<Ino, File>>,
    /// Files that have grown past the end of a part.
    grown: RefCell<BTreeSet<Ino>>,
    woken: Signal,
    /// Raised when a part is there, or is not to come.
    arrivals: Signal,
    /// Keys of what is of no use any more.
    waste: RefCell<Vec<String>>,
    /// Parts on their way.
    sending: Cell<usize>,
    /// What nodes before this one have left is known.
    swept: Cell<bool>,
}

#[derive(Default)]
struct File {
    /// Up to where it has been looked at.
    upto: u64,
    /// By where they begin.
    parts: BTreeMap<u64, Part>,
}

struct Part {
    key: String,
    range: Range<u64>,
    version: Version,
    /// Of its blocks, as they were read.
    sums: Vec<u32>,
    /// Once it is there.
    etag: Option<ETag>,
}

impl Early {
    /// The bucket has the file up to there: what was sent of that is of no use any more.
    pub fn forget(&self, ino: Ino, upto: u64) {
        let mut files = self.files.borrow_mut();
        let Some(file) = files.get_mut(&ino) else { return };
        let rest = file.parts.split_off(&upto);
        std::mem::replace(&mut file.parts, rest).into_values().for_each(|part| self.discard(part));
    }

    /// One part is not there, or not what was sent.
    pub fn forget_part(&self, ino: Ino, start: u64) {
        let part = self.files.borrow_mut().get_mut(&ino).and_then(|file| file.parts.remove(&start));
        part.into_iter().for_each(|part| self.discard(part));
    }

    /// What is on its way is found of no use when it arrives.
    fn discard(&self, part: Part) {
        self.arrivals.raise();
        if part.etag.is_some() {
            self.waste.borrow_mut().push(part.key);
        }
    }

    /// Forgets files that the bucket has, and those that are gone.
    fn retain(&self, is_dirty: impl Fn(Ino) -> bool) {
        let clean: Vec<Ino> = self.files.borrow().keys().filter(|ino| !is_dirty(**ino)).copied().collect();
        for ino in clean {
            self.forget(ino, u64::MAX);
            self.files.borrow_mut().remove(&ino);
        }
    }

    pub fn is_sending(&self) -> bool {
        self.sending.get() > 0
    }

    fn arrived(&self, ino: Ino, start: u64, key: String, sent: Result<ETag, BucketError>) -> Result<(), BucketError> {
        self.arrivals.raise();
        let mut files = self.files.borrow_mut();
        let parts = files.get_mut(&ino).map(|file| &mut file.parts);
        let wanted = parts.filter(|parts| parts.get(&start).is_some_and(|part| part.key == key));
        match (wanted, sent) {
            (Some(parts), Ok(etag)) => {
                parts.entry(start).and_modify(|part| part.etag = Some(etag));
                Ok(())
            }
            (wanted, sent) => {
                wanted.and_then(|parts| parts.remove(&start));
                // Also what has failed may be there.
                self.waste.borrow_mut().push(key);
                sent.map(drop)
            }
        }
    }
}

impl Node {
    /// A file was written to, up to behind its end.
    pub(crate) fn has_grown(&self, ino: Ino, from_bytes: u64, to_bytes: u64) {
        let least = self.options.early_bytes.max(CHUNK_BYTES);
        let part_bytes = self.options.part_bytes.max(BLOCK_BYTES);
        if self.options.early_bytes > 0 && to_bytes >= least && from_bytes / part_bytes != to_bytes / part_bytes && self.bucket.is_some() {
            self.flusher.early.grown.borrow_mut().insert(ino);
            self.flusher.early.woken.raise();
        }
    }

    pub(crate) async fn send_early_for_ever(self: Rc<Self>) {
        let mut backoff = Backoff::default();
        while !self.is_stopping() {
            let woken = Box::pin(self.flusher.early.woken.wait());
            match self.send_next_early().await {
                Ok(true) => backoff = Backoff::default(),
                Ok(false) => drop(select(woken, self.ports.clock.sleep(POLL)).await),
                // The upload sends it, in its time.
                Err(error) => {
                    tracing::debug!(?error, "nothing is sent early");
                    self.ports.clock.sleep(backoff.pause(self.ports.entropy.next_u64(), None)).await;
                }
            }
        }
    }

    /// Where what is of no use cannot be removed nothing is sent.
    async fn send_next_early(self: &Rc<Self>) -> Result<bool, FlushError> {
        if !self.may_flush() {
            return Ok(false);
        }
        let cleared = self.clear_early().await;
        let what = cleared.as_ref().err().map(|error| format!("parts that were sent early cannot be removed: {error}"));
        self.trouble(EARLY, what);
        cleared?;
        let next = self.flusher.early.grown.borrow_mut().pop_first();
        match next {
            Some(ino) => self.send_early(ino).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Sends what has become whole since this was last asked for. What has begun is seen through.
    async fn send_early(self: &Rc<Self>, ino: Ino) -> Result<(), FlushError> {
        let early = &self.flusher.early;
        let failed: RefCell<Option<FlushError>> = RefCell::default();
        let goes_on = || failed.borrow().is_none() && !self.is_stopping();
        let read = stream::iter(self.whole_since(ino)).take_while(|_| ready(goes_on())).filter_map(|range| async {
            // What is due goes first.
            drop(self.flusher.lane(Side::ROOT).cycling.lock().await);
            let room = self.flusher.buffers(Side::ROOT).take(range.end - range.start).await;
            let part = self.read_early(ino, range).await;
            part.unwrap_or_else(|error| failed.replace(Some(error)).and(None)).map(|part| (part, room))
        });
        let sent = read.for_each_concurrent(EARLY_AT_ONCE, |((start, key, body), room)| {
            let failed = &failed;
            async move {
                early.sending.set(early.sending.get() + 1);
                let sent = self.insist(&key, || self.bucket().put(&key, body.clone(), Condition::Always, vec![])).await;
                early.sending.set(early.sending.get() - 1);
                if let Err(error) = early.arrived(ino, start, key, sent) {
                    failed.replace(Some(error.into()));
                }
                drop(room);
            }
        });
        sent.await;
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn whole_since(&self, ino: Ino) -> Vec<Range<u64>> {
        let lane = self.flusher.lane(Side::ROOT);
        let limits = self.bucket().capabilities();
        let size = self.replica.view().namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
        let part_bytes = self.part_bytes(size);
        // As long as they are of one length, whatever is still to come.
        let fits = part_bytes == self.part_bytes(0) && part_bytes <= limits.max_put_bytes;
        // Others than the root bucket take nothing but what is the volume's.
        let copies = limits.copies_remotely && lane.copies_parts.get() && self.side_of(ino) == Side::ROOT;
        if !fits || !copies || lane.buffers.limit_bytes() < EARLY_SHARE * part_bytes || !self.is_early_wanted(ino) {
            return vec![];
        }
        let mut files = self.flusher.early.files.borrow_mut();
        let file = files.entry(ino).or_default();
        let whole = size - size % part_bytes;
        let from = if file.upto > whole { 0 } else { file.upto.next_multiple_of(part_bytes) };
        file.upto = whole;
        let starts = (from..whole).step_by(part_bytes as usize);
        let unsent = starts.filter(|start| !file.parts.contains_key(start));
        unsent.map(|start| start..start + part_bytes).collect()
    }

    /// What has no name goes to no bucket, and what was refused is asked for later.
    fn is_early_wanted(&self, ino: Ino) -> bool {
        self.replica.view().backing().is_dirty(ino) && !self.flusher.refused.is_paused(&Work::Inode(ino))
    }

    /// A part as it is now, if all of it is dirty and no upload sends it.
    async fn read_early(self: &Rc<Self>, ino: Ino, range: Range<u64>) -> Result<Option<(u64, String, Bytes)>, FlushError> {
        let _guard = self.locks.lock(ino, Mode::Shared).await;
        let content = self.content(ino)?;
        let is_there = range.end <= content.size_bytes && self.dirty_blocks(ino, &range).is_some();
        if !is_there || !self.is_early_wanted(ino) || self.flusher.preserved.is_sending(ino, &range) {
            return Ok(None);
        }
        let body = self.read_for_upload(ino, range.clone(), content.size_bytes).await?;
        let sums = self.dirty_blocks(ino, &range).and_then(|blocks| blocks.iter().map(|block| block.sum).collect());
        let Some(sums) = sums else { return Ok(None) };
        let key = format!("{EARLY}{:016x}", self.ports.entropy.next_u64());
        let (start, part) = (range.start, Part { key: key.clone(), range, version: content.version, sums, etag: None });
        let mut files = self.flusher.early.files.borrow_mut();
        let before = files.entry(ino).or_default().parts.insert(start, part);
        before.into_iter().for_each(|part| self.flusher.early.discard(part));
        Ok(Some((start, key, body)))
    }

    /// The blocks of a range, if all of them are nowhere but here, and nobody stores to them past the node.
    fn dirty_blocks(&self, ino: Ino, range: &Range<u64>) -> Option<Vec<Block>> {
        let state = self.replica.view();
        let dirty = |block| state.extents().block(ino, block).filter(|block| block.dirty);
        let blocks = touched_blocks(range.start, range.end - range.start).map(dirty);
        if state.extents().is_exposed(ino) { None } else { blocks.collect() }
    }

    /// The object that has a part of the file as it is now, once it is there.
    pub(super) async fn early_piece(&self, ino: Ino, range: &Range<u64>) -> Option<Piece> {
        loop {
            let arrived = self.flusher.early.arrivals.wait();
            let piece = {
                let files = self.flusher.early.files.borrow();
                let part = files.get(&ino)?.parts.get(&range.start).filter(|part| part.range == *range)?;
                let now = self.dirty_blocks(ino, range)?;
                let is_same = |(now, sum): (&Block, &u32)| now.version <= part.version && now.sum == Some(*sum);
                if now.len() != part.sums.len() || !now.iter().zip(&part.sums).all(is_same) {
                    return None;
                }
                part.etag.clone().map(|etag| Piece { key: part.key.clone(), etag, range: 0..range.end - range.start })
            };
            if piece.is_some() {
                return piece;
            }
            arrived.await;
        }
    }

    /// Removes what is of no use any more, and first what nodes before this one have left.
    async fn clear_early(&self) -> Result<(), BucketError> {
        self.sweep_early().await?;
        let early = &self.flusher.early;
        early.retain(|ino| self.replica.view().backing().is_dirty(ino));
        let waste: Vec<Result<String, BucketError>> = early.waste.borrow().iter().cloned().map(Ok).collect();
        let removed = stream::iter(waste).try_for_each_concurrent(PARTS_AT_ONCE, |key| async move {
            // What may still come is removed later.
            if self.await_late_effects(&key).is_err() {
                return Ok(());
            }
            match self.insist(&key, || self.bucket().delete(&key, None)).await {
                Ok(()) | Err(BucketError::NotFound { .. }) => early.waste.borrow_mut().retain(|waste| *waste != key),
                Err(error) => return Err(error),
            }
            Ok(())
        });
        removed.await
    }

    /// The same before the volume is given back. What is left is the next node's to remove.
    pub(crate) async fn clear_early_at_last(&self) {
        let Some(tenure) = &self.tenure else { return };
        let cleared = Box::pin(self.clear_early());
        if let Either::Left((Err(error), _)) = select(cleared, self.ports.clock.sleep(tenure.term() / 3)).await {
            tracing::warn!(%error, "parts that were sent early are left in the bucket until the volume is next mounted");
        }
    }

    async fn sweep_early(&self) -> Result<(), BucketError> {
        let early = &self.flusher.early;
        let mut left: Vec<String> = Vec::new();
        while !early.swept.get() {
            let after = left.last().cloned();
            let request = ListRequest { prefix: EARLY.into(), by_directory: false, after, limit: LISTED_AT_ONCE };
            let page = self.bucket_retry("list", EARLY, 0, || self.bucket().list(request.clone())).await?;
            left.extend(page.entries.iter().map(|entry| entry.key().to_owned()));
            // Somebody else may have been faster, and what is there now be of use.
            if !page.more && !early.swept.replace(true) {
                early.waste.borrow_mut().append(&mut left);
            }
        }
        Ok(())
    }
}

/// Few, for what becomes due meanwhile has to wait for them.
const EARLY_AT_ONCE: usize = 4;

/// The memory for uploads has room for so many parts, or nothing is sent early.
const EARLY_SHARE: u64 = 8;

const LISTED_AT_ONCE: usize = 1000;
