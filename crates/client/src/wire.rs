//! A link over a connection (`docs/protocol/rpc.md`).

use crate::gate::Gate;
use crate::link::{Link, LinkEvent};
use crate::pool::Pool;
use crate::{ClientPorts, Grant, Grantee};
use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::{Versions, no_common_version};
use ebb_model::{FsError, GrantRequest, Ino, Reply, Request, RpcError};
use ebb_ports::{FrameReceiver, FrameSender, Net, PortFuture};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
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

/// At most one connection at a time to a node. A request to attach begins one.
pub struct WireLink {
    net: Rc<dyn Net>,
    ports: ClientPorts,
    address: String,
    wire: RefCell<Option<Rc<Wire>>>,
    next_id: Cell<u64>,
    turns: Rc<Pool<()>>,
    inbox: Rc<Inbox>,
    grant: Option<GrantFn>,
}

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
    /// `address` is `host:port`. Nothing is connected before the first attach.
    pub fn new(net: Rc<dyn Net>, ports: ClientPorts, address: String) -> WireLink {
        let turns = Pool::new(vec![(); REQUESTS_UNDER_WAY]);
        WireLink {
            net,
            ports,
            address,
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
            self.connect().await?;
        }
        let wire = self.wire()?;
        // Requests that keep the session never wait for reads and writes.
        let _turn = if request.keeps_session() { None } else { self.turns.acquire().await };
        let id = RequestId(self.next_id.replace(self.next_id.get() + 1));
        let frame = rpc::encode_request(id, &request).map_err(|error| {
            tracing::warn!(%error, "a request cannot be sent");
            RpcError::Refused(FsError::Invalid)
        })?;
        wire.exchange(id, frame).await
    }

    /// Begins a connection. Attaching does so by itself. A program that sends only
    /// [`Request::Admin`] is no client and calls this instead.
    pub async fn connect(&self) -> Result<(), RpcError> {
        self.hang_up("a new connection is made");
        let (sender, receiver) = self.agreed().await.map_err(|why| {
            self.inbox.trouble.replace(why);
            RpcError::Lost
        })?;
        // If two attaches ran at once, the later one stays.
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
        self.wire.replace(Some(wire));
        Ok(())
    }

    /// A new connection, on whose protocol version both sides agree.
    async fn agreed(&self) -> Result<(Box<dyn FrameSender>, Box<dyn FrameReceiver>), String> {
        let (address, seconds) = (&self.address, CONNECT_TIMEOUT.as_secs());
        let late = || self.ports.clock.sleep(CONNECT_TIMEOUT);
        let connection = match select(self.net.connect(address), late()).await {
            Either::Left((connected, _)) => connected.map_err(|error| error.to_string())?,
            Either::Right(_) => return Err(format!("{address}: no connection within {seconds} s")),
        };
        let (mut sender, mut receiver) = connection.split();
        match select(pin!(agree(&mut *sender, &mut *receiver)), late()).await {
            Either::Left((agreed, _)) => agreed?,
            Either::Right(_) => {
                return Err(format!(
                    "{address} has said nothing for {seconds} s: it hangs, or is no node of ebb"
                ));
            }
        }
        Ok((sender, receiver))
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
                Ok(Message::Request { .. }) => return "the node sent a request".into(),
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
