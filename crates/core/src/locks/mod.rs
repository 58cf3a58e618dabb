//! Advisory locks of all sessions, and the queue of waits for them.
//!
//! Laws:
//! - No two parties hold or have reserved conflicting locks on one byte of a file.
//! - The locks of a party change only by its own requests and by the end of its session. A lock
//!   granted to a wait is *reserved*: it excludes other parties, and the party gets it with its
//!   next request. So a client always has the exact locks of its owners.
//! - Waits that can be granted are granted in order of arrival. As in the kernel, a queued wait
//!   never blocks a request that does not conflict with a held lock.
//! - A request executes once per transaction id, as in [`crate::session`].
//!
//! The table is not in the log: a restarted node begins with an empty table, and clients reclaim
//! their locks before any request is served (docs/decisions/0006-locks.md). Leases will follow the
//! same rules of conflict, waiting and reclaim.

mod ranges;
#[cfg(test)]
mod tests;
mod waits;

pub use ranges::Ranges;

use ebb_model::*;
use std::collections::BTreeMap;

/// Locks and waits of all sessions. Laws in the module header.
#[derive(Default, Debug)]
pub struct LockTable {
    files: BTreeMap<Ino, File>,
    sessions: BTreeMap<SessionId, Session>,
    arrivals: u64,
    ended: Vec<(SessionId, u64)>,
}

/// An owner in a session. Locks of one party never conflict with each other.
type Party = (SessionId, LockOwner);

#[derive(Default, Debug)]
struct File {
    held: BTreeMap<Party, OwnerLocks>,
    /// In order of arrival.
    waits: BTreeMap<u64, Wait>,
}

#[derive(Default, Debug)]
struct OwnerLocks {
    /// The process that locked last.
    pid: u32,
    ranges: Ranges,
}

#[derive(Debug)]
struct Wait {
    party: Party,
    id: u64,
    lock: RangeLock,
    keep: bool,
    pid: u32,
    detect: bool,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Queued,
    Reserved,
    /// Its wait would complete a cycle.
    Circle,
}

#[derive(Default, Debug)]
struct Session {
    /// Last sequence and its reply.
    slots: BTreeMap<u16, (u64, Result<LockAnswer, FsError>)>,
    /// By id: the file and the arrival number.
    waits: BTreeMap<u64, (Ino, u64)>,
    locks: usize,
}

impl LockTable {
    /// Executes a request once per transaction.
    pub fn ask(
        &mut self,
        tx: TxId,
        ask: &LockAsk,
        wait: Option<LockWait>,
    ) -> Result<LockAnswer, RpcError> {
        if tx.slot >= LOCK_SLOTS {
            return Err(RpcError::Misordered);
        }
        match self.sessions.entry(tx.session).or_default().slots.get(&tx.slot) {
            Some((sequence, answer)) if *sequence == tx.sequence => {
                return answer.map_err(RpcError::Refused);
            }
            Some((sequence, _)) if *sequence > tx.sequence => return Err(RpcError::Misordered),
            _ => {}
        }
        let answer = self.execute((tx.session, ask.owner), ask, wait);
        self.session(tx.session).slots.insert(tx.slot, (tx.sequence, answer));
        answer.map_err(RpcError::Refused)
    }

    fn execute(
        &mut self,
        party: Party,
        ask: &LockAsk,
        wait: Option<LockWait>,
    ) -> Result<LockAnswer, FsError> {
        let (ino, range) = (ask.ino, ask.range);
        let flock = matches!(ask.owner, LockOwner::Flock(_));
        if flock && range != LockRange::WHOLE {
            return Err(FsError::Invalid);
        }
        let Some(mode) = ask.mode else {
            if self.session(party.0).locks >= LOCKS_PER_SESSION && self.splits(ino, party, range) {
                return Err(FsError::NoLocks);
            }
            let freed = if Planted::UnlockFreesAll.is_on() { LockRange::WHOLE } else { range };
            self.set(ino, party, freed, None);
            self.settle(ino);
            return Ok(LockAnswer::Granted);
        };
        let lock = RangeLock { range, mode };
        if let Some(wait) = wait
            && let Some(arrival) = self.waiting(party, wait.id, ino, lock)?
        {
            return self.conclude(ino, arrival);
        }
        if flock {
            if self
                .locks_of(ino, party)
                .is_some_and(|held| held.ranges.iter().all(|held| held.mode == mode))
            {
                return Ok(LockAnswer::Granted);
            }
            // flock(2): the held lock is released before the new mode is granted, queued or
            // refused.
            self.set(ino, party, range, None);
        } else if self.session(party.0).locks >= LOCKS_PER_SESSION {
            return Err(FsError::NoLocks);
        }
        let is_free = self.blockers(ino, party, lock).next().is_none();
        let answer = match wait {
            _ if is_free => {
                self.grant(ino, party, ask.pid, lock, ask.keep);
                Ok(LockAnswer::Granted)
            }
            None => Err(FsError::WouldBlock),
            Some(wait) => self.enqueue(ino, Wait::new(party, wait, lock, ask)),
        };
        // The party can hold less than before, unless nothing changed.
        if is_free || flock {
            self.settle(ino);
        }
        answer
    }

    /// F_GETLK: the first lock that conflicts with `lock`.
    pub fn test(
        &self,
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        lock: RangeLock,
    ) -> Option<LockConflict> {
        let in_the_way = self.in_the_way(ino, (session, owner), lock);
        let first = in_the_way.min_by_key(|(_, _, held)| held.range.start());
        first.map(|((holder, _), pid, lock)| LockConflict {
            lock,
            pid: if holder == session { pid } else { 0 },
        })
    }

    /// Restores the locks of an owner after the table was lost; all of them, or none if one
    /// conflicts with another party's.
    pub fn reclaim(
        &mut self,
        session: SessionId,
        ino: Ino,
        owner: LockOwner,
        pid: u32,
        locks: &[RangeLock],
    ) -> Result<(), FsError> {
        let party = (session, owner);
        if self.session(session).locks + locks.len() > LOCKS_PER_SESSION + LOCKS_RECLAIMED_AT_ONCE {
            return Err(FsError::NoLocks);
        }
        if locks.iter().any(|lock| self.blockers(ino, party, *lock).next().is_some()) {
            return Err(FsError::WouldBlock);
        }
        for lock in locks {
            self.grant(ino, party, pid, *lock, false);
        }
        Ok(())
    }

    /// Whether the session has made a request.
    pub fn knows(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The session has ended: removes its locks and waits.
    pub fn end(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.ended.retain(|(of, _)| *of != session);
        let mut freed = Vec::new();
        for (ino, file) in &mut self.files {
            let before = file.held.len() + file.waits.len();
            file.held.retain(|party, _| party.0 != session);
            file.waits.retain(|_, wait| wait.party.0 != session);
            if file.held.len() + file.waits.len() < before {
                freed.push(*ino);
            }
        }
        freed.into_iter().for_each(|ino| self.settle(ino));
    }

    /// Descriptions of broken laws; empty unless there is a bug.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (ino, file) in &self.files {
            let held = file
                .held
                .iter()
                .flat_map(|(party, held)| held.ranges.iter().map(|lock| (*party, lock)));
            let reserved = file
                .waits
                .values()
                .filter(|wait| wait.standing == Standing::Reserved)
                .map(|wait| (wait.party, wait.lock));
            let all: Vec<(Party, RangeLock)> = held.chain(reserved).collect();
            for (at, (party, lock)) in all.iter().enumerate() {
                if let Some((other, with)) =
                    all[at..].iter().find(|(other, with)| conflict(*party, *lock, *other, *with))
                {
                    problems.push(format!(
                        "{party:?} has {lock:?} of {ino}, and {other:?} has {with:?}"
                    ));
                }
            }
        }
        for (id, session) in &self.sessions {
            let locks = self
                .files
                .values()
                .flat_map(|file| &file.held)
                .filter(|(party, _)| party.0 == *id)
                .map(|(_, held)| held.ranges.len());
            if locks.sum::<usize>() != session.locks {
                problems.push(format!("{id:?} does not have {} pieces", session.locks));
            }
        }
        problems
    }

    fn session(&mut self, session: SessionId) -> &mut Session {
        self.sessions.entry(session).or_default()
    }

    fn locks_of(&self, ino: Ino, party: Party) -> Option<&OwnerLocks> {
        self.files.get(&ino)?.held.get(&party)
    }

    /// Whether unlocking the range would split a lock in two.
    fn splits(&self, ino: Ino, party: Party, range: LockRange) -> bool {
        let reaches_out =
            |held: RangeLock| held.range.start() < range.start() && held.range.end() > range.end();
        self.locks_of(ino, party)
            .is_some_and(|held| held.ranges.overlapping(range).any(reaches_out))
    }

    fn set(&mut self, ino: Ino, party: Party, range: LockRange, mode: Option<LockMode>) {
        self.change(ino, party, None, |ranges| ranges.set(range, mode));
    }

    fn grant(
        &mut self,
        ino: Ino,
        party: Party,
        pid: u32,
        RangeLock { range, mode }: RangeLock,
        keep: bool,
    ) {
        self.change(ino, party, Some(pid), |ranges| match keep {
            true => ranges.strengthen(range, mode),
            false => ranges.set(range, Some(mode)),
        });
    }

    fn change(
        &mut self,
        ino: Ino,
        party: Party,
        pid: Option<u32>,
        change: impl FnOnce(&mut Ranges),
    ) {
        let file = self.files.entry(ino).or_default();
        let held = file.held.entry(party).or_default();
        let before = held.ranges.len();
        change(&mut held.ranges);
        let after = held.ranges.len();
        held.pid = pid.unwrap_or(held.pid);
        if held.ranges.is_empty() {
            file.held.remove(&party);
        }
        self.forget_if_idle(ino);
        let session = self.session(party.0);
        session.locks = session.locks + after - before;
    }

    /// Parties that block `party` from `lock`; a party can occur several times.
    fn blockers(&self, ino: Ino, party: Party, lock: RangeLock) -> impl Iterator<Item = Party> {
        self.in_the_way(ino, party, lock).map(|(holder, _, _)| holder)
    }

    fn in_the_way(
        &self,
        ino: Ino,
        party: Party,
        lock: RangeLock,
    ) -> impl Iterator<Item = (Party, u32, RangeLock)> {
        let (held, waits) = self.files.get(&ino).map(|file| (&file.held, &file.waits)).unzip();
        let held = held.into_iter().flatten().flat_map(move |(holder, held)| {
            held.ranges.overlapping(lock.range).map(move |with| (*holder, held.pid, with))
        });
        let waits = waits
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|wait| wait.standing == Standing::Reserved);
        let reserved = waits.map(|wait| (wait.party, wait.pid, wait.lock));
        held.chain(reserved).filter(move |(holder, _, with)| conflict(party, lock, *holder, *with))
    }
}

fn conflict(party: Party, lock: RangeLock, other: Party, with: RangeLock) -> bool {
    let one_kind = std::mem::discriminant(&party.1) == std::mem::discriminant(&other.1);
    let excludes = (lock.mode == LockMode::Exclusive && !Planted::SharedLockIgnored.is_on())
        || with.mode == LockMode::Exclusive;
    party != other && one_kind && excludes && lock.range.overlaps(with.range)
}

/// Maximum locks of one session, not counting granted waits: about 100 bytes each.
pub const LOCKS_PER_SESSION: usize = 1 << 18;
