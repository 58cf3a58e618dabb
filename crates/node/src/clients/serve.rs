//! Requests of clients: the dispatch to the parts of the node that answer them.

use crate::Node;
use crate::clients::barrier::{Origin, Shown};
use crate::readahead::traversals::Look;
use ebb_model::*;
use ebb_ports::PortFuture;
use futures_channel::oneshot;
use futures_util::FutureExt;
use std::future::ready;
use std::rc::Rc;

/// Entries of one answer to a directory read, so that it fits a frame.
const MAX_ENTRIES: u32 = 1024;

impl Node {
    /// Answers one request of a client in the same process. Dropping the future gives up the
    /// answer, not the request: unfinished work continues in a task of its own, for a command must
    /// not be left half-way between log and state.
    pub fn handle(
        self: &Rc<Self>,
        request: Request,
    ) -> PortFuture<'static, Result<Reply, RpcError>> {
        self.handle_from(Origin::Process, request)
    }

    pub(crate) fn handle_from(
        self: &Rc<Self>,
        origin: Origin,
        request: Request,
    ) -> PortFuture<'static, Result<Reply, RpcError>> {
        let node = self.clone();
        let mut answering = Box::pin(async move { node.answer_counted(origin, request).await });
        if let Some(answer) = (&mut answering).now_or_never() {
            return Box::pin(ready(answer));
        }
        let (sender, answer) = oneshot::channel();
        self.ports.spawn.spawn(Box::pin(async move {
            // The caller may have gone.
            let (Ok(()) | Err(_)) = sender.send(answering.await);
        }));
        Box::pin(async move { answer.await.unwrap_or(Err(RpcError::Lost)) })
    }

    /// The next notice for a session; `None` once it is no longer attached.
    pub async fn next_notice(&self, session: SessionId) -> Option<Notice> {
        self.attachments.next_notice(session).await
    }

    pub(crate) async fn answer(
        self: &Rc<Self>,
        origin: Origin,
        request: Request,
    ) -> Result<Reply, RpcError> {
        let asks = matches!(request, Request::Admin(AdminRequest::Status | AdminRequest::Stats));
        if !asks && !matches!(request, Request::Detach { .. } | Request::Close { .. }) {
            self.expect_running()?;
        }
        let shown = Shown::of(&request);
        if let Some(shown) = &shown {
            // Operations acknowledged to a client that has yet to come back are not there yet.
            let lacks_bytes = shown.bytes && self.lacks_bytes(shown.subject);
            if lacks_bytes || self.attachments.awaits_sole() {
                return Err(RpcError::Retry);
            }
            if shown.bytes || matches!(request, Request::Seek { .. }) {
                self.bring(shown.subject).await?;
            }
        }
        let is_mutation = matches!(request, Request::Mutate(_));
        let answer = match &shown {
            Some(shown) => self.show(origin, shown, request).await,
            None => self.reply(origin, request).await,
        };
        let answer = answer.map_err(|error| self.unless_failed(error));
        if answer.as_ref().is_ok_and(|reply| !self.names.may_tell(reply)) {
            return Err(RpcError::Retry);
        }
        if let Origin::Connection(connection) = origin {
            let committed = self.commit_shown(connection, shown, &answer).await;
            committed.map_err(|error| self.unless_failed(error))?;
        }
        // A mutation that was carried out is committed, which only a leader can do.
        if !is_mutation || answer.is_err() {
            self.confirm_lead().await?;
        }
        answer
    }

    /// Makes sure that no other node of a replicated volume leads yet.
    pub(crate) async fn confirm_lead(&self) -> Result<(), RpcError> {
        if self.replica.own_node().is_none() {
            return Ok(());
        }
        self.replica.confirm_lead().await
    }

    /// Answers a request that asks for state.
    async fn show(
        self: &Rc<Self>,
        origin: Origin,
        shown: &Shown,
        request: Request,
    ) -> Result<Reply, RpcError> {
        loop {
            let answer = self.reply(origin, request.clone()).await;
            if !self.may_wait_for_writers() || !self.recall_written(origin, shown, &answer).await {
                return self.with_leases(origin, shown, answer);
            }
        }
    }

    /// A node with a failed disk no longer knows its state. Clients on other machines ask again
    /// after a recovery; a client in this process only gets the failure.
    fn unless_failed(&self, error: RpcError) -> RpcError {
        let fails = self.has_failed() && !self.options.embedded;
        if fails && error == RpcError::Refused(FsError::Io) { RpcError::Lost } else { error }
    }

    async fn reply(self: &Rc<Self>, origin: Origin, request: Request) -> Result<Reply, RpcError> {
        match request {
            Request::Attach { volume, client, previous, read_only, cluster } => {
                let attached =
                    Box::pin(self.attach(volume, client, previous, read_only, cluster)).await?;
                if let (Origin::Process, Reply::Attached(attached)) = (origin, &attached) {
                    self.attachments.is_in_process(attached.session);
                }
                Ok(attached)
            }
            Request::Detach { session } => Box::pin(self.detach(session)).await,
            Request::Renew { session } => {
                if self.attachments.renew(session, self.ports.clock.monotonic()) {
                    Ok(Reply::Done)
                } else {
                    Err(RpcError::SessionExpired)
                }
            }
            Request::ResumeSession { session } => self.take_up(session),
            Request::OpensDeclared { session } => {
                self.close_untold(session).await?;
                self.release_closed(session).await?;
                Ok(Reply::Done)
            }
            Request::CachesDropped { session } => {
                self.attachments.set_shares(session);
                Ok(Reply::Done)
            }

            Request::LeasesReturned { session, recall } => {
                self.leases.returned(session, recall);
                Ok(Reply::Done)
            }

            Request::ReferenceQueryReply { session, query, referenced } => {
                self.expect_attached(session)?;
                self.names.references(session, query, &referenced.into_iter().collect());
                Ok(Reply::Done)
            }

            Request::Lookup { parent, name } => {
                if name.as_bytes() == TRASH {
                    return Err(FsError::NotFound.into());
                }
                self.names.used(parent);
                self.revalidate_name(parent, &name).await;
                let attr = self.look_up(parent, &name).await?;
                Ok(Reply::Attr(Box::new(self.shown(attr))))
            }
            Request::GetAttr { ino } => {
                self.revalidate_file(ino).await;
                let attr = self.replica.view().namespace().attr(ino)?;
                Ok(Reply::Attr(Box::new(self.shown(attr))))
            }
            Request::ReadLink { ino } => {
                Ok(Reply::Link(self.replica.view().namespace().read_link(ino)?))
            }
            Request::ReadDir { dir, after, limit } => {
                self.names.used(dir);
                if after == Cookie::START {
                    self.revalidate_listing(dir, Look::Through).await;
                }
                self.read_dir(dir, after, limit).await
            }
            Request::GetXattr { ino, name } => {
                Ok(Reply::Xattr(self.replica.view().namespace().get_xattr(ino, &name)?))
            }
            Request::ListXattr { ino } => {
                Ok(Reply::Xattrs(self.replica.view().namespace().list_xattr(ino)?))
            }
            Request::Access { caller, ino, access } => {
                self.replica.view().namespace().access(&caller, ino, access)?;
                Ok(Reply::Done)
            }
            Request::StatFs { ino } => Ok(Reply::Stat(self.stat(ino).await)),

            Request::Open { session, ino } => {
                let life = self.attachments.lives(session);
                self.revalidate_file(ino).await;
                // A removal under way was given the holders of the inode before this open: the
                // inode may be gone now.
                let _turn = self.replica.settled().await;
                self.expect_attached(session)?;
                if self.attachments.lives(session) != life {
                    return Err(RpcError::SessionExpired);
                }
                {
                    // An inode without a name is usable only by its holders at the removal.
                    let state = self.replica.view();
                    let nameless = state.namespace().attr(ino)?.nlink == 0;
                    if nameless && state.namespace().holders(ino).all(|holder| holder != session) {
                        return Err(FsError::Stale.into());
                    }
                }
                self.attachments.open(session, ino);
                Ok(Reply::Opened { passthrough: self.may_be_granted(ino) })
            }
            Request::Close { session, ino, count } => self.close(session, ino, count).await,
            Request::Read { ino, offset, len_bytes } => {
                Ok(Reply::Data(self.read(ino, offset, len_bytes).await?))
            }

            Request::Mutate(mutate) => self.mutate(origin, mutate).await,
            Request::Fsync { session, ino } => {
                self.expect_attached(session)?;
                self.bring(ino).await?;
                if self.attachments.is_shared() {
                    // Other clients must see the bytes that were stored past the node.
                    Box::pin(self.find_all_stored(ino)).await?;
                }
                Ok(Reply::Forced { durable: self.fsync(ino).await? })
            }
            Request::SyncFs { session } => {
                self.expect_attached(session)?;
                self.doubt_exposed(None);
                self.force_elsewhere().await?;
                Ok(Reply::Forced { durable: self.force_all().await? })
            }

            Request::Admin(request) => Box::pin(self.admin(request)).await.map(Reply::Admin),

            Request::Seek { ino, offset, to } => Ok(Reply::Offset(self.seek(ino, offset, to)?)),

            Request::Lock { tx, ask, wait } => self.lock(tx, &ask, wait),
            Request::EndWait { session, wait } => self.end_wait(session, wait),
            Request::TestLock { session, ino, owner, lock } => {
                self.test_lock(session, ino, owner, lock)
            }
            Request::Reclaim { session, ino, owner, pid, locks } => {
                self.reclaim(session, ino, owner, pid, &locks)
            }
        }
    }

    /// Entries of a directory, loading as much of it as the answer needs.
    async fn read_dir(
        self: &Rc<Self>,
        dir: Ino,
        after: Cookie,
        limit: u32,
    ) -> Result<Reply, RpcError> {
        let limit = limit.clamp(1, MAX_ENTRIES);
        loop {
            let (entries, end) =
                self.replica.view().namespace().read_dir(dir, after, limit as usize)?;
            let complete = self.is_complete(dir);
            if !entries.is_empty() || complete {
                let entries =
                    entries.into_iter().map(|(entry, attr)| (entry, self.shown(attr))).collect();
                return Ok(Reply::Directory { entries, end: end && complete });
            }
            self.room_to_load()?;
            self.load_next(dir).await?;
        }
    }

    /// Attributes as clients see them: with holes. A directory has a link count of 1 until all its
    /// names are known, which shows find(1) and similar programs that its number of subdirectories
    /// is unknown.
    fn shown(&self, attr: Attr) -> Attr {
        let hole_bytes = self.replica.view().hole_bytes(&attr);
        let nlink = if attr.kind == FileKind::Directory && !self.is_complete(attr.ino) {
            1
        } else {
            attr.nlink
        };
        Attr { nlink, hole_bytes, ..attr }
    }

    pub(crate) fn expect_attached(&self, session: SessionId) -> Result<(), RpcError> {
        if self.attachments.contains(session) { Ok(()) } else { Err(RpcError::SessionExpired) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<Answer>(_: impl FnOnce(&'static Rc<Node>, Origin, Request) -> Answer) -> usize {
        size_of::<Answer>()
    }

    /// A write keeps its bytes until it is known that they are there, and what it waits for on
    /// other nodes.
    const LARGEST_FUTURE_BYTES: usize = 8448;

    /// Each request has its future made and moved: futures that are seldom awaited are in a box of
    /// their own.
    #[test]
    fn futures_of_requests_are_small() {
        let bytes = bytes_of(Node::answer_counted);
        assert!(bytes <= LARGEST_FUTURE_BYTES, "{bytes}");
    }
}
