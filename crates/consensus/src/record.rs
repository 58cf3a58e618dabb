//! The records of a group in the node's log, and the state that is recovered from them.

use crate::members::{Base, MAX_NUMBER, ReplicaId, Step};
use bytes::Bytes;
use ebb_model::{LogIndex, Term};
use raft::eraftpb as pb;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One entry of a group's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub term: Term,
    pub index: LogIndex,
    pub body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// The first entry of a leader. It changes no state, but counts as applied.
    Empty,
    /// At most [`MAX_COMMAND_BYTES`].
    Command(Bytes),
    Members(MembersStep),
}

/// A change of the members. Its content is the group's own affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MembersStep(pub(crate) Step);

/// Longest command: with its header it fits a record, and a message with it fits a frame between
/// nodes.
pub const MAX_COMMAND_BYTES: usize = 640 << 10;

/// The promises of a replica: no vote for another candidate in this term, and none in a lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HardState {
    pub term: Term,
    pub vote: Option<ReplicaId>,
    /// Entries up to here are committed. It may be old, but has all changes of the members that the
    /// replica has applied: with members of before it could not be elected by those of today.
    pub commit: LogIndex,
}

/// One record of a group. A record at an index that an earlier one has voids the earlier one and
/// all entries behind it.
///
/// A *checkpoint* is [`Record::Replica`], [`Record::HardState`] and [`Record::Base`] of a replica
/// that has records already. It keeps the entries behind its base, and makes all other earlier
/// records superfluous: the log can give them up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Record {
    /// The records of the group behind this one are of this replica. Those of other replicas before
    /// it are void.
    Replica(ReplicaId),
    HardState(HardState),
    Entry(Entry),
    /// The state of the group is that of a snapshot, which is durable already.
    Base(Base),
    /// The node has no replica of the group any more. This one was its last.
    Removed(ReplicaId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RecordError {
    #[error("no record of the group names its replica")]
    NoReplica,
    #[error("entry {index} is not behind entry {last}", index = .index.0, last = .last.0)]
    Gap { index: LogIndex, last: LogIndex },
    #[error("record of term {term} behind one of term {last}", term = .term.0, last = .last.0)]
    Term { term: Term, last: Term },
    #[error("the base of the group breaks its laws")]
    Base,
}

/// The state of a replica on its disk.
///
/// Law: `base.index + 1` is the first entry's index, entries have no gaps, and their terms do not
/// fall.
#[derive(Clone, Debug)]
pub struct Recovered {
    pub(crate) replica: ReplicaId,
    pub(crate) hard: HardState,
    pub(crate) base: Base,
    pub(crate) entries: Vec<Entry>,
    /// Only the id is left, so that it is never used again.
    pub(crate) is_removed: bool,
}

impl Recovered {
    pub fn new(replica: ReplicaId) -> Recovered {
        let hard = HardState::default();
        Recovered { replica, hard, base: Base::none(), entries: Vec::new(), is_removed: false }
    }

    /// The state after these records, as by [`RecordReader`].
    pub fn read(records: impl IntoIterator<Item = Record>) -> Result<Recovered, RecordError> {
        let mut reader = RecordReader::default();
        records.into_iter().try_for_each(|record| reader.add(record))?;
        reader.finish()
    }

    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub fn hard(&self) -> HardState {
        self.hard
    }

    /// The snapshot that the replica goes on from. Of index 0 for a replica that has none yet.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The entries behind the base.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether the node has no replica of the group any more.
    pub fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Goes on from a durable snapshot that this replica has made itself, which no record names.
    pub fn begin_at(&mut self, base: Base) -> Result<(), RecordError> {
        if !base.is_valid() {
            return Err(RecordError::Base);
        }
        if base.index > self.base.index {
            self.entries.retain(|entry| entry.index > base.index);
            if let Some(first) = self.entries.first().filter(|e| e.index.0 != base.index.0 + 1) {
                return Err(RecordError::Gap { index: first.index, last: base.index });
            }
            self.base = base;
        }
        Ok(())
    }

    fn last(&self) -> LogIndex {
        self.entries.last().map_or(self.base.index, |entry| entry.index)
    }

    /// An index up to which all entries are committed. A leader proposes a change of the members
    /// only after it has applied the one before, so of the changes in a log all but the last are
    /// committed. Without this, replicas that lose their commit index in a power cut could go back
    /// more than one step, to members with majorities that do not meet those of today.
    pub fn committed(&self) -> LogIndex {
        let known = self.hard.commit.min(self.last()).max(self.base.index);
        let mut steps = self.entries.iter().rev().filter_map(|entry| match entry.body {
            Body::Members(_) => Some(entry.index),
            Body::Empty | Body::Command(_) => None,
        });
        steps.next();
        steps.next().unwrap_or_default().max(known)
    }
}

/// Reads the records of a group one by one, in the order of the log. The caller has the newest
/// snapshot of the group that a [`Record::Base`] or [`Recovered::begin_at`] names.
///
/// The log can have given up the records before a checkpoint. So the first records can be entries
/// of any index, and the checkpoint names their replica later.
#[derive(Clone, Debug, Default)]
pub struct RecordReader {
    /// `None` before the first record that names it.
    replica: Option<ReplicaId>,
    is_removed: bool,
    hard: HardState,
    /// `None` before the first base.
    base: Option<Base>,
    /// Without gaps, of terms that do not fall.
    entries: Vec<Entry>,
    /// The base of a checkpoint can follow.
    is_in_checkpoint: bool,
}

impl RecordReader {
    pub fn add(&mut self, record: Record) -> Result<(), RecordError> {
        match record {
            Record::Replica(replica) => {
                let is_known =
                    !self.is_removed && self.replica.is_none_or(|known| known == replica);
                if !is_known {
                    *self = RecordReader::default();
                }
                self.replica = Some(replica);
                self.is_in_checkpoint = true;
            }
            Record::Removed(replica) => {
                let (replica, is_removed) = (Some(replica), true);
                *self = RecordReader { replica, is_removed, ..RecordReader::default() };
            }
            Record::HardState(hard) => {
                if hard.term < self.hard.term {
                    return Err(RecordError::Term { term: hard.term, last: self.hard.term });
                }
                self.hard = hard;
            }
            Record::Base(base) => self.begin_at(base)?,
            Record::Entry(entry) => self.append(entry)?,
        }
        Ok(())
    }

    /// The term of an entry that stands, as far as the records say.
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        let at = self.entries.binary_search_by_key(&index, |entry| entry.index).ok()?;
        Some(self.entries[at].term)
    }

    /// The state after all records.
    pub fn finish(self) -> Result<Recovered, RecordError> {
        let RecordReader { replica, is_removed, hard, base, entries, .. } = self;
        let replica = replica.ok_or(RecordError::NoReplica)?;
        let base = base.unwrap_or_else(Base::none);
        match entries.first() {
            Some(first) if first.index.0 != base.index.0 + 1 => {
                Err(RecordError::Gap { index: first.index, last: base.index })
            }
            _ => Ok(Recovered { replica, hard, base, entries, is_removed }),
        }
    }

    /// Keeps the entries behind the base if they belong to the same log as the base: the log has
    /// the entry of the base, or a checkpoint says so and the log has given that entry up.
    fn begin_at(&mut self, base: Base) -> Result<(), RecordError> {
        if !base.is_valid() {
            return Err(RecordError::Base);
        }
        let at = (base.index, base.term);
        let has_it = self.base.as_ref().is_some_and(|known| (known.index, known.term) == at)
            || self.entries.iter().any(|entry| (entry.index, entry.term) == at);
        let is_given_up = self.is_in_checkpoint
            && self.base.is_none()
            && self.entries.first().is_some_and(|first| first.index > base.index);
        match has_it || is_given_up {
            true => self.entries.retain(|entry| entry.index > base.index),
            false => self.entries.clear(),
        }
        self.base = Some(base);
        self.is_in_checkpoint = false;
        Ok(())
    }

    fn append(&mut self, entry: Entry) -> Result<(), RecordError> {
        self.is_in_checkpoint = false;
        self.entries.truncate(self.entries.partition_point(|e| e.index < entry.index));
        let last = match (self.entries.last(), &self.base) {
            (Some(last), _) => Some((last.index, last.term)),
            (None, Some(base)) => Some((base.index, base.term)),
            (None, None) if self.replica.is_some() => Some((LogIndex(0), Term(0))),
            // The log has given up the entries before this one.
            (None, None) => None,
        };
        if let Some((last, term)) = last {
            // The log has given up the entries between an earlier checkpoint and this one. A later
            // checkpoint has them; without it the end finds the gap.
            if entry.index.0 > last.0 + 1 {
                self.entries.clear();
            }
            if entry.term < term {
                return Err(RecordError::Term { term: entry.term, last: term });
            }
        }
        self.entries.push(entry);
        Ok(())
    }
}

impl Entry {
    /// Whether a peer may send it.
    pub(crate) fn is_valid(&self) -> bool {
        let is_number = |number| (1..=MAX_NUMBER).contains(&number);
        let fits = match &self.body {
            Body::Command(command) => command.len() <= MAX_COMMAND_BYTES,
            Body::Empty | Body::Members(_) => true,
        };
        is_number(self.term.0) && is_number(self.index.0) && fits
    }

    /// Bytes in a message, about.
    pub(crate) fn len_bytes(&self) -> usize {
        const OVERHEAD_BYTES: usize = 64;
        match &self.body {
            Body::Command(command) => OVERHEAD_BYTES + command.len(),
            Body::Empty | Body::Members(_) => OVERHEAD_BYTES,
        }
    }

    pub(crate) fn to_raft(&self) -> pb::Entry {
        let mut entry = pb::Entry::default();
        (entry.term, entry.index) = (self.term.0, self.index.0);
        let (kind, tag, data) = match &self.body {
            Body::Empty => (pb::EntryType::EntryNormal, Bytes::new(), Bytes::new()),
            Body::Command(data) => (pb::EntryType::EntryNormal, COMMAND, data.clone()),
            Body::Members(step) => (pb::EntryType::EntryConfChange, encode(step), Bytes::new()),
        };
        entry.set_entry_type(kind);
        (entry.context, entry.data) = (tag, data);
        entry
    }

    pub(crate) fn from_raft(entry: &pb::Entry) -> Entry {
        let body = match entry.get_entry_type() {
            pb::EntryType::EntryNormal if entry.context.is_empty() => Body::Empty,
            pb::EntryType::EntryNormal => Body::Command(entry.data.clone()),
            // A change that raft-rs has refused is an entry without content.
            _ => decode(&entry.context).map_or(Body::Empty, Body::Members),
        };
        Entry { term: Term(entry.term), index: LogIndex(entry.index), body }
    }
}

/// Tells a command of no bytes from no command. raft-rs carries it and does not read it.
const COMMAND: Bytes = Bytes::from_static(&[1]);

/// The form in which a change passes through raft-rs, in a field that raft-rs does not read. In the
/// field that it reads as protobuf there is nothing.
pub(crate) fn encode(step: &MembersStep) -> Bytes {
    postcard::to_stdvec(step).expect("numbers can be encoded").into()
}

fn decode(bytes: &[u8]) -> Option<MembersStep> {
    postcard::from_bytes(bytes).ok()
}
