//! Situations of few replicas, one law each.

use bytes::Bytes;
use ebb_consensus::*;
use ebb_model::{GroupId, LogIndex, Term};
use std::collections::BTreeSet;

const GROUP: GroupId = GroupId(1);
const TIMING: Timing =
    Timing { beat_ticks: Ticks(2), heartbeat_ticks: Ticks(2), election_ticks: Ticks(10) };

/// Nodes without network latency. Their disks force at once, unless they are slow.
struct Nodes {
    nodes: Vec<Node>,
    cut: BTreeSet<NodeId>,
    packets: usize,
    messages: usize,
}

struct Node {
    id: NodeId,
    groups: Groups,
    is_slow: bool,
    unforced: Vec<BatchNumber>,
    records: Vec<(GroupId, Record)>,
    committed: Vec<(GroupId, Entry)>,
    reads: Vec<(ReadId, LogIndex)>,
    lost_reads: Vec<ReadId>,
}

fn config(node: u64, directory: u128, run: u128) -> Config {
    let seed = run as u64;
    let (node, directory, run) = (NodeId(node), DirectoryId(directory), RunId(run));
    Config { node, directory, run, seed, timing: TIMING, kept_entries: 8 }
}

fn base(node: u64, directory: u128) -> Base {
    let members = Membership::first(NodeId(node), DirectoryId(directory));
    Base { index: LogIndex(1), term: Term(1), members }
}

fn origin(node: u64, directory: u128, run: u128) -> Origin {
    Origin { node: NodeId(node), directory: DirectoryId(directory), run: RunId(run) }
}

impl Node {
    fn new(config: Config) -> Node {
        Node {
            id: config.node,
            groups: Groups::new(config),
            is_slow: false,
            unforced: Vec::new(),
            records: Vec::new(),
            committed: Vec::new(),
            reads: Vec::new(),
            lost_reads: Vec::new(),
        }
    }

    /// Performs all batches, and returns their packets.
    fn pump(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        while let Some(batch) = self.groups.poll() {
            packets.extend(batch.packets);
            self.records.extend(batch.records);
            match (batch.must_force, self.is_slow) {
                (true, true) => self.unforced.push(batch.number),
                (true, false) => self.groups.forced(batch.number),
                (false, _) => {}
            }
            for output in batch.outputs {
                let group = output.group;
                self.committed.extend(output.committed.into_iter().map(|entry| (group, entry)));
                self.reads.extend(output.reads);
                self.lost_reads.extend(output.lost_reads);
                if output.wants_snapshot {
                    let applied = self.groups.status(group).unwrap().applied;
                    self.groups.snapshot_taken(group, applied);
                }
                assert!(output.snapshots.len() <= 1);
                for (_, request) in output.snapshots {
                    packets.extend(self.stream(request));
                }
            }
        }
        packets
    }

    /// The toy of these tests has no state, so a snapshot is its header. It is marked by a packet
    /// without content behind it.
    fn stream(&mut self, request: SnapshotRequest) -> Vec<Packet> {
        SNAPSHOTS.with_borrow_mut(|all| all.push(request));
        Vec::new()
    }

    fn commands(&self) -> usize {
        let is_command = |(_, entry): &&(GroupId, Entry)| matches!(entry.body, Body::Command(_));
        self.committed.iter().filter(is_command).count()
    }
}

thread_local! {
    static SNAPSHOTS: std::cell::RefCell<Vec<SnapshotRequest>> = const {
        std::cell::RefCell::new(Vec::new())
    };
}

impl Nodes {
    /// A group with so many voters, led by node 1.
    fn with_voters(count: u64, groups: u32) -> Nodes {
        let nodes = (1..=count).map(|i| Node::new(config(i, i.into(), i.into()))).collect();
        let mut all = Nodes { nodes, cut: BTreeSet::new(), packets: 0, messages: 0 };
        for id in 1..=groups {
            all.nodes[0].groups.begin(GroupId(id), base(1, 1)).unwrap();
        }
        all.settle();
        for node in 2..=count {
            for id in 1..=groups {
                let (node, directory) = (NodeId(node), DirectoryId(node.into()));
                all.leader().change(GroupId(id), Change::Add { node, directory }).unwrap();
                all.run(12);
                let members = all.leader().status(GroupId(id)).unwrap().members;
                let replica = members.on_node(node).unwrap().replica;
                all.leader().change(GroupId(id), Change::Promote(replica)).unwrap();
                all.run(4);
            }
        }
        all
    }

    fn leader(&mut self) -> &mut Groups {
        &mut self.nodes[0].groups
    }

    fn node(&mut self, node: u64) -> &mut Node {
        &mut self.nodes[node as usize - 1]
    }

    fn settle(&mut self) {
        loop {
            let mut packets = Vec::new();
            for node in &mut self.nodes {
                if !self.cut.contains(&node.id) {
                    packets.extend(node.pump());
                }
            }
            let snapshots = SNAPSHOTS.take();
            if packets.is_empty() && snapshots.is_empty() {
                return;
            }
            for packet in packets {
                self.packets += 1;
                self.messages += packet.messages.len();
                self.deliver(packet);
            }
            for request in snapshots {
                let from = self.nodes[0].groups.status(request.group).unwrap().members;
                let (from, to) = (*from.get(request.from).unwrap(), *from.get(request.to).unwrap());
                let origin = origin(from.node.0, from.directory.0, from.node.0.into());
                let target = self.node(to.node.0);
                target.groups.snapshot_received(origin, &request).unwrap();
                let source = self.node(from.node.0);
                source.groups.snapshot_sent(request.group, request.to, true);
            }
        }
    }

    fn deliver(&mut self, packet: Packet) {
        if self.cut.contains(&packet.to) || self.cut.contains(&packet.from.node) {
            return;
        }
        let target = self.node(packet.to.0);
        for (group, refusal) in target.groups.receive(packet) {
            if let Refusal::NoReplica { replica } = refusal {
                target.groups.join(group.unwrap(), replica).unwrap();
            }
        }
    }

    fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            for node in &mut self.nodes {
                node.groups.tick();
            }
            self.settle();
        }
    }

    fn leaders(&self) -> Vec<NodeId> {
        let leads = |node: &&Node| {
            let status = node.groups.status(GROUP);
            status.is_some_and(|it| matches!(it.leadership, Leadership::Leader { .. }))
        };
        self.nodes.iter().filter(leads).map(|node| node.id).collect()
    }

    fn propose(&mut self, command: &'static [u8]) -> Proposed {
        self.leader().propose(GROUP, Bytes::from_static(command)).unwrap()
    }
}

#[test]
fn only_voter_commits_with_its_own_force_and_without_messages() {
    let mut all = Nodes::with_voters(1, 1);
    all.node(1).is_slow = true;
    let records = all.nodes[0].records.len();
    let proposed = all.propose(b"a");
    all.settle();
    assert_eq!(all.nodes[0].records.len(), records + 1, "one record, as in a plain log");
    assert_eq!(all.nodes[0].commands(), 0);
    let number = all.nodes[0].unforced.pop().unwrap();
    all.leader().forced(number);
    all.settle();
    assert_eq!(all.nodes[0].commands(), 1);
    assert_eq!(all.leader().status(GROUP).unwrap().committed, proposed.index);
    all.run(50);
    assert_eq!((all.packets, all.leader().active()), (0, 0));
}

/// Prints the cost of a command of an only voter, without the log.
#[test]
#[ignore = "measures"]
fn cost_of_a_command_of_an_only_voter() {
    const COMMANDS: u32 = 200_000;
    let mut all = Nodes::with_voters(1, 1);
    let command = Bytes::from(vec![7; 256]);
    let begin = std::time::Instant::now();
    for i in 0..COMMANDS {
        let proposed = all.leader().propose(GROUP, command.clone()).unwrap();
        all.nodes[0].pump();
        all.nodes[0].records.clear();
        all.nodes[0].committed.clear();
        if i % 1024 == 0 {
            all.leader().snapshot_taken(GROUP, proposed.index);
        }
    }
    println!("{:?} for each command", begin.elapsed() / COMMANDS);
}

#[test]
fn only_voter_leads_once_its_term_is_forced() {
    let mut node = Node::new(config(1, 1, 1));
    node.is_slow = true;
    node.groups.begin(GROUP, base(1, 1)).unwrap();
    for _ in 0..2 {
        node.pump();
        assert!(node.groups.propose(GROUP, Bytes::from_static(b"a")).is_err());
        let number = node.unforced.pop().unwrap();
        node.groups.forced(number);
    }
    node.pump();
    assert!(node.groups.propose(GROUP, Bytes::from_static(b"a")).is_ok());
}

#[test]
fn term_of_an_only_voter_grows_with_each_run() {
    let mut terms = Vec::new();
    let mut records: Vec<Record> = Vec::new();
    for run in 1..=3 {
        let mut node = Node::new(config(1, 1, run));
        match records.is_empty() {
            true => node.groups.begin(GROUP, base(1, 1)).unwrap(),
            false => {
                node.groups.restore(GROUP, &Recovered::read(records.clone()).unwrap()).unwrap()
            }
        }
        node.pump();
        terms.push(node.groups.status(GROUP).unwrap().leadership.term());
        records.extend(node.records.into_iter().map(|(_, record)| record));
    }
    assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
}

#[test]
fn all_groups_share_one_batch_and_one_packet_for_each_node() {
    let mut all = Nodes::with_voters(3, 20);
    all.run(30);
    for id in 1..=20 {
        all.leader().propose(GroupId(id), Bytes::from_static(b"a")).unwrap();
    }
    let batch = all.leader().poll().unwrap();
    assert_eq!(batch.records.len(), 20);
    assert!(batch.must_force);
    assert_eq!(batch.packets.len(), 2);
    assert!(batch.packets.iter().all(|packet| packet.messages.len() == 20));
}

#[test]
fn idle_groups_cost_one_beat_for_each_pair_of_nodes_and_no_ticks() {
    let mut sent = Vec::new();
    for groups in [1, 40] {
        let mut all = Nodes::with_voters(3, groups);
        all.run(40);
        (all.packets, all.messages) = (0, 0);
        all.run(100);
        assert_eq!(all.messages, 0);
        assert!(all.nodes.iter().all(|node| node.groups.active() == 0));
        sent.push(all.packets);
    }
    assert_eq!(sent, [300, 300], "6 directed pairs, every second tick");
}

#[test]
fn followers_elect_another_leader_when_its_node_is_silent() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(40);
    all.cut.insert(NodeId(1));
    all.run(10 + 20 + 5);
    let leaders = all.leaders();
    assert!(leaders.iter().any(|node| *node != NodeId(1)), "{leaders:?}");
    all.cut.clear();
    all.run(40);
    assert_eq!(all.leaders().len(), 1);
    assert!(all.leaders()[0] != NodeId(1));
}

#[test]
fn support_ends_before_its_promise() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    let support = all.leader().support(GROUP).unwrap();
    assert!(support > all.leader().now());
    all.cut.insert(NodeId(1));
    // Nobody is elected while the leader counts on its support.
    for _ in 0..40 {
        all.run(1);
        let is_alone = all.leaders() == [NodeId(1)];
        assert!(is_alone || all.leader().support(GROUP).is_none());
    }
    assert!(all.leader().support(GROUP).is_none());
}

#[test]
fn reads_of_one_moment_share_a_round() {
    let mut all = Nodes::with_voters(3, 1);
    let proposed = all.propose(b"a");
    all.settle();
    all.messages = 0;
    for read in 0..100 {
        all.leader().read(GROUP, ReadId(read)).unwrap();
    }
    all.settle();
    assert_eq!(all.nodes[0].reads.len(), 100);
    assert!(all.nodes[0].reads.iter().all(|(_, index)| *index >= proposed.index));
    assert_eq!(all.messages, 4, "a heartbeat to both followers, and their answers");
}

#[test]
fn leader_without_a_quorum_answers_no_read() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    all.leader().read(GROUP, ReadId(1)).unwrap();
    all.cut.extend([NodeId(2), NodeId(3)]);
    all.run(50);
    assert!(all.nodes[0].reads.is_empty());
    assert_eq!(all.nodes[0].lost_reads, [ReadId(1)], "the leader has stepped down");
}

#[test]
fn transfer_hands_the_lead_over() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    assert!(all.leader().transfer(GROUP, ReplicaId(3)));
    assert!(all.leader().support(GROUP).is_none());
    all.run(3);
    assert_eq!(all.leaders(), [NodeId(3)]);
}

#[test]
fn transfer_to_a_silent_node_ends() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    all.cut.insert(NodeId(3));
    all.propose(b"a");
    all.settle();
    assert!(all.leader().transfer(GROUP, ReplicaId(3)));
    let command = Bytes::from_static(b"b");
    assert_eq!(all.leader().propose(GROUP, command.clone()), Err(ProposeError::Busy));
    all.run(25);
    assert!(all.leader().propose(GROUP, command).is_ok());
}

#[test]
fn vote_and_acceptance_wait_for_the_force() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    let before = all.nodes[0].commands();
    for node in [2, 3] {
        all.node(node).is_slow = true;
    }
    all.propose(b"a");
    all.settle();
    assert_eq!(all.nodes[0].commands(), before, "the leader alone is no quorum");
    let number = *all.node(2).unforced.last().unwrap();
    all.node(2).groups.forced(number);
    all.settle();
    assert_eq!(all.nodes[0].commands(), before + 1);
}

#[test]
fn members_change_one_at_a_time() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    let groups = all.leader();
    assert_eq!(groups.change(GROUP, Change::Remove(ReplicaId(1))), Err(ChangeError::Leader));
    assert_eq!(groups.change(GROUP, Change::Promote(ReplicaId(2))), Err(ChangeError::Invalid));
    let again = Change::Add { node: NodeId(2), directory: DirectoryId(9) };
    assert_eq!(groups.change(GROUP, again), Err(ChangeError::Invalid));
    assert!(groups.change(GROUP, Change::Remove(ReplicaId(3))).is_ok());
    assert_eq!(groups.change(GROUP, Change::Remove(ReplicaId(2))), Err(ChangeError::Busy));
    all.settle();
    let members = all.leader().status(GROUP).unwrap().members;
    assert!(members.was_removed(ReplicaId(3)));
    assert_eq!(members.voters().count(), 2);
}

#[test]
fn learner_that_is_behind_does_not_become_a_voter() {
    let mut all = Nodes::with_voters(1, 1);
    let change = Change::Add { node: NodeId(2), directory: DirectoryId(2) };
    all.leader().change(GROUP, change).unwrap();
    all.nodes[0].pump();
    let promote = Change::Promote(ReplicaId(2));
    assert_eq!(all.leader().change(GROUP, promote), Err(ChangeError::Behind));
}

#[test]
fn copy_of_a_data_directory_is_refused() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    let records = all.nodes[1].records.iter().map(|(_, record)| record.clone());
    let recovered = Recovered::read(records).unwrap();

    // The copy draws a new directory id: it does not even start.
    let mut copy = Groups::new(config(2, 99, 99));
    assert_eq!(copy.restore(GROUP, &recovered), Err(RestoreError::OtherDirectory));

    // If it does not notice that it is one, its packets are refused while the first run is alive.
    let mut copy = Node::new(config(2, 2, 99));
    copy.groups.restore(GROUP, &recovered).unwrap();
    for _ in 0..60 {
        copy.groups.tick();
        all.run(1);
        for packet in copy.pump() {
            let to = all.node(packet.to.0);
            assert_eq!(to.groups.receive(packet), [(None, Refusal::OtherRun)]);
        }
    }
    assert_eq!(all.leaders(), [NodeId(1)]);
}

#[test]
fn new_run_of_a_node_is_heard_after_a_silence_and_the_old_one_never_again() {
    let mut groups = Groups::new(config(1, 1, 1));
    groups.begin(GROUP, base(1, 1)).unwrap();
    let packet = |run, echo| Packet {
        from: origin(2, 2, run),
        to: NodeId(1),
        beat: Some(beat_with(echo)),
        messages: Vec::new(),
    };
    assert_eq!(groups.receive(packet(1, None)), []);
    assert_eq!(groups.receive(packet(2, None)), [(None, Refusal::OtherRun)]);
    let sent_at = groups.now();
    for _ in 0..TIMING.election_ticks.0 {
        groups.tick();
    }
    // A late packet of an earlier run must not take the place of run 1 for good.
    let late = Some((RunId(1), sent_at));
    for echo in [None, late, Some((RunId(7), groups.now()))] {
        assert_eq!(groups.receive(packet(2, echo)), [(None, Refusal::OtherRun)]);
    }
    assert_eq!(groups.receive(packet(2, Some((RunId(1), groups.now())))), []);
    for _ in 0..2 * TIMING.election_ticks.0 {
        groups.tick();
    }
    let echo = Some((RunId(1), groups.now()));
    assert_eq!(groups.receive(packet(1, echo)), [(None, Refusal::OtherRun)]);
}

fn beat_with(echo: Option<(RunId, Ticks)>) -> Beat {
    Beat { sent_at: Ticks(0), leads: Vec::new(), support: None, echo }
}

#[test]
fn wiped_replica_neither_votes_nor_counts_under_its_old_id() {
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    // The node is told which replica it was, and has nothing left.
    let mut wiped = Node::new(config(3, 33, 33));
    wiped.groups.join(GROUP, ReplicaId(3)).unwrap();
    wiped.pump();
    let from = origin(2, 2, 2);
    let body = MessageBody::RequestVote {
        kind: Election::Vote,
        last: EntryId { index: LogIndex(1 << 40), term: Term(90) },
        commit: EntryId::default(),
    };
    let message = Message { from: ReplicaId(2), to: ReplicaId(3), term: Term(90), body };
    let messages = vec![(GROUP, message)];
    let packet = Packet { from, to: NodeId(3), beat: None, messages };
    assert_eq!(wiped.groups.receive(packet), [(Some(GROUP), Refusal::Empty)]);

    let body = MessageBody::Accepted { last: LogIndex(1), commit: LogIndex(0) };
    let message = Message { from: ReplicaId(3), to: ReplicaId(1), term: Term(2), body };
    let from = origin(3, 33, 33);
    all.run(1);
    all.cut.insert(NodeId(3));
    all.run(12);
    let beat = Some(beat_with(Some((RunId(1), all.leader().now()))));
    let packet = Packet { from, to: NodeId(1), beat, messages: vec![(GROUP, message)] };
    assert_eq!(all.leader().receive(packet), [(Some(GROUP), Refusal::OtherDirectory)]);
}

#[test]
fn replica_ids_are_not_used_again_after_a_removal() {
    let mut node = Node::new(config(2, 2, 2));
    node.groups.join(GROUP, ReplicaId(4)).unwrap();
    node.pump();
    node.groups.remove(GROUP);
    node.pump();
    let records = node.records.into_iter().map(|(_, record)| record);
    let mut again = Groups::new(config(2, 2, 3));
    again.restore(GROUP, &Recovered::read(records).unwrap()).unwrap();
    for groups in [&mut node.groups, &mut again] {
        assert_eq!(groups.join(GROUP, ReplicaId(4)), Err(RestoreError::Used));
        assert_eq!(groups.join(GROUP, ReplicaId(5)), Ok(()));
    }
}

#[test]
fn long_commands_travel_in_packets_that_fit_a_frame() {
    const FRAME_BYTES: usize = (1 << 20) + (64 << 10);
    let mut all = Nodes::with_voters(3, 1);
    all.run(20);
    let too_long = Bytes::from(vec![0; MAX_COMMAND_BYTES + 1]);
    assert_eq!(all.leader().propose(GROUP, too_long), Err(ProposeError::TooLong));
    for len in [MAX_COMMAND_BYTES, 300 << 10, 300 << 10, 10, 200 << 10, MAX_COMMAND_BYTES] {
        all.leader().propose(GROUP, Bytes::from(vec![1; len])).unwrap();
    }
    let packets = all.nodes[0].pump();
    for packet in &packets {
        assert!(postcard::to_stdvec(packet).unwrap().len() < FRAME_BYTES);
    }
    for packet in packets {
        all.deliver(packet);
    }
    all.run(5);
    assert!(all.nodes.iter().all(|node| node.commands() == 6));
}

#[test]
fn records_of_a_replica_are_read_as_they_were_written() {
    let entry = |index, term| {
        let body = Body::Command(Bytes::from_static(b"a"));
        Record::Entry(Entry { index: LogIndex(index), term: Term(term), body })
    };
    let begin = || vec![Record::Replica(ReplicaId(1)), Record::Base(base(1, 1))];
    let read = |more: &[Record]| Recovered::read([&begin()[..], more].concat());
    assert!(read(&[entry(2, 1), entry(3, 1), entry(2, 2), entry(3, 2)]).is_ok());
    // No checkpoint comes that has the entries between.
    let gap = RecordError::Gap { index: LogIndex(4), last: LogIndex(1) };
    assert_eq!(read(&[entry(2, 1), entry(4, 1)]).unwrap_err(), gap);
    // The entry of term 2 voids the entries behind it.
    assert_eq!(read(&[entry(2, 1), entry(3, 1), entry(2, 2), entry(4, 2)]).unwrap_err(), gap);
    assert_eq!(Recovered::read([entry(1, 1)]).unwrap_err(), RecordError::NoReplica);
}

/// A checkpoint of replica 1.
fn checkpoint(index: u64, term: u64) -> Vec<Record> {
    let hard = HardState { term: Term(term), ..HardState::default() };
    vec![Record::Replica(ReplicaId(1)), Record::HardState(hard), base_at(index, term)]
}

fn base_at(index: u64, term: u64) -> Record {
    Record::Base(Base { index: LogIndex(index), term: Term(term), ..base(1, 1) })
}

fn entry(index: u64, term: u64) -> Record {
    let body = Body::Command(Bytes::from_static(b"a"));
    Record::Entry(Entry { index: LogIndex(index), term: Term(term), body })
}

/// Indices and terms of the entries, and the index of the base.
fn read(records: &[Vec<Record>]) -> Result<(u64, Vec<(u64, u64)>), RecordError> {
    let recovered = Recovered::read(records.concat())?;
    let entries = recovered.entries().iter().map(|entry| (entry.index.0, entry.term.0)).collect();
    Ok((recovered.base().index.0, entries))
}

/// Situation: a log has given up the segments before a checkpoint, somewhere between the entries.
/// Danger: entries that come before the checkpoint's records are lost, or those of another log come
/// back. Expectation: the checkpoint keeps the entries behind its base.
#[test]
fn checkpoint_keeps_entries_behind_its_base() {
    let before: Vec<Record> = (3..=6).map(|index| entry(index, 1)).collect();
    for given_up in 0..=2 {
        let records = [before[given_up..].to_vec(), checkpoint(4, 1), vec![entry(7, 2)]];
        assert_eq!(read(&records), Ok((4, vec![(5, 1), (6, 1), (7, 2)])), "{given_up}");
    }
    // The log lacks entry 5.
    let records = [before[3..].to_vec(), checkpoint(4, 1)];
    let gap = RecordError::Gap { index: LogIndex(6), last: LogIndex(4) };
    assert_eq!(read(&records), Err(gap));
    // A second checkpoint, with nothing given up.
    let records = [checkpoint(2, 1), before.clone(), checkpoint(4, 1), checkpoint(6, 1)];
    assert_eq!(read(&records), Ok((6, vec![])));
    // Without the checkpoint nothing says which replica it is.
    assert_eq!(read(&[before]), Err(RecordError::NoReplica));
}

/// Situation: a replica installs a snapshot, and has entries of another log at and behind its
/// index. Danger: they count as entries behind the snapshot. Expectation: they are dropped.
#[test]
fn installed_base_drops_entries_of_another_log() {
    let before: Vec<Record> = (3..=6).map(|index| entry(index, 1)).collect();
    let install = |index, term| vec![base_at(index, term)];
    let records = [checkpoint(2, 1), before.clone(), install(4, 2)];
    assert_eq!(read(&records), Ok((4, vec![])));
    let records = [checkpoint(2, 1), before.clone(), install(4, 2), vec![entry(5, 2)]];
    assert_eq!(read(&records), Ok((4, vec![(5, 2)])));
    let records = [checkpoint(2, 1), before.clone(), install(9, 2), checkpoint(9, 2)];
    assert_eq!(read(&records), Ok((9, vec![])));
    // The same before the checkpoint, in a log without its beginning.
    let records = [before[2..].to_vec(), install(4, 2), checkpoint(4, 2)];
    assert_eq!(read(&records), Ok((4, vec![])));
    // An entry of the same index and term shows that the log is the same.
    let records = [checkpoint(2, 1), before, install(4, 1)];
    assert_eq!(read(&records), Ok((4, vec![(5, 1), (6, 1)])));
}

/// Situation: the node had another replica of the group. Danger: its entries count for the new one.
/// Expectation: another id begins anew.
#[test]
fn records_of_another_replica_are_void() {
    let mut records = [checkpoint(2, 1), vec![entry(3, 1)], vec![Record::Replica(ReplicaId(2))]];
    let recovered = Recovered::read(records.concat()).unwrap();
    assert_eq!((recovered.replica(), recovered.base().index), (ReplicaId(2), LogIndex(0)));
    assert!(recovered.entries().is_empty() && recovered.hard() == HardState::default());
    records[2] = vec![Record::Removed(ReplicaId(1))];
    let recovered = Recovered::read(records.concat()).unwrap();
    assert!(recovered.is_removed() && recovered.entries().is_empty());
}
