//! The state that a client leaves to its successor when its process dies: memory that outlives the
//! process (O-6).
//!
//! The successor resumes the session. Its user repeats requests that have no answer, as a kernel
//! does. Each goes to the node under its old transaction id and is executed once.
//!
//! Laws:
//! - Every sequence number is recorded here before a request is sent under it.
//! - A session slot belongs to one request of the user from its first change until its answer has
//!   left ([`crate::Client::answered`]). So the node's table keeps the outcome for as long as the
//!   request may be repeated.
//! - An open file is recorded here before its open is reported, and removed before its close is
//!   reported. The same holds for inodes that are reported to the user.
//! - The locks recorded here are those that the node has granted, or fewer while a request of their
//!   owner has no answer. Such a request is recorded here too.
//! - A record exists once its last word is written, and not before.
//! - If something that a successor needs cannot be recorded here, no process can succeed
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
    /// The user's number of the open file, never 0 and never reused.
    pub handle: u64,
    /// Further data of the user.
    pub detail: u64,
}

/// A lock, or a request for one that has no answer yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    pub(crate) ino: Ino,
    pub(crate) owner: LockOwner,
    /// `None` if it is unknown which locks of the file the owner holds.
    pub(crate) lock: Option<RangeLock>,
    pub(crate) pid: u32,
}

/// An owner of fcntl(2) locks has used an open file to request locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locker {
    pub ino: Ino,
    pub owner: u64,
    /// Of the open file.
    pub handle: u64,
}

/// The run of the node that a client was attached to, and the state of that run's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Served {
    pub(crate) start: u64,
    pub(crate) incarnation: Incarnation,
    /// An answered operation need not be durable yet.
    pub(crate) undurable: bool,
}

pub struct HandoverState {
    words: Rc<dyn SharedMemory>,
    /// The number of this process among all that had this memory, from 1.
    generation: u64,
    opens: Table<OPEN_WORDS>,
    locks: Table<LOCK_WORDS>,
    lockers: Table<LOCKER_WORDS>,
    inodes: Table<INODE_WORDS>,
    errors: Table<ERROR_WORDS>,
    /// Of open files, by handle.
    places: RefCell<BTreeMap<u64, RecordIndex>>,
    /// Handles opened by requests of earlier generations that may be repeated.
    of_before: RefCell<BTreeMap<u64, u64>>,
}

impl HandoverState {
    /// Takes over the state of the previous process. Without one the state is empty.
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
                // A process that ended here opened the file once more for a repeated request.
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

    /// The session that the previous process left, if any.
    pub fn session(&self) -> Option<SessionId> {
        let session = self.words.load(SESSION);
        (self.words.load(FORM) != 0 && session != 0).then_some(SessionId(session))
    }

    /// The number of this process among all that had this memory, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A word for the user's own purposes. 0 at first.
    pub fn note(&self, at: usize) -> u64 {
        HandoverState::note_in(&*self.words, at)
    }

    /// The same for the process that owns these words.
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

    /// The last sequence number issued for a slot, and its request if that has no answer.
    pub(crate) fn slot(&self, slot: u16) -> (u64, Option<u64>) {
        let at = slot_at(slot);
        let request = self.words.load(at);
        (self.words.load(at + 1), (request != 0).then_some(request))
    }

    /// Issues the next sequence number of a slot. A request that already has the slot keeps it: its
    /// change under an earlier sequence number was refused.
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

    /// The reason why no process can succeed.
    pub(crate) fn unfit(&self) -> Option<&'static str> {
        HandoverState::unfit_in(&*self.words)
    }

    /// The reason why no process could succeed the one that owns these words.
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

    /// The state belongs to a session that the node no longer knows.
    pub(crate) fn session_has_ended(&self) {
        self.set_unfit(ENDED);
    }

    fn set_unfit(&self, why: u64) {
        if self.words.load(UNFIT) == 0 {
            self.words.store(UNFIT, why);
            tracing::warn!(why = self.unfit(), "with this process the mount dies");
        }
    }

    /// The inodes that were reported to the user of the process that owns these words.
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

    /// The error of all inodes, and the error of the next sync of everything.
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

    /// Until when the node admits no client that could invalidate the caches of the process that
    /// owns these words. `None`: for ever.
    pub fn sure_until_in(words: &dyn SharedMemory) -> Option<Duration> {
        let until = words.load(SURE_UNTIL);
        (until != 0).then(|| Duration::from_millis(until))
    }

    /// The values of the last [`HandoverState::serves`], and the changes recorded after it.
    pub(crate) fn served(&self) -> Served {
        let load = |at| self.words.load(at);
        Served {
            start: load(START),
            incarnation: Incarnation(load(INCARNATION)),
            undurable: load(UNDURABLE) != 0,
        }
    }

    /// The node is this run, and no answer of an earlier run is missing in it.
    pub(crate) fn serves(&self, start: u64, incarnation: Incarnation) {
        self.words.store(INCARNATION, incarnation.0);
        self.words.store(START, start);
    }

    /// Records whether an answered operation need not be durable yet.
    pub(crate) fn set_undurable(&self, undurable: bool) {
        self.words.store(UNDURABLE, undurable.into());
    }

    /// Records an open file. False if there is no room for it. If the same request opened a file
    /// before and has no answer, that record is removed: ask [`HandoverState::opened_before`]
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

    /// The file that a request opened in an earlier generation, if its answer never left.
    pub fn opened_before(&self, request: u64) -> Option<Open> {
        let handle = *self.of_before.borrow().get(&request)?;
        self.open(handle)
    }

    pub fn open(&self, handle: u64) -> Option<Open> {
        let place = *self.places.borrow().get(&handle)?;
        self.opens.get(place).map(open_of)
    }

    /// The file is closed for good. `None` if it was closed before: the answer to that close never
    /// left.
    pub fn closed(&self, handle: u64) -> Option<Open> {
        let place = self.places.borrow_mut().remove(&handle)?;
        let open = self.opens.get(place).map(open_of)?;
        self.of_before.borrow_mut().remove(&open.request);
        self.opens.clear(place);
        Some(open)
    }

    /// No request of an earlier generation will be repeated.
    pub(crate) fn all_came(&self) {
        self.of_before.take();
    }

    /// All open files.
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

    /// Returns the index of the record, for [`HandoverState::clear_locker`].
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

    /// An inode was reported to the user `count` times. Returns the index of the record.
    pub fn put_inode(&self, ino: Ino, count: u64) -> Option<RecordIndex> {
        self.put(&self.inodes, [ino.0, count])
    }

    /// How often the inode was reported to the user up to now. 0 if the user has forgotten it.
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
