use crate::bucket::SimBucket;
use crate::clock::{MachineClock, NANOS_PER_SEC, ProcessClock, WallRecord};
use crate::disk::SimDisk;
use crate::executor::{Executor, Owner, Stuck};
use crate::faults::{FaultPlan, Faults};
use crate::net::{Ending, Network};
use crate::rng::Rng;
use ebb_ports::{Bucket, PortFuture, Ports};
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// Machines, the network between them, and the buckets they share, under one seed.
pub struct World {
    seed: u64,
    parts: Parts,
    machines: RefCell<BTreeMap<String, Machine>>,
    buckets: RefCell<BTreeMap<String, SimBucket>>,
}

#[derive(Clone)]
struct Parts {
    executor: Executor,
    faults: Faults,
    net: Network,
    rng: Rc<Rng>,
}

/// A run that did not end, with the events before that.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("seed {seed}: {stuck}\nlast events:\n{last_events}")]
pub struct Failure {
    pub seed: u64,
    pub stuck: Stuck,
    pub last_events: String,
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with_faults(seed, FaultPlan::default())
    }

    pub fn with_faults(seed: u64, plan: FaultPlan) -> World {
        let rng = Rng::new(seed);
        let executor = Executor::new(&rng);
        let faults = Faults::new(plan);
        let net = Network::new(executor.clone(), faults.clone(), rng.split("net"));
        let parts = Parts { executor, faults, net, rng: Rc::new(rng) };
        World { seed, parts, machines: RefCell::default(), buckets: RefCell::default() }
    }

    /// The machine of this name, which is also its host name; created by the first call.
    pub fn machine(&self, name: &str) -> Machine {
        let make = || Machine::new(name, self.parts.clone());
        self.machines.borrow_mut().entry(name.to_owned()).or_insert_with(make).clone()
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.parts.executor
    }

    pub fn net(&self) -> &Network {
        &self.parts.net
    }

    /// The bucket that scenarios with one bucket use.
    pub fn bucket(&self) -> SimBucket {
        self.bucket_named("bucket")
    }

    pub fn bucket_named(&self, name: &str) -> SimBucket {
        let Parts { executor, faults, net, rng } = &self.parts;
        let make = || {
            SimBucket::new(
                name,
                executor.clone(),
                faults.clone(),
                net.clone(),
                rng.split(&format!("bucket {name}")),
            )
        };
        self.buckets.borrow_mut().entry(name.to_owned()).or_insert_with(make).clone()
    }

    /// A stream of numbers for the scenario's own choices.
    pub fn rng(&self, label: &str) -> Rng {
        self.parts.rng.split(&format!("scenario {label}"))
    }

    pub fn faults(&self) -> FaultPlan {
        self.parts.faults.plan()
    }

    /// Changes the fault rates. Clocks keep their drift.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.parts.faults.set(plan);
    }

    /// True time since the world began.
    pub fn now(&self) -> Duration {
        self.parts.executor.now()
    }

    pub fn sleep(&self, duration: Duration) -> PortFuture<'static, ()> {
        Box::pin(self.parts.executor.sleep(self.parts.executor.world(), duration))
    }

    /// Runs the scenario to its end, within [`RUN_LIMIT`] of world time.
    pub fn run<T>(&self, scenario: impl Future<Output = T>) -> Result<T, Failure> {
        self.parts
            .executor
            .block_on(self.now().saturating_add(RUN_LIMIT), scenario)
            .map_err(|stuck| self.failure(stuck))
    }

    /// Runs the world for `duration` without a scenario.
    pub fn run_for(&self, duration: Duration) -> Result<(), Failure> {
        self.parts
            .executor
            .run_until(self.now().saturating_add(duration))
            .map_err(|stuck| self.failure(stuck))
    }

    /// The hash of all that has happened. Two runs of one seed agree on it.
    pub fn trace_hash(&self) -> u64 {
        self.parts.executor.trace_hash()
    }

    /// The end of the trace, one event a line.
    pub fn last_events(&self) -> String {
        self.parts.executor.trace_tail()
    }

    fn failure(&self, stuck: Stuck) -> Failure {
        Failure { seed: self.seed, stuck, last_events: self.parts.executor.trace_tail() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}; last events:\n{}", self.seed, self.parts.executor.trace_tail());
        } else {
            self.parts.net.shut_down();
            self.parts.executor.shut_down();
        }
    }
}

/// One machine: shared state of its processes, which a power cut hits together.
#[derive(Clone)]
pub struct Machine {
    shared: Rc<MachineShared>,
}

struct MachineShared {
    name: String,
    parts: Parts,
    rng: Rng,
    clock: Rc<MachineClock>,
    boot_id: Rc<Cell<u128>>,
    disks: RefCell<BTreeMap<String, SimDisk>>,
    processes: RefCell<Vec<Process>>,
}

impl Machine {
    fn new(name: &str, parts: Parts) -> Machine {
        let rng = parts.rng.split(&format!("machine {name}"));
        let clock = Rc::new(MachineClock::new(
            parts.executor.clone(),
            parts.faults.clone(),
            rng.split("clock"),
        ));
        let boot_id = Rc::new(Cell::new(draw_boot_id(&rng)));
        let shared = MachineShared {
            name: name.to_owned(),
            parts,
            rng,
            clock,
            boot_id,
            disks: RefCell::default(),
            processes: RefCell::default(),
        };
        Machine { shared: Rc::new(shared) }
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Starts an incarnation of a program, on the data directory of the same name.
    pub fn process(&self, program: &str) -> Process {
        self.process_on(program, program)
    }

    /// Starts an incarnation of a program on any data directory.
    pub fn process_on(&self, program: &str, data_dir: &str) -> Process {
        let MachineShared { name, parts, rng, clock, .. } = &*self.shared;
        let owner = parts.executor.owner(&format!("{name}/{program}"));
        let clock = Rc::new(ProcessClock {
            executor: parts.executor.clone(),
            owner: owner.clone(),
            machine: clock.clone(),
            entropy: rng.split(owner.name()),
        });
        let ports = Ports {
            disk: self.disk(data_dir).port(&owner),
            net: parts.net.port(&owner, name),
            clock: clock.clone(),
            entropy: clock.clone(),
            spawn: clock,
        };
        let process = Process { owner, machine: name.clone(), parts: parts.clone(), ports };
        let mut processes = self.shared.processes.borrow_mut();
        processes.retain(Process::is_alive);
        processes.push(process.clone());
        process
    }

    /// A data directory, empty at the first call.
    pub fn disk(&self, data_dir: &str) -> SimDisk {
        let MachineShared { parts, rng, boot_id, .. } = &*self.shared;
        let make = || {
            SimDisk::new(
                parts.executor.clone(),
                parts.faults.clone(),
                rng.split(&format!("disk {data_dir}")),
                boot_id.clone(),
            )
        };
        self.shared.disks.borrow_mut().entry(data_dir.to_owned()).or_insert_with(make).clone()
    }

    /// All processes die, unforced data is lost or torn, and the machine reboots at once. Peers are
    /// not notified.
    pub fn power_cut(&self) {
        let MachineShared { parts, rng, clock, boot_id, disks, processes, name } = &*self.shared;
        for process in processes.take() {
            process.end(Ending::PowerCut);
        }
        disks.borrow().values().for_each(SimDisk::power_cut);
        boot_id.set(draw_boot_id(rng));
        clock.reboot();
        parts.executor.note(parts.executor.world(), "power cut", format_args!("{name}"));
    }

    /// The readings of the machine's wall clock.
    pub fn wall_record(&self) -> WallRecord {
        WallRecord { clock: self.shared.clock.clone() }
    }

    /// The wall clocks of the machine are set forward or, below 0, back.
    pub fn jump_wall(&self, by_secs: i64) {
        self.shared.clock.jump_wall(i128::from(by_secs) * NANOS_PER_SEC);
    }
}

/// One incarnation of a program on a machine, and the ports that it runs on.
#[derive(Clone)]
pub struct Process {
    owner: Owner,
    machine: String,
    parts: Parts,
    pub ports: Ports,
}

impl Process {
    /// As in traces: machine, program, and the number of the incarnation.
    pub fn name(&self) -> &str {
        self.owner.name()
    }

    pub fn is_alive(&self) -> bool {
        self.owner.is_alive()
    }

    pub fn bucket(&self, bucket: &SimBucket) -> Rc<dyn Bucket> {
        bucket.port(&self.owner, &self.machine)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.parts.executor.spawn(&self.owner, Box::pin(task));
    }

    /// Runs a future inside the process: `None` if the process dies first. Product code must run in
    /// here, since a kill cannot stop a future that the scenario polls itself.
    pub fn call<T: 'static, W: Future<Output = T> + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = Option<T>> + use<T, W> {
        let (done, result) = oneshot::channel();
        self.spawn(async move {
            let value = work.await;
            // Refused only when the scenario no longer waits.
            drop(done.send(value));
        });
        async move { result.await.ok() }
    }

    /// SIGKILL. Written data stays on disk; the kernel closes the connections. Pending calls of the
    /// process's ports never return.
    pub fn kill(&self) {
        self.end(Ending::Killed);
    }

    /// It does nothing for a while and does not notice, as under a stalled hypervisor.
    pub fn pause(&self, duration: Duration) {
        self.parts.executor.pause(&self.owner, self.parts.executor.now().saturating_add(duration));
    }

    fn end(&self, ending: Ending) {
        if self.is_alive() {
            self.parts.executor.kill(&self.owner);
            self.parts.net.end_of_process(&self.owner, ending);
        }
    }
}

fn draw_boot_id(rng: &Rng) -> u128 {
    u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())
}

/// Far longer than any recovery; ends endless polling.
pub const RUN_LIMIT: Duration = Duration::from_secs(3600);
