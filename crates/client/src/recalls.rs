//! Inodes that the node wants to forget: the user gives up those that it can, and the node is told
//! which it still holds.
//!
//! The user holds what an answer has told it of from the moment it has the answer. One that left
//! the node before the node asked may be on its way still, and is waited for. What the node answers
//! later it knows by itself.

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

/// Gives up what it can of these inodes. Completes with those that are held, as of that moment.
pub(crate) type Handler = Rc<dyn Fn(Vec<Ino>) -> PortFuture<'static, Vec<Ino>>>;

#[derive(Default)]
pub(crate) struct Recalls {
    /// The last one, with what it asks for. Earlier ones the node has given up.
    asked: RefCell<Option<(u64, Vec<Ino>)>>,
    changed: Gate,
    handler: RefCell<Option<Handler>>,
    findings: Findings,
}

/// Requests whose answers tell of inodes, by the order in which they were sent.
#[derive(Default)]
struct Findings {
    next: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    ended: Gate,
}

/// One of them, until its user has the answer.
pub(crate) struct Finding<'a> {
    findings: &'a Findings,
    number: u64,
}

impl Recalls {
    pub(crate) fn ask(&self, recall: u64, inos: Vec<Ino>) {
        *self.asked.borrow_mut() = Some((recall, inos));
        self.changed.changed();
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        *self.handler.borrow_mut() = Some(handler);
    }

    /// To be dropped in the turn in which the user gets the answer, which must count what it tells
    /// of before it waits for anything.
    pub(crate) fn find(&self) -> Finding<'_> {
        let number = self.findings.next.replace(self.findings.next.get() + 1);
        self.findings.under_way.borrow_mut().insert(number);
        Finding { findings: &self.findings, number }
    }

    /// Waits for what was sent before.
    async fn found(&self) {
        let mark = self.findings.next.get();
        let passed = || {
            self.findings
                .under_way
                .borrow()
                .first()
                .is_none_or(|first| *first >= mark)
                .then_some(())
        };
        self.findings.ended.until(passed).await;
    }
}

impl Drop for Finding<'_> {
    fn drop(&mut self) {
        self.findings.under_way.borrow_mut().remove(&self.number);
        self.findings.ended.changed();
    }
}

/// Answers the node whenever it asks.
pub(crate) async fn answer_recalls(shared: Rc<Shared>) {
    loop {
        let (recall, inos) = shared.recalls.changed.until(|| shared.recalls.asked.take()).await;
        let held = shared.still_held(inos).await;
        let request = |session| Request::Recalled { session, recall, held: held.clone() };
        if let Err(error) =
            shared.ask_patiently(Some(shared.options.request_timeout), request).await
        {
            tracing::debug!(%error, "the node does not take what is held");
        }
    }
}

impl Shared {
    async fn still_held(&self, inos: Vec<Ino>) -> Vec<Ino> {
        let handler = self.recalls.handler.borrow().clone();
        let Some(handler) = handler else { return inos };
        match select(pin!(self.recalls.found()), self.ports.clock.sleep(PATIENCE)).await {
            Either::Left(_) => handler(inos).await,
            Either::Right(_) => inos,
        }
    }
}

/// How long answers under way are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
