//! A kernel's cache of names and attributes on a mount, as far as leases let it keep them.
//!
//! The kernel serves several programs at once: a hit needs no answer of the client, also while a
//! mutation of another program of the mount is under way.

use super::workload::{Ask, perform};
use crate::oracle::{Op, Outcome};
use crate::{Process, Rng};
use ebb_client::{Change, Client, Leased, NAME_TERM, Recall};
use ebb_model::*;
use ebb_ports::Clock;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The cache of one mount.
#[derive(Clone)]
pub struct KernelCache {
    state: Rc<State>,
}

struct State {
    client: Client,
    clock: Rc<dyn Clock>,
    rng: Rng,
    attrs: RefCell<BTreeMap<Ino, Attr>>,
    names: RefCell<BTreeMap<(Ino, Name), Cached>>,
    /// When the process was last seen to run.
    ran: Cell<Duration>,
    hits: Cell<u64>,
}

/// The inode of a name, if it exists, and the time when the cached name expires.
type Cached = (Option<Ino>, Duration);

impl KernelCache {
    pub fn new(process: &Process, client: &Client, rng: Rng) -> KernelCache {
        let clock = process.ports.clock.clone();
        let state = Rc::new(State {
            client: client.clone(),
            ran: Cell::new(clock.monotonic()),
            clock,
            rng,
            attrs: RefCell::default(),
            names: RefCell::default(),
            hits: Cell::default(),
        });
        let dropping = state.clone();
        client.on_lease_recall(move |recall| {
            let state = dropping.clone();
            Box::pin(async move {
                let slowly = state.rng.duration(Duration::ZERO, SLOWEST_DROP);
                state.clock.sleep(slowly).await;
                match recall {
                    Recall::All => state.attrs.borrow_mut().clear(),
                    Recall::Some { inos, names } => {
                        state.attrs.borrow_mut().retain(|ino, _| !inos.contains(ino));
                        state.names.borrow_mut().retain(|name, _| !names.contains(name));
                    }
                }
            })
        });
        let dropping = state.clone();
        client.on_change(move |change, _| {
            match change {
                Change::All => dropping.clear(),
                Change::Inode(ino) => drop(dropping.attrs.borrow_mut().remove(&ino)),
                Change::Name(dir, name) => drop(dropping.names.borrow_mut().remove(&(dir, name))),
            }
            Box::pin(async {})
        });
        let running = state.clone();
        process.spawn(async move {
            loop {
                running.clock.sleep(TICK).await;
                running.runs();
            }
        });
        KernelCache { state }
    }

    /// Answers given without a request.
    pub fn hits(&self) -> u64 {
        self.state.hits.get()
    }

    /// Operations, answered from the cache or by the client.
    pub fn ask(&self) -> Ask {
        let state = self.state.clone();
        Box::new(move |op| {
            let state = state.clone();
            Box::pin(async move { state.answer(op).await })
        })
    }
}

impl State {
    async fn answer(&self, op: Op) -> Outcome {
        self.runs();
        match op {
            Op::GetAttr { ino } => {
                if let Some(attr) = self.attrs.borrow().get(&ino) {
                    self.hits.set(self.hits.get() + 1);
                    return Outcome::Attr(attr.clone());
                }
                match self.client.getattr_leased(ino).await {
                    Ok(Leased { value, lease }) => {
                        if self.client.may_cache(lease) {
                            self.attrs.borrow_mut().insert(ino, value.clone());
                        }
                        Outcome::Attr(value)
                    }
                    Err(error) => Outcome::Failed(error),
                }
            }
            Op::Lookup { parent, name } => {
                if let Some(outcome) = self.cached(parent, &name) {
                    self.hits.set(self.hits.get() + 1);
                    return outcome;
                }
                match self.client.lookup_leased(parent, &name).await {
                    Ok(Leased { value, lease }) => {
                        if self.client.may_cache_name(lease) {
                            let ino = value.as_ref().map(|attr| attr.ino);
                            let end = self.clock.monotonic() + NAME_TERM;
                            self.names.borrow_mut().insert((parent, name), (ino, end));
                        }
                        if let Some(attr) = value.as_ref().filter(|_| self.client.may_cache(lease))
                        {
                            self.attrs.borrow_mut().insert(attr.ino, attr.clone());
                        }
                        value.map_or(Outcome::Failed(FsError::NotFound), Outcome::Attr)
                    }
                    Err(error) => Outcome::Failed(error),
                }
            }
            Op::Mutate(mutation) => {
                let outcome = perform(&self.client, Op::Mutate(mutation.clone())).await;
                self.changed(&mutation, !matches!(outcome, Outcome::Failed(_)));
                outcome
            }
            op => perform(&self.client, op).await,
        }
    }

    fn cached(&self, parent: Ino, name: &Name) -> Option<Outcome> {
        match *self.names.borrow().get(&(parent, name.clone()))? {
            (_, end) if end <= self.clock.monotonic() => None,
            (None, _) => Some(Outcome::Failed(FsError::NotFound)),
            (Some(ino), _) => self.attrs.borrow().get(&ino).cloned().map(Outcome::Attr),
        }
    }

    /// A program of this mount has made a change.
    fn changed(&self, mutation: &ClientMutation, is_done: bool) {
        let mut attrs = self.attrs.borrow_mut();
        match mutation.changed_names().next() {
            // The inode of the name may be any.
            Some(_) => attrs.clear(),
            None => {
                for ino in mutation.directories().chain(mutation.inode()) {
                    attrs.remove(&ino);
                }
            }
        }
        let dirs: Vec<Ino> = mutation.directories().collect();
        let mut names = self.names.borrow_mut();
        let moved = match mutation {
            ClientMutation::Rename { from, name, to, new_name, mode }
                if is_done && *mode != RenameMode::Exchange =>
            {
                let moved = names.get(&(*from, name.clone())).copied();
                moved.map(|moved| ((*to, new_name.clone()), moved))
            }
            _ => None,
        };
        names.retain(|(dir, _), _| !dirs.contains(dir));
        // The kernel moves the entry, which keeps its time.
        names.extend(moved);
    }

    /// A process that stood still for long was taken for dead: its supervisor has dropped
    /// everything.
    fn runs(&self) {
        let now = self.clock.monotonic();
        if now.saturating_sub(self.ran.replace(now)) > 3 * TICK {
            self.clear();
        }
    }

    fn clear(&self) {
        self.attrs.borrow_mut().clear();
        self.names.borrow_mut().clear();
    }
}

const TICK: Duration = Duration::from_millis(50);

const SLOWEST_DROP: Duration = Duration::from_millis(30);
