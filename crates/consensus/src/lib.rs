mod group;
mod groups;
mod members;
mod message;
mod output;
mod peer;
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
    Body, Entry, HardState, MAX_COMMAND_BYTES, MembersStep, Record, RecordError, Recovered,
};
pub use timer::{Ticks, Timing};
