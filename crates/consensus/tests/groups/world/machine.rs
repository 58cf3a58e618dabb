//! A machine with its disk, and the process on it.

use super::oracle::Oracle;
use super::{Rng, Toy};
use ebb_consensus::*;
use ebb_model::{GroupId, LogIndex, Term};
use std::collections::BTreeMap;

pub struct Machine {
    pub node: NodeId,
    pub disk: Disk,
    pub process: Option<Process>,
    /// Counts the processes.
    pub life: u64,
    pub is_paused: bool,
    pub paused_at: u64,
    pub inbox: Vec<Packet>,
    /// Forces that ended during a pause.
    pub finished: Vec<(u64, BatchNumber)>,
    pub tick_ms: u64,
    /// Replicas that a node without a disk believes to be.
    pub told: Vec<(GroupId, ReplicaId)>,
}

#[derive(Clone)]
pub struct Disk {
    pub directory: DirectoryId,
    pub log: Vec<(GroupId, Record)>,
    /// Records that a power cut leaves.
    pub forced: usize,
    /// Durable.
    pub snapshots: BTreeMap<(GroupId, ReplicaId, LogIndex), (Base, Toy)>,
}

pub struct Process {
    pub run: RunId,
    pub origin: Origin,
    pub groups: Groups,
    pub toys: BTreeMap<GroupId, Toy>,
    pub is_forcing: bool,
    pub wanted: Option<(BatchNumber, usize)>,
    pub writes: BTreeMap<(GroupId, LogIndex), (Term, u64)>,
    /// With the last write that was known when the read began.
    pub reads: BTreeMap<ReadId, (GroupId, u64)>,
    pub waiting: Vec<(ReadId, LogIndex)>,
    /// Terms of the entries on the disk.
    terms: BTreeMap<GroupId, BTreeMap<LogIndex, Term>>,
}

impl Machine {
    pub fn new(node: NodeId, rng: &mut Rng) -> Machine {
        Machine {
            node,
            disk: Disk::new(rng),
            process: None,
            life: 0,
            is_paused: false,
            paused_at: 0,
            inbox: Vec::new(),
            finished: Vec::new(),
            tick_ms: rng.between(9, 11),
            told: Vec::new(),
        }
    }

    pub fn awake(&mut self) -> Option<&mut Process> {
        self.process.as_mut().filter(|_| !self.is_paused)
    }

    pub fn of_life(&mut self, life: u64) -> Option<&mut Process> {
        self.process.as_mut().filter(|_| self.life == life)
    }

    /// Whether it is sure that no leader of a later term is elected yet, with the drift of clocks
    /// subtracted.
    pub fn is_supported(&self, group: GroupId, later: Term) -> bool {
        const DRIFT_TICKS: u64 = 5;
        let Some(process) = self.process.as_ref().filter(|_| !self.is_paused) else {
            return false;
        };
        let leadership = process.groups.status(group).map(|status| status.leadership);
        let end = process.groups.support(group);
        leadership.is_some_and(|it| it.term() < later)
            && end.is_some_and(|end| end.0 > process.groups.now().0 + DRIFT_TICKS)
    }

    /// A leader has added a replica on this node.
    pub fn join(&mut self, group: GroupId, replica: ReplicaId) {
        let Some(process) = self.awake() else { return };
        match process.groups.status(group) {
            Some(status) if status.replica >= replica => return,
            Some(_) => process.groups.remove(group),
            None => {}
        }
        // An old message can name a replica of before.
        if process.groups.join(group, replica).is_ok() {
            process.toys.insert(group, Toy::default());
            process.terms.remove(&group);
        }
    }

    /// Takes a snapshot of each group that has so many new entries.
    pub fn take_snapshots(&mut self, every: u64) {
        let Some(process) = self.process.as_ref() else { return };
        let is_due = |group: &GroupId| {
            process.groups.status(*group).is_some_and(|it| it.applied.0 >= it.snapshot.0 + every)
        };
        let due: Vec<GroupId> = process.toys.keys().copied().filter(is_due).collect();
        for group in due {
            self.take_snapshot(group);
        }
    }

    pub fn take_snapshot(&mut self, group: GroupId) {
        let Some(process) = self.process.as_mut() else { return };
        let Some(status) = process.groups.status(group) else { return };
        let toy = process.toys[&group];
        let Some(base) = process.groups.snapshot_taken(group, LogIndex(toy.applied)) else {
            return;
        };
        self.disk.snapshots.insert((group, status.replica, base.index), (base, toy));
        // The log is rewritten without the group's older records.
        if self.disk.forced == self.disk.log.len() {
            self.disk.log.retain(|(of, _)| *of != group);
            let records = process.groups.checkpoint(group);
            self.disk.log.extend(records.into_iter().map(|record| (group, record)));
            self.disk.forced = self.disk.log.len();
        }
    }
}

impl Disk {
    pub fn new(rng: &mut Rng) -> Disk {
        Disk {
            directory: DirectoryId(u128::from(rng.next())),
            log: Vec::new(),
            forced: 0,
            snapshots: BTreeMap::new(),
        }
    }

    pub fn replicas(&self) -> Vec<(GroupId, ReplicaId)> {
        let mut last = BTreeMap::new();
        for (group, record) in &self.log {
            if let Record::Replica(replica) = record {
                last.insert(*group, *replica);
            }
        }
        last.into_iter().collect()
    }
}

impl Process {
    pub fn start(
        config: Config,
        disk: &Disk,
        told: &[(GroupId, ReplicaId)],
    ) -> Result<Process, String> {
        let Config { node, directory, run, .. } = config;
        let mut process = Process {
            run,
            origin: Origin { node, directory, run },
            groups: Groups::new(config),
            toys: BTreeMap::new(),
            is_forcing: false,
            wanted: None,
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            waiting: Vec::new(),
            terms: BTreeMap::new(),
        };
        let mut records: BTreeMap<GroupId, Vec<Record>> = BTreeMap::new();
        for (group, record) in &disk.log {
            records.entry(*group).or_default().push(record.clone());
        }
        for (group, records) in records {
            process.restore(group, records, disk)?;
        }
        for (group, replica) in told {
            process.toys.insert(*group, Toy::default());
            process.groups.join(*group, *replica).map_err(|error| error.to_string())?;
        }
        Ok(process)
    }

    fn restore(&mut self, group: GroupId, records: Vec<Record>, disk: &Disk) -> Result<(), String> {
        for record in &records {
            self.note_terms(group, record);
        }
        let entries = |record: &Record| match record {
            Record::Entry(entry) => Some(entry.index),
            _ => None,
        };
        let last = records.iter().rev().find_map(entries).unwrap_or_default();
        let mut recovered = Recovered::read(records).map_err(|error| error.to_string())?;
        let of_replica = (group, recovered.replica(), recovered.base().index)
            ..=(group, recovered.replica(), last.max(recovered.base().index));
        if let Some((_, (base, state))) = disk.snapshots.range(of_replica).next_back() {
            recovered.begin_at(base.clone()).map_err(|error| error.to_string())?;
            self.toys.insert(group, *state);
        } else {
            self.toys.insert(group, Toy::default());
        }
        self.groups.restore(group, &recovered).map_err(|error| error.to_string())
    }

    /// Shows a record to the oracle.
    pub fn note(&mut self, group: GroupId, record: &Record, oracle: &mut Oracle) {
        let previous = self.note_terms(group, record);
        if let Record::Entry(entry) = record {
            oracle.log(group, entry, previous);
        }
    }

    fn note_terms(&mut self, group: GroupId, record: &Record) -> Option<Term> {
        let terms = self.terms.entry(group).or_default();
        match record {
            Record::Replica(_) | Record::Removed(_) => terms.clear(),
            Record::HardState(_) => {}
            Record::Base(base) => {
                terms.clear();
                terms.insert(base.index, base.term);
            }
            Record::Entry(entry) => {
                terms.split_off(&entry.index);
                terms.insert(entry.index, entry.term);
                return terms.get(&LogIndex(entry.index.0 - 1)).copied();
            }
        }
        None
    }

    /// Writes of this leader up to the commit index.
    pub fn acknowledge(&mut self, group: GroupId, commit: LogIndex) -> Vec<(LogIndex, u64)> {
        let status = self.groups.status(group).expect("it exists");
        let rest = self.writes.split_off(&(group, LogIndex(commit.0 + 1)));
        let mut done = std::mem::replace(&mut self.writes, rest);
        let mine = done.split_off(&(group, LogIndex(0)));
        self.writes.extend(done);
        let Leadership::Leader { term } = status.leadership else { return Vec::new() };
        mine.into_iter()
            .filter(|(_, (proposed, _))| *proposed == term)
            .map(|((_, index), (_, op))| (index, op))
            .collect()
    }

    /// Reads that can be answered from the state here.
    pub fn answer(&mut self) -> Vec<(GroupId, u64, Toy)> {
        let mut answers = Vec::new();
        let (reads, toys) = (&mut self.reads, &self.toys);
        self.waiting.retain(|(read, index)| {
            let Some((group, floor)) = reads.get(read).copied() else { return false };
            let toy = toys[&group];
            let is_there = toy.applied >= index.0;
            if is_there {
                reads.remove(read);
                answers.push((group, floor, toy));
            }
            !is_there
        });
        answers
    }
}
