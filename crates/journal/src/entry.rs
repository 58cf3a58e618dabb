//! What is appended, what a recovery returns of it, and the places of both.

use ebb_format::record::{GroupId, Position, Term};
use ebb_model::{Command, LocalCommand, LogIndex};
use smallvec::SmallVec;

/// A command, as it is appended.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// Of [`GroupId::LOCAL`].
    Local(&'a LocalCommand),
    /// Of a partition's group, which is any other.
    Command(GroupId, &'a Command),
    /// Of a replicated group.
    Replicated(GroupId, Replicated<'a>),
}

/// A record of a replicated group. Consensus gives term and index.
#[derive(Clone, Copy, Debug)]
pub enum Replicated<'a> {
    /// A command, by [`ebb_format::record::encode_command`].
    Command { term: Term, index: LogIndex, bytes: &'a [u8] },
    /// An entry that is no command.
    Step { term: Term, index: LogIndex, bytes: &'a [u8] },
    /// The group goes on from the snapshot of this entry. Appended: the snapshot was installed, and
    /// all entries before the record are void. In a checkpoint: entries behind `index` stay.
    Base { term: Term, index: LogIndex, bytes: &'a [u8] },
    /// A promise of the replica. It has no index.
    Promise(&'a [u8]),
}

impl Entry<'_> {
    pub fn group(&self) -> GroupId {
        match self {
            Entry::Local(_) => GroupId::LOCAL,
            Entry::Command(group, _) | Entry::Replicated(group, _) => *group,
        }
    }
}

/// A command, as a recovery returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    pub position: Position,
    pub group: GroupId,
    pub term: Term,
    pub index: LogIndex,
    pub command: LoggedCommand,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoggedCommand {
    Local(LocalCommand),
    Partition(Command),
    /// The following three are of replicated groups, as they were appended.
    Step(Vec<u8>),
    Base(Vec<u8>),
    Promise(Vec<u8>),
}

/// A position of the log, with the last index of each group up to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frontier {
    /// Of a command of any group; 0 before the first.
    pub position: Position,
    /// By group. A group without commands can be missing.
    indices: SmallVec<[(GroupId, LogIndex); 2]>,
}

impl Frontier {
    pub(super) fn new(
        position: Position,
        indices: impl IntoIterator<Item = (GroupId, LogIndex)>,
    ) -> Frontier {
        let mut frontier = Frontier { position, indices: indices.into_iter().collect() };
        frontier.indices.sort_unstable();
        frontier
    }

    /// The last index of the group up to the position; 0 if there is none.
    pub fn index(&self, group: GroupId) -> LogIndex {
        match self.find(group) {
            Ok(at) => self.indices[at].1,
            Err(_) => LogIndex(0),
        }
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = (GroupId, LogIndex)> + '_ {
        self.indices.iter().copied()
    }

    /// Moves on to the next command, of this group. Returns its index.
    pub(super) fn push(&mut self, group: GroupId, position: Position) -> LogIndex {
        self.position = position;
        let at = match self.find(group) {
            Ok(at) => at,
            Err(at) => {
                self.indices.insert(at, (group, LogIndex(0)));
                at
            }
        };
        let index = &mut self.indices[at].1;
        index.0 += 1;
        *index
    }

    /// Moves on to the next record of a replicated group, whose last entry is then `index`.
    pub(super) fn set(&mut self, group: GroupId, position: Position, index: LogIndex) {
        self.position = position;
        match self.find(group) {
            Ok(at) => self.indices[at].1 = index,
            Err(at) => self.indices.insert(at, (group, index)),
        }
    }

    /// Moves back to `to` if that is lower.
    pub(super) fn cut(&mut self, to: &Frontier) {
        if self.position > to.position {
            self.clone_from(to);
        }
    }

    /// The group's entries behind `live` are void.
    pub(super) fn void(&mut self, group: GroupId, live: LogIndex) {
        if let Ok(at) = self.find(group) {
            self.indices[at].1 = self.indices[at].1.min(live);
        }
    }

    fn find(&self, group: GroupId) -> Result<usize, usize> {
        self.indices.binary_search_by_key(&group, |(group, _)| *group)
    }
}
