//! Leases: which answers the user may cache although other clients are attached (O-48).
//!
//! Laws:
//! - An answer is cached under a lease only if, since its request was sent, no recall has come, no
//!   own change was answered, and the leases have not ended. A recall can overtake the answer that
//!   grants the lease.
//! - A recall is answered when caches have dropped it. That waits for no request of the user and
//!   for no other invalidation.
//! - Leases end by themselves before the node takes this client for silent. Then, and after each
//!   attach, nothing is cached before everything is dropped and returned.

use crate::gate::Gate;
use ebb_model::{Ino, Name, Planted};
use ebb_ports::PortFuture;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// How long a name may be cached under a lease. A cache that cannot drop it waits for that time.
pub const NAME_TERM: Duration = Duration::from_secs(1);

/// The right to cache an answer. Use it when the answer is passed on to a cache, with
/// [`crate::Client::may_cache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// The number of events that end leases when the request was sent. `None`: there is no lease.
    granted_at: Option<u64>,
}

/// An answer, and the right to cache it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leased<T> {
    pub value: T,
    pub lease: Lease,
}

/// The subjects that caches must drop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recall {
    /// The attributes of these inodes, and these names in directories.
    Some { inos: Vec<Ino>, names: Vec<(Ino, Name)> },
    /// Everything that is cached under leases, also by an earlier process. Names end by themselves.
    All,
}

/// Drops the subjects of a recall, and completes when they are dropped.
pub(crate) type Handler = Rc<dyn Fn(Recall) -> PortFuture<'static, ()>>;

#[derive(Default)]
pub(crate) struct Leases {
    term: Cell<Duration>,
    /// Events that end leases so far.
    events: Cell<u64>,
    /// The node has granted a lease since all were returned last.
    granted: Cell<bool>,
    /// All leases have ended, and the node has yet to take them back.
    ended: Cell<bool>,
    /// Until then a name may still be cached.
    names_until: Cell<Duration>,
    /// With the numbers of the node.
    pending: RefCell<VecDeque<(u64, Recall)>>,
    handler: RefCell<Option<Handler>>,
    changed: Gate,
}

impl Leases {
    pub(crate) fn set_term(&self, term: Duration) {
        self.term.set(term);
    }

    /// Zero if the node grants no leases.
    pub(crate) fn term(&self) -> Duration {
        self.term.get()
    }

    /// The lease of an answer to a request that is sent now.
    pub(crate) fn requested(&self) -> Lease {
        Lease { granted_at: Some(self.events.get()) }
    }

    /// The node has answered with a lease.
    pub(crate) fn granted(&self) {
        self.granted.set(true);
    }

    /// Whether nothing has ended the lease but perhaps its term.
    pub(crate) fn stands(&self, lease: Lease) -> bool {
        let is_latest = lease.granted_at == Some(self.events.get())
            || Planted::OvertakenCached.is_on() && lease.granted_at.is_some();
        is_latest && !self.ended.get() && self.handler.borrow().is_some()
    }

    /// Answers in flight may be older than the news that has come now.
    pub(crate) fn overtaken(&self) {
        self.events.set(self.events.get() + 1);
    }

    /// All leases end.
    pub(crate) fn end(&self) {
        self.overtaken();
        self.ended.set(true);
        self.pending.borrow_mut().clear();
        self.changed.changed();
    }

    /// As [`Leases::end`], where names may be cached until this time.
    pub(crate) fn end_before(&self, names_until: Duration) {
        self.names_until.set(names_until);
        self.end();
    }

    pub(crate) fn names_until(&self) -> Duration {
        self.names_until.get()
    }

    /// As [`Leases::end`], if there may be one.
    pub(crate) fn expire(&self) {
        if self.granted.get() && !self.ended.get() {
            self.end();
        }
    }

    /// The node has taken all leases back that it had granted before.
    pub(crate) fn all_returned(&self) {
        self.overtaken();
        self.granted.set(false);
        self.ended.set(false);
    }

    pub(crate) fn recall(&self, number: u64, recall: Recall) {
        self.overtaken();
        self.pending.borrow_mut().push_back((number, recall));
        self.changed.changed();
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        *self.handler.borrow_mut() = Some(handler);
        self.changed.changed();
    }

    pub(crate) fn handler(&self) -> Option<Handler> {
        self.handler.borrow().clone()
    }

    /// Waits until there is a handler.
    pub(crate) async fn handled(&self) {
        self.changed.until(|| self.handler().map(drop)).await;
    }

    /// The next recall, with its number. [`Recall::All`] has none.
    pub(crate) async fn next(&self) -> (Option<u64>, Recall) {
        self.changed
            .until(|| match self.ended.get() {
                true => Some((None, Recall::All)),
                false => {
                    let (number, recall) = self.pending.borrow_mut().pop_front()?;
                    Some((Some(number), recall))
                }
            })
            .await
    }
}
