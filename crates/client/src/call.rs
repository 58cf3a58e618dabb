//! Sends requests until they are answered (O-58).

use crate::backoff::Backoff;
use crate::client::{Attachment, Identity, Shared};
use ebb_model::{FsError, Reply, Request, RpcError, SessionId};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::time::Duration;

/// The reason why one attempt to send a request got no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    Rpc(RpcError),
    /// No answer came in time, but one may still come.
    Silent,
}

impl Failure {
    /// The request may have been executed, or may be executed later.
    pub(crate) fn may_have_run(&self) -> bool {
        matches!(self, Failure::Silent | Failure::Rpc(RpcError::Lost | RpcError::NotLeader { .. }))
    }
}

impl Shared {
    /// Sends a request that may be executed more than once.
    pub(crate) async fn ask(
        &self,
        request: impl Fn(SessionId) -> Request,
    ) -> Result<Reply, FsError> {
        self.within(pin!(self.ask_patiently(Some(self.options.request_timeout), request))).await
    }

    /// Like [`Shared::ask`], but waits for the node without bound.
    pub(crate) async fn ask_patiently(
        &self,
        patience: Option<Duration>,
        request: impl Fn(SessionId) -> Request,
    ) -> Result<Reply, FsError> {
        self.ask_with_identity(patience, request).await.map(|(reply, _)| reply)
    }

    /// Returns the identity under which the reply came. When the reply is evaluated, the client may
    /// be attached to a restarted node.
    pub(crate) async fn ask_with_identity(
        &self,
        patience: Option<Duration>,
        request: impl Fn(SessionId) -> Request,
    ) -> Result<(Reply, Identity), FsError> {
        let mut backoff = Backoff::new();
        loop {
            let attachment = self.attached().await?;
            let identity = self.identity.get();
            let request = request(attachment.session);
            let _finding = request.finds().then(|| self.references.awaiting_answer());
            match self.send(request, patience).await {
                Ok(reply) => return Ok((reply, identity)),
                Err(failure) => self.backoff_or_fail(failure, attachment, &mut backoff).await?,
            }
        }
    }

    /// Sends once. A node in this process always answers, so there is no limit on its time.
    pub(crate) async fn send(
        &self,
        request: Request,
        patience: Option<Duration>,
    ) -> Result<Reply, Failure> {
        let answer = self.link.call(request);
        let result = match patience.filter(|_| !self.link.is_local()) {
            None => answer.await,
            Some(patience) => match select(answer, self.ports.clock.sleep(patience)).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => return Err(Failure::Silent),
            },
        };
        result.map_err(Failure::Rpc)
    }

    /// Waits until another attempt makes sense, or returns the error for the caller.
    pub(crate) async fn backoff_or_fail(
        &self,
        failure: Failure,
        attachment: Attachment,
        backoff: &mut Backoff,
    ) -> Result<(), FsError> {
        match failure {
            Failure::Rpc(RpcError::Refused(error)) => return Err(error),
            Failure::Rpc(RpcError::Denied(why)) => {
                tracing::warn!(%why, "the node denies a request");
                return Err(FsError::AccessDenied);
            }
            Failure::Rpc(RpcError::Misordered) => {
                tracing::error!("the node takes a request for one of the past");
                return Err(FsError::Io);
            }
            Failure::Silent => return Ok(()),
            Failure::Rpc(RpcError::Retry) => {}
            Failure::Rpc(
                RpcError::Lost
                | RpcError::SessionExpired
                | RpcError::NotServing(_)
                | RpcError::NotLeader { .. },
            ) => self.broken(attachment),
        }
        backoff.pause(&self.ports).await;
        Ok(())
    }
}

/// The reply is of a kind that does not belong to the request.
pub(crate) fn wrong_reply() -> FsError {
    tracing::error!("the node broke the protocol: a reply of the wrong kind");
    FsError::Io
}
