//! Machines with groups of a toy state machine, on a network and disks that fail, all from one
//! seed. The crate's whole interface is used as a node uses it.

mod machine;
mod oracle;

use ebb_consensus::*;
use ebb_model::{GroupId, LogIndex};
use machine::{Disk, Machine, Process};
use oracle::Oracle;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Pseudo-random numbers (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.below(of.len() as u64) as usize]) }
    }
}

pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub const TIMING: Timing =
    Timing { beat_ticks: Ticks(4), heartbeat_ticks: Ticks(4), election_ticks: Ticks(20) };

/// Milliseconds of a tick.
const TICK: u64 = 10;

/// What happens in a world. All times are milliseconds.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub machines: u64,
    pub voters: usize,
    pub groups: u32,
    /// Of the phase with faults.
    pub duration: u64,
    pub loss_percent: u64,
    pub duplicate_percent: u64,
    /// Of a packet that is reordered.
    pub longest_delay: u64,
    /// Of a force.
    pub slowest_force: u64,
    pub has_faults: bool,
    pub has_wipes: bool,
    pub has_changes: bool,
    /// Between two snapshots of a replica.
    pub snapshot_entries: u64,
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let (machines, voters) = match rng.below(10) {
            0 => (1, 1),
            1 => (2, 2),
            2..=6 => (3, 3),
            7 => (4, 3),
            _ => (5, 5),
        };
        let has_wipes = voters >= 3 && rng.percent(50);
        Plan {
            seed,
            machines,
            voters,
            groups: rng.between(1, 3) as u32,
            duration: 5000,
            loss_percent: rng.one_of(&[0, 1, 5, 15]).unwrap(),
            duplicate_percent: rng.one_of(&[0, 2, 10]).unwrap(),
            longest_delay: rng.one_of(&[4, 30, 150, 400]).unwrap(),
            slowest_force: rng.one_of(&[1, 5, 30, 120]).unwrap(),
            has_faults: true,
            has_wipes,
            has_changes: voters >= 2 && (!has_wipes || voters >= 5),
            snapshot_entries: rng.one_of(&[10, 40, 100_000]).unwrap(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of all packets and states, in their order.
    pub trace: u64,
    pub writes: u64,
    pub reads: u64,
    pub terms: u64,
    pub snapshots: u64,
    pub changes: u64,
    pub packets: u64,
    pub forces: u64,
    pub refused: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.trace ^= other.trace;
        self.writes += other.writes;
        self.reads += other.reads;
        self.terms += other.terms;
        self.snapshots += other.snapshots;
        self.changes += other.changes;
        self.packets += other.packets;
        self.forces += other.forces;
        self.refused += other.refused;
    }
}

enum Event {
    Tick {
        machine: usize,
    },
    Packet {
        machine: usize,
        packet: Packet,
    },
    Forced {
        machine: usize,
        life: u64,
        batch: BatchNumber,
        records: usize,
    },
    Snapshot {
        from: usize,
        life: u64,
        to: usize,
        origin: Origin,
        request: SnapshotRequest,
        state: Toy,
    },
    SnapshotEnd {
        machine: usize,
        life: u64,
        group: GroupId,
        to: ReplicaId,
        is_complete: bool,
    },
    Client,
    Admin,
    Fault,
    Start {
        machine: usize,
    },
    Resume {
        machine: usize,
    },
    Heal {
        from: usize,
        to: usize,
    },
}

/// The state that a group agrees on: how many commands, and a hash of them all in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toy {
    pub applied: u64,
    pub last_command: u64,
    pub count: u64,
    pub hash: u64,
}

impl Toy {
    fn apply(&mut self, entry: &Entry) {
        assert_eq!(entry.index.0, self.applied + 1, "entries are applied in order");
        self.applied = entry.index.0;
        if let Body::Command(command) = &entry.body {
            self.last_command = entry.index.0;
            self.count += 1;
            self.hash = mix(self.hash ^ fingerprint(command));
        }
    }
}

pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub struct World {
    plan: Plan,
    rng: Rng,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub machines: Vec<Machine>,
    /// Directions that lose all packets.
    cut: BTreeSet<(usize, usize)>,
    pub oracle: Oracle,
    is_calm: bool,
    /// A node that has lost its disk, until its new replicas vote.
    wiped: Option<usize>,
    changed_at: u64,
    next_op: u64,
    pub report: Report,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let mut rng = Rng::new(plan.seed ^ 0xebb);
        let machines = (0..plan.machines).map(|i| Machine::new(NodeId(i + 1), &mut rng)).collect();
        let mut world = World {
            plan,
            rng,
            now: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            machines,
            cut: BTreeSet::new(),
            oracle: Oracle::default(),
            is_calm: false,
            wiped: None,
            changed_at: 0,
            next_op: 1,
            report: Report::default(),
        };
        for machine in 0..world.machines.len() {
            world.start(machine);
            let at = world.rng.below(TICK);
            world.at(at, Event::Tick { machine });
        }
        for id in 1..=world.plan.groups {
            let at = world.rng.below(world.plan.machines) as usize;
            world.begin(at, GroupId(id));
        }
        world.at(1, Event::Client);
        world.at(5, Event::Admin);
        if world.plan.has_faults {
            world.at(500, Event::Fault);
        }
        world
    }

    /// Runs a world to its end: faults, calm, then silence.
    pub fn run(plan: Plan) -> Result<Report, String> {
        let mut world = World::new(plan);
        world.run_until(world.plan.duration)?;
        world.heal();
        let limit = world.now + 30_000;
        while !world.has_converged() {
            if world.now >= limit {
                return Err(format!("no convergence: {}", world.describe()));
            }
            world.run_until(world.now + 200)?;
        }
        world.oracle.check_acknowledged()?;
        world.check_silence()?;
        world.report.terms = world.oracle.terms();
        Ok(world.report)
    }

    /// As [`World::run`]; a panic is a violation too.
    pub fn try_run(plan: Plan) -> Result<Report, String> {
        let panicked = |panic: Box<dyn Any + Send>| {
            let text = panic.downcast_ref::<String>().cloned();
            format!("panic: {}", text.unwrap_or_default())
        };
        catch_unwind(AssertUnwindSafe(|| World::run(plan)))
            .unwrap_or_else(|panic| Err(panicked(panic)))
    }

    pub fn run_until(&mut self, time: u64) -> Result<(), String> {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > time {
                break;
            }
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.handle(event);
            self.oracle.violation()?;
        }
        self.now = time;
        Ok(())
    }

    fn at(&mut self, delay: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + delay, self.scheduled), event);
    }

    fn trace(&mut self, what: u64) {
        self.report.trace = mix(self.report.trace ^ what ^ self.now << 32);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick { machine } => {
                let period = self.machines[machine].tick_ms;
                self.at(period, Event::Tick { machine });
                if let Some(process) = self.machines[machine].awake() {
                    process.groups.tick();
                    if process.groups.now().0.is_multiple_of(5) {
                        self.take_snapshots(machine);
                    }
                    self.pump(machine);
                }
            }
            Event::Packet { machine, packet } => self.deliver(machine, packet),
            Event::Forced { machine, life, batch, records } => {
                self.forced(machine, life, batch, records);
            }
            Event::Snapshot { from, life, to, origin, request, state } => {
                let (group, replica) = (request.group, request.to);
                let is_cut = self.cut.contains(&(from, to));
                let is_complete = !is_cut && self.receive_snapshot(to, origin, &request, state);
                let end =
                    Event::SnapshotEnd { machine: from, life, group, to: replica, is_complete };
                let delay = self.rng.between(1, 20);
                self.at(delay, end);
            }
            Event::SnapshotEnd { machine, life, group, to, is_complete } => {
                if let Some(process) = self.machines[machine].of_life(life) {
                    process.groups.snapshot_sent(group, to, is_complete);
                    self.pump(machine);
                }
            }
            Event::Client => {
                if !self.is_calm || self.oracle.is_writing {
                    self.call();
                }
                let delay = self.rng.between(1, 12);
                self.at(delay, Event::Client);
            }
            Event::Admin => {
                for id in 1..=self.plan.groups {
                    self.administer(GroupId(id));
                }
                self.at(60, Event::Admin);
            }
            Event::Fault => {
                if !self.is_calm {
                    self.fault();
                    let delay = self.rng.between(50, 500);
                    self.at(delay, Event::Fault);
                }
            }
            Event::Start { machine } => {
                if self.machines[machine].process.is_none() {
                    self.start(machine);
                }
            }
            Event::Resume { machine } => self.resume(machine),
            Event::Heal { from, to } => {
                self.cut.remove(&(from, to));
            }
        }
    }

    fn send(&mut self, from: usize, packet: Packet) {
        for (group, message) in &packet.messages {
            self.check_vote(from, *group, message);
        }
        self.report.packets += 1;
        let to = packet.to.0 as usize - 1;
        self.trace(fingerprint(&postcard::to_stdvec(&packet).expect("packets can be encoded")));
        if self.cut.contains(&(from, to)) || self.is_lost() {
            return;
        }
        if !self.is_calm && self.rng.percent(self.plan.duplicate_percent) {
            let delay = self.delay();
            self.at(delay, Event::Packet { machine: to, packet: packet.clone() });
        }
        let delay = self.delay();
        self.at(delay, Event::Packet { machine: to, packet });
    }

    /// A vote leaves after it is forced.
    fn check_vote(&mut self, machine: usize, group: GroupId, message: &Message) {
        let MessageBody::Vote { is_pre_vote: false, is_granted: true, .. } = message.body else {
            return;
        };
        let disk = &self.machines[machine].disk;
        let mut of_group = disk.log[..disk.forced].iter().rev().filter(|(of, _)| *of == group);
        let hard = of_group.find_map(|(_, record)| match record {
            Record::HardState(hard) => Some((hard.term, hard.vote)),
            _ => None,
        });
        if hard.is_none_or(|hard| hard < (message.term, Some(message.to))) {
            self.oracle.fail(format!("a vote of {group:?} for {:?} is not forced", message.term));
        }
    }

    fn is_lost(&mut self) -> bool {
        !self.is_calm && self.rng.percent(self.plan.loss_percent)
    }

    fn delay(&mut self) -> u64 {
        let is_late = !self.is_calm && self.rng.percent(5);
        if is_late { self.rng.between(1, self.plan.longest_delay) } else { self.rng.between(1, 3) }
    }

    fn deliver(&mut self, machine: usize, packet: Packet) {
        let target = &mut self.machines[machine];
        if target.process.is_some() && target.is_paused {
            target.inbox.push(packet);
            return;
        }
        let Some(process) = target.awake() else { return };
        // Packets travel as bytes.
        let bytes = postcard::to_stdvec(&packet).expect("packets can be encoded");
        let packet: Packet = postcard::from_bytes(&bytes).expect("packets can be decoded");
        let refusals = process.groups.receive(packet);
        for (group, refusal) in refusals {
            self.report.refused += 1;
            if let (Some(group), Refusal::NoReplica { replica }) = (group, refusal) {
                self.machines[machine].join(group, replica);
            }
        }
        self.pump(machine);
    }

    fn call(&mut self) {
        let machine = self.rng.below(self.plan.machines) as usize;
        let group = GroupId(self.rng.between(1, self.plan.groups.into()) as u32);
        let op = self.next_op;
        let is_read = self.rng.percent(30);
        let floor = self.oracle.floor(group);
        let padding = self.rng.below(40) as usize;
        let Some(process) = self.machines[machine].awake() else { return };
        self.next_op += 1;
        if is_read {
            if process.groups.read(group, ReadId(op)).is_ok() {
                process.reads.insert(ReadId(op), (group, floor));
            }
        } else {
            let mut command = op.to_le_bytes().to_vec();
            command.resize(8 + padding, 7);
            if let Ok(proposed) = process.groups.propose(group, command.into()) {
                process.writes.insert((group, proposed.index), (proposed.term, op));
            }
        }
        self.pump(machine);
    }

    /// Brings the members to what the plan wants: all voters with the directories that their nodes
    /// have.
    fn administer(&mut self, group: GroupId) {
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
    pub fn leader(&self, group: GroupId) -> Option<usize> {
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

    fn fault(&mut self) {
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
                self.machines[machine].is_paused = true;
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

    fn cut_for(&mut self, from: usize, to: usize, time: u64) {
        self.cut.insert((from, to));
        self.at(time, Event::Heal { from, to });
    }

    /// Ends the process; a power cut also takes what is not forced, or some of it.
    fn stop(&mut self, machine: usize, time: u64, is_power_cut: bool) {
        let stopped = &mut self.machines[machine];
        stopped.process = None;
        stopped.is_paused = false;
        stopped.inbox.clear();
        if is_power_cut {
            let left = stopped.disk.log.len() - stopped.disk.forced;
            let kept = self.rng.below(left as u64 + 1) as usize;
            stopped.disk.log.truncate(stopped.disk.forced + kept);
        }
        // What has survived once survives.
        stopped.disk.forced = stopped.disk.log.len();
        self.at(time, Event::Start { machine });
    }

    /// Takes the disk of a machine, if the other voters have all that was acknowledged.
    fn wipe(&mut self, machine: usize, time: u64) {
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
    fn have_applied_members(&self, group: GroupId) -> bool {
        let Some(members) = self.oracle.members(group) else { return false };
        members.voters().count() == self.plan.voters
            && members.voters().all(|voter| {
                let process = self.machines[voter.node.0 as usize - 1].process.as_ref();
                let status = process.and_then(|process| process.groups.status(group));
                status.is_some_and(|status| status.members == *members)
            })
    }

    fn resume(&mut self, machine: usize) {
        self.machines[machine].is_paused = false;
        for packet in std::mem::take(&mut self.machines[machine].inbox) {
            self.deliver(machine, packet);
        }
        self.pump(machine);
        self.finish_forces(machine);
    }

    pub fn heal(&mut self) {
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

    /// Whether all is repaired: every group has one leader, all wanted voters, and states that are
    /// equal at the last entry. Writing ends when there is a leader for it.
    fn has_converged(&mut self) -> bool {
        let is_settled = (1..=self.plan.groups).all(|id| self.is_settled(GroupId(id)));
        if self.oracle.is_writing && is_settled {
            self.oracle.is_writing = false;
            return false;
        }
        is_settled && !self.oracle.is_writing
    }

    fn is_settled(&self, group: GroupId) -> bool {
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

    /// Idle groups cost no ticks and no messages, whatever their number.
    fn check_silence(&mut self) -> Result<(), String> {
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

    fn describe(&self) -> String {
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
    fn look_for_return(&mut self) {
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

impl World {
    fn start(&mut self, machine: usize) {
        let seed = self.rng.next();
        let run = RunId(u128::from(self.rng.next()));
        let started = &mut self.machines[machine];
        started.life += 1;
        let config = Config {
            node: started.node,
            directory: started.disk.directory,
            run,
            seed,
            timing: TIMING,
            kept_entries: 8,
        };
        match Process::start(config, &started.disk, &started.told) {
            Ok(process) => started.process = Some(process),
            Err(error) => self.oracle.fail(format!("node {} cannot start: {error}", machine + 1)),
        }
        self.machines[machine].told.clear();
        self.pump(machine);
    }

    fn begin(&mut self, machine: usize, group: GroupId) {
        let begun = &mut self.machines[machine];
        let members = Membership::first(begun.node, begun.disk.directory);
        let base = Base { index: LogIndex(1), term: ebb_model::Term(1), members };
        begun.disk.snapshots.insert(
            (group, ReplicaId::FIRST, base.index),
            (base.clone(), Toy { applied: 1, ..Toy::default() }),
        );
        let process = begun.process.as_mut().expect("it has started");
        process.toys.insert(group, Toy { applied: 1, ..Toy::default() });
        process.groups.begin(group, base).expect("a new group");
        self.pump(machine);
    }

    /// Performs all batches of a machine.
    pub fn pump(&mut self, machine: usize) {
        loop {
            let Some(process) = self.machines[machine].awake() else { return };
            let Some(batch) = process.groups.poll() else { return };
            let Batch { number, records, must_force, packets, outputs } = batch;
            for packet in packets {
                self.oracle.messages += packet.messages.len() as u64;
                self.send(machine, packet);
            }
            for (group, record) in &records {
                let process = self.machines[machine].process.as_mut().expect("it is awake");
                process.note(*group, record, &mut self.oracle);
            }
            let target = &mut self.machines[machine];
            target.disk.log.extend(records);
            if must_force {
                let process = target.process.as_mut().expect("it is awake");
                process.wanted = Some((number, target.disk.log.len()));
                self.force(machine);
            }
            for output in outputs {
                self.perform(machine, output);
            }
            self.look_for_return();
        }
    }

    fn force(&mut self, machine: usize) {
        let slowest = if self.is_calm { 1 } else { self.plan.slowest_force };
        let delay = self.rng.between(0, slowest);
        let target = &mut self.machines[machine];
        let life = target.life;
        let process = target.process.as_mut().expect("it is awake");
        if process.is_forcing {
            return;
        }
        let Some((batch, records)) = process.wanted.take() else { return };
        process.is_forcing = true;
        self.report.forces += 1;
        self.at(delay, Event::Forced { machine, life, batch, records });
    }

    fn forced(&mut self, machine: usize, life: u64, batch: BatchNumber, records: usize) {
        let target = &mut self.machines[machine];
        let is_paused = target.is_paused;
        if target.of_life(life).is_none() {
            return;
        }
        target.disk.forced = target.disk.forced.max(records);
        if is_paused {
            target.finished.push((life, batch));
            return;
        }
        let process = target.process.as_mut().expect("it lives");
        process.is_forcing = false;
        process.groups.forced(batch);
        self.pump(machine);
        if self.machines[machine].process.is_some() {
            self.force(machine);
        }
    }

    fn finish_forces(&mut self, machine: usize) {
        for (life, batch) in std::mem::take(&mut self.machines[machine].finished) {
            self.forced(machine, life, batch, 0);
        }
    }

    fn perform(&mut self, machine: usize, output: Output) {
        let Output { group, leadership, install, committed, commit, reads, lost_reads, .. } =
            output;
        let (snapshots, wants_snapshot) = (output.snapshots, output.wants_snapshot);
        let target = &mut self.machines[machine];
        let process = target.process.as_mut().expect("it is awake");
        let run = process.run;
        let replica = process.groups.status(group).expect("it exists").replica;
        if let Some(Leadership::Leader { term }) = leadership {
            self.oracle.lead(group, term, replica, run);
        }
        if let Some(base) = install {
            let (_, state) = &target.disk.snapshots[&(group, replica, base.index)];
            process.toys.insert(group, *state);
            self.oracle.applied(group, state);
            self.oracle.has_members(group, base.index, &base.members);
            self.report.snapshots += 1;
        }
        for entry in &committed {
            let toy = process.toys.entry(group).or_default();
            toy.apply(entry);
            self.oracle.apply(group, entry, toy);
        }
        if !committed.is_empty() {
            let status = process.groups.status(group).expect("it exists");
            self.oracle.has_members(group, status.applied, &status.members);
        }
        if let Some(commit) = commit {
            for (index, op) in process.acknowledge(group, commit) {
                self.report.writes += 1;
                self.oracle.acknowledge(group, index, op);
            }
        }
        process.waiting.extend(reads);
        for read in lost_reads {
            process.reads.remove(&read);
        }
        for (group, floor, toy) in process.answer() {
            self.report.reads += 1;
            self.oracle.read(group, floor, toy);
        }
        let trace = process.toys.get(&group).map_or(0, |toy| toy.hash ^ toy.applied);
        if output.is_removed {
            let process = self.machines[machine].process.as_mut().expect("it is awake");
            process.groups.remove(group);
            process.toys.remove(&group);
        }
        if wants_snapshot {
            self.machines[machine].take_snapshot(group);
        }
        for (node, request) in snapshots {
            self.send_snapshot(machine, node, request);
        }
        self.trace(trace);
    }

    fn take_snapshots(&mut self, machine: usize) {
        let every = self.plan.snapshot_entries;
        let target = &mut self.machines[machine];
        target.take_snapshots(every);
    }

    fn send_snapshot(&mut self, machine: usize, node: NodeId, mut request: SnapshotRequest) {
        let delay = self.rng.between(3, 150);
        let fails = !self.is_calm && self.rng.percent(15);
        let source = &mut self.machines[machine];
        let process = source.process.as_mut().expect("it is awake");
        let origin = process.origin;
        let group = request.group;
        let newest = source
            .disk
            .snapshots
            .range(
                (group, request.from, request.base.index)
                    ..=(group, request.from, LogIndex(u64::MAX)),
            )
            .next_back();
        let Some((_, (base, state))) = newest else {
            self.oracle.fail(format!("no snapshot at {:?}", request.base.index));
            return;
        };
        request.base = base.clone();
        let (state, life, to) = (*state, source.life, request.to);
        if fails {
            let is_complete = false;
            self.at(delay, Event::SnapshotEnd { machine, life, group, to, is_complete });
        } else {
            let to = node.0 as usize - 1;
            self.at(delay, Event::Snapshot { from: machine, life, to, origin, request, state });
        }
    }

    fn receive_snapshot(
        &mut self,
        machine: usize,
        origin: Origin,
        request: &SnapshotRequest,
        state: Toy,
    ) -> bool {
        let target = &mut self.machines[machine];
        let Some(process) = target.process.as_mut().filter(|_| !target.is_paused) else {
            return false;
        };
        let key = (request.group, request.to, request.base.index);
        match process.groups.snapshot_received(origin, request) {
            Ok(true) => {
                target.disk.snapshots.insert(key, (request.base.clone(), state));
                self.pump(machine);
                true
            }
            // It has the entries already.
            Ok(false) => {
                self.pump(machine);
                true
            }
            Err(_) => false,
        }
    }
}
