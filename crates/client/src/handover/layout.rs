//! The layout of the handover state: the meaning of each word.

use ebb_model::SESSION_SLOTS;

/// The position of each table: its first word, and the number of records that it has room for.
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

    /// For this number of open files, with their locks and inodes.
    pub fn words_for(open_files: usize) -> usize {
        TABLES + INODES_WITH_ERRORS * ERROR_WORDS + open_files * WORDS_PER_OPEN_FILE
    }
}

/// The position of a session slot: its request, followed by its sequence number.
pub(super) fn slot_at(slot: u16) -> usize {
    assert!(slot < SESSION_SLOTS);
    SLOTS + usize::from(slot) * 2
}

pub(super) const FORM: usize = 0;
pub(super) const SESSION: usize = 1;
pub(super) const GENERATIONS: usize = 2;
/// The number of records of each table that were ever used.
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
/// Inode, number of times that it was reported to the user.
pub(super) const INODE_WORDS: usize = 2;
/// Inodes known to the user for which there is room, for each open file.
const INODES_PER_OPEN_FILE: usize = 64;
/// Inode, error.
pub(super) const ERROR_WORDS: usize = 2;

/// The reasons why no process can succeed.
pub(super) const INCOMPLETE: u64 = 1;
pub(super) const ENDED: u64 = 2;

/// Error codes that can be recorded.
pub(super) const IO: u64 = 1;
pub(super) const STALE: u64 = 2;

/// Bits of the kind of a lock. Its upper half contains the process.
pub(super) const LOCK: u64 = 1;
pub(super) const FLOCK: u64 = 2;
pub(super) const EXCLUSIVE: u64 = 4;
pub(super) const UNKNOWN_OUTCOME: u64 = 8;

/// Grows with every change of the layout or of a word's meaning.
pub(super) const CURRENT_FORM: u64 = 0x6562_6202;

const WORDS_PER_OPEN_FILE: usize =
    OPEN_WORDS + LOCK_WORDS + LOCKER_WORDS + INODES_PER_OPEN_FILE * INODE_WORDS;

/// Inodes that can have an error of their own.
pub(crate) const INODES_WITH_ERRORS: usize = 4096;
