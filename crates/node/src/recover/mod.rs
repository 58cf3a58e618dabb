//! Starts a node: finds its volume, replays the log (O-70), and repairs the losses of a power cut.

mod ownership;
mod replay;
mod root;
mod verify_unsynced;

pub use ownership::Difference;
pub(crate) use ownership::{
    VolumeThere, count_unwritten, give_back, is_cache, other_volume, unwritten, unwritten_0_1_0,
};
pub(crate) use replay::{GroupRecords, Replayed, Replaying, records, replay};
pub(crate) use root::bare_root;
pub(crate) use verify_unsynced::{drop_strays, make_holes};

use crate::admin::Instruments;
use crate::admin::fsck::Readable;
use crate::buckets::head::{Candidate, Continues, HeadError, HeadLease, TakeOver};
use crate::buckets::members;
use crate::buckets::rate_limit::RateLimits;
use crate::buckets::side_by_side::Member;
use crate::clients::barrier::UnforcedWriters;
use crate::clients::leases::Leases;
use crate::data::Data;
use crate::flush::Flusher;
use crate::identity::{self, IdentityError};
use crate::names::Names;
use crate::replica::Replica;
use crate::replication::Host;
use crate::{Node, Options, Run};
use ebb_core::extent::Unforced;
use ebb_core::partition::Inconsistent;
use ebb_core::state::State;
use ebb_format::FormatError;
use ebb_format::identity::{Identity, Serves};
use ebb_format::record::GroupId;
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, LogError, Recovery, Start};
use ebb_model::*;
use ebb_ports::{Bucket, CountedBucket, DiskError, Ports};
use ebb_store::Store;
use futures_util::future::{Either, select};
pub(crate) use ownership::Buckets;
use ownership::{claim, drop_cache, drop_old, expect_current, rearrange, serves, wipe};
use root::empty;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use thiserror::Error;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum OpenError {
    #[error("the data directory cannot be used: {0}")]
    Disk(#[from] DiskError),
    #[error("the data directory cannot be used: {0}")]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The volume can be joined at `address`. `stranded` files, directories and deletes of it, of
    /// an earlier time, are in the data directory and nowhere else.
    #[error("the volume is served by {owner} at {address}")]
    Elsewhere { owner: String, address: String, cluster: ClusterId, stranded: u64 },
    #[error("the log of the data directory: {0}")]
    Log(#[from] LogError),
    #[error(
        "{0}. Nothing was changed: `ebb fsck DATA_DIRECTORY` names these, and says what can be done"
    )]
    Damaged(Box<Readable>),
    #[error("the log of the data directory holds what cannot be: {0}")]
    State(#[from] Inconsistent),
    #[error("the snapshot of the data directory holds what cannot be: {0}")]
    Snapshot(#[from] FormatError),
    #[error("no volume was ever served from this data directory")]
    Unused,
    #[error("the log of the data directory lacks the snapshot that it builds on")]
    NoSnapshot,
    #[error(
        "the data directory holds another volume: {0}. Give this one a data directory of its own \
         (--data), or name the storage and endpoint that this directory is of; `ebb fsck` of it \
         says whether it has anything that its bucket lacks"
    )]
    OtherVolume(Box<Difference>),
    #[error(
        "{backing} was served by another node since this data directory was last used, and {dirty} \
         files and directories here had \
         not reached it by then. They cannot be written over what came after: keep the data \
         directory, start with another one, \
         and see docs/operation.md on how to get at these files"
    )]
    Superseded { backing: String, dirty: u64 },
    #[error("two buckets are to be at {dir}: a directory has one")]
    TwiceAt { dir: MemberDir },
    #[error("the bucket of {dir}: {error}")]
    Member { dir: MemberDir, error: Box<HeadError> },
    #[error(
        "{dir} cannot be the directory of a bucket: {root} has something there, which would no \
         longer be shown"
    )]
    NotFree { dir: MemberDir, root: String },
    #[error(
        "the data directory was last used with {before}, and {dirty} files and directories in it \
         had not reached their buckets by \
         then: start once more as it was, and unmount, before other buckets take their place"
    )]
    Rearranged { before: String, dirty: u64 },
    #[error(
        "ebb 0.1.0 wrote the data directory, and {dirty} files and directories in it have not \
         reached the bucket: mount it once more with ebb 0.1.0, and unmount it there"
    )]
    Outdated { dirty: u64 },
    #[error(
        "ebb 0.1.0 wrote the data directory, and mounts still use it: unmount them before this \
         release serves the volume"
    )]
    OutdatedInUse,
    #[error(
        "the volume cannot be joined by way of {address}: {why}. Name a node that serves it, which \
         other machines can reach"
    )]
    NotJoined { address: String, why: String },
    #[error("the data directory cannot go on as a replica of its volume: {what}")]
    Replica { what: String },
    #[error("{key} in the bucket cannot be read: {what}")]
    Root { key: String, what: String },
    #[error("{0}")]
    Request(#[from] RpcError),
}

impl Node {
    /// Opens the data directory, takes over the volume, and is ready to serve.
    pub async fn open(
        ports: Ports,
        bucket: Option<Rc<dyn Bucket>>,
        options: Options,
    ) -> Result<Rc<Node>, OpenError> {
        Node::open_over(ports, bucket, Vec::new(), options).await
    }

    /// [`Node::open`] over several buckets side by side: `root` has the volume's `.ebb/`, each
    /// member the objects below its directory.
    pub async fn open_side_by_side(
        ports: Ports,
        root: Rc<dyn Bucket>,
        members: Vec<Member>,
        options: Options,
    ) -> Result<Rc<Node>, OpenError> {
        Node::open_over(ports, Some(root), members, options).await
    }

    pub(crate) async fn open_over(
        ports: Ports,
        root: Option<Rc<dyn Bucket>>,
        members: Vec<Member>,
        options: Options,
    ) -> Result<Rc<Node>, OpenError> {
        ports.disk.lock()?;
        let asked: Rc<RefCell<Tallies>> = Rc::default();
        let counted = |bucket| -> Rc<dyn Bucket> {
            Rc::new(CountedBucket::new(bucket, ports.clock.clone(), asked.clone()))
        };
        let rate_limits = Rc::new(RateLimits::new(
            &ports.clock,
            options.download_bytes_per_sec,
            options.upload_bytes_per_sec,
        ));
        let root = root.map(counted);
        let mut members =
            members::in_order(members.into_iter().map(|member| member.within(counted)).collect())?;
        let mut identity = identity::load_or_create(&*ports.disk, &*ports.entropy).await?;
        if identity.is_of_0_1_0 {
            identity = drop_old(&ports, identity, &options).await?;
        }
        if identity
            .serves
            .as_ref()
            .is_some_and(|serves| serves.members != members::describe(&members))
        {
            identity = rearrange(&ports, identity).await?;
        }
        let has_nothing =
            identity.serves.as_ref().is_none_or(|serves| !options.read_only && is_cache(serves));
        if let Some(root) = root.as_deref().filter(|_| has_nothing && !members.is_empty()) {
            members::check_free(&ports, options.bucket_timeout, root, &members).await?;
        }
        let Some(root) = root.clone().filter(|_| !options.read_only) else {
            let backing = Buckets::of(root, None, members, asked, rate_limits);
            return Node::recover(ports, backing, options, identity, None).await;
        };
        expect_current(&ports, &*root, &identity, &options).await?;
        let candidate = Candidate {
            node: identity.node,
            owner: options.owner.clone(),
            address: options.address.clone(),
            term: options.head_term,
            patience: options.bucket_timeout,
            members: members::describe(&members),
            rearrange: options.rearrange,
            restores: None,
            continues: match identity.serves.as_ref().filter(|serves| !is_cache(serves)) {
                Some(serves) => Continues::State(serves.incarnation),
                None => Continues::Nothing,
            },
        };
        let head_lease = match HeadLease::acquire(
            root.clone(),
            ports.clone(),
            candidate.clone(),
            options.take_over,
        )
        .await
        {
            Ok(head_lease) => Rc::new(head_lease),
            Err(HeadError::Held { owner, address, cluster, .. })
                if matches!(options.take_over, TakeOver::Join | TakeOver::Leave)
                    && !address.is_empty() =>
            {
                let stranded =
                    match identity.serves.as_ref().filter(|before| before.cluster == cluster) {
                        Some(before) => unwritten(&ports, before).await?,
                        None => 0,
                    };
                return Err(OpenError::Elsewhere { owner, address, cluster, stranded });
            }
            Err(refused) => return Err(refused.into()),
        };
        let held = head_lease.clone();
        let others = RefCell::new(None);
        let opening = async {
            if let Err(refused) =
                members::hold(&mut members, &ports, &candidate, options.take_over, &root.describe())
                    .await
            {
                give_back(&head_lease).await;
                return Err(refused);
            }
            let backing = Buckets::of(
                Some(root),
                Some(head_lease.clone()),
                members,
                asked.clone(),
                rate_limits,
            );
            let members = backing.members.clone();
            others.replace(Some(members.clone()));
            let recovering =
                Node::recover(ports.clone(), backing, options, identity, Some(head_lease));
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
        // This directory has nothing that the next node should wait for.
        if let (Err(_), true, Some(members)) = (&opened, has_nothing, others.take()) {
            give_back(&held).await;
            members::release(&members).await;
        }
        opened
    }

    /// Makes a node from the content of the data directory, if that is fit to continue.
    async fn recover(
        ports: Ports,
        backing: Buckets,
        options: Options,
        identity: Identity,
        head_lease: Option<Rc<HeadLease>>,
    ) -> Result<Rc<Node>, OpenError> {
        let identity =
            drop_cache(&ports, identity, backing.bucket.as_deref(), head_lease.is_some()).await?;
        let mut serves = serves(&ports, &backing, head_lease.as_deref(), &identity);
        let Buckets { bucket, members, asked } = backing;
        let known = identity.serves.as_ref();
        if let Err(refused) =
            claim(&ports, &identity, &serves, bucket.as_deref(), &options, head_lease.is_some())
                .await
        {
            if let Some(head_lease) = head_lease {
                give_back(&head_lease).await;
                members::release(&members).await;
            }
            return Err(refused);
        }
        if known.is_none_or(|known| known.incarnation != serves.incarnation) {
            wipe(&ports).await?;
        }
        if known != Some(&serves) {
            identity::store(&*ports.disk, &Identity::of(identity.node, Some(serves.clone())))
                .await?;
        }

        let (log, recovery) = match recover_log(&ports, &serves, &options).await {
            Err(damage @ LogError::Corrupt { .. }) => {
                return Err(OpenError::Damaged(Box::new(
                    Readable::of(&ports, &serves, damage).await,
                )));
            }
            recovered => recovered?,
        };
        let recovered = log.written(GroupId::PARTITION);
        // Nothing was ever acknowledged here: the first snapshot is written before that.
        let fresh = recovery.is_empty();
        if fresh && head_lease.is_none() && bucket.is_some() && !is_cache(&serves) {
            // The ids of the take-over are known to its log alone.
            serves.incarnation = Incarnation::NONE;
            identity::store(&*ports.disk, &Identity::of(identity.node, Some(serves.clone())))
                .await?;
        }
        let snapshot_at = recovery
            .snapshots
            .get(&GroupId::PARTITION)
            .map_or(Position(0), |snapshot| snapshot.header().position);
        let mut missing_root = None;
        let Replayed { state, unsynced, kept, unverified, unforced, holes, cuts, .. } = match fresh
        {
            true => {
                let ids = ids_of_empty(bucket.as_deref(), head_lease.as_deref()).await?;
                let (partition, root) =
                    empty(&ports, bucket.as_deref(), (&serves, ids), &options).await?;
                missing_root = root;
                Replayed::of(State::of(partition))
            }
            false => replay(recovery, State::check_joined).await?,
        };
        let store = Store::open(ports.disk.clone(), serves.cluster).await?;
        if let Some((last, _)) = state.extents().packs().last() {
            store.packs.begin_after(last);
        }
        let run = Run {
            cluster: serves.cluster,
            incarnation: serves.incarnation,
            id: ports.entropy.next_u64(),
            recovered,
        };
        let replica = Replica::new(state, log, ports.spawn.clone());
        let parts =
            Parts { replica, store: Rc::new(store), run, unforced, snapshot_at, host: None };
        let buckets = Buckets { bucket, members, asked };
        let node = Node::build(ports, options, buckets, head_lease, parts).await?;
        node.trouble("root", missing_root);
        match fresh {
            true => drop(node.write_snapshot().await?),
            // The previous run may have ended between giving it its name and syncing the directory.
            false => node.ports.disk.sync_dir(ebb_journal::SNAPSHOT_DIR).await?,
        }
        node.store.not_forced(
            unsynced
                .iter()
                .flat_map(|(ino, runs)| runs.iter().map(|run| (node.location(*ino), run))),
        );
        node.store.not_forced_cuts(cuts.into_iter().map(|(ino, len)| (node.location(ino), len)));
        node.dirty_again(kept).await?;
        node.watch_void_blocks();
        if let Some(head_lease) = node.buckets.head_lease() {
            // On a full disk the first renewal repeats it.
            if let Err(error) = node.note_reserved_ids(head_lease).await {
                tracing::warn!(%error, "reserved inode ids cannot be used yet");
            }
        }
        // A file removed or cut now must not come back with the next power cut.
        node.force_log().await?;
        drop_strays(&node.store, || node.replica.view()).await?;
        node.store.sync_names().await?;
        make_holes(&node.store, || node.replica.view(), holes).await?;
        node.resume_sessions().await?;
        let late = match node.buckets.head_lease() {
            Some(_) => node.settle_uploads().await?,
            None => Vec::new(),
        };
        if !Planted::DoubtForgotten.is_on() {
            node.verify_unsynced(unverified).await?;
        }
        node.find_missing().await?;
        node.data.fill_cache_order(&node.replica.view());
        node.start(late);
        Ok(node)
    }

    /// A node of these parts, which does nothing yet.
    pub(crate) async fn build(
        ports: Ports,
        mut options: Options,
        Buckets { bucket, members, asked }: Buckets,
        head_lease: Option<Rc<HeadLease>>,
        Parts { replica, store, run, unforced, snapshot_at, host }: Parts,
    ) -> Result<Rc<Node>, OpenError> {
        let space = ports.disk.space().await?;
        let object_bytes =
            bucket.as_ref().map_or(u64::MAX, |bucket| bucket.capabilities().max_object_bytes);
        let max_file_bytes = MAX_FILE_BYTES.min(ports.disk.longest_file().await?).min(object_bytes);
        let resident_bytes = replica.view().extents().resident_bytes();
        let is_disk_small = fit_cache(&mut options, space.free_bytes + resident_bytes);
        let names = Names::new(&replica.view(), options.metadata_bytes);
        let data =
            Data::new(members.len() + 1, &options, &ports.clock, is_disk_small, max_file_bytes);
        Ok(Rc::new(Node {
            replica,
            store,
            flusher: Flusher::new(members.len() + 1, options.upload_buffer_bytes()),
            data,
            buckets: crate::buckets::Buckets::new(bucket, members, head_lease),
            attachments: Default::default(),
            leases: Leases::new(run.id),
            locks: Default::default(),
            readahead: Default::default(),
            names,
            instruments: Instruments::new(ports.clock.monotonic(), asked),
            under_way: Default::default(),
            run,
            unforced: RefCell::new(unforced),
            unforced_writers: UnforcedWriters::default(),
            safe: Cell::new(LogIndex(0)),
            snapshot_at: Cell::new(snapshot_at),
            stopping: Default::default(),
            holder_runs: RefCell::default(),
            host: RefCell::new(host),
            ports,
            options,
        }))
    }

    /// Begins to serve a replicated volume, whose state this node has followed.
    pub(crate) async fn begin_to_lead(self: &Rc<Self>) -> Result<(), OpenError> {
        self.watch_void_blocks();
        self.note_holders().await;
        if let Some(head_lease) = self.buckets.head_lease() {
            // On a full disk the first renewal repeats it.
            if let Err(error) = self.note_reserved_ids(head_lease).await {
                tracing::warn!(%error, "reserved inode ids cannot be used yet");
            }
        }
        self.force_log().await?;
        self.resume_sessions().await?;
        let late = match self.buckets.head_lease() {
            Some(_) => self.settle_uploads().await?,
            None => Vec::new(),
        };
        self.fill_doubtful().await?;
        self.find_missing().await?;
        self.data.fill_cache_order(&self.replica.view());
        self.start(late);
        Ok(())
    }

    /// Clients from before the restart have their whole term to come back. In the node's own
    /// process only one can have outlived it; other sessions there end. Orphan inodes held by ended
    /// sessions are released.
    async fn resume_sessions(&self) -> Result<(), RpcError> {
        let now = self.ports.clock.monotonic();
        let sessions: Vec<SessionId> =
            self.replica.view().sessions().iter().map(|(session, _)| session).collect();
        let (awaited, over): (Vec<SessionId>, Vec<SessionId>) = sessions
            .into_iter()
            .partition(|session| !self.options.embedded || self.options.resumes == Some(*session));
        for session in over {
            self.commit(Command::SessionClose { session }).await?;
        }
        self.attachments.await_return(&awaited, now);
        self.leases.are_unknown(&awaited, now);
        let held_by_nobody: Vec<(SessionId, Ino)> = {
            let state = self.replica.view();
            let is_over = |session: &SessionId| state.sessions().get(*session).is_none();
            let orphans = state.namespace().orphans();
            orphans
                .flat_map(|(ino, holders)| {
                    holders.filter(is_over).map(move |session| (session, ino)).collect::<Vec<_>>()
                })
                .collect()
        };
        for (session, ino) in held_by_nobody {
            self.commit(Command::Release { session, ino }).await?;
        }
        Ok(())
    }
}

/// The parts that a node goes on with.
pub(crate) struct Parts {
    pub replica: Replica,
    pub store: Rc<Store>,
    pub run: Run,
    pub unforced: Unforced,
    pub snapshot_at: Position,
    /// Of a replicated volume.
    pub host: Option<Weak<Host>>,
}

/// The ids of a data directory without a log.
async fn ids_of_empty(
    bucket: Option<&dyn Bucket>,
    head_lease: Option<&HeadLease>,
) -> Result<IdRange, OpenError> {
    match (bucket, head_lease) {
        (Some(bucket), Some(head_lease)) => match head_lease.taken_over() {
            Some(ids) => Ok(ids),
            // The take-over was interrupted, or the log is lost.
            None => head_lease
                .renew_ids()
                .await
                .map_err(|error| HeadError::Store { backing: bucket.describe(), error }.into()),
        },
        (Some(_), None) => Ok(IdRange::whole(IdEpoch::READ_ONLY)),
        (None, _) => Ok(IdRange::whole(IdEpoch(1))),
    }
}

/// A cache as large as the disk would starve everything else on it: a tenth stays free. Returns
/// whether the limit of dirty bytes had to be lowered for that.
fn fit_cache(options: &mut Options, available_bytes: u64) -> bool {
    let (cache_bytes, dirty_bytes) = (options.cache_bytes, options.dirty_bytes);
    options.cache_bytes = cache_bytes.min(available_bytes / 10 * 9);
    options.dirty_bytes = dirty_bytes.min(options.cache_bytes / 10 * 8);
    options.cache_bytes < cache_bytes && options.dirty_bytes < dirty_bytes
}

async fn recover_log(
    ports: &Ports,
    serves: &Serves,
    options: &Options,
) -> Result<(Log, Recovery), LogError> {
    let options = ebb_journal::Options {
        volume: VolumeId(serves.cluster.0),
        incarnation: serves.incarnation,
        segment_bytes: options.segment_bytes,
    };
    let (log, recovery) = Log::recover(ports.disk.clone(), ports.spawn.clone(), options).await?;
    if let Some(damage) = &recovery.damaged {
        tracing::error!(%damage, "a part of the log or a snapshot is damaged; another stands in \
            for it");
    }
    if let Start::PowerCut { cut_after, dropped } = recovery.start {
        tracing::warn!(
            cut_after = cut_after.0,
            dropped,
            "the machine went down: what had not been forced is gone"
        );
    }
    Ok((log, recovery))
}
