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
//! - What is open is written here before anybody is told of it, and taken out before anybody is told
//!   that it is closed.
//! - Each of these is there once its last word is written, and not before.

use ebb_model::{Ino, SESSION_SLOTS, SessionId};
use ebb_ports::Words;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use thiserror::Error;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EstateError {
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

pub struct Estate {
    words: Rc<dyn Words>,
    /// Which of the processes that have had it this one is, from 1.
    life: u64,
    places: RefCell<BTreeMap<u64, usize>>,
    /// What was opened by requests of earlier lives, which may come again.
    of_before: RefCell<BTreeMap<u64, u64>>,
    free: RefCell<Vec<usize>>,
    used: Cell<usize>,
}

impl Estate {
    /// Takes over what the process before has left; if there was none, that is nothing.
    pub fn take(words: Rc<dyn Words>) -> Result<Estate, EstateError> {
        assert!(words.count() >= OPENS, "too small for anything");
        let life = match words.load(FORM) {
            0 => 1,
            CURRENT_FORM => words.load(LIVES).checked_add(1).ok_or(EstateError::Damaged("lives"))?,
            _ => return Err(EstateError::Foreign),
        };
        words.store(LIVES, life);
        let used = usize::try_from(words.load(USED)).map_err(|_| EstateError::Damaged("open files"))?;
        if used > (words.count() - OPENS) / OPEN_WORDS {
            return Err(EstateError::Damaged("open files"));
        }
        let estate = Estate {
            words,
            life,
            places: RefCell::default(),
            of_before: RefCell::default(),
            free: RefCell::default(),
            used: Cell::new(used),
        };
        for place in (0..used).rev() {
            match estate.at(place) {
                // Opened once more for a request that came again, by a life that ended there.
                Some(open) if estate.of_before.borrow().contains_key(&open.request) => estate.clear(place),
                Some(open) => {
                    estate.of_before.borrow_mut().insert(open.request, open.handle);
                    if estate.places.borrow_mut().insert(open.handle, place).is_some() {
                        return Err(EstateError::Damaged("two open files of one number"));
                    }
                }
                None => estate.free.borrow_mut().push(place),
            }
        }
        Ok(estate)
    }

    /// Words for [`Estate::take`], if this many files are to be open at one time.
    pub fn words_for(open_files: usize) -> usize {
        OPENS + open_files * OPEN_WORDS
    }

    /// The session that was left, if one was.
    pub fn session(&self) -> Option<SessionId> {
        let session = self.words.load(SESSION);
        (self.words.load(FORM) != 0 && session != 0).then_some(SessionId(session))
    }

    /// Which of the processes that have had it this one is, from 1.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// A word of the user's own. 0 at first.
    pub fn note(&self, at: usize) -> u64 {
        assert!(at < NOTES);
        self.words.load(NOTE + at)
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

    /// What is open. False if more is open than there is room for. If the same request has opened
    /// something before, with no answer, that is forgotten: ask [`Estate::opened_before`] first.
    #[must_use]
    pub fn opened(&self, open: Open) -> bool {
        assert_ne!(open.handle, 0);
        let place = match self.free.borrow_mut().pop() {
            Some(place) => place,
            None if OPENS + (self.used.get() + 1) * OPEN_WORDS > self.words.count() => return false,
            None => {
                self.used.set(self.used.get() + 1);
                self.words.store(USED, self.used.get() as u64);
                self.used.get() - 1
            }
        };
        let at = OPENS + place * OPEN_WORDS;
        self.words.store(at, open.request);
        self.words.store(at + 1, open.ino.0);
        self.words.store(at + 2, open.detail);
        self.words.store(at + HANDLE, open.handle);
        self.places.borrow_mut().insert(open.handle, place);
        let before = self.of_before.borrow_mut().remove(&open.request);
        if let Some(place) = before.and_then(|handle| self.places.borrow_mut().remove(&handle)) {
            self.clear(place);
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
        self.at(place)
    }

    /// It is closed for good. `None` if it was before: the answer to that never left.
    pub fn closed(&self, handle: u64) -> Option<Open> {
        let place = self.places.borrow_mut().remove(&handle)?;
        let open = self.at(place)?;
        self.of_before.borrow_mut().remove(&open.request);
        self.clear(place);
        Some(open)
    }

    fn clear(&self, place: usize) {
        self.words.store(OPENS + place * OPEN_WORDS + HANDLE, 0);
        self.free.borrow_mut().push(place);
    }

    /// No request of an earlier life comes again from now on.
    pub(crate) fn all_came(&self) {
        self.of_before.take();
    }

    /// All that is open.
    pub fn opens(&self) -> Vec<Open> {
        self.places.borrow().values().filter_map(|place| self.at(*place)).collect()
    }

    fn at(&self, place: usize) -> Option<Open> {
        let at = OPENS + place * OPEN_WORDS;
        let handle = self.words.load(at + HANDLE);
        let (request, ino, detail) = (self.words.load(at), Ino(self.words.load(at + 1)), self.words.load(at + 2));
        (handle != 0).then_some(Open { request, ino, handle, detail })
    }
}

fn slot_at(slot: u16) -> usize {
    assert!(slot < SESSION_SLOTS);
    SLOTS + usize::from(slot) * 2
}

const FORM: usize = 0;
const SESSION: usize = 1;
const LIVES: usize = 2;
/// Places of open files that have been used.
const USED: usize = 3;
const NOTE: usize = 4;
const NOTES: usize = 12;
/// Of each slot: request, sequence.
const SLOTS: usize = NOTE + NOTES;
/// Of each open file: request, inode, detail, handle.
const OPENS: usize = SLOTS + SESSION_SLOTS as usize * 2;
const OPEN_WORDS: usize = 4;
const HANDLE: usize = 3;

/// Grows with every change of what the words mean.
const CURRENT_FORM: u64 = 0x6562_6201;

#[cfg(test)]
mod tests;
