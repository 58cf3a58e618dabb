//! A node of a replicated volume, from its start: as a replica that follows, and as the one that
//! leads once it is elected.

use super::bring::Silence;
use super::identity::ReplicaIdentity;
use super::messages::{Answer, Ask, Hello, Joined};
use super::peers::Peers;
use super::receive::Receiving;
use super::{ELECTION_TICKS, KEPT_ENTRIES, PATIENCE, TICK};
use crate::data::packs::location;
use crate::effects::{self, EffectError};
use crate::identity;
use crate::recover::{GroupRecords, Replayed, bare_root, drop_strays, make_holes, records, replay};
use crate::replica::{Part, Quorum, QuorumOptions, Replica, Work, refusal};
use crate::{Node, OpenError, Options, random_u128};
use ebb_consensus::{Config, Groups, Membership, Origin, RunId, Ticks, Timing};
use ebb_core::extent::Effect;
use ebb_core::partition::Partition;
use ebb_core::state::State;
use ebb_format::identity::{Identity, Serves};
use ebb_format::record::GroupId;
use ebb_format::replica::Stage;
use ebb_format::segment::VolumeId;
use ebb_journal::{Log, Recovery};
use ebb_model::*;
use ebb_ports::{Bucket, Ports, Signal};
use ebb_store::Store;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

const GROUP: GroupId = GroupId::PARTITION;

/// Options of a node of a replicated volume, beside the [`Options`] of every node.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// `host:port` at which this node listens for the others, and for mounts.
    pub address: String,
    /// A node of the volume that this one is to join; `None` begins a volume, or goes on.
    pub join: Option<String>,
    /// So many of the nodes vote, the first that join. More nodes follow without a vote.
    pub voters: usize,
}

/// Of a run of this node.
pub struct Host {
    pub(super) ports: Ports,
    pub(super) options: Options,
    pub(super) host_options: HostOptions,
    pub(super) bucket: Option<Rc<dyn Bucket>>,
    pub(super) origin: Origin,
    /// The name under which all nodes of the volume own the head.
    pub(super) head: u128,
    pub(super) serves: Serves,
    pub(super) replica: Replica,
    pub(super) store: Rc<Store>,
    pub(super) peers: Rc<Peers>,
    /// The node that has begun the volume, until it leads.
    pub(super) begun: RefCell<Option<Rc<Node>>>,
    /// While it leads.
    pub(super) node: RefCell<Option<Rc<Node>>>,
    pub(super) receiving: RefCell<Option<Receiving>>,
    /// Differences between disk and state that are not settled yet.
    doubts: RefCell<Option<Doubts>>,
    doubtful: RefCell<BTreeSet<Ino>>,
    snapshot_at: Cell<Position>,
    /// Nodes that were asked for bytes and do not answer.
    pub(super) silences: RefCell<BTreeMap<NodeId, Silence>>,
    removed: Cell<bool>,
    failed: RefCell<Option<String>>,
    failing: Signal,
}

/// Differences between disk and state that can be settled once the entries are decided that the log
/// had at the start.
struct Doubts {
    upto: Position,
    unverified: BTreeMap<Ino, Vec<Range<u64>>>,
    holes: Vec<(Ino, Range<u64>)>,
}

impl Host {
    /// Opens a data directory as a node of a replicated volume, which it begins, joins, or goes on
    /// with.
    pub async fn open(
        ports: Ports,
        bucket: Option<Rc<dyn Bucket>>,
        options: Options,
        host_options: HostOptions,
    ) -> Result<Rc<Host>, OpenError> {
        ports.disk.lock()?;
        let own = match ReplicaIdentity::load(&*ports.disk).await? {
            Some(own) => own,
            None => {
                let own = ReplicaIdentity::draw(&*ports.entropy);
                own.store(&*ports.disk).await?;
                own
            }
        };
        let identity = identity::load_or_create(&*ports.disk, &*ports.entropy).await?;
        let run = RunId(random_u128(&*ports.entropy));
        let origin = Origin { node: own.node, directory: own.directory, run };
        let opening = Opening { ports, bucket, options, host_options, own, identity, origin };
        opening.open().await
    }

    /// The node that serves clients, while this one leads.
    pub fn leading(&self) -> Option<Rc<Node>> {
        self.node.borrow().clone()
    }

    pub fn node_id(&self) -> NodeId {
        self.origin.node
    }

    /// `host:port` at which this node listens.
    pub fn address(&self) -> &str {
        &self.host_options.address
    }

    /// The state of the volume that this node has.
    pub fn state(&self) -> std::cell::Ref<'_, State> {
        self.replica.view()
    }

    /// Its part in the volume, for people.
    pub fn describe(&self) -> String {
        match self.quorum().part() {
            Part::Follows { leader: Some(leader) } => format!("follows {leader}"),
            Part::Follows { leader: None } => "knows no leader".into(),
            Part::Elected { .. } => "is about to lead".into(),
            Part::Leads { .. } if self.leading().is_some() => "leads".into(),
            Part::Leads { .. } => "leads, and does not serve yet".into(),
            Part::Lost { .. } => "has lost the lead".into(),
        }
    }

    /// Completes when the process has to start anew, with the reason.
    pub async fn failure(&self) -> String {
        loop {
            let failing = self.failing.wait();
            if let Some(why) = self.failed.borrow().clone() {
                return why;
            }
            failing.await;
        }
    }

    /// Whether another node has removed this one: it must not start anew.
    pub fn is_removed(&self) -> bool {
        self.removed.get()
    }

    pub(super) fn fail(&self, why: String) {
        self.failed.borrow_mut().get_or_insert(why);
        self.failing.raise();
    }

    pub(super) fn quorum(&self) -> &Quorum {
        self.replica.quorum().expect("a host has a replicated volume")
    }

    /// `host:port` of the node that leads, if this one knows.
    pub(super) fn leader_address(&self) -> Option<String> {
        let leader = match self.quorum().part() {
            Part::Follows { leader } | Part::Lost { leader } => leader?,
            Part::Elected { .. } | Part::Leads { .. } => return None,
        };
        self.address_of(leader)
    }

    pub(super) fn address_of(&self, node: NodeId) -> Option<String> {
        let known = self.replica.view_without_backing().nodes().address(node).map(str::to_owned);
        known.or_else(|| self.peers.address(node))
    }

    // Tasks.

    fn start(self: &Rc<Self>) {
        let spawn = |task: ebb_ports::PortFuture<'static, ()>| self.ports.spawn.spawn(task);
        let host = || self.clone();
        let this = host();
        spawn(Box::pin(async move {
            this.replica.tick_for_ever().await;
            this.fail("its log takes no more records".into());
        }));
        let this = host();
        spawn(Box::pin(async move {
            let before = async || {
                if let Err(error) = this.store.sync_cuts().await {
                    tracing::warn!(%error, "a cut of a file is not forced yet");
                }
            };
            this.replica.force_for_ever(before).await;
            this.fail("its log cannot be forced".into());
        }));
        let this = host();
        spawn(Box::pin(async move { this.perform_for_ever().await }));
        let this = host();
        spawn(Box::pin(async move { this.work_for_ever().await }));
        let this = host();
        spawn(Box::pin(async move { this.settle_doubts().await }));
        let this = host();
        spawn(Box::pin(async move { this.tidy_for_ever().await }));
        let this = host();
        spawn(Box::pin(async move { this.lead_once().await }));
        let this = host();
        spawn(Box::pin(async move {
            let error = this.replica.log().failure().await;
            this.fail(format!("its log has failed: {error}"));
        }));
    }

    /// Performs the effects of committed commands on a replica that follows.
    async fn perform_for_ever(&self) {
        loop {
            let (at, effect) = self.quorum().next_effect().await;
            let force = || -> ebb_ports::PortFuture<'_, Result<(), RpcError>> {
                Box::pin(async move {
                    if self.replica.log().durable_position() >= at {
                        return Ok(());
                    }
                    self.replica.log().force().await.map(drop).map_err(refusal)
                })
            };
            let place = |ino| location(&self.replica.view(), ino);
            match effects::perform(&self.store, place, force, &effect, at).await {
                Ok(()) => {}
                Err(EffectError::Log(error)) => return self.fail(error.to_string()),
                // Bytes behind the end are cut off once more before the file grows.
                Err(EffectError::Cut(ino, error) | EffectError::Hole(ino, error)) => {
                    tracing::warn!(%ino, %error, "space of a file could not be given back");
                }
            }
            self.quorum().performed();
        }
    }

    async fn work_for_ever(self: &Rc<Self>) {
        loop {
            match self.quorum().next_work().await {
                Work::SendSnapshot { to, request } => {
                    let host = self.clone();
                    self.ports
                        .spawn
                        .spawn(Box::pin(async move { host.send_snapshot(to, request).await }));
                }
                Work::TakeSnapshot => self.take_snapshot().await,
                Work::Removed => {
                    if let Err(error) = self.replica.leave().await {
                        tracing::warn!(%error, "the removal of this node is not recorded");
                    }
                    self.removed.set(true);
                    self.fail("the node was removed from its volume".into());
                }
            }
        }
    }

    /// Keeps the log short, and removes files that are of no use any more.
    async fn tidy_for_ever(&self) {
        loop {
            self.ports.clock.sleep(Duration::from_secs(1)).await;
            for (node, address) in self.replica.view_without_backing().nodes().addresses() {
                self.peers.learn(node, address);
            }
            if self.leading().is_some() {
                continue;
            }
            let logged = self.replica.written_position().0 - self.snapshot_at.get().0;
            if logged / 2 >= self.options.snapshot_operations {
                self.take_snapshot().await;
            }
            if self.store.has_pending_frees() {
                if let Err(error) = self.replica.log().force().await {
                    return self.fail(error.to_string());
                }
                let has_files =
                    |pack| self.replica.view().extents().packed_in(pack).next().is_some();
                let forced = self.replica.settled_position();
                if let Err(error) = self.store.free_pending(forced, has_files).await {
                    tracing::warn!(%error, "a file of the cache could not be removed");
                }
            }
        }
    }

    /// Writes the state as a snapshot, so that the log before it can be dropped.
    async fn take_snapshot(&self) {
        if let Some(node) = self.leading() {
            if let Err(error) = node.write_snapshot().await {
                tracing::warn!(%error, "the log cannot be shortened");
            }
            return;
        }
        // The files are as the state says.
        self.wait_settled().await;
        self.quorum().wait_performed().await;
        // The state of a leader has commands that are not committed. A snapshot would cover the
        // records that say of which bytes clients are to be asked.
        let follows = matches!(self.quorum().part(), Part::Follows { .. });
        if !follows || !self.doubtful().is_empty() {
            return;
        }
        let (at, state) = {
            let state = self.replica.view().clone();
            (self.replica.snapshot_at(), state)
        };
        if at.1.index == LogIndex(0) {
            return;
        }
        let kept = async {
            if self.store.sync(SyncScope::All).await? {
                // Everything staged by now is forced.
                let scope = SyncScope::All;
                let upto = at.0.position;
                self.replica.note_local(LocalCommand::Synced { scope, upto }).await?;
            }
            self.replica.log().force().await?;
            self.replica.keep_snapshot(at, &state).await?;
            Ok::<(), OpenError>(())
        };
        match kept.await {
            Ok(()) => self.snapshot_at.set(at.1.position),
            Err(error) => tracing::warn!(%error, "the log cannot be shortened"),
        }
    }

    /// Files whose only bytes are here, and of which a power cut may have taken some that their
    /// clients still have.
    pub(super) fn doubtful(&self) -> BTreeSet<Ino> {
        if Planted::DoubtsNotTold.is_on() {
            return BTreeSet::new();
        }
        let state = self.replica.view();
        let nodes = state.nodes();
        let is_at_stake = |ino: &Ino| {
            nodes.holder(*ino) == Some(self.origin.node)
                && nodes.unforced().writers(*ino).next().is_some()
        };
        let doubtful = self.doubtful.borrow();
        let all = doubtful.union(&self.quorum().undefined()).copied().collect::<BTreeSet<_>>();
        all.into_iter().filter(is_at_stake).collect()
    }

    /// Waits until the disk is as the state says, but for effects that are due.
    pub(super) async fn wait_settled(&self) {
        loop {
            let changes = self.quorum().changes();
            if self.doubts.borrow().is_none() {
                return;
            }
            changes.await;
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.doubts.borrow().is_none()
    }

    /// Once all entries are decided that the log had at the start: removes what a crash has left on
    /// the disk, and voids the checksums of bytes that a power cut can have taken.
    async fn settle_doubts(&self) {
        loop {
            let changes = self.quorum().changes();
            let is_decided = match (&*self.doubts.borrow(), self.quorum().first_undecided()) {
                (None, _) => return,
                (Some(_), None) => true,
                (Some(doubts), Some(first)) => first > doubts.upto,
            };
            if is_decided {
                break;
            }
            changes.await;
        }
        self.quorum().wait_performed().await;
        let doubts = self.doubts.borrow_mut().as_mut().map(|doubts| {
            (std::mem::take(&mut doubts.unverified), std::mem::take(&mut doubts.holes))
        });
        let Some((unverified, mut holes)) = doubts else { return };
        let mut cuts = BTreeMap::new();
        for effect in self.quorum().take_past_effects() {
            match effect {
                Effect::Punch { ino, blocks } => holes.push((ino, blocks)),
                Effect::Cut { ino, len_bytes } => {
                    let cut = cuts.entry(ino).or_insert(len_bytes);
                    *cut = len_bytes.min(*cut);
                }
                // Files and ranges without a use are found below.
                Effect::Drop { ino } => drop(cuts.remove(&ino)),
                Effect::Vacate { .. } => {}
            }
        }
        let cuts = cuts.into_iter();
        let state = || self.replica.view();
        self.store.not_forced_cuts(cuts.map(|(ino, len)| (location(&state(), ino), len)));
        let settled = async {
            drop_strays(&self.store, || self.replica.view()).await?;
            self.store.sync_names().await?;
            make_holes(&self.store, || self.replica.view(), holes).await?;
            for (ino, runs) in unverified {
                for run in runs {
                    // Later losses there have another cause.
                    let place = location(&self.replica.view(), ino);
                    self.store.fill_up(&place, &run).await?;
                    let (first, count) = (run.start, run.end - run.start);
                    self.replica.note_local(LocalCommand::Unsynced { ino, first, count }).await?;
                }
            }
            Ok::<(), OpenError>(())
        };
        if let Err(error) = settled.await {
            return self.fail(error.to_string());
        }
        self.doubts.replace(None);
        self.quorum().raise();
    }
}

/// The parts of a host before it has its replica.
struct Opening {
    ports: Ports,
    bucket: Option<Rc<dyn Bucket>>,
    options: Options,
    host_options: HostOptions,
    own: ReplicaIdentity,
    identity: Identity,
    origin: Origin,
}

impl Opening {
    async fn open(mut self) -> Result<Rc<Host>, OpenError> {
        if self.own.stage == Stage::Drawn && self.host_options.join.is_some() {
            self.join().await?;
        }
        if self.own.stage == Stage::Drawn && self.has_records().await? {
            self.own.stage = Stage::Begun;
            self.own.store(&*self.ports.disk).await?;
        }
        match self.own.stage {
            Stage::Drawn => self.begin().await,
            Stage::Joined { .. } | Stage::Begun => self.go_on().await,
        }
    }

    /// Whether the log has records of the group.
    async fn has_records(&self) -> Result<bool, OpenError> {
        let Some(serves) = &self.identity.serves else { return Ok(false) };
        let volume = VolumeId(serves.cluster.0);
        let recovery = Log::read(self.ports.disk.clone(), volume).await?;
        if recovery.is_empty() {
            return Ok(false);
        }
        Ok(replay(recovery, |_| Vec::new()).await?.group.is_some())
    }

    fn hello(&self) -> Hello {
        let cluster = self.identity.serves.as_ref().map(|serves| serves.cluster);
        Hello { cluster, origin: self.origin, address: self.host_options.address.clone() }
    }

    /// Becomes a node of the volume that another node serves.
    async fn join(&mut self) -> Result<(), OpenError> {
        let mut address = self.host_options.join.clone().unwrap_or_default();
        let peers = Peers::new(self.ports.clone(), self.hello());
        let mut last = String::new();
        for _ in 0..JOIN_ATTEMPTS {
            match peers.ask_at(&address, Ask::Join, PATIENCE).await {
                Ok((Answer::Joined(joined), _)) => return self.has_joined(joined).await,
                Ok(_) => last = format!("{address} has answered something else"),
                Err(RpcError::NotLeader { leader: Some(leader) }) => {
                    last = format!("{leader} leads the volume");
                    address = leader;
                    continue;
                }
                Err(error) => last = error.to_string(),
            }
            tracing::info!(address, why = last, "the volume cannot be joined yet");
            self.ports.clock.sleep(Duration::from_secs(1)).await;
            address = self.host_options.join.clone().unwrap_or_default();
        }
        Err(OpenError::NotJoined { address, why: last })
    }

    async fn has_joined(&mut self, joined: Joined) -> Result<(), OpenError> {
        let serves = Serves {
            cluster: joined.cluster,
            incarnation: joined.incarnation,
            backing: joined.backing,
            members: Vec::new(),
            endpoint: None,
        };
        self.identity = Identity::of(joined.head, Some(serves));
        identity::store(&*self.ports.disk, &self.identity).await?;
        self.own.stage = Stage::Joined { replica: joined.replica.0 };
        self.own.store(&*self.ports.disk).await?;
        Ok(())
    }

    fn groups(&self) -> Groups {
        Groups::new(Config {
            node: self.origin.node,
            directory: self.origin.directory,
            run: self.origin.run,
            seed: self.ports.entropy.next_u64(),
            timing: Timing {
                beat_ticks: Ticks(2),
                heartbeat_ticks: Ticks(2),
                election_ticks: Ticks(ELECTION_TICKS),
            },
            kept_entries: KEPT_ENTRIES,
        })
    }

    fn quorum_options(&self, peers: &Rc<Peers>) -> QuorumOptions {
        let peers = peers.clone();
        QuorumOptions {
            node: self.origin.node,
            tick: TICK,
            clock: self.ports.clock.clone(),
            send: Box::new(move |packet| peers.send(packet)),
        }
    }

    /// A new volume, or one of a single node: this node is its first voter.
    async fn begin(mut self) -> Result<Rc<Host>, OpenError> {
        let node = Node::open_over(
            self.ports.clone(),
            self.bucket.clone(),
            Vec::new(),
            self.options.clone(),
        )
        .await?;
        self.identity = identity::load_or_create(&*self.ports.disk, &*self.ports.entropy).await?;
        let serves = self.identity.serves.clone().ok_or(OpenError::Unused)?;
        let peers = Peers::new(self.ports.clone(), self.hello());
        let own = NodesCommand::Serves {
            node: self.origin.node,
            address: self.host_options.address.clone(),
        };
        node.commit(Command::Nodes(own)).await?;
        // The group begins with a snapshot, which cannot be cut.
        node.write_snapshot().await?;
        let quorum = Quorum::new(
            self.quorum_options(&peers),
            self.groups(),
            LogIndex(0),
            (Position(0), Position(0)),
            VecDeque::new(),
        );
        let first = Membership::first(self.origin.node, self.origin.directory);
        node.replica.begin_group(quorum, first).await?;
        let host = self.host(serves, node.replica.clone(), node.store.clone(), peers, None);
        node.host.replace(Some(Rc::downgrade(&host)));
        host.begun.replace(Some(node.clone()));
        host.start();
        node.replica.log().force().await?;
        let own = ReplicaIdentity {
            node: host.origin.node,
            directory: host.origin.directory,
            stage: Stage::Begun,
        };
        own.store(&*host.ports.disk).await?;
        Ok(host)
    }

    fn host(
        self,
        serves: Serves,
        replica: Replica,
        store: Rc<Store>,
        peers: Rc<Peers>,
        doubts: Option<Doubts>,
    ) -> Rc<Host> {
        let snapshot_at = Cell::new(replica.written_position());
        let doubtful = doubts.iter().flat_map(|doubts| doubts.unverified.keys().copied());
        let doubtful = doubtful.collect();
        Rc::new(Host {
            ports: self.ports,
            options: self.options,
            host_options: self.host_options,
            bucket: self.bucket,
            origin: self.origin,
            head: self.identity.node,
            serves,
            replica,
            store,
            peers,
            begun: RefCell::default(),
            node: RefCell::default(),
            receiving: RefCell::default(),
            doubtful: RefCell::new(doubtful),
            doubts: RefCell::new(doubts),
            snapshot_at,
            silences: RefCell::default(),
            removed: Cell::default(),
            failed: RefCell::default(),
            failing: Signal::default(),
        })
    }

    /// A replica that goes on from its log, or begins with an empty one.
    async fn go_on(mut self) -> Result<Rc<Host>, OpenError> {
        let serves = self.identity.serves.clone().ok_or(OpenError::Unused)?;
        let options = ebb_journal::Options {
            volume: VolumeId(serves.cluster.0),
            incarnation: serves.incarnation,
            segment_bytes: self.options.segment_bytes,
        };
        let (ports, cluster) = (self.ports.clone(), serves.cluster);
        let (log, recovery) =
            Log::recover(ports.disk.clone(), ports.spawn.clone(), options).await?;
        let local = recovery.snapshots.get(&GroupId::LOCAL);
        let known = local.map_or(Position(0), |local| local.header().position);
        let mut groups = self.groups();
        let replayed = self.restore(&mut groups, recovery).await?;
        let Replayed { state, unsynced, kept, unverified, holes, cuts, upto, group, .. } = replayed;
        let (committed, undecided) = match group {
            Some(GroupRecords { recovered, .. }) if recovered.is_removed() => {
                let what = "it was removed; a node with an empty data directory can join anew";
                return Err(OpenError::Replica { what: what.into() });
            }
            Some(GroupRecords { recovered, undecided }) => {
                groups
                    .restore(GROUP, &recovered)
                    .map_err(|error| OpenError::Replica { what: error.to_string() })?;
                (state.applied(), undecided)
            }
            None => (LogIndex(0), VecDeque::new()),
        };
        let last = log.written_position();
        let store = Rc::new(Store::open(ports.disk.clone(), cluster).await?);
        if let Some((last, _)) = state.extents().packs().last() {
            store.packs.begin_after(last);
        }
        store.not_forced(
            unsynced
                .iter()
                .flat_map(|(ino, runs)| runs.iter().map(|run| (location(&state, *ino), run))),
        );
        store.not_forced_cuts(cuts.into_iter().map(|(ino, len)| (location(&state, ino), len)));
        for (ino, runs) in kept {
            for block in runs.into_iter().flatten() {
                if let Err(error) = store.dirty_again(&location(&state, ino), block).await {
                    tracing::warn!(%ino, block, %error, "cannot write once more what is not forced");
                }
            }
        }
        let replica = Replica::behind(state, upto, log, ports.spawn.clone());
        let peers = Peers::new(ports, self.hello());
        let quorum =
            Quorum::new(self.quorum_options(&peers), groups, committed, (last, known), undecided);
        replica.replicate(quorum);
        if self.own.stage != Stage::Begun {
            self.own.stage = Stage::Begun;
            // Its first records are forced before another node hears of them.
            replica.log().force().await?;
            self.own.store(&*self.ports.disk).await?;
        }
        let doubts = Doubts { upto: last, unverified, holes };
        let host = self.host(serves, replica, store, peers, Some(doubts));
        host.start();
        Ok(host)
    }

    async fn restore(
        &self,
        groups: &mut Groups,
        recovery: Recovery,
    ) -> Result<Replayed, OpenError> {
        if recovery.snapshots.contains_key(&GROUP) {
            return replay(recovery, State::check_copies).await;
        }
        // Without a snapshot the replica has never had a state.
        let group = match (records(recovery).await?, self.own.joined()) {
            (Some(recovered), _) => Some(GroupRecords { recovered, undecided: VecDeque::new() }),
            (None, Some(replica)) => {
                groups
                    .join(GROUP, replica)
                    .map_err(|error| OpenError::Replica { what: error.to_string() })?;
                None
            }
            (None, None) => return Err(OpenError::NoSnapshot),
        };
        let ids = IdRange::whole(IdEpoch::READ_ONLY);
        let root = bare_root(&self.options, self.ports.clock.wall());
        let partition = Partition::new(ids, root, self.bucket.is_some());
        Ok(Replayed { group, ..Replayed::of(State::of(partition)) })
    }
}

/// A volume that answers nothing is asked for so long, about once a second.
const JOIN_ATTEMPTS: usize = 30;
