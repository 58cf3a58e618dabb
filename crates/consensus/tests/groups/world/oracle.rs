//! The invariants of every world.

use super::{Toy, fingerprint};
use ebb_consensus::{Body, Entry, Membership, ReplicaId, RunId};
use ebb_model::{GroupId, LogIndex, Term};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Oracle {
    violation: Option<String>,
    leaders: BTreeMap<(GroupId, Term), (ReplicaId, RunId)>,
    /// Body and term of the entry before, by term and index: the logs of all replicas match.
    entries: BTreeMap<(GroupId, Term, LogIndex), (u64, Term)>,
    states: BTreeMap<(GroupId, u64), Toy>,
    applied_ops: BTreeMap<(GroupId, LogIndex), u64>,
    acknowledged: BTreeMap<(GroupId, LogIndex), u64>,
    /// The last write that somebody knows of.
    floors: BTreeMap<GroupId, u64>,
    members: BTreeMap<GroupId, (LogIndex, Membership)>,
    /// Messages of groups.
    pub messages: u64,
    pub is_writing: bool,
}

impl Oracle {
    pub fn fail(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    pub fn violation(&self) -> Result<(), String> {
        self.violation.clone().map_or(Ok(()), Err)
    }

    pub fn terms(&self) -> u64 {
        self.leaders.len() as u64
    }

    pub fn lead(&mut self, group: GroupId, term: Term, replica: ReplicaId, run: RunId) {
        let first = *self.leaders.entry((group, term)).or_insert((replica, run));
        if first != (replica, run) {
            self.fail(format!("{group:?} has two leaders in {term:?}: {first:?}, {replica:?}"));
        }
    }

    pub fn log(&mut self, group: GroupId, entry: &Entry, previous: Option<Term>) {
        let Some(previous) = previous else { return };
        let body = match &entry.body {
            Body::Empty => 0,
            Body::Command(command) => fingerprint(command),
            Body::Members(step) => fingerprint(format!("{step:?}").as_bytes()),
        };
        let key = (group, entry.term, entry.index);
        let first = *self.entries.entry(key).or_insert((body, previous));
        if first != (body, previous) {
            self.fail(format!("two entries are {key:?}: {first:?} and {:?}", (body, previous)));
        }
    }

    pub fn apply(&mut self, group: GroupId, entry: &Entry, state: &Toy) {
        self.applied(group, state);
        if let Body::Command(command) = &entry.body {
            let op = u64::from_le_bytes(command[..8].try_into().expect("8 bytes"));
            self.applied_ops.insert((group, entry.index), op);
        }
    }

    pub fn applied(&mut self, group: GroupId, state: &Toy) {
        let first = *self.states.entry((group, state.applied)).or_insert(*state);
        if first != *state {
            self.fail(format!("{group:?} has two states at {}", state.applied));
        }
    }

    pub fn acknowledge(&mut self, group: GroupId, index: LogIndex, op: u64) {
        let first = *self.acknowledged.entry((group, index)).or_insert(op);
        if first != op {
            self.fail(format!("two writes are acknowledged at {index:?}: {first} and {op}"));
        }
        let floor = self.floors.entry(group).or_default();
        *floor = (*floor).max(index.0);
    }

    pub fn floor(&self, group: GroupId) -> u64 {
        self.floors.get(&group).copied().unwrap_or_default()
    }

    pub fn read(&mut self, group: GroupId, floor: u64, state: Toy) {
        if state.last_command < floor {
            self.fail(format!(
                "a read of {group:?} shows write {}, and {floor} was known before",
                state.last_command
            ));
        }
        let floor = self.floors.entry(group).or_default();
        *floor = (*floor).max(state.last_command);
    }

    pub fn has_members(&mut self, group: GroupId, index: LogIndex, members: &Membership) {
        let newest = self.members.entry(group).or_insert((index, members.clone()));
        if newest.0 < index {
            *newest = (index, members.clone());
        } else if newest.0 == index && newest.1 != *members {
            self.fail(format!("{group:?} has two memberships at {index:?}"));
        }
    }

    pub fn members(&self, group: GroupId) -> Option<&Membership> {
        self.members.get(&group).map(|(_, members)| members)
    }

    pub fn check_acknowledged(&self) -> Result<(), String> {
        for (place, op) in &self.acknowledged {
            if self.applied_ops.get(place) != Some(op) {
                return Err(format!(
                    "write {op} was acknowledged at {place:?}, and lost: {:?}",
                    self.applied_ops.get(place)
                ));
            }
        }
        Ok(())
    }
}
