//! Serving clients over the network: frames in, answers and notices out. Bad input of a peer ends
//! at worst in the loss of its own connection.

use crate::Node;
use crate::clients::attachments::ConnectionId;
use crate::clients::barrier::Origin;
use bytes::Bytes;
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::{Versions, no_common_version};
use ebb_model::{FsError, Reply, Request, RpcError, SessionId};
use ebb_ports::{Connection, FrameReceiver, FrameSender, Listener, NetError};
use futures_util::lock::Mutex;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Requests of one connection that are worked on at one time, but for those that keep its session;
/// more wait unread in the transport, which slows their sender down.
const MAX_UNDER_WAY: usize = 256;

/// Pause after a failed accept, so that running out of descriptors does not run hot.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts and serves connections until the node stops.
pub async fn serve(node: Rc<Node>, mut listener: Box<dyn Listener>) {
    while !node.is_stopping() {
        match listener.accept().await {
            Ok(connection) => {
                let what = listener.shortage().map(|what| {
                    format!(
                        "the node has descriptors for no more connections and files than it has \
                         open ({what}): a few at a time can ask \
                         what is wrong; start it with a higher limit (ulimit -Hn, LimitNOFILE=)"
                    )
                });
                node.trouble("descriptors", what);
                let peer = serve_peer(node.clone(), connection);
                node.ports.spawn.spawn(Box::pin(peer));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                node.ports.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_peer(node: Rc<Node>, connection: Box<dyn Connection>) {
    let (mut sender, mut receiver) = connection.split();
    let served = async {
        match greet(&mut *sender, &mut *receiver).await? {
            true => serve_client(node, None, sender, receiver).await,
            false => Ok(()),
        }
    };
    if let Err(error) = served.await {
        tracing::warn!(%error, "a client's connection ends");
    }
}

/// Agrees with the peer on a version of the protocol. Returns whether the peer is there.
async fn greet(
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
) -> Result<bool, NetError> {
    let Some(first) = receiver.receive().await? else { return Ok(false) };
    match Versions::decode(&first) {
        Ok(peer) => {
            sender.send(vec![Versions::OWN.encode()]).await?;
            match Versions::OWN.common(peer) {
                Some(_) => Ok(true),
                None => Err(NetError::Protocol { what: no_common_version(peer) }),
            }
        }
        // Also for release 0.1.0, which begins with a request.
        Err(error) => {
            let what = error.to_string();
            let told = rpc::encode_error(RequestId::NONE, &RpcError::Denied(what.clone()));
            if let Ok(told) = told {
                sender.send(told).await?;
            }
            Err(NetError::Protocol { what })
        }
    }
}

/// Serves a client that has sent its versions, and perhaps its `first` message.
pub(crate) async fn serve_client(
    node: Rc<Node>,
    first: Option<Bytes>,
    sender: Box<dyn FrameSender>,
    mut receiver: Box<dyn FrameReceiver>,
) -> Result<(), NetError> {
    let id = node.attachments.new_connection();
    let wire = Rc::new(Wire { node, id, sender: Mutex::new(sender), under_way: Cell::new(0) });
    if let Some(first) = first {
        wire.clone().take(first).await?;
    }
    while let Some(frame) = receiver.receive().await? {
        wire.clone().take(frame).await?;
    }
    Ok(())
}

struct Wire {
    node: Rc<Node>,
    id: ConnectionId,
    sender: Mutex<Box<dyn FrameSender>>,
    under_way: Cell<usize>,
}

impl Wire {
    /// Takes one message of the client.
    async fn take(self: Rc<Self>, frame: Bytes) -> Result<(), NetError> {
        match rpc::decode(frame) {
            Ok(Message::Request { id, request }) => {
                let counts = !request.keeps_session();
                while counts && self.under_way.get() >= MAX_UNDER_WAY {
                    self.node.ports.clock.sleep(Duration::from_millis(1)).await;
                }
                self.under_way.set(self.under_way.get() + usize::from(counts));
                let task = self.clone().answer(id, request);
                self.node.ports.spawn.spawn(Box::pin(task));
                Ok(())
            }
            Ok(_) => Err(NetError::Protocol { what: "a client sends requests only".into() }),
            Err(error) => self.refuse(error.to_string()).await,
        }
    }

    /// Tells the peer why its connection ends.
    async fn refuse(&self, what: String) -> Result<(), NetError> {
        self.send(rpc::encode_error(RequestId::NONE, &RpcError::Denied(what.clone()))).await;
        Err(NetError::Protocol { what })
    }

    async fn answer(self: Rc<Self>, id: RequestId, request: Request) {
        let counts = !request.keeps_session();
        let result = match request.session() {
            // Another client's session, or one that has attached anew over another connection.
            Some(session) if !self.node.attachments.speaks_for(self.id, session) => {
                Err(RpcError::SessionExpired)
            }
            session => {
                if let Some(session) = session {
                    self.node.attachments.heard(session, self.node.ports.clock.monotonic());
                }
                self.node.handle_from(Origin::Connection(self.id), request).await
            }
        };
        self.under_way.set(self.under_way.get() - usize::from(counts));
        if let Ok(Reply::Attached(attached)) = &result {
            self.node.attachments.connect(attached.session, self.id);
            self.node.tell_again_of_locks(attached.session);
        }
        let parts = match &result {
            Ok(reply) => rpc::encode_reply(id, reply).or_else(|error| {
                tracing::error!(%error, "an answer could not be encoded");
                rpc::encode_error(id, &RpcError::Refused(FsError::Io))
            }),
            Err(error) => rpc::encode_error(id, error),
        };
        self.send(parts).await;
        if let Ok(Reply::Attached(attached)) = result {
            let pump = self.clone().pump(attached.session);
            self.node.ports.spawn.spawn(Box::pin(pump));
        }
    }

    /// Sends the node's notices to the session, as long as the session uses this connection.
    async fn pump(self: Rc<Self>, session: SessionId) {
        // Otherwise a connection that was held up would take the notices of a client that has
        // attached anew.
        while self.node.attachments.speaks_for(self.id, session) {
            let Some(notice) = self.node.attachments.next_notice(session).await else { return };
            // A lock that is granted must not be granted by the next leader too.
            if self.node.confirm_lead().await.is_err() {
                return;
            }
            if !self.send(rpc::encode_notice(&notice)).await {
                return;
            }
        }
    }

    /// A failure here is the end of the connection, which the receiving side reports.
    async fn send(&self, parts: Result<Vec<bytes::Bytes>, ebb_format::FormatError>) -> bool {
        match parts {
            Ok(parts) => self.sender.lock().await.send(parts).await.is_ok(),
            Err(error) => {
                tracing::error!(%error, "an answer could not be encoded");
                false
            }
        }
    }
}
