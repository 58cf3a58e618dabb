//! Connections to the other nodes of a volume. Each node opens one to every other node that it has
//! something for, and gets answers on it.
//!
//! Laws:
//! - Packets are lost when a connection breaks, or wait too long: consensus repeats what is needed.
//! - A question gets one answer, or [`RpcError::Lost`]: nothing is known of it then.
//! - A connection that does not answer for [`SILENCE`] is given up.

use super::messages::{Answer, Ask, Hello, PeerMessage};
use bytes::Bytes;
use ebb_consensus::Packet;
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::Versions;
use ebb_model::*;
use ebb_ports::{FrameReceiver, FrameSender, NetError, Ports, Signal};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Packets that wait for one node.
const MAX_WAITING: usize = 256;

/// A connection is given up after so long without an answer.
const SILENCE: Duration = Duration::from_secs(3);

const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);

/// An attempt to connect takes no longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) type Answered = Result<(Answer, Bytes), RpcError>;

pub(crate) struct Peers {
    ports: Ports,
    hello: Hello,
    /// Where each node listens, as far as this node has heard.
    addresses: RefCell<BTreeMap<NodeId, String>>,
    links: RefCell<BTreeMap<NodeId, Rc<Link>>>,
}

#[derive(Default)]
struct Link {
    waiting: RefCell<VecDeque<Outgoing>>,
    is_due: Signal,
    asked: RefCell<BTreeMap<RequestId, oneshot::Sender<Answered>>>,
    last_id: Cell<u64>,
    heard_at: Cell<Duration>,
}

enum Outgoing {
    Packet(Packet),
    Ask { id: RequestId, ask: Ask, data: Bytes },
}

impl Peers {
    pub fn new(ports: Ports, hello: Hello) -> Rc<Peers> {
        let (addresses, links) = (RefCell::default(), RefCell::default());
        Rc::new(Peers { ports, hello, addresses, links })
    }

    pub fn learn(&self, node: NodeId, address: &str) {
        if self.addresses.borrow().get(&node).is_none_or(|known| known != address) {
            self.addresses.borrow_mut().insert(node, address.to_owned());
        }
    }

    pub fn address(&self, node: NodeId) -> Option<String> {
        self.addresses.borrow().get(&node).cloned()
    }

    pub fn send(self: &Rc<Self>, packet: Packet) {
        let link = self.link(packet.to);
        let mut waiting = link.waiting.borrow_mut();
        if waiting.len() >= MAX_WAITING
            && let Some(at) = waiting.iter().position(|it| matches!(it, Outgoing::Packet(_)))
        {
            waiting.remove(at);
        }
        waiting.push_back(Outgoing::Packet(packet));
        link.is_due.raise();
    }

    /// Asks a node. Waits for the answer no longer than `patience`.
    pub async fn ask(
        self: &Rc<Self>,
        node: NodeId,
        ask: Ask,
        data: Bytes,
        patience: Duration,
    ) -> Answered {
        let link = self.link(node);
        let answer = link.put(ask, data);
        match select(answer, self.ports.clock.sleep(patience)).await {
            Either::Left((answer, _)) => answer.unwrap_or(Err(RpcError::Lost)),
            Either::Right(_) => Err(RpcError::Lost),
        }
    }

    /// Asks whatever node listens at an address, once.
    pub async fn ask_at(&self, address: &str, ask: Ask, patience: Duration) -> Answered {
        let asking = async {
            let (mut sender, mut receiver) = self.open(address).await.map_err(|error| {
                RpcError::NotServing(format!("{address} cannot be reached: {error}"))
            })?;
            let id = RequestId(1);
            let message = PeerMessage::Ask(ask);
            let lost = |error: NetError| RpcError::NotServing(format!("{address}: {error}"));
            sender.send(encode(id, &message, Bytes::new())).await.map_err(lost)?;
            while let Some(frame) = receiver.receive().await.map_err(lost)? {
                if let Some((PeerMessage::Answer(answer), data)) = decode(frame) {
                    return answer.map(|answer| (answer, data));
                }
            }
            Err(RpcError::Lost)
        };
        match select(pin!(asking), self.ports.clock.sleep(patience)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(RpcError::NotServing(format!("{address} does not answer"))),
        }
    }

    fn link(self: &Rc<Self>, node: NodeId) -> Rc<Link> {
        if let Some(link) = self.links.borrow().get(&node) {
            return link.clone();
        }
        let link: Rc<Link> = Rc::default();
        self.links.borrow_mut().insert(node, link.clone());
        let (peers, kept) = (self.clone(), link.clone());
        self.ports.spawn.spawn(Box::pin(async move { peers.keep(node, kept).await }));
        link
    }

    /// Keeps a connection to a node while there is something for it, for ever.
    async fn keep(self: Rc<Self>, node: NodeId, link: Rc<Link>) {
        loop {
            let due = link.is_due.wait();
            if link.waiting.borrow().is_empty() {
                due.await;
            }
            if let Some(address) = self.address(node) {
                match self.open(&address).await {
                    Ok((sender, receiver)) => {
                        let ended = self.converse(&link, sender, receiver).await;
                        tracing::debug!(%node, address, why = ended, "a connection to a node ends");
                    }
                    Err(error) => tracing::debug!(%node, %error, "a node cannot be reached"),
                }
            }
            link.give_up();
            self.ports.clock.sleep(PAUSE).await;
        }
    }

    async fn open(
        &self,
        address: &str,
    ) -> Result<(Box<dyn FrameSender>, Box<dyn FrameReceiver>), NetError> {
        let opening = async {
            let connection = self.ports.net.connect(address).await?;
            let (mut sender, mut receiver) = connection.split();
            sender.send(vec![Versions::OWN.encode()]).await?;
            let hello = PeerMessage::Hello(self.hello.clone());
            sender.send(encode(RequestId(1), &hello, Bytes::new())).await?;
            let broken = |what: &str| NetError::Broken { what: what.into() };
            let first = receiver.receive().await?.ok_or_else(|| broken("closed at once"))?;
            let versions = Versions::decode(&first).map_err(|error| broken(&error.to_string()))?;
            match Versions::OWN.common(versions) {
                Some(_) => Ok((sender, receiver)),
                None => Err(broken("no common version")),
            }
        };
        match select(pin!(opening), self.ports.clock.sleep(CONNECT_TIMEOUT)).await {
            Either::Left((opened, _)) => opened,
            Either::Right(_) => Err(NetError::Unreachable {
                address: address.into(),
                what: "no answer in time".into(),
            }),
        }
    }

    /// Sends and receives until the connection ends. Returns the reason.
    async fn converse(
        &self,
        link: &Link,
        mut sender: Box<dyn FrameSender>,
        mut receiver: Box<dyn FrameReceiver>,
    ) -> String {
        let clock = &self.ports.clock;
        link.heard_at.set(clock.monotonic());
        let sending = async {
            loop {
                let due = link.is_due.wait();
                let next = link.waiting.borrow_mut().pop_front();
                let (id, message, data) = match next {
                    Some(Outgoing::Packet(packet)) => {
                        (RequestId(1), PeerMessage::Packet(Box::new(packet)), Bytes::new())
                    }
                    Some(Outgoing::Ask { id, ask, data }) => (id, PeerMessage::Ask(ask), data),
                    None => {
                        due.await;
                        continue;
                    }
                };
                if let Err(error) = sender.send(encode(id, &message, data)).await {
                    return error.to_string();
                }
            }
        };
        let receiving = async {
            loop {
                match receiver.receive().await {
                    Ok(Some(frame)) => {
                        link.heard_at.set(clock.monotonic());
                        link.answered(frame);
                    }
                    Ok(None) => return "closed".to_owned(),
                    Err(error) => return error.to_string(),
                }
            }
        };
        let watching = async {
            loop {
                clock.sleep(PING_INTERVAL).await;
                if clock.monotonic() >= link.heard_at.get() + SILENCE {
                    return "silence".to_owned();
                }
                // Its answer is the sign of life.
                drop(link.put(Ask::Ping, Bytes::new()));
            }
        };
        let (sending, receiving) = (pin!(sending), pin!(receiving));
        match select(select(sending, receiving), pin!(watching)).await {
            Either::Left((Either::Left((why, _)) | Either::Right((why, _)), _)) => why,
            Either::Right((why, _)) => why,
        }
    }
}

impl Link {
    fn put(&self, ask: Ask, data: Bytes) -> oneshot::Receiver<Answered> {
        let id = RequestId(self.last_id.get() + 1);
        self.last_id.set(id.0);
        let (tell, told) = oneshot::channel();
        self.asked.borrow_mut().insert(id, tell);
        self.waiting.borrow_mut().push_back(Outgoing::Ask { id, ask, data });
        self.is_due.raise();
        told
    }

    fn answered(&self, frame: Bytes) {
        let Ok(Message::Peer { id, header, data }) = rpc::decode(frame) else { return };
        let Ok(PeerMessage::Answer(answer)) = rpc::read_peer(&header) else { return };
        if let Some(tell) = self.asked.borrow_mut().remove(&id) {
            // The asker may have gone.
            let (Ok(()) | Err(_)) = tell.send(answer.map(|answer| (answer, data)));
        }
    }

    /// The connection is lost, with everything that was on its way.
    fn give_up(&self) {
        self.waiting.borrow_mut().clear();
        self.asked.borrow_mut().clear();
    }
}

pub(crate) fn encode(id: RequestId, message: &PeerMessage, data: Bytes) -> Vec<Bytes> {
    rpc::encode_peer(id, message, data).expect("packets and pieces are shorter than a frame")
}

fn decode(frame: Bytes) -> Option<(PeerMessage, Bytes)> {
    let Ok(Message::Peer { header, data, .. }) = rpc::decode(frame) else { return None };
    Some((rpc::read_peer(&header).ok()?, data))
}
