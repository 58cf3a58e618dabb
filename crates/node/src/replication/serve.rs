//! Connections to a node of a replicated volume: of other nodes, and of clients, which the node
//! that leads serves.

use super::Host;
use super::messages::PeerMessage;
use crate::clients::wire::{ACCEPT_PAUSE, serve_client};
use bytes::Bytes;
use ebb_format::rpc::{self, Message, RequestId};
use ebb_format::versions::{Versions, no_common_version};
use ebb_ports::{Connection, FrameReceiver, FrameSender, Listener, NetError};
use std::rc::Rc;

impl Host {
    /// Accepts and serves connections until the process ends.
    pub async fn serve(self: Rc<Self>, mut listener: Box<dyn Listener>) {
        loop {
            match listener.accept().await {
                Ok(connection) => {
                    let host = self.clone();
                    self.ports.spawn.spawn(Box::pin(async move {
                        if let Err(error) = host.serve_connection(connection).await {
                            tracing::info!(%error, "a connection ends");
                        }
                    }));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.ports.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve_connection(
        self: Rc<Self>,
        connection: Box<dyn Connection>,
    ) -> Result<(), NetError> {
        let (mut sender, mut receiver) = connection.split();
        let Some(first) = receiver.receive().await? else { return Ok(()) };
        let refused = |what: String| NetError::Protocol { what };
        let versions = Versions::decode(&first).map_err(|error| refused(error.to_string()))?;
        sender.send(vec![Versions::OWN.encode()]).await?;
        if Versions::OWN.common(versions).is_none() {
            return Err(refused(no_common_version(versions)));
        }
        let Some(frame) = receiver.receive().await? else { return Ok(()) };
        match rpc::decode(frame.clone()).map_err(|error| refused(error.to_string()))? {
            Message::Peer { header, .. } => {
                let message =
                    rpc::read_peer(&header).map_err(|error| refused(error.to_string()))?;
                let PeerMessage::Hello(hello) = message else {
                    return Err(refused("a node says first which one it is".into()));
                };
                self.serve_peer(hello, sender, &mut *receiver).await
            }
            _ => self.serve_requests(frame, sender, receiver).await,
        }
    }

    /// Serves a client, or names the node that does.
    async fn serve_requests(
        &self,
        mut frame: Bytes,
        mut sender: Box<dyn FrameSender>,
        mut receiver: Box<dyn FrameReceiver>,
    ) -> Result<(), NetError> {
        loop {
            if let Some(node) = self.leading() {
                return serve_client(node, Some(frame), sender, receiver).await;
            }
            let id = match rpc::decode(frame) {
                Ok(Message::Request { id, .. }) => id,
                _ => RequestId::NONE,
            };
            let answer = rpc::encode_error(id, &self.elsewhere());
            let answer = answer.map_err(|error| NetError::Protocol { what: error.to_string() })?;
            sender.send(answer).await?;
            match receiver.receive().await? {
                Some(next) => frame = next,
                None => return Ok(()),
            }
        }
    }
}
