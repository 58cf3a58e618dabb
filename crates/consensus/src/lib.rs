//! Agreement of the replicas of a group on one log: Raft, behind types of our own (decision 34).
//!
//! [`Groups`] owns the consensus state of all groups of a node. It has no clock, no randomness, no
//! disk and no network: the caller brings ticks, a seed, packets and the ends of its forces, and
//! performs the batches that [`Groups::poll`] returns. The states that the groups agree on are the
//! caller's too; a command is bytes here.
//!
//! # The loop of a caller
//! 1. An event comes: a tick, a packet, a proposal, a read, the end of a force.
//! 2. The caller calls [`Groups::poll`] until it returns `None`. Each [`Batch`] has records of all
//!    groups for one append, and one packet for each other node.
//! 3. The packets leave at once. Messages that depend on a record come in a later batch, once the
//!    caller has reported with [`Groups::forced`] that the record is forced.
//! 4. The caller applies committed entries, answers reads, and sends snapshots over connections of
//!    their own.
//!
//! # Promises
//! - A vote, and an acceptance of entries, leaves after the force of its record. A leader sends its
//!   own entries while it forces them, but never under a term that is not forced.
//! - Term and index of a group name one entry for ever, also if a power cut has taken it.
//! - Committed entries are the same, in the same order, at all replicas, and are not lost while a
//!   majority of the voters keeps its disks.
//! - A read is answered from a state that has everything that was answered before the read began:
//!   a majority confirms the lead after the read has come. No clock is relied on.
//! - A replica id stands for everything that the replica has promised. It belongs to one data
//!   directory, all members know which one, and it is never used again. So a copied, a wiped and a
//!   damaged data directory cannot vote: it comes back as a learner with a new id.
//! - The process survives all messages of other nodes: messages at which raft-rs would panic are
//!   refused ([`Refusal`]).
//!
//! # Time
//! One [`Beat`] for each pair of nodes serves all their groups. It lists the groups that the sender
//! leads; a follower that finds its group there promises to support that leader for one election
//! time-out, and needs no ticks in the meantime. The next beat back tells the leader
//! ([`Groups::support`]), for rights that last as long as the support does. A group in which
//! everybody has everything rests: it costs its entry in the beats, and nothing else.
//!
//! With one voter there are no beats and no messages. An entry is committed when it is forced, and
//! costs one record, as in a plain log.
//!
//! # Not here
//! Membership is planned elsewhere: a [`Change`] is one step, and a leader refuses a second one
//! before the first is applied. Followers do not forward proposals or reads: they name the leader.
//! Leader leases are not used for reads.

mod group;
mod groups;
mod members;
mod message;
mod output;
mod peer;
mod reads;
mod record;
mod storage;
mod timer;

pub use groups::{Config, Groups, PACKET_BYTES};
pub use members::{
    Base, Change, DirectoryId, MAX_MEMBERS, Member, Membership, NodeId, ReplicaId, Role,
};
pub use message::{Beat, Election, EntryId, Message, MessageBody, Origin, Packet, RunId, Support};
pub use output::{
    Batch, BatchNumber, ChangeError, Leadership, NotLeader, Output, ProposeError, Proposed, ReadId,
    Refusal, RestoreError, SnapshotRequest, Status,
};
pub use record::{
    Body, Entry, HardState, MAX_COMMAND_BYTES, MembersStep, Record, RecordError, RecordReader,
    Recovered,
};
pub use timer::{Ticks, Timing};
