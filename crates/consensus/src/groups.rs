//! All groups of a shard: one batch of records for one append and one force, and one packet for
//! each other node.

use crate::group::{Collected, Group};
use crate::members::{Base, Change, DirectoryId, NodeId, ReplicaId};
use crate::message::{Beat, Message, MessageBody, Origin, Packet, RunId};
use crate::output::{
    Batch, BatchNumber, ChangeError, NotLeader, ProposeError, Proposed, ReadId, Refusal,
    RestoreError, SnapshotRequest, Status,
};
use crate::peer::Peer;
use crate::record::{Record, Recovered};
use crate::timer::{Ticks, Timing};
use bytes::Bytes;
use ebb_model::{GroupId, LogIndex, Planted, Term};
use std::collections::{BTreeMap, BTreeSet};

/// The node and its clock, as far as its groups need them.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub node: NodeId,
    pub directory: DirectoryId,
    /// Drawn at random at the start of the process.
    pub run: RunId,
    /// Drawn at random at the start of the process. Election time-outs derive from it.
    pub seed: u64,
    pub timing: Timing,
    /// Entries up to a snapshot that stay in memory, for followers that are a little behind.
    pub kept_entries: u64,
}

/// The groups of a node, or of one shard of it. The owner of all their consensus state; the states
/// that the groups agree on are the caller's.
///
/// Laws:
/// - A group that is not in `active` gets no ticks and sends nothing.
/// - A group in `touched` may have something for the next batch; no other has.
pub struct Groups {
    config: Config,
    now: Ticks,
    groups: BTreeMap<GroupId, Group>,
    /// The last replicas of groups that have none here.
    removed: BTreeMap<GroupId, ReplicaId>,
    /// Records of removals for the next batch.
    removals: Vec<(GroupId, Record)>,
    /// Groups of which this node has the leader.
    led: BTreeSet<GroupId>,
    active: BTreeSet<GroupId>,
    touched: BTreeSet<GroupId>,
    /// Groups with records that are not forced.
    holding: BTreeSet<GroupId>,
    peers: BTreeMap<NodeId, Peer>,
    outbox: BTreeMap<NodeId, Outgoing>,
    last_batch: BatchNumber,
}

#[derive(Default)]
struct Outgoing {
    beat: Option<Beat>,
    messages: Vec<(GroupId, Message)>,
}

/// Messages of one packet in total, unless one alone is longer. With headers it fits a frame of 1
/// MiB + 64 KiB.
pub const PACKET_BYTES: usize = 768 << 10;

/// A message of a term that is further ahead is refused.
const MAX_TERM_STEP: u64 = 1 << 32;

/// Other nodes with replicas of the same groups.
const MAX_PEERS: usize = 1024;

impl Groups {
    pub fn new(config: Config) -> Groups {
        let Timing { beat_ticks, heartbeat_ticks, election_ticks, .. } = config.timing;
        let is_between = |ticks: Ticks| Ticks(0) < ticks && ticks < election_ticks;
        assert!(is_between(beat_ticks) && is_between(heartbeat_ticks), "the law of Timing");
        Groups {
            config,
            now: Ticks(0),
            groups: BTreeMap::new(),
            removed: BTreeMap::new(),
            removals: Vec::new(),
            led: BTreeSet::new(),
            active: BTreeSet::new(),
            touched: BTreeSet::new(),
            holding: BTreeSet::new(),
            peers: BTreeMap::new(),
            outbox: BTreeMap::new(),
            last_batch: BatchNumber(0),
        }
    }

    // Replicas.

    /// Goes on with a replica from its records.
    pub fn restore(&mut self, id: GroupId, recovered: &Recovered) -> Result<(), RestoreError> {
        self.expect_none(id)?;
        if recovered.is_removed {
            self.removed.insert(id, recovered.replica());
            return Ok(());
        }
        let binding = recovered.base.members.get(recovered.replica());
        if binding
            .is_some_and(|it| (it.node, it.directory) != (self.config.node, self.config.directory))
        {
            return Err(RestoreError::OtherDirectory);
        }
        let seed = self.seed(id);
        let group = Group::restore(id, recovered, self.config.timing, seed, self.now);
        self.insert(id, group);
        Ok(())
    }

    /// Begins a group with this node as its only voter. The snapshot that `base` names is durable;
    /// its members are [`crate::Membership::first`] of this node.
    pub fn begin(&mut self, id: GroupId, base: Base) -> Result<(), RestoreError> {
        self.expect_none(id)?;
        let own = base.members.get(ReplicaId::FIRST);
        if !base.is_valid() || base.members.members().len() != 1 {
            return Err(RestoreError::Base);
        }
        if own.is_none_or(|it| (it.node, it.directory) != (self.config.node, self.config.directory))
        {
            return Err(RestoreError::OtherDirectory);
        }
        let seed = self.seed(id);
        self.insert(id, Group::begin(id, base, self.config.timing, seed));
        Ok(())
    }

    /// Creates the empty replica that a leader has added for this node.
    pub fn join(&mut self, id: GroupId, replica: ReplicaId) -> Result<(), RestoreError> {
        self.expect_none(id)?;
        if self.removed.get(&id).is_some_and(|last| replica <= *last) {
            return Err(RestoreError::Used);
        }
        let seed = self.seed(id);
        self.insert(id, Group::join(id, replica, self.config.timing, seed));
        Ok(())
    }

    /// Ends the replica on this node. The caller has removed it from the group, or wants to.
    pub fn remove(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.removed.insert(id, group.replica());
        self.removals.push((id, Record::Removed(group.replica())));
        for set in [&mut self.led, &mut self.active, &mut self.touched, &mut self.holding] {
            set.remove(&id);
        }
        self.meet_members();
    }

    fn expect_none(&self, id: GroupId) -> Result<(), RestoreError> {
        if self.groups.contains_key(&id) { Err(RestoreError::Exists) } else { Ok(()) }
    }

    fn insert(&mut self, id: GroupId, group: Group) {
        self.groups.insert(id, group);
        self.touch(id);
        self.meet_members();
    }

    /// Of a group's election time-outs.
    fn seed(&self, id: GroupId) -> u64 {
        self.config.seed ^ u64::from(id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    pub fn ids(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    pub fn status(&self, id: GroupId) -> Option<Status> {
        self.groups.get(&id).map(Group::status)
    }

    /// Groups that get ticks.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    // Calls of a group.

    /// Appends a command, if this node has the leader.
    pub fn propose(&mut self, id: GroupId, command: Bytes) -> Result<Proposed, ProposeError> {
        let none = ProposeError::NotLeader(NotLeader { leader: None });
        self.touched(id).ok_or(none)?.propose(command)
    }

    /// Asks for a state to answer a read from; [`crate::Output::reads`] answers. The leader asks
    /// its followers whether it still leads. Reads that come in the meantime are asked together.
    pub fn read(&mut self, id: GroupId, read: ReadId) -> Result<(), NotLeader> {
        self.touched(id).ok_or(NotLeader { leader: None })?.read(read)
    }

    /// Changes the members, one change at a time.
    pub fn change(&mut self, id: GroupId, change: Change) -> Result<Proposed, ChangeError> {
        let none = ChangeError::NotLeader(NotLeader { leader: None });
        self.touched(id).ok_or(none)?.change(change)
    }

    /// Hands the lead to another voter. Returns whether the leader tries it: the attempt ends after
    /// an election time-out, and [`Groups::support`] with it for the rest of the term.
    pub fn transfer(&mut self, id: GroupId, to: ReplicaId) -> bool {
        self.touched(id).is_some_and(|group| group.transfer(to))
    }

    /// Starts an election now, unless this node supports a leader.
    pub fn campaign(&mut self, id: GroupId) {
        let now = self.now;
        if let Some(group) = self.touched(id) {
            group.campaign(now);
        }
    }

    /// The caller has a durable snapshot of the state up to `index`, an applied entry. Returns the
    /// header for the snapshot, or `None` if it is not newer than the last one. The log needs no
    /// records of the group before it.
    pub fn snapshot_taken(&mut self, id: GroupId, index: LogIndex) -> Option<Base> {
        let kept_entries = self.config.kept_entries;
        self.groups.get_mut(&id)?.snapshot_taken(index, kept_entries)
    }

    /// Records that say all of a group's records so far. With them at its end, the log needs none
    /// of the group's older ones but those of batches that are not appended yet, of which there
    /// must be none.
    pub fn checkpoint(&self, id: GroupId) -> Vec<Record> {
        self.groups.get(&id).map(Group::checkpoint).unwrap_or_default()
    }

    /// The end of sending a snapshot.
    pub fn snapshot_sent(&mut self, id: GroupId, to: ReplicaId, is_complete: bool) {
        if let Some(group) = self.touched(id) {
            group.snapshot_sent(to, is_complete);
        }
    }

    /// A snapshot has come from a leader's node, and is durable. Returns whether the next batch
    /// installs it; otherwise it is not needed.
    pub fn snapshot_received(
        &mut self,
        from: Origin,
        request: &SnapshotRequest,
    ) -> Result<bool, Refusal> {
        self.admit(from, request.group, request.from, request.to)?;
        let replica = request.to;
        let group = self.touched(request.group).ok_or(Refusal::NoReplica { replica })?;
        group.snapshot_received(request)
    }

    /// Until when a majority of the voters, this node included, has promised to support this node
    /// as leader. `None` if it does not lead, or has tried to transfer the lead in its term.
    ///
    /// Counted as [`Groups::now`]: before a caller relies on it, it ticks for all time that has
    /// passed, also for a time in which the process did not run. The caller subtracts the drift of
    /// clocks.
    pub fn support(&self, id: GroupId) -> Option<Ticks> {
        let group = self.groups.get(&id).filter(|group| group.can_be_supported())?;
        let of_voter = |node: NodeId| match node == self.config.node {
            true => Some(self.now + self.config.timing.election_ticks),
            false => self.peers.get(&node)?.support(id, group.term()),
        };
        let mut ends: Vec<Ticks> = group
            .members()
            .voters()
            .map(|voter| of_voter(voter.node).unwrap_or_default())
            .collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(group.members().quorum() - 1).copied().filter(|end| *end > self.now)
    }

    pub fn now(&self) -> Ticks {
        self.now
    }

    fn touch(&mut self, id: GroupId) {
        self.touched.insert(id);
        self.active.insert(id);
    }

    fn touched(&mut self, id: GroupId) -> Option<&mut Group> {
        if self.groups.contains_key(&id) {
            self.touch(id);
        }
        self.groups.get_mut(&id)
    }

    // Time.

    /// One tick of the node's clock has passed.
    pub fn tick(&mut self) {
        self.now = self.now + Ticks(1);
        let (now, patience) = (self.now, self.config.timing.election_ticks);
        let is_lost = |peer: &Peer| peer.heard_at().is_some_and(|at| at + patience == now);
        let lost: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| is_lost(peer)).map(|(node, _)| *node).collect();
        for node in lost {
            self.lose(node);
        }
        if self.now.0.is_multiple_of(self.config.timing.beat_ticks.0) {
            self.beat();
        }
        for id in Vec::from_iter(self.active.iter().copied()) {
            self.tick_group(id);
        }
    }

    fn tick_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (peers, now, patience) = (&self.peers, self.now, self.config.timing.election_ticks);
        let is_live = |node| is_live(peers, node, now, patience);
        if group.is_idle(is_live, now) {
            group.rest();
            self.active.remove(&id);
        } else {
            group.tick(now);
            self.touched.insert(id);
        }
    }

    fn beat(&mut self) {
        for (node, peer) in &self.peers {
            let led = self.led.iter().filter_map(|id| Some((*id, self.groups.get(id)?)));
            let shared = led.filter(|(_, group)| group.nodes().any(|other| other == *node));
            let leads = shared.map(|(id, group)| (id, group.term())).collect();
            self.outbox.entry(*node).or_default().beat = Some(peer.beat(leads, self.now));
        }
    }

    /// A node has been silent for an election time-out.
    fn lose(&mut self, node: NodeId) {
        for (id, group) in &mut self.groups {
            if group.leader_node() == Some(node) {
                if group.lose_support(self.config.timing.election_ticks) {
                    self.active.insert(*id);
                }
            } else if group.is_leader() && group.nodes().any(|other| other == node) {
                self.active.insert(*id);
            }
        }
    }

    // Packets.

    /// Takes a packet of another node. Its certificate or connection proves `from.node` and
    /// `from.directory`. Returns the messages that were dropped, and why.
    pub fn receive(&mut self, packet: Packet) -> Vec<(Option<GroupId>, Refusal)> {
        let Packet { from, to, beat, messages } = packet;
        if to != self.config.node || from.node == to {
            return vec![(None, Refusal::OtherNode)];
        }
        let mut refused = Vec::new();
        if let Err(refusal) = self.hear(from, beat.as_ref()) {
            return vec![(None, refusal)];
        }
        if let Some(beat) = beat {
            self.receive_beat(from, beat);
        }
        for (id, message) in messages {
            let is_notice = message.body == MessageBody::Removed;
            let (sender, receiver, term) = (message.from, message.to, message.term);
            if let Err(refusal) = self.receive_message(from, id, message) {
                // A removal that is not forced here can still be taken back by a power cut.
                let is_forced = !self.holding.contains(&id);
                if refusal == Refusal::Removed && !is_notice && is_forced {
                    // The sender may ask a replica that this node does not have any more.
                    let from_replica = self.groups.get(&id).map_or(receiver, Group::replica);
                    let body = MessageBody::Removed;
                    let notice = Message { from: from_replica, to: sender, term, body };
                    self.outbox.entry(from.node).or_default().messages.push((id, notice));
                }
                refused.push((Some(id), refusal));
            }
        }
        refused
    }

    fn hear(&mut self, from: Origin, beat: Option<&Beat>) -> Result<(), Refusal> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&from.node) {
            return Err(Refusal::Stranger);
        }
        let peer = self.peers.entry(from.node).or_default();
        let (own, patience) = (self.config.run, self.config.timing.election_ticks);
        if peer.hear(from, beat, own, self.now, patience)? {
            // Its replicas may have missed something, or know no leader.
            for id in Vec::from_iter(self.led.iter().copied()) {
                if self.groups[&id].nodes().any(|node| node == from.node) {
                    self.touch(id);
                    self.groups.get_mut(&id).expect("is there").ping();
                }
            }
        }
        Ok(())
    }

    fn receive_beat(&mut self, from: Origin, beat: Beat) {
        let Beat { sent_at, leads, support, echo: _ } = beat;
        let leads: BTreeMap<GroupId, Term> = leads.into_iter().collect();
        let mut promised = Vec::new();
        for (id, group) in &mut self.groups {
            let listed = leads.get(id).copied();
            if listed.is_some_and(|term| group.support(from.node, term, self.now)) {
                promised.push((*id, group.term()));
            } else if group.leader_node() == Some(from.node) && group.lose_support(Ticks(0)) {
                self.active.insert(*id);
            }
        }
        let Some(peer) = self.peers.get_mut(&from.node) else { return };
        peer.promise(from.run, sent_at, promised);
        if let Some(support) = support {
            let length = self.config.timing.election_ticks;
            peer.supported_by(support, self.config.run, self.now, length);
        }
    }

    fn receive_message(
        &mut self,
        from: Origin,
        id: GroupId,
        message: Message,
    ) -> Result<(), Refusal> {
        self.admit(from, id, message.from, message.to)?;
        let now = self.now;
        let replica = message.to;
        let group = self.touched(id).ok_or(Refusal::NoReplica { replica })?;
        // A term that no number of elections leads to would leave none for later ones.
        if message.term.0 > group.term().0.saturating_add(MAX_TERM_STEP) {
            return Err(Refusal::Invalid);
        }
        if matches!(message.body, MessageBody::RequestVote { .. }) && group.is_leader() {
            // The sender has missed the end of an election, and a resting leader sends nothing.
            group.ping();
        }
        group.step(message, now)
    }

    /// Whether a message is from the replica that it names, and for one that is here.
    fn admit(
        &mut self,
        from: Origin,
        id: GroupId,
        sender: ReplicaId,
        to: ReplicaId,
    ) -> Result<(), Refusal> {
        let group = self.groups.get_mut(&id).ok_or(Refusal::NoReplica { replica: to })?;
        if group.replica() != to {
            return Err(match group.members().was_removed(sender) {
                true => Refusal::Removed,
                false => Refusal::NoReplica { replica: to },
            });
        }
        match group.members().get(sender) {
            Some(_) if Planted::WipedReplicaVotes.is_on() => Ok(()),
            Some(member) if (member.node, member.directory) == (from.node, from.directory) => {
                Ok(())
            }
            Some(_) => Err(Refusal::OtherDirectory),
            None if group.members().was_removed(sender) => Err(Refusal::Removed),
            None => {
                group.meet(sender, from.node);
                Ok(())
            }
        }
    }

    // Batches.

    /// The next batch, or `None` if there is nothing to do. The caller asks again until then.
    pub fn poll(&mut self) -> Option<Batch> {
        let number = BatchNumber(self.last_batch.0 + 1);
        let mut batch = Batch {
            number,
            records: std::mem::take(&mut self.removals),
            must_force: false,
            packets: Vec::new(),
            outputs: Vec::new(),
        };
        for id in std::mem::take(&mut self.touched) {
            self.collect(id, &mut batch);
        }
        for (node, outgoing) in std::mem::take(&mut self.outbox) {
            outgoing.pack(self.origin(), node, &mut batch.packets);
        }
        let is_empty =
            batch.records.is_empty() && batch.packets.is_empty() && batch.outputs.is_empty();
        if is_empty {
            return None;
        }
        self.last_batch = number;
        Some(batch)
    }

    fn collect(&mut self, id: GroupId, batch: &mut Batch) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let collected = group.collect(batch.number);
        let Collected { records, must_force, messages, output, has_new_members } = collected;
        if group.is_leader() {
            self.led.insert(id);
        } else {
            self.led.remove(&id);
        }
        if group.has_more() {
            self.touched.insert(id);
        }
        if group.is_holding() {
            self.holding.insert(id);
        }
        let tagged = |record: Record| (id, record);
        batch.records.extend(records.into_iter().map(tagged));
        batch.must_force |= must_force;
        batch.outputs.extend(output);
        self.send(id, messages);
        if has_new_members {
            self.meet_members();
        }
    }

    /// The log is forced up to the end of this batch.
    pub fn forced(&mut self, number: BatchNumber) {
        for id in Vec::from_iter(self.holding.iter().copied()) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let released = group.forced(number);
            if !group.is_holding() {
                self.holding.remove(&id);
            }
            self.touched.insert(id);
            self.send(id, released);
        }
    }

    fn send(&mut self, id: GroupId, messages: Vec<Message>) {
        let Some(group) = self.groups.get(&id) else { return };
        for message in messages {
            // A message to a replica that has been removed has no address.
            if let Some(node) = group.node_of(message.to) {
                self.outbox.entry(node).or_default().messages.push((id, message));
            }
        }
    }

    fn origin(&self) -> Origin {
        let Config { node, directory, run, .. } = self.config;
        Origin { node, directory, run }
    }

    /// Begins to send beats to new members' nodes, and ends it for nodes without members.
    fn meet_members(&mut self) {
        let nodes: BTreeSet<NodeId> = self
            .groups
            .values()
            .flat_map(Group::nodes)
            .filter(|it| *it != self.config.node)
            .collect();
        self.peers.retain(|node, _| nodes.contains(node));
        for node in nodes {
            self.peers.entry(node).or_default();
        }
    }
}

/// Whether a node has been heard within an election time-out.
fn is_live(peers: &BTreeMap<NodeId, Peer>, node: NodeId, now: Ticks, patience: Ticks) -> bool {
    let heard_at = peers.get(&node).and_then(Peer::heard_at);
    heard_at.is_some_and(|at| now - at < patience)
}

impl Outgoing {
    fn pack(self, from: Origin, to: NodeId, packets: &mut Vec<Packet>) {
        let mut packet = Packet { from, to, beat: self.beat, messages: Vec::new() };
        let mut len_bytes = 0;
        for (id, message) in self.messages {
            let message_bytes = message.len_bytes();
            if !packet.messages.is_empty() && len_bytes + message_bytes > PACKET_BYTES {
                let next = Packet { from, to, beat: None, messages: Vec::new() };
                packets.push(std::mem::replace(&mut packet, next));
                len_bytes = 0;
            }
            len_bytes += message_bytes;
            packet.messages.push((id, message));
        }
        packets.push(packet);
    }
}
