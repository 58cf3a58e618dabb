//! Ids, versions and positions, each a type of its own.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of take-overs of the volume: it grows with every take-over of `.ebb/head` by a data
/// directory that does not continue the state of the head's owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Incarnation of a read-only node without state from an earlier take-over.
    pub const NONE: Incarnation = Incarnation(u64::MAX);
}

/// The upper bits of inode ids. It grows only when the counters of all slots have been reserved
/// (decision 30).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct IdEpoch(pub u16);

impl IdEpoch {
    /// Epoch of the ids that a read-only node without state from a take-over draws. No page has
    /// them.
    pub const READ_ONLY: IdEpoch = IdEpoch(u16::MAX);
}

/// Inode ids that can have been used: all of earlier epochs, and of `epoch` in every slot those
/// with a counter below `below`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct IdMark {
    pub epoch: IdEpoch,
    pub below: u32,
}

/// The inode ids that one data directory can draw: of `epoch` in every slot those with a counter
/// `>= from` and `< upto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IdRange {
    pub epoch: IdEpoch,
    pub from: u32,
    pub upto: u32,
}

impl IdRange {
    /// All ids of the epoch, for a volume without a head.
    pub const fn whole(epoch: IdEpoch) -> IdRange {
        IdRange { epoch, from: Ino::FIRST_COUNTER, upto: Ino::END_OF_COUNTERS }
    }
}

/// A node of a volume, drawn at random with its data directory. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One of the 65,536 slots of a volume's namespace, the unit of metadata placement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Slot(pub u16);

/// An inode id: `epoch (16 bits) | slot (16 bits) | counter (32 bits)`. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of every volume: epoch 0, slot 0, counter 1. FUSE also numbers it
    /// 1.
    pub const ROOT: Ino = Ino(1);

    /// No inode: counters begin with 1.
    pub const NONE: Ino = Ino(0);

    pub const FIRST_COUNTER: u32 = 1;

    /// Never a counter, so the next counter fits its type.
    pub const END_OF_COUNTERS: u32 = u32::MAX;

    pub const fn new(epoch: IdEpoch, slot: Slot, counter: u32) -> Ino {
        Ino((epoch.0 as u64) << 48 | (slot.0 as u64) << 32 | counter as u64)
    }

    pub const fn epoch(self) -> IdEpoch {
        IdEpoch((self.0 >> 48) as u16)
    }

    pub const fn slot(self) -> Slot {
        Slot((self.0 >> 32) as u16)
    }

    pub const fn counter(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}.{:x}", self.epoch().0, self.slot().0, self.counter())
    }
}

/// A named set of rules for files, such as where their bytes are kept. Each directory has one,
/// which is inherited by everything that is made in it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct PolicyId(pub u32);

impl PolicyId {
    /// The default of the volume.
    pub const DEFAULT: PolicyId = PolicyId(0);
}

/// A pack file of a node's data directory. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PackId(pub u64);

/// The bytes of a small file in a pack file (C-22); byte 0 of the file is at `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PackRange {
    pub pack: PackId,
    pub start: u64,
    pub len_bytes: u64,
}

impl PackRange {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len_bytes)
    }

    /// Whether both ranges start at the same position.
    pub fn begins_as(&self, other: &PackRange) -> bool {
        (self.pack, self.start) == (other.pack, other.start)
    }
}

/// A client of a volume, from attach to detach or expiry. The node draws it at random, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// Identifies one mutation of one client for ever (O-62). A slot of the session table carries one
/// mutation at a time; `sequence` grows by 1 with each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TxId {
    pub session: SessionId,
    pub slot: u16,
    pub sequence: u64,
}

/// Maximum concurrent mutations of one session (NFSv4.1 has the same table).
pub const SESSION_SLOTS: u16 = 64;

/// Counts the records of a node's log across segments, from 1 and without gaps.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Position(pub u64);

/// A sequence of commands with indices of its own. All groups of a node share one stream of
/// segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct GroupId(pub u32);

impl GroupId {
    /// Commands about this node's disk. They are never sent to another node.
    pub const LOCAL: GroupId = GroupId(0);

    /// Commands of the volume's only partition. All groups but [`GroupId::LOCAL`] are partitions.
    pub const PARTITION: GroupId = GroupId(1);
}

/// Term of the leader that wrote a record. Of [`GroupId::LOCAL`]: the number of the run.
///
/// Laws: the terms of a group never fall. A term and an index of a group name one command for ever,
/// also if a power cut has taken it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Term(pub u64);

/// Position of a command in a partition's log, from 1.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct LogIndex(pub u64);

/// Version of an inode's data and attributes: grows with every change, and unique within a
/// partition. Caches compare it where times are unreliable.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Version(pub u64);

/// A position in a directory stream. Entries are numbered in the order of their creation, so a
/// position stays valid across additions and removals. 0 is the beginning; the cookie of an entry
/// means "after this entry".
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Cookie(pub u64);

impl Cookie {
    pub const START: Cookie = Cookie(0);
}

/// Identity of a volume, independent of its name: drawn at random when it is first served. Written
/// as a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            id >> 96,
            id >> 80 & 0xffff,
            id >> 64 & 0xffff,
            id >> 48 & 0xffff,
            id & 0xffff_ffff_ffff
        )
    }
}

impl ClusterId {
    /// Parses exactly the output of `Display`.
    pub fn parse(text: &str) -> Option<ClusterId> {
        let digits: String = text.split('-').collect();
        let id = ClusterId(u128::from_str_radix(&digits, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}
