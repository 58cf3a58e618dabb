//! Machines with groups of a toy state machine, on a network and disks that fail, all from one
//! seed. The crate's whole interface is used as a node uses it.

mod admin;
mod faults;
mod machine;
mod oracle;
mod perform;

use ebb_consensus::*;
use ebb_model::GroupId;
use machine::Machine;
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

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const TIMING: Timing =
    Timing { beat_ticks: Ticks(4), heartbeat_ticks: Ticks(4), election_ticks: Ticks(20) };

/// Milliseconds of a tick.
const TICK: u64 = 10;

/// The events of a world. All times are milliseconds.
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
}
