//! Advisory locks: fcntl(2) and flock(2).
//!
//! Laws:
//! - Shared locks of different owners can overlap; an exclusive lock overlaps no lock of another
//!   owner.
//! - Locks of the two kinds never conflict with each other, as on a local file system.

use crate::{FsError, Ino, SESSION_SLOTS};
use serde::{Deserialize, Serialize};

/// Lock mode: only shared locks are compatible with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// F_RDLCK, LOCK_SH
    Shared,
    /// F_WRLCK, LOCK_EX
    Exclusive,
}

/// Owner of locks within one session. The client chooses the ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockOwner {
    /// Owner of fcntl(2) locks: a process, or an open file description (OFD). They cover ranges,
    /// which split and merge.
    Fcntl(u64),
    /// Owner of a flock(2) lock: an open file description. It has one lock on the whole file.
    Flock(u64),
}

/// Bytes of a file, both ends inclusive and `<=` [`MAX_LOCK_OFFSET`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct LockRange {
    start: u64,
    end: u64,
}

/// The last lockable byte, and the end of locks that extend to the end of the file.
pub const MAX_LOCK_OFFSET: u64 = i64::MAX as u64;

impl LockRange {
    pub const WHOLE: LockRange = LockRange { start: 0, end: MAX_LOCK_OFFSET };

    pub fn new(start: u64, end: u64) -> Result<LockRange, FsError> {
        if start <= end && end <= MAX_LOCK_OFFSET {
            Ok(LockRange { start, end })
        } else {
            Err(FsError::Invalid)
        }
    }

    pub const fn start(self) -> u64 {
        self.start
    }

    pub const fn end(self) -> u64 {
        self.end
    }

    pub fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The intersection with another range.
    pub fn within(self, other: LockRange) -> Option<LockRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start <= end).then_some(LockRange { start, end })
    }
}

impl TryFrom<(u64, u64)> for LockRange {
    type Error = FsError;

    fn try_from((start, end): (u64, u64)) -> Result<LockRange, FsError> {
        LockRange::new(start, end)
    }
}

impl From<LockRange> for (u64, u64) {
    fn from(range: LockRange) -> (u64, u64) {
        (range.start, range.end)
    }
}

/// A request to lock or unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockAsk {
    pub ino: Ino,
    pub owner: LockOwner,
    /// [`LockRange::WHOLE`] for flock(2).
    pub range: LockRange,
    /// `None` unlocks.
    pub mode: Option<LockMode>,
    /// Bytes on which the owner has an exclusive lock keep it: no downgrade.
    pub keep: bool,
    /// The requesting process, for F_GETLK.
    pub pid: u32,
}

/// A wait for a lock that conflicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWait {
    /// Identifies the wait within its session for ever.
    pub id: u64,
    /// Report a cycle of waiting owners as EDEADLK, as for locks of processes.
    pub detect: bool,
}

/// Progress of a lock request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockAnswer {
    Granted,
    /// The wait is queued: [`crate::Notice::Lock`] reports when to retry.
    Waiting,
}

/// A range that an owner has locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeLock {
    pub range: LockRange,
    pub mode: LockMode,
}

/// A conflicting lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockConflict {
    pub lock: RangeLock,
    /// 0 if another client holds the lock: its process ids mean nothing on this machine.
    pub pid: u32,
}

/// Maximum concurrent lock requests of one session. A queued wait does not count.
pub const LOCK_SLOTS: u16 = SESSION_SLOTS;

/// Maximum queued waits of one session.
pub const LOCK_WAITS: usize = 1024;

/// Maximum locks in one reclaim request.
pub const LOCKS_RECLAIMED_AT_ONCE: usize = 1024;
