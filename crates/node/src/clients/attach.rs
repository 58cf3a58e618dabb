//! Sessions: attach, renew, share, detach.

use crate::Node;
use crate::clients::attachments::Entering;
use ebb_core::session::Session;
use ebb_core::state::State;
use ebb_model::*;
use std::time::Duration;

/// How often an attach looks whether the other clients have given up caching.
const SHARE_POLL: Duration = Duration::from_millis(5);

impl Node {
    /// Admits a client. Other clients that cache must first give that up, for there are no finer
    /// leases yet: with more than one client none caches (O-49).
    pub(crate) async fn attach(
        &self,
        volume: String,
        client: String,
        previous: Option<SessionId>,
        read_only: bool,
        cluster: Option<ClusterId>,
    ) -> Result<Reply, RpcError> {
        // An empty name means the only volume of the node.
        if !volume.is_empty() && volume != self.options.volume {
            return Err(RpcError::Denied(format!(
                "this node serves the volume {:?}, not {volume:?}",
                self.options.volume
            )));
        }
        if let Some(meant) = cluster.filter(|meant| *meant != self.run.cluster) {
            return Err(RpcError::Denied(format!(
                "this node serves another volume of the name {volume:?}: {}, not {meant}",
                self.run.cluster
            )));
        }
        if self.read_only() && !read_only {
            return Err(RpcError::Denied(format!(
                "volume {volume:?} is served read-only here: attach it read-only"
            )));
        }
        let goes_on = |id: &SessionId| {
            self.replica.view().sessions().get(*id).is_some() && !self.attachments.is_ending(*id)
        };
        let known = previous.filter(goes_on);
        // A returning client was let in before, and every client let in since has given up caching
        // for it. Two that waited for each other would wait until both expire.
        let returns = known.is_some_and(|session| self.attachments.contains(session));
        // From here on no answer to another client can be lost.
        let entering = self.attachments.begin_to_enter(&client);
        drop(self.replica.settled().await);
        let before = named(&self.replica.view(), &client);
        // Ends at the latest when the clients that do not answer expire.
        loop {
            let but: Vec<SessionId> = known.into_iter().chain(before).collect();
            if returns || !self.attachments.ask_to_share(&but, self.ports.clock.monotonic()) {
                break;
            }
            self.ports.clock.sleep(SHARE_POLL).await;
        }
        let session = match known {
            Some(session) => session,
            None => self.open_session(client, before, &entering).await?,
        };
        // During these waits the client has attached again under its name, or has left.
        if self.replica.view().sessions().get(session).is_none() {
            return Err(RpcError::SessionExpired);
        }
        drop(entering);
        let sole = self.attachments.is_alone(session);
        let shares = !sole && (!returns || self.attachments.shares(session));
        self.attachments.insert(session, self.ports.clock.monotonic(), read_only, shares);
        if known.is_none() && previous.is_some() {
            // It replays the operations acknowledged under the previous session.
            self.attachments.has_to_tell(session);
        }
        Ok(Reply::Attached(Attached {
            session,
            cluster: self.run.cluster,
            start: self.run.id,
            incarnation: self.run.incarnation,
            fresh: known.is_none(),
            recovered: self.run.recovered,
            sole,
            cache_term_ms: self.revalidates().map_or(0, |half| millis(half).max(1)),
            read_only: read_only || self.read_only(),
            session_term_ms: millis(self.options.session_term),
            lease_term_ms: if self.options.embedded { 0 } else { millis(self.options.lease_term) },
            nodes: self.node_addresses(),
        }))
    }

    /// Where clients find the nodes of a replicated volume.
    fn node_addresses(&self) -> Vec<String> {
        let state = self.replica.view();
        state.nodes().addresses().map(|(_, address)| address.to_owned()).collect()
    }

    /// Opens a session in place of the one that the client had `before`. A start that finds several
    /// in the log takes all answers for forced: those before this command are forced with it, later
    /// ones since the client is about to enter.
    async fn open_session(
        &self,
        client: String,
        before: Option<SessionId>,
        entering: &Entering<'_>,
    ) -> Result<SessionId, RpcError> {
        let session = SessionId(self.ports.entropy.next_u64().max(1));
        let open = |state: &State| {
            let replaces = named(state, &client);
            // The client has given up this attach, and has come again.
            let is_over = !entering.is_latest() || replaces.is_some() && replaces != before;
            match is_over {
                true => Err(RpcError::SessionExpired),
                false => Ok(Command::SessionOpen { session, client, replaces }),
            }
        };
        self.end_by(before, open).await?;
        // A client could not replay its acknowledged operations in a session lost in a power cut.
        self.force_log().await?;
        Ok(session)
    }

    pub(crate) async fn detach(&self, session: SessionId) -> Result<Reply, RpcError> {
        self.close_session(session).await?;
        // After a power cut no client must be waited for that has left.
        self.force_log().await?;
        Ok(Reply::Done)
    }

    async fn close_session(&self, session: SessionId) -> Result<(), RpcError> {
        if self.replica.view().sessions().get(session).is_some() {
            self.end_by(Some(session), |_| Ok(Command::SessionClose { session })).await?;
        }
        Ok(())
    }

    /// Logs a command that ends a session. Until it is logged the session stands: a client that was
    /// let in earlier waits for it, and if the log does not take the command it is tried again.
    async fn end_by(
        &self,
        session: Option<SessionId>,
        choose: impl FnOnce(&State) -> Result<Command, RpcError>,
    ) -> Result<(), RpcError> {
        if !session.is_none_or(|session| self.attachments.begin_end(session)) {
            return Err(RpcError::Retry);
        }
        let ended = match self.replica.propose(choose).await {
            Ok((_, applied)) => self.perform_effects(applied, None).await,
            Err(error) => Err(error),
        };
        if let Some(session) = session {
            // The command may be logged although a later step has failed.
            let stands = self.replica.view().sessions().get(session).is_some();
            match stands {
                false => self.forget_session(session).await?,
                true => self.attachments.fail_end(session),
            }
        }
        ended
    }

    /// Removes a session once its end is logged. If other clients may wait for its operations, the
    /// log is forced first. It is also forced if the session may have locks: a power cut could
    /// bring the session back, and its client would reclaim them.
    async fn forget_session(&self, session: SessionId) -> Result<(), RpcError> {
        let is_told_of = self.attachments.is_shared() || self.attachments.awaits(session);
        if is_told_of || self.locks.borrow().knows(session) {
            self.force_log().await?;
        }
        self.attachments.remove(session);
        self.leases.remove(session);
        self.free_locks(session);
        Ok(())
    }

    /// Ends the sessions that have been silent, or kept other clients waiting, for longer than the
    /// term.
    pub(crate) async fn expire_sessions(&self) {
        let now = self.ports.clock.monotonic();
        let term = self.options.session_term;
        let mut expired = self.attachments.expired(now, term);
        let overdue = self.leases.overdue(now, term);
        if !overdue.is_empty() {
            self.leases.abandoned_until(now + self.options.lease_term);
        }
        expired.extend(overdue);
        for session in expired {
            tracing::warn!(
                session = session.0,
                "a client has been silent, or has not given up what it caches, for its whole term: \
                 its session ends"
            );
            match self.close_session(session).await {
                // One of its operations is half done: the session ends after it.
                Ok(()) | Err(RpcError::Retry) => {}
                Err(error) => tracing::error!(%error, "an expired session could not be closed"),
            }
        }
        let ended = |session: &SessionId| self.replica.view().sessions().get(*session).is_none();
        for session in self.attachments.ending().into_iter().filter(ended) {
            if let Err(error) = self.forget_session(session).await {
                tracing::error!(%error, "the end of a session could not be made safe");
            }
        }
    }

    pub(crate) async fn close(
        &self,
        session: SessionId,
        ino: Ino,
        count: u32,
    ) -> Result<Reply, RpcError> {
        if self.attachments.close(session, ino, count) {
            self.release_orphan(session, ino).await?;
        }
        Ok(Reply::Done)
    }

    /// Ends the hold of a session on an inode without a name, if it has one and no longer has the
    /// inode open.
    pub(crate) async fn release_orphan(
        &self,
        session: SessionId,
        ino: Ino,
    ) -> Result<(), RpcError> {
        let held = self.replica.view().namespace().holders(ino).any(|holder| holder == session);
        if held && !self.attachments.may_hold(session, ino) {
            self.commit(Command::Release { session, ino }).await?;
        }
        Ok(())
    }

    /// See [`Request::ResumeSession`].
    pub(crate) fn take_up(&self, session: SessionId) -> Result<Reply, RpcError> {
        self.expect_attached(session)?;
        // A mutation under way could open a file, or write, unknown to the process that takes up
        // the session.
        if self.under_way.borrow().keys().any(|tx| tx.session == session) {
            return Err(RpcError::Retry);
        }
        let state = self.replica.view();
        let answers = state.sessions().get(session).into_iter().flat_map(Session::answers);
        let made = answers.filter_map(|answer| Some(answer.as_ref().ok()?.attr.as_ref()?.ino));
        self.attachments.take_up(session, made.filter(|ino| state.namespace().attr(*ino).is_ok()));
        self.end_waits(session);
        Ok(Reply::Done)
    }

    /// See [`Request::ResumeSession`].
    pub(crate) async fn close_untold(&self, session: SessionId) -> Result<(), RpcError> {
        let life = self.attachments.lives(session);
        while let Some(ino) = self.attachments.next_untold(session, life) {
            self.close(session, ino, u32::MAX).await?;
        }
        Ok(())
    }

    /// See [`Request::OpensDeclared`].
    pub(crate) async fn release_closed(&self, session: SessionId) -> Result<(), RpcError> {
        self.attachments.has_told(session);
        let held: Vec<Ino> = {
            let state = self.replica.view();
            let orphans = state.namespace().orphans();
            orphans
                .filter_map(|(ino, mut holders)| {
                    holders.any(|holder| holder == session).then_some(ino)
                })
                .collect()
        };
        for ino in held {
            self.release_orphan(session, ino).await?;
        }
        Ok(())
    }
}

/// The session of a client that has lost its id, and comes back under its name.
fn named(state: &State, client: &str) -> Option<SessionId> {
    state.sessions().iter().find(|(_, known)| known.client == client).map(|(id, _)| id)
}

/// A time too large for the type is reported as its maximum: the client then gives up before the
/// node does.
fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Danger: fifty days overflow to a few minutes.
    #[test]
    fn terms_that_are_too_long_for_the_wire_are_cut() {
        assert_eq!(millis(Duration::from_secs(60)), 60_000);
        assert_eq!(millis(Duration::from_secs(50 * 86_400)), u32::MAX);
    }
}
