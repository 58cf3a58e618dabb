//! The link's choice of the node, against several scripted nodes.

use crate::node::{Node, Record, transactions};
use crate::wire::{ClientEnd, Frame, attach_request, join};
use crate::world::World;
use bytes::Bytes;
use ebb_client::{AttachError, Client, Link, LinkEvent, WireLink};
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::Versions;
use ebb_model::*;
use ebb_ports::{Connection, Listener, Net, NetError, PortFuture};
use futures_channel::mpsc;
use futures_util::StreamExt;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

/// The behaviour of one address.
#[derive(Clone, PartialEq, Debug)]
enum Member {
    /// A node of the volume: the leader if it is the cluster's, and otherwise one that names it.
    Up,
    /// A node that names this leader.
    Names(Option<&'static str>),
    /// The connection is refused.
    Down,
    /// Packets vanish in transit.
    Dead,
    /// Connections are made, and never answered.
    Mute,
}

/// Nodes with one replicated volume: that of `node`.
struct Cluster {
    world: World,
    node: Rc<Node>,
    members: RefCell<BTreeMap<&'static str, Member>>,
    leader: Cell<Option<&'static str>>,
    /// Attempts to connect, with their times.
    attempts: RefCell<Vec<(Duration, String)>>,
    /// Mutations that a node has executed and not answered, because it has lost the lead.
    unanswered: Cell<usize>,
}

/// The network of the cluster.
struct ClusterNet(Rc<Cluster>);

impl Net for ClusterNet {
    fn connect(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>> {
        let address = address.to_string();
        Box::pin(async move {
            let cluster = &self.0;
            cluster.attempts.borrow_mut().push((cluster.world.now(), address.clone()));
            cluster.world.sleep_ms(1).await;
            let found = cluster.members.borrow().get_key_value(&*address).map(|(at, member)| {
                let at: &'static str = at;
                (at, member.clone())
            });
            let (to_peer, received) = mpsc::unbounded();
            let (say, from_peer) = mpsc::unbounded();
            match found {
                None | Some((_, Member::Down)) => {
                    let what = "connection refused".into();
                    return Err(NetError::Unreachable { address, what });
                }
                Some((_, Member::Dead)) => pending().await,
                Some((_, Member::Mute)) => {
                    // Both ends stay.
                    cluster.world.start(async move {
                        let _ends = (received, say);
                        pending::<()>().await
                    });
                }
                Some((at, Member::Up | Member::Names(_))) => {
                    say.unbounded_send(Ok(Some(Versions::OWN.encode()))).expect("it is read");
                    cluster.world.start(cluster.clone().serve(at, received, say));
                }
            }
            Ok(Box::new(ClientEnd(to_peer, from_peer)) as Box<dyn Connection>)
        })
    }

    fn listen(&self, _address: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>> {
        unreachable!("a client does not listen")
    }
}

impl Cluster {
    /// The nodes, of which the first one leads.
    fn new(members: &[(&'static str, Member)]) -> Rc<Cluster> {
        let world = World::new(1);
        Rc::new(Cluster {
            node: Node::new(&world),
            world,
            leader: Cell::new(members.first().map(|(at, _)| *at)),
            members: RefCell::new(members.iter().cloned().collect()),
            attempts: RefCell::default(),
            unanswered: Cell::new(0),
        })
    }

    fn link(self: &Rc<Cluster>, addresses: &[&str]) -> Rc<WireLink> {
        let net = Rc::new(ClusterNet(self.clone()));
        let addresses = addresses.iter().map(ToString::to_string);
        Rc::new(WireLink::new(net, self.world.ports(), addresses))
    }

    fn try_attach(self: &Rc<Cluster>, addresses: &[&str]) -> Result<Client, AttachError> {
        let (link, ports) = (self.link(addresses), self.world.ports());
        self.world.run(async move { Client::attach(link, ports, Node::options()).await })
    }

    fn attach(self: &Rc<Cluster>, addresses: &[&str]) -> Client {
        self.try_attach(addresses).expect("a node leads")
    }

    fn set(&self, at: &'static str, member: Member) {
        self.members.borrow_mut().insert(at, member);
    }

    /// Another node leads, with the whole log.
    fn lead(&self, leader: Option<&'static str>) {
        self.leader.set(leader);
        self.node.restart();
    }

    /// The addresses of the attempts since the last call.
    fn attempted(&self) -> Vec<String> {
        self.attempts.take().into_iter().map(|(_, address)| address).collect()
    }

    async fn serve(
        self: Rc<Cluster>,
        at: &'static str,
        mut received: mpsc::UnboundedReceiver<Bytes>,
        say: mpsc::UnboundedSender<Frame>,
    ) {
        while let Some(frame) = received.next().await {
            if frame == Versions::OWN.encode() {
                continue;
            }
            match rpc::decode(frame).expect("a frame of the client can be read") {
                Message::Request { id, request } => {
                    self.world.start(self.clone().answer(at, id, request, say.clone()));
                }
                other => panic!("a client sends requests, not {other:?}"),
            }
        }
    }

    async fn answer(
        self: Rc<Cluster>,
        at: &'static str,
        id: RequestId,
        request: Request,
        say: mpsc::UnboundedSender<Frame>,
    ) {
        let mut answer = match self.not_leader(at) {
            Some(error) => Err(error),
            None => self.node.call(request).await,
        };
        // A node that loses the lead during a request does not know the outcome.
        if let Some(error) = self.not_leader(at) {
            let is_executed = matches!(answer, Ok(Reply::Mutated(..)));
            self.unanswered.set(self.unanswered.get() + usize::from(is_executed));
            answer = Err(error);
        }
        if self.members.borrow().get(at) == Some(&Member::Dead) {
            return;
        }
        let frame = match answer {
            Ok(Reply::Attached(attached)) => {
                let nodes = self.members.borrow().keys().map(ToString::to_string).collect();
                rpc::encode_reply(id, &Reply::Attached(Attached { nodes, ..attached }))
            }
            Ok(reply) => rpc::encode_reply(id, &reply),
            Err(error) => rpc::encode_error(id, &error),
        };
        // The client may have given up the connection.
        drop(say.unbounded_send(Ok(Some(join(frame.expect("encodes"))))));
    }

    fn not_leader(&self, at: &'static str) -> Option<RpcError> {
        let leader = match self.members.borrow().get(at) {
            Some(Member::Names(leader)) => *leader,
            _ if self.leader.get() == Some(at) => return None,
            _ => self.leader.get(),
        };
        Some(RpcError::NotLeader { leader: leader.map(Into::into) })
    }
}

fn stat(ino: u64) -> Request {
    Request::GetAttr { ino: Ino(ino) }
}

/// Situation: the entry does not lead, and names a leader that the client was not given.
/// Expectation: the client goes there at once, and first when the connection is lost.
#[test]
fn routing_follows_the_named_leader() {
    let cluster = Cluster::new(&[("c:1", Member::Up), ("a:1", Member::Up), ("b:1", Member::Down)]);
    let client = cluster.attach(&["a:1"]);
    assert_eq!(cluster.attempted(), ["a:1", "c:1"]);
    assert!(cluster.world.now() < Duration::from_millis(20));
    let used = client.clone();
    cluster.node.disconnect();
    cluster.world.run(async move { used.getattr(Ino(7)).await }).expect("answered");
    assert_eq!(cluster.attempted(), ["c:1"]);
}

/// Situation: the client was given one address, and its node dies after it has listed the others.
/// Expectation: the client finds the new leader among them.
#[test]
fn routing_remembers_the_nodes_of_the_volume() {
    let cluster = Cluster::new(&[("a:1", Member::Up), ("b:1", Member::Up), ("c:1", Member::Up)]);
    let link = cluster.link(&["a:1"]);
    let attach = |link: &Rc<WireLink>| {
        let link = link.clone();
        cluster.world.run(async move { link.call(attach_request()).await })
    };
    assert!(matches!(attach(&link), Ok(Reply::Attached(_))));
    cluster.set("a:1", Member::Down);
    cluster.set("b:1", Member::Names(None));
    cluster.lead(Some("c:1"));
    cluster.attempted();
    assert!(matches!(attach(&link), Ok(Reply::Attached(_))));
    assert_eq!(cluster.attempted(), ["a:1", "b:1", "c:1"]);
    assert!(matches!(attach(&link), Ok(Reply::Attached(_))));
    assert_eq!(cluster.attempted(), ["c:1"], "the node that served last comes first");
}

/// Situation: two nodes name each other. Danger: the client spins between them. Expectation: each
/// is asked once in a round, rounds have the usual back-off, and the error names both.
#[test]
fn routing_does_not_spin_between_nodes_that_name_each_other() {
    let cluster =
        Cluster::new(&[("a:1", Member::Names(Some("b:1"))), ("b:1", Member::Names(Some("a:1")))]);
    let link = cluster.link(&["a:1", "b:1"]);
    let called = link.clone();
    let answer = cluster.world.run(async move { called.call(attach_request()).await });
    assert_eq!(answer, Err(RpcError::NotLeader { leader: None }));
    assert_eq!(cluster.attempted(), ["a:1", "b:1"]);
    assert_eq!(link.trouble(), "a:1 names b:1 as leader, b:1 names a:1 as leader");
    let error = cluster.try_attach(&["a:1", "b:1"]).err().expect("no node leads");
    assert_eq!(
        error.to_string(),
        "no node of the volume leads at present: a:1 names b:1 as leader, b:1 names a:1 as leader"
    );
    let attempts = cluster.attempted().len();
    assert!((4..40).contains(&attempts), "{attempts}");
}

/// Situation: the first attach comes during an election. Expectation: it waits for the leader.
#[test]
fn routing_waits_for_an_election() {
    let cluster = Cluster::new(&[("a:1", Member::Up), ("b:1", Member::Up)]);
    cluster.leader.set(None);
    let (link, ports) = (cluster.link(&["a:1", "b:1"]), cluster.world.ports());
    let attaching = cluster
        .world
        .start(async move { Client::attach(link, ports, Node::options()).await.map(drop) });
    cluster.world.pass(Duration::from_secs(2));
    assert!(attaching.borrow().is_none());
    cluster.leader.set(Some("b:1"));
    cluster.world.pass(Duration::from_secs(3));
    assert_eq!(attaching.take(), Some(Ok(())));
}

/// Situation: every node goes down, and one comes back. Expectation: operations wait, and are
/// answered within the longest back-off after it is up.
#[test]
fn routing_finds_the_first_node_that_is_up_again() {
    for down in [Member::Down, Member::Dead] {
        let all = ["a:1", "b:1", "c:1"];
        let cluster = Cluster::new(&all.map(|at| (at, Member::Up)));
        let client = cluster.attach(&all);
        all.iter().for_each(|at| cluster.set(at, down.clone()));
        cluster.lead(None);
        let asked = client.clone();
        let reading = cluster.world.start(async move { asked.getattr(Ino(7)).await.is_ok() });
        cluster.world.pass(Duration::from_secs(60));
        assert!(reading.borrow().is_none());
        cluster.set("c:1", Member::Up);
        cluster.lead(Some("c:1"));
        let up = cluster.world.now();
        assert!(cluster.world.await_result(&reading));
        let took = cluster.world.now() - up;
        assert!(took < Duration::from_secs(5), "{down:?}: {took:?}");
        drop(client);
    }
}

/// Situation: the lead moves from node to node under load, and each former leader has executed
/// requests that it no longer answers. Danger: an operation fails, or is executed twice.
/// Expectation: each is answered once, under one transaction id.
#[test]
fn routing_under_load_executes_every_operation_once() {
    const OPERATIONS: u64 = 300;
    let all = ["a:1", "b:1", "c:1"];
    let cluster = Cluster::new(&all.map(|at| (at, Member::Up)));
    let client = cluster.attach(&["a:1"]);
    cluster.node.latency_ms.set(3);
    let answered = Rc::new(RefCell::new(Vec::new()));
    for number in 0..OPERATIONS {
        let (client, world, answered) = (client.clone(), cluster.world.clone(), answered.clone());
        cluster.world.start(async move {
            world.sleep_ms(number).await;
            let data = Bytes::from(number.to_le_bytes().to_vec());
            let written = client.append(&Caller::ROOT, Ino(7), data, false).await;
            answered.borrow_mut().push(written.map(|written| written.offset));
        });
    }
    for turn in 0..8 {
        cluster.world.pass(Duration::from_millis(40));
        cluster.lead((turn % 2 == 0).then_some(all[(turn + 1) % 3]));
    }
    cluster.lead(Some("a:1"));
    cluster.world.pass(Duration::from_secs(30));
    assert_eq!(answered.borrow().len() as u64, OPERATIONS, "no operation is left waiting");
    let mut offsets: Vec<u64> =
        answered.take().into_iter().map(|offset| offset.expect("no operation fails")).collect();
    offsets.sort_unstable();
    let expected: Vec<u64> = (0..OPERATIONS).map(|number| number * 8).collect();
    assert_eq!(offsets, expected);
    assert_eq!(cluster.node.executed().len() as u64, OPERATIONS);
    assert_eq!(transactions(&cluster.node).len() as u64, OPERATIONS);
    assert!(cluster.unanswered.get() > 0, "no former leader has executed a request");
    let sessions = cluster.node.log.borrow();
    let sessions = sessions.iter().filter(|record| matches!(record, Record::Session(_)));
    assert_eq!(sessions.count(), 1);
}

/// Situation: a host has lost its power or its network, so that nothing refuses the connection, or
/// its process hangs. Expectation: the next address is tried soon, and a round over three dead
/// hosts ends within 3 s.
#[test]
fn routing_passes_over_a_dead_host() {
    for dead in [Member::Dead, Member::Mute] {
        let cluster = Cluster::new(&[("b:1", Member::Up), ("a:1", dead.clone())]);
        drop(cluster.attach(&["a:1", "b:1"]));
        let took = cluster.world.now();
        assert!(took < Duration::from_millis(500), "{dead:?}: {took:?}");

        let all = ["a:1", "b:1", "c:1"];
        let cluster = Cluster::new(&all.map(|at| (at, dead.clone())));
        let link = cluster.link(&all);
        let called = link.clone();
        let answer = cluster.world.run(async move { called.call(attach_request()).await });
        let took = cluster.world.now();
        assert_eq!(answer, Err(RpcError::Lost));
        assert!(took < Duration::from_secs(3), "{dead:?}: {took:?}");
        assert!(all.iter().all(|at| link.trouble().contains(at)), "{}", link.trouble());
    }
}

/// Situation: the preferred node is slow to connect, and the next one is tried beside it.
/// Expectation: the leader is used, whichever of them it is.
#[test]
fn routing_uses_a_slow_leader() {
    let cluster = Cluster::new(&[("a:1", Member::Dead), ("b:1", Member::Names(Some("a:1")))]);
    let link = cluster.link(&["a:1", "b:1"]);
    let called = link.clone();
    let answer = cluster.world.start(async move { called.call(attach_request()).await });
    cluster.world.pass(Duration::from_secs(3));
    assert_eq!(answer.take(), Some(Err(RpcError::NotLeader { leader: None })));
    assert_eq!(cluster.attempted(), ["a:1", "b:1"]);
    assert_eq!(link.trouble(), "b:1 names a:1 as leader, a:1: no connection within 2 s");
}

/// Situation: the node in use loses the lead. Expectation: the request gets that answer, all others
/// and the client learn that the connection is lost, and the next attach begins at the new leader.
#[test]
fn routing_ends_the_connection_to_a_former_leader() {
    let cluster = Cluster::new(&[("a:1", Member::Up), ("b:1", Member::Up), ("c:1", Member::Up)]);
    let link = cluster.link(&["a:1", "b:1"]);
    let call = |request: Request| {
        let link = link.clone();
        cluster.world.start(async move { link.call(request).await })
    };
    let attached = call(attach_request());
    cluster.world.pass(Duration::from_millis(10));
    assert!(matches!(attached.take(), Some(Ok(Reply::Attached(_)))));
    cluster.node.frozen.set(true);
    let waiting = call(stat(1));
    cluster.world.pass(Duration::from_millis(10));
    cluster.leader.set(Some("c:1"));
    let refused = call(stat(2));
    cluster.world.pass(Duration::from_millis(10));
    assert_eq!(refused.take(), Some(Err(RpcError::NotLeader { leader: Some("c:1".into()) })));
    assert_eq!(waiting.take(), Some(Err(RpcError::Lost)));
    let listened = link.clone();
    assert_eq!(cluster.world.run(async move { listened.event().await }), LinkEvent::Lost);
    cluster.node.frozen.set(false);
    cluster.attempted();
    let attached = call(attach_request());
    cluster.world.pass(Duration::from_millis(10));
    assert!(matches!(attached.take(), Some(Ok(Reply::Attached(_)))));
    assert_eq!(cluster.attempted(), ["c:1"]);
}

/// A program that is no client connects to any node, and gets the leader's answer.
#[test]
fn routing_asks_the_leader_for_programs_too() {
    let cluster = Cluster::new(&[("c:1", Member::Up), ("a:1", Member::Up), ("b:1", Member::Up)]);
    let link = cluster.link(&["a:1", "b:1"]);
    let asked = link.clone();
    let answer = cluster.world.run(async move {
        asked.connect().await?;
        // The scripted node answers a connection after an attach only.
        asked.ask(attach_request()).await
    });
    assert!(matches!(answer, Ok(Reply::Attached(_))), "{answer:?}");
    assert_eq!(cluster.attempted(), ["a:1", "a:1", "c:1"]);
}

/// A node that does not serve the volume now is passed over. Other answers to an attach are final.
#[test]
fn routing_passes_over_a_node_that_stops() {
    let cluster = Cluster::new(&[("a:1", Member::Up), ("b:1", Member::Down)]);
    let link = cluster.link(&["a:1", "b:1"]);
    for (error, attempted, trouble) in [
        (
            RpcError::NotServing("it stops".into()),
            &["a:1", "b:1"][..],
            "a:1: node does not serve the volume: it stops, b:1: connection refused",
        ),
        (RpcError::Denied("no such volume".into()), &["a:1"], ""),
    ] {
        let link = cluster.link(&["a:1", "b:1"]);
        cluster.node.refuse.borrow_mut().insert("attach", error.clone());
        let called = link.clone();
        let answer = cluster.world.run(async move { called.call(attach_request()).await });
        assert_eq!(answer, Err(error));
        assert_eq!(cluster.attempted(), attempted);
        assert_eq!(link.trouble(), trouble);
    }
    drop(link);
}
