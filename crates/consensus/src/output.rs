//! The work that the groups of a node ask of the caller, and their answers.

use crate::members::{Base, Member, Membership, NodeId, ReplicaId};
use crate::message::Packet;
use crate::record::{Entry, Record};
use ebb_model::{GroupId, LogIndex, Term};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Counts the batches of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchNumber(pub u64);

/// The work of all groups since the last batch. The caller performs it in this order:
/// 1. sends `packets`, which depend on nothing;
/// 2. appends `records` to its log, in one piece and behind those of earlier batches;
/// 3. if `must_force` is set, forces the log, and then calls [`crate::Groups::forced`];
/// 4. performs `outputs`. They do not wait for the force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    pub number: BatchNumber,
    pub records: Vec<(GroupId, Record)>,
    pub must_force: bool,
    pub packets: Vec<Packet>,
    pub outputs: Vec<Output>,
}

/// News of one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    pub group: GroupId,
    pub leadership: Option<Leadership>,
    /// The group's state is this snapshot, which the caller has received. It comes before
    /// `committed`.
    pub install: Option<Base>,
    /// Committed entries that are forced here, to be applied in this order. No entry is given twice
    /// in a run.
    pub committed: Vec<Entry>,
    /// All entries up to here are committed. A leader may answer proposals of its own term up to
    /// here, also before its own disk has them.
    pub commit: Option<LogIndex>,
    /// Reads that may be answered from the state as of the index, or a later one.
    pub reads: Vec<(ReadId, LogIndex)>,
    /// Reads of a leader that has lost the lead.
    pub lost_reads: Vec<ReadId>,
    /// Snapshots to be sent to these nodes over bulk connections.
    pub snapshots: Vec<(NodeId, SnapshotRequest)>,
    /// A new replica needs a snapshot that names it: the caller takes one, and calls
    /// [`crate::Groups::snapshot_taken`].
    pub wants_snapshot: bool,
    /// A member says that this replica is none any more. The caller makes sure of it where the
    /// members are planned, and calls [`crate::Groups::remove`].
    pub is_removed: bool,
}

impl Output {
    pub(crate) fn new(group: GroupId) -> Output {
        Output {
            group,
            leadership: None,
            install: None,
            committed: Vec::new(),
            commit: None,
            reads: Vec::new(),
            lost_reads: Vec::new(),
            snapshots: Vec::new(),
            wants_snapshot: false,
            is_removed: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Output { group: _, leadership, install, committed, commit, reads, .. } = self;
        leadership.is_none()
            && install.is_none()
            && committed.is_empty()
            && commit.is_none()
            && reads.is_empty()
            && self.lost_reads.is_empty()
            && self.snapshots.is_empty()
            && !self.wants_snapshot
            && !self.is_removed
    }
}

/// The part that a replica has in its group. When a leader becomes anything else, or leader of
/// another term, its entries behind the commit index are undecided: some may still be committed, in
/// their order. A caller that has applied them ahead goes back to the commit index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leadership {
    /// It serves once the first entry of its term is applied.
    Leader {
        term: Term,
    },
    Follower {
        term: Term,
        leader: Option<ReplicaId>,
    },
    Candidate {
        term: Term,
    },
}

impl Leadership {
    pub fn term(self) -> Term {
        match self {
            Leadership::Leader { term }
            | Leadership::Follower { term, .. }
            | Leadership::Candidate { term } => term,
        }
    }
}

/// The place of a proposal in the log. It is decided when an entry with this index is committed: if
/// that has this term, it is the proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposed {
    pub term: Term,
    pub index: LogIndex,
}

/// Chosen by the caller, unique among its reads of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReadId(pub u64);

/// A replica needs a snapshot. The leader's node sends its newest durable one over a bulk
/// connection, with this request; if that is newer than `base`, with the newer base. When the
/// receiver has made it durable, it calls [`crate::Groups::snapshot_received`]. The sender calls
/// [`crate::Groups::snapshot_sent`] at the end, also after a failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotRequest {
    pub group: GroupId,
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Of the leader.
    pub term: Term,
    pub base: Base,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub replica: ReplicaId,
    pub leadership: Leadership,
    /// `snapshot <= applied <= committed <= last`.
    pub committed: LogIndex,
    pub applied: LogIndex,
    pub last: LogIndex,
    pub snapshot: LogIndex,
    /// Memory of the entries. A snapshot makes it smaller.
    pub len_bytes: usize,
    pub members: Membership,
    /// Of a leader: the last index up to which the log of a member is known to equal its own.
    /// Members of which nothing is known are missing.
    pub matched: Vec<(ReplicaId, LogIndex)>,
}

/// Ask `leader`, if it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("this replica does not lead the group")]
pub struct NotLeader {
    pub leader: Option<Member>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ProposeError {
    #[error(transparent)]
    NotLeader(NotLeader),
    #[error("the command is too long")]
    TooLong,
    /// Ask again later: too much is uncommitted, or the lead is being transferred.
    #[error("the leader takes no commands now")]
    Busy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ChangeError {
    #[error(transparent)]
    NotLeader(NotLeader),
    /// Ask again later: another change is not applied yet.
    #[error("another change of the members is under way")]
    Busy,
    #[error("the change does not fit the members of the group")]
    Invalid,
    /// Transfer the lead before.
    #[error("the leader does not remove itself")]
    Leader,
    /// Ask again later.
    #[error("the learner has not caught up")]
    Behind,
}

/// Why a message was dropped. Senders repeat the messages that are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    #[error("the packet is for another node")]
    OtherNode,
    /// The node has this replica no more, or not yet: a leader that has added it addresses it.
    #[error("this node has no replica {} of the group", replica.0)]
    NoReplica { replica: ReplicaId },
    #[error("the replica belongs to another data directory")]
    OtherDirectory,
    /// Two processes use one data directory or two copies of it, or a node was restarted a moment
    /// ago.
    #[error("another run of the node is alive")]
    OtherRun,
    #[error("the sender has been removed from the group")]
    Removed,
    #[error("the sender is no member of the group")]
    Stranger,
    /// No honest replica sends it.
    #[error("the message is not valid")]
    Invalid,
    #[error("the replica has no state yet")]
    Empty,
    #[error("the replica supports its leader")]
    Promised,
    #[error("records of the replica are not forced yet")]
    Unforced,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RestoreError {
    #[error("the group exists")]
    Exists,
    /// The data directory is a copy, or the records are another node's.
    #[error("the replica belongs to another data directory")]
    OtherDirectory,
    #[error("the base of the group breaks its laws")]
    Base,
    /// A replica that comes back without its records may have made promises that are lost.
    #[error("the node has had this replica, or a later one")]
    Used,
}
