//! Evicts names from memory when metadata takes nearly all of its limit: in the least recently used
//! directories, inodes that the bucket fully describes ([`Forgettable`]). They are loaded again on
//! demand.
//!
//! A reloaded inode may get another id, so no client may hold the one that is evicted. Clients are
//! asked to give up inodes, and report those that they hold. Laws:
//! - A client that does not answer holds everything, and so does one that is still to come back.
//! - An inode in an answer since clients were asked is held, even if they report otherwise.
//! - Between the choice of inodes and their eviction no answer contains one of them.
//! - No operation on an evicted inode is under way here: its locks are held, and none of its bytes
//!   are left.

use crate::Node;
use ebb_core::backing::Forgettable;
use ebb_core::state::State;
use ebb_model::*;
use ebb_ports::Signal;
use ebb_store::{Guard, Mode};
use futures_util::future::select;
use futures_util::lock::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Names that are looked at, and so inodes that clients are asked to give up, at one time.
const BATCH: usize = 512;

/// A client that has not answered after this time holds everything.
const PATIENCE: Duration = Duration::from_secs(3);

/// Directories that are remembered as used. Beyond that all of them count as unused.
const MOST_USED: usize = 1 << 16;

/// After so many batches in a row without an eviction most inodes are in use.
const MOST_IN_VAIN: usize = 32;

/// Directories with nothing to evict that are looked at before other tasks have their turn.
const LOOKS_AT_ONCE: usize = 256;

#[derive(Default)]
pub struct Forgetting {
    /// One eviction at a time.
    turn: Mutex<()>,
    /// Directories that were used since they were looked at last.
    used: RefCell<BTreeSet<Ino>>,
    /// The number of the directory that was looked at last.
    hand: Cell<u64>,
    query: RefCell<Option<ReferenceQuery>>,
    queries: Cell<u64>,
    answered: Signal,
}

/// The inodes that clients have been asked to give up.
struct ReferenceQuery {
    number: u64,
    /// Without inodes reported as held.
    inos: BTreeSet<Ino>,
    /// Sessions that have not answered.
    waiting: BTreeSet<SessionId>,
    /// The choice is final.
    is_over: bool,
}

impl Forgetting {
    /// Names of the directory have been used.
    pub fn used(&self, dir: Ino) {
        let mut used = self.used.borrow_mut();
        if used.len() >= MOST_USED {
            used.clear();
        }
        used.insert(dir);
    }

    pub fn answered(&self, session: SessionId, number: u64, held: &BTreeSet<Ino>) {
        if let Some(query) = self.query.borrow_mut().as_mut().filter(|query| query.number == number)
        {
            query.inos.retain(|ino| !held.contains(ino));
            query.waiting.remove(&session);
        }
        self.answered.raise();
    }

    /// Notes the inodes in an answer. False if the answer must not be given: it has an inode that
    /// goes.
    pub fn may_tell(&self, reply: &Reply) -> bool {
        let mut query = self.query.borrow_mut();
        let Some(query) = &mut *query else { return true };
        let told: BTreeSet<Ino> = match reply {
            Reply::Attr(attr) | Reply::LeasedAttr(attr) => BTreeSet::from([attr.ino]),
            Reply::Directory { entries, .. } => entries.iter().map(|(_, attr)| attr.ino).collect(),
            _ => return true,
        };
        if query.is_over {
            return !told.iter().any(|ino| query.inos.contains(ino));
        }
        query.inos.retain(|ino| !told.contains(ino));
        true
    }

    /// The directory after the one that was looked at last, and then the first.
    fn next_directory(&self, state: &State) -> Option<Ino> {
        let after = Ino(self.hand.get().saturating_add(1));
        let mut beyond = state.backing().directories(after);
        let next = beyond.next().or_else(|| state.backing().directories(Ino(0)).next())?;
        self.hand.set(next.0);
        Some(next)
    }

    fn begin(&self, number: u64, inos: &[Ino], waiting: &[SessionId]) {
        let (inos, waiting) = (inos.iter().copied().collect(), waiting.iter().copied().collect());
        *self.query.borrow_mut() = Some(ReferenceQuery { number, inos, waiting, is_over: false });
    }

    fn end(&self) {
        self.query.take();
    }

    /// The inodes that no client is known to hold.
    fn free(&self) -> Vec<Ino> {
        self.query
            .borrow()
            .as_ref()
            .map(|query| query.inos.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Fixes the choice: no later answer contains one of the remaining inodes.
    fn decide(&self, goes: impl Fn(&Ino) -> bool) -> Vec<Ino> {
        let mut query = self.query.borrow_mut();
        let Some(query) = &mut *query else { return Vec::new() };
        query.inos.retain(goes);
        query.is_over = true;
        query.inos.iter().copied().collect()
    }
}

impl Node {
    /// Evicts names until metadata takes less than `bytes`, or all directories have been looked at.
    /// Returns how many.
    pub(crate) async fn forget_until(self: &Rc<Self>, bytes: u64) -> Result<usize, RpcError> {
        let _turn = self.names.forgetting.turn.lock().await;
        let (mut gone, mut in_vain) = (0, 0);
        // Directories used since the last eviction are spared on the first look.
        let looks = 2 * self.replica.view().backing().directory_count();
        for look in 0..looks {
            if self.replica.view().memory_bytes() < bytes
                || in_vain >= MOST_IN_VAIN
                || !self.may_act_by_itself()
            {
                break;
            }
            let Some(dir) = self.names.forgetting.next_directory(&self.replica.view()) else {
                break;
            };
            if !self.names.forgetting.used.borrow_mut().remove(&dir) {
                gone += self.forget_in(dir, bytes, &mut in_vain).await?;
            }
            if look % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1 {
                self.ports.clock.sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(gone)
    }

    /// Whether the node may change its record of the bucket without a request.
    pub(crate) fn may_act_by_itself(&self) -> bool {
        self.buckets.is_some()
            && !self.is_stopping()
            && !self.attachments.awaits_any()
            && !self.has_failed()
            && self.buckets.lost_to().is_none()
    }

    async fn forget_in(
        self: &Rc<Self>,
        dir: Ino,
        bytes: u64,
        in_vain: &mut usize,
    ) -> Result<usize, RpcError> {
        let (mut after, mut all) = (Cookie::START, 0);
        // A client that reads the directory would find its names at other places.
        while !self.attachments.is_open(dir) {
            let Forgettable { mut inos, next } = {
                let state = self.replica.view();
                state.backing().forgettable(state.namespace(), state.extents(), dir, after, BATCH)
            };
            inos.retain(|ino| !self.attachments.is_open(*ino));
            if !inos.is_empty() {
                let gone =
                    if self.query_references(&inos).await { self.forget(dir).await } else { Ok(0) };
                self.names.forgetting.end();
                let gone = gone?;
                all += gone;
                *in_vain = if gone > inos.len() / 8 { 0 } else { *in_vain + 1 };
            }
            match next {
                Some(next)
                    if self.replica.view().memory_bytes() >= bytes && *in_vain < MOST_IN_VAIN =>
                {
                    after = next
                }
                _ => break,
            }
        }
        Ok(all)
    }

    /// Asks clients to give up inodes. False if not all of them have answered.
    async fn query_references(&self, inos: &[Ino]) -> bool {
        let number = self.run.id.wrapping_add(
            self.names.forgetting.queries.replace(self.names.forgetting.queries.get() + 1),
        );
        self.names.forgetting.begin(number, inos, &self.attachments.sessions());
        self.attachments
            .notify_others(None, &Notice::ReferenceQuery { query: number, inos: inos.to_vec() });
        let deadline = self.ports.clock.monotonic() + PATIENCE;
        loop {
            let answered = Box::pin(self.names.forgetting.answered.wait());
            if let Some(query) = &mut *self.names.forgetting.query.borrow_mut() {
                query.waiting.retain(|session| self.attachments.contains(*session));
                if query.waiting.is_empty() {
                    return true;
                }
            }
            let now = self.ports.clock.monotonic();
            if now >= deadline {
                return false;
            }
            select(answered, self.ports.clock.sleep(deadline - now)).await;
        }
    }

    /// Evicts the offered inodes that no client holds. Returns their number.
    async fn forget(self: &Rc<Self>, dir: Ino) -> Result<usize, RpcError> {
        let Some(_loading) = self.names.loads.try_hold(dir, Mode::Exclusive) else { return Ok(0) };
        let mut guards: Vec<Guard<Ino>> = Vec::new();
        let mut free = BTreeSet::new();
        for ino in self.names.forgetting.free() {
            let is_dir = self
                .replica
                .view()
                .namespace()
                .attr(ino)
                .is_ok_and(|attr| attr.kind == FileKind::Directory);
            let latches = if is_dir { &self.names.loads } else { self.data.latches() };
            if let Some(guard) = latches.try_hold(ino, Mode::Exclusive) {
                guards.push(guard);
                free.insert(ino);
            }
        }
        self.drop_clean(&mut free).await?;
        let mut going = Vec::new();
        let proposed = self
            .replica
            .propose(|state| {
                if self.attachments.is_open(dir) || !self.may_act_by_itself() {
                    return Err(RpcError::Retry);
                }
                let extents = state.extents();
                going = self.names.forgetting.decide(|ino| {
                    free.contains(ino)
                        && !self.attachments.is_open(*ino)
                        && !extents.is_stored(*ino)
                        && !extents.is_exposed(*ino)
                });
                if going.is_empty() {
                    Err(RpcError::Retry)
                } else {
                    Ok(Command::Backing(BackingCommand::Forget { dir, inos: going.clone() }))
                }
            })
            .await;
        self.names.forgetting.end();
        let applied = match proposed {
            Ok((_, applied)) => applied,
            Err(RpcError::Retry) => return Ok(0),
            Err(error) => return Err(error),
        };
        // An inode that has changed since the choice stays.
        going.retain(|ino| self.replica.view().namespace().inode(*ino).is_none());
        for ino in going.iter().chain([&dir]) {
            self.names.pages.forget(*ino);
        }
        for ino in &going {
            self.data.forget(*ino);
            self.readahead.forget(*ino);
        }
        drop(guards);
        self.perform_effects(applied, None).await?;
        Ok(going.len())
    }

    /// Drops the bytes of files, which are all in the bucket, with their store files. Files that
    /// are read past the node, or have been changed since the choice, are taken off the list.
    async fn drop_clean(&self, files: &mut BTreeSet<Ino>) -> Result<(), RpcError> {
        let mut dropped = Vec::new();
        for ino in files.clone() {
            if !self.replica.view().extents().is_stored(ino) && !self.store.has_standalone(ino) {
                continue;
            }
            if self.is_exposed(ino) || self.is_in_use(ino).await? {
                files.remove(&ino);
                continue;
            }
            let runs = self.replica.view().extents().resident_runs(ino, 0..u64::MAX);
            for run in runs {
                self.commit_local(LocalCommand::Absent {
                    ino,
                    first: run.start,
                    count: run.end - run.start,
                })
                .await?;
            }
            // Bytes that remain have no other copy.
            if self.replica.view().extents().resident_bytes_of(ino) > 0 {
                files.remove(&ino);
                continue;
            }
            self.vacate(ino).await?;
            dropped.push(ino);
        }
        if dropped.is_empty() {
            return Ok(());
        }
        self.force_log().await?;
        for ino in dropped {
            self.store.drop_file(ino).await.map_err(|error| self.disk_failed(ino, error))?;
        }
        Ok(())
    }
}
