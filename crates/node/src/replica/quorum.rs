//! The replica of a partition in a group of several nodes: consensus decides the order of commands.
//!
//! Laws:
//! - All calls of consensus, and all appends to the log, take the replica's turn. So records are in
//!   the log in the order in which consensus has given them out.
//! - The state of a replica that follows has the committed commands. The state of one that leads
//!   also has those that it has logged ahead of their commit.
//! - The state follows a prefix of the log's records, in order: records behind an entry that is not
//!   decided wait with it. An entry that another one has replaced has no effect.
//! - An effect on the disk is performed when its command is committed, never before.
//! - A replica that has led and lost the lead follows nothing any more: its state may have commands
//!   that are void. Its process starts anew from the log.

use super::{AppliedUpto, Proposal, Replica, Voter, Written, refusal};
use crate::snapshot;
use bytes::Bytes;
use ebb_consensus::{
    Base, BatchNumber, Body, Change, ChangeError, Entry as GroupEntry, Groups, Leadership,
    Membership, Origin, Output, Packet, ProposeError, Proposed, ReadId, Record, Refusal, ReplicaId,
    SnapshotRequest, Status, Ticks,
};
use ebb_core::extent::Effect;
use ebb_core::state::State;
use ebb_format::record::{self, GroupId, Term};
use ebb_journal::{Entry, LogError, ReceivedAt, Replicated, SnapshotAt};
use ebb_model::*;
use ebb_ports::{Clock, Signal};
use futures_channel::oneshot;
use futures_util::lock::OwnedMutexGuard;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

const GROUP: GroupId = GroupId::PARTITION;

/// Records and bytes of one append. A batch of consensus can be longer.
const APPEND_RECORDS: usize = 64;
const APPEND_BYTES: usize = 1 << 20;

/// The support of other nodes counts as over so many ticks before its end: clocks do not run
/// equally fast.
const SUPPORT_MARGIN: Ticks = Ticks(2);

/// The part of a replica in its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Follows {
        leader: Option<NodeId>,
    },
    /// Elected, and its first entry is not committed yet.
    Elected {
        term: Term,
    },
    Leads {
        term: Term,
    },
    /// It has led, and does so no longer.
    Lost {
        leader: Option<NodeId>,
    },
}

/// Work that consensus asks of the node, beside records and packets.
#[derive(Debug)]
pub(crate) enum Work {
    SendSnapshot {
        to: NodeId,
        request: SnapshotRequest,
    },
    TakeSnapshot,
    /// The replica is not a member of its group any more.
    Removed,
}

/// A record of the log that the state has not followed.
pub(crate) struct Undecided {
    pub upto: AppliedUpto,
    pub what: UndecidedRecord,
}

pub(crate) enum UndecidedRecord {
    Local(LocalCommand),
    Entry { index: LogIndex, term: Term, command: Option<Command> },
}

pub(crate) struct QuorumOptions {
    pub node: NodeId,
    pub tick: Duration,
    pub clock: Rc<dyn Clock>,
    pub send: Box<dyn Fn(Packet)>,
}

pub(crate) struct Quorum {
    options: QuorumOptions,
    /// The clock at tick 0.
    began: Duration,
    groups: RefCell<Groups>,
    part: Cell<Part>,
    committed: Cell<LogIndex>,
    /// Raised when `committed` has grown, or `part` has changed.
    changed: Signal,
    undecided: RefCell<VecDeque<Undecided>>,
    /// Entries of this leader that are not committed.
    ahead: RefCell<VecDeque<(LogIndex, Position)>>,
    /// The end of the log at the start. Records up to here have been followed before, by an earlier
    /// run: their effects are not performed again, over what later records have written.
    recovered: Position,
    /// The extents have followed all records up to here at the start, ahead of the partition.
    known: Position,
    /// Effects of these records.
    past_effects: RefCell<Vec<Effect>>,
    /// Of committed commands, in order, for a replica that follows.
    effects: RefCell<VecDeque<(Position, Effect)>>,
    has_effects: Signal,
    to_force: Cell<Option<BatchNumber>>,
    force_due: Signal,
    work: RefCell<VecDeque<Work>>,
    has_work: Signal,
    last_read: Cell<u64>,
    reads: RefCell<BTreeMap<ReadId, oneshot::Sender<()>>>,
    installing: RefCell<Option<State>>,
    /// Files with bytes that a power cut may have taken with the record of them.
    undefined: RefCell<BTreeSet<Ino>>,
}

impl Quorum {
    pub fn new(
        options: QuorumOptions,
        groups: Groups,
        committed: LogIndex,
        (recovered, known): (Position, Position),
        undecided: VecDeque<Undecided>,
    ) -> Quorum {
        Quorum {
            began: options.clock.monotonic(),
            options,
            groups: RefCell::new(groups),
            part: Cell::new(Part::Follows { leader: None }),
            committed: Cell::new(committed),
            changed: Signal::default(),
            undecided: RefCell::new(undecided),
            ahead: RefCell::default(),
            recovered,
            known,
            past_effects: RefCell::default(),
            effects: RefCell::default(),
            has_effects: Signal::default(),
            to_force: Cell::new(None),
            force_due: Signal::default(),
            work: RefCell::default(),
            has_work: Signal::default(),
            last_read: Cell::new(0),
            reads: RefCell::default(),
            installing: RefCell::default(),
            undefined: RefCell::default(),
        }
    }

    pub fn node(&self) -> NodeId {
        self.options.node
    }

    pub fn part(&self) -> Part {
        match self.part.get() {
            // A replica that joins can hear of its leader before it has the members.
            Part::Follows { leader: None } => Part::Follows { leader: self.followed() },
            part => part,
        }
    }

    fn followed(&self) -> Option<NodeId> {
        let status = self.status()?;
        match status.leadership {
            Leadership::Follower { leader, .. } => Some(status.members.get(leader?)?.node),
            Leadership::Leader { .. } | Leadership::Candidate { .. } => None,
        }
    }

    pub fn committed(&self) -> LogIndex {
        self.committed.get()
    }

    pub fn status(&self) -> Option<Status> {
        self.groups.borrow().status(GROUP)
    }

    /// The base of the newest snapshot.
    pub fn newest_base(&self) -> Option<Base> {
        let records = self.groups.borrow().checkpoint(GROUP);
        records.into_iter().find_map(|record| match record {
            Record::Base(base) => Some(base),
            _ => None,
        })
    }

    /// Completes at the next change of the part or of the commit.
    pub fn changes(&self) -> impl Future<Output = ()> + use<> {
        self.changed.wait()
    }

    /// Wakes those who wait for changes.
    pub fn raise(&self) {
        self.changed.raise();
    }

    fn set_part(&self, part: Part) {
        if self.part.replace(part) != part {
            tracing::debug!(?part, "the part of this node in its volume");
            self.changed.raise();
        }
    }

    /// Refuses unless this node leads.
    pub fn expect_lead(&self) -> Result<(), RpcError> {
        match self.part.get() {
            Part::Leads { .. } => Ok(()),
            // The address of the leader is in the state, which this node may not have.
            _ => Err(RpcError::NotLeader { leader: None }),
        }
    }

    pub async fn wait_committed(&self, upto: LogIndex) -> Result<LogIndex, RpcError> {
        loop {
            let changes = self.changes();
            self.expect_lead()?;
            if self.committed.get() >= upto || Planted::AnsweredBeforeCommit.is_on() {
                return Ok(self.committed.get());
            }
            changes.await;
        }
    }

    /// Position of the first record whose entry is not committed.
    pub fn first_undecided(&self) -> Option<Position> {
        let ahead = self.ahead.borrow().front().map(|(_, position)| *position);
        ahead.or_else(|| self.undecided.borrow().front().map(|first| first.upto.position))
    }

    fn ticks(&self) -> Ticks {
        let passed = self.options.clock.monotonic().saturating_sub(self.began);
        Ticks((passed.as_nanos() / self.options.tick.as_nanos()) as u64)
    }

    /// Whether a majority has promised to support this leader, and the promise has not ended.
    fn is_supported(&self) -> bool {
        let support = self.groups.borrow().support(GROUP);
        support.is_some_and(|until| until > self.ticks() + SUPPORT_MARGIN)
    }

    fn add_effects(&self, at: Position, effects: Vec<Effect>) {
        if at <= self.recovered && !Planted::PastEffectsPerformed.is_on() {
            self.past_effects.borrow_mut().extend(effects);
        } else if !effects.is_empty() {
            self.effects.borrow_mut().extend(effects.into_iter().map(|effect| (at, effect)));
            self.has_effects.raise();
        }
    }

    /// Effects of records that an earlier run has followed.
    pub fn take_past_effects(&self) -> Vec<Effect> {
        self.past_effects.take()
    }

    /// Files with bytes that a power cut may have taken with the record of them.
    pub fn undefined(&self) -> BTreeSet<Ino> {
        self.undefined.borrow().clone()
    }

    fn add_work(&self, work: Work) {
        self.work.borrow_mut().push_back(work);
        self.has_work.raise();
    }

    pub async fn next_work(&self) -> Work {
        loop {
            let waiting = self.has_work.wait();
            if let Some(work) = self.work.borrow_mut().pop_front() {
                return work;
            }
            waiting.await;
        }
    }

    /// The first effect that is due; [`Quorum::performed`] reports its end.
    pub async fn next_effect(&self) -> (Position, Effect) {
        loop {
            let waiting = self.has_effects.wait();
            if let Some(first) = self.effects.borrow().front() {
                return first.clone();
            }
            waiting.await;
        }
    }

    pub fn performed(&self) {
        self.effects.borrow_mut().pop_front();
        self.changed.raise();
    }

    /// Waits until all effects of the state are on the disk.
    pub async fn wait_performed(&self) {
        loop {
            let changes = self.changes();
            if self.effects.borrow().is_empty() {
                return;
            }
            changes.await;
        }
    }
}

/// The proposal of the turn: records of the disk, and the entry directly behind them.
struct Own {
    local: Vec<LocalCommand>,
    index: Option<LogIndex>,
}

/// A record to be appended.
enum Item {
    Local(LocalCommand),
    Record { record: Record, is_own: bool },
}

/// The same as bytes.
enum Encoded {
    Local(LocalCommand),
    Command { term: Term, index: LogIndex, bytes: Bytes },
    Step { term: Term, index: LogIndex, bytes: Vec<u8> },
    Base { term: Term, index: LogIndex, bytes: Vec<u8> },
    Promise(Vec<u8>),
}

fn encode(record: &Record) -> Encoded {
    let bytes = || postcard::to_stdvec(record).expect("a record of consensus can be encoded");
    match record {
        Record::Entry(entry) => {
            let (term, index) = (entry.term, entry.index);
            match &entry.body {
                Body::Command(command) => Encoded::Command { term, index, bytes: command.clone() },
                Body::Empty | Body::Members(_) => Encoded::Step { term, index, bytes: bytes() },
            }
        }
        Record::Base(base) => Encoded::Base { term: base.term, index: base.index, bytes: bytes() },
        Record::Replica(_) | Record::HardState(_) | Record::Removed(_) => Encoded::Promise(bytes()),
    }
}

impl Encoded {
    fn entry(&self) -> Entry<'_> {
        let replicated = match self {
            Encoded::Local(command) => return Entry::Local(command),
            Encoded::Command { term, index, bytes } => {
                Replicated::Command { term: *term, index: *index, bytes }
            }
            Encoded::Step { term, index, bytes } => {
                Replicated::Step { term: *term, index: *index, bytes }
            }
            Encoded::Base { term, index, bytes } => {
                Replicated::Base { term: *term, index: *index, bytes }
            }
            Encoded::Promise(bytes) => Replicated::Promise(bytes),
        };
        Entry::Replicated(GROUP, replicated)
    }

    fn len_bytes(&self) -> usize {
        match self {
            Encoded::Local(_) => 256,
            Encoded::Command { bytes, .. } => bytes.len(),
            Encoded::Step { bytes, .. } | Encoded::Base { bytes, .. } | Encoded::Promise(bytes) => {
                bytes.len()
            }
        }
    }
}

/// Decodes what [`encode`] has made of a record that is not a command.
pub(crate) fn decode_record(bytes: &[u8]) -> Result<Record, String> {
    postcard::from_bytes(bytes).map_err(|error| error.to_string())
}

impl Replica {
    pub fn quorum(&self) -> Option<&Quorum> {
        self.voter.quorum.get()
    }

    /// The node of a replicated volume; `None` of one with a single node.
    pub fn own_node(&self) -> Option<NodeId> {
        self.quorum().map(Quorum::node)
    }

    /// Goes on as a member of the group that `quorum` restores.
    pub fn replicate(&self, quorum: Quorum) {
        self.voter.state.borrow_mut().is_of(quorum.node());
        assert!(self.voter.quorum.set(quorum).is_ok(), "a replica is replicated once");
    }

    /// Begins a group with this node as its only voter. Its state has a command already.
    pub async fn begin_group(&self, quorum: Quorum, first: Membership) -> Result<(), RpcError> {
        let _turn = self.turn.lock().await;
        self.voter.log.force().await.map_err(refusal)?;
        let term = self.voter.log.term(GROUP);
        let at = self.snapshot_at();
        let state = self.view().clone();
        snapshot::write(&self.voter.log, at, &state).await.map_err(refusal)?;
        let base = Base { index: at.1.index, term, members: first };
        quorum.committed.set(base.index);
        quorum.groups.borrow_mut().begin(GROUP, base).map_err(|error| {
            RpcError::NotServing(format!("the volume cannot be replicated: {error}"))
        })?;
        let upto = self.voter.applied.get();
        self.voter.applied.set(AppliedUpto { term, ..upto });
        self.replicate(quorum);
        let quorum = self.quorum().expect("it is set");
        self.voter.drain(quorum, None).await.map_err(refusal)?;
        quorum.groups.borrow_mut().campaign(GROUP);
        self.voter.drain(quorum, None).await.map_err(refusal)?;
        Ok(())
    }

    /// Changes consensus, and performs the work that follows.
    async fn drive<T>(&self, change: impl FnOnce(&mut Groups) -> T) -> Result<T, RpcError> {
        let _turn = self.turn.lock().await;
        let quorum = self.quorum().expect("only a replicated volume has a group");
        let changed = {
            let mut groups = quorum.groups.borrow_mut();
            // Promises count from now.
            let now = quorum.ticks();
            while groups.now() < now {
                groups.tick();
            }
            change(&mut groups)
        };
        self.voter.drain(quorum, None).await.map_err(refusal)?;
        Ok(changed)
    }

    /// Passes the time to consensus, for ever.
    pub async fn tick_for_ever(&self) {
        let Some(quorum) = self.quorum() else { return };
        loop {
            quorum.options.clock.sleep(quorum.options.tick).await;
            if self.drive(|_| ()).await.is_err() {
                return;
            }
        }
    }

    /// Forces the records of consensus, for ever. `before` comes before each force of the log.
    pub async fn force_for_ever(&self, before: impl AsyncFn()) {
        let Some(quorum) = self.quorum() else { return };
        loop {
            let due = quorum.force_due.wait();
            let Some(batch) = quorum.to_force.take() else {
                due.await;
                continue;
            };
            before().await;
            if let Err(error) = self.voter.log.force().await {
                tracing::error!(%error, "the log of a replicated volume cannot be forced");
                return;
            }
            if self.drive(|groups| groups.forced(batch)).await.is_err() {
                return;
            }
        }
    }

    /// Takes a packet of another node.
    pub async fn receive(&self, packet: Packet) -> Result<(), RpcError> {
        for (_, refusal) in self.drive(|groups| groups.receive(packet)).await? {
            tracing::debug!(%refusal, "a message of another node was dropped");
        }
        Ok(())
    }

    /// Changes the members of the group, one change at a time.
    pub async fn change_members(
        &self,
        change: Change,
    ) -> Result<Result<Proposed, ChangeError>, RpcError> {
        self.drive(|groups| groups.change(GROUP, change)).await
    }

    /// Records that this node is not a member of the group any more.
    pub async fn leave(&self) -> Result<(), RpcError> {
        self.drive(|groups| groups.remove(GROUP)).await?;
        self.voter.log.force().await.map(drop).map_err(refusal)
    }

    /// Hands the lead to another voter.
    pub async fn hand_over(&self, to: ReplicaId) -> Result<bool, RpcError> {
        self.drive(|groups| groups.transfer(GROUP, to)).await
    }

    pub async fn snapshot_sent(&self, to: ReplicaId, is_complete: bool) -> Result<(), RpcError> {
        self.drive(|groups| groups.snapshot_sent(GROUP, to, is_complete)).await
    }

    /// Makes sure that this node leads at this moment: an answer from its state is not stale.
    pub async fn confirm_lead(&self) -> Result<(), RpcError> {
        let Some(quorum) = self.quorum() else { return Ok(()) };
        quorum.expect_lead()?;
        if quorum.is_supported() || Planted::DeposedLeaderAnswers.is_on() {
            return Ok(());
        }
        let read = ReadId(quorum.last_read.get() + 1);
        quorum.last_read.set(read.0);
        let (tell, told) = oneshot::channel();
        quorum.reads.borrow_mut().insert(read, tell);
        let asked = self.drive(|groups| groups.read(GROUP, read)).await?;
        if asked.is_err() {
            quorum.reads.borrow_mut().remove(&read);
        }
        told.await.map_err(|oneshot::Canceled| RpcError::NotLeader { leader: None })?;
        quorum.expect_lead()
    }

    /// Logs a command about this node's disk, whether it leads or not.
    pub async fn note_local(&self, command: LocalCommand) -> Result<(), RpcError> {
        let _turn = self.turn.lock().await;
        let quorum = self.quorum().expect("only a replica in a group follows");
        let own = Own { local: vec![command.clone()], index: None };
        if let Some(upto) = self.voter.drain(quorum, Some(own)).await.map_err(refusal)? {
            self.voter.follow_local(quorum, upto, command);
        }
        Ok(())
    }

    /// Keeps a state as the snapshot of this moment, and gives up the log before it.
    pub async fn keep_snapshot(
        &self,
        at: (SnapshotAt, SnapshotAt),
        state: &State,
    ) -> Result<(), LogError> {
        let Some(quorum) = self.quorum() else {
            return snapshot::write(&self.voter.log, at, state).await;
        };
        snapshot::write(&self.voter.log, at, state).await?;
        let _turn = self.turn.lock().await;
        let taken = quorum.groups.borrow_mut().snapshot_taken(GROUP, at.1.index);
        if taken.is_some() {
            self.voter.checkpoint(quorum).await?;
        }
        Ok(())
    }

    /// Installs a snapshot of the partition that a leader has sent, if consensus wants it. `state`
    /// makes the new state of the present one, with effects on the disk. After an error the replica
    /// is of no use: its process has to start anew.
    pub async fn install(
        &self,
        from: Origin,
        request: &SnapshotRequest,
        header: ReceivedAt,
        frames: Vec<Vec<u8>>,
        state: impl FnOnce(&State) -> (State, Vec<Effect>),
    ) -> Result<Result<bool, Refusal>, LogError> {
        let _turn = self.turn.lock().await;
        let quorum = self.quorum().expect("only a replica in a group follows");
        let received = quorum.groups.borrow_mut().snapshot_received(from, request);
        if received == Ok(true) {
            let log = &self.voter.log;
            // Entries that are not decided are void. Records of the disk stay.
            let undecided = std::mem::take(&mut *quorum.undecided.borrow_mut());
            for Undecided { upto, what } in undecided {
                if let UndecidedRecord::Local(command) = what {
                    self.voter.follow_local(quorum, upto, command);
                }
            }
            let (state, effects) = state(&self.view());
            let (position, index) = (log.written_position(), log.written(GroupId::LOCAL));
            let local = SnapshotAt { index, position, version: Version(0), term: None };
            snapshot::write_local(log, local, &state).await?;
            log.install_snapshot(GROUP, header, frames.into_iter()).await?;
            quorum.installing.replace(Some(state));
            quorum.add_effects(position, effects);
        }
        self.voter.drain(quorum, None).await?;
        if received == Ok(true) {
            self.voter.checkpoint(quorum).await?;
        }
        Ok(received)
    }
}

impl Voter {
    /// Logs a proposal in the present turn.
    pub(super) async fn write_replicated(
        self: Rc<Self>,
        Proposal { local, command }: Proposal,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Written, RpcError> {
        let quorum = self.quorum.get().expect("of a replicated volume");
        // A full disk refuses before others have the proposal.
        self.log.expect_room().await.map_err(refusal)?;
        let index = match &command {
            None => None,
            Some(command) => {
                let bytes = record::encode_command(command)
                    .map_err(|_| RpcError::Refused(FsError::TooLarge))?;
                let proposed = quorum.groups.borrow_mut().propose(GROUP, bytes.into());
                Some(proposed.map_err(not_proposed)?.index)
            }
        };
        let own = Own { local: local.clone(), index };
        let upto = self.drain(quorum, Some(own)).await.map_err(refusal)?;
        let upto = upto.expect("a proposal of a leader is in the log");
        let index = index.unwrap_or_else(|| self.state.borrow().applied());
        Ok(Written {
            voter: self.clone(),
            local,
            command,
            index,
            upto,
            is_applied: false,
            _turn: turn,
        })
    }

    /// Performs all that consensus asks for, and logs the turn's own proposal with it. Returns the
    /// place of the proposal, if the state is to follow it.
    async fn drain(
        &self,
        quorum: &Quorum,
        own: Option<Own>,
    ) -> Result<Option<AppliedUpto>, LogError> {
        let drained = self.drain_all(quorum, own).await;
        if drained.is_err() {
            // Consensus has gone on without the records: only a start from the log is right.
            quorum.set_part(Part::Lost { leader: None });
        }
        drained
    }

    async fn drain_all(
        &self,
        quorum: &Quorum,
        mut own: Option<Own>,
    ) -> Result<Option<AppliedUpto>, LogError> {
        let mut place = None;
        loop {
            let batch = quorum.groups.borrow_mut().poll();
            let Some(batch) = batch else { break };
            for packet in batch.packets {
                (quorum.options.send)(packet);
            }
            // The records can be those of another leader already.
            for leadership in batch.outputs.iter().filter_map(|output| output.leadership) {
                self.take_leadership(quorum, leadership);
            }
            let mut items = Vec::new();
            for (_, record) in batch.records {
                let index = match &record {
                    Record::Entry(entry) => Some(entry.index),
                    _ => None,
                };
                let is_own = index.is_some() && own.as_ref().is_some_and(|own| own.index == index);
                if let Some(Own { local, .. }) = own.take_if(|_| is_own) {
                    items.extend(local.into_iter().map(Item::Local));
                }
                items.push(Item::Record { record, is_own });
            }
            place = self.append(quorum, items).await?.or(place);
            if batch.must_force {
                quorum.to_force.set(Some(batch.number));
                quorum.force_due.raise();
            }
            for output in batch.outputs {
                self.take_output(quorum, output);
            }
        }
        if let Some(Own { local, index }) = own {
            assert!(index.is_none(), "consensus gives out an entry when it is proposed");
            place = self.append(quorum, local.into_iter().map(Item::Local).collect()).await?;
        }
        Ok(place)
    }

    async fn append(
        &self,
        quorum: &Quorum,
        items: Vec<Item>,
    ) -> Result<Option<AppliedUpto>, LogError> {
        let mut place = None;
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let (mut part, mut encoded, mut len_bytes) = (Vec::new(), Vec::new(), 0);
            for item in items.by_ref() {
                let bytes = match &item {
                    Item::Local(command) => Encoded::Local(command.clone()),
                    Item::Record { record, .. } => encode(record),
                };
                len_bytes += bytes.len_bytes();
                encoded.push(bytes);
                let is_local = matches!(item, Item::Local(_));
                part.push(item);
                // Records of the disk stay with the entry behind them.
                if !is_local && (part.len() >= APPEND_RECORDS || len_bytes >= APPEND_BYTES) {
                    break;
                }
            }
            // A command that this release does not know stays out of its log.
            part.iter().try_for_each(expect_known)?;
            let entries: Vec<Entry<'_>> = encoded.iter().map(Encoded::entry).collect();
            let frontier = self.log.append(&entries).await?;
            let mut position = Position(frontier.position.0 - part.len() as u64);
            let locals = part.iter().filter(|item| matches!(item, Item::Local(_))).count() as u64;
            let mut local = LogIndex(frontier.index(GroupId::LOCAL).0 - locals);
            for item in part {
                position.0 += 1;
                local.0 += u64::from(matches!(item, Item::Local(_)));
                place = self.note(quorum, item, position, local)?.or(place);
            }
        }
        Ok(place)
    }

    /// Notes a record that is in the log. Returns the place of the turn's own proposal.
    fn note(
        &self,
        quorum: &Quorum,
        item: Item,
        position: Position,
        local: LogIndex,
    ) -> Result<Option<AppliedUpto>, LogError> {
        if matches!(quorum.part.get(), Part::Lost { .. }) {
            return Ok(None);
        }
        let leads = matches!(quorum.part.get(), Part::Leads { .. });
        let term = self.applied.get().term;
        match item {
            Item::Local(command) => {
                let upto = AppliedUpto { position, local, term };
                if leads {
                    return Ok(Some(upto));
                }
                if quorum.undecided.borrow().is_empty() {
                    self.follow_local(quorum, upto, command);
                } else {
                    let what = UndecidedRecord::Local(command);
                    quorum.undecided.borrow_mut().push_back(Undecided { upto, what });
                }
            }
            Item::Record { record: Record::Entry(entry), is_own } => {
                let GroupEntry { term, index, body } = entry;
                let upto = AppliedUpto { position, local, term };
                if leads {
                    quorum.ahead.borrow_mut().push_back((index, position));
                    if is_own {
                        return Ok(Some(upto));
                    }
                    self.state.borrow_mut().skip(index);
                    self.applied.set(upto);
                    return Ok(None);
                }
                let command = match body {
                    Body::Command(bytes) => Some(known(&bytes)?),
                    Body::Empty | Body::Members(_) => None,
                };
                let what = UndecidedRecord::Entry { index, term, command };
                quorum.undecided.borrow_mut().push_back(Undecided { upto, what });
            }
            Item::Record { .. } => {}
        }
        Ok(None)
    }

    fn take_output(&self, quorum: &Quorum, output: Output) {
        if let Some(base) = output.install {
            let mut state = quorum.installing.take().expect("it was received");
            quorum.undecided.borrow_mut().clear();
            quorum.undefined.borrow_mut().extend(state.take_undefined());
            self.state.replace(state);
            let (position, local) = (self.log.written_position(), self.log.written(GroupId::LOCAL));
            self.applied.set(AppliedUpto { position, local, term: base.term });
            quorum.committed.set(quorum.committed.get().max(base.index));
        }
        for entry in output.committed {
            self.decide(quorum, entry);
        }
        if let Some(commit) = output.commit.filter(|commit| *commit > quorum.committed.get()) {
            quorum.committed.set(commit);
            let mut ahead = quorum.ahead.borrow_mut();
            while ahead.pop_front_if(|(index, _)| *index <= commit).is_some() {}
            quorum.changed.raise();
        }
        for (read, _) in output.reads {
            if let Some(tell) = quorum.reads.borrow_mut().remove(&read) {
                // The reader may have gone.
                let (Ok(()) | Err(())) = tell.send(());
            }
        }
        for read in output.lost_reads {
            quorum.reads.borrow_mut().remove(&read);
        }
        for (to, request) in output.snapshots {
            quorum.add_work(Work::SendSnapshot { to, request });
        }
        if output.wants_snapshot {
            quorum.add_work(Work::TakeSnapshot);
        }
        if output.is_removed {
            quorum.add_work(Work::Removed);
        }
    }

    fn take_leadership(&self, quorum: &Quorum, leadership: Leadership) {
        let node_of = |replica: ReplicaId| {
            let status = quorum.status()?;
            status.members.get(replica).map(|member| member.node)
        };
        let leader = match leadership {
            Leadership::Follower { leader, .. } => leader.and_then(node_of),
            Leadership::Leader { .. } | Leadership::Candidate { .. } => None,
        };
        let part = match (quorum.part.get(), leadership) {
            (Part::Leads { term }, Leadership::Leader { term: now }) if term == now => return,
            (Part::Leads { .. } | Part::Lost { .. }, _) => Part::Lost { leader },
            (_, Leadership::Leader { term }) => Part::Elected { term },
            (_, Leadership::Follower { .. } | Leadership::Candidate { .. }) => {
                Part::Follows { leader }
            }
        };
        quorum.set_part(part);
        self.serve_if_decided(quorum);
    }

    /// An elected leader leads once an entry of its term is committed, and the state has followed
    /// everything before it.
    fn serve_if_decided(&self, quorum: &Quorum) {
        if let Part::Elected { term } = quorum.part.get()
            && self.applied.get().term == term
        {
            assert!(quorum.undecided.borrow().is_empty(), "a leader has decided all before it");
            quorum.committed.set(quorum.committed.get().max(self.state.borrow().applied()));
            quorum.set_part(Part::Leads { term });
        }
    }

    /// Lets the state follow a committed entry, and the records before it.
    fn decide(&self, quorum: &Quorum, entry: GroupEntry) {
        let leads = matches!(quorum.part.get(), Part::Leads { .. } | Part::Lost { .. });
        if leads || entry.index <= self.state.borrow().applied() {
            return;
        }
        loop {
            let next = quorum.undecided.borrow_mut().pop_front();
            let Undecided { upto, what } = next.expect("a committed entry was logged here");
            match what {
                UndecidedRecord::Local(command) => self.follow_local(quorum, upto, command),
                UndecidedRecord::Entry { index, term, command }
                    if (index, term) == (entry.index, entry.term)
                        || Planted::VoidEntryFollowed.is_on() && index == entry.index =>
                {
                    self.follow(quorum, upto, index, command);
                    break;
                }
                // Another entry has replaced it.
                UndecidedRecord::Entry { .. } => {}
            }
        }
        while let Some(next) = quorum
            .undecided
            .borrow_mut()
            .pop_front_if(|next| matches!(next.what, UndecidedRecord::Local(_)))
        {
            if let UndecidedRecord::Local(command) = next.what {
                self.follow_local(quorum, next.upto, command);
            }
        }
        self.serve_if_decided(quorum);
        quorum.changed.raise();
    }

    fn follow(
        &self,
        quorum: &Quorum,
        upto: AppliedUpto,
        index: LogIndex,
        command: Option<Command>,
    ) {
        let Some(command) = command else {
            self.state.borrow_mut().skip(index);
            self.applied.set(upto);
            return;
        };
        if upto.position <= quorum.known {
            self.state.borrow_mut().apply_known(index, &command);
            self.applied.set(upto);
            return;
        }
        let applied = self.apply(upto, &[], Some((index, &command)));
        self.state.borrow_mut().apply_deferred();
        let undefined = self.state.borrow_mut().take_undefined();
        quorum.undefined.borrow_mut().extend(undefined);
        quorum.add_effects(upto.position, applied.effects);
    }

    fn follow_local(&self, quorum: &Quorum, upto: AppliedUpto, command: LocalCommand) {
        let applied = self.apply(upto, &[command], None);
        quorum.add_effects(upto.position, applied.effects);
    }

    /// Logs all promises of consensus anew, so that the log needs none from before.
    async fn checkpoint(&self, quorum: &Quorum) -> Result<(), LogError> {
        let records = quorum.groups.borrow().checkpoint(GROUP);
        let is_kept = |record: &&Record| !matches!(record, Record::Entry(_));
        let encoded: Vec<Encoded> = records.iter().filter(is_kept).map(encode).collect();
        let records: Vec<Replicated<'_>> = encoded
            .iter()
            .filter_map(|encoded| match encoded.entry() {
                Entry::Replicated(_, replicated) => Some(replicated),
                _ => None,
            })
            .collect();
        self.log.checkpoint(GROUP, &records).await
    }
}

fn expect_known(item: &Item) -> Result<(), LogError> {
    match item {
        Item::Record {
            record: Record::Entry(GroupEntry { body: Body::Command(bytes), .. }),
            is_own: false,
        } => known(bytes).map(drop),
        _ => Ok(()),
    }
}

fn known(bytes: &[u8]) -> Result<Command, LogError> {
    record::decode_command(bytes).map_err(|error| {
        let (file, what) = ("an entry of the leader".into(), error.to_string());
        LogError::Corrupt { file, offset: 0, what }
    })
}

fn not_proposed(error: ProposeError) -> RpcError {
    match error {
        ProposeError::NotLeader(_) => RpcError::NotLeader { leader: None },
        ProposeError::TooLong => RpcError::Refused(FsError::TooLarge),
        ProposeError::Busy => RpcError::Retry,
    }
}
