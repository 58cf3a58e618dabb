//! The rule for caching by the client's user, and the notices that end it. A sole client caches
//! without term. Several clients cache nothing that another client can change without notice (O-49,
//! O-50): names and attributes under leases ([`crate::Lease`]), nothing else.

use crate::gate::Gate;
use ebb_model::{Ino, Name};
use ebb_ports::PortFuture;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The rule for caching an answer of the client. Ask for it when the answer is passed on, not
/// before the request: a change of the rule can overtake requests in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheRule {
    /// Names, attributes and pages may be cached. A [`Change`] invalidates them where names and
    /// attributes have no term ([`crate::Client::cache_term`]).
    Sole,
    /// Names and attributes may be cached under a [`crate::Lease`] only: else their time-outs are
    /// zero. Pages may be cached only if each open revalidates them: direct I/O or close-to-open
    /// (O-49, O-50).
    Shared,
}

/// Cached data to drop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Every name, attribute and page. The rule may have changed too.
    All,
    /// The attributes and pages of the inode. For a directory also its cached listing.
    Inode(Ino),
    /// The dentry with this name in the directory, also a negative one.
    Name(Ino, Name),
}

/// Drops the data named by a [`Change`] and completes when it is dropped. Requests of the same user
/// are served during that time, so the handler may wait for them.
pub(crate) type Handler = Rc<dyn Fn(Change, CacheRule) -> PortFuture<'static, ()>>;

pub(crate) struct Caching {
    state: Cell<State>,
    /// Data cached under an earlier rule may still exist.
    dropping: Cell<bool>,
    pending: RefCell<Pending>,
    pub(crate) changed: Gate,
    handler: RefCell<Option<Handler>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sole,
    /// The client was sole at the last answer of the node, but that answer is too old to rely on.
    Fenced,
    Shared,
}

#[derive(Default)]
struct Pending {
    all: bool,
    inodes: BTreeSet<Ino>,
    names: BTreeSet<(Ino, Name)>,
    /// The node waits for [`ebb_model::Request::CachesDropped`].
    answer: bool,
}

/// The next work of the task that drops caches.
pub(crate) struct Drops {
    pub(crate) changes: Vec<Change>,
    pub(crate) answer: bool,
}

impl Caching {
    pub(crate) fn new(sole: bool) -> Caching {
        let state = if sole { State::Sole } else { State::Shared };
        Caching {
            state: Cell::new(state),
            dropping: Cell::new(false),
            pending: RefCell::default(),
            changed: Gate::default(),
            handler: RefCell::new(None),
        }
    }

    /// The previous process of the session may have left caches of unknown content. Nothing is
    /// added to them until they are dropped.
    pub(crate) fn distrust(&self) {
        self.dropping.set(true);
    }

    /// A client that is sole again counts as sole only after everything was dropped: another client
    /// may have been attached.
    pub(crate) fn rule(&self) -> CacheRule {
        match self.state.get() {
            State::Sole if !self.dropping.get() => CacheRule::Sole,
            State::Sole | State::Fenced | State::Shared => CacheRule::Shared,
        }
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        *self.handler.borrow_mut() = Some(handler);
        self.changed.changed();
    }

    pub(crate) fn handler(&self) -> Option<Handler> {
        self.handler.borrow().clone()
    }

    /// Another client waits for this one to give up caching.
    pub(crate) fn share(&self) {
        self.state.set(State::Shared);
        let mut pending = self.pending.borrow_mut();
        pending.all = true;
        pending.answer = true;
        drop(pending);
        self.changed.changed();
    }

    /// No answer of the node for the session's term: it may have admitted another client.
    pub(crate) fn fence(&self) {
        if self.state.get() == State::Sole {
            self.state.set(State::Fenced);
            self.drop_all();
        }
    }

    /// The node still knows the session, so it has admitted no other client.
    pub(crate) fn heard(&self) {
        if self.state.get() == State::Fenced {
            self.state.set(State::Sole);
        }
    }

    /// Attached again. Notices of changes sent to the old connection are lost, even if this client
    /// is sole now.
    pub(crate) fn attached(&self, sole: bool) {
        self.state.set(if sole { State::Sole } else { State::Shared });
        self.drop_all();
    }

    pub(crate) fn invalidate(&self, ino: Ino) {
        self.add(|pending| pending.inodes.insert(ino));
    }

    pub(crate) fn relinked(&self, dir: Ino, name: Name) {
        self.add(|pending| pending.names.insert((dir, name)));
    }

    fn add(&self, put: impl FnOnce(&mut Pending) -> bool) {
        let mut pending = self.pending.borrow_mut();
        if pending.inodes.len() + pending.names.len() < MOST_PENDING {
            put(&mut pending);
        } else {
            pending.all = true;
        }
        drop(pending);
        self.changed.changed();
    }

    pub(crate) fn drop_all(&self) {
        self.dropping.set(true);
        self.pending.borrow_mut().all = true;
        self.changed.changed();
    }

    /// The changes [taken](Caching::take) last have been dropped.
    pub(crate) fn dropped(&self) {
        self.dropping.set(self.pending.borrow().all);
    }

    pub(crate) fn take(&self) -> Option<Drops> {
        let Pending { all, inodes, names, answer } = self.pending.take();
        let names = names.into_iter().map(|(dir, name)| Change::Name(dir, name));
        let changes: Vec<Change> = if all {
            vec![Change::All]
        } else {
            inodes.into_iter().map(Change::Inode).chain(names).collect()
        };
        (answer || !changes.is_empty()).then_some(Drops { changes, answer })
    }
}

/// With more inodes and names than this to drop, everything is dropped.
const MOST_PENDING: usize = 4096;
