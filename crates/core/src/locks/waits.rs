//! Waits for locks: queueing, detection of cycles, completion.

use super::*;
use std::collections::BTreeSet;

impl Wait {
    pub(super) fn new(party: Party, wait: LockWait, lock: RangeLock, ask: &LockAsk) -> Wait {
        // A flock(2) lock belongs to no process that could wait, so cycles are not detected.
        let detect = wait.detect && matches!(party.1, LockOwner::Fcntl(_));
        Wait {
            party,
            id: wait.id,
            lock,
            keep: ask.keep,
            pid: ask.pid,
            detect,
            standing: Standing::Queued,
        }
    }
}

impl LockTable {
    /// Waits that have ended since the last call: the client must repeat each request.
    pub fn take_ended(&mut self) -> Vec<(SessionId, u64)> {
        std::mem::take(&mut self.ended)
    }

    /// Ended waits of a session whose requests were not repeated yet.
    pub fn ended_waits(&self, session: SessionId) -> Vec<u64> {
        let waits = self.sessions.get(&session).into_iter().flat_map(|session| &session.waits);
        let ended = |(ino, arrival): &(Ino, u64)| {
            self.files[ino].waits[arrival].standing != Standing::Queued
        };
        waits.filter(|(_, at)| ended(at)).map(|(id, _)| *id).collect()
    }

    /// Removes a wait.
    pub fn end_wait(&mut self, session: SessionId, wait: u64) {
        let known =
            self.sessions.get(&session).and_then(|session| session.waits.get(&wait)).copied();
        if let Some((ino, arrival)) = known {
            self.remove_wait(ino, arrival);
            self.settle(ino);
        }
    }

    /// Removes all waits of a session.
    pub fn end_waits(&mut self, session: SessionId) {
        let waits: Vec<u64> = self
            .sessions
            .get(&session)
            .into_iter()
            .flat_map(|session| session.waits.keys().copied())
            .collect();
        waits.into_iter().for_each(|wait| self.end_wait(session, wait));
    }

    /// Arrival number of a repeated wait.
    pub(super) fn waiting(
        &self,
        party: Party,
        id: u64,
        ino: Ino,
        lock: RangeLock,
    ) -> Result<Option<u64>, FsError> {
        let Some((of, arrival)) =
            self.sessions.get(&party.0).and_then(|session| session.waits.get(&id))
        else {
            return Ok(None);
        };
        let wait = &self.files[of].waits[arrival];
        // A wait id belongs to one lock.
        if (*of, wait.party, wait.lock) == (ino, party, lock) {
            Ok(Some(*arrival))
        } else {
            Err(FsError::Invalid)
        }
    }

    pub(super) fn enqueue(&mut self, ino: Ino, wait: Wait) -> Result<LockAnswer, FsError> {
        if self.session(wait.party.0).waits.len() >= LOCK_WAITS {
            return Err(FsError::NoLocks);
        }
        if wait.detect && self.is_circle(ino, &wait) {
            return Err(FsError::Deadlock);
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.session(wait.party.0).waits.insert(wait.id, (ino, arrival));
        self.files.entry(ino).or_default().waits.insert(arrival, wait);
        Ok(LockAnswer::Waiting)
    }

    /// Progress of a wait; an ended wait is removed and its result returned.
    pub(super) fn conclude(&mut self, ino: Ino, arrival: u64) -> Result<LockAnswer, FsError> {
        let Wait { party, lock, keep, pid, standing, .. } = self.files[&ino].waits[&arrival];
        match standing {
            Standing::Queued => Ok(LockAnswer::Waiting),
            Standing::Circle => {
                self.remove_wait(ino, arrival);
                Err(FsError::Deadlock)
            }
            Standing::Reserved => {
                self.remove_wait(ino, arrival);
                self.grant(ino, party, pid, lock, keep);
                // The party can hold less than before.
                self.settle(ino);
                Ok(LockAnswer::Granted)
            }
        }
    }

    /// Grants waits for locks of a file, after some of it can have become free.
    pub(super) fn settle(&mut self, ino: Ino) {
        let Some(file) = self.files.get(&ino) else { return };
        let queued: Vec<u64> = file
            .waits
            .iter()
            .filter(|(_, wait)| wait.standing == Standing::Queued)
            .map(|(arrival, _)| *arrival)
            .collect();
        for arrival in queued {
            let wait = &self.files[&ino].waits[&arrival];
            let standing = match self.blockers(ino, wait.party, wait.lock).next() {
                None => Standing::Reserved,
                // Other parties can block it now than at its arrival.
                Some(_) if wait.detect && self.is_circle(ino, wait) => Standing::Circle,
                Some(_) => continue,
            };
            self.ended.push((wait.party.0, wait.id));
            if let Some(wait) =
                self.files.get_mut(&ino).and_then(|file| file.waits.get_mut(&arrival))
            {
                wait.standing = standing;
            }
        }
        self.forget_if_idle(ino);
    }

    /// Whether a party that blocks `wait` waits, directly or through others, for a lock of its
    /// party.
    fn is_circle(&self, ino: Ino, wait: &Wait) -> bool {
        let mut todo: Vec<Party> = self.blockers(ino, wait.party, wait.lock).collect();
        let mut seen = BTreeSet::new();
        while let Some(party) = todo.pop() {
            if party == wait.party {
                return true;
            }
            if !seen.insert(party) {
                continue;
            }
            let waits =
                self.sessions.get(&party.0).into_iter().flat_map(|session| session.waits.values());
            for (ino, arrival) in waits {
                let wait = &self.files[ino].waits[arrival];
                if wait.party == party && wait.detect && wait.standing == Standing::Queued {
                    todo.extend(self.blockers(*ino, party, wait.lock));
                }
            }
        }
        false
    }

    fn remove_wait(&mut self, ino: Ino, arrival: u64) {
        let Some(wait) = self.files.get_mut(&ino).and_then(|file| file.waits.remove(&arrival))
        else {
            return;
        };
        self.session(wait.party.0).waits.remove(&wait.id);
        self.ended.retain(|ended| *ended != (wait.party.0, wait.id));
        self.forget_if_idle(ino);
    }

    pub(super) fn forget_if_idle(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(|file| file.held.is_empty() && file.waits.is_empty()) {
            self.files.remove(&ino);
        }
    }
}
