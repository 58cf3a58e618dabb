//! The members of a group and how they change, one at a time.

use ebb_model::LogIndex;
pub use ebb_model::NodeId;
use serde::{Deserialize, Serialize};

/// The log of one data directory, drawn at random when the log is created. A node that has lost its
/// log, or any part of it that was forced, draws a new one; so does a node that finds its data
/// directory copied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DirectoryId(pub u128);

/// A replica of a group, from 1. Never used again in the group: it stands for everything that the
/// replica has promised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ReplicaId(pub u64);

impl ReplicaId {
    /// Of the replica that a group begins with.
    pub const FIRST: ReplicaId = ReplicaId(1);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Counts for elections and for commits.
    Voter,
    /// Receives the log, and counts for nothing.
    Learner,
}

/// A replica and the one data directory that may act as it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub replica: ReplicaId,
    pub node: NodeId,
    pub directory: DirectoryId,
    pub role: Role,
}

/// The members of a group after one of its entries.
///
/// Laws: the members are ordered by replica; all replicas are `>= 1` and `< next`; a node has at
/// most one; at least one member is a voter, but for [`Membership::none`]; at most
/// [`MAX_MEMBERS`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Membership {
    members: Vec<Member>,
    /// The next replica's id. Replicas below it that are no members have been removed for ever.
    next: ReplicaId,
}

/// Voters and learners of one group.
pub const MAX_MEMBERS: usize = 16;

/// One step from one membership to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A node without a replica of the group gets one, which learns.
    Add {
        node: NodeId,
        directory: DirectoryId,
    },
    /// A learner becomes a voter.
    Promote(ReplicaId),
    Remove(ReplicaId),
}

/// An entry that changes the members, as it is in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    Learner(Member),
    Voter(ReplicaId),
    Removed(ReplicaId),
}

impl Membership {
    /// Of a replica that does not know its group yet.
    pub(crate) fn none() -> Membership {
        Membership { members: Vec::new(), next: ReplicaId::FIRST }
    }

    /// Of a group that begins with one voter, [`ReplicaId::FIRST`].
    pub fn first(node: NodeId, directory: DirectoryId) -> Membership {
        let replica = ReplicaId::FIRST;
        let members = vec![Member { replica, node, directory, role: Role::Voter }];
        Membership { members, next: ReplicaId(replica.0 + 1) }
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == Role::Voter)
    }

    pub fn get(&self, replica: ReplicaId) -> Option<&Member> {
        self.members.iter().find(|member| member.replica == replica)
    }

    pub fn on_node(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    pub fn is_voter(&self, replica: ReplicaId) -> bool {
        self.get(replica).is_some_and(|member| member.role == Role::Voter)
    }

    /// Whether this replica was a member once and is none any more.
    pub fn was_removed(&self, replica: ReplicaId) -> bool {
        replica < self.next && self.get(replica).is_none()
    }

    /// How many voters are a majority.
    pub fn quorum(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    pub(crate) fn is_none(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether the laws hold: a membership can come from a peer.
    pub(crate) fn is_valid(&self) -> bool {
        let ids = self.members.iter().map(|member| member.replica);
        let is_on_one_node_once = self.members.iter().all(|member| {
            self.members.iter().filter(|other| other.node == member.node).count() == 1
        });
        ids.clone().is_sorted_by(|a, b| a < b)
            && ids.clone().all(|id| id >= ReplicaId::FIRST && id < self.next)
            && self.next.0 <= MAX_NUMBER
            && is_on_one_node_once
            && self.voters().count() > 0
            && self.members.len() <= MAX_MEMBERS
    }

    /// The log's form of a change, or `None` if it does not fit these members.
    pub(crate) fn step(&self, change: Change) -> Option<Step> {
        let step = match change {
            Change::Add { node, directory } => {
                let role = Role::Learner;
                Step::Learner(Member { replica: self.next, node, directory, role })
            }
            Change::Promote(replica) => Step::Voter(replica),
            Change::Remove(replica) => Step::Removed(replica),
        };
        self.after(step).map(|_| step)
    }

    /// The members after a step, or `None` for a step that does not fit these members. All replicas
    /// of a group decide this alike.
    pub(crate) fn after(&self, step: Step) -> Option<Membership> {
        let mut next = self.clone();
        match step {
            Step::Learner(member) => {
                let is_new = member.replica == self.next && self.on_node(member.node).is_none();
                if !is_new || member.role != Role::Learner {
                    return None;
                }
                next.members.push(member);
                next.next = ReplicaId(self.next.0 + 1);
            }
            Step::Voter(replica) => {
                let is_it = |member: &&mut Member| {
                    member.replica == replica && member.role == Role::Learner
                };
                next.members.iter_mut().find(is_it)?.role = Role::Voter;
            }
            Step::Removed(replica) => {
                self.get(replica)?;
                next.members.retain(|member| member.replica != replica);
            }
        }
        next.is_valid().then_some(next)
    }
}

/// Bound of all ids, terms and indices that a peer can send, so that arithmetic cannot overflow.
pub(crate) const MAX_NUMBER: u64 = 1 << 62;

/// The header of a snapshot: the entry up to which it has the group's state, and the members.
///
/// Law: a group begins with a base of index `>= 1`. So an empty replica needs a snapshot, which
/// names the members that the log does not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Base {
    pub index: LogIndex,
    pub term: ebb_model::Term,
    pub members: Membership,
}

impl Base {
    pub(crate) fn none() -> Base {
        Base { index: LogIndex(0), term: ebb_model::Term(0), members: Membership::none() }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.index == LogIndex(0)
    }

    pub(crate) fn is_valid(&self) -> bool {
        let is_number = |number| (1..=MAX_NUMBER).contains(&number);
        is_number(self.index.0) && is_number(self.term.0) && self.members.is_valid()
    }
}
