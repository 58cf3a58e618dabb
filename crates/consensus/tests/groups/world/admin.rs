//! The planner of the members, and how it sees that all is well.

use super::World;
use super::machine::Machine;
use ebb_consensus::*;
use ebb_model::GroupId;

impl World {
    /// Brings the members to the plan's: all voters, with the directories that their nodes have.
    pub(super) fn administer(&mut self, group: GroupId) {
        let Some(machine) = self.leader(group) else { return };
        let Some(process) = self.machines[machine].awake() else { return };
        let status = process.groups.status(group).expect("it leads");
        let members = &status.members;
        let voters = members.voters().count();
        let gone = members.members().iter().find(|member| {
            self.machines[member.node.0 as usize - 1].disk.directory != member.directory
        });
        let own = status.replica;
        let learner = members.members().iter().find(|member| member.role == Role::Learner);
        let is_random = self.plan.has_changes && !self.is_calm && self.rng.percent(6);
        let others: Vec<ReplicaId> =
            members.members().iter().map(|it| it.replica).filter(|it| *it != own).collect();
        let change = if let Some(member) = gone {
            Change::Remove(member.replica)
        } else if is_random && voters > 1 && self.wiped.is_none() {
            Change::Remove(self.rng.one_of(&others).expect("there are others"))
        } else if let Some(member) = learner {
            Change::Promote(member.replica)
        } else if voters < self.plan.voters {
            let absent = |machine: &&Machine| members.on_node(machine.node).is_none();
            let free: Vec<(NodeId, DirectoryId)> = self
                .machines
                .iter()
                .filter(absent)
                .map(|it| (it.node, it.disk.directory))
                .collect();
            let Some((node, directory)) = self.rng.one_of(&free) else { return };
            Change::Add { node, directory }
        } else {
            if !self.is_calm && self.rng.percent(3) && !others.is_empty() {
                let to = self.rng.one_of(&others).expect("there are others");
                self.machines[machine].awake().expect("it leads").groups.transfer(group, to);
                self.pump(machine);
            }
            return;
        };
        let process = self.machines[machine].awake().expect("it leads");
        if process.groups.change(group, change).is_ok() {
            self.changed_at = self.now;
            self.report.changes += 1;
        }
        self.pump(machine);
    }

    /// The machine with the leader of the highest term.
    pub(super) fn leader(&self, group: GroupId) -> Option<usize> {
        let leads = |machine: &Machine| {
            let process = machine.process.as_ref().filter(|_| !machine.is_paused)?;
            match process.groups.status(group)?.leadership {
                Leadership::Leader { term } => Some(term),
                _ => None,
            }
        };
        let led = self.machines.iter().enumerate().filter_map(|(i, it)| Some((leads(it)?, i)));
        led.max().map(|(_, i)| i)
    }

    /// Whether all is repaired: every group has one leader, all wanted voters, and states that are
    /// equal at the last entry. Writing ends when there is a leader for it.
    pub(super) fn has_converged(&mut self) -> bool {
        let is_settled = (1..=self.plan.groups).all(|id| self.is_settled(GroupId(id)));
        if self.oracle.is_writing && is_settled {
            self.oracle.is_writing = false;
            return false;
        }
        is_settled && !self.oracle.is_writing
    }

    pub(super) fn is_settled(&self, group: GroupId) -> bool {
        let Some(leader) = self.leader(group) else { return false };
        let process = self.machines[leader].process.as_ref().expect("it leads");
        let status = process.groups.status(group).expect("it leads");
        let is_complete = status.members.voters().count() == self.plan.voters
            && status.members.members().len() == self.plan.voters;
        let state = process.toys[&group];
        is_complete
            && (self.oracle.is_writing || state.applied == status.last.0)
            && status.members.members().iter().all(|member| {
                let machine = &self.machines[member.node.0 as usize - 1];
                let process = machine.process.as_ref().filter(|_| !machine.is_paused);
                let is_right = machine.disk.directory == member.directory;
                is_right
                    && process.is_some_and(|process| {
                        let is_it = process
                            .groups
                            .status(group)
                            .is_some_and(|status| status.replica == member.replica);
                        is_it && (self.oracle.is_writing || process.toys[&group] == state)
                    })
            })
    }

    /// Idle groups cost no ticks and no messages, however many they are.
    pub(super) fn check_silence(&mut self) -> Result<(), String> {
        let settle = self.now + 3000;
        self.run_until(settle)?;
        let before = self.oracle.messages;
        self.run_until(settle + 2000)?;
        let active: usize = self
            .machines
            .iter()
            .filter_map(|it| it.process.as_ref())
            .map(|it| it.groups.active())
            .sum();
        let is_led = (1..=self.plan.groups).all(|id| self.leader(GroupId(id)).is_some());
        match (self.oracle.messages - before, active, is_led) {
            (0, 0, true) => Ok(()),
            (messages, active, is_led) => {
                let all = self.describe();
                Err(format!("idle: {messages} messages, {active} active, led: {is_led}: {all}"))
            }
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text = format!("wiped {:?}", self.wiped);
        for machine in &self.machines {
            text += &format!("\n{:?} {:x}", machine.node, machine.disk.directory.0 as u16);
            let Some(process) = &machine.process else { continue };
            for id in process.groups.ids() {
                let status = process.groups.status(id).expect("exists");
                let voters: Vec<(u64, u64, u16, Role)> = status
                    .members
                    .members()
                    .iter()
                    .map(|it| (it.replica.0, it.node.0, it.directory.0 as u16, it.role))
                    .collect();
                text += &format!(
                    "\n  group {} replica {} {:?} committed {} last {} snapshot {} {voters:?}",
                    id.0,
                    status.replica.0,
                    status.leadership,
                    status.committed.0,
                    status.last.0,
                    status.snapshot.0
                );
            }
        }
        text
    }

    /// Notices that a wiped node votes again everywhere.
    pub(super) fn look_for_return(&mut self) {
        let Some(machine) = self.wiped else { return };
        let directory = self.machines[machine].disk.directory;
        let node = self.machines[machine].node;
        let is_back = (1..=self.plan.groups).all(|id| {
            let members = self.oracle.members(GroupId(id));
            members.is_some_and(|members| {
                let has_other = members.on_node(node).is_some_and(|it| it.directory != directory);
                members.voters().count() == self.plan.voters && !has_other
            })
        });
        if is_back {
            self.wiped = None;
        }
    }
}
