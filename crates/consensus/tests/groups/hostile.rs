//! Messages that no honest replica sends. They can spoil a group, as any member could; they must
//! not stop the process, which has other groups.

use crate::world::Rng;
use bytes::Bytes;
use ebb_consensus::*;
use ebb_model::{GroupId, LogIndex, Term};

const GROUP: GroupId = GroupId(1);

/// One replica, and claims that its peers could make.
struct Victim {
    groups: Groups,
    rng: Rng,
    unforced: Vec<BatchNumber>,
    /// Members' nodes and directories are equal to their replica ids.
    replicas: u64,
}

impl Victim {
    fn new(seed: u64) -> Victim {
        let mut rng = Rng::new(seed);
        let (node, directory) = (NodeId(1), DirectoryId(1));
        let timing =
            Timing { beat_ticks: Ticks(2), heartbeat_ticks: Ticks(2), election_ticks: Ticks(5) };
        let config = Config { node, directory, run: RunId(1), seed, timing, kept_entries: 3 };
        let mut groups = Groups::new(config);
        match rng.percent(70) {
            true => {
                let members = Membership::first(node, directory);
                groups.begin(GROUP, Base { index: LogIndex(1), term: Term(1), members }).unwrap();
            }
            false => groups.join(GROUP, ReplicaId(1)).unwrap(),
        }
        Victim { groups, rng, unforced: Vec::new(), replicas: 4 }
    }

    fn run(&mut self) {
        for _ in 0..400 {
            match self.rng.below(20) {
                0..=9 => self.attack(),
                10..=12 => self.groups.tick(),
                13 => {
                    let node = NodeId(self.rng.between(2, self.replicas));
                    let directory = DirectoryId(node.0.into());
                    let _ = self.groups.change(GROUP, Change::Add { node, directory });
                }
                14 => {
                    let replica = ReplicaId(self.rng.between(1, self.replicas));
                    let change = match self.rng.percent(70) {
                        true => Change::Promote(replica),
                        false => Change::Remove(replica),
                    };
                    let _ = self.groups.change(GROUP, change);
                }
                15 | 16 => {
                    let _ = self.groups.propose(GROUP, Bytes::from_static(b"a"));
                    let _ = self.groups.read(GROUP, ReadId(1));
                }
                17 => {
                    let status = self.groups.status(GROUP).unwrap();
                    self.groups.snapshot_taken(GROUP, status.applied);
                    let to = ReplicaId(self.rng.between(1, self.replicas));
                    self.groups.snapshot_sent(GROUP, to, self.rng.percent(50));
                    self.groups.transfer(GROUP, to);
                }
                _ => self.snapshot(),
            }
            self.pump();
        }
    }

    fn pump(&mut self) {
        while let Some(batch) = self.groups.poll() {
            if batch.must_force {
                self.unforced.push(batch.number);
            }
        }
        if self.rng.percent(40) {
            for number in std::mem::take(&mut self.unforced) {
                self.groups.forced(number);
            }
        }
    }

    /// A number near the group's own, or any other.
    fn number(&mut self, near: u64) -> u64 {
        match self.rng.below(12) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 62,
            3 => self.rng.next(),
            _ => (near + self.rng.below(4)).saturating_sub(2),
        }
    }

    fn index(&mut self) -> LogIndex {
        let status = self.groups.status(GROUP).unwrap();
        let near =
            self.rng.one_of(&[status.committed.0, status.last.0, status.snapshot.0]).unwrap();
        LogIndex(self.number(near))
    }

    fn term(&mut self) -> Term {
        let status = self.groups.status(GROUP).unwrap();
        Term(self.number(status.leadership.term().0 + 1))
    }

    fn entry_id(&mut self) -> EntryId {
        EntryId { index: self.index(), term: self.term() }
    }

    fn replica(&mut self) -> ReplicaId {
        ReplicaId(self.rng.between(1, self.replicas))
    }

    fn entries(&mut self, previous: EntryId) -> Vec<Entry> {
        let mut last = previous;
        (0..self.rng.below(4))
            .map(|_| {
                last.index = LogIndex(last.index.0.wrapping_add(1));
                if self.rng.percent(5) {
                    last = self.entry_id();
                }
                let body = match self.rng.below(3) {
                    0 => Body::Empty,
                    1 => Body::Command(Bytes::from_static(b"b")),
                    _ => self.members_step(),
                };
                Entry { term: last.term, index: last.index, body }
            })
            .collect()
    }

    /// From bytes, as a peer could make it.
    fn members_step(&mut self) -> Body {
        let replica = self.replica().0 as u8;
        let bytes: Vec<u8> = match self.rng.below(3) {
            0 => vec![0, replica, replica, replica, 1],
            1 => vec![1, replica],
            _ => vec![2, replica],
        };
        Body::Members(postcard::from_bytes(&bytes).expect("a step"))
    }

    fn body(&mut self) -> MessageBody {
        let (commit, round) = (self.index(), Some(self.rng.below(3)));
        match self.rng.below(12) {
            0..=3 => {
                let previous = self.entry_id();
                MessageBody::Append { previous, commit, entries: self.entries(previous) }
            }
            4 => MessageBody::Accepted { last: self.index(), commit },
            5 => MessageBody::Rejected { at: self.index(), hint: self.entry_id(), commit },
            6 => MessageBody::Heartbeat { commit, round },
            7 => MessageBody::HeartbeatAnswer { commit, round },
            8 => {
                let kinds = [Election::PreVote, Election::Vote, Election::Transfer];
                let kind = self.rng.one_of(&kinds).unwrap();
                MessageBody::RequestVote { kind, last: self.entry_id(), commit: self.entry_id() }
            }
            9 | 10 => MessageBody::Vote {
                is_pre_vote: self.rng.percent(50),
                is_granted: self.rng.percent(80),
                commit: self.entry_id(),
            },
            _ => self.rng.one_of(&[true, false]).map_or(MessageBody::Removed, |take_over| {
                if take_over { MessageBody::TakeOver } else { MessageBody::Removed }
            }),
        }
    }

    fn attack(&mut self) {
        let from = self.replica();
        let to = ReplicaId(if self.rng.percent(95) { 1 } else { self.rng.below(5) });
        let message = Message { from, to, term: self.term(), body: self.body() };
        let beat = self.rng.percent(20).then(|| Beat {
            sent_at: Ticks(self.number(5)),
            leads: vec![(GROUP, self.term())],
            support: Some(Support {
                run: RunId(1),
                sent_at: Ticks(self.number(5)),
                groups: vec![(GROUP, self.term())],
            }),
            echo: Some((RunId(1), Ticks(self.number(5)))),
        });
        let packet = Packet {
            from: self.origin(from),
            to: NodeId(1),
            beat,
            messages: vec![(GROUP, message)],
        };
        self.groups.receive(packet);
        let _ = self.groups.support(GROUP);
    }

    fn origin(&self, of: ReplicaId) -> Origin {
        let (node, directory) = (NodeId(of.0), DirectoryId(of.0.into()));
        Origin { node, directory, run: RunId(of.0.into()) }
    }

    fn snapshot(&mut self) {
        let from = self.replica();
        let members = self.groups.status(GROUP).unwrap().members;
        let has_members = !members.members().is_empty() && self.rng.percent(60);
        let members = match has_members {
            true => members,
            false => Membership::first(NodeId(1), DirectoryId(1)),
        };
        let base = Base { index: self.index(), term: self.term(), members };
        let (to, term) = (ReplicaId(1), self.term());
        let request = SnapshotRequest { group: GROUP, from, to, term, base };
        let _ = self.groups.snapshot_received(self.origin(from), &request);
    }
}

#[test]
fn hostile_messages_do_not_stop_the_process() {
    let seeds = std::env::var("EBB_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(1500) {
        let result = std::panic::catch_unwind(|| Victim::new(seed).run());
        assert!(result.is_ok(), "seed {seed}");
    }
}
