//! Advisory locks: the locks held by the owners of this client, and waits for more.
//!
//! The node keeps locks in memory only, so the client records the held locks and reclaims them when
//! the node has restarted. Its record must therefore never exceed the locks that the node has
//! granted:
//! - Requests of one owner for one file are sent one at a time.
//! - A lock that a request gives up is removed from the record before the request is sent.
//!
//! A wait is no request. It is stored at the node under a number, and the client asks for its
//! outcome when the node reports news. For a successor, the client records the held locks and the
//! owners with a request in progress. The successor asks the node about these owners even if it
//! knows of no lock.

use crate::call::wrong_reply;
use crate::client::{Attachment, Shared};
use crate::gate::Gate;
use crate::handover::{HandoverError, HandoverState, Lock, RecordIndex};
use crate::mutate::Count;
use crate::session::{Slots, Ticket};
use crate::{Client, backoff::Backoff, call::Failure};
use ebb_core::locks::Ranges;
use ebb_model::*;
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

type Party = (Ino, LockOwner);

pub(crate) struct Locks {
    held: RefCell<BTreeMap<Party, OwnerLocks>>,
    /// Parties with a request in progress, and the record of each.
    busy: RefCell<BTreeMap<Party, Option<RecordIndex>>>,
    turn: Gate,
    /// Parties with a request that was in progress when the previous process died.
    unanswered: RefCell<BTreeMap<Party, RecordIndex>>,
    handover: Option<Rc<HandoverState>>,
    /// Of the present session.
    slots: RefCell<Rc<Slots>>,
    /// By number: whether there is news.
    waits: RefCell<BTreeMap<u64, bool>>,
    news: Gate,
    last_wait: Cell<u64>,
    /// The number of node restarts and session ends so far.
    upheavals: Cell<u64>,
    /// The node has restarted and does not yet know which locks are held.
    to_reclaim: Cell<bool>,
}

#[derive(Default)]
struct OwnerLocks {
    /// The process that locked last.
    pid: u32,
    ranges: Ranges,
    /// The record of each range.
    places: BTreeMap<(LockRange, LockMode), RecordIndex>,
}

/// Locks.
impl Client {
    /// fcntl(F_SETLK) and flock(LOCK_NB): takes a lock or gives it up. [`FsError::WouldBlock`] if
    /// another owner has it.
    pub async fn lock(&self, ask: LockAsk) -> Result<(), FsError> {
        self.shared.request_lock(ask, None).await.map(drop)
    }

    /// fcntl(F_SETLKW) and flock(): waits for a lock until it is granted, or `interrupted`
    /// completes. With `detect`, owners that wait for each other get [`FsError::Deadlock`].
    pub async fn lock_waiting(
        &self,
        ask: LockAsk,
        detect: bool,
        interrupted: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let shared = &self.shared;
        let mut wait = Wait::begin(shared)?;
        let mut interrupted = pin!(interrupted);
        loop {
            let generation = shared.generation();
            shared.locks.waits.borrow_mut().insert(wait.id, false);
            if shared.request_lock(ask, Some(LockWait { id: wait.id, detect })).await?
                == LockAnswer::Granted
            {
                wait.is_over = true;
                return Ok(());
            }
            // A client that has attached again may have missed the news.
            let is_anew = || shared.generation() != generation || shared.has_ended();
            let is_news = || shared.locks.waits.borrow().get(&wait.id).copied() != Some(false);
            let news = shared.locks.news.until(|| (is_news() || is_anew()).then_some(()));
            if let Either::Right(_) = select(pin!(news), interrupted.as_mut()).await {
                return Err(FsError::Interrupted);
            }
        }
    }

    /// Gives up all locks that an owner holds on a file. Sends no request if there are none.
    pub async fn unlock_all(&self, ino: Ino, owner: LockOwner) -> Result<(), FsError> {
        if !self.may_hold_lock(ino, owner) {
            return Ok(());
        }
        self.lock(LockAsk { ino, owner, range: LockRange::WHOLE, mode: None, keep: false, pid: 0 })
            .await
    }

    /// Whether an owner may hold a lock of a file.
    pub fn may_hold_lock(&self, ino: Ino, owner: LockOwner) -> bool {
        self.shared.locks.concerns((ino, owner))
    }

    /// fcntl(F_GETLK): the first lock that conflicts with `lock` of an owner. Earlier requests are
    /// settled first, because a program may test right after it has closed a file with a lock.
    pub async fn test_lock(
        &self,
        ino: Ino,
        owner: LockOwner,
        lock: RangeLock,
    ) -> Result<Option<LockConflict>, FsError> {
        self.requests_done(ino).await?;
        match self.shared.ask(|session| Request::TestLock { session, ino, owner, lock }).await? {
            Reply::Conflict(conflict) => Ok(conflict),
            _ => Err(wrong_reply()),
        }
    }

    /// fcntl(F_OFD_GETLK) with F_UNLCK: the first lock that an owner itself has in `range`. Sends
    /// no request.
    pub async fn own_lock(
        &self,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<Option<LockConflict>, FsError> {
        self.requests_done(ino).await?;
        let held = self.shared.locks.held.borrow();
        let own = held
            .get(&(ino, owner))
            .and_then(|held| Some((held.ranges.overlapping(range).next()?, held.pid)));
        Ok(own.map(|(lock, pid)| LockConflict { lock, pid }))
    }

    /// Waits for the requests in progress for a file.
    async fn requests_done(&self, ino: Ino) -> Result<(), FsError> {
        let locks = &self.shared.locks;
        let mut before: Vec<Party> =
            locks.busy.borrow().keys().filter(|(of, _)| *of == ino).copied().collect();
        let over = || {
            before.retain(|party| locks.busy.borrow().contains_key(party));
            before.is_empty().then_some(Ok(()))
        };
        self.shared.within(pin!(locks.turn.until(over))).await
    }
}

impl Shared {
    /// Runs in a task of its own, so that the held locks are known even if the caller gives up.
    async fn request_lock(
        self: &Rc<Shared>,
        ask: LockAsk,
        wait: Option<LockWait>,
    ) -> Result<LockAnswer, FsError> {
        let (answer, outcome) = oneshot::channel();
        let shared = self.clone();
        self.begin(async move {
            let party = (ask.ino, ask.owner);
            let _turn = Turn::take(&shared, party).await;
            let before = shared.locks.overlapping(party, ask.range);
            let result = shared.settle_lock(&ask, &before, wait).await;
            if answer.send(result) == Err(Ok(LockAnswer::Granted)) {
                shared.give_back(&ask, &before).await;
            }
        });
        self.within(pin!(async { outcome.await.unwrap_or(Err(FsError::Io)) })).await
    }

    /// Gives up a lock that was granted after its caller had timed out. The caller does not know
    /// that it holds the lock.
    async fn give_back(self: &Rc<Shared>, ask: &LockAsk, before: &[RangeLock]) {
        let Some(mode) = ask.mode else { return };
        let kept = before
            .iter()
            .filter(|held| held.mode < mode)
            .filter_map(|held| Some((held.range.within(ask.range)?, Some(held.mode))));
        for (range, mode) in
            kept.chain(without(before, ask.range).iter().map(|lock| (lock.range, None)))
        {
            let ask = LockAsk { range, mode, ..*ask };
            let held = self.locks.overlapping((ask.ino, ask.owner), range);
            if let Err(error) = self.settle_lock(&ask, &held, None).await {
                tracing::error!(ino = %ask.ino, %error, "a lock that nobody knows of stays until \
                    its file is closed");
            }
        }
    }

    async fn settle_lock(
        self: &Rc<Shared>,
        ask: &LockAsk,
        before: &[RangeLock],
        wait: Option<LockWait>,
    ) -> Result<LockAnswer, FsError> {
        let party = (ask.ino, ask.owner);
        if let (Some(_), Some(error)) = (ask.mode, self.errors.get(ask.ino)) {
            return Err(error);
        }
        if ask.mode.is_none() && before.is_empty() && !self.locks.is_in_doubt(party) {
            return Ok(LockAnswer::Granted);
        }
        let mut wait = wait;
        if may_be_refused_for_more(ask, before) {
            // The stronger locks are kept until the rest of the range is granted. Otherwise a
            // restart of the node in between would leave the owner with neither.
            if self.drive_lock(&LockAsk { keep: true, ..*ask }, wait.take()).await?
                == LockAnswer::Waiting
            {
                return Ok(LockAnswer::Waiting);
            }
        }
        let upheavals = self.locks.upheavals.get();
        let weaker = self.locks.give_up(ask, before);
        let answer = self.drive_lock(ask, wait).await;
        let stays =
            !matches!(answer, Ok(LockAnswer::Granted)) && matches!(ask.owner, LockOwner::Fcntl(_));
        if stays && weaker && self.locks.upheavals.get() != upheavals {
            tracing::error!(ino = %ask.ino, "a lock that was about to be weakened was lost when \
                the node started anew");
            self.errors.set(ask.ino, FsError::Io);
        } else if stays && weaker {
            self.locks.change(party, LockRange::WHOLE, None, |ranges| {
                before.iter().for_each(|held| ranges.set(held.range, Some(held.mode)))
            });
        }
        answer
    }

    /// Sends one request until its outcome is known, and records the granted lock.
    async fn drive_lock(
        self: &Rc<Shared>,
        ask: &LockAsk,
        wait: Option<LockWait>,
    ) -> Result<LockAnswer, FsError> {
        let mut backoff = Backoff::new();
        let (mut ticket, mut attachment) = self.lock_ticket().await?;
        loop {
            // Until the answer is recorded: see `Shared::quiet`.
            let in_flight = Count::new(self, |shared| &shared.in_flight);
            let request = Request::Lock { tx: ticket.tx, ask: *ask, wait };
            match self.send(request, Some(self.options.request_timeout)).await {
                Ok(Reply::Lock(answer)) => {
                    match (answer, ask.mode) {
                        (LockAnswer::Granted, Some(mode)) => {
                            self.locks.change(
                                (ask.ino, ask.owner),
                                ask.range,
                                Some(ask.pid),
                                |ranges| match ask.keep {
                                    true => ranges.strengthen(ask.range, mode),
                                    false => ranges.set(ask.range, Some(mode)),
                                },
                            );
                        }
                        (LockAnswer::Granted, None) if ask.range == LockRange::WHOLE => {
                            self.locks.settled((ask.ino, ask.owner))
                        }
                        _ => {}
                    }
                    return Ok(answer);
                }
                Ok(_) => return Err(wrong_reply()),
                Err(Failure::Rpc(RpcError::Refused(error))) => return Err(error),
                Err(failure) => {
                    drop(in_flight);
                    self.backoff_or_fail(failure, attachment, &mut backoff).await?;
                }
            }
            attachment = self.attached().await?;
            // The locks of the old session have gone with it.
            if !self.is_current_for_locks(&ticket) {
                if let (Some(_), Some(error)) = (ask.mode, self.errors.get(ask.ino)) {
                    return Err(error);
                }
                (ticket, attachment) = self.lock_ticket().await?;
            }
        }
    }

    async fn lock_ticket(&self) -> Result<(Ticket, Attachment), FsError> {
        loop {
            let slots = self.locks.slots.borrow().clone();
            let ticket = slots.ticket(None, false).await;
            let attachment = self.attached().await?;
            if let Some(ticket) = ticket
                && self.is_current_for_locks(&ticket)
            {
                return Ok((ticket, attachment));
            }
        }
    }

    fn is_current_for_locks(&self, ticket: &Ticket) -> bool {
        Rc::ptr_eq(&ticket.slots, &self.locks.slots.borrow())
    }

    /// The node reports that there is news of a wait.
    pub(crate) fn lock_news(self: &Rc<Shared>, wait: u64) {
        match self.locks.waits.borrow_mut().get_mut(&wait) {
            Some(news) => *news = true,
            // The wait is over, but the node still keeps other owners out.
            None => self.end_wait(wait),
        }
        self.locks.news.changed();
    }

    fn end_wait(self: &Rc<Shared>, wait: u64) {
        let shared = self.clone();
        self.spawn(async move {
            let patience = Some(shared.options.request_timeout);
            if let Err(error) =
                shared.ask_patiently(patience, |session| Request::EndWait { session, wait }).await
            {
                tracing::debug!(%error, "a wait for a lock ends with its session");
            }
        });
    }

    /// The session has ended, and its locks with it. An owner that still relies on a lock gets an
    /// error when it writes. Returns the files.
    pub(crate) fn lose_locks(&self, session: SessionId) -> BTreeSet<Ino> {
        self.locks.slots.replace(Rc::new(Slots::new(session))).end();
        self.locks.upheavals.set(self.locks.upheavals.get() + 1);
        self.locks.to_reclaim.set(false);
        self.locks.unanswered.take();
        let lost: BTreeSet<Ino> = self.locks.held.take().into_keys().map(|(ino, _)| ino).collect();
        for ino in &lost {
            tracing::error!(%ino, "a lock is lost: its session has ended");
            self.errors.set(*ino, FsError::Io);
        }
        lost
    }

    /// A request to the node for each part of the locks to reclaim.
    pub(crate) fn reclaims(&self, session: SessionId) -> Vec<(Party, Request)> {
        let held = self.locks.held.borrow();
        let reclaims = held.iter().flat_map(|((ino, owner), held)| {
            let locks: Vec<RangeLock> = held.ranges.iter().collect();
            let requests: Vec<(Party, Request)> = locks
                .chunks(LOCKS_RECLAIMED_AT_ONCE)
                .map(|locks| {
                    let request = Request::Reclaim {
                        session,
                        ino: *ino,
                        owner: *owner,
                        pid: held.pid,
                        locks: locks.to_vec(),
                    };
                    ((*ino, *owner), request)
                })
                .collect();
            requests
        });
        if self.locks.to_reclaim.get() { reclaims.collect() } else { Vec::new() }
    }

    /// A part could not be reclaimed.
    pub(crate) fn lose_lock(&self, party: Party, request: &Request) {
        if let Request::Reclaim { locks, .. } = request {
            for lock in locks {
                self.locks.change(party, lock.range, None, |ranges| ranges.set(lock.range, None));
            }
        }
        self.errors.set(party.0, FsError::Io);
    }
}

impl Locks {
    /// Starts with the locks of the session that the previous process left, if it can have a
    /// successor.
    pub(crate) fn new(
        session: SessionId,
        handover: Option<Rc<HandoverState>>,
    ) -> Result<Locks, HandoverError> {
        let used_up = handover.as_ref().map_or(0, |handover| handover.generation() << LIFE_SHIFT);
        let locks = Locks {
            held: RefCell::default(),
            busy: RefCell::default(),
            turn: Gate::default(),
            unanswered: RefCell::default(),
            handover,
            slots: RefCell::new(Rc::new(Slots::after(session, used_up))),
            waits: RefCell::default(),
            news: Gate::default(),
            last_wait: Cell::new(used_up),
            upheavals: Cell::new(0),
            to_reclaim: Cell::new(false),
        };
        if let Some(handover) = &locks.handover {
            let left = handover.locks()?;
            let mut all = locks.held.borrow_mut();
            for (place, Lock { ino, owner, lock, pid }) in left {
                let party = (ino, owner);
                let Some(lock) = lock else {
                    if locks.unanswered.borrow_mut().insert(party, place).is_some() {
                        return Err(HandoverError::Damaged("two requests of one owner of locks"));
                    }
                    continue;
                };
                let held = all.entry(party).or_default();
                held.pid = pid;
                // A half-written change leaves a state between the one before it and the one after
                // it.
                held.ranges.strengthen(lock.range, lock.mode);
                if let Some(twice) = held.places.insert((lock.range, lock.mode), place) {
                    handover.clear_lock(twice);
                }
            }
            for (party, held) in &mut *all {
                let written = held.places.keys().copied().collect();
                let is_held = held.pieces_in(LockRange::WHOLE);
                held.write(handover, *party, &written, &is_held);
            }
            drop(all);
        }
        Ok(locks)
    }

    /// The node has restarted and knows of no lock.
    pub(crate) fn forgotten(&self) {
        self.upheavals.set(self.upheavals.get() + 1);
        self.to_reclaim.set(true);
    }

    pub(crate) fn reclaimed(&self) {
        self.to_reclaim.set(false);
    }

    /// Attached again: every wait asks again.
    pub(crate) fn attached(&self) {
        self.news.changed();
    }

    pub(crate) fn end(&self) {
        self.slots.borrow().end();
        self.news.changed();
    }

    /// The party holds a lock, or is about to.
    fn concerns(&self, party: Party) -> bool {
        self.held.borrow().contains_key(&party)
            || self.busy.borrow().contains_key(&party)
            || self.is_in_doubt(party)
    }

    fn is_in_doubt(&self, party: Party) -> bool {
        self.unanswered.borrow().contains_key(&party)
    }

    /// The party holds no lock, as the node has confirmed.
    fn settled(&self, party: Party) {
        if let (Some(place), Some(handover)) =
            (self.unanswered.borrow_mut().remove(&party), &self.handover)
        {
            handover.clear_lock(place);
        }
    }

    /// An owner of this client holds a lock of the file, or is about to.
    pub(crate) fn any_of(&self, ino: Ino) -> bool {
        let all = (ino, LockOwner::Fcntl(0))..=(ino, LockOwner::Flock(u64::MAX));
        self.held.borrow().range(all.clone()).next().is_some()
            || self.busy.borrow().range(all.clone()).next().is_some()
            || self.unanswered.borrow().range(all).next().is_some()
    }

    fn overlapping(&self, party: Party, range: LockRange) -> Vec<RangeLock> {
        self.held
            .borrow()
            .get(&party)
            .map(|held| held.ranges.overlapping(range).collect())
            .unwrap_or_default()
    }

    /// Removes from the record the locks that a request gives up, because its answer may get lost.
    /// True if there were any.
    fn give_up(&self, ask: &LockAsk, before: &[RangeLock]) -> bool {
        let stronger = |held: &RangeLock| match ask.owner {
            LockOwner::Fcntl(_) => Some(held.mode) > ask.mode,
            // flock(2) takes another mode only after it has given up the held one.
            LockOwner::Flock(_) => Some(held.mode) != ask.mode,
        };
        let weaker = before.iter().any(stronger);
        if weaker {
            let mode = if let LockOwner::Flock(_) = ask.owner { None } else { ask.mode };
            self.change((ask.ino, ask.owner), ask.range, None, |ranges| {
                ranges.weaken(ask.range, mode)
            });
        }
        weaker
    }

    /// Changes the locks that a party holds in `range`.
    fn change(
        &self,
        party: Party,
        range: LockRange,
        pid: Option<u32>,
        change: impl FnOnce(&mut Ranges),
    ) {
        let mut all = self.held.borrow_mut();
        let held = all.entry(party).or_default();
        held.pid = pid.unwrap_or(held.pid);
        match &self.handover {
            None => change(&mut held.ranges),
            Some(handover) => {
                let concerned = with_neighbours(range);
                let before = held.pieces_in(concerned);
                change(&mut held.ranges);
                let after = held.pieces_in(concerned);
                held.write(handover, party, &before, &after);
            }
        }
        if held.ranges.is_empty() {
            all.remove(&party);
        }
    }
}

impl OwnerLocks {
    fn pieces_in(&self, range: LockRange) -> BTreeSet<(LockRange, LockMode)> {
        self.ranges.overlapping(range).map(|lock| (lock.range, lock.mode)).collect()
    }

    /// Records the changes: new ranges first, so that no range is missing in between.
    fn write(
        &mut self,
        handover: &HandoverState,
        (ino, owner): Party,
        before: &BTreeSet<(LockRange, LockMode)>,
        after: &BTreeSet<(LockRange, LockMode)>,
    ) {
        for (range, mode) in after.difference(before) {
            let lock = Some(RangeLock { range: *range, mode: *mode });
            if let Some(place) = handover.put_lock(Lock { ino, owner, lock, pid: self.pid }) {
                self.places.insert((*range, *mode), place);
            }
        }
        for lock in before.difference(after) {
            if let Some(place) = self.places.remove(lock) {
                handover.clear_lock(place);
            }
        }
    }
}

/// The range with the bytes on both sides of it, because ranges there may merge with it.
fn with_neighbours(range: LockRange) -> LockRange {
    LockRange::new(
        range.start().saturating_sub(1),
        range.end().saturating_add(1).min(MAX_LOCK_OFFSET),
    )
    .unwrap_or(range)
}

/// A part of the requested range is held in a stronger mode, and a part of it is not held at all.
fn may_be_refused_for_more(ask: &LockAsk, before: &[RangeLock]) -> bool {
    let gives_up = ask.mode.is_some() && before.iter().any(|held| Some(held.mode) > ask.mode);
    gives_up && matches!(ask.owner, LockOwner::Fcntl(_)) && !without(before, ask.range).is_empty()
}

/// The parts of `range` that lie in none of `locks`.
fn without(locks: &[RangeLock], range: LockRange) -> Ranges {
    let mut rest = Ranges::default();
    rest.set(range, Some(LockMode::Shared));
    locks.iter().for_each(|lock| rest.set(lock.range, None));
    rest
}

/// The right to one request of an owner for a file.
struct Turn {
    shared: Rc<Shared>,
    party: Party,
}

impl Turn {
    async fn take(shared: &Rc<Shared>, party: Party) -> Turn {
        let locks = &shared.locks;
        let free = || (!locks.busy.borrow().contains_key(&party)).then_some(());
        locks.turn.until(free).await;
        let (ino, owner) = party;
        let written = locks.handover.as_ref().filter(|_| !locks.is_in_doubt(party));
        let place =
            written.and_then(|handover| handover.put_lock(Lock { ino, owner, lock: None, pid: 0 }));
        locks.busy.borrow_mut().insert(party, place);
        Turn { shared: shared.clone(), party }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let locks = &self.shared.locks;
        let place = locks.busy.borrow_mut().remove(&self.party).flatten();
        if let (Some(place), Some(handover)) = (place, &locks.handover) {
            handover.clear_lock(place);
        }
        locks.turn.changed();
    }
}

/// Each process has 2^40 sequence numbers and wait numbers. Its successor continues after them.
const LIFE_SHIFT: u32 = 40;

/// A wait number that the node may know. Unless the lock was granted, the node is told when the
/// wait is over.
struct Wait {
    shared: Rc<Shared>,
    id: u64,
    is_over: bool,
}

impl Wait {
    fn begin(shared: &Rc<Shared>) -> Result<Wait, FsError> {
        let locks = &shared.locks;
        if locks.waits.borrow().len() >= LOCK_WAITS {
            return Err(FsError::NoLocks);
        }
        let id = locks.last_wait.get() + 1;
        locks.last_wait.set(id);
        Ok(Wait { shared: shared.clone(), id, is_over: false })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.shared.locks.waits.borrow_mut().remove(&self.id);
        if !self.is_over {
            self.shared.end_wait(self.id);
        }
    }
}
