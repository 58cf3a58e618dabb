//! What a client leaves to its successor when its process dies: memory that outlives it (O-6).
//!
//! The successor takes up the session. Whatever its user asks again, as a kernel does for requests
//! that have no answer, goes to the node under the transaction id that it had, and is done once.
//!
//! Laws:
//! - Every sequence that is given out is written here before anything is sent under it.
//! - A slot of the session belongs to one request of the user from the first change that it asks
//!   for until its answer has left ([`crate::Client::answered`]). So the table of the node has the
//!   outcome for as long as the request may come again.
//! - What is open is written here before anybody is told of it, and taken out before anybody is
//!   told that it is closed. So are inodes that the user has been told of.
//! - Of locks what is here is what the node has granted, or less where a request of their owner has
//!   no answer yet, which is here too.
//! - Each of these is there once its last word is written, and not before.
//! - Where something is not here that a successor would have to know, nobody succeeds
//!   ([`HandoverState::unfit`]).

use ebb_model::{FsError, Incarnation, Ino, LockMode, LockOwner, LockRange, RangeLock, SessionId};
use ebb_ports::SharedMemory;
use layout::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use table::Table;
use thiserror::Error;

pub(crate) use layout::INODES_WITH_ERRORS;
pub use table::RecordIndex;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HandoverError {
    #[error("what the process before has left is of another version")]
    Foreign,
    #[error("what the process before has left is damaged: {0}")]
    Damaged(&'static str),
}

/// A file or directory that is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// The request that opened it.
    pub request: u64,
    pub ino: Ino,
    /// The user's number of it, never 0 and never given twice.
    pub handle: u64,
    /// What else the user has to know.
    pub detail: u64,
}

/// A lock, or a request for one that has no answer yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    pub(crate) ino: Ino,
    pub(crate) owner: LockOwner,
    /// `None` if it is not known what of the file the owner has by now.
    pub(crate) lock: Option<RangeLock>,
    pub(crate) pid: u32,
}

/// An owner of fcntl(2) has used an open file to ask for locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locker {
    pub ino: Ino,
    pub owner: u64,
    /// Of the open file.
    pub handle: u64,
}

/// Which run of a node a client was attached to, and what that has answered it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Served {
    pub(crate) start: u64,
    pub(crate) incarnation: Incarnation,
    /// Something was answered that need not be durable yet.
    pub(crate) undurable: bool,
}

pub struct HandoverState {
    words: Rc<dyn SharedMemory>,
    /// Which of the processes that have had it this one is, from 1.
    generation: u64,
    opens: Table<OPEN_WORDS>,
    locks: Table<LOCK_WORDS>,
    lockers: Table<LOCKER_WORDS>,
    inodes: Table<INODE_WORDS>,
    errors: Table<ERROR_WORDS>,
    /// Of open files, by handle.
    places: RefCell<BTreeMap<u64, RecordIndex>>,
    /// What was opened by requests of earlier lives, which may come again.
    of_before: RefCell<BTreeMap<u64, u64>>,
}

impl HandoverState {
    /// Takes over what the process before has left; if there was none, that is nothing.
    pub fn take(words: Rc<dyn SharedMemory>) -> Result<HandoverState, HandoverError> {
        assert!(words.count() >= HandoverState::words_for(0), "too small for anything");
        let generation = match words.load(FORM) {
            0 => 1,
            CURRENT_FORM => {
                words.load(GENERATIONS).checked_add(1).ok_or(HandoverError::Damaged("lives"))?
            }
            _ => return Err(HandoverError::Foreign),
        };
        words.store(GENERATIONS, generation);
        let layout = Layout::of(words.count());
        let handover = HandoverState {
            opens: Table::take(&words, "open files", USED_OPENS, layout.opens)?,
            locks: Table::take(&words, "locks", USED_LOCKS, layout.locks)?,
            lockers: Table::take(&words, "owners of locks", USED_LOCKERS, layout.lockers)?,
            inodes: Table::take(&words, "inodes", USED_INODES, layout.inodes)?,
            errors: Table::take(&words, "errors", USED_ERRORS, layout.errors)?,
            words,
            generation,
            places: RefCell::default(),
            of_before: RefCell::default(),
        };
        for (place, open) in handover.opens.all() {
            let open = open_of(open);
            if handover.of_before.borrow().contains_key(&open.request) {
                // Opened once more for a request that came again, by a life that ended there.
                handover.opens.clear(place);
                continue;
            }
            handover.of_before.borrow_mut().insert(open.request, open.handle);
            if handover.places.borrow_mut().insert(open.handle, place).is_some() {
                return Err(HandoverError::Damaged("two open files of one number"));
            }
        }
        Ok(handover)
    }

    /// Words for [`HandoverState::take`], if this many files are to be open at one time.
    pub fn words_for(open_files: usize) -> usize {
        Layout::words_for(open_files)
    }

    /// The session that was left, if one was.
    pub fn session(&self) -> Option<SessionId> {
        let session = self.words.load(SESSION);
        (self.words.load(FORM) != 0 && session != 0).then_some(SessionId(session))
    }

    /// Which of the processes that have had it this one is, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A word of the user's own. 0 at first.
    pub fn note(&self, at: usize) -> u64 {
        HandoverState::note_in(&*self.words, at)
    }

    /// That of the process that has these words.
    pub fn note_in(words: &dyn SharedMemory, at: usize) -> u64 {
        assert!(at < NOTES);
        words.load(NOTE + at)
    }

    pub fn set_note(&self, at: usize, word: u64) {
        assert!(at < NOTES);
        self.words.store(NOTE + at, word);
    }

    pub(crate) fn begin(&self, session: SessionId) {
        self.words.store(SESSION, session.0);
        self.words.store(FORM, CURRENT_FORM);
    }

    /// The last sequence of a slot that was given out, and for which request if that has no answer.
    pub(crate) fn slot(&self, slot: u16) -> (u64, Option<u64>) {
        let at = slot_at(slot);
        let request = self.words.load(at);
        (self.words.load(at + 1), (request != 0).then_some(request))
    }

    /// The next sequence of a slot is given out. A request that has the slot already keeps it: what
    /// it has asked for under an earlier sequence was refused.
    pub(crate) fn give_out(&self, slot: u16, sequence: u64, request: Option<u64>) {
        let at = slot_at(slot);
        let request = request.unwrap_or(0);
        if self.words.load(at) != request {
            self.words.store(at, 0);
        }
        self.words.store(at + 1, sequence);
        self.words.store(at, request);
    }

    /// The request that has the slot has its answer.
    pub(crate) fn free(&self, slot: u16) {
        self.words.store(slot_at(slot), 0);
    }

    /// Why nobody can succeed.
    pub(crate) fn unfit(&self) -> Option<&'static str> {
        HandoverState::unfit_in(&*self.words)
    }

    /// Why nobody could succeed to the process that has these words.
    pub fn unfit_in(words: &dyn SharedMemory) -> Option<&'static str> {
        match words.load(UNFIT) {
            0 => None,
            INCOMPLETE => Some("more is in use than can be left to another process"),
            _ => Some("its session has ended, and it has begun another one"),
        }
    }

    fn put<const N: usize>(&self, table: &Table<N>, record: [u64; N]) -> Option<RecordIndex> {
        let place = table.put(record);
        if place.is_none() {
            self.set_unfit(INCOMPLETE);
        }
        place
    }

    /// What is here is of a session that the node does not know any more.
    pub(crate) fn session_has_ended(&self) {
        self.set_unfit(ENDED);
    }

    fn set_unfit(&self, why: u64) {
        if self.words.load(UNFIT) == 0 {
            self.words.store(UNFIT, why);
            tracing::warn!(why = self.unfit(), "with this process the mount dies");
        }
    }

    /// The inodes that the user of the process that has these words has been told of.
    pub fn inodes_in(words: &dyn SharedMemory) -> Vec<Ino> {
        let layout = Layout::of(words.count());
        let used = (words.load(USED_INODES) as usize).min(layout.inodes.1);
        let at = |place: usize| layout.inodes.0 + place * INODE_WORDS;
        let known = (0..used).filter(|place| words.load(at(*place) + INODE_WORDS - 1) != 0);
        known.map(|place| Ino(words.load(at(place)))).collect()
    }

    /// Of inodes.
    pub(crate) fn errors(&self) -> impl Iterator<Item = (RecordIndex, Ino, FsError)> {
        self.errors
            .all()
            .filter_map(|(place, [ino, error])| Some((place, Ino(ino), error_of(error)?)))
    }

    pub(crate) fn put_error(&self, ino: Ino, error: FsError) -> Option<RecordIndex> {
        self.put(&self.errors, [ino.0, error_word(Some(error))])
    }

    pub(crate) fn clear_error(&self, place: RecordIndex) {
        self.errors.clear(place);
    }

    /// Those of all inodes, and of the next sync of all.
    pub(crate) fn general_errors(&self) -> (Option<FsError>, Option<FsError>) {
        (error_of(self.words.load(EVERYWHERE)), error_of(self.words.load(UNSYNCED)))
    }

    pub(crate) fn set_general_errors(
        &self,
        everywhere: Option<FsError>,
        unsynced: Option<FsError>,
    ) {
        self.words.store(EVERYWHERE, error_word(everywhere));
        self.words.store(UNSYNCED, error_word(unsynced));
    }

    /// See [`HandoverState::sure_until_in`]. By the clock that the machine's processes share.
    pub(crate) fn set_sure_until(&self, until: Duration) {
        self.words.store(SURE_UNTIL, u64::try_from(until.as_millis()).unwrap_or(u64::MAX));
    }

    /// Until when others keep from what the process that has these words lets its user have cached;
    /// `None`: for ever.
    pub fn sure_until_in(words: &dyn SharedMemory) -> Option<Duration> {
        let until = words.load(SURE_UNTIL);
        (until != 0).then(|| Duration::from_millis(until))
    }

    /// What was noted last of [`HandoverState::serves`] and what came after it.
    pub(crate) fn served(&self) -> Served {
        let load = |at| self.words.load(at);
        Served {
            start: load(START),
            incarnation: Incarnation(load(INCARNATION) as u16),
            undurable: load(UNDURABLE) != 0,
        }
    }

    /// The node is this run of it, and nothing that one before has answered is missing.
    pub(crate) fn serves(&self, start: u64, incarnation: Incarnation) {
        self.words.store(INCARNATION, incarnation.0.into());
        self.words.store(START, start);
    }

    /// Something was answered that need not be durable yet, or nothing is any more.
    pub(crate) fn set_undurable(&self, undurable: bool) {
        self.words.store(UNDURABLE, undurable.into());
    }

    /// What is open. False if more is open than there is room for. If the same request has opened
    /// something before, with no answer, that is forgotten: ask [`HandoverState::opened_before`]
    /// first.
    #[must_use]
    pub fn opened(&self, open: Open) -> bool {
        assert_ne!(open.handle, 0);
        let Some(place) = self.opens.put([open.request, open.ino.0, open.detail, open.handle])
        else {
            return false;
        };
        self.places.borrow_mut().insert(open.handle, place);
        let before = self.of_before.borrow_mut().remove(&open.request);
        if let Some(place) = before.and_then(|handle| self.places.borrow_mut().remove(&handle)) {
            self.opens.clear(place);
        }
        true
    }

    /// What a request has opened in an earlier life, if its answer never left.
    pub fn opened_before(&self, request: u64) -> Option<Open> {
        let handle = *self.of_before.borrow().get(&request)?;
        self.open(handle)
    }

    pub fn open(&self, handle: u64) -> Option<Open> {
        let place = *self.places.borrow().get(&handle)?;
        self.opens.get(place).map(open_of)
    }

    /// It is closed for good. `None` if it was before: the answer to that never left.
    pub fn closed(&self, handle: u64) -> Option<Open> {
        let place = self.places.borrow_mut().remove(&handle)?;
        let open = self.opens.get(place).map(open_of)?;
        self.of_before.borrow_mut().remove(&open.request);
        self.opens.clear(place);
        Some(open)
    }

    /// No request of an earlier life comes again from now on.
    pub(crate) fn all_came(&self) {
        self.of_before.take();
    }

    /// All that is open.
    pub fn opens(&self) -> Vec<Open> {
        self.places
            .borrow()
            .values()
            .filter_map(|place| self.opens.get(*place).map(open_of))
            .collect()
    }

    pub(crate) fn put_lock(&self, lock: Lock) -> Option<RecordIndex> {
        let (owner, flock) = match lock.owner {
            LockOwner::Fcntl(owner) => (owner, 0),
            LockOwner::Flock(owner) => (owner, FLOCK),
        };
        let (range, mode) = match lock.lock {
            None => (LockRange::WHOLE, UNKNOWN_OUTCOME),
            Some(RangeLock { range, mode: LockMode::Shared }) => (range, 0),
            Some(RangeLock { range, mode: LockMode::Exclusive }) => (range, EXCLUSIVE),
        };
        let kind = u64::from(lock.pid) << 32 | LOCK | flock | mode;
        self.put(&self.locks, [lock.ino.0, owner, range.start(), range.end(), kind])
    }

    pub(crate) fn clear_lock(&self, place: RecordIndex) {
        self.locks.clear(place);
    }

    pub(crate) fn locks(&self) -> Result<Vec<(RecordIndex, Lock)>, HandoverError> {
        let lock = |(place, [ino, owner, start, end, kind]): (RecordIndex, [u64; LOCK_WORDS])| {
            let range = LockRange::new(start, end).map_err(|_| self.locks.damaged())?;
            let owner =
                if kind & FLOCK == 0 { LockOwner::Fcntl(owner) } else { LockOwner::Flock(owner) };
            let mode = if kind & EXCLUSIVE == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let lock = (kind & UNKNOWN_OUTCOME == 0).then_some(RangeLock { range, mode });
            Ok((place, Lock { ino: Ino(ino), owner, lock, pid: (kind >> 32) as u32 }))
        };
        self.locks.all().map(lock).collect()
    }

    /// Under the place that is given back, for [`HandoverState::clear_locker`].
    pub fn put_locker(&self, locker: Locker) -> Option<RecordIndex> {
        self.put(&self.lockers, [locker.ino.0, locker.owner, locker.handle])
    }

    pub fn clear_locker(&self, place: RecordIndex) {
        self.lockers.clear(place);
    }

    pub fn lockers(&self) -> Vec<(RecordIndex, Locker)> {
        let locker = |(place, [ino, owner, handle]): (RecordIndex, [u64; LOCKER_WORDS])| {
            (place, Locker { ino: Ino(ino), owner, handle })
        };
        self.lockers.all().map(locker).collect()
    }

    /// The user has been told of an inode, so often. Under the place that is given back.
    pub fn put_inode(&self, ino: Ino, count: u64) -> Option<RecordIndex> {
        self.put(&self.inodes, [ino.0, count])
    }

    /// How often the user has been told of it by now; 0 if it has forgotten it.
    pub fn set_inode(&self, place: RecordIndex, count: u64) {
        match count {
            0 => self.inodes.clear(place),
            count => self.inodes.set_last(place, count),
        }
    }

    pub fn inodes(&self) -> impl Iterator<Item = (RecordIndex, Ino, u64)> {
        self.inodes.all().map(|(place, [ino, count])| (place, Ino(ino), count))
    }
}

fn error_word(error: Option<FsError>) -> u64 {
    match error {
        None => 0,
        Some(FsError::Stale) => STALE,
        Some(_) => IO,
    }
}

fn error_of(word: u64) -> Option<FsError> {
    match word {
        0 => None,
        STALE => Some(FsError::Stale),
        _ => Some(FsError::Io),
    }
}

fn open_of([request, ino, detail, handle]: [u64; OPEN_WORDS]) -> Open {
    Open { request, ino: Ino(ino), handle, detail }
}

mod layout;
mod table;
#[cfg(test)]
mod tests;
