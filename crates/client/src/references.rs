//! Inodes that the node wants to evict: the user gives up those that it can, and the client reports
//! those that it still references.
//!
//! The user references an inode as soon as it has an answer that names it. Such an answer may have
//! left the node before the query and be in transit, so the client waits for it. The node itself
//! accounts for inodes in later answers.

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

/// Gives up those of these inodes that it can. Completes with the inodes that are referenced at
/// that moment.
pub(crate) type Handler = Rc<dyn Fn(Vec<Ino>) -> PortFuture<'static, Vec<Ino>>>;

#[derive(Default)]
pub(crate) struct ReferenceQueries {
    /// The latest query, with its inodes. The node has given up earlier ones.
    latest: RefCell<Option<(u64, Vec<Ino>)>>,
    changed: Gate,
    handler: RefCell<Option<Handler>>,
    pending: PendingAnswers,
}

/// Requests whose answers name inodes, by the order in which they were sent.
#[derive(Default)]
struct PendingAnswers {
    next: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    ended: Gate,
}

/// One such request, until its user has the answer.
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

    /// Must be dropped in the turn in which the user gets the answer. The user must count the
    /// inodes of the answer before it waits for anything.
    pub(crate) fn awaiting_answer(&self) -> PendingAnswer<'_> {
        let number = self.pending.next.replace(self.pending.next.get() + 1);
        self.pending.under_way.borrow_mut().insert(number);
        PendingAnswer { pending: &self.pending, number }
    }

    /// Waits for the answers to all requests sent before.
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

/// Answers the reference queries of the node.
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

/// How long a query waits for answers in transit.
const PATIENCE: Duration = Duration::from_secs(1);
