//! Messages of other nodes.

use super::Host;
use super::messages::{Answer, Ask, Hello, Own, PeerMessage};
use super::peers::encode;
use crate::data::packs::location;
use crate::replica::Part;
use bytes::{Bytes, BytesMut};
use ebb_consensus::SnapshotRequest;
use ebb_format::rpc::{Message, RequestId};
use ebb_format::snapshot::{Part as SnapshotPart, SnapshotHeader, SnapshotReader};
use ebb_model::*;
use ebb_ports::{FrameReceiver, FrameSender, NetError};
use futures_util::lock::Mutex;
use std::ops::Range;
use std::rc::Rc;

/// Blocks of one answer: its bytes fit a message.
pub(super) const HELD_BLOCKS: u64 = 8;

/// A snapshot that comes in pieces.
pub(crate) struct Receiving {
    request: SnapshotRequest,
    reader: SnapshotReader,
    header: Option<SnapshotHeader>,
    frames: Vec<Vec<u8>>,
    is_whole: bool,
}

impl Host {
    /// Serves a connection of another node, whose first message is `hello`.
    pub(super) async fn serve_peer(
        self: Rc<Self>,
        hello: Hello,
        sender: Box<dyn FrameSender>,
        receiver: &mut dyn FrameReceiver,
    ) -> Result<(), NetError> {
        let refused = |what: String| NetError::Protocol { what };
        if hello.cluster.is_some_and(|cluster| cluster != self.serves.cluster) {
            return Err(refused("a node of another volume".into()));
        }
        if hello.cluster.is_some() {
            self.peers.learn(hello.origin.node, &hello.address);
        }
        let sender = Rc::new(Mutex::new(sender));
        while let Some(frame) = receiver.receive().await? {
            let message =
                ebb_format::rpc::decode(frame).map_err(|error| refused(error.to_string()))?;
            let Message::Peer { id, header, data } = message else {
                return Err(refused("a node sends messages for nodes only".into()));
            };
            let message = ebb_format::rpc::read_peer(&header);
            match message.map_err(|error| refused(error.to_string()))? {
                PeerMessage::Packet(packet) => {
                    if packet.from != hello.origin || hello.cluster.is_none() {
                        return Err(refused("a packet of another node".into()));
                    }
                    if let Err(error) = self.replica.receive(*packet).await {
                        self.fail(error.to_string());
                    }
                }
                PeerMessage::Ask(ask) => {
                    let (host, sender, hello) = (self.clone(), sender.clone(), hello.clone());
                    // Pieces of a snapshot come in order; the rest may take its time.
                    let in_order = matches!(ask, Ask::SnapshotBegin { .. } | Ask::SnapshotPiece);
                    let answering = async move {
                        let (answer, data) = match host.answer(&hello, ask, data).await {
                            Ok((answer, data)) => (Ok(answer), data),
                            Err(error) => (Err(error), Bytes::new()),
                        };
                        send(&sender, id, PeerMessage::Answer(answer), data).await;
                    };
                    match in_order {
                        true => answering.await,
                        false => self.ports.spawn.spawn(Box::pin(answering)),
                    }
                }
                PeerMessage::Hello(_) | PeerMessage::Answer(_) => {
                    return Err(refused("a message that cannot come here".into()));
                }
            }
        }
        Ok(())
    }

    async fn answer(
        self: &Rc<Self>,
        hello: &Hello,
        ask: Ask,
        data: Bytes,
    ) -> Result<(Answer, Bytes), RpcError> {
        let done = |(): ()| (Answer::Done, Bytes::new());
        match ask {
            Ask::Ping => Ok(done(())),
            Ask::Join => {
                let joining = Own { node: hello.origin.node, directory: hello.origin.directory };
                let answer = self.admit(joining, hello.address.clone()).await?;
                Ok((answer, Bytes::new()))
            }
            _ if hello.cluster.is_none() => Err(RpcError::Denied("join the volume first".into())),
            Ask::Remove { node } => self.remove(node).await.map(done),
            Ask::SnapshotBegin { request } => {
                self.receiving.replace(Some(Receiving {
                    request,
                    reader: SnapshotReader::new(),
                    header: None,
                    frames: Vec::new(),
                    is_whole: false,
                }));
                Ok(done(()))
            }
            Ask::SnapshotPiece => self.take_piece(&data).map(done),
            Ask::SnapshotEnd => {
                let received = self.receiving.take().ok_or(RpcError::Lost)?;
                self.install(hello, received).await.map(done)
            }
            Ask::Held { ino, blocks, at } => self.held(ino, blocks, at).await,
            Ask::Force { at } => {
                self.expect_followed(at)?;
                self.force_held().await?;
                let (run, doubtful) = (self.origin.run, self.doubtful().into_iter().collect());
                Ok((Answer::Forced { run, doubtful }, Bytes::new()))
            }
        }
    }

    fn take_piece(&self, data: &[u8]) -> Result<(), RpcError> {
        let mut receiving = self.receiving.borrow_mut();
        let receiving = receiving.as_mut().ok_or(RpcError::Lost)?;
        receiving.reader.push(data);
        let broken = |what: String| RpcError::Denied(format!("a broken snapshot: {what}"));
        loop {
            let part = receiving.reader.next_part().map_err(|error| broken(error.to_string()))?;
            match part {
                None => return Ok(()),
                Some(SnapshotPart::Header(header)) => receiving.header = Some(header),
                Some(SnapshotPart::Frame(frame)) => receiving.frames.push(frame.content.to_vec()),
                Some(SnapshotPart::End { .. }) => receiving.is_whole = true,
            }
        }
    }

    async fn install(&self, hello: &Hello, received: Receiving) -> Result<(), RpcError> {
        let Receiving { request, header, frames, is_whole, .. } = received;
        let Some(header) = header.filter(|_| is_whole) else {
            return Err(RpcError::Denied("a snapshot without its end".into()));
        };
        if header.volume.0 != self.serves.cluster.0 || header.index != request.base.index {
            return Err(RpcError::Denied("a snapshot of something else".into()));
        }
        self.install_snapshot(hello.origin, &request, header, frames).await
    }

    /// Dirty bytes on this node's disk.
    async fn held(
        &self,
        ino: Ino,
        blocks: Range<u64>,
        at: LogIndex,
    ) -> Result<(Answer, Bytes), RpcError> {
        if blocks.end.saturating_sub(blocks.start) > HELD_BLOCKS {
            return Err(FsError::Invalid.into());
        }
        self.expect_followed(at)?;
        let (mut sums, mut bytes) = (Vec::new(), BytesMut::new());
        for block in blocks {
            let (place, known) = {
                let state = self.replica.view();
                let known = state.extents().block(ino, block);
                (location(&state, ino), known.filter(|known| known.dirty))
            };
            let Some(known) = known else {
                tracing::error!(%ino, block, "another node asks for bytes that are not here");
                return Err(FsError::Io.into());
            };
            let read = self.store.read(&place, block * BLOCK_BYTES, BLOCK_BYTES as usize).await;
            let read = read.map_err(|error| {
                tracing::error!(%ino, block, %error, "bytes for another node cannot be read");
                RpcError::Refused(FsError::Io)
            })?;
            sums.push(known.sum);
            bytes.extend_from_slice(&read);
            // Bytes behind the end of the file are not kept.
            bytes.resize(sums.len() * BLOCK_BYTES as usize, 0);
        }
        Ok((Answer::Held { sums }, bytes.freeze()))
    }

    /// An error unless this node has applied the commands up to `at`, and knows which of its bytes
    /// a crash has taken.
    fn expect_followed(&self, at: LogIndex) -> Result<(), RpcError> {
        let follows = matches!(self.quorum().part(), Part::Follows { .. });
        let is_there = follows && self.is_settled() && self.replica.view().applied() >= at;
        if is_there { Ok(()) } else { Err(RpcError::Retry) }
    }

    async fn force_held(&self) -> Result<(), RpcError> {
        let failed = |error| {
            tracing::error!(%error, "bytes of the volume cannot be forced");
            RpcError::Refused(FsError::Io)
        };
        self.store.sync(SyncScope::Written).await.map_err(failed)?;
        self.replica.log().force().await.map(drop).map_err(crate::replica::refusal)
    }
}

async fn send(
    sender: &Mutex<Box<dyn FrameSender>>,
    id: RequestId,
    message: PeerMessage,
    data: Bytes,
) {
    // A failure is the end of the connection, which the receiving side reports.
    let (Ok(()) | Err(_)) = sender.lock().await.send(encode(id, &message, data)).await;
}
