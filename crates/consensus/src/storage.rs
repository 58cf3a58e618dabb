//! The entries of a group in memory, which raft-rs reads: all that were appended to the node's log,
//! forced or not.

use crate::members::{Base, Membership, ReplicaId, Role, Step};
use crate::record::{HardState, Recovered};
use ebb_model::{LogIndex, Term};
use raft::eraftpb as pb;
use raft::{GetEntriesContext, RaftState, StorageError};
use std::cell::Cell;
use std::collections::VecDeque;

/// Laws: `start.index <= snapshot.index`; entries begin at `start.index + 1` and have no gaps.
pub(crate) struct Entries {
    /// Of raft-rs's start.
    hard: HardState,
    committed: LogIndex,
    members: Membership,
    /// The entry before the first one in memory.
    start: (LogIndex, Term),
    entries: VecDeque<pb::Entry>,
    len_bytes: usize,
    /// The newest durable snapshot of this replica.
    snapshot: Base,
    /// A replica needs a snapshot, and was added after the newest.
    wants_snapshot: Cell<bool>,
}

impl Entries {
    pub(crate) fn new(recovered: &Recovered, committed: LogIndex) -> Entries {
        let mut entries = Entries {
            hard: recovered.hard,
            committed,
            members: recovered.base.members.clone(),
            start: (recovered.base.index, recovered.base.term),
            entries: VecDeque::new(),
            len_bytes: 0,
            snapshot: recovered.base.clone(),
            wants_snapshot: Cell::new(false),
        };
        entries.append(recovered.entries.iter().map(|entry| entry.to_raft()));
        entries
    }

    pub(crate) fn last(&self) -> LogIndex {
        LogIndex(self.start.0.0 + self.entries.len() as u64)
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn snapshot(&self) -> &Base {
        &self.snapshot
    }

    /// Adds entries, the first of which voids those from its index on.
    pub(crate) fn append(&mut self, entries: impl IntoIterator<Item = pb::Entry>) {
        for entry in entries {
            let at = entry.index - self.start.0.0 - 1;
            assert!(at <= self.entries.len() as u64, "entries have no gaps");
            for voided in self.entries.drain(at as usize..) {
                self.len_bytes -= len_bytes(&voided);
            }
            self.len_bytes += len_bytes(&entry);
            self.entries.push_back(entry);
        }
    }

    /// Begins anew with a snapshot from the leader.
    pub(crate) fn install(&mut self, base: Base) {
        self.entries.clear();
        self.len_bytes = 0;
        self.start = (base.index, base.term);
        self.snapshot = base;
    }

    /// Goes on with a snapshot of this replica, and keeps `kept` entries up to it for followers
    /// that are a little behind.
    pub(crate) fn compact(&mut self, base: Base, kept: u64) {
        assert!(base.index > self.snapshot.index, "snapshots do not go back");
        let upto = base.index.0.saturating_sub(kept);
        while self.start.0.0 < upto {
            let first = self.entries.pop_front().expect("a snapshot is within the log");
            self.len_bytes -= len_bytes(&first);
            self.start = (LogIndex(first.index), Term(first.term));
        }
        self.snapshot = base;
    }

    /// Whether a newer snapshot was wanted since the last call.
    pub(crate) fn take_wants_snapshot(&self) -> bool {
        self.wants_snapshot.take()
    }

    pub(crate) fn behind_snapshot(&self) -> impl Iterator<Item = &pb::Entry> {
        self.entries.iter().filter(|entry| entry.index > self.snapshot.index.0)
    }

    pub(crate) fn term_of(&self, index: LogIndex) -> Option<Term> {
        if index == self.start.0 {
            return Some(self.start.1);
        }
        let at = index.0.checked_sub(self.start.0.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?).map(|entry| Term(entry.term))
    }
}

/// As of an entry in memory.
fn len_bytes(entry: &pb::Entry) -> usize {
    size_of::<pb::Entry>() + entry.data.len() + entry.context.len()
}

pub(crate) fn conf_state(members: &Membership) -> pb::ConfState {
    let ids = |role| {
        let of_role = members.members().iter().filter(move |member| member.role == role);
        of_role.map(|member| member.replica.0).collect::<Vec<_>>()
    };
    (ids(Role::Voter), ids(Role::Learner)).into()
}

pub(crate) fn snapshot(base: &Base) -> pb::Snapshot {
    let mut snapshot = pb::Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (base.index.0, base.term.0);
    metadata.set_conf_state(conf_state(&base.members));
    snapshot
}

impl raft::Storage for Entries {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard = pb::HardState::default();
        hard.term = self.hard.term.0;
        hard.vote = self.hard.vote.map_or(raft::INVALID_ID, |vote| vote.0);
        hard.commit = self.committed.0;
        Ok(RaftState::new(hard, conf_state(&self.members)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<pb::Entry>> {
        let Some(from) = low.checked_sub(self.start.0.0 + 1) else {
            return Err(StorageError::Compacted.into());
        };
        let max_bytes = max_size.into().unwrap_or(raft::NO_LIMIT);
        let mut len = 0;
        let within = |entry: &&pb::Entry| {
            let is_first = len == 0;
            len += len_bytes(entry) as u64;
            is_first || len <= max_bytes
        };
        let wanted = self.entries.range(from as usize..(high - self.start.0.0 - 1) as usize);
        Ok(wanted.take_while(within).cloned().collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.term_of(LogIndex(index)).map(|term| term.0).ok_or(StorageError::Compacted.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.start.0.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last().0)
    }

    fn snapshot(&self, wanted: u64, to: u64) -> raft::Result<pb::Snapshot> {
        // A replica refuses a snapshot that does not have it among the members.
        let names_it = self.snapshot.members.get(ReplicaId(to)).is_some();
        if self.snapshot.index.0 < wanted || !names_it {
            self.wants_snapshot.set(true);
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(snapshot(&self.snapshot))
    }
}

pub(crate) fn conf_change(step: Step) -> pb::ConfChange {
    let (kind, replica) = match step {
        Step::Learner(member) => (pb::ConfChangeType::AddLearnerNode, member.replica),
        Step::Voter(replica) => (pb::ConfChangeType::AddNode, replica),
        Step::Removed(replica) => (pb::ConfChangeType::RemoveNode, replica),
    };
    let mut change = pb::ConfChange::default();
    change.set_change_type(kind);
    change.node_id = replica.0;
    change
}
