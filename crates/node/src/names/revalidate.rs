//! Revalidation: finds external changes of the bucket since a directory was listed (O-55). When a
//! used directory's listing is too old, it is listed again: new names are added. An object that
//! differs from the known one, or is missing, is requested by itself before the change counts.
//!
//! A directory listed by an earlier run is listed once more when it is first used, at any interval:
//! a new mount shows the bucket's content.
//!
//! A user of a name waits for that. If the bucket does not answer soon, the known entries are
//! shown, and no user waits again before the next revalidation would have been due.

use crate::Node;
use crate::names::listings::LIST_LIMIT;
use crate::names::load::For;
use crate::readahead::traversals::Look;
use ebb_core::backing::{Listing, LoadPlan, Part, Scope, Shows};
use ebb_model::*;
use ebb_store::{Latches, Mode};
use futures_util::future::{Either, select, try_join};
use futures_util::{StreamExt, stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long a user of a name waits for one answer of the bucket.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long no request is made after that, where no interval is configured.
const REST: Duration = Duration::from_secs(30);

/// The most names of a directory that is listed for one of them, where that is done once in a run.
const MOST_LISTED_ONCE: usize = 100_000;

/// Listings of a directory one after the other until no removed entry blocks an external object in
/// its place.
const MOST_LISTINGS: usize = 3;

/// Objects of one directory that are requested at one time.
const ASKED_AT_ONCE: usize = 16;

/// With more inodes than this remembered, all of them are forgotten, and revalidated again when
/// they are used.
const MOST_ASKED: usize = 100_000;

/// When inodes were last revalidated, by the monotonic clock.
#[derive(Default)]
pub struct Revalidation {
    /// For directories, and for files of directories that are too large to be listed for one of
    /// them.
    asked: RefCell<BTreeMap<Ino, Duration>>,
    /// Directories that an earlier run has listed, and this one has not.
    earlier: RefCell<BTreeSet<Ino>>,
    /// No request is made before this time, since the bucket has not answered.
    not_before: Cell<Duration>,
    /// One revalidation of an inode at a time.
    pub(super) turns: Latches<Ino>,
}

impl Revalidation {
    /// `earlier`: directories that an earlier run has listed.
    pub fn after(earlier: impl Iterator<Item = Ino>) -> Revalidation {
        Revalidation { earlier: RefCell::new(earlier.collect()), ..Revalidation::default() }
    }

    /// No request is made before this time.
    pub fn rests_until(&self) -> Duration {
        self.not_before.get()
    }

    fn is_of_earlier_run(&self, dir: Ino) -> bool {
        self.earlier.borrow().contains(&dir)
    }

    /// The known state of the inode is not older than this.
    pub fn asked_for(&self, ino: Ino, at: Duration) {
        self.earlier.borrow_mut().remove(&ino);
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
        if !self.may_be_stale(dir) {
            return;
        }
        // A directory listed once in a run may be larger than one listed at each interval.
        let most = if self.revalidates().is_some() { LIST_LIMIT } else { MOST_LISTED_ONCE };
        // Of a directory that is listed in part, each name of that part is asked for by itself.
        let is_in_part = !self.is_complete(dir) && !self.is_untouched(dir);
        if !is_in_part && !self.replica.view().namespace().has_more_names_than(dir, most) {
            return self.revalidate_listing(dir, Look::Up).await;
        }
        let known = self.replica.view().namespace().lookup(dir, name).ok();
        match known {
            // All of it has been listed lately.
            _ if !self.is_stale(dir, dir) => {}
            Some(attr) => {
                self.revalidate_object(dir, name, attr.ino).await;
                let is_gone = self.replica.view().namespace().lookup(dir, name).is_err();
                if is_gone {
                    self.settle(Box::pin(self.find_instead(dir, name))).await;
                }
            }
            None if self.is_complete(dir) || self.knows(dir, name) => {
                self.settle(Box::pin(self.find_again(dir, name))).await
            }
            None => {}
        }
    }

    /// The directory is about to be used.
    pub(crate) async fn revalidate_listing(self: &Rc<Self>, dir: Ino, look: Look) {
        self.look_into(dir, look);
        let due = || self.is_stale(dir, dir) && self.is_complete(dir);
        if !due() {
            return;
        }
        let _turn = self.names.revalidation.turns.hold(dir, Mode::Exclusive).await;
        if due() {
            let now = self.ports.clock.monotonic();
            self.settle(Box::pin(self.list_again(dir))).await;
            self.names.revalidation.asked_for(dir, now);
        }
    }

    /// Whether a directory that was listed from the bucket must be listed once more before any use,
    /// and no task does that yet.
    pub(crate) fn is_listing_due(&self, dir: Ino) -> bool {
        let state = self.replica.view();
        let is_small = !state.namespace().has_more_names_than(dir, LIST_LIMIT);
        is_small
            && state.backing().is_listed(dir)
            && self.is_stale(dir, dir)
            && !self.names.revalidation.turns.is_taken(&dir)
    }

    /// Lists a directory again before it is used, unless that is under way. The later user finds
    /// out whether that has succeeded.
    pub(crate) async fn revalidate_ahead(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        let Some(_turn) = self.names.revalidation.turns.try_hold(dir, Mode::Exclusive) else {
            return Ok(());
        };
        let now = self.ports.clock.monotonic();
        self.list_again(dir).await?;
        self.names.revalidation.asked_for(dir, now);
        Ok(())
    }

    /// The content or attributes of the inode are about to be used.
    pub(crate) async fn revalidate_file(self: &Rc<Self>, ino: Ino) {
        if self.revalidates().is_none() && self.names.revalidation.earlier.borrow().is_empty() {
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
        if !self.is_stale(ino, dir) {
            return;
        }
        let _turn = self.names.revalidation.turns.hold(ino, Mode::Exclusive).await;
        if self.is_stale(ino, dir) {
            let now = self.ports.clock.monotonic();
            self.settle(Box::pin(self.confirm(dir, name))).await;
            self.names.revalidation.asked_for(ino, now);
        }
    }

    /// Half of the time after which external changes must be seen: clients may cache answers for
    /// the other half.
    pub(crate) fn revalidates(&self) -> Option<Duration> {
        let interval = self.options.revalidate.filter(|_| self.buckets.is_some())?;
        Some(interval / 2)
    }

    /// Lists a directory again that an earlier run has listed, and this one has not.
    pub(crate) async fn revalidate_once(self: &Rc<Self>, dir: Ino) {
        if self.names.revalidation.is_of_earlier_run(dir) {
            self.revalidate_listing(dir, Look::Up).await;
        }
    }

    /// The same, for a caller that needs the bucket's answer.
    pub(crate) async fn list_of_earlier_run(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        let is_due = || self.names.revalidation.is_of_earlier_run(dir);
        if !is_due() {
            return Ok(());
        }
        let _turn = self.names.revalidation.turns.hold(dir, Mode::Exclusive).await;
        if is_due() {
            let now = self.ports.clock.monotonic();
            Box::pin(self.list_again(dir)).await?;
            self.names.revalidation.asked_for(dir, now);
        }
        Ok(())
    }

    fn may_be_stale(&self, dir: Ino) -> bool {
        self.revalidates().is_some() || self.names.revalidation.is_of_earlier_run(dir)
    }

    /// `dir`: the inode itself if it is a directory, or else its parent.
    fn is_stale(&self, ino: Ino, dir: Ino) -> bool {
        let asked = self.names.revalidation.asked.borrow().get(&ino).copied();
        let now = self.ports.clock.monotonic();
        let is_old = match (asked, self.revalidates()) {
            (Some(at), Some(interval)) => now >= at + interval,
            (Some(_), None) => false,
            (None, Some(_)) => true,
            (None, None) => {
                self.buckets.is_some() && self.names.revalidation.is_of_earlier_run(dir)
            }
        };
        let fresh = !is_old || now < self.names.revalidation.not_before.get();
        // Operations of a client that has yet to come back are not there yet.
        !fresh
            && !self.is_stopping()
            && !self.attachments.awaits_sole()
            && self.buckets.lost_to().is_none()
    }

    async fn settle(&self, revalidating: impl Future<Output = Result<(), RpcError>>) {
        let what = match revalidating.await {
            Ok(()) => None,
            Err(error) => {
                let interval = self.revalidates().unwrap_or(REST);
                self.names.revalidation.not_before.set(self.ports.clock.monotonic() + interval);
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

    /// Lists the whole of a directory that is complete, and applies external changes.
    pub(crate) async fn list_again(self: &Rc<Self>, dir: Ino) -> Result<(), RpcError> {
        // An object with the name of another entry is added once that entry is known to be gone.
        for _ in 0..MOST_LISTINGS {
            if !self.list_once_more(dir).await? {
                break;
            }
        }
        Ok(())
    }

    /// True if an entry blocked an object that is there, and no longer does.
    async fn list_once_more(self: &Rc<Self>, dir: Ino) -> Result<bool, RpcError> {
        self.room_to_load()?;
        let Some((prefix, epoch)) = self.begin_revalidation(dir).await? else { return Ok(false) };
        let mut unknown = Vec::new();
        let mut agreed = BTreeSet::new();
        let mut plan = LoadPlan { prefix, after: None, page_key: None, epoch };
        loop {
            let Part { entries, last, to_probe, .. } =
                self.in_time(self.list_part(dir, &plan, None, For::Listing, |_| None)).await?;
            plan.after = last;
            let mut entries = self.in_time(self.drop_stale(entries)).await?;
            entries.extend(self.in_time(self.probe(to_probe)).await?);
            {
                let _guard = self.names.loads.hold(dir, Mode::Exclusive).await;
                let progress = if plan.after.is_some() {
                    LoadProgress::Unchanged
                } else {
                    LoadProgress::Complete
                };
                let listing =
                    Listing { dir, entries: &entries, page: None, scope: Scope::Next, after: None };
                if !self.install(listing, epoch, progress).await?.current {
                    return Ok(false);
                }
            }
            let mut found = Vec::new();
            {
                let state = self.replica.view();
                for entry in entries {
                    match state.backing().agrees(state.namespace(), &entry) {
                        Some(ino) => found.push(ino),
                        None => unknown.push(entry),
                    }
                }
            }
            if found.iter().any(|ino| !self.is_complete(*ino)) {
                self.names.quotas.found_below(self.replica.view().namespace(), dir);
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
        outcomes.into_iter().collect::<Result<(), RpcError>>()?;
        let (mut not_shown, mut is_free) = (Vec::new(), false);
        {
            let state = self.replica.view();
            for entry in unknown {
                match state.backing().shows(state.namespace(), dir, &entry) {
                    Shows::Otherwise => {}
                    Shows::NotYet => is_free = true,
                    Shows::Nowhere => not_shown.push(entry.key().to_owned()),
                }
            }
        }
        self.names.not_shown.found(dir, true, &not_shown, self.ports.clock.wall());
        Ok(is_free)
    }

    /// Looks for an external object in the place of a vanished name of a large directory.
    async fn find_instead(self: &Rc<Self>, dir: Ino, name: &Name) -> Result<(), RpcError> {
        Box::pin(self.find_again(dir, name)).await?;
        let (is_found, prefix) = {
            let state = self.replica.view();
            let found = state.namespace().lookup(dir, name).is_ok();
            (found, state.backing().prefix_for(state.namespace(), dir, name))
        };
        let Some(prefix) = prefix.filter(|_| !is_found) else { return Ok(()) };
        // While a listing may add names, missing ones are kept out of it. A whole one ends that.
        let object = self.ask_for_object(prefix[..prefix.len() - 1].to_owned());
        let (below, object) =
            self.in_time(try_join(self.probe(vec![prefix.clone()]), object)).await?;
        match below.is_empty() && object.is_none() {
            true => Ok(()),
            false => Box::pin(self.list_again(dir)).await,
        }
    }

    async fn begin_revalidation(&self, dir: Ino) -> Result<Option<(String, u64)>, RpcError> {
        self.commit(Command::Backing(BackingCommand::Revalidating { dir })).await?;
        let state = self.replica.view();
        Ok(state.backing().revalidation_plan(state.namespace(), dir))
    }

    /// Looks for a name that a large directory is not known to have.
    async fn find_again(self: &Rc<Self>, dir: Ino, name: &Name) -> Result<(), RpcError> {
        self.room_to_load()?;
        // A listing that is not at its end can add names as it is.
        if self.is_complete(dir) && self.begin_revalidation(dir).await?.is_none() {
            return Ok(());
        }
        let _guard = self.names.loads.hold(dir, Mode::Exclusive).await;
        if let Some(found) = self.in_time(self.ask_for_name(dir, name)).await? {
            self.install_name(dir, name, found).await?;
        }
        let found = self.replica.view().namespace().lookup(dir, name);
        if found.is_ok_and(|attr| !self.is_complete(attr.ino)) {
            self.names.quotas.found_below(self.replica.view().namespace(), dir);
        }
        Ok(())
    }
}
