use crate::gate::Gate;
use crate::{Grant, Grantee, Link, LinkEvent};
use ebb_model::{GrantRequest, Ino, Notice, Reply, Request, RpcError, SessionId};
use ebb_ports::PortFuture;
use std::cell::Cell;
use std::future::ready;

type Handle = Box<dyn Fn(Request) -> PortFuture<'static, Result<Reply, RpcError>>>;
type GrantFn =
    Box<dyn Fn(Ino, GrantRequest) -> PortFuture<'static, Result<Option<Grant>, RpcError>>>;
type NextNotice = Box<dyn Fn(SessionId) -> PortFuture<'static, Option<Notice>>>;

/// The link to a node in the same process. Client and node do not depend on each other's crates.
/// The program that puts both into one process joins them here.
pub struct LocalLink {
    handle: Handle,
    next_notice: NextNotice,
    grant: Option<GrantFn>,
    session: Cell<Option<SessionId>>,
    attached: Gate,
}

impl LocalLink {
    /// `handle` answers a request. `next_notice` returns the next notice for a session, and `None`
    /// once it is no longer attached.
    pub fn new(
        handle: impl Fn(Request) -> PortFuture<'static, Result<Reply, RpcError>> + 'static,
        next_notice: impl Fn(SessionId) -> PortFuture<'static, Option<Notice>> + 'static,
    ) -> LocalLink {
        let (handle, next_notice) = (Box::new(handle), Box::new(next_notice));
        LocalLink {
            handle,
            next_notice,
            grant: None,
            session: Cell::new(None),
            attached: Gate::default(),
        }
    }

    /// The node grants passthrough files by `grant`.
    pub fn granting(
        self,
        grant: impl Fn(Ino, GrantRequest) -> PortFuture<'static, Result<Option<Grant>, RpcError>>
        + 'static,
    ) -> LocalLink {
        LocalLink { grant: Some(Box::new(grant)), ..self }
    }
}

impl Link for LocalLink {
    fn call(&self, request: Request) -> PortFuture<'_, Result<Reply, RpcError>> {
        let attaches = matches!(request, Request::Attach { .. });
        let answer = (self.handle)(request);
        if !attaches {
            return answer;
        }
        Box::pin(async move {
            let reply = answer.await?;
            if let Reply::Attached(attached) = &reply {
                self.session.set(Some(attached.session));
                self.attached.changed();
            }
            Ok(reply)
        })
    }

    fn event(&self) -> PortFuture<'_, LinkEvent> {
        Box::pin(async move {
            let session = self.attached.until(|| self.session.get()).await;
            match (self.next_notice)(session).await {
                Some(notice) => LinkEvent::Notice(notice),
                None => {
                    self.session.set(None);
                    LinkEvent::Lost
                }
            }
        })
    }

    fn is_local(&self) -> bool {
        true
    }

    fn grant(
        &self,
        _borrower: Grantee,
        ino: Ino,
        request: GrantRequest,
    ) -> PortFuture<'_, Result<Option<Grant>, RpcError>> {
        match &self.grant {
            Some(grant) => grant(ino, request),
            None => Box::pin(ready(Ok(None))),
        }
    }

    fn trouble(&self) -> String {
        "the node in this process has stopped".into()
    }
}
