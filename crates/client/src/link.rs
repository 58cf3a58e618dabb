use crate::{Grant, Grantee};
use ebb_model::{GrantRequest, Ino, Notice, Reply, Request, RpcError};
use ebb_ports::PortFuture;
use std::future::ready;

/// The path from a client to its node: [`crate::WireLink`] over a connection, or the node itself in
/// the same process.
pub trait Link {
    /// Sends a request and waits for its answer. [`Request::Attach`] begins a new connection and
    /// closes the old one, if the link has connections. Every other request fails with
    /// [`RpcError::Lost`] without a connection. Dropping the future discards the answer, not the
    /// request.
    fn call(&self, request: Request) -> PortFuture<'_, Result<Reply, RpcError>>;

    /// The next notice that the node sends unasked. Waits until there is one. Notices of an earlier
    /// connection are not returned after a new one has begun. Only one task may call this.
    fn event(&self) -> PortFuture<'_, LinkEvent>;

    /// The node lives and dies with this process. None of its answers is lost while a client could
    /// ask for it again, and an answer always comes.
    fn is_local(&self) -> bool;

    /// The file on this machine's disk that has the bytes of an inode, if there is one and the
    /// kernel may read it directly.
    fn grant(
        &self,
        _borrower: Grantee,
        _ino: Ino,
        _borrow: GrantRequest,
    ) -> PortFuture<'_, Result<Option<Grant>, RpcError>> {
        Box::pin(ready(Ok(None)))
    }

    /// Why the last connection was not made or was lost, or which nodes do not lead the volume,
    /// for people.
    fn trouble(&self) -> String;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    Notice(Notice),
    /// The connection is lost. The next [`Request::Attach`] begins another.
    Lost,
}
