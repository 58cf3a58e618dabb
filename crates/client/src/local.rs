use crate::gate::Gate;
use crate::{Link, LinkEvent};
use ebb_model::{Notice, Reply, Request, RpcError, SessionId};
use ebb_ports::PortFuture;
use std::cell::Cell;

type Handle = Box<dyn Fn(Request) -> PortFuture<'static, Result<Reply, RpcError>>>;
type NextNotice = Box<dyn Fn(SessionId) -> PortFuture<'static, Option<Notice>>>;

/// The way to a node in the same process. Client and node do not know each other's crates:
/// whoever puts both into one process joins them here.
pub struct LocalLink {
    handle: Handle,
    next_notice: NextNotice,
    session: Cell<Option<SessionId>>,
    attached: Gate,
}

impl LocalLink {
    /// `handle` answers a request; `next_notice` gives what a session is told unasked, and
    /// `None` once it is no longer attached.
    pub fn new(
        handle: impl Fn(Request) -> PortFuture<'static, Result<Reply, RpcError>> + 'static,
        next_notice: impl Fn(SessionId) -> PortFuture<'static, Option<Notice>> + 'static,
    ) -> LocalLink {
        LocalLink { handle: Box::new(handle), next_notice: Box::new(next_notice), session: Cell::new(None), attached: Gate::default() }
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

    fn trouble(&self) -> String {
        "the node in this process has stopped".into()
    }
}
