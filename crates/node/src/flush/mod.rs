//! Write-back: what is dirty goes to the bucket, oldest first (O-54, O-75…77).
//!
//! Each bucket of the volume has its own cycles, so that one that does not answer stops no
//! other. A cycle writes the files that are due, then the pages of directories that speak of
//! them, then carries out deletes (O-83). Whatever is sent to a key was logged before
//! (`UploadBegun`), and nothing else is done to that key until its end is logged, so a
//! crash at any point leaves a record from which the next start finds out what happened.

mod cooldown;
mod early;
mod object;
mod object_checksums;
mod page;
mod preserve;
mod refused;
mod renamed;
mod settle;
mod transact;
mod upload;

use crate::Node;
use crate::buckets::ask::Backoff;
use crate::buckets::borders::BucketIndex;
use crate::buckets::upload_window::slow_upload;
use cooldown::FlushCooldowns;
use early::Early;
use ebb_core::backing::{DirtyWork, FlushStep};
use ebb_core::blocks::{BlockRuns, touched_blocks};
use ebb_core::extent::Block;
use ebb_model::*;
use ebb_ports::{ETag, Signal};
use ebb_store::Buffers;
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::future::{Either, join_all, select};
use futures_util::stream;
use preserve::Preserved;
use refused::RefusedWork;
use renamed::{AwaitedRedirects, TooLarge, Unlistable};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use transact::{FlushError, UnknownOutcomes};

/// How often the queue of dirty files is looked at.
const POLL: Duration = Duration::from_millis(200);

/// State about writes to the bucket that is not in the partition: work under way, refused work, and
/// the bytes uploaded so far. Only this folder changes it. After a restart the log and the bucket
/// show the outcome of each upload.
pub struct Flusher {
    preserved: Preserved,
    /// Raised when something may have become dirty.
    woken: Signal,
    /// Raised after each file, page and delete.
    progress: Signal,
    /// One for each bucket.
    queues: Vec<BucketQueue>,
    refused: RefusedWork,
    unknown_outcomes: UnknownOutcomes,
    early: Early,
    too_large: TooLarge,
    unlistable: Unlistable,
    cooldowns: FlushCooldowns,
    flushed: Cell<Flushed>,
    /// Of files that are being sent in parts: how many bytes the bucket has taken.
    uploaded_bytes: RefCell<BTreeMap<Ino, u64>>,
    /// Files that changed while they were sent, and up to where the bucket has what they were.
    superseded_at: RefCell<BTreeMap<Ino, Version>>,
    /// Blocks into which a write has failed: what they are is not what an upload under way has
    /// sent.
    failed_blocks: RefCell<BlockRuns>,
    /// Files that are being sent, as they were at these versions.
    sending: RefCell<BTreeMap<Ino, Version>>,
    /// Files that were sent, and the commands that say so.
    sent: RefCell<BTreeMap<Ino, LogIndex>>,
}

/// The way to one bucket.
struct BucketQueue {
    /// Somebody waits for room or for a flush: what is dirty is due at once.
    urgent: Cell<bool>,
    cycling: futures_util::lock::Mutex<()>,
    /// Until it refuses to.
    copies_parts: Cell<bool>,
    /// For content on its way. A bucket that does not answer keeps its share and no more.
    buffers: Buffers,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Inode(Ino),
    Key(String),
}

/// What has been written to the bucket since the start.
#[derive(Clone, Copy, Default)]
struct Flushed {
    files: u64,
    bytes: u64,
}

impl Flusher {
    /// For a volume over so many buckets.
    pub fn new(buckets: usize, buffer_bytes: u64) -> Flusher {
        let queue = || BucketQueue {
            urgent: Cell::new(false),
            cycling: Default::default(),
            copies_parts: Cell::new(true),
            buffers: Buffers::new(buffer_bytes / buckets as u64, usize::MAX),
        };
        Flusher {
            preserved: Preserved::default(),
            woken: Signal::default(),
            progress: Signal::default(),
            queues: (0..buckets).map(|_| queue()).collect(),
            refused: RefusedWork::default(),
            unknown_outcomes: UnknownOutcomes::default(),
            early: Early::default(),
            too_large: TooLarge::default(),
            unlistable: Unlistable::default(),
            cooldowns: FlushCooldowns::default(),
            flushed: Cell::default(),
            uploaded_bytes: RefCell::default(),
            superseded_at: RefCell::default(),
            failed_blocks: RefCell::default(),
            sending: RefCell::default(),
            sent: RefCell::default(),
        }
    }

    /// A write of these bytes has failed, and may have changed some of them. The inode's latch is
    /// held exclusively.
    pub fn has_failed_at(&self, ino: Ino, bytes: Range<u64>) {
        self.failed_blocks
            .borrow_mut()
            .insert(ino, touched_blocks(bytes.start, bytes.end - bytes.start));
    }

    /// An upload has ended, or the file is gone.
    pub fn forget_failed(&self, ino: Ino) {
        self.failed_blocks.borrow_mut().remove(ino, 0..u64::MAX);
    }

    /// The file is about to be sent as it is at this version. The inode's latch is held.
    fn sends(&self, ino: Ino, version: Version) {
        self.sending.borrow_mut().insert(ino, version);
    }

    /// The log says what has become of that, or the file is gone.
    pub fn has_ended(&self, ino: Ino) {
        self.sending.borrow_mut().remove(&ino);
    }

    /// The bucket may have what was last written to a block, whether the log says so by now or not.
    /// The inode's latch is held exclusively.
    pub fn may_be_sent(&self, ino: Ino, block: &Block) -> bool {
        !block.dirty || self.sending.borrow().get(&ino).is_some_and(|sent| block.version <= *sent)
    }

    /// A file is clean by the command at `index`. What is said of others by commands up to
    /// `durable` is so for good.
    fn note_sent(&self, ino: Ino, index: LogIndex, durable: LogIndex) {
        let mut sent = self.sent.borrow_mut();
        sent.retain(|_, index| *index > durable);
        sent.insert(ino, index);
    }

    /// A power cut could make what is clean of a file dirty again, when nothing but what is here
    /// will do.
    pub fn may_be_dirty_again(&self, ino: Ino, durable: LogIndex) -> bool {
        self.sent.borrow().get(&ino).is_some_and(|index| *index > durable)
    }

    /// Parts of files that are not due are on their way.
    pub fn is_sending_early(&self) -> bool {
        self.early.is_sending()
    }

    fn queue(&self, bucket_index: BucketIndex) -> &BucketQueue {
        &self.queues[bucket_index.0]
    }

    pub(crate) fn buffers(&self, bucket_index: BucketIndex) -> &Buffers {
        &self.queue(bucket_index).buffers
    }

    /// Of a file that is being sent.
    pub fn sent_bytes_of(&self, ino: Ino) -> u64 {
        self.uploaded_bytes.borrow().get(&ino).copied().unwrap_or_default()
    }

    pub fn sent_bytes(&self) -> u64 {
        self.uploaded_bytes.borrow().values().sum()
    }

    /// Files since the start, and what of others has been sent by now.
    fn sent(&self) -> (u64, u64) {
        (self.flushed.get().files, self.sent_bytes())
    }

    /// Completes after the next file, page or delete.
    pub fn progress(&self) -> impl Future<Output = ()> + use<> {
        self.progress.wait()
    }

    /// Mappings can store into the file from here on: an upload with checksums is given up.
    pub fn exposed(&self, ino: Ino) {
        self.preserved.exposed(ino);
    }

    /// Called before the size of a file is set: a cut takes away bytes that an upload needs.
    pub fn break_upload_at(&self, ino: Ino, size_bytes: Option<u64>) {
        let Some(len) = size_bytes else { return };
        self.early.cut(ino, len);
        self.preserved.cut(ino, len);
    }

    /// The file is sent without a pause after its last upload.
    pub fn cancel_cooldown(&self, ino: Ino) {
        self.cooldowns.cancel(ino);
    }

    pub fn wake(&self) {
        self.woken.raise();
    }

    /// Makes everything dirty due now.
    pub fn urge(&self) {
        self.queues.iter().for_each(|queue| queue.urgent.set(true));
        self.woken.raise();
    }

    /// Why the store does not take this inode, if it has refused it.
    pub(crate) fn refused_reason(&self, ino: Ino) -> Option<String> {
        self.refused.reason(&Work::Inode(ino))
    }

    pub(crate) fn count(&self, bytes: u64) {
        let Flushed { files, bytes: before } = self.flushed.get();
        self.flushed.set(Flushed { files: files + 1, bytes: before + bytes });
    }
}

/// What a cycle, or one piece of its work, has come to.
#[derive(Clone, Copy, Default)]
struct CycleOutcome {
    /// It has brought something to an end.
    progressed: bool,
    /// The bucket or the node's disk should be left alone for a while.
    failed: bool,
    /// Something was refused, or waits for something else.
    blocked: bool,
}

/// What a flush has done.
#[derive(Default)]
pub(crate) struct FlushReport {
    pub files: u64,
    pub bytes: u64,
    pub refused: RefusedCounts,
}

/// A flush ends once the store has refused all remaining work so often in a row.
const MOST_REFUSALS: u32 = 3;

/// A flush reports so many refusals in words, and counts the rest.
const MOST_REASONS: usize = 3;

impl std::ops::BitOrAssign for CycleOutcome {
    fn bitor_assign(&mut self, other: CycleOutcome) {
        self.progressed |= other.progressed;
        self.failed |= other.failed;
        self.blocked |= other.blocked;
    }
}

/// What the bucket has taken of a file, and how often it has begun to anew.
#[derive(Default)]
struct UploadProgress {
    bytes: u64,
    beginnings: u32,
}

const MOST_BEGINNINGS: u32 = 4;

/// What was not in the bucket when a flush began.
struct FlushTarget {
    root: Ino,
    files: Vec<Ino>,
    keys: Vec<String>,
    /// Of the last change before it.
    version: Version,
}

impl Node {
    /// Writes back what becomes dirty for one bucket until the node stops.
    pub(crate) async fn flush_for_ever(self: Rc<Self>, bucket_index: BucketIndex) {
        let mut backoff = Backoff::default();
        while !self.is_stopping() {
            let woken = Box::pin(self.flusher.woken.wait());
            if !self.is_due(bucket_index) {
                select(woken, self.ports.clock.sleep(POLL)).await;
                continue;
            }
            let turn = self.flusher.queue(bucket_index).cycling.lock().await;
            let ended = self.cycle(bucket_index, None).await;
            drop(turn);
            match ended {
                Ok(outcome) if outcome.progressed => backoff = Backoff::default(),
                // What is due waits for something else.
                Ok(_) => self.ports.clock.sleep(POLL).await,
                Err(()) => {
                    backoff.wait(&self.ports, None).await;
                }
            }
        }
    }

    /// Writes everything dirty at or below an inode, and waits for what was dirty when it began:
    /// there may always be more. Work that the store has refused again and again is not waited for.
    pub(crate) async fn flush_below(self: &Rc<Self>, root: Ino) -> Result<FlushReport, RpcError> {
        if self.buckets.is_none() {
            return Ok(FlushReport::default());
        }
        self.find_stores().await?;
        let before = self.flusher.flushed.get();
        let mut deadline = self.ports.clock.monotonic() + self.flush_patience();
        let mut left = usize::MAX;
        let (mut refusals, mut refused) = (0, RefusedCounts::default());
        self.list_unlistable_again(root);
        let mut redirects = AwaitedRedirects::of(self.redirects_of_flush(root));
        let mut uploaded_bytes = BTreeMap::new();
        let target = self.outstanding_below(root);
        // How many of its cycles wait for others, and what these had sent by then.
        let (waiting, mut sent) = (Rc::new(Cell::new(0)), self.flusher.sent());
        loop {
            // The objects of a directory are due only once it has given up its redirect, by itself
            // or because a file needs the key of its prefix.
            let are_below =
                |dir, above: &BTreeSet<Ino>| above.iter().any(|above| self.is_below(dir, *above));
            if redirects.have_gone(self.redirects_of_flush(root), are_below) {
                left = usize::MAX;
            }
            let remaining = self.dirty_below(root);
            if remaining == 0 {
                break;
            }
            let gets_on = self.sends_more_of(root, &mut uploaded_bytes);
            let others_get_on = waiting.get() > 0 && self.flusher.sent() != sent;
            sent = self.flusher.sent();
            if remaining < left || gets_on || others_get_on {
                left = left.min(remaining);
                deadline = self.ports.clock.monotonic() + self.flush_patience();
            } else if self.ports.clock.monotonic() >= deadline {
                return Err(FsError::TimedOut.into());
            }
            // Where nobody has changed anything since, what is left is the flush's own, and ends
            // with it.
            let is_there =
                self.replica.view().version() > target.version && !self.is_outstanding(&target);
            self.flusher.refused.try_again();
            // In tasks of their own: a request that the bucket does not answer has to be seen
            // through, and whoever waits here does not have to.
            let ended = self.buckets_of_flush(root).map(|bucket_index| {
                let (sender, ended) = oneshot::channel();
                let (node, waiting) = (self.clone(), waiting.clone());
                waiting.set(waiting.get() + 1);
                self.ports.spawn.spawn(Box::pin(async move {
                    let _turn = node.flusher.queue(bucket_index).cycling.lock().await;
                    waiting.set(waiting.get() - 1);
                    let (Ok(()) | Err(_)) = sender.send(node.cycle(bucket_index, Some(root)).await);
                }));
                ended
            });
            let ended = join_all(ended.collect::<Vec<_>>());
            let patience = deadline.saturating_sub(self.ports.clock.monotonic());
            match select(ended, self.ports.clock.sleep(patience)).await {
                Either::Left((ended, _)) => {
                    let failed = CycleOutcome { failed: true, ..CycleOutcome::default() };
                    let mut outcome = CycleOutcome::default();
                    ended.into_iter().for_each(|ended| {
                        outcome |= ended.ok().and_then(Result::ok).unwrap_or(failed)
                    });
                    // The pages that tell of it are there as well, and what had to go for it is
                    // gone.
                    if is_there && !outcome.failed && !outcome.blocked {
                        break;
                    }
                    refused = self.refused_below(root);
                    let is_all = !outcome.failed
                        && refused.writes + refused.deletes == self.dirty_below(root) as u64;
                    refusals = if is_all { refusals + 1 } else { 0 };
                    if refusals == MOST_REFUSALS {
                        break;
                    }
                    refused = RefusedCounts::default();
                    if !outcome.progressed {
                        self.ports.clock.sleep(POLL).await;
                    }
                }
                Either::Right(_) => {}
            }
        }
        let after = self.flusher.flushed.get();
        Ok(FlushReport {
            files: after.files - before.files,
            bytes: after.bytes - before.bytes,
            refused,
        })
    }

    /// What of a flush's work the store has refused in this cycle.
    fn refused_below(&self, root: Ino) -> RefusedCounts {
        let keys: BTreeSet<String> = self.keys_to_go(root).into_iter().collect();
        let mut counts = RefusedCounts::default();
        self.refused_work().for_each_paused(|work, reason| {
            let count = match work {
                Work::Inode(ino) if self.is_below(*ino, root) => &mut counts.writes,
                Work::Key(key) if keys.contains(key) => &mut counts.deletes,
                Work::Inode(_) | Work::Key(_) => return,
            };
            *count += 1;
            if counts.reasons.len() < MOST_REASONS {
                counts.reasons.push(reason.to_owned());
            }
        });
        counts
    }

    fn dirty_files_below(&self, root: Ino) -> Vec<Ino> {
        let dirty: Vec<DirtyWork> =
            self.replica.view().backing().dirty_work().map(|(_, work)| work).collect();
        let files = dirty.into_iter().filter_map(|work| match work {
            DirtyWork::File(ino) => Some(ino).filter(|ino| self.is_below(*ino, root)),
            DirtyWork::Page(_) => None,
        });
        files.collect()
    }

    fn outstanding_below(&self, root: Ino) -> FlushTarget {
        let (files, keys) = (self.dirty_files_below(root), self.keys_to_go(root));
        FlushTarget { root, files, keys, version: self.replica.view().version() }
    }

    fn is_outstanding(&self, target: &FlushTarget) -> bool {
        let dirty = self.dirty_files_below(target.root);
        let has_renamed = !self.renamed_due(target.root).is_empty();
        let state = self.replica.view();
        let (backing, superseded_at) = (state.backing(), self.flusher.superseded_at.borrow());
        let step = |ino| backing.flush_step(state.namespace(), ino);
        let is_there = |ino| {
            superseded_at.get(&ino).is_some_and(|version| *version >= target.version)
                && matches!(step(ino), FlushStep::Put { .. })
        };
        // What a directory has taken along moves in the course of a flush.
        let moves = dirty.iter().any(|ino| matches!(step(*ino), FlushStep::Move { .. }));
        let unwanted: BTreeSet<&str> = backing.unwanted().collect();
        moves
            || has_renamed
            || target.files.iter().any(|ino| backing.is_dirty(*ino) && !is_there(*ino))
            || target
                .keys
                .iter()
                .any(|key| backing.is_to_be_deleted(key) || unwanted.contains(&key[..]))
    }

    /// The bucket has taken more of a file below an inode than when these numbers were written. One
    /// that begins again and again, as it does if it changes, counts no more: it may do so for
    /// ever.
    fn sends_more_of(&self, root: Ino, before: &mut BTreeMap<Ino, UploadProgress>) -> bool {
        let uploaded_bytes = self.flusher.uploaded_bytes.borrow();
        let below = uploaded_bytes.iter().filter(|(ino, _)| self.is_below(**ino, root));
        below.fold(false, |more, (ino, bytes)| {
            let before = before.entry(*ino).or_default();
            before.beginnings += u32::from(*bytes < before.bytes);
            let exceeds = *bytes > before.bytes;
            before.bytes = *bytes;
            more || exceeds && before.beginnings <= MOST_BEGINNINGS
        })
    }

    /// How long a flush waits for the next file, or the next part of one, to be there: beside the
    /// usual time what one takes on a slow line, and what all files take that are to be sent, if
    /// that is limited.
    pub(crate) fn flush_patience(&self) -> Duration {
        let state = self.replica.view();
        let length = |ino| state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
        let lengths = state.backing().dirty_inodes().map(|(_, ino)| length(ino));
        let (bytes, longest) = lengths
            .fold((0u64, 0), |(sum, longest), len| (sum.saturating_add(len), len.max(longest)));
        let patience = self.upload_patience() + slow_upload(longest.min(CHUNK_BYTES));
        match self.options.upload_bytes_per_sec {
            Some(rate) => patience + Duration::from_secs(bytes / rate.max(1)),
            None => patience,
        }
    }

    /// The buckets that have anything of what is below an inode: objects without a key of
    /// their own are in the root bucket.
    fn buckets_of_flush(&self, root: Ino) -> impl Iterator<Item = BucketIndex> + use<> {
        let only = (root != Ino::ROOT).then(|| self.bucket_of(root));
        self.buckets.bucket_indexes().filter(move |bucket_index| {
            only.is_none_or(|only| *bucket_index == only || *bucket_index == BucketIndex::ROOT)
        })
    }

    /// Files and pages below an inode that the bucket does not have, renamed directories whose
    /// objects are to follow, and all deletes in its buckets, also those to come: they are of names
    /// that are gone from somewhere.
    fn dirty_below(&self, root: Ino) -> usize {
        let dirty: Vec<Ino> =
            self.replica.view().backing().dirty_inodes().map(|(_, ino)| ino).collect();
        let inodes = dirty.into_iter().filter(|ino| self.is_below(*ino, root)).count();
        inodes + self.renamed_due(root).len() + self.keys_to_go(root).len()
    }

    fn keys_to_go(&self, root: Ino) -> Vec<String> {
        let bucket_indexes: Vec<BucketIndex> = self.buckets_of_flush(root).collect();
        let state = self.replica.view();
        let gone = state
            .backing()
            .deletes()
            .map(|(key, _)| key)
            .chain(state.backing().unwanted().map(str::to_owned));
        gone.filter(|key| bucket_indexes.contains(&self.buckets.bucket_of_key(key))).collect()
    }

    /// Whether a cycle of one bucket would find anything to do.
    fn is_due(&self, bucket_index: BucketIndex) -> bool {
        self.is_any_due(bucket_index)
            && (self.buckets.members().is_empty() || self.is_work_of(bucket_index))
    }

    /// Anything that is due belongs to this bucket. Looks no further than at what is due.
    fn is_work_of(&self, bucket_index: BucketIndex) -> bool {
        let urgent = self.flusher.queue(bucket_index).urgent.get();
        let state = self.replica.view();
        let refused = &self.flusher.refused;
        let mut due =
            state.backing().dirty_inodes().take_while(|(since, _)| urgent || self.is_old(*since));
        let mut deletes = state.backing().deletes();
        due.any(|(_, ino)| {
            !refused.is_paused(&Work::Inode(ino)) && self.bucket_of(ino) == bucket_index
        }) || self.is_renamed_due(bucket_index)
            || deletes.any(|(key, _)| {
                !refused.is_paused(&Work::Key(key.clone()))
                    && self.buckets.bucket_of_key(&key) == bucket_index
            })
    }

    fn is_any_due(&self, bucket_index: BucketIndex) -> bool {
        let (oldest, deletes) = {
            let state = self.replica.view();
            let oldest = state.backing().dirty_inodes().next().map(|(since, _)| since);
            (oldest, state.backing().deletes().next().is_some())
        };
        self.refused_work().go_on(self.ports.clock.monotonic());
        if !self.may_flush() {
            return false;
        }
        match oldest {
            // What was renamed has a page to be written first, which makes it due in its time.
            None => {
                deletes && !self.flusher.refused.is_any_paused()
                    || self.is_renamed_due(bucket_index)
            }
            Some(since) => {
                self.flusher.queue(bucket_index).urgent.get()
                    || self.is_old(since) && !self.everything_paused()
            }
        }
    }

    fn everything_paused(&self) -> bool {
        let refused = &self.flusher.refused;
        refused.is_any_paused()
            && self
                .replica
                .view()
                .backing()
                .dirty_inodes()
                .all(|(_, ino)| refused.is_paused(&Work::Inode(ino)))
    }

    fn is_old(&self, since: Time) -> bool {
        let now = self.ports.clock.wall();
        // A clock that was set back must not keep a file from the bucket.
        now < since || now.secs - since.secs >= self.options.flush_interval.as_secs() as i64
    }

    /// Nothing new goes to the bucket before a client that was alone, and is still to come back,
    /// has repeated what a power cut took. Nor before all is over that a run before this one may
    /// have asked for.
    fn may_flush(&self) -> bool {
        !self.attachments.awaits_sole()
            && self.ports.clock.monotonic() >= self.buckets.late_until()
            && self.may_write()
    }

    /// One round over what is due for one bucket: everything below `root`, or what is old enough.
    /// It is the turn of whoever asks for it.
    async fn cycle(
        self: &Rc<Self>,
        bucket_index: BucketIndex,
        root: Option<Ino>,
    ) -> Result<CycleOutcome, ()> {
        if !self.may_flush() {
            return Err(());
        }
        let all = root.is_some() || self.flusher.queue(bucket_index).urgent.take();
        let mut outcome = CycleOutcome::default();
        let now = self.ports.clock.monotonic();
        self.flusher.cooldowns.end(now);
        self.flusher
            .superseded_at
            .borrow_mut()
            .retain(|ino, _| self.replica.view().backing().is_dirty(*ino));
        // Before files are sent: what has to follow a directory is then sent once.
        let follows = match root {
            Some(_) => self.move_renamed(bucket_index, root).await,
            None => Ok(()),
        };
        let files = self.due(bucket_index, root, all, |work| match work {
            DirtyWork::File(ino) => {
                Some(ino).filter(|ino| all || !self.flusher.cooldowns.has(*ino, now))
            }
            DirtyWork::Page(_) => None,
        });
        let mut sent = stream::iter(files.into_iter().map(|ino| async move {
            self.conclude(bucket_index, Work::Inode(ino), self.flush_file(ino).await)
        }))
        .buffer_unordered(self.options.flush_parallel);
        while let Some(ended) = sent.next().await {
            // Of files whoever waits knows himself which he waits for.
            outcome |= CycleOutcome { blocked: false, ..ended };
        }
        let follows = match follows {
            Ok(()) => self.move_renamed(bucket_index, root).await,
            failed => failed,
        };
        if let Err(error) = follows {
            tracing::warn!(%error, "objects cannot follow a renamed directory yet");
            outcome.failed = true;
        }
        let now = self.ports.clock.monotonic();
        let pages = self.due(bucket_index, root, all, |work| match work {
            DirtyWork::Page(dir) => {
                Some(dir).filter(|dir| root.is_some() || !self.flusher.cooldowns.has(*dir, now))
            }
            DirtyWork::File(_) => None,
        });
        let mut sent = stream::iter(pages.into_iter().map(|dir| async move {
            self.conclude(bucket_index, Work::Inode(dir), self.flush_page(dir).await)
        }))
        .buffer_unordered(self.options.flush_parallel);
        while let Some(ended) = sent.next().await {
            outcome |= ended;
        }
        let mut tried = BTreeSet::new();
        loop {
            let deletes = self.deletes_due(bucket_index, &tried);
            if deletes.is_empty() {
                break;
            }
            tried.extend(deletes.iter().map(|(key, _)| key.clone()));
            let mut sent = stream::iter(deletes.into_iter().map(|(key, etag)| async move {
                let ended = self.delete(&key, etag.as_ref()).await;
                self.conclude(bucket_index, Work::Key(key), ended)
            }))
            .buffer_unordered(self.options.flush_parallel);
            while let Some(ended) = sent.next().await {
                outcome |= ended;
            }
        }
        if outcome.failed {
            return Err(());
        }
        self.trouble(&self.buckets.subject("bucket writes", bucket_index), None);
        Ok(outcome)
    }

    /// What is to be deleted that was not `tried`: directories come behind what is below them.
    fn deletes_due(
        &self,
        bucket_index: BucketIndex,
        tried: &BTreeSet<String>,
    ) -> Vec<(String, Option<ETag>)> {
        let state = self.replica.view();
        let due = state.backing().deletes().filter(|(key, _)| {
            self.buckets.bucket_of_key(key) == bucket_index && !state.backing().awaits_head(key)
        });
        let due = due.filter(|(key, _)| {
            !tried.contains(key) && !self.flusher.refused.is_paused(&Work::Key(key.clone()))
        });
        let due = due.map(|(key, etag)| (key, etag.map(ETag)));
        let (behind, first): (Vec<_>, Vec<_>) =
            due.partition(|(key, _)| key.ends_with('/') && state.backing().has_deletes_below(key));
        if first.is_empty() { behind } else { first }
    }

    fn due(
        &self,
        bucket_index: BucketIndex,
        root: Option<Ino>,
        all: bool,
        pick: impl Fn(DirtyWork) -> Option<Ino>,
    ) -> Vec<Ino> {
        let candidates: Vec<(Time, Ino)> = {
            let state = self.replica.view();
            let work = state.backing().dirty_work().filter(|(since, _)| all || self.is_old(*since));
            let work = work.filter_map(|(since, work)| Some((since, pick(work)?)));
            work.filter(|(_, ino)| !self.flusher.refused.is_paused(&Work::Inode(*ino))).collect()
        };
        let due = candidates
            .into_iter()
            .filter(|(_, ino)| root.is_none_or(|root| self.is_below(*ino, root)));
        let due = due.filter(|(_, ino)| self.bucket_of(*ino) == bucket_index);
        due.map(|(_, ino)| ino).collect()
    }

    /// Takes note of how one piece of work ended.
    fn conclude(
        &self,
        bucket_index: BucketIndex,
        work: Work,
        ended: Result<(), FlushError>,
    ) -> CycleOutcome {
        self.flusher.progress.raise();
        let what = match &work {
            Work::Inode(ino) => {
                self.flusher.uploaded_bytes.borrow_mut().remove(ino);
                self.name_of(*ino)
            }
            Work::Key(key) => key.clone(),
        };
        match ended {
            Ok(()) => {
                self.flusher.refused.done(&work);
                CycleOutcome { progressed: true, ..CycleOutcome::default() }
            }
            Err(FlushError::Later) => CycleOutcome { blocked: true, ..CycleOutcome::default() },
            Err(FlushError::Node(error)) => {
                tracing::warn!(what, %error, "could not be written to the bucket");
                CycleOutcome { failed: true, ..CycleOutcome::default() }
            }
            Err(FlushError::Bucket(error)) if error.is_silence() => {
                let what = format!(
                    "{} does not take what is written: {error}",
                    self.buckets.describe(bucket_index)
                );
                self.trouble(&self.buckets.subject("bucket writes", bucket_index), Some(what));
                CycleOutcome { failed: true, ..CycleOutcome::default() }
            }
            Err(FlushError::Bucket(error)) => {
                let done = match &work {
                    Work::Inode(_) => "written to",
                    Work::Key(_) => "deleted from",
                };
                let what = format!("{what} cannot be {done} the bucket: {error}");
                self.flusher.refused.add(
                    work,
                    what,
                    self.ports.clock.monotonic(),
                    self.ports.clock.wall(),
                );
                CycleOutcome { blocked: true, ..CycleOutcome::default() }
            }
        }
    }

    /// What the bucket has refused and is still to be done.
    pub(crate) fn refused_work(&self) -> &RefusedWork {
        let state = self.replica.view();
        self.flusher.refused.retain(|work| match work {
            Work::Inode(ino) => state.backing().is_dirty(*ino),
            Work::Key(key) => state.backing().is_to_be_deleted(key),
        });
        &self.flusher.refused
    }

    fn name_of(&self, ino: Ino) -> String {
        let state = self.replica.view();
        match state.namespace().path_of(ino) {
            Some(path) if path.is_empty() => "/".into(),
            Some(path) => path.iter().map(|name| format!("/{name}")).collect(),
            None => format!("inode {ino}"),
        }
    }
}
