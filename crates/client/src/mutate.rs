//! Mutations: executed exactly once (O-62, O-63).
//!
//! Each runs in a task of its own, so that it is settled even if its caller gives up: a slot whose
//! outcome is unknown carries no other mutation.

use crate::backoff::Backoff;
use crate::call::{Failure, wrong_reply};
use crate::client::{Attachment, Shared};
use crate::journal::{Operation, Room};
use crate::session::{Requested, Ticket};
use ebb_model::{
    Caller, ClientMutation, FsError, Ino, LogIndex, Mutate, Mutated, Planted, Preceding, Reply,
    Request, RpcError, SessionId, TxId,
};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

/// Mutations asked for and not settled. Beyond this number callers get [`FsError::Busy`]. It is far
/// more than a kernel has in progress, and bounds callers that never wait.
pub const MUTATIONS_UNDER_WAY: usize = 4096;

type Answer = Result<Mutated, FsError>;

impl Shared {
    /// `requested`: the user's request behind the mutation, if it may be repeated.
    pub(crate) async fn mutate(
        self: &Rc<Shared>,
        requested: Option<Rc<Requested>>,
        caller: &Caller,
        mutation: ClientMutation,
    ) -> Answer {
        if self.read_only {
            return Err(FsError::ReadOnly);
        }
        self.may_write(&mutation)?;
        if self.mutations.get() >= MUTATIONS_UNDER_WAY {
            return Err(FsError::Busy);
        }
        let _finding = mutation.names().then(|| self.references.awaiting_answer());
        let counted = Count::new(self, |shared| &shared.mutations);
        let (answer, outcome) = oneshot::channel();
        let shared = self.clone();
        let caller = caller.clone();
        self.begin(async move {
            let _counted = counted;
            shared.settle(requested.as_deref(), &caller, mutation, answer).await;
        });
        self.within(pin!(async { outcome.await.unwrap_or(Err(FsError::Io)) })).await
    }

    async fn settle(
        self: &Rc<Shared>,
        requested: Option<&Requested>,
        caller: &Caller,
        mutation: ClientMutation,
        mut answer: oneshot::Sender<Answer>,
    ) {
        // An earlier process may have sent it.
        let doubt = requested.is_some_and(Requested::is_of_before);
        let result = loop {
            // Nothing has been sent under the id that is drawn here: a caller that gives up now
            // leaves nothing behind.
            let prepared = match select(
                pin!(self.prepare(requested, mutation.brings_bytes())),
                answer.cancellation(),
            )
            .await
            {
                Either::Left((prepared, _)) => prepared,
                Either::Right(_) => return,
            };
            let (ticket, attachment) = match prepared {
                Ok(prepared) => prepared,
                Err(error) => break Err(error),
            };
            // The session may have ended during the wait, and with it the locks under which the
            // mutation was requested.
            if let Err(error) = self.may_write(&mutation) {
                if let Some(requested) = requested.filter(|_| !doubt) {
                    requested.settled(ticket, false);
                }
                break Err(error);
            }
            let outcome = match self.is_current(&ticket) {
                true => self.drive(&ticket, attachment, caller, &mutation, doubt).await,
                false => self.give_up(&mutation, doubt, FsError::Io),
            };
            if let Some(requested) = requested {
                requested.settled(ticket, matches!(outcome, Outcome::Known(Ok(_))));
            }
            match outcome {
                Outcome::Known(result) => break result,
                Outcome::Void => {}
            }
        };
        let made_open = match (mutation.opens(), &result) {
            (true, Ok(mutated)) => mutated.attr.as_ref().map(|attr| attr.ino),
            _ => None,
        };
        if answer.send(result).is_err()
            && let Some(ino) = made_open
        {
            self.close(ino);
        }
    }

    /// An error on the inode prevents every change of its bytes.
    fn may_write(&self, mutation: &ClientMutation) -> Result<(), FsError> {
        match mutation.rewrites().and_then(|ino| self.errors.get(ino)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits for room in the journal, a slot, and a node. A mutation that an earlier process sent
    /// must use its old slot.
    async fn prepare(
        self: &Rc<Shared>,
        requested: Option<&Requested>,
        brings_bytes: bool,
    ) -> Result<(Ticket, Attachment), FsError> {
        self.room().await?;
        loop {
            // A mutation that waits for the node here has sent nothing yet, and leaves nothing to a
            // successor.
            self.attached().await?;
            let slots = self.slots.borrow().clone();
            let ticket = match requested.and_then(Requested::ticket) {
                Some(ticket) => Some(ticket),
                None => slots.ticket(requested.map(Requested::number), brings_bytes).await,
            };
            let attachment = self.attached().await?;
            let of_before = requested.is_some_and(Requested::is_of_before);
            if let Some(ticket) = ticket
                && (of_before || self.is_current(&ticket))
            {
                return Ok((ticket, attachment));
            }
        }
    }

    /// Sends one transaction, under the same id, until its outcome is known (O-59, C-15). `doubt`
    /// means that an earlier process may have sent it.
    async fn drive(
        self: &Rc<Shared>,
        ticket: &Ticket,
        first: Attachment,
        caller: &Caller,
        mutation: &ClientMutation,
        mut doubt: bool,
    ) -> Outcome {
        let mut attachment = first;
        let mut backoff = Backoff::new();
        // A node in this process keeps its answers for as long as the process lives.
        let _in_doubt = (!self.link.is_local())
            .then(|| UnansweredGuard::new(self, ticket.tx, caller, mutation));
        loop {
            let again = doubt && Planted::FreshTransaction.is_on();
            let mutate = Mutate {
                tx: if again { ticket.slots.next(ticket.tx.slot, None) } else { ticket.tx },
                caller: caller.clone(),
                mutation: mutation.clone(),
                replay: None,
            };
            // Until the answer is in the journal: see `Shared::quiet`.
            let in_flight = Count::new(self, |shared| &shared.in_flight);
            match self
                .send(Request::Mutate(Box::new(mutate)), Some(self.options.request_timeout))
                .await
            {
                Ok(Reply::Mutated(mutated, preceding)) => {
                    self.leases.overtaken();
                    self.preceded(&preceding);
                    self.answered(ticket, mutation, &mutated, first == attachment);
                    return Outcome::Known(Ok(*mutated));
                }
                Ok(_) => {
                    self.blame(mutation, None, FsError::Io);
                    return Outcome::Known(Err(wrong_reply()));
                }
                Err(Failure::Rpc(RpcError::Refused(error))) => return Outcome::Known(Err(error)),
                Err(failure) => {
                    drop(in_flight);
                    doubt |= failure.may_have_run()
                        || matches!(failure, Failure::Rpc(RpcError::Misordered));
                    if let Err(error) =
                        self.backoff_or_fail(failure, attachment, &mut backoff).await
                    {
                        return self.give_up(mutation, doubt, error);
                    }
                }
            }
            attachment = match self.attached().await {
                Ok(attachment) => attachment,
                Err(error) => return self.give_up(mutation, doubt, error),
            };
            if !self.is_current(ticket) {
                return match doubt {
                    true => self.give_up(mutation, doubt, FsError::Io),
                    false => Outcome::Void,
                };
            }
        }
    }

    fn answered(
        self: &Rc<Shared>,
        ticket: &Ticket,
        mutation: &ClientMutation,
        mutated: &Mutated,
        at_once: bool,
    ) {
        if mutation.opens()
            && let Some(attr) = &mutated.attr
        {
            // A node that has restarted since need not know any more that the inode is open.
            self.made_open(attr.ino, at_once);
        }
        self.keep(Preceding { tx: ticket.tx, index: mutated.index, replay: mutated.replay });
    }

    /// A mutation that another answer has shown is repeated before that one, even without its own
    /// answer.
    fn preceded(&self, preceding: &[Preceding]) {
        preceding.iter().for_each(|made| self.keep(*made));
    }

    /// Keeps a mutation that had no answer until now and was executed.
    fn keep(&self, made: Preceding) {
        let Preceding { tx, index, replay } = made;
        let Some(Unanswered { caller, mutation, kept_until }) =
            self.unanswered.borrow().get(&tx).cloned()
        else {
            return;
        };
        // A copy was durable when it was answered or shown, and cannot be repeated.
        if !matches!(mutation, ClientMutation::Copy { .. }) {
            let locked = mutation.rewrites().is_some_and(|ino| self.locks.any_of(ino));
            self.journal.keep(Operation {
                tx,
                caller,
                mutation,
                locked,
                replay,
                index,
                kept_until: kept_until.max(index),
            });
        }
    }

    /// The outcome of a mutation in doubt can never be determined. Its caller gets an error, and so
    /// does every sync of the inodes concerned.
    fn give_up(&self, mutation: &ClientMutation, doubt: bool, error: FsError) -> Outcome {
        if doubt {
            tracing::error!("the outcome of an operation stays unknown: its session has ended");
            self.blame(mutation, None, FsError::Io);
        }
        Outcome::Known(Err(error))
    }

    /// Leaves an error on every inode that the mutation concerned.
    pub(crate) fn blame(&self, mutation: &ClientMutation, made: Option<Ino>, error: FsError) {
        if Planted::BlameForgotten.is_on() {
            return;
        }
        for ino in mutation.directories().chain(mutation.inode()).chain(made) {
            self.errors.set(ino, error);
            self.caching.invalidate(ino);
        }
    }

    /// Completes once no answer of an earlier connection is still on its way into the journal.
    pub(crate) async fn quiet(&self) {
        self.idle.until(|| (self.in_flight.get() == 0).then_some(())).await;
    }

    pub(crate) async fn no_mutations(&self) {
        self.idle.until(|| (self.mutations.get() == 0).then_some(())).await;
    }

    /// The session of the ticket is still the client's.
    fn is_current(&self, ticket: &Ticket) -> bool {
        Rc::ptr_eq(&ticket.slots, &self.slots.borrow())
    }

    /// Waits until the journal has room for another operation.
    async fn room(self: &Rc<Shared>) -> Result<(), FsError> {
        match self.journal.room() {
            Room::Plenty => Ok(()),
            Room::Half => {
                self.start_force();
                Ok(())
            }
            Room::Full => {
                self.start_force();
                let journal = &self.journal;
                let looked = || match journal.room() {
                    Room::Full if journal.forcing.get() => None,
                    Room::Full => Some(Err(journal.force_error.get().unwrap_or(FsError::Io))),
                    Room::Half | Room::Plenty => Some(Ok(())),
                };
                journal.room.until(looked).await
            }
        }
    }

    fn start_force(self: &Rc<Shared>) {
        if self.journal.forcing.replace(true) {
            return;
        }
        self.journal.force_error.set(None);
        let shared = self.clone();
        self.spawn(async move {
            if let Err(error) = shared.force(|session| Request::SyncFs { session }).await {
                tracing::error!(%error, "the node could not force what it has answered");
                shared.journal.force_error.set(Some(error));
            }
            shared.journal.forcing.set(false);
            shared.journal.room.changed();
        });
    }

    /// Sends a request to force, [`Request::Fsync`] or [`Request::SyncFs`].
    pub(crate) async fn force(
        &self,
        request: impl Fn(SessionId) -> Request,
    ) -> Result<(), FsError> {
        let (reply, identity) =
            self.ask_with_identity(Some(self.options.request_timeout), request).await?;
        let Reply::Forced { durable } = reply else { return Err(wrong_reply()) };
        // Another incarnation counts from the beginning.
        if self.identity.get().incarnation == identity.incarnation {
            self.journal.durable(durable);
        }
        Ok(())
    }
}

/// The outcome of one transaction.
enum Outcome {
    Known(Answer),
    /// It was not executed, and its session has ended: begin again under another id.
    Void,
}

/// A mutation that was sent and has no answer.
#[derive(Clone)]
pub(crate) struct Unanswered {
    pub(crate) caller: Caller,
    pub(crate) mutation: ClientMutation,
    /// Its bytes were repeated: see [`Operation::kept_until`].
    pub(crate) kept_until: LogIndex,
}

/// Lists a mutation as unanswered until the guard is dropped.
struct UnansweredGuard {
    shared: Rc<Shared>,
    tx: TxId,
}

impl UnansweredGuard {
    fn new(
        shared: &Rc<Shared>,
        tx: TxId,
        caller: &Caller,
        mutation: &ClientMutation,
    ) -> UnansweredGuard {
        let unanswered = Unanswered {
            caller: caller.clone(),
            mutation: mutation.clone(),
            kept_until: LogIndex(0),
        };
        shared.unanswered.borrow_mut().insert(tx, unanswered);
        UnansweredGuard { shared: shared.clone(), tx }
    }
}

impl Drop for UnansweredGuard {
    fn drop(&mut self) {
        self.shared.unanswered.borrow_mut().remove(&self.tx);
    }
}

/// Adds one to a counter of the client until it is dropped.
pub(crate) struct Count {
    shared: Rc<Shared>,
    counter: fn(&Shared) -> &Cell<usize>,
}

impl Count {
    pub(crate) fn new(shared: &Rc<Shared>, counter: fn(&Shared) -> &Cell<usize>) -> Count {
        let cell = counter(shared);
        cell.set(cell.get() + 1);
        Count { shared: shared.clone(), counter }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let cell = (self.counter)(&self.shared);
        cell.set(cell.get() - 1);
        if cell.get() == 0 {
            self.shared.idle.changed();
        }
    }
}
