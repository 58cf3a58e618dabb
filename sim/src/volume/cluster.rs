//! A volume on several machines: the shipped hosts, started anew when they end, and clients that
//! find the leader.

use super::rig::{PORT, VOLUME};
use crate::{Process, World};
use ebb_client::{AttachError, Client, ClientPorts, Options as ClientOptions, WireLink};
use ebb_node::{Host, HostOptions, Options};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(50);

/// A machine of the volume.
pub struct Server {
    pub machine: String,
    pub process: Process,
    opened: Rc<RefCell<Option<Rc<Host>>>>,
    /// Why its processes have ended by themselves.
    ended: Rc<RefCell<Vec<String>>>,
    /// It is started again when it ends.
    pub is_wanted: bool,
}

pub struct Cluster<'a> {
    world: &'a World,
    options: Options,
    voters: usize,
    pub servers: Vec<Server>,
}

impl<'a> Cluster<'a> {
    /// Of machines that do not run yet. The first one begins the volume.
    pub fn new(world: &'a World, machines: usize, voters: usize, options: Options) -> Cluster<'a> {
        let server = |at: usize| {
            let machine = format!("node{at}");
            let process = world.machine(&machine).process_on("host", "data");
            process.kill();
            Server {
                machine,
                process,
                opened: Rc::default(),
                ended: Rc::default(),
                is_wanted: true,
            }
        };
        let options = Options { volume: VOLUME.into(), embedded: false, ..options };
        Cluster { world, options, voters, servers: (0..machines).map(server).collect() }
    }

    pub fn address(&self, at: usize) -> String {
        format!("{}:{PORT}", self.servers[at].machine)
    }

    /// Starts a node, which is there when it has opened its data directory.
    fn start(&mut self, at: usize) {
        let address = self.address(at);
        let host_options = HostOptions {
            address: address.clone(),
            join: (at > 0).then(|| self.address(0)),
            voters: self.voters,
        };
        let process = self.world.machine(&self.servers[at].machine).process_on("host", "data");
        let server = &mut self.servers[at];
        server.process = process.clone();
        server.opened = Rc::default();
        let (opened, ended) = (server.opened.clone(), server.ended.clone());
        let (ports, bucket) = (process.ports.clone(), process.bucket(&self.world.bucket()));
        let address_of_volume = format!("ebb://{address}/{VOLUME}");
        let options = Options { address: address_of_volume, ..self.options.clone() };
        let ending = process.clone();
        process.spawn(async move {
            let net = ports.net.clone();
            let host = match Host::open(ports, Some(bucket), options, host_options).await {
                Ok(host) => host,
                Err(error) => {
                    ended.borrow_mut().push(error.to_string());
                    return ending.kill();
                }
            };
            *opened.borrow_mut() = Some(host.clone());
            let failing = host.clone();
            ending.clone().spawn(async move {
                let why = failing.failure().await;
                ended.borrow_mut().push(why);
                ending.kill();
            });
            let listener = net.listen(&address).await.expect("the port is free");
            host.serve(listener).await;
        });
    }

    /// Lets time pass, and starts nodes that have ended and are wanted.
    pub async fn pass(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        loop {
            for at in 0..self.servers.len() {
                let server = &self.servers[at];
                if server.is_wanted && !server.process.is_alive() {
                    self.start(at);
                }
            }
            if self.world.now() >= until {
                return;
            }
            self.world.sleep(STEP).await;
        }
    }

    /// Lets time pass until this holds.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        holds: impl Fn(&Cluster<'a>) -> bool,
    ) -> Result<(), String> {
        let until = self.world.now() + limit;
        while !holds(self) {
            if self.world.now() >= until {
                let states: Vec<String> = self.servers.iter().map(Server::describe).collect();
                return Err(format!("{what} was not so in {limit:?}: {}", states.join("; ")));
            }
            self.pass(STEP).await;
        }
        Ok(())
    }

    /// The machine that serves clients.
    pub fn leader(&self) -> Option<usize> {
        self.servers
            .iter()
            .position(|server| server.host().is_some_and(|host| host.leading().is_some()))
    }

    /// Whether so many nodes run and vote, and one serves.
    pub fn votes(&self, count: usize) -> bool {
        let Some(leader) = self.leader() else { return false };
        let Some(host) = self.servers[leader].host() else { return false };
        host.nodes().iter().filter(|node| node.votes).count() >= count
    }

    /// Ends a node without its being started again.
    pub fn stop(&mut self, at: usize) {
        self.servers[at].is_wanted = false;
        self.servers[at].process.kill();
    }

    pub fn resume(&mut self, at: usize) {
        self.servers[at].is_wanted = true;
    }

    /// A client on a machine of its own, which knows all nodes.
    pub async fn attach(&self, process: &Process) -> Option<Result<Client, AttachError>> {
        let (net, ports) = (process.ports.net.clone(), ClientPorts::from(&process.ports));
        let addresses: Vec<String> = (0..self.servers.len()).map(|at| self.address(at)).collect();
        let link = Rc::new(WireLink::new(net, ports.clone(), addresses));
        let options = ClientOptions::new(VOLUME, process.name().to_owned());
        process.call(async move { Client::attach(link, ports, options).await }).await
    }

    /// Whether all nodes that run have the same state.
    pub fn agrees(&self) -> bool {
        let mut states = self.servers.iter().filter(|server| server.process.is_alive());
        let Some(first) = states.next() else { return true };
        let items = |server: &Server| {
            let host = server.host()?;
            let state = host.state();
            Some((state.applied(), state.partition().items().collect::<Vec<_>>()))
        };
        let first = items(first);
        first.is_some() && states.all(|server| items(server) == first)
    }
}

impl Server {
    /// While it runs.
    pub fn host(&self) -> Option<Rc<Host>> {
        self.opened.borrow().clone().filter(|_| self.process.is_alive())
    }

    fn describe(&self) -> String {
        let ended = self.ended.borrow().join(", ");
        let Some(host) = self.host() else {
            return format!("{} is down (ended: {ended})", self.machine);
        };
        let applied = host.state().applied();
        format!("{} {} at {} (ended: {ended})", self.machine, host.describe(), applied.0)
    }
}
