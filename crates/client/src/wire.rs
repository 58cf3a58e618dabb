//! A link over a connection (`docs/protocol/rpc.md`).

use crate::gate::Gate;
use crate::link::{Link, LinkEvent};
use crate::pool::Pool;
use crate::routes::{Round, Routes};
use crate::{ClientPorts, Grant, Grantee};
use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::{Versions, no_common_version};
use ebb_model::{FsError, GrantRequest, Ino, Reply, Request, RpcError};
use ebb_ports::{FrameReceiver, FrameSender, Net, PortFuture};
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::future::{Either, pending, select};
use futures_util::stream::FuturesUnordered;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Requests that may wait for their answers on one connection. Further ones wait for their turn, in
/// order. The number bounds the memory of both sides, because each request may carry
/// [`ebb_model::MAX_IO_BYTES`].
pub const REQUESTS_UNDER_WAY: usize = 256;

/// Events that may wait for the client before the connection is read no further.
pub const EVENTS_WAITING: usize = 1024;

/// A path that swallows packets is tried again after this time. It may work by then, while the
/// system's own attempts become ever rarer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The same where other addresses can be tried. Three round trips of a satellite link fit.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);

/// An address that has not answered for this time is tried beside the next one. A round over three
/// hosts without power takes 2.8 s: the first two have this head start, the last one times out.
const HEAD_START: Duration = Duration::from_millis(400);

/// Uses at most one connection at a time. A request to attach begins one, to the node that leads
/// the volume: the link tries the known addresses in one round, and follows the leaders that nodes
/// name. [`RpcError::NotLeader`] as the answer to another request ends the connection.
pub struct WireLink {
    net: Rc<dyn Net>,
    ports: ClientPorts,
    routes: RefCell<Routes>,
    wire: RefCell<Option<Rc<Wire>>>,
    next_id: Cell<u64>,
    turns: Rc<Pool<()>>,
    inbox: Rc<Inbox>,
    grant: Option<GrantFn>,
}

/// The two directions of a connection.
type Ends = (Box<dyn FrameSender>, Box<dyn FrameReceiver>);

type GrantFn =
    Box<dyn Fn(Grantee, Ino, GrantRequest) -> PortFuture<'static, Result<Option<Grant>, RpcError>>>;

/// State that outlives a connection.
#[derive(Default)]
struct Inbox {
    events: RefCell<VecDeque<LinkEvent>>,
    changed: Gate,
    trouble: RefCell<String>,
}

/// A connection. It is closed once and for all: by the link, by the peer, or by the first of its
/// two tasks to find it broken.
struct Wire {
    inbox: Rc<Inbox>,
    outgoing: RefCell<VecDeque<(RequestId, Vec<Bytes>)>>,
    pending: RefCell<BTreeMap<RequestId, oneshot::Sender<Result<Reply, RpcError>>>>,
    closed: Cell<bool>,
    changed: Gate,
}

impl WireLink {
    /// `addresses` are `host:port` each, at least one and at most [`crate::MAX_NODES`]. Nothing is
    /// connected before the first attach.
    pub fn new(
        net: Rc<dyn Net>,
        ports: ClientPorts,
        addresses: impl IntoIterator<Item = String>,
    ) -> WireLink {
        let turns = Pool::new(vec![(); REQUESTS_UNDER_WAY]);
        WireLink {
            net,
            ports,
            routes: RefCell::new(Routes::new(addresses)),
            wire: RefCell::new(None),
            next_id: Cell::new(1),
            turns,
            inbox: Rc::default(),
            grant: None,
        }
    }

    /// If the node is on this machine, it grants passthrough files by `grant`.
    pub fn borrowing(
        mut self,
        grant: impl Fn(
            Grantee,
            Ino,
            GrantRequest,
        ) -> PortFuture<'static, Result<Option<Grant>, RpcError>>
        + 'static,
    ) -> WireLink {
        self.grant = Some(Box::new(grant));
        self
    }

    async fn exchange(&self, request: Request) -> Result<Reply, RpcError> {
        if let Request::Attach { .. } = request {
            let reply = self.find(async |wire| self.send(&wire, &request).await).await?;
            if let Reply::Attached(attached) = &reply {
                self.routes.borrow_mut().learn(&attached.nodes);
            }
            return Ok(reply);
        }
        let wire = self.wire()?;
        // Requests that keep the session never wait for reads and writes.
        let _turn = if request.keeps_session() { None } else { self.turns.acquire().await };
        let answer = self.send(&wire, &request).await;
        if let Err(RpcError::NotLeader { leader }) = &answer {
            self.lead_lost(&wire, leader.as_deref());
        }
        answer
    }

    async fn send(&self, wire: &Wire, request: &Request) -> Result<Reply, RpcError> {
        let id = RequestId(self.next_id.replace(self.next_id.get() + 1));
        let frame = rpc::encode_request(id, request).map_err(|error| {
            tracing::warn!(%error, "a request cannot be sent");
            RpcError::Refused(FsError::Invalid)
        })?;
        wire.exchange(id, frame).await
    }

    /// Begins a connection. Attaching does so by itself. A program that is no client calls this
    /// instead, and [`WireLink::ask`] afterwards.
    pub async fn connect(&self) -> Result<(), RpcError> {
        self.find(async |_| Ok(())).await
    }

    /// Sends a request of a program that is no client. If the node does not lead the volume, the
    /// request is sent again to the leader.
    pub async fn ask(&self, request: Request) -> Result<Reply, RpcError> {
        match self.exchange(request.clone()).await {
            Err(RpcError::NotLeader { .. }) => {
                self.find(async |wire| self.send(&wire, &request).await).await
            }
            answer => answer,
        }
    }

    fn lead_lost(&self, wire: &Wire, leader: Option<&str>) {
        tracing::info!(leader, "the node does not lead the volume any more");
        self.routes.borrow_mut().lead_lost(leader);
        wire.close("the node does not lead the volume any more");
    }

    /// Connects to one address after the other until a node `accepts`, in one round: each address
    /// is tried once at most. An address that is slow to answer is tried beside the next one.
    async fn find<T>(
        &self,
        accepts: impl AsyncFn(Rc<Wire>) -> Result<T, RpcError>,
    ) -> Result<T, RpcError> {
        self.hang_up("a new connection is made");
        let mut round = self.routes.borrow_mut().round();
        let mut connecting = FuturesUnordered::new();
        let mut outcome = RpcError::Lost;
        loop {
            if let Some(address) = round.next() {
                let patience = match round.has_one_address() {
                    true => CONNECT_TIMEOUT,
                    false => CONNECT_TIMEOUT_OF_SEVERAL,
                };
                self.routes.borrow_mut().tries(&address);
                connecting.push(self.attempt(address, patience));
            }
            let head_start = match round.is_at_end() {
                true => Either::Left(pending()),
                false => Either::Right(self.ports.clock.sleep(HEAD_START)),
            };
            let (address, connected) = match select(connecting.next(), head_start).await {
                Either::Left((Some(ended), _)) => ended,
                Either::Left((None, _)) if round.is_at_end() => {
                    return Err(self.found_none(&round, outcome));
                }
                Either::Left((None, _)) | Either::Right(_) => continue,
            };
            let wire = match connected {
                Ok(ends) => self.begin(ends),
                Err(why) => {
                    round.failed(address, why);
                    continue;
                }
            };
            match accepts(wire).await {
                Err(RpcError::Lost) => round.failed(address, self.trouble()),
                Err(RpcError::NotLeader { leader }) => {
                    let why = match &leader {
                        Some(leader) => format!("{address} names {leader} as leader"),
                        None => format!("{address} knows no leader"),
                    };
                    round.failed(address, why);
                    leader.iter().for_each(|leader| round.name(leader));
                    outcome = RpcError::NotLeader { leader: None };
                }
                Err(error @ RpcError::NotServing(_)) => {
                    round.failed(address, error.to_string());
                    if outcome == RpcError::Lost {
                        outcome = error;
                    }
                }
                answer => {
                    self.routes.borrow_mut().serves(&address);
                    return answer;
                }
            }
        }
    }

    /// Ends a round without success.
    fn found_none(&self, round: &Round, outcome: RpcError) -> RpcError {
        self.hang_up("the node does not serve the volume");
        self.inbox.trouble.replace(round.failures());
        outcome
    }

    /// A new connection, and its address.
    async fn attempt(&self, address: String, patience: Duration) -> (String, Result<Ends, String>) {
        let ends = self.agreed(&address, patience).await;
        (address, ends)
    }

    /// A new connection, on whose protocol version both sides agree.
    async fn agreed(&self, address: &str, patience: Duration) -> Result<Ends, String> {
        let (mut late, seconds) = (self.ports.clock.sleep(patience), patience.as_secs());
        let connection = match select(self.net.connect(address), &mut late).await {
            Either::Left((connected, _)) => connected.map_err(|error| error.to_string())?,
            Either::Right(_) => return Err(format!("{address}: no connection within {seconds} s")),
        };
        let (mut sender, mut receiver) = connection.split();
        match select(pin!(agree(&mut *sender, &mut *receiver)), &mut late).await {
            Either::Left((agreed, _)) => agreed?,
            Either::Right(_) => {
                return Err(format!(
                    "{address} has said nothing for {seconds} s: it hangs, or is no node of ebb"
                ));
            }
        }
        Ok((sender, receiver))
    }

    /// Makes a new connection the one that is used.
    fn begin(&self, (sender, receiver): Ends) -> Rc<Wire> {
        self.hang_up("a new connection is made");
        self.inbox.events.borrow_mut().clear();
        let wire = Rc::new(Wire {
            inbox: self.inbox.clone(),
            outgoing: RefCell::default(),
            pending: RefCell::default(),
            closed: Cell::new(false),
            changed: Gate::default(),
        });
        self.ports.spawn.spawn(Box::pin(wire.clone().run(Wire::write, sender)));
        self.ports.spawn.spawn(Box::pin(wire.clone().run(Wire::read, receiver)));
        self.wire.replace(Some(wire.clone()));
        wire
    }

    fn wire(&self) -> Result<Rc<Wire>, RpcError> {
        self.wire.borrow().clone().filter(|wire| !wire.closed.get()).ok_or(RpcError::Lost)
    }

    fn hang_up(&self, why: &str) {
        if let Some(wire) = self.wire.take() {
            wire.close(why);
        }
    }
}

impl Link for WireLink {
    fn call(&self, request: Request) -> PortFuture<'_, Result<Reply, RpcError>> {
        Box::pin(self.exchange(request))
    }

    fn event(&self) -> PortFuture<'_, LinkEvent> {
        Box::pin(async {
            let event =
                self.inbox.changed.until(|| self.inbox.events.borrow_mut().pop_front()).await;
            // A reader may wait for room.
            self.inbox.changed.changed();
            event
        })
    }

    fn is_local(&self) -> bool {
        false
    }

    fn grant(
        &self,
        grantee: Grantee,
        ino: Ino,
        request: GrantRequest,
    ) -> PortFuture<'_, Result<Option<Grant>, RpcError>> {
        match &self.grant {
            Some(grant) => grant(grantee, ino, request),
            None => Box::pin(std::future::ready(Ok(None))),
        }
    }

    fn trouble(&self) -> String {
        self.inbox.trouble.borrow().clone()
    }
}

impl Drop for WireLink {
    fn drop(&mut self) {
        self.hang_up("the client is gone");
    }
}

impl Wire {
    async fn exchange(&self, id: RequestId, frame: Vec<Bytes>) -> Result<Reply, RpcError> {
        if self.closed.get() {
            return Err(RpcError::Lost);
        }
        let (answer, answered) = oneshot::channel();
        self.pending.borrow_mut().insert(id, answer);
        self.outgoing.borrow_mut().push_back((id, frame));
        self.changed.changed();
        let _forget = Forget { wire: self, id };
        answered.await.unwrap_or(Err(RpcError::Lost))
    }

    /// Runs one direction until it ends or the connection is closed.
    async fn run<D>(self: Rc<Wire>, direction: impl AsyncFn(&Wire, D) -> String, end: D) {
        let closed = self.changed.until(|| self.closed.get().then_some(()));
        let why = match select(pin!(direction(&self, end)), pin!(closed)).await {
            Either::Left((why, _)) => why,
            Either::Right(_) => return,
        };
        self.close(&why);
    }

    async fn write(&self, mut sender: Box<dyn FrameSender>) -> String {
        loop {
            let (_, frame) = self.changed.until(|| self.outgoing.borrow_mut().pop_front()).await;
            if let Err(error) = sender.send(frame).await {
                return error.to_string();
            }
        }
    }

    async fn read(&self, mut receiver: Box<dyn FrameReceiver>) -> String {
        loop {
            let frame = match receiver.receive().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return "the node has closed the connection".into(),
                Err(error) => return error.to_string(),
            };
            match rpc::decode(frame) {
                Ok(Message::Reply { id, reply }) => self.answer(id, Ok(reply)),
                Ok(Message::Error { id: RequestId::NONE, error }) => {
                    return format!("the node could not read a request: {error}");
                }
                Ok(Message::Error { id, error }) => self.answer(id, Err(error)),
                Ok(Message::Notice(notice)) => {
                    let inbox = &self.inbox;
                    inbox
                        .changed
                        .until(|| (inbox.events.borrow().len() < EVENTS_WAITING).then_some(()))
                        .await;
                    inbox.push(LinkEvent::Notice(notice));
                }
                Ok(Message::Request { .. } | Message::Peer { .. }) => {
                    return "the node sent a message for nodes".into();
                }
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Drops an answer if its caller has gone.
    fn answer(&self, id: RequestId, answer: Result<Reply, RpcError>) {
        let waiting = self.pending.borrow_mut().remove(&id);
        if let Some(waiting) = waiting {
            drop(waiting.send(answer));
        }
    }

    fn close(&self, why: &str) {
        if self.closed.replace(true) {
            return;
        }
        tracing::debug!(why, "connection closed");
        self.inbox.trouble.replace(why.into());
        self.inbox.push(LinkEvent::Lost);
        drop(self.outgoing.take());
        // Each waiting caller gets `Lost`.
        drop(self.pending.take());
        self.changed.changed();
    }
}

impl Inbox {
    fn push(&self, event: LinkEvent) {
        self.events.borrow_mut().push_back(event);
        self.changed.changed();
    }
}

/// Exchanges the first messages. All versions of the protocol that this build speaks are one, so
/// there is nothing to choose. The error is for users.
async fn agree(
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
) -> Result<(), String> {
    sender.send(vec![Versions::OWN.encode()]).await.map_err(|error| error.to_string())?;
    let first = match receiver.receive().await {
        Ok(Some(first)) => first,
        Ok(None) => return Err("the node has closed the connection".into()),
        Err(error) => return Err(error.to_string()),
    };
    let peer = match Versions::decode(&first) {
        Ok(peer) => peer,
        // Release 0.1.0 refuses the first message in its own version.
        Err(FormatError::Version { found, .. }) => {
            Versions::new(found, found).ok_or("the node speaks no version of the protocol")?
        }
        Err(error) => return Err(error.to_string()),
    };
    match Versions::OWN.common(peer) {
        Some(_) => Ok(()),
        None => {
            let what = no_common_version(peer);
            tracing::warn!(what, "no connection to the node");
            Err(what)
        }
    }
}

/// Removes an unsent request, and the entry for its answer, when the caller drops its future.
struct Forget<'a> {
    wire: &'a Wire,
    id: RequestId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.wire.pending.borrow_mut().remove(&self.id);
        self.wire.outgoing.borrow_mut().retain(|(id, _)| *id != self.id);
    }
}
