//! What others have done to the bucket since a directory was listed (O-55). A directory that is
//! used is listed again once its listing is too old: new names are added, and where an object is
//! another than is known, or not there, it is asked for by itself before anything is believed.
//!
//! Whoever uses a name waits for that. If the bucket does not answer soon, what is known is
//! shown, and nobody waits again before it would have been due.

use crate::Node;
use crate::latches::{Latches, Mode};
use crate::names::listings::LIST_LIMIT;
use crate::names::load::For;
use crate::readahead::traversals::Look;
use ebb_core::backing::{Listing, LoadPlan, Part, Scope};
use ebb_model::*;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long whoever uses a name waits for one answer of the bucket.
const PATIENCE: Duration = Duration::from_secs(5);

/// Objects of one directory that are asked for at one time.
const ASKED_AT_ONCE: usize = 16;

/// With more inodes than this remembered, all of them are forgotten, and asked for again when
/// they are used.
const MOST_ASKED: usize = 100_000;

/// When the bucket was last asked, by the monotonic clock.
#[derive(Default)]
pub struct Revalidation {
    /// For directories, and for files of directories that are too large to be listed for one of
    /// them.
    asked: RefCell<BTreeMap<Ino, Duration>>,
    /// Since the bucket has not answered, nothing is asked before.
    not_before: Cell<Duration>,
    /// One revalidation of an inode at a time.
    turns: Latches<Ino>,
}

impl Revalidation {
    /// What is known of the inode is not older than this.
    pub fn asked_for(&self, ino: Ino, at: Duration) {
        let mut asked = self.asked.borrow_mut();
        if asked.len() >= MOST_ASKED {
            asked.clear();
        }
        asked.insert(ino, at);
    }
}

impl Node {
    /// The name is about to be looked up.
    pub(crate) async fn revalidate_name(self: &Rc<Self>, dir: Ino, name: &Name) {
        if self.revalidates().is_none() {
            return;
        }
        if !self.replica.view().namespace().has_more_names_than(dir, LIST_LIMIT) {
            return self.revalidate_listing(dir, Look::Up).await;
        }
        let known = self.replica.view().namespace().lookup(dir, name).ok();
        match known {
            Some(attr) => self.revalidate_object(dir, name, attr.ino).await,
            None if self.is_complete(dir) => {
                self.settle(Box::pin(self.find_again(dir, name))).await
            }
            None => {}
        }
    }

    /// The directory is about to be used.
    pub(crate) async fn revalidate_listing(self: &Rc<Self>, dir: Ino, look: Look) {
        self.look_into(dir, look);
        let due = || self.is_stale(dir) && self.is_complete(dir);
        if !due() {
            return;
        }
        let _turn = self.revalidation.turns.hold(dir, Mode::Exclusive).await;
        if due() {
            let now = self.ports.clock.monotonic();
            self.settle(Box::pin(self.list_again(dir))).await;
            self.revalidation.asked_for(dir, now);
        }
    }

    /// Whether a directory that the bucket has told of is to be listed once more before it is used,
    /// whatever for, and nobody does that yet.
    pub(crate) fn is_listing_due(&self, dir: Ino) -> bool {
        let state = self.replica.view();
        let is_small = !state.namespace().has_more_names_than(dir, LIST_LIMIT);
        is_small
            && state.backing().is_listed(dir)
            && self.is_stale(dir)
            && !self.revalidation.turns.is_taken(&dir)
    }

    /// Lists a directory again before anybody uses it, unless that is under way. Whether that
    /// succeeds is for who uses it to find out.
    pub(crate) async fn revalidate_ahead(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        let Some(_turn) = self.revalidation.turns.try_hold(dir, Mode::Exclusive) else {
            return Ok(());
        };
        let now = self.ports.clock.monotonic();
        self.list_again(dir).await?;
        self.revalidation.asked_for(dir, now);
        Ok(())
    }

    /// The content or attributes of the inode are about to be used.
    pub(crate) async fn revalidate_file(self: &Rc<Self>, ino: Ino) {
        if self.revalidates().is_none() {
            return;
        }
        let place = self.replica.view().namespace().primary_name(ino);
        let is_file = self
            .replica
            .view()
            .namespace()
            .attr(ino)
            .is_ok_and(|attr| attr.kind == FileKind::Regular);
        if let Some((dir, name)) = place.filter(|_| is_file) {
            self.revalidate_name(dir, &name).await;
        }
    }

    async fn revalidate_object(self: &Rc<Self>, dir: Ino, name: &Name, ino: Ino) {
        if !self.is_stale(ino) {
            return;
        }
        let _turn = self.revalidation.turns.hold(ino, Mode::Exclusive).await;
        if self.is_stale(ino) {
            let now = self.ports.clock.monotonic();
            self.settle(Box::pin(self.confirm(dir, name))).await;
            self.revalidation.asked_for(ino, now);
        }
    }

    /// Half of the time after which others' changes are to be seen: clients may cache what they
    /// are answered for the other half.
    pub(crate) fn revalidates(&self) -> Option<Duration> {
        let interval = self.options.revalidate.filter(|_| self.bucket.is_some())?;
        Some(interval / 2)
    }

    fn is_stale(&self, ino: Ino) -> bool {
        let Some(interval) = self.revalidates() else { return false };
        let now = self.ports.clock.monotonic();
        let fresh = now < self.revalidation.not_before.get()
            || self.revalidation.asked.borrow().get(&ino).is_some_and(|at| now < *at + interval);
        // What a client that is to come back has done is not there yet.
        !fresh && !self.is_stopping() && !self.attachments.awaits_any() && self.lost_to().is_none()
    }

    pub(crate) fn revalidation_rests_until(&self) -> Duration {
        self.revalidation.not_before.get()
    }

    async fn settle(&self, revalidating: impl Future<Output = Result<(), RpcError>>) {
        let what = match revalidating.await {
            Ok(()) => None,
            Err(error) => {
                let interval = self.revalidates().unwrap_or_default();
                self.revalidation.not_before.set(self.ports.clock.monotonic() + interval);
                Some(format!("what others have changed in the bucket cannot be seen: {error}"))
            }
        };
        self.trouble("revalidation", what);
    }

    pub(crate) async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        match select(pin!(asking), pin!(self.ports.clock.sleep(PATIENCE))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(FsError::TimedOut.into()),
        }
    }

    /// Lists the whole of a directory that is complete, and takes on what others have changed.
    pub(crate) async fn list_again(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        self.room_to_load()?;
        let Some((prefix, epoch)) = self.begin_revalidation(dir).await? else { return Ok(()) };
        let mut agreed = BTreeSet::new();
        let mut plan = LoadPlan { prefix, after: None, page_key: None, epoch };
        loop {
            let Part { entries, last, to_probe, .. } =
                self.in_time(self.list_part(dir, &plan, None, For::Listing, |_| None)).await?;
            plan.after = last;
            let mut entries = self.in_time(self.drop_stale(entries)).await?;
            entries.extend(self.in_time(self.probe(to_probe)).await?);
            {
                let _guard = self.loads.hold(dir, Mode::Exclusive).await;
                let progress = if plan.after.is_some() {
                    LoadProgress::Unchanged
                } else {
                    LoadProgress::Complete
                };
                let listing =
                    Listing { dir, entries: &entries, page: None, scope: Scope::Next, after: None };
                if !self.install(listing, epoch, progress).await? {
                    return Ok(());
                }
            }
            let found: Vec<Ino> = {
                let state = self.replica.view();
                entries
                    .iter()
                    .filter_map(|entry| state.backing().agrees(state.namespace(), entry))
                    .collect()
            };
            if found.iter().any(|ino| !self.is_complete(*ino)) {
                self.found_below(dir);
            }
            agreed.extend(found);
            if plan.after.is_none() {
                break;
            }
        }
        let doubtful = {
            let state = self.replica.view();
            state.backing().contradicted(state.namespace(), dir, &agreed)
        };
        let confirmed = stream::iter(&doubtful)
            .map(|name| self.confirm(dir, name))
            .buffer_unordered(ASKED_AT_ONCE);
        let outcomes: Vec<Result<(), RpcError>> = confirmed.collect().await;
        outcomes.into_iter().collect()
    }

    async fn begin_revalidation(&self, dir: Ino) -> Result<Option<(String, u64)>, RpcError> {
        self.commit(Command::Backing(BackingCommand::Revalidating { dir })).await?;
        let state = self.replica.view();
        Ok(state.backing().revalidation_plan(state.namespace(), dir))
    }

    /// Looks for a name that a large directory has not, as far as is known.
    async fn find_again(self: &Rc<Self>, dir: Ino, name: &Name) -> Result<(), RpcError> {
        self.room_to_load()?;
        if self.begin_revalidation(dir).await?.is_none() {
            return Ok(());
        }
        let _guard = self.loads.hold(dir, Mode::Exclusive).await;
        if let Some(found) = self.in_time(self.ask_for_name(dir, name)).await? {
            self.install_name(dir, name, found).await?;
        }
        let found = self.replica.view().namespace().lookup(dir, name);
        if found.is_ok_and(|attr| !self.is_complete(attr.ino)) {
            self.found_below(dir);
        }
        Ok(())
    }
}
