//! Advisory locks of clients: fcntl(2) and flock(2). The core decides on conflicts and on the order
//! of the waiters. This module decides when the core may be asked.
//!
//! The table is of this run. After a restart clients reclaim their locks before any new lock is
//! granted. So the set of clients that may reclaim must be known for certain, and the end of a
//! session is forced before its locks are granted to another one.

use crate::Node;
use ebb_model::*;

impl Node {
    pub(crate) fn lock(
        &self,
        tx: TxId,
        ask: &LockAsk,
        wait: Option<LockWait>,
    ) -> Result<Reply, RpcError> {
        self.expect_to_stay(tx.session)?;
        // An unlock is always possible.
        if ask.mode.is_some() {
            if self.attachments.awaits_any() {
                return Err(RpcError::Retry);
            }
            self.replica.view().namespace().attr(ask.ino)?;
        }
        let answer = self.locks.borrow_mut().ask(tx, ask, wait);
        self.tell_of_locks();
        answer.map(Reply::Lock)
    }

    pub(crate) fn end_wait(&self, session: SessionId, wait: u64) -> Result<Reply, RpcError> {
        self.expect_to_stay(session)?;
        self.locks.borrow_mut().end_wait(session, wait);
        self.tell_of_locks();
        Ok(Reply::Done)
    }

    /// All waiting threads of the session have died.
    pub(crate) fn end_waits(&self, session: SessionId) {
        self.locks.borrow_mut().end_waits(session);
        self.tell_of_locks();
    }

    pub(crate) fn test_lock(
        &self,
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        lock: RangeLock,
    ) -> Result<Reply, RpcError> {
        self.expect_to_stay(session)?;
        if self.attachments.awaits_any() {
            return Err(RpcError::Retry);
        }
        Ok(Reply::Conflict(self.locks.borrow().test(session, ino, owner, lock)))
    }

    pub(crate) fn reclaim(
        &self,
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        pid: u32,
        locks: &[RangeLock],
    ) -> Result<Reply, RpcError> {
        self.expect_to_stay(session)?;
        if !self.attachments.awaits(session) {
            return Err(FsError::Stale.into());
        }
        if locks.len() > LOCKS_RECLAIMED_AT_ONCE {
            return Err(FsError::Invalid.into());
        }
        self.replica.view().namespace().attr(ino)?;
        self.locks.borrow_mut().reclaim(session, ino, owner, pid, locks)?;
        Ok(Reply::Done)
    }

    /// Grants the locks of a finally ended session to the waiters.
    pub(crate) fn free_locks(&self, session: SessionId) {
        self.locks.borrow_mut().end(session);
        self.tell_of_locks();
    }

    /// The session uses a new connection: notices about its waits may be lost with the old one, and
    /// are sent again.
    pub(crate) fn tell_again_of_locks(&self, session: SessionId) {
        for wait in self.locks.borrow().ended_waits(session) {
            self.attachments.notify(session, Notice::Lock { wait });
        }
    }

    fn tell_of_locks(&self) {
        for (session, wait) in self.locks.borrow_mut().take_ended() {
            self.attachments.notify(session, Notice::Lock { wait });
        }
    }

    /// A lock granted to a session that is about to end would be taken from it at once.
    fn expect_to_stay(&self, session: SessionId) -> Result<(), RpcError> {
        match self.attachments.contains(session) {
            true if self.attachments.is_ending(session) => Err(RpcError::Retry),
            true => Ok(()),
            false => Err(RpcError::SessionExpired),
        }
    }
}
