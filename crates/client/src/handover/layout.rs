//! Which word of an estate says what.

use ebb_model::SESSION_SLOTS;

/// Where each table is: its first word, and for how many records it has room.
pub(super) struct Layout {
    pub opens: (usize, usize),
    pub locks: (usize, usize),
    pub lockers: (usize, usize),
    pub inodes: (usize, usize),
    pub errors: (usize, usize),
}

impl Layout {
    pub fn of(words: usize) -> Layout {
        let rooms = words.saturating_sub(Layout::words_for(0)) / WORDS_PER_OPEN_FILE;
        let errors = (TABLES, INODES_WITH_ERRORS);
        let opens = (errors.0 + errors.1 * ERROR_WORDS, rooms);
        let locks = (opens.0 + opens.1 * OPEN_WORDS, rooms);
        let lockers = (locks.0 + locks.1 * LOCK_WORDS, rooms);
        let inodes = (lockers.0 + lockers.1 * LOCKER_WORDS, rooms * INODES_PER_OPEN_FILE);
        Layout { opens, locks, lockers, inodes, errors }
    }

    /// For so many open files, and what goes with them.
    pub fn words_for(open_files: usize) -> usize {
        TABLES + INODES_WITH_ERRORS * ERROR_WORDS + open_files * WORDS_PER_OPEN_FILE
    }
}

/// Of a slot of the session: the request, and behind it the sequence.
pub(super) fn slot_at(slot: u16) -> usize {
    assert!(slot < SESSION_SLOTS);
    SLOTS + usize::from(slot) * 2
}

pub(super) const FORM: usize = 0;
pub(super) const SESSION: usize = 1;
pub(super) const GENERATIONS: usize = 2;
/// Places of each table that have been used.
pub(super) const USED_OPENS: usize = 3;
pub(super) const USED_LOCKS: usize = 4;
pub(super) const USED_LOCKERS: usize = 5;
pub(super) const USED_INODES: usize = 6;
pub(super) const USED_ERRORS: usize = 7;
/// See [`Served`].
pub(super) const START: usize = 8;
pub(super) const INCARNATION: usize = 9;
pub(super) const UNDURABLE: usize = 10;
/// See [`HandoverState::unfit`].
pub(super) const UNFIT: usize = 11;
/// See [`HandoverState::general_errors`].
pub(super) const EVERYWHERE: usize = 12;
pub(super) const UNSYNCED: usize = 13;
/// In milliseconds, or 0.
pub(super) const SURE_UNTIL: usize = 14;
pub(super) const NOTE: usize = 15;
pub(super) const NOTES: usize = 12;
/// Of each slot: request, sequence.
const SLOTS: usize = NOTE + NOTES;
const TABLES: usize = SLOTS + SESSION_SLOTS as usize * 2;
/// Request, inode, detail, handle.
pub(super) const OPEN_WORDS: usize = 4;
/// Inode, owner, first and last byte, kind.
pub(super) const LOCK_WORDS: usize = 5;
/// Inode, owner, handle.
pub(super) const LOCKER_WORDS: usize = 3;
/// Inode, how often the user has been told of it.
pub(super) const INODE_WORDS: usize = 2;
/// That the user may know.
const INODES_PER_OPEN_FILE: usize = 64;
/// Inode, error.
pub(super) const ERROR_WORDS: usize = 2;

/// Why nobody can succeed.
pub(super) const INCOMPLETE: u64 = 1;
pub(super) const ENDED: u64 = 2;

/// Errors that can stand.
pub(super) const IO: u64 = 1;
pub(super) const STALE: u64 = 2;

/// Of the kind of a lock; the process is in its upper half.
pub(super) const LOCK: u64 = 1;
pub(super) const FLOCK: u64 = 2;
pub(super) const EXCLUSIVE: u64 = 4;
pub(super) const UNKNOWN_OUTCOME: u64 = 8;

/// Grows with every change of what the words mean.
pub(super) const CURRENT_FORM: u64 = 0x6562_6202;

const WORDS_PER_OPEN_FILE: usize =
    OPEN_WORDS + LOCK_WORDS + LOCKER_WORDS + INODES_PER_OPEN_FILE * INODE_WORDS;

/// Inodes whose errors are told apart.
pub(crate) const INODES_WITH_ERRORS: usize = 4096;
