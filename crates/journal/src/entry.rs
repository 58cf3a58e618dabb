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
}

impl Entry<'_> {
    pub fn group(&self) -> GroupId {
        match self {
            Entry::Local(_) => GroupId::LOCAL,
            Entry::Command(group, _) => *group,
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

    /// Moves back to `to` where that is lower.
    pub(super) fn cut(&mut self, to: &Frontier) {
        self.position = self.position.min(to.position);
        for (group, index) in &mut self.indices {
            *index = (*index).min(to.index(*group));
        }
    }

    fn find(&self, group: GroupId) -> Result<usize, usize> {
        self.indices.binary_search_by_key(&group, |(group, _)| *group)
    }
}
