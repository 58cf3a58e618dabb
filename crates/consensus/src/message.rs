//! Messages between the replicas of a group, and between nodes.

use crate::members::{DirectoryId, MAX_NUMBER, NodeId, ReplicaId};
use crate::record::Entry;
use crate::timer::Ticks;
use ebb_model::{GroupId, LogIndex, Term};
use raft::eraftpb as pb;
use serde::{Deserialize, Serialize};

/// Index and term of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EntryId {
    pub index: LogIndex,
    pub term: Term,
}

impl EntryId {
    fn new(index: u64, term: u64) -> EntryId {
        EntryId { index: LogIndex(index), term: Term(term) }
    }

    fn is_bounded(self) -> bool {
        self.index.0 <= MAX_NUMBER && self.term.0 <= MAX_NUMBER
    }

    /// Whether it has a term exactly if there is an entry. To raft-rs an entry behind the end of
    /// the log has term 0.
    fn is_whole(self) -> bool {
        (self.index.0 == 0) == (self.term.0 == 0)
    }
}

/// From one replica of a group to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Of the sender. Of a request for a pre-vote, and of its grant: the term of the election that
    /// would follow.
    pub term: Term,
    pub body: MessageBody,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MessageBody {
    /// Entries of the leader behind `previous`, and how far it has committed.
    Append {
        previous: EntryId,
        commit: LogIndex,
        entries: Vec<Entry>,
    },
    /// The sender's log equals the leader's up to `last`, and is forced up to there.
    Accepted {
        last: LogIndex,
        commit: LogIndex,
    },
    /// The sender's log differs at `at`. It can agree at `hint` at the latest.
    Rejected {
        at: LogIndex,
        hint: EntryId,
        commit: LogIndex,
    },
    /// The leader still leads. `round` is answered, and lets reads pass.
    Heartbeat {
        commit: LogIndex,
        round: Option<u64>,
    },
    HeartbeatAnswer {
        commit: LogIndex,
        round: Option<u64>,
    },
    /// `last` is the candidate's last entry.
    RequestVote {
        kind: Election,
        last: EntryId,
        commit: EntryId,
    },
    Vote {
        is_pre_vote: bool,
        is_granted: bool,
        commit: EntryId,
    },
    /// The leader hands over: the receiver starts an election.
    TakeOver,
    /// The receiver is a member no more.
    Removed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Election {
    /// Asks whether an election could be won, and changes nothing.
    PreVote,
    Vote,
    /// The leader itself has asked for it.
    Transfer,
}

/// The messages of all groups from one node to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Packet {
    pub from: Origin,
    pub to: NodeId,
    pub beat: Option<Beat>,
    pub messages: Vec<(GroupId, Message)>,
}

/// One run of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub node: NodeId,
    pub directory: DirectoryId,
    pub run: RunId,
}

/// Drawn at random at each start of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RunId(pub u128);

/// The heartbeat of a pair of nodes, for all groups that both have replicas of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beat {
    /// When it was sent, on the sender's clock.
    pub sent_at: Ticks,
    /// Groups that the sender leads, with their terms.
    pub leads: Vec<(GroupId, Term)>,
    pub support: Option<Support>,
    /// Run and `sent_at` of the last beat of the receiver that has arrived here, also if this node
    /// has refused it. It shows that this packet is not a late one of an earlier run.
    pub echo: Option<(RunId, Ticks)>,
}

/// The sender follows the receiver in these groups. For one election time-out, which begins when
/// the beat that run `run` sent at `sent_at` has arrived, it votes for nobody else there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Support {
    pub run: RunId,
    pub sent_at: Ticks,
    pub groups: Vec<(GroupId, Term)>,
}

impl Message {
    /// Whether the numbers of a message from a peer are bounded and fit each other. The rest is
    /// checked against the state of the group.
    pub(crate) fn is_valid(&self) -> bool {
        let is_index = |index: LogIndex| index.0 <= MAX_NUMBER;
        let is_id = |id: ReplicaId| (1..=MAX_NUMBER).contains(&id.0);
        let is_body_valid = match &self.body {
            MessageBody::Append { previous, commit, entries } => {
                previous.is_bounded()
                    && previous.is_whole()
                    && is_index(*commit)
                    && follow(*previous, self.term, entries)
            }
            MessageBody::Accepted { last, commit } => is_index(*last) && is_index(*commit),
            MessageBody::Rejected { at, hint, commit } => {
                is_index(*at) && hint.is_bounded() && is_index(*commit)
            }
            MessageBody::Heartbeat { commit, .. } | MessageBody::HeartbeatAnswer { commit, .. } => {
                is_index(*commit)
            }
            MessageBody::RequestVote { last, commit, .. } => {
                last.is_bounded() && commit.is_bounded()
            }
            MessageBody::Vote { commit, .. } => commit.is_bounded(),
            MessageBody::TakeOver | MessageBody::Removed => true,
        };
        is_id(self.from)
            && is_id(self.to)
            && self.from != self.to
            && (1..=MAX_NUMBER).contains(&self.term.0)
            && is_body_valid
    }

    /// In parts that fit a frame each.
    pub(crate) fn split(self, max_bytes: usize) -> Vec<Message> {
        let Message { from, to, term, body } = self;
        let MessageBody::Append { mut previous, commit, entries } = body else {
            return vec![Message { from, to, term, body }];
        };
        let mut parts = vec![];
        let (mut part, mut len_bytes) = (Vec::new(), 0);
        let mut close = |part: &mut Vec<Entry>| {
            let last = part.last().map(|last| EntryId { index: last.index, term: last.term });
            let entries = std::mem::take(part);
            let body = MessageBody::Append { previous, commit, entries };
            parts.push(Message { from, to, term, body });
            previous = last.unwrap_or(previous);
        };
        for entry in entries {
            if !part.is_empty() && len_bytes + entry.len_bytes() > max_bytes {
                close(&mut part);
                len_bytes = 0;
            }
            len_bytes += entry.len_bytes();
            part.push(entry);
        }
        close(&mut part);
        parts
    }

    /// Bytes in a packet, about.
    pub(crate) fn len_bytes(&self) -> usize {
        const OVERHEAD_BYTES: usize = 128;
        let entries = match &self.body {
            MessageBody::Append { entries, .. } => entries.iter().map(Entry::len_bytes).sum(),
            _ => 0,
        };
        OVERHEAD_BYTES + entries
    }

    /// `None` for a message that raft-rs does not have.
    pub(crate) fn to_raft(&self) -> Option<pb::Message> {
        use pb::MessageType::*;
        let mut to = pb::Message::default();
        (to.from, to.to, to.term) = (self.from.0, self.to.0, self.term.0);
        let kind = match &self.body {
            MessageBody::Append { previous, commit, entries } => {
                (to.index, to.log_term) = (previous.index.0, previous.term.0);
                to.commit = commit.0;
                to.entries = entries.iter().map(Entry::to_raft).collect::<Vec<_>>().into();
                MsgAppend
            }
            MessageBody::Accepted { last, commit } => {
                (to.index, to.commit) = (last.0, commit.0);
                MsgAppendResponse
            }
            MessageBody::Rejected { at, hint, commit } => {
                (to.reject, to.index, to.commit) = (true, at.0, commit.0);
                (to.reject_hint, to.log_term) = (hint.index.0, hint.term.0);
                MsgAppendResponse
            }
            MessageBody::Heartbeat { commit, round } => {
                (to.commit, to.context) = (commit.0, context(*round));
                MsgHeartbeat
            }
            MessageBody::HeartbeatAnswer { commit, round } => {
                (to.commit, to.context) = (commit.0, context(*round));
                MsgHeartbeatResponse
            }
            MessageBody::RequestVote { kind, last, commit } => {
                (to.index, to.log_term) = (last.index.0, last.term.0);
                (to.commit, to.commit_term) = (commit.index.0, commit.term.0);
                match kind {
                    Election::PreVote => MsgRequestPreVote,
                    Election::Vote => MsgRequestVote,
                    Election::Transfer => {
                        to.context = raft::CAMPAIGN_TRANSFER.into();
                        MsgRequestVote
                    }
                }
            }
            MessageBody::Vote { is_pre_vote, is_granted, commit } => {
                to.reject = !is_granted;
                (to.commit, to.commit_term) = (commit.index.0, commit.term.0);
                if *is_pre_vote { MsgRequestPreVoteResponse } else { MsgRequestVoteResponse }
            }
            MessageBody::TakeOver => MsgTimeoutNow,
            MessageBody::Removed => return None,
        };
        to.set_msg_type(kind);
        Some(to)
    }

    /// `None` for kinds that do not leave the node as messages.
    pub(crate) fn from_raft(m: pb::Message) -> Option<Message> {
        use pb::MessageType::*;
        let commit = LogIndex(m.commit);
        let committed = EntryId::new(m.commit, m.commit_term);
        let last = EntryId::new(m.index, m.log_term);
        let body = match m.get_msg_type() {
            MsgAppend => {
                let entries = m.entries.iter().map(Entry::from_raft).collect();
                MessageBody::Append { previous: last, commit, entries }
            }
            MsgAppendResponse if m.reject => {
                let hint = EntryId::new(m.reject_hint, m.log_term);
                MessageBody::Rejected { at: LogIndex(m.index), hint, commit }
            }
            MsgAppendResponse => MessageBody::Accepted { last: LogIndex(m.index), commit },
            MsgHeartbeat => MessageBody::Heartbeat { commit, round: round(&m.context) },
            MsgHeartbeatResponse => {
                MessageBody::HeartbeatAnswer { commit, round: round(&m.context) }
            }
            MsgRequestPreVote => {
                MessageBody::RequestVote { kind: Election::PreVote, last, commit: committed }
            }
            MsgRequestVote => {
                let is_transfer = m.context[..] == *raft::CAMPAIGN_TRANSFER;
                let kind = if is_transfer { Election::Transfer } else { Election::Vote };
                MessageBody::RequestVote { kind, last, commit: committed }
            }
            kind @ (MsgRequestPreVoteResponse | MsgRequestVoteResponse) => MessageBody::Vote {
                is_pre_vote: kind == MsgRequestPreVoteResponse,
                is_granted: !m.reject,
                commit: committed,
            },
            MsgTimeoutNow => MessageBody::TakeOver,
            MsgHup | MsgBeat | MsgPropose | MsgSnapshot | MsgUnreachable | MsgSnapStatus
            | MsgCheckQuorum | MsgTransferLeader | MsgReadIndex | MsgReadIndexResp => return None,
        };
        Some(Message { from: ReplicaId(m.from), to: ReplicaId(m.to), term: Term(m.term), body })
    }
}

/// Whether the entries are behind `previous` without gaps, and of terms that do not fall, up to the
/// leader's.
fn follow(previous: EntryId, leader: Term, entries: &[Entry]) -> bool {
    let mut last = previous;
    previous.term <= leader
        && entries.iter().all(|entry| {
            let is_next = entry.index.0 == last.index.0 + 1
                && (last.term..=leader).contains(&entry.term)
                && entry.is_valid();
            last = EntryId { index: entry.index, term: entry.term };
            is_next
        })
}

fn context(round: Option<u64>) -> bytes::Bytes {
    round.map_or_else(bytes::Bytes::new, |round| round.to_le_bytes().to_vec().into())
}

pub(crate) fn round(context: &[u8]) -> Option<u64> {
    context.try_into().ok().map(u64::from_le_bytes)
}
