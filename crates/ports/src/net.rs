//! Streams of frames between processes.

use crate::PortFuture;
use bytes::Bytes;
use thiserror::Error;

/// Ordered, reliable streams of frames between processes. Frames are opaque here; `ebb_format::rpc`
/// defines their bytes. An adapter adds only the length prefix.
pub trait Net {
    /// `address` is `host:port`.
    fn connect(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>>;
    fn listen(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>>;
}

pub trait Listener {
    fn accept(&mut self) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>>;

    /// The resource that ran short when the last connection was accepted, if the adapter had to use
    /// its reserve.
    fn shortage(&mut self) -> Option<String> {
        None
    }

    /// The bound address, with the chosen port if port 0 was requested.
    fn address(&self) -> String;
}

pub trait Connection {
    /// Splits into the two directions, which different tasks can use.
    fn split(self: Box<Self>) -> (Box<dyn FrameSender>, Box<dyn FrameReceiver>);
}

pub trait FrameSender {
    /// Completes when the transport has accepted the frame; delivery is not confirmed. The buffers
    /// form one frame, in order.
    fn send(&mut self, parts: Vec<Bytes>) -> PortFuture<'_, Result<(), NetError>>;
}

pub trait FrameReceiver {
    /// The next frame; `None` after the peer has closed the connection cleanly.
    fn receive(&mut self) -> PortFuture<'_, Result<Option<Bytes>, NetError>>;
}

/// Longest frame in either direction: a request with 1 MiB of file data and its header.
pub const MAX_FRAME_BYTES: usize = (1 << 20) + (64 << 10);

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NetError {
    /// No listener, an unknown name, or a closed route: retry later.
    #[error("{address}: {what}")]
    Unreachable { address: String, what: String },
    /// The connection broke. Frames sent earlier may or may not have arrived.
    #[error("connection lost: {what}")]
    Broken { what: String },
    /// The peer sent bytes that are not a frame. The connection is unusable.
    #[error("peer broke the protocol: {what}")]
    Protocol { what: String },
}
