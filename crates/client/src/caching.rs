//! What the client's user may cache, and what it is told when that ends. As long as
//! there are no finer leases the whole volume is one: a sole client caches
//! without term, several cache nothing that others may change unseen (O-49, O-50).

use crate::gate::Gate;
use ebb_model::{Ino, Name};
use ebb_ports::PortFuture;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// What may be cached of what the client answers now. To be asked when an answer is
/// handed on, not before the request: a change of the rule overtakes requests under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheRule {
    /// Names, attributes and pages: what ends it comes as a [`Change`], where names and
    /// attributes have no term ([`crate::Client::cache_term`]).
    Sole,
    /// Names and attributes not at all, and pages only by who asks at every open whether they are
    /// old: time-outs of zero, and direct I/O or close-to-open (O-49, O-50).
    Shared,
}

/// What is to be dropped from caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Every name, attribute and page. The rule may have changed with it.
    All,
    /// Attributes and pages of the inode; if it is a directory, what was listed of it.
    Inode(Ino),
    /// What the name in the directory refers to, also that it is nothing.
    Name(Ino, Name),
}

/// Drops what [`Change`] says and completes when that is done. Requests of the same user
/// are served meanwhile, so it may wait for them.
pub(crate) type Handler = Rc<dyn Fn(Change, CacheRule) -> PortFuture<'static, ()>>;

pub(crate) struct Caching {
    state: Cell<State>,
    /// What was cached under an earlier rule may be there still.
    dropping: Cell<bool>,
    pending: RefCell<Pending>,
    pub(crate) changed: Gate,
    handler: RefCell<Option<Handler>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sole,
    /// Sole when the node was last heard of, which is too long ago to be sure.
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

/// What the task that drops is to do next.
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

    /// Whoever had the session before may have left caches of which nothing is known: nothing is
    /// added to them before they are dropped.
    pub(crate) fn distrust(&self) {
        self.dropping.set(true);
    }

    /// Who is sole again is so once everything has been dropped: others may have been there since.
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

    /// The node has not been heard of for the session's term: others may have been let in.
    pub(crate) fn fence(&self) {
        if self.state.get() == State::Sole {
            self.state.set(State::Fenced);
            self.drop_all();
        }
    }

    /// The node still knows the session, so nobody has been let in.
    pub(crate) fn heard(&self) {
        if self.state.get() == State::Fenced {
            self.state.set(State::Sole);
        }
    }

    /// Attached again. What the node has said of changes on the way to the old connection is lost,
    /// also to whoever is alone now.
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

    /// What was [taken](Caching::take) last has been dropped.
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
