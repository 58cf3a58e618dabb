//! Downloads: ranges of home objects into store files. Each block is requested once for all its
//! waiters (O-39); sequential readers get read-ahead (O-84).

use crate::Node;
use crate::admin::troubles::Subject;
use crate::buckets::ask::Damage;
use crate::buckets::bandwidth::BandwidthEstimator;
use crate::readahead::streams::MAX_REQUEST_BYTES;
use bytes::{Bytes, BytesMut};
use ebb_core::blocks;
use ebb_core::byte_map::Fill;
use ebb_format::sums::{Sums, sums_of_blocks};
use ebb_model::*;
use ebb_ports::{BucketError, Clock, ETag, Object};
use ebb_store::{Buffers, Mode};
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::{Shared, join_all};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Requests for the data of one bucket's objects under way at one time, as many as the paper's
/// prefetch (O-84).
const MAX_PARALLEL: usize = 64;

/// A task that needs absent bytes fetches them, looks again, and starts over if they are not there:
/// evicted since, or of an object that has been replaced. So many attempts in a row mean a cache
/// far too small for its users, or a store that says both that an object has changed and that it
/// has not.
pub(crate) const MAX_ATTEMPTS: usize = 64;

/// After a download without an answer, reads of its blocks get the same time-out for so long.
const REPEATED_READ: Duration = Duration::from_secs(1);

pub struct Downloads {
    /// Blocks under way.
    pending: RefCell<BTreeMap<(Ino, u64), Download>>,
    /// Memory for each bucket. A bucket that does not answer keeps its own share and no more.
    buffers: Vec<Buffers>,
    estimators: Vec<BandwidthEstimator>,
}

/// A download under way. All waiters get its outcome.
#[derive(Clone)]
struct Download {
    /// The received bytes, before they are in the store file. Nothing, where none were received.
    arrival: Shared<oneshot::Receiver<Piece>>,
    outcome: Shared<oneshot::Receiver<Result<(), RpcError>>>,
}

/// The received bytes of an object, with the checksums of their blocks, and the checksums that the
/// object carries.
struct Summed {
    body: Bytes,
    blocks: Vec<u32>,
    sums: Option<Sums>,
}

/// Bytes of an object, beginning at an offset.
#[derive(Clone)]
pub(crate) struct Piece {
    etag: ETag,
    first_byte: u64,
    data: Bytes,
}

impl Piece {
    /// The part of a range of this object that the piece has, from the range's beginning on.
    pub(crate) fn beginning_of(&self, etag: &str, range: &Range<u64>) -> Option<Bytes> {
        let start = range.start.checked_sub(self.first_byte)? as usize;
        let end = self.data.len().min((range.end - self.first_byte) as usize);
        (self.etag.0 == etag && start < end).then(|| self.data.slice(start..end))
    }
}

impl Downloads {
    /// For a volume with so many buckets.
    pub fn new(buckets: usize, buffer_bytes: u64, clock: &Rc<dyn Clock>) -> Downloads {
        let buffers = || Buffers::new(buffer_bytes / buckets as u64, MAX_PARALLEL);
        Downloads {
            pending: RefCell::default(),
            buffers: (0..buckets).map(|_| buffers()).collect(),
            estimators: (0..buckets).map(|_| BandwidthEstimator::new(clock.clone())).collect(),
        }
    }

    /// Waits until the received bytes of these files are in their store files.
    pub async fn filled(&self, is_meant: impl Fn(Ino) -> bool) {
        let under_way: Vec<_> = {
            let pending = self.pending.borrow();
            let meant = pending.iter().filter(|((ino, _), _)| is_meant(*ino));
            let came = meant.filter(|(_, download)| {
                matches!(download.arrival.clone().now_or_never(), Some(Ok(_)))
            });
            came.map(|(_, download)| download.outcome.clone()).collect()
        };
        // The outcome is for the readers of the bytes to handle.
        join_all(under_way).await;
    }
}

impl Node {
    /// Fetches the blocks of these ranges. On success each was present at some time since the call.
    pub(crate) async fn fetch(
        self: &Rc<Self>,
        ino: Ino,
        ranges: &[Range<u64>],
    ) -> Result<(), RpcError> {
        self.fetch_in(ino, ranges, self.readahead.request_bytes(ino)).await
    }

    /// As [`Node::fetch`], in requests of that size.
    pub(crate) async fn fetch_in(
        self: &Rc<Self>,
        ino: Ino,
        ranges: &[Range<u64>],
        request_bytes: u64,
    ) -> Result<(), RpcError> {
        // The received bytes are not kept for the caller.
        let outcomes: Vec<_> = self
            .downloads_of(ino, ranges, request_bytes)
            .into_iter()
            .map(|download| download.outcome)
            .collect();
        for outcome in outcomes {
            // A download that was given up has no outcome: the waiter plans again.
            self.waiting("the bucket", outcome).await.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// As [`Node::fetch`], for readers: returns bytes as soon as they have arrived, and does not
    /// wait until they are in the store file.
    pub(crate) async fn fetch_to_read(
        self: &Rc<Self>,
        ino: Ino,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Piece>, RpcError> {
        let mut pieces: Vec<Piece> = Vec::new();
        let downloads = self.downloads_of(ino, ranges, self.readahead.request_bytes(ino));
        for Download { arrival, .. } in &downloads {
            if let Ok(piece) = self.waiting("the bucket", arrival.clone()).await
                && pieces.last().is_none_or(|last| last.first_byte != piece.first_byte)
            {
                pieces.push(piece);
            }
        }
        if ranges.iter().all(|range| self.fetched(ino, range, &pieces).is_some()) {
            return Ok(pieces);
        }
        // Not all of that is of use, or did not arrive: the outcome decides on the next step.
        for Download { outcome, .. } in downloads {
            self.waiting("the bucket", outcome).await.unwrap_or(Ok(()))?;
        }
        Ok(pieces)
    }

    /// The object with the bytes that are absent from the store file; nothing counts as absent from
    /// a store file that a client stores into.
    pub(crate) fn absent_of(&self, ino: Ino) -> Option<String> {
        let state = self.replica.view();
        state
            .extents()
            .object(ino)
            .filter(|_| !state.extents().is_exposed(ino))
            .map(|home| home.etag.clone())
    }

    /// Starts the missing downloads, and returns all that are under way for the ranges, by blocks.
    fn downloads_of(
        self: &Rc<Self>,
        ino: Ino,
        ranges: &[Range<u64>],
        request_bytes: u64,
    ) -> Vec<Download> {
        for range in ranges {
            self.start_downloads(ino, range.clone(), request_bytes);
        }
        let pending = self.data.downloads.pending.borrow();
        let blocks = ranges
            .iter()
            .flat_map(|range| range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES));
        blocks.filter_map(|block| pending.get(&(ino, block)).cloned()).collect()
    }

    /// Notes a read, and requests the next bytes of a sequential reader.
    pub(crate) fn read_ahead(self: &Rc<Self>, ino: Ino, wanted: &Range<u64>) {
        self.look_for_walks();
        let Some(valid_bytes) =
            self.replica.view().extents().object(ino).map(|home| home.valid_bytes)
        else {
            return;
        };
        if wanted.start == 0 {
            self.walk_ahead(ino);
        }
        let most_bytes = self.most_ahead_bytes(ino);
        let ahead = self.readahead.read(ino, wanted, valid_bytes, most_bytes);
        for range in ahead {
            self.start_downloads(
                ino,
                range.start..range.end.min(valid_bytes),
                self.readahead.request_bytes(ino),
            );
        }
    }

    /// How many bytes of a file's bucket are fetched ahead.
    pub(crate) fn most_ahead_bytes(&self, ino: Ino) -> u64 {
        let estimator = match &self.data.downloads.estimators[..] {
            [estimator] => Some(estimator),
            estimators => {
                self.object_of(ino).map(|(key, ..)| &estimators[self.buckets.bucket_of_key(&key).0])
            }
        };
        self.options
            .read_ahead_bytes
            .min(estimator.map_or(u64::MAX, BandwidthEstimator::ahead_bytes))
    }

    /// The error after [`MAX_ATTEMPTS`] attempts.
    pub(crate) fn fetched_in_vain(&self, ino: Ino) -> RpcError {
        let of = self.object_of(ino).map_or_else(|| format!("inode {ino}"), |(key, ..)| key);
        let what = format!(
            "what is fetched of {of} is gone before it can be used: the cache is too small, others \
             replace the object all the time, \
             or the store does not keep to conditions"
        );
        self.trouble(Subject::Fetched(ino), Some(what));
        FsError::Io.into()
    }

    /// Starts downloads of the absent blocks of a range that are not under way, piece by piece and
    /// side by side: by the node alone, which owns all chunks (O-82).
    pub(crate) fn start_downloads(
        self: &Rc<Self>,
        ino: Ino,
        range: Range<u64>,
        request_bytes: u64,
    ) {
        // Blocks that are on another node are not absent.
        if range.is_empty() || self.held_elsewhere(ino).is_some() {
            return;
        }
        let wide = self.with_whole_spans(ino, &range);
        let request_bytes = if wide == range { request_bytes } else { MAX_REQUEST_BYTES };
        let fills = self
            .replica
            .view()
            .extents()
            .fills(ino, wide.start / BLOCK_BYTES..wide.end.div_ceil(BLOCK_BYTES));
        let absent = {
            let pending = self.data.downloads.pending.borrow();
            let is_absent =
                |fill: &Fill| fill.object_bytes > 0 && !pending.contains_key(&(ino, fill.block));
            blocks::runs(fills.into_iter().filter(is_absent).map(|fill| fill.block))
        };
        for piece in absent.into_iter().flat_map(|run| pieces(run, request_bytes / BLOCK_BYTES)) {
            self.spawn_download(ino, piece);
        }
    }

    /// Widens a range of a file to the whole of those spans of its object that were found damaged
    /// last.
    fn with_whole_spans(&self, ino: Ino, range: &Range<u64>) -> Range<u64> {
        let key = if self.instruments.troubles().is_empty() {
            None
        } else {
            self.object_of(ino).map(|(key, ..)| key)
        };
        let is_met = |span: &Range<u64>| {
            span.start < range.end
                && range.start < span.end
                && span.end - span.start <= MAX_REQUEST_BYTES
        };
        let met = key
            .into_iter()
            .flat_map(|key| self.instruments.troubles().contents(&key))
            .filter(is_met);
        met.fold(range.clone(), |all, span| all.start.min(span.start)..all.end.max(span.end))
    }

    fn spawn_download(self: &Rc<Self>, ino: Ino, blocks: Range<u64>) {
        let (arrived, arrival) = oneshot::channel();
        let (sender, outcome) = oneshot::channel();
        let download = Download { arrival: arrival.shared(), outcome: outcome.shared() };
        self.data
            .downloads
            .pending
            .borrow_mut()
            .extend(blocks.clone().map(|block| ((ino, block), download.clone())));
        let node = self.clone();
        self.ports.spawn.spawn(Box::pin(async move {
            let result = node.download(ino, blocks.clone(), arrived).await;
            let remove = || {
                for block in blocks {
                    node.data.downloads.pending.borrow_mut().remove(&(ino, block));
                }
            };
            // A read-ahead may have no waiter.
            match result {
                // The kernel requests a page once more after a failed read-ahead: the answer is the
                // same, or one read(2) would take the timeout twice.
                Err(RpcError::Refused(FsError::TimedOut)) => {
                    let (Ok(()) | Err(_)) = sender.send(result);
                    node.ports.clock.sleep(REPEATED_READ).await;
                    remove();
                }
                _ => {
                    remove();
                    let (Ok(()) | Err(_)) = sender.send(result);
                }
            }
        }));
    }

    /// Downloads a run of absent blocks and fills those that are still absent.
    async fn download(
        self: &Rc<Self>,
        ino: Ino,
        blocks: Range<u64>,
        arrived: oneshot::Sender<Piece>,
    ) -> Result<(), RpcError> {
        let Some((key, ..)) = self.object_of(ino) else { return Ok(()) };
        // Also the present blocks of a span, or it could not be checked.
        let range =
            self.with_whole_spans(ino, &(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES));
        let room = self.data.downloads.buffers[self.buckets.bucket_of_key(&key).0]
            .take(range.end - range.start)
            .await;
        let Some((key, etag, valid_bytes)) = self.object_of(ino) else { return Ok(()) };
        let first_byte = range.start;
        let range = first_byte..range.end.min(valid_bytes);
        if range.is_empty() {
            return Ok(());
        }
        let fetching = self.data.downloads.estimators[self.buckets.bucket_of_key(&key).0].fetch();
        let summed = match self.get_summed(&key, range.clone(), &etag).await {
            Ok(summed) => {
                fetching.came(summed.body.len() as u64);
                drop(fetching);
                self.trouble(Subject::NoObject { ino, etag: etag.0.clone() }, None);
                summed
            }
            Err(error) => {
                drop((arrived, room, fetching));
                return self.object_changed(ino, &key, &etag, error).await;
            }
        };
        // A read-ahead may have no waiter.
        let (Ok(()) | Err(_)) =
            arrived.send(Piece { etag: etag.clone(), first_byte, data: summed.body.clone() });
        self.fill(ino, &etag, first_byte, &summed).await?;
        match summed.sums {
            Some(sums) => self.check_spans(ino, &key, &etag, &sums, range).await,
            None => Ok(()),
        }
    }

    /// Puts downloaded bytes into the blocks that are still absent. No reader reads these, so other
    /// blocks of the file can be read and filled at the same time, unless the file has to be moved.
    async fn fill(
        self: &Rc<Self>,
        ino: Ino,
        etag: &ETag,
        first_byte: u64,
        summed: &Summed,
    ) -> Result<(), RpcError> {
        let Summed { body: data, blocks: known, .. } = summed;
        self.reserve_clean(data.len() as u64).await?;
        // All requested bytes will arrive.
        let end = |node: &Node| {
            node.object_of(ino)
                .map_or(0, |(_, _, valid_bytes)| valid_bytes.min(node.location(ino).size_bytes))
        };
        let mut _guard = self.data.latches.hold(ino, Mode::Shared).await;
        if !self.has_room(ino, end(self)) {
            drop(_guard);
            _guard = self.data.latches.hold(ino, Mode::Exclusive).await;
        }
        let first = first_byte / BLOCK_BYTES;
        let blocks = first..first + (data.len() as u64).div_ceil(BLOCK_BYTES);
        let fills = {
            let state = self.replica.view();
            match state.extents().object(ino) {
                // The content differs from the requested one: the waiter plans again.
                Some(home) if home.etag == etag.0 => state.extents().fills(ino, blocks),
                _ => return Ok(()),
            }
        };
        // Some may have become holes since the request, and stay so. More bytes of others may count
        // now than were requested.
        let came = first_byte + data.len() as u64;
        let is_whole = |fill: &Fill| {
            fill.object_bytes > 0 && fill.block * BLOCK_BYTES + fill.object_bytes <= came
        };
        let fills: Vec<_> = fills.into_iter().filter(is_whole).collect();
        let location = self.make_room(ino, end(self)).await?;
        let present = |first, sums: &[u32]| {
            let (etag, sums) = (etag.0.clone(), sums.to_vec());
            LocalCommand::Present { ino, etag, first, sums }
        };
        let mut at = 0;
        while at < fills.len() {
            let run = fills[at..]
                .iter()
                .zip(fills[at].block..)
                .take_while(|(fill, block)| fill.block == *block)
                .count();
            let content = content_of(data, first, &fills[at..at + run]);
            // True if all received bytes of a block count. Otherwise those behind the counted ones
            // are cut off, and the block needs a checksum of its own.
            let is_all =
                |fill: &Fill| fill.object_bytes == BLOCK_BYTES.min(came - fill.block * BLOCK_BYTES);
            let sum = |(fill, content): (&Fill, &[u8])| match is_all(fill) {
                true => known[(fill.block - first) as usize],
                false => ebb_format::crc32c(content),
            };
            let sums: Vec<u32> = fills[at..at + run]
                .iter()
                .zip(content.chunks(BLOCK_BYTES as usize))
                .map(sum)
                .collect();
            let start = fills[at].block;
            if Planted::PresentBeforeFilled.is_on() {
                self.commit_local(present(start, &sums)).await?;
            }
            let content = content
                .slice(..self.visible_bytes(&location, start * BLOCK_BYTES, content.len()).await?);
            self.store
                .fill(&location, start * BLOCK_BYTES, content)
                .await
                .map_err(|error| self.disk_failed(ino, error))?;
            if self.is_exposed(ino) {
                // Lost in a power cut, the block would count as stored into.
                self.store
                    .sync(SyncScope::File(ino))
                    .await
                    .map_err(|error| self.disk_failed(ino, error))?;
            }
            self.commit_local(present(start, &sums)).await?;
            let blocks = start..start + run as u64;
            self.data.cache.note_clean(self.replica.view().extents(), ino, blocks);
            self.data.grants.verified(ino, start..start + run as u64);
            at += run;
        }
        self.drop_if_gone(ino);
        Ok(())
    }

    /// The object that a file's absent bytes are read from: key, tag, bytes that count.
    pub(crate) fn object_of(&self, ino: Ino) -> Option<(String, ETag, u64)> {
        let state = self.replica.view();
        let home = state.extents().object(ino)?;
        let key = state.backing().object_key(state.namespace(), ino)?;
        Some((key, ETag(home.etag.clone()), home.valid_bytes))
    }

    /// Gets a range of an object: whole, of exactly this version, and equal to the written bytes as
    /// far as the object has checksums for them.
    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        etag: &ETag,
    ) -> Result<Bytes, BucketError> {
        self.get_summed(key, range, etag).await.map(|summed| summed.body)
    }

    /// The same with all checksums. The range begins with a block.
    async fn get_summed(
        &self,
        key: &str,
        range: Range<u64>,
        etag: &ETag,
    ) -> Result<Summed, BucketError> {
        debug_assert!(range.start.is_multiple_of(BLOCK_BYTES), "{range:?}");
        let len_bytes = range.end - range.start;
        let sound = |Object { meta, body }: Object| {
            if body.len() as u64 != len_bytes {
                let what = format!("{} bytes came where {len_bytes} were asked for", body.len());
                // The trouble ends with the next sound read of its first byte.
                return Err(Damage { at: range.start..range.start + 1, what });
            }
            let sums = Sums::decode(&meta.tags, meta.len_bytes);
            let blocks = sums_of_blocks(&body);
            let verified = sums.as_ref().filter(|_| !Planted::SumNotVerified.is_on());
            match verified.and_then(|sums| sums.damage_of_blocks(range.start, len_bytes, &blocks)) {
                Some(at) => Err(Damage {
                    what: format!("bytes {} to {} have another checksum", at.start, at.end),
                    at,
                }),
                None => Ok(Summed { body, blocks, sums }),
            }
        };
        let wanted = Some(etag).filter(|_| !Planted::TagNotCompared.is_on());
        let summed = self
            .get_sound(
                key,
                len_bytes,
                || self.buckets.bucket().get(key, Some(range.clone()), wanted),
                sound,
            )
            .await?;
        self.is_sound(key, &range);
        Ok(summed)
    }
}

/// Splits a run of blocks into requests of this many, which end where spans of an object do. A run
/// of no more than that stays whole.
fn pieces(run: Range<u64>, most: u64) -> Vec<Range<u64>> {
    let step = if run.end - run.start > most { most } else { u64::MAX };
    let mut pieces: Vec<Range<u64>> = Vec::new();
    while let Some(start) =
        pieces.last().map_or(Some(run.start), |last| (last.end < run.end).then_some(last.end))
    {
        pieces.push(start..run.end.min((start / step + 1).saturating_mul(step)));
    }
    pieces
}

/// The bytes of a run of fills, each padded with zeros to a whole block.
fn content_of(data: &Bytes, first: u64, fills: &[Fill]) -> Bytes {
    let start = ((fills[0].block - first) * BLOCK_BYTES) as usize;
    let whole = fills.iter().all(|fill| fill.object_bytes == BLOCK_BYTES);
    let len_bytes = fills.len() * BLOCK_BYTES as usize;
    if whole && start + len_bytes <= data.len() {
        return data.slice(start..start + len_bytes);
    }
    let mut content = BytesMut::with_capacity(len_bytes);
    for (done, fill) in (1..).zip(fills) {
        let from = ((fill.block - first) * BLOCK_BYTES) as usize;
        let end = (from + fill.object_bytes as usize).min(data.len());
        content.extend_from_slice(&data[from.min(end)..end]);
        content.resize(done * BLOCK_BYTES as usize, 0);
    }
    content.freeze()
}
