//! Inodes that the node wants to forget: the user gives up those that it can, and the node is told
//! which it still holds.
//!
//! The user holds what an answer has told it of from the moment it has the answer. One that left
//! the node before the node asked may be on its way still, and is waited for. What the node
//! answers later it knows by itself.

use crate::client::Shared;
use crate::gate::Gate;
use ebb_model::{Ino, Request};
use ebb_ports::PortFuture;
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Gives up what it can of these inodes. Completes with those that are referenced, as of that
/// moment.
pub(crate) type Handler = Rc<dyn Fn(Vec<Ino>) -> PortFuture<'static, Vec<Ino>>>;

#[derive(Default)]
pub(crate) struct ReferenceQueries {
    /// The last one, with what it asks for. Earlier ones the node has given up.
    latest: RefCell<Option<(u64, Vec<Ino>)>>,
    changed: Gate,
    handler: RefCell<Option<Handler>>,
    pending: PendingAnswers,
}

/// Requests whose answers tell of inodes, by the order in which they were sent.
#[derive(Default)]
struct PendingAnswers {
    next: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    ended: Gate,
}

/// One of them, until its user has the answer.
pub(crate) struct PendingAnswer<'a> {
    pending: &'a PendingAnswers,
    number: u64,
}

impl ReferenceQueries {
    pub(crate) fn ask(&self, query: u64, inos: Vec<Ino>) {
        *self.latest.borrow_mut() = Some((query, inos));
        self.changed.changed();
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        *self.handler.borrow_mut() = Some(handler);
    }

    /// To be dropped in the turn in which the user gets the answer, which must count what it tells
    /// of before it waits for anything.
    pub(crate) fn awaiting_answer(&self) -> PendingAnswer<'_> {
        let number = self.pending.next.replace(self.pending.next.get() + 1);
        self.pending.under_way.borrow_mut().insert(number);
        PendingAnswer { pending: &self.pending, number }
    }

    /// Waits for what was sent before.
    async fn found(&self) {
        let mark = self.pending.next.get();
        let passed = || {
            self.pending.under_way.borrow().first().is_none_or(|first| *first >= mark).then_some(())
        };
        self.pending.ended.until(passed).await;
    }
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.pending.under_way.borrow_mut().remove(&self.number);
        self.pending.ended.changed();
    }
}

/// Answers the node whenever it asks.
pub(crate) async fn answer_reference_queries(shared: Rc<Shared>) {
    loop {
        let (query, inos) =
            shared.references.changed.until(|| shared.references.latest.take()).await;
        let referenced = shared.still_held(inos).await;
        let request = |session| Request::ReferenceQueryReply {
            session,
            query,
            referenced: referenced.clone(),
        };
        if let Err(error) =
            shared.ask_patiently(Some(shared.options.request_timeout), request).await
        {
            tracing::debug!(%error, "the node does not take what is referenced");
        }
    }
}

impl Shared {
    async fn still_held(&self, inos: Vec<Ino>) -> Vec<Ino> {
        let handler = self.references.handler.borrow().clone();
        let Some(handler) = handler else { return inos };
        match select(pin!(self.references.found()), self.ports.clock.sleep(PATIENCE)).await {
            Either::Left(_) => handler(inos).await,
            Either::Right(_) => inos,
        }
    }
}

/// How long answers under way are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
