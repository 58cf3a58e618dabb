//! Faults, and their ends.

use super::machine::Disk;
use super::{Event, World};
use ebb_model::GroupId;

impl World {
    pub(super) fn fault(&mut self) {
        let machine = self.rng.below(self.plan.machines) as usize;
        let other = self.rng.below(self.plan.machines) as usize;
        let time = self.rng.one_of(&[30, 150, 600, 1500]).expect("not empty");
        let time = self.rng.between(1, time);
        match self.rng.below(12) {
            0 | 1 => self.stop(machine, time, false),
            2 | 3 => self.stop(machine, time, true),
            4 => {
                for machine in 0..self.machines.len() {
                    self.stop(machine, time, true);
                }
            }
            5 | 6 => {
                if !self.machines[machine].is_paused {
                    self.machines[machine].is_paused = true;
                    self.machines[machine].paused_at = self.now;
                }
                self.at(time, Event::Resume { machine });
            }
            7 | 8 => self.cut_for(machine, other, time),
            9 => {
                for other in 0..self.machines.len() {
                    self.cut_for(machine, other, time);
                    self.cut_for(other, machine, time);
                }
            }
            10 => {
                if let Some(leader) = self.leader(GroupId(1)) {
                    let is_cut = self.rng.percent(50);
                    match is_cut {
                        true => {
                            for other in 0..self.machines.len() {
                                self.cut_for(leader, other, time);
                                self.cut_for(other, leader, time);
                            }
                        }
                        false => self.stop(leader, time, true),
                    }
                }
            }
            _ => self.wipe(machine, time),
        }
    }

    pub(super) fn cut_for(&mut self, from: usize, to: usize, time: u64) {
        self.cut.insert((from, to));
        self.at(time, Event::Heal { from, to });
    }

    /// Ends the process. A power cut also takes unforced records, or some of them.
    pub(super) fn stop(&mut self, machine: usize, time: u64, is_power_cut: bool) {
        let stopped = &mut self.machines[machine];
        stopped.process = None;
        stopped.is_paused = false;
        stopped.inbox.clear();
        if is_power_cut {
            let left = stopped.disk.log.len() - stopped.disk.forced;
            let kept = self.rng.below(left as u64 + 1) as usize;
            stopped.disk.log.truncate(stopped.disk.forced + kept);
        }
        // A record that has survived a power cut survives the next one.
        stopped.disk.forced = stopped.disk.log.len();
        self.at(time, Event::Start { machine });
    }

    /// Takes the disk of a machine, if the other voters have all that was acknowledged.
    pub(super) fn wipe(&mut self, machine: usize, time: u64) {
        let is_ready = self.plan.has_wipes
            && self.wiped.is_none()
            && self.now - self.changed_at > 1000
            && (1..=self.plan.groups).all(|id| self.have_applied_members(GroupId(id)));
        if is_ready {
            self.stop(machine, time, false);
            let last = self.machines[machine].disk.replicas();
            self.machines[machine].disk = Disk::new(&mut self.rng);
            // The node may be told which replica it was.
            self.machines[machine].told = if self.rng.percent(70) { last } else { Vec::new() };
            self.wiped = Some(machine);
        }
    }

    /// Whether all wanted voters know that they are.
    pub(super) fn have_applied_members(&self, group: GroupId) -> bool {
        let Some(members) = self.oracle.members(group) else { return false };
        members.voters().count() == self.plan.voters
            && members.voters().all(|voter| {
                let process = self.machines[voter.node.0 as usize - 1].process.as_ref();
                let status = process.and_then(|process| process.groups.status(group));
                status.is_some_and(|status| status.members == *members)
            })
    }

    pub(super) fn resume(&mut self, machine: usize) {
        let resumed = &mut self.machines[machine];
        if resumed.is_paused {
            resumed.is_paused = false;
            let missed = (self.now - resumed.paused_at) / resumed.tick_ms;
            if let Some(process) = &mut resumed.process {
                (0..missed).for_each(|_| process.groups.tick());
            }
        }
        for packet in std::mem::take(&mut self.machines[machine].inbox) {
            self.deliver(machine, packet);
        }
        self.pump(machine);
        self.finish_forces(machine);
    }

    pub(super) fn heal(&mut self) {
        self.is_calm = true;
        self.oracle.is_writing = true;
        self.cut.clear();
        for machine in 0..self.machines.len() {
            if self.machines[machine].is_paused {
                self.resume(machine);
            }
            if self.machines[machine].process.is_none() {
                self.start(machine);
            }
        }
    }
}
