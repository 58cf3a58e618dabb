//! One replica of a group: raft-rs behind types of our own.

use crate::members::{Base, Change, MAX_NUMBER, Member, Membership, NodeId, ReplicaId};
use crate::message::{Election, Message, MessageBody, round};
use crate::output::{
    BatchNumber, ChangeError, Leadership, NotLeader, Output, ProposeError, Proposed, ReadId,
    Refusal, SnapshotRequest, Status,
};
use crate::reads::Reads;
use crate::record::{Body, Entry, HardState, MAX_COMMAND_BYTES, MembersStep, Record, Recovered};
use crate::storage::{self, Entries};
use crate::timer::{ElectionTimer, Ticks, Timing};
use bytes::Bytes;
use ebb_model::{GroupId, LogIndex, Planted, Term};
use raft::eraftpb as pb;
use raft::{RawNode, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, VecDeque};

/// Laws:
/// - `snapshot <= applied <= committed`, and `applied` is forced here.
/// - A message that follows from a record leaves after the record is forced. A leader's own
///   entries are the exception: it sends them while it forces them, and counts itself when they
///   are forced.
/// - The replica campaigns, and counts votes, only while all its records are forced. raft-rs
///   relies on it.
/// - Before tick `promised_until` it neither votes nor campaigns, unless the leader has asked for
///   it.
pub(crate) struct Group {
    id: GroupId,
    replica: ReplicaId,
    timing: Timing,
    raft: RawNode<Entries>,
    timer: ElectionTimer,
    /// As of `applied`.
    members: Membership,
    /// Members after each change behind the snapshot.
    history: Vec<(LogIndex, Membership)>,
    applied: LogIndex,
    /// Given out last.
    hard: HardState,
    leadership: Leadership,
    committed: LogIndex,
    /// Records of the replica's beginning that are not given out yet.
    beginning: Vec<Record>,
    held: VecDeque<Held>,
    /// The snapshot that raft-rs is about to install.
    installing: Option<Base>,
    reads: Reads,
    promised_until: Ticks,
    /// The last term in which this replica tried to hand its lead over. A late request to take over
    /// breaks the voters' promises, so they do not count in this term any more.
    handed_over: Term,
    /// The leader's node has listed the group in its last beat.
    is_supported: bool,
    /// A member has said that this replica is none any more.
    is_removed: bool,
    /// Nodes of senders that are no members as far as this replica knows.
    strangers: BTreeMap<ReplicaId, NodeId>,
}

/// Messages and raft-rs state that wait until a batch is forced.
struct Held {
    batch: BatchNumber,
    /// raft-rs's number of the `Ready` in the batch.
    ready: Option<u64>,
    /// A new term or vote is in the batch.
    has_promise: bool,
    messages: Vec<Message>,
}

/// The result of [`Group::collect`].
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) records: Vec<Record>,
    pub(crate) must_force: bool,
    pub(crate) messages: Vec<Message>,
    pub(crate) output: Option<Output>,
    pub(crate) has_new_members: bool,
}

/// Entries of one append message in total, unless one alone is longer.
pub(crate) const APPEND_BYTES: usize = MAX_COMMAND_BYTES;

/// Append messages under way to a follower.
const MAX_IN_FLIGHT: usize = 64;

/// Uncommitted entries of a leader in total. More are refused until some are committed.
const MAX_UNCOMMITTED_BYTES: u64 = 64 << 20;

/// Committed entries given out at one time, so that their application yields.
const COMMITTED_BYTES: u64 = 1 << 20;

/// A learner that is further behind does not become a voter: commits would wait for it.
const PROMOTION_LAG: u64 = 256;

/// Senders of unknown membership that are remembered.
const MAX_STRANGERS: usize = 16;

/// raft-rs draws its own election time-out from thread-local entropy, at each change of its role or
/// term. This range has one value, which no replica reaches: [`ElectionTimer`] decides.
const NEVER: usize = usize::MAX / 2;

impl Group {
    /// A replica that goes on from its records.
    pub(crate) fn restore(
        id: GroupId,
        recovered: &Recovered,
        timing: Timing,
        seed: u64,
        now: Ticks,
    ) -> Group {
        let mut group = Group::new(id, recovered, timing, seed);
        if !group.is_only_voter() {
            // Promises of the run before, of which no record tells, end by then.
            group.promised_until = now + timing.election_ticks;
        }
        group
    }

    /// The first replica of a new group. Its snapshot is durable.
    pub(crate) fn begin(id: GroupId, base: Base, timing: Timing, seed: u64) -> Group {
        let mut recovered = Recovered::new(ReplicaId::FIRST);
        recovered.base = base.clone();
        let mut group = Group::new(id, &recovered, timing, seed);
        group.beginning = vec![Record::Replica(ReplicaId::FIRST), Record::Base(base)];
        group
    }

    /// An empty replica, which waits for a leader's snapshot.
    pub(crate) fn join(id: GroupId, replica: ReplicaId, timing: Timing, seed: u64) -> Group {
        let mut group = Group::new(id, &Recovered::new(replica), timing, seed);
        group.beginning = vec![Record::Replica(replica)];
        group
    }

    fn new(id: GroupId, recovered: &Recovered, timing: Timing, seed: u64) -> Group {
        let mut recovered = recovered.clone();
        let last_term = recovered.entries.last().map_or(recovered.base.term, |last| last.term);
        recovered.hard.term = recovered.hard.term.max(last_term);
        let hard = recovered.hard;
        if Planted::TermKept.is_on() && recovered.base.members.voters().count() == 1 {
            recovered.hard.term = Term(hard.term.0.saturating_sub(1));
        }
        let config = raft::Config {
            id: recovered.replica.0,
            election_tick: timing.election_ticks.0 as usize,
            heartbeat_tick: timing.heartbeat_ticks.0 as usize,
            min_election_tick: NEVER,
            max_election_tick: NEVER + 1,
            applied: recovered.base.index.0,
            max_size_per_msg: APPEND_BYTES as u64,
            max_inflight_msgs: MAX_IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            max_uncommitted_size: MAX_UNCOMMITTED_BYTES,
            max_committed_size_per_ready: COMMITTED_BYTES,
            ..raft::Config::default()
        };
        let entries = Entries::new(&recovered, recovered.committed());
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, entries, &logger).expect("the configuration is constant");
        Group {
            id,
            replica: recovered.replica,
            timing,
            raft,
            timer: ElectionTimer::new(seed, timing.election_ticks),
            members: recovered.base.members.clone(),
            history: Vec::new(),
            applied: recovered.base.index,
            hard,
            leadership: Leadership::Follower { term: hard.term, leader: None },
            committed: recovered.base.index,
            beginning: Vec::new(),
            held: VecDeque::new(),
            installing: None,
            reads: Reads::default(),
            promised_until: Ticks(0),
            handed_over: Term(0),
            is_supported: false,
            is_removed: false,
            strangers: BTreeMap::new(),
        }
    }

    pub(crate) fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub(crate) fn members(&self) -> &Membership {
        &self.members
    }

    /// Whether the replica leads, in a term that is forced. The only voter of a group is elected by
    /// itself before it has forced the term, which a power cut can take back.
    pub(crate) fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader && !self.held.iter().any(|it| it.has_promise)
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.raft.raft.term)
    }

    pub(crate) fn status(&self) -> Status {
        let log = &self.raft.raft.raft_log;
        Status {
            replica: self.replica,
            leadership: self.current_leadership(),
            committed: LogIndex(log.committed),
            applied: self.applied,
            last: LogIndex(log.last_index()),
            snapshot: self.raft.store().snapshot().index,
            len_bytes: self.raft.store().len_bytes(),
            members: self.members.clone(),
            matched: self.matched(),
        }
    }

    fn matched(&self) -> Vec<(ReplicaId, LogIndex)> {
        if !self.is_leader() {
            return Vec::new();
        }
        let known = self.members.members().iter().filter_map(|member| {
            let progress = self.raft.raft.prs().get(member.replica.0)?;
            (progress.matched > 0).then_some((member.replica, LogIndex(progress.matched)))
        });
        known.collect()
    }

    /// Whether promises to this replica as leader count.
    pub(crate) fn can_be_supported(&self) -> bool {
        self.is_leader() && self.handed_over != self.term()
    }

    fn current_leadership(&self) -> Leadership {
        let term = self.term();
        let leader = match self.raft.raft.leader_id {
            raft::INVALID_ID => None,
            leader => Some(ReplicaId(leader)),
        };
        match self.raft.raft.state {
            StateRole::Leader if self.is_leader() => Leadership::Leader { term },
            StateRole::Follower => Leadership::Follower { term, leader },
            StateRole::Leader | StateRole::Candidate | StateRole::PreCandidate => {
                Leadership::Candidate { term }
            }
        }
    }

    fn not_leader(&self) -> NotLeader {
        let leader = match self.current_leadership() {
            Leadership::Follower { leader, .. } => leader,
            Leadership::Leader { .. } | Leadership::Candidate { .. } => None,
        };
        NotLeader { leader: leader.and_then(|leader| self.members.get(leader).copied()) }
    }

    /// The node that a message to this replica goes to.
    pub(crate) fn node_of(&self, replica: ReplicaId) -> Option<NodeId> {
        let stranger = || self.strangers.get(&replica).copied();
        self.members.get(replica).map(|member| member.node).or_else(stranger)
    }

    /// Nodes of all other replicas.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let others = self.members.members().iter().filter(|other| other.replica != self.replica);
        others.map(|member| member.node).chain(self.strangers.values().copied())
    }

    pub(crate) fn meet(&mut self, replica: ReplicaId, node: NodeId) {
        if self.strangers.len() < MAX_STRANGERS || self.strangers.contains_key(&replica) {
            self.strangers.insert(replica, node);
        }
    }

    // Events.

    pub(crate) fn tick(&mut self, now: Ticks) {
        self.raft.tick();
        let is_leader = self.raft.raft.state == StateRole::Leader;
        let is_due = !is_leader && self.timer.is_over(self.raft.raft.election_elapsed);
        if is_due {
            self.campaign(now);
        }
    }

    /// Starts an election, if the replica is a voter, has promised nothing, and all its records are
    /// forced.
    pub(crate) fn campaign(&mut self, now: Ticks) {
        if now >= self.promised_until
            && self.is_settled()
            && self.raft.raft.promotable()
            && self.raft.raft.state != StateRole::Leader
        {
            self.raft.raft.election_elapsed = 0;
            self.timer.draw();
            // An election that cannot begin yet is tried again at the next time-out.
            let _ = self.raft.campaign();
        }
    }

    pub(crate) fn step(&mut self, message: Message, now: Ticks) -> Result<(), Refusal> {
        self.check(&message, now)?;
        let Some(message) = message.to_raft() else {
            self.is_removed = true;
            return Ok(());
        };
        match self.raft.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::StepPeerNotFound) => Err(Refusal::Stranger),
            Err(_) => Err(Refusal::Invalid),
        }
    }

    /// Whether raft-rs can take the message: it panics at some that no honest replica sends, and
    /// that a replica with lost records causes.
    fn check(&self, message: &Message, now: Ticks) -> Result<(), Refusal> {
        let last = LogIndex(self.raft.raft.raft_log.last_index());
        if !message.is_valid() {
            return Err(Refusal::Invalid);
        }
        if self.members.is_none() {
            match message.body {
                // The entries of a group that begins with entry 1 do not name its members.
                MessageBody::Append { previous, .. } if previous.index == LogIndex(0) => {
                    return Err(Refusal::Invalid);
                }
                // A replica without a state may have had one, and promises that it has lost.
                MessageBody::RequestVote { .. } if Planted::WipedReplicaVotes.is_on() => {}
                MessageBody::RequestVote { .. } | MessageBody::Vote { .. } => {
                    return Err(Refusal::Empty);
                }
                _ => {}
            }
        }
        match message.body {
            MessageBody::Heartbeat { commit, .. } if commit > last => Err(Refusal::Invalid),
            MessageBody::Accepted { last: accepted, .. } if accepted > last => {
                Err(Refusal::Invalid)
            }
            MessageBody::RequestVote { kind, .. }
                if kind != Election::Transfer && now < self.promised_until =>
            {
                Err(Refusal::Promised)
            }
            MessageBody::Vote { .. } | MessageBody::TakeOver if !self.is_settled() => {
                Err(Refusal::Unforced)
            }
            _ => Ok(()),
        }
    }

    /// The leader's node has listed the group under this term. Returns whether this replica follows
    /// it, and so promises its support.
    pub(crate) fn support(&mut self, node: NodeId, term: Term, now: Ticks) -> bool {
        let is_follower = self.raft.raft.state == StateRole::Follower;
        let is_led = self.leader_node() == Some(node) && self.term() == term;
        if is_follower && is_led {
            self.raft.raft.election_elapsed = 0;
            self.promised_until = self.promised_until.max(now + self.timing.election_ticks);
            self.is_supported = true;
        }
        is_follower && is_led
    }

    /// The node of the leader that this replica follows.
    pub(crate) fn leader_node(&self) -> Option<NodeId> {
        match self.current_leadership() {
            Leadership::Follower { leader: Some(leader), .. } => self.node_of(leader),
            _ => None,
        }
    }

    /// The leader's node has not listed the group, or has not been heard for `silence`. Returns
    /// whether the replica needs ticks.
    pub(crate) fn lose_support(&mut self, silence: Ticks) -> bool {
        self.is_supported = false;
        let elapsed = &mut self.raft.raft.election_elapsed;
        *elapsed = (*elapsed).max(silence.0 as usize);
        !self.has_given_up()
    }

    /// A learner needs ticks only to see that a leader that it knew is gone: it may have to vote,
    /// if it has missed that it is a voter.
    fn has_given_up(&self) -> bool {
        let raft = &self.raft.raft;
        let elapsed = Ticks(raft.election_elapsed as u64);
        let has_no_leader =
            raft.leader_id == raft::INVALID_ID || elapsed >= self.timing.election_ticks;
        has_no_leader && !raft.promotable()
    }

    /// Sends a heartbeat to all followers.
    pub(crate) fn ping(&mut self) {
        self.raft.ping();
    }

    pub(crate) fn propose(&mut self, command: Bytes) -> Result<Proposed, ProposeError> {
        if !self.is_leader() {
            return Err(ProposeError::NotLeader(self.not_leader()));
        }
        if command.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::TooLong);
        }
        let body = Body::Command(command);
        self.append(body).ok_or(ProposeError::Busy)
    }

    fn append(&mut self, body: Body) -> Option<Proposed> {
        let index = LogIndex(self.raft.raft.raft_log.last_index() + 1);
        let entry = Entry { term: self.term(), index, body }.to_raft();
        let mut message = pb::Message::default();
        message.set_msg_type(pb::MessageType::MsgPropose);
        (message.from, message.entries) = (self.replica.0, vec![entry].into());
        self.raft.raft.step(message).ok()?;
        Some(Proposed { term: self.term(), index })
    }

    pub(crate) fn change(&mut self, change: Change) -> Result<Proposed, ChangeError> {
        if !self.is_leader() {
            return Err(ChangeError::NotLeader(self.not_leader()));
        }
        if self.raft.raft.has_pending_conf() {
            return Err(ChangeError::Busy);
        }
        let step = self.members.step(change).ok_or(ChangeError::Invalid)?;
        match change {
            Change::Remove(replica) if replica == self.replica => return Err(ChangeError::Leader),
            Change::Promote(replica) if !self.is_near(replica) => return Err(ChangeError::Behind),
            _ => {}
        }
        self.append(Body::Members(MembersStep(step))).ok_or(ChangeError::Busy)
    }

    /// Whether a replica has nearly all entries.
    fn is_near(&self, replica: ReplicaId) -> bool {
        let log = &self.raft.raft.raft_log;
        self.raft.raft.prs().get(replica.0).is_some_and(|progress| {
            progress.matched > 0 && progress.matched + PROMOTION_LAG >= log.last_index()
        })
    }

    /// Returns whether the leader tries it. It ends with the loss of the lead, or without it after
    /// an election time-out; proposals are refused for as long.
    pub(crate) fn transfer(&mut self, to: ReplicaId) -> bool {
        if !self.is_leader() || to == self.replica || !self.members.is_voter(to) {
            return false;
        }
        self.handed_over = self.term();
        self.raft.transfer_leader(to.0);
        true
    }

    pub(crate) fn read(&mut self, read: ReadId) -> Result<(), NotLeader> {
        if !self.is_leader() {
            return Err(self.not_leader());
        }
        self.reads.ask(read);
        Ok(())
    }

    pub(crate) fn snapshot_taken(&mut self, index: LogIndex, kept_entries: u64) -> Option<Base> {
        let store = self.raft.store();
        if index <= store.snapshot().index || index > self.applied {
            return None;
        }
        let term = store.term_of(index).expect("applied entries are in memory");
        let known = self.history.iter().rev().find(|(at, _)| *at <= index);
        let members = match known.filter(|_| !Planted::SnapshotKeepsMembers.is_on()) {
            Some((_, members)) => members.clone(),
            None => store.snapshot().members.clone(),
        };
        let base = Base { index, term, members };
        self.history.retain(|(at, _)| *at > index);
        self.raft.mut_store().compact(base.clone(), kept_entries);
        Some(base)
    }

    pub(crate) fn checkpoint(&self) -> Vec<Record> {
        let store = self.raft.store();
        let mut records = vec![Record::Replica(self.replica), Record::HardState(self.hard)];
        if !store.snapshot().is_none() {
            records.push(Record::Base(store.snapshot().clone()));
        }
        records.extend(store.behind_snapshot().map(|e| Record::Entry(Entry::from_raft(e))));
        records
    }

    pub(crate) fn snapshot_sent(&mut self, to: ReplicaId, is_complete: bool) {
        let status = match is_complete {
            true => SnapshotStatus::Finish,
            false => SnapshotStatus::Failure,
        };
        self.raft.report_snapshot(to.0, status);
    }

    /// Returns whether the snapshot is installed by the next batch; otherwise nobody needs it.
    pub(crate) fn snapshot_received(&mut self, request: &SnapshotRequest) -> Result<bool, Refusal> {
        let SnapshotRequest { from, to, term, base, .. } = request;
        let is_valid = base.is_valid()
            && base.term <= *term
            && (1..=MAX_NUMBER).contains(&term.0)
            && (1..=MAX_NUMBER).contains(&from.0)
            && *from != self.replica;
        if !is_valid {
            return Err(Refusal::Invalid);
        }
        if *to != self.replica {
            return Err(Refusal::NoReplica { replica: *to });
        }
        if self.raft.snap().is_some() {
            return Err(Refusal::Unforced);
        }
        let mut message = pb::Message::default();
        message.set_msg_type(pb::MessageType::MsgSnapshot);
        (message.from, message.to, message.term) = (from.0, to.0, term.0);
        message.set_snapshot(storage::snapshot(base));
        if self.raft.step(message).is_err() {
            return Err(Refusal::Invalid);
        }
        let is_pending = self.raft.snap().is_some();
        self.installing = is_pending.then(|| base.clone());
        Ok(is_pending)
    }

    /// The batch and all before it are forced. Returns the messages that may leave now.
    pub(crate) fn forced(&mut self, batch: BatchNumber) -> Vec<Message> {
        let mut released = Vec::new();
        while let Some(held) = self.held.pop_front_if(|held| held.batch <= batch) {
            if let Some(ready) = held.ready {
                self.raft.on_persist_ready(ready);
            }
            released.extend(held.messages);
        }
        let log = &self.raft.raft.raft_log;
        if log.applied < self.applied.0 && self.applied.0 <= log.persisted {
            // An installed snapshot counts as applied once it is forced.
            self.raft.advance_apply_to(self.applied.0);
        }
        released
    }

    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    // Output.

    /// The next records, messages and committed entries, as part of the batch.
    pub(crate) fn collect(&mut self, batch: BatchNumber) -> Collected {
        let mut collected = Collected::default();
        if !self.beginning.is_empty() {
            collected.records = std::mem::take(&mut self.beginning);
            collected.must_force = true;
            let messages = Vec::new();
            self.held.push_back(Held { batch, ready: None, has_promise: true, messages });
        }
        if self.is_only_voter() && self.applied.0 == self.raft.raft.raft_log.committed {
            self.campaign(Ticks(u64::MAX));
        }
        self.start_round();
        let mut output = Output::new(self.id);
        if self.raft.has_ready() {
            self.collect_ready(batch, &mut collected, &mut output);
        }
        self.report(&mut output);
        collected.output = (!output.is_empty()).then_some(output);
        collected
    }

    pub(crate) fn has_more(&self) -> bool {
        self.raft.has_ready()
    }

    fn collect_ready(&mut self, batch: BatchNumber, into: &mut Collected, output: &mut Output) {
        let mut ready = self.raft.ready();
        let mut must_force = ready.must_sync();
        let mut has_promise = false;
        if let Some(hard) = ready.hs() {
            let vote = (hard.vote != raft::INVALID_ID).then_some(ReplicaId(hard.vote));
            let (term, commit) = (Term(hard.term), self.hard.commit);
            // A commit index is not worth a record: the next leader knows it.
            if (term, vote) != (self.hard.term, self.hard.vote) {
                has_promise = true;
                self.hard = HardState { term, vote, commit };
                into.records.push(Record::HardState(self.hard));
            }
        }
        if !ready.snapshot().is_empty() {
            let base = self.installing.take().expect("raft-rs installs what it was given");
            self.raft.mut_store().install(base.clone());
            self.members = base.members.clone();
            self.strangers.clear();
            self.history.clear();
            self.applied = base.index;
            into.has_new_members = true;
            into.records.push(Record::Base(base.clone()));
            output.install = Some(base);
        }
        let entries = ready.take_entries();
        into.records.extend(entries.iter().map(|entry| Record::Entry(Entry::from_raft(entry))));
        self.raft.mut_store().append(entries);
        for state in ready.take_read_states() {
            let reads = self.reads.end_round(round(&state.request_ctx));
            output.reads.extend(reads.into_iter().map(|read| (read, LogIndex(state.index))));
        }
        let mut leaving = self.messages(ready.take_messages(), output);
        let mut held = self.messages(ready.take_persisted_messages(), output);
        if has_promise || self.held.iter().any(|it| it.has_promise) {
            held.append(&mut leaving);
        }
        let committed = ready.take_committed_entries();
        let number = ready.number();
        self.raft.advance_append_async(ready);
        if self.apply(&committed) {
            into.has_new_members = true;
            self.hard.commit = self.applied;
            into.records.push(Record::HardState(self.hard));
            must_force = true;
        }
        output.committed = committed.iter().map(Entry::from_raft).collect();
        into.messages.extend(leaving);
        if must_force {
            into.must_force = true;
            into.messages.extend(held.extract_if(.., |message| is_premature(message)));
        }
        if must_force || self.is_holding() {
            let batch =
                if must_force { batch } else { self.held.back().map_or(batch, |h| h.batch) };
            self.held.push_back(Held { batch, ready: Some(number), has_promise, messages: held });
        } else {
            self.raft.on_persist_ready(number);
            into.messages.extend(held);
        }
    }

    /// Translates raft-rs's messages. Snapshots become requests to the caller.
    fn messages(&self, messages: Vec<pb::Message>, output: &mut Output) -> Vec<Message> {
        let mut translated = Vec::with_capacity(messages.len());
        for message in messages {
            if message.get_msg_type() == pb::MessageType::MsgSnapshot {
                let to = ReplicaId(message.to);
                // A replica that has been removed since has no address.
                if let Some(node) = self.node_of(to) {
                    let (group, from, term) = (self.id, self.replica, Term(message.term));
                    let base = self.raft.store().snapshot().clone();
                    output.snapshots.push((node, SnapshotRequest { group, from, to, term, base }));
                }
            } else if let Some(message) = Message::from_raft(message) {
                translated.extend(message.split(APPEND_BYTES));
            }
        }
        translated
    }

    /// Applies the membership changes among the entries. Returns whether there are any.
    fn apply(&mut self, committed: &[pb::Entry]) -> bool {
        let mut has_changed = false;
        let Some(last) = committed.last() else { return false };
        for entry in committed {
            let Body::Members(MembersStep(step)) = Entry::from_raft(entry).body else { continue };
            let Some(members) = self.members.after(step) else { continue };
            let change = storage::conf_change(step);
            self.raft.apply_conf_change(&change).expect("raft-rs accepts what the members accept");
            self.members = members.clone();
            self.history.push((LogIndex(entry.index), members));
            self.strangers.clear();
            has_changed = true;
        }
        if has_changed && self.leader_node().is_none() {
            // No node's beats list the group under a leader that was removed.
            self.is_supported = false;
        }
        self.applied = LogIndex(last.index);
        self.raft.advance_apply_to(last.index);
        let is_leader = self.raft.raft.state == StateRole::Leader;
        if is_leader && !self.members.is_voter(self.replica) {
            let term = self.raft.raft.term;
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
        has_changed
    }

    fn report(&mut self, output: &mut Output) {
        let leadership = self.current_leadership();
        if leadership != self.leadership {
            self.leadership = leadership;
            self.is_supported = false;
            output.lost_reads = self.reads.lose();
            output.leadership = Some(leadership);
        }
        let log = &self.raft.raft.raft_log;
        let committed = match Planted::CommittedAlone.is_on() && self.is_leader() {
            true => LogIndex(log.persisted),
            false => LogIndex(log.committed),
        };
        if committed > self.committed {
            self.committed = committed;
            output.commit = Some(committed);
        }
        output.is_removed = std::mem::take(&mut self.is_removed);
        output.wants_snapshot = self.raft.store().take_wants_snapshot();
        if Planted::ReadWithoutQuorum.is_on() && self.is_leader() {
            let committed = self.committed;
            let reads = self.reads.lose().into_iter();
            output.reads.extend(reads.map(|read| (read, committed)));
        }
    }

    fn start_round(&mut self) {
        let is_ready = self.is_leader() && self.raft.raft.commit_to_current_term();
        if is_ready
            && !Planted::ReadWithoutQuorum.is_on()
            && let Some(number) = self.reads.start_round()
        {
            self.raft.read_index(number.to_le_bytes().to_vec());
        }
    }

    // Rest.

    /// Whether the replica needs no ticks until something happens.
    pub(crate) fn is_idle(&self, is_live: impl Fn(NodeId) -> bool, now: Ticks) -> bool {
        if self.raft.has_ready() || self.is_holding() || !self.beginning.is_empty() {
            return false;
        }
        match self.raft.raft.state {
            StateRole::Leader => self.is_leader_idle(is_live),
            StateRole::Follower => {
                self.is_supported && now < self.promised_until || self.has_given_up()
            }
            StateRole::Candidate | StateRole::PreCandidate => false,
        }
    }

    fn is_leader_idle(&self, is_live: impl Fn(NodeId) -> bool) -> bool {
        let log = &self.raft.raft.raft_log;
        let last = log.last_index();
        let is_own_done = log.committed == last && self.applied.0 == last;
        let is_live = |member: &Member| member.replica == self.replica || is_live(member.node);
        let has_all = |member: &Member| {
            let progress = self.raft.raft.prs().get(member.replica.0);
            member.replica == self.replica
                || progress.is_some_and(|progress| {
                    progress.matched == last && progress.committed_index == last
                })
        };
        is_own_done
            && self.reads.is_empty()
            && self.raft.raft.lead_transferee.is_none()
            && self.members.voters().filter(|member| is_live(member)).count()
                >= self.members.quorum()
            && self.members.members().iter().all(|member| !is_live(member) || has_all(member))
    }

    /// Begins to rest. The check for a quorum begins anew when the leader wakes.
    pub(crate) fn rest(&mut self) {
        if self.is_leader() {
            self.raft.raft.election_elapsed = 0;
        }
    }

    pub(crate) fn is_only_voter(&self) -> bool {
        self.members.is_voter(self.replica) && self.members.voters().count() == 1
    }

    /// Whether all records of the replica are forced.
    fn is_settled(&self) -> bool {
        let log = &self.raft.raft.raft_log;
        self.held.is_empty()
            && self.beginning.is_empty()
            && log.unstable_entries().is_empty()
            && log.unstable_snapshot().is_none()
            && log.persisted == log.last_index()
    }
}

/// Whether a planted bug sends the message before its record is forced.
fn is_premature(message: &Message) -> bool {
    match message.body {
        MessageBody::Vote { .. } | MessageBody::RequestVote { .. } => {
            Planted::VoteBeforeForce.is_on()
        }
        MessageBody::Accepted { .. } => Planted::AcceptBeforeForce.is_on(),
        _ => false,
    }
}
