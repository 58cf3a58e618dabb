use crate::{Grant, Grantee};
use ebb_model::{GrantRequest, Ino, Notice, Reply, Request, RpcError};
use ebb_ports::PortFuture;
use std::future::ready;

/// The way from a client to its node: [`crate::WireLink`] over a connection, or the node
/// itself in the same process.
pub trait Link {
    /// Sends a request and waits for its answer. [`Request::Attach`] begins a new
    /// connection and gives up the old one, where there is such a thing; every other
    /// request fails with [`RpcError::Lost`] where there is no connection. Dropping the
    /// future gives up the answer, not the request.
    fn call(&self, request: Request) -> PortFuture<'_, Result<Reply, RpcError>>;

    /// The next of what the node says unasked; waits as long as there is nothing. What
    /// an earlier connection said is not reported once a new one has begun. One task asks.
    fn event(&self) -> PortFuture<'_, LinkEvent>;

    /// The node lives and dies with this process: nothing that it answered is lost while
    /// anybody could ask for it again, and an answer always comes.
    fn is_local(&self) -> bool;

    /// The file of this machine's disk that has the bytes of an inode, where there is one that may
    /// be read past the node.
    fn grant(
        &self,
        _borrower: Grantee,
        _ino: Ino,
        _borrow: GrantRequest,
    ) -> PortFuture<'_, Result<Option<Grant>, RpcError>> {
        Box::pin(ready(Ok(None)))
    }

    /// Why the last connection could not be made or was lost, for people.
    fn trouble(&self) -> String;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    Notice(Notice),
    /// The connection is lost. The next [`Request::Attach`] begins another.
    Lost,
}
