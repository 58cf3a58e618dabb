//! Starting a node: whose volume it is, what the log says (O-70), what a power cut took back.

use crate::bucket::bucket_refusal;
use crate::bucket::{Answers, MAX_DAMAGED};
use crate::cache::Cache;
use crate::exposed::Exposures;
use crate::fetch::Downloads;
use crate::flush::Flusher;
use crate::forget::Forgetting;
use crate::fsck::Readable;
use crate::gone::Gone;
use crate::head::{Candidate, HeadError, TakeOver, Tenure};
use crate::holes::Holes;
use crate::identity::{self, IdentityError};
use crate::lend::Loans;
use crate::log::{self, Log, LogError, Recovery, SnapshotFrames, Start};
use crate::members;
use crate::metadata::Metadata;
use crate::paced::{Pace, PacedBucket};
use crate::packs;
use crate::quota::Quotas;
use crate::repeat::bytes_of;
use crate::replica::{Replica, refusal};
use crate::revalidate::Revalidation;
use crate::scrub::Scrub;
use crate::side_by_side::{Member, SideBySide};
use crate::stats::Counters;
use crate::store::Store;
use crate::{Node, Options, Planted, random_u128};
use ebb_core::backing::{keys, page_key};
use ebb_core::extent::{Unforced, touched_blocks};
use ebb_core::partition::{Effect, Inconsistent, Partition, SnapshotItem};
use ebb_format::identity::{Identity, Serves};
use ebb_format::segment::VolumeId;
use ebb_format::{FormatError, page, snapshot};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, CountedBucket, DiskError, ListRequest, Ports};
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum OpenError {
    #[error("the data directory cannot be used: {0}")]
    Disk(#[from] DiskError),
    #[error("the data directory cannot be used: {0}")]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The volume is to be joined at `address`. Of it `stranded` files, directories and deletes
    /// of an earlier time are in the data directory and nowhere else.
    #[error("the volume is served by {owner} at {address}")]
    Elsewhere { owner: String, address: String, cluster: ClusterId, stranded: u64 },
    #[error("the log of the data directory: {0}")]
    Log(#[from] LogError),
    #[error("{0}. Nothing was changed: `ebb fsck DATA_DIRECTORY` names these, and says what can be done")]
    Damaged(Box<Readable>),
    #[error("the log of the data directory holds what cannot be: {0}")]
    State(#[from] Inconsistent),
    #[error("the snapshot of the data directory holds what cannot be: {0}")]
    Snapshot(#[from] FormatError),
    #[error("no volume was ever served from this data directory")]
    Unused,
    #[error("the log of the data directory lacks the snapshot that it builds on")]
    NoSnapshot,
    #[error("the data directory holds another volume ({there}) than {backing}: give this one a data directory of its own")]
    OtherVolume { there: String, backing: String },
    #[error(
        "{backing} was served by another node since this data directory was last used, and {dirty} files and directories here had \
         not reached it by then. They cannot be written over what came after: keep the data directory, start with another one, \
         and see docs/operation.md on how to get at these files"
    )]
    Superseded { backing: String, dirty: u64 },
    #[error("two buckets are to be at {dir}: a directory has one")]
    TwiceAt { dir: MemberDir },
    #[error("the bucket of {dir}: {error}")]
    Member { dir: MemberDir, error: Box<HeadError> },
    #[error("{dir} cannot be the directory of a bucket: {root} has something there, which would no longer be shown")]
    NotFree { dir: MemberDir, root: String },
    #[error(
        "the data directory was last used with {before}, and {dirty} files and directories in it had not reached their buckets by \
         then: start once more as it was, and unmount, before other buckets take their place"
    )]
    Rearranged { before: String, dirty: u64 },
    #[error("{key} in the bucket cannot be read: {what}")]
    Root { key: String, what: String },
    #[error("{0}")]
    Request(#[from] RpcError),
}

impl Node {
    /// Opens the data directory, takes over the volume, and is ready to serve.
    pub async fn open(ports: Ports, bucket: Option<Rc<dyn Bucket>>, options: Options) -> Result<Rc<Node>, OpenError> {
        Node::open_over(ports, bucket, Vec::new(), options).await
    }

    /// [`Node::open`] over several buckets side by side: `root` has the volume's `.ebb/`, each
    /// member what is below its directory.
    pub async fn open_side_by_side(
        ports: Ports,
        root: Rc<dyn Bucket>,
        members: Vec<Member>,
        options: Options,
    ) -> Result<Rc<Node>, OpenError> {
        Node::open_over(ports, Some(root), members, options).await
    }

    async fn open_over(ports: Ports, root: Option<Rc<dyn Bucket>>, members: Vec<Member>, options: Options) -> Result<Rc<Node>, OpenError> {
        ports.disk.lock()?;
        let asked: Rc<RefCell<Tallies>> = Rc::default();
        let counted = |bucket| -> Rc<dyn Bucket> { Rc::new(CountedBucket::new(bucket, ports.clock.clone(), asked.clone())) };
        let pace = Rc::new(Pace::new(&ports.clock, options.download_bytes_per_sec, options.upload_bytes_per_sec));
        let root = root.map(counted);
        let mut members = members::in_order(members.into_iter().map(|member| member.within(counted)).collect())?;
        let mut identity = identity::load_or_create(&*ports.disk, &*ports.entropy).await?;
        if identity.serves.as_ref().is_some_and(|serves| serves.members != members::describe(&members)) {
            identity = rearrange(&ports, identity).await?;
        }
        if let Some(root) = root.as_deref().filter(|_| identity.serves.is_none() && !members.is_empty()) {
            members::check_free(root, &members).await?;
        }
        let Some(root) = root.clone().filter(|_| !options.read_only) else {
            let backing = Backing::of(root, None, members, asked, pace);
            return Node::recover(ports, backing, options, identity, None).await;
        };
        let candidate = Candidate {
            node: identity.node,
            owner: options.owner.clone(),
            address: options.address.clone(),
            term: options.head_term,
            members: members::describe(&members),
            rearrange: options.rearrange,
            restores: None,
        };
        let tenure = match Tenure::acquire(root.clone(), ports.clone(), candidate.clone(), options.take_over).await {
            Ok(tenure) => Rc::new(tenure),
            Err(HeadError::Held { owner, address, cluster, .. })
                if matches!(options.take_over, TakeOver::Join | TakeOver::Leave) && !address.is_empty() =>
            {
                let stranded = match identity.serves.as_ref().filter(|before| before.cluster == cluster) {
                    Some(before) => unwritten(&ports, before).await?,
                    None => 0,
                };
                return Err(OpenError::Elsewhere { owner, address, cluster, stranded });
            }
            Err(refused) => return Err(refused.into()),
        };
        let held = tenure.clone();
        let (has_nothing, others) = (identity.serves.is_none(), RefCell::new(None));
        let opening = async {
            if let Err(refused) = members::hold(&mut members, &ports, &candidate, options.take_over, &root.describe()).await {
                give_back(&tenure).await;
                return Err(refused);
            }
            let backing = Backing::of(Some(root), Some(tenure.clone()), members, asked.clone(), pace);
            let members = backing.members.clone();
            others.replace(Some(members.clone()));
            let recovering = Node::recover(ports.clone(), backing, options, identity, Some(tenure));
            match select(pin!(recovering), pin!(members::keep(&members))).await {
                Either::Left((node, _)) => node,
                Either::Right((never, _)) => match never {},
            }
        };
        // Recovery may last longer than the head's term, and so may other buckets.
        let opened = match select(pin!(opening), pin!(held.keep())).await {
            Either::Left((node, _)) => node,
            Either::Right((never, _)) => match never {},
        };
        // Nothing is here that the next one should wait for.
        if let (Err(_), true, Some(members)) = (&opened, has_nothing, others.take()) {
            give_back(&held).await;
            members::release(&members).await;
        }
        opened
    }

    /// Makes a node of what the data directory holds, if that may go on.
    async fn recover(
        ports: Ports,
        backing: Backing,
        mut options: Options,
        identity: Identity,
        tenure: Option<Rc<Tenure>>,
    ) -> Result<Rc<Node>, OpenError> {
        let serves = serves(&ports, &backing, tenure.as_deref(), &identity);
        let Backing { bucket, members, asked } = backing;
        let known = identity.serves.as_ref();
        if let Err(refused) = claim(&ports, &identity, &serves, tenure.is_some()).await {
            if let Some(tenure) = tenure {
                give_back(&tenure).await;
                members::release(&members).await;
            }
            return Err(refused);
        }
        if known.is_none_or(|known| known.incarnation != serves.incarnation) {
            wipe(&ports).await?;
        }
        if known != Some(&serves) {
            identity::store(&*ports.disk, &Identity { node: identity.node, serves: Some(serves.clone()) }).await?;
        }

        let (log, recovery) = match recover_log(&ports, &serves, &options).await {
            Err(damage @ LogError::Corrupt { .. }) => {
                return Err(OpenError::Damaged(Box::new(Readable::of(&ports, &serves, damage).await)));
            }
            recovered => recovered?,
        };
        let recovered = log.written();
        // Nothing was ever acknowledged here: the first snapshot comes before that.
        let fresh = recovery.is_empty();
        let snapshot_at = recovery.snapshot.as_ref().map_or(LogIndex(0), |snapshot| snapshot.header().index);
        let mut missing_root = None;
        let Replayed { partition, unsynced, kept, doubtful, unforced, holes, cuts } = match fresh {
            true => {
                let (partition, root) = empty(&ports, bucket.as_deref(), &serves, &options).await?;
                missing_root = root;
                Replayed::of(partition)
            }
            false => replay(recovery).await?,
        };
        let store = Store::open(ports.disk.clone()).await?;
        if let Some((last, _)) = partition.extents().packs().last() {
            store.packs.begin_after(last);
        }
        let space = ports.disk.space().await?;
        let object_bytes = bucket.as_ref().map_or(u64::MAX, |bucket| bucket.capabilities().max_object_bytes);
        let max_file_bytes = MAX_FILE_BYTES.min(ports.disk.longest_file().await?).min(object_bytes);
        fit_cache(&mut options, space.free_bytes + partition.extents().resident_bytes());
        let node = Rc::new(Node {
            cluster: serves.cluster,
            incarnation: serves.incarnation,
            replica: Replica::new(partition, log, ports.spawn.clone()),
            store,
            tenure,
            bucket,
            flusher: Flusher::new(members.len() + 1, options.upload_buffer_bytes()),
            downloads: Downloads::new(members.len() + 1, options.download_buffer_bytes(), &ports.clock),
            answers: (0..=members.len()).map(|_| Answers::default()).collect(),
            members,
            attachments: Default::default(),
            advisory: Default::default(),
            locks: Default::default(),
            loads: Default::default(),
            listings: Default::default(),
            pages: Default::default(),
            traversals: Default::default(),
            revalidation: Revalidation::default(),
            gone: Gone::default(),
            forgetting: Forgetting::default(),
            metadata: Metadata::default(),
            cache: Cache::new(&options),
            holes: Holes::default(),
            loans: Loans::default(),
            exposures: Exposures::default(),
            scrub: Scrub::default(),
            quotas: Quotas::default(),
            counters: Counters::new(ports.clock.monotonic(), asked),
            under_way: Default::default(),
            troubles: Default::default(),
            run: ports.entropy.next_u64(),
            max_file_bytes,
            recovered,
            unforced: RefCell::new(unforced),
            safe: Cell::new(LogIndex(0)),
            found: Cell::new(LogIndex(0)),
            snapshot_at: Cell::new(snapshot_at),
            stopping: Default::default(),
            ports,
            options,
        });
        node.trouble("root", missing_root);
        match fresh {
            true => node.write_snapshot().await?,
            // The run before may have ended between giving it its name and making that durable.
            false => node.ports.disk.sync_dir(log::SNAPSHOT_DIR).await?,
        }
        node.store.not_forced(unsynced.iter().flat_map(|(ino, runs)| runs.iter().map(|run| (node.place(*ino), run))));
        node.store.not_forced_cuts(cuts.into_iter().map(|(ino, len)| (node.place(ino), len)));
        node.dirty_again(kept).await?;
        node.doubt_void_blocks();
        // What is removed or cut now must not come back with the next power cut.
        node.force_log().await?;
        node.drop_strays().await?;
        node.store.sync_names().await?;
        node.make_holes(holes).await?;
        node.resume_sessions().await?;
        let late = match node.tenure {
            Some(_) => node.settle_uploads().await?,
            None => Vec::new(),
        };
        node.doubt(doubtful).await?;
        node.find_missing().await?;
        node.fill_cache_order();
        node.start(late);
        Ok(node)
    }

    /// Bytes that were written and not forced may be anything since a power cut. What an upload is found to have made
    /// clean is among them and is fetched again. Where nothing of them is left there are zeros: what is missing
    /// later was taken from here by something else.
    async fn doubt(&self, doubtful: Blocks) -> Result<(), RpcError> {
        for (ino, ranges) in doubtful {
            for blocks in ranges {
                self.store.fill_up(&self.place(ino), &blocks).await.map_err(|error| self.disk_failed(ino, error))?;
                let Range { start, end } = blocks;
                self.commit(Command::Extent(ExtentCommand::Unsynced { ino, first: start, count: end - start })).await?;
            }
        }
        Ok(())
    }

    /// A sync of what the process before has written may have failed, of which this one hears nothing. Of an exposed file
    /// nobody but who stores into it may write anything.
    async fn dirty_again(&self, kept: Blocks) -> Result<(), RpcError> {
        let mut written = 0u64;
        for (ino, ranges) in kept.into_iter().filter(|(ino, _)| !self.replica.view().extents().is_exposed(*ino)) {
            let dirty = |blocks: Range<u64>| self.replica.view().extents().dirty_runs(ino, blocks);
            for block in ranges.into_iter().flat_map(dirty).flatten() {
                written += 1;
                if written.is_multiple_of(WRITTEN_IN_A_ROW) {
                    // Whoever keeps the volume meanwhile has his turn.
                    self.ports.clock.sleep(Duration::from_micros(1)).await;
                }
                match self.store.dirty_again(&self.place(ino), block).await {
                    // A full disk is no reason not to start.
                    Err(DiskError::NoSpace) => tracing::warn!(%ino, block, "no room to write once more what is not forced"),
                    again => again.map_err(|error| self.disk_failed(ino, error))?,
                }
            }
        }
        Ok(())
    }

    /// Of a block without a checksum nobody could tell later that it is gone. Before anybody writes beside it, it gets
    /// one that zeros do not have.
    async fn find_missing(&self) -> Result<(), RpcError> {
        let mut void = BTreeMap::<Ino, Vec<u64>>::new();
        let version = {
            let state = self.replica.view();
            let unexposed = state.extents().void_blocks().filter(|(ino, _)| !state.extents().is_exposed(*ino));
            unexposed.for_each(|(ino, block)| void.entry(ino).or_default().push(block));
            state.version()
        };
        let damaged = !ebb_format::crc32c(&[0; BLOCK_BYTES as usize]);
        for (ino, blocks) in void {
            let missing = self.store.missing(&self.place(ino), blocks.into_iter()).await;
            let sums: Vec<(u64, u32)> =
                missing.map_err(|error| self.disk_failed(ino, error))?.into_iter().map(|block| (block, damaged)).collect();
            if !sums.is_empty() {
                tracing::error!(%ino, blocks = sums.len(), "bytes that the bucket does not have are gone from the node's disk");
                self.sum_unless_exposed(ino, version, &sums).await?;
            }
        }
        Ok(())
    }

    /// A write into a block that has no checksum is in the store file before anything of it is in
    /// the log. Where the process died in between, readers see what nobody else knows of.
    fn doubt_void_blocks(&self) {
        let state = self.replica.view();
        let blocks: Vec<(Ino, Range<u64>)> = state.extents().void_blocks().map(|(ino, block)| (ino, block..block + 1)).collect();
        self.store.not_forced(blocks.iter().map(|(ino, block)| (self.place(*ino), block)));
    }

    /// Store files of inodes that are gone or elsewhere, and bytes beyond the end of a file, are
    /// what a crash between a command and its effects leaves, or one between bytes and their command (O-80).
    async fn drop_strays(&self) -> Result<(), DiskError> {
        for ino in self.store.list() {
            let place = self.place(ino);
            let is_known = self.replica.view().namespace().inode(ino).is_some();
            match place.packed {
                _ if !is_known => self.store.drop_file(ino).await?,
                Some(_) => self.store.drop_own(ino).await?,
                None => self.store.cut(&place, place.size_bytes).await?,
            }
        }
        for pack in self.store.packs.found.clone() {
            let used: Vec<PackRange> = self.replica.view().extents().packed_in(pack).map(|(range, _)| range).collect();
            if used.is_empty() {
                self.store.drop_pack(pack).await?;
                continue;
            }
            for gap in packs::gaps(pack, &used) {
                self.store.free(gap).await?;
            }
        }
        // At once: a run that is killed before it forces them leaves no trace of its cuts.
        self.store.sync_cuts().await
    }

    /// Holes that a crash has kept from the store file, as far as nothing was written there
    /// since. Forced before anybody sees them: what was there must not come back later.
    async fn make_holes(&self, holes: Vec<(Ino, Range<u64>)>) -> Result<(), DiskError> {
        let mut made = BTreeSet::new();
        for (ino, blocks) in holes {
            for block in blocks {
                if self.replica.view().extents().block(ino, block).is_none() {
                    self.store.hole(&self.place(ino), block * BLOCK_BYTES, BLOCK_BYTES).await?;
                    made.insert(ino);
                }
            }
        }
        for ino in made {
            self.store.sync(SyncScope::File(ino)).await?;
        }
        Ok(())
    }

    /// Clients of before the restart have their whole term to come back, unless they lived
    /// in the node's own process, which only one can have outlived.
    async fn resume_sessions(&self) -> Result<(), RpcError> {
        let now = self.ports.clock.monotonic();
        let sessions: Vec<SessionId> = self.replica.view().sessions().iter().map(|(session, _)| session).collect();
        for session in sessions {
            if self.options.embedded && self.options.heir_of != Some(session) {
                self.commit(Command::SessionClose { session }).await?;
            } else {
                self.attachments.await_return(session, now);
            }
        }
        Ok(())
    }

    /// Writes the state as a snapshot, so that the log before it can go.
    pub(crate) async fn write_snapshot(&self) -> Result<(), RpcError> {
        let (at, version, state, holes) = {
            let state = self.replica.view();
            (state.applied(), state.version(), state.clone(), self.holes.made())
        };
        // Whatever the snapshot speaks of is in the store files and forced before it counts.
        holes.await;
        // The first one speaks of nothing, and comes before all that is logged: no log stands without one.
        if at > LogIndex(0) {
            self.force(SyncScope::All).await?;
        }
        let kept = |item: &SnapshotItem| !(self.has(Planted::LostSession) && matches!(item, SnapshotItem::Session { .. }));
        self.replica.log().snapshot(at, version, frames(state.items().filter(kept))).await.map_err(refusal)?;
        self.snapshot_at.set(at);
        Ok(())
    }
}

/// Blocks that a start writes once more before others have their turn.
const WRITTEN_IN_A_ROW: u64 = 256;

/// Items of one frame of a snapshot.
const ITEMS_PER_FRAME: usize = 512;

pub(crate) fn frames(items: impl Iterator<Item = SnapshotItem>) -> impl Iterator<Item = Vec<u8>> {
    let mut items = items.peekable();
    let mut cut_off = Vec::<Vec<SnapshotItem>>::new();
    std::iter::from_fn(move || {
        let mut frame = match cut_off.pop() {
            Some(frame) => frame,
            None => {
                items.peek()?;
                items.by_ref().take(ITEMS_PER_FRAME).collect()
            }
        };
        loop {
            let content = snapshot::content_of(&frame).expect("items of a partition have an encoding");
            if content.len() <= snapshot::MAX_FRAME_BYTES || frame.len() == 1 {
                return Some(content);
            }
            // Extended attributes and links make some items long.
            cut_off.push(frame.split_off(frame.len() / 2));
        }
    })
}

/// Blocks by file.
pub(crate) type Blocks = BTreeMap<Ino, Vec<Range<u64>>>;

/// What the volume lives in.
struct Backing {
    /// All of them as one.
    bucket: Option<Rc<dyn Bucket>>,
    members: Rc<[Member]>,
    /// Requests to all of them.
    asked: Rc<RefCell<Tallies>>,
}

impl Backing {
    /// The rights to write to them are held past the `pace`.
    fn of(
        root: Option<Rc<dyn Bucket>>,
        tenure: Option<Rc<Tenure>>,
        members: Vec<Member>,
        asked: Rc<RefCell<Tallies>>,
        pace: Rc<Pace>,
    ) -> Backing {
        let paced = |bucket, tenure| -> Rc<dyn Bucket> { Rc::new(PacedBucket::new(bucket, pace.clone(), tenure)) };
        let of_member = |member: Member| {
            let tenure = member.tenure().cloned();
            member.within(|bucket| paced(bucket, tenure))
        };
        let members: Rc<[Member]> = members.into_iter().map(of_member).collect();
        let root = root.map(|root| paced(root, tenure));
        Backing { bucket: root.map(|root| SideBySide::over(root, members.clone())), members, asked }
    }
}

pub(crate) async fn give_back(tenure: &Tenure) {
    if let Err(error) = tenure.release().await {
        tracing::warn!(%error, "the volume could not be given back");
    }
}

/// The data directory was used with other buckets side by side than now. What is in it says
/// of keys what is no longer so: it starts anew, as another node, unless something in it
/// never reached the bucket.
async fn rearrange(ports: &Ports, identity: Identity) -> Result<Identity, OpenError> {
    let Some(before) = &identity.serves else { return Ok(identity) };
    let dirty = unwritten(ports, before).await?;
    if dirty > 0 {
        let mut with = before.members.join(", ");
        if with.is_empty() {
            with = format!("{} alone", before.backing);
        }
        return Err(OpenError::Rearranged { before: with, dirty });
    }
    let fresh = Identity { node: random_u128(&*ports.entropy), serves: None };
    identity::store(&*ports.disk, &fresh).await?;
    Ok(fresh)
}

fn serves(ports: &Ports, backing: &Backing, tenure: Option<&Tenure>, identity: &Identity) -> Serves {
    let Backing { bucket, members, .. } = backing;
    let members = members::describe(members);
    let backing = bucket.as_ref().map_or_else(|| "no bucket".into(), |bucket| bucket.describe());
    match (tenure, &identity.serves) {
        (Some(tenure), _) => Serves { cluster: tenure.cluster(), incarnation: tenure.incarnation(), backing, members },
        (None, Some(known)) => Serves { backing, members, ..known.clone() },
        // Who only reads gives out ids that no page of the volume has.
        (None, None) => {
            let incarnation = if bucket.is_some() { Incarnation(u16::MAX) } else { Incarnation(1) };
            Serves { cluster: ClusterId(random_u128(&*ports.entropy)), incarnation, backing, members }
        }
    }
}

async fn recover_log(ports: &Ports, serves: &Serves, options: &Options) -> Result<(Log, Recovery), LogError> {
    let options = log::Options {
        volume: VolumeId(serves.cluster.0),
        incarnation: serves.incarnation,
        segment_bytes: options.segment_bytes,
        late_records: options.has(Planted::LateRecord),
    };
    let (log, recovery) = Log::recover(ports.disk.clone(), ports.spawn.clone(), options).await?;
    if let Some(damage) = &recovery.damaged {
        tracing::error!(%damage, "a part of the log or a snapshot is damaged; another stands in for it");
    }
    if let Start::PowerCut { cut_after, dropped } = recovery.start {
        tracing::warn!(cut_after = cut_after.0, dropped, "the machine went down: what had not been forced is gone");
    }
    Ok((log, recovery))
}

/// Whether what is in the data directory may go on as `serves`.
async fn claim(ports: &Ports, identity: &Identity, serves: &Serves, owns: bool) -> Result<(), OpenError> {
    let Some(before) = &identity.serves else { return Ok(()) };
    if before.cluster != serves.cluster || !owns && before.backing != serves.backing {
        return Err(OpenError::OtherVolume { there: before.backing.clone(), backing: serves.backing.clone() });
    }
    if before.incarnation != serves.incarnation { supersede(ports, identity.node, before, serves).await } else { Ok(()) }
}

/// The volume was in other hands since. What is here is a cache that can be dropped,
/// unless something in it never reached the bucket.
async fn supersede(ports: &Ports, node: u128, before: &Serves, now: &Serves) -> Result<(), OpenError> {
    let dirty = unwritten(ports, before).await?;
    if dirty > 0 {
        return Err(OpenError::Superseded { backing: now.backing.clone(), dirty });
    }
    tracing::info!(backing = now.backing, "another node served the volume since: the cache here is dropped");
    identity::store(&*ports.disk, &Identity { node, serves: None }).await?;
    Ok(())
}

/// Files, directories and deletes in the data directory that have not reached the bucket.
async fn unwritten(ports: &Ports, serves: &Serves) -> Result<u64, OpenError> {
    let recovery = Log::read(ports.disk.clone(), VolumeId(serves.cluster.0)).await?;
    if recovery.is_empty() {
        return Ok(0);
    }
    let Replayed { partition, .. } = replay(recovery).await?;
    let dirt = partition.backing().dirt();
    // What was stored into exposed files nobody has looked for.
    let exposed = partition.extents().exposed().count() as u64;
    // Links, special files and attributes are nowhere but in pages.
    Ok(dirt.files + dirt.pages + dirt.deletes + exposed)
}

/// Removes what is left of a volume that the data directory no longer serves.
async fn wipe(ports: &Ports) -> Result<(), DiskError> {
    for dir in ["log", "snapshot", "store", "packs"] {
        let names = ports.disk.list(dir).await?;
        for name in &names {
            ports.disk.remove(&format!("{dir}/{name}")).await?;
        }
        if !names.is_empty() {
            ports.disk.sync_dir(dir).await?;
        }
    }
    Ok(())
}

/// The state of a volume that this node has not served before, and what is wrong with that.
async fn empty(
    ports: &Ports,
    bucket: Option<&dyn Bucket>,
    serves: &Serves,
    options: &Options,
) -> Result<(Partition, Option<String>), OpenError> {
    let now = ports.clock.wall();
    let default = InstalledRecord {
        mode: 0o755,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        xattrs: Vec::new(),
        links: Vec::new(),
    };
    let Some(bucket) = bucket else { return Ok((Partition::new(serves.incarnation, default, false), None)) };
    let key = page_key(Ino::ROOT);
    let mut attempt = 1;
    loop {
        let object = match bucket.get(&key, None, None).await {
            Ok(object) => object,
            Err(BucketError::NotFound { .. }) => {
                let missing = has_pages(bucket).await.map_err(|error| OpenError::Request(bucket_refusal(&error)))?.then(|| {
                    format!(
                        "{key} is not in the bucket, where pages of other directories are: it was removed, or never written. Attributes, \
                         links and special files of the root are not known, nor what has been renamed into it"
                    )
                });
                missing.iter().for_each(|what| tracing::error!("{what}"));
                return Ok((Partition::new(serves.incarnation, default, true), missing));
            }
            Err(error) => {
                tracing::error!(%error, "the root of the volume cannot be read");
                return Err(OpenError::Request(bucket_refusal(&error)));
            }
        };
        match page::decode(&object.body) {
            Ok(head) => return Ok((Partition::new(serves.incarnation, head.page.record, true), None)),
            Err(error) if attempt == MAX_DAMAGED => return Err(OpenError::Root { key, what: error.to_string() }),
            Err(error) => tracing::warn!(attempt, "{key} came from the bucket as it was not written: {error}"),
        }
        attempt += 1;
    }
}

async fn has_pages(bucket: &dyn Bucket) -> Result<bool, BucketError> {
    let listed = bucket.list(ListRequest { prefix: keys::pages_prefix(), by_directory: false, after: None, limit: 1 }).await?;
    Ok(!listed.entries.is_empty())
}

/// What the log holds, and what may not be as it says.
pub(crate) struct Replayed {
    pub partition: Partition,
    /// That no later sync covers.
    unsynced: Blocks,
    /// Those of them that were written since the machine was last down.
    kept: Blocks,
    /// Those of them that a power cut may have taken back.
    pub doubtful: Blocks,
    unforced: Unforced,
    /// Blocks that became holes since the snapshot.
    holes: Vec<(Ino, Range<u64>)>,
    /// Files that were cut since the snapshot, and where.
    cuts: BTreeMap<Ino, u64>,
}

impl Replayed {
    /// Of a log in which nothing is.
    fn of(partition: Partition) -> Replayed {
        Replayed {
            partition,
            unsynced: Blocks::new(),
            kept: Blocks::new(),
            doubtful: Blocks::new(),
            unforced: Unforced::default(),
            holes: Vec::new(),
            cuts: BTreeMap::new(),
        }
    }
}

pub(crate) async fn replay(mut recovery: Recovery) -> Result<Replayed, OpenError> {
    let Some(snapshot) = recovery.snapshot else { return Err(OpenError::NoSnapshot) };
    let mut partition = Partition::from_items(items(snapshot).await?)?;
    let mut unforced = Unforced::default();
    let mut holes = Vec::new();
    let mut cuts = BTreeMap::new();
    let mut unsynced: BTreeMap<Ino, Vec<Unsynced>> = BTreeMap::new();
    while let Some((index, command)) = recovery.commands.next().await? {
        let is_doubtful = !recovery.commands.is_of_this_boot();
        let written = |blocks| Unsynced { index, blocks, is_fetched: false, is_doubtful };
        match &command {
            Command::Client {
                mutation: Mutation::Write { ino, offset, len_bytes, .. } | Mutation::WriteWhole { ino, offset, len_bytes, .. },
                ..
            }
            | Command::Repeated {
                mutation: Mutation::Write { ino, offset, len_bytes, .. } | Mutation::WriteWhole { ino, offset, len_bytes, .. },
                ..
            } => {
                unsynced.entry(*ino).or_default().push(written(touched_blocks(*offset, *len_bytes)));
            }
            Command::Client { mutation: Mutation::Fallocate { ino, edges, .. }, .. }
            | Command::Repeated { mutation: Mutation::Fallocate { ino, edges, .. }, .. } => {
                let blocks = edges.iter().map(|block| written(*block..block.saturating_add(1)));
                unsynced.entry(*ino).or_default().extend(blocks);
            }
            Command::Extent(ExtentCommand::Present { ino, first, sums, .. }) => {
                let blocks = *first..*first + sums.len() as u64;
                unsynced.entry(*ino).or_default().push(Unsynced { is_fetched: true, ..written(blocks) });
            }
            Command::Stored { ino, first, sums, .. } => {
                unsynced.entry(*ino).or_default().push(written(*first..*first + sums.len() as u64));
            }
            // What was copied there.
            Command::Extent(ExtentCommand::Packed { ino, .. }) => {
                unsynced.entry(*ino).or_default().push(written(touched_blocks(0, PACKED_BYTES)));
            }
            // Doubted once, or about to be written when the node went down.
            Command::Extent(ExtentCommand::Unsynced { ino, first, count }) => {
                unsynced.entry(*ino).or_default().push(written(*first..first.saturating_add(*count)));
            }
            // Nobody is to bring back what was given up.
            Command::Backing(BackingCommand::RolledBack { ino, .. }) => {
                unsynced.remove(ino);
                unforced.gone(*ino);
            }
            // Whatever is in its holes by now is not what was there before.
            Command::Extent(ExtentCommand::Exposed { ino, .. }) => holes.retain(|(other, _)| other != ino),
            Command::Extent(ExtentCommand::Synced { scope, upto }) => {
                let only = scope.only();
                unforced.synced(only, *upto);
                for (_, blocks) in unsynced.iter_mut().filter(|(ino, _)| only.is_none_or(|only| only == **ino)) {
                    blocks.retain(|blocks| blocks.index > *upto || *scope == SyncScope::Written && blocks.is_fetched);
                }
                unsynced.retain(|_, blocks| !blocks.is_empty());
            }
            _ => {}
        }
        let applied = partition.apply(index, &command);
        for effect in &applied.effects {
            match effect.clone() {
                Effect::Drop { ino } => {
                    unsynced.remove(&ino);
                    unforced.gone(ino);
                    cuts.remove(&ino);
                }
                Effect::Cut { ino, len_bytes } => {
                    // Of the block in which it is cut the rest is zeros.
                    if !len_bytes.is_multiple_of(BLOCK_BYTES) {
                        let block = len_bytes / BLOCK_BYTES;
                        unsynced.entry(ino).or_default().push(written(block..block + 1));
                    }
                    unforced.superseded(ino, len_bytes..u64::MAX);
                    cuts.entry(ino).and_modify(|cut: &mut u64| *cut = len_bytes.min(*cut)).or_insert(len_bytes);
                }
                Effect::Punch { ino, blocks } => holes.push((ino, blocks)),
                // The gaps between what is in use are found by what is.
                Effect::Vacate { .. } => {}
            }
        }
        if let Command::Backing(BackingCommand::Forget { inos, .. }) = &command {
            for ino in inos.iter().filter(|ino| partition.namespace().inode(**ino).is_none()) {
                unsynced.remove(ino);
                unforced.gone(*ino);
                cuts.remove(ino);
            }
        }
        if let (Command::Client { stamp, mutation, .. } | Command::Repeated { stamp, mutation, .. }, Some(Ok(_))) =
            (&command, &applied.answer)
            && let Some((ino, bytes)) = bytes_of(mutation)
        {
            unforced.written(ino, bytes, stamp.version, index);
        }
    }
    let doubtful = blocks_of(&unsynced, |one| one.is_doubtful || one.is_fetched);
    let kept = blocks_of(&unsynced, |one| !one.is_doubtful && !one.is_fetched);
    Ok(Replayed { partition, unsynced: blocks_of(&unsynced, |_| true), kept, doubtful, unforced, holes, cuts })
}

/// Blocks that the command at `index` speaks of.
struct Unsynced {
    index: LogIndex,
    blocks: Range<u64>,
    is_fetched: bool,
    is_doubtful: bool,
}

fn blocks_of(unsynced: &BTreeMap<Ino, Vec<Unsynced>>, which: impl Fn(&Unsynced) -> bool) -> Blocks {
    let of_file = |all: &Vec<Unsynced>| joined(all.iter().filter(|one| which(one)).map(|one| one.blocks.clone()).collect());
    unsynced.iter().map(|(ino, all)| (*ino, of_file(all))).filter(|(_, blocks)| !blocks.is_empty()).collect()
}

/// The same blocks, each once: what is doubted is logged, and doubted again by the next start.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

pub(crate) async fn items(mut snapshot: SnapshotFrames) -> Result<Vec<SnapshotItem>, OpenError> {
    let mut items = Vec::new();
    while let Some(frame) = snapshot.next().await? {
        items.append(&mut snapshot::value_of::<Vec<SnapshotItem>>(&frame)?);
    }
    Ok(items)
}

/// A cache as large as the disk would starve everything else on it: a tenth stays free.
fn fit_cache(options: &mut Options, available_bytes: u64) {
    options.cache_bytes = options.cache_bytes.min(available_bytes / 10 * 9);
    options.dirty_bytes = options.dirty_bytes.min(options.cache_bytes / 10 * 8);
}
