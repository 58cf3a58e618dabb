//! The rules of replicated groups. Consensus gives term and index of their entries, and a later
//! record can void earlier ones.

use super::scan::Used;
use ebb_format::record::{GroupId, Position, Term};
use ebb_format::segment::Generation;
use ebb_model::LogIndex;
use std::collections::BTreeMap;

/// The end of a group.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct GroupEnd {
    /// The highest term of the group in the log. Of a replicated group: of the last entry.
    pub term: Term,
    /// The last command or entry, and its term.
    pub last: (LogIndex, Term),
    pub is_replicated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A command or a step.
    Entry,
    Base {
        is_checkpoint: bool,
    },
    Promise,
}

/// A record voids all earlier entries behind `live`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Void {
    pub live: LogIndex,
    /// An earlier snapshot of a later entry than this one belongs to an earlier replica.
    pub snapshot: LogIndex,
}

impl GroupEnd {
    /// Moves on to the next record of a group, which is replicated from now on.
    ///
    /// The term of an entry that voids others can be below theirs: Raft orders the terms of a log,
    /// and the void entries belong to another log.
    pub fn advance(
        &mut self,
        kind: Kind,
        term: Term,
        index: LogIndex,
    ) -> Result<Option<Void>, String> {
        let (last, last_term) = self.last;
        self.is_replicated = true;
        let void = match kind {
            Kind::Promise if (term, index) == (Term(0), LogIndex(0)) => return Ok(None),
            Kind::Promise => Err("a promise with a term or an index"),
            _ if index == LogIndex(0) || term == Term(0) => Err("a record without term or index"),
            Kind::Base { is_checkpoint: true } if index <= last => return Ok(None),
            Kind::Base { .. } => Ok(Some(Void { live: LogIndex(0), snapshot: index })),
            Kind::Entry if index <= last => {
                let live = LogIndex(index.0 - 1);
                Ok(Some(Void { live, snapshot: live }))
            }
            Kind::Entry if index.0 > last.0 + 1 => Err("a gap before a record"),
            Kind::Entry if term < last_term => Err("a term that falls"),
            Kind::Entry => Ok(None),
        };
        let void = void.map_err(|what| {
            format!(
                "{what}: index {} and term {} after index {} and term {}",
                index.0, term.0, last.0, last_term.0
            )
        })?;
        (self.term, self.last) = (term, (index, term));
        Ok(void)
    }
}

/// The first record of a group's last checkpoint. The records before it are needed for entries
/// behind `index` only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    /// The segment that holds all records of the checkpoint.
    pub generation: Generation,
    pub index: LogIndex,
}

/// Earlier records that are not needed once this one is forced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub position: Position,
    pub group: GroupId,
    /// Earlier entries behind this one are void.
    pub live: Option<LogIndex>,
    pub checkpoint: Option<Checkpoint>,
}

impl Release {
    /// `None` if the record releases nothing.
    pub fn of(
        (position, group, index): (Position, GroupId, LogIndex),
        kind: Kind,
        void: Option<Void>,
        generation: Generation,
    ) -> Option<Release> {
        let checkpoint = (kind == Kind::Base { is_checkpoint: true })
            .then_some(Checkpoint { generation, index });
        let live = void.map(|void| void.live);
        (live.is_some() || checkpoint.is_some()).then_some(Release {
            position,
            group,
            live,
            checkpoint,
        })
    }

    pub fn apply<'a>(
        self,
        segments: impl IntoIterator<Item = &'a mut Used>,
        checkpoints: &mut BTreeMap<GroupId, Checkpoint>,
    ) {
        if let Some(live) = self.live {
            // The segments behind the record have other entries.
            for used in segments.into_iter().filter(|used| used.base.position < self.position) {
                used.base.void(self.group, live);
            }
        }
        if let Some(checkpoint) = self.checkpoint {
            checkpoints.insert(self.group, checkpoint);
        }
    }
}
