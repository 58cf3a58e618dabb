//! The work of a node for its groups.

use super::machine::Process;
use super::{Event, TIMING, Toy, World};
use ebb_consensus::*;
use ebb_model::{GroupId, LogIndex};

impl World {
    pub(super) fn start(&mut self, machine: usize) {
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

    pub(super) fn begin(&mut self, machine: usize, group: GroupId) {
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
    pub(super) fn pump(&mut self, machine: usize) {
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

    pub(super) fn force(&mut self, machine: usize) {
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

    pub(super) fn forced(&mut self, machine: usize, life: u64, batch: BatchNumber, records: usize) {
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

    pub(super) fn finish_forces(&mut self, machine: usize) {
        for (life, batch) in std::mem::take(&mut self.machines[machine].finished) {
            self.forced(machine, life, batch, 0);
        }
    }

    pub(super) fn perform(&mut self, machine: usize, output: Output) {
        let Output { group, leadership, install, committed, commit, reads, lost_reads, .. } =
            output;
        let (snapshots, wants_snapshot) = (output.snapshots, output.wants_snapshot);
        let target = &mut self.machines[machine];
        let process = target.process.as_mut().expect("it is awake");
        let run = process.run;
        let replica = process.groups.status(group).expect("it exists").replica;
        if let Some(Leadership::Leader { term }) = leadership {
            self.oracle.lead(group, term, replica, run);
            if self.machines.iter().any(|other| other.is_supported(group, term)) {
                let text = format!("{group:?} has a leader of {term:?}, and one with support");
                self.oracle.fail(text);
            }
        }
        let target = &mut self.machines[machine];
        let process = target.process.as_mut().expect("it is awake");
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

    pub(super) fn take_snapshots(&mut self, machine: usize) {
        let every = self.plan.snapshot_entries;
        let target = &mut self.machines[machine];
        target.take_snapshots(every);
    }

    pub(super) fn send_snapshot(
        &mut self,
        machine: usize,
        node: NodeId,
        mut request: SnapshotRequest,
    ) {
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

    pub(super) fn receive_snapshot(
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
