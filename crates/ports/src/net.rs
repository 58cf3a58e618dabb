use crate::PortFuture;
use bytes::Bytes;
use thiserror::Error;

/// Ordered, reliable streams of frames between processes. A frame is opaque here; its
/// bytes are `ebb_format::rpc`'s. An adapter adds only the length prefix.
pub trait Net {
    /// `address` is `host:port`.
    fn connect(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>>;
    fn listen(&self, address: &str) -> PortFuture<'_, Result<Box<dyn Listener>, NetError>>;
}

pub trait Listener {
    fn accept(&mut self) -> PortFuture<'_, Result<Box<dyn Connection>, NetError>>;

    /// What there was not enough of for the connection that was accepted last, but for what is kept
    /// in reserve.
    fn shortage(&mut self) -> Option<String> {
        None
    }

    /// The address bound, with the port that was chosen where 0 was asked for.
    fn address(&self) -> String;
}

pub trait Connection {
    /// The two directions, which may be used by different tasks.
    fn split(self: Box<Self>) -> (Box<dyn FrameSender>, Box<dyn FrameReceiver>);
}

pub trait FrameSender {
    /// Completes when the frame has been handed to the transport, which says nothing
    /// about its arrival. The parts are sent as one frame, in order.
    fn send(&mut self, parts: Vec<Bytes>) -> PortFuture<'_, Result<(), NetError>>;
}

pub trait FrameReceiver {
    /// The next frame; `None` once the peer has closed in good order.
    fn receive(&mut self) -> PortFuture<'_, Result<Option<Bytes>, NetError>>;
}

/// The longest frame that either side takes: a request of 1 MiB of file data and its header.
pub const MAX_FRAME_BYTES: usize = (1 << 20) + (64 << 10);

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NetError {
    /// Nobody listens there, the name is unknown, or the way is closed: try again later.
    #[error("{address}: {what}")]
    Unreachable { address: String, what: String },
    /// The connection broke. Frames sent before may or may not have arrived.
    #[error("connection lost: {what}")]
    Broken { what: String },
    /// The peer sent what is not a frame. The connection is of no further use.
    #[error("peer broke the protocol: {what}")]
    Protocol { what: String },
}
