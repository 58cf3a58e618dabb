//! Advisory locks: fcntl(2) and flock(2).

use crate::{FsError, Ino, SESSION_SLOTS};
use serde::{Deserialize, Serialize};

/// How a lock shuts others out: shared locks get along with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// F_RDLCK, LOCK_SH
    Shared,
    /// F_WRLCK, LOCK_EX
    Exclusive,
}

/// Whom locks belong to, within one session. Ids are the client's choice. The two kinds do not
/// see each other, as on a local file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockOwner {
    /// Of fcntl(2): a process, or an open file description (OFD). Its locks are on ranges,
    /// which split and merge.
    Fcntl(u64),
    /// Of flock(2): an open file description. It has one lock on the whole file.
    Flock(u64),
}

/// Bytes of a file, both ends included, neither beyond [`MAX_LOCK_OFFSET`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct LockRange {
    start: u64,
    end: u64,
}

/// The last byte that a lock can be on, and the end of locks that reach behind every end of the
/// file.
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

    /// The part of it that lies in another one.
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

/// A lock that is asked for, or given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockAsk {
    pub ino: Ino,
    pub owner: LockOwner,
    /// [`LockRange::WHOLE`] for flock(2).
    pub range: LockRange,
    /// `None` unlocks.
    pub mode: Option<LockMode>,
    /// Bytes of which the owner has an exclusive lock stay as they are: nothing is given up.
    pub keep: bool,
    /// The process that asks, for F_GETLK.
    pub pid: u32,
}

/// How a lock that cannot be had at once is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWait {
    /// Names the wait within its session, for ever.
    pub id: u64,
    /// Owners that wait for each other in a circle are told so (EDEADLK), as for locks of
    /// processes.
    pub detect: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockAnswer {
    Granted,
    /// It is waited for: [`crate::Notice::Lock`] says when to ask again.
    Waiting,
}

/// A part of what an owner holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeLock {
    pub range: LockRange,
    pub mode: LockMode,
}

/// A lock that is in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockConflict {
    pub lock: RangeLock,
    /// 0 if the holder is another client's: its number would be somebody else's here.
    pub pid: u32,
}

/// Lock requests that one session may have under way at once. Waiting is not being under way.
pub const LOCK_SLOTS: u16 = SESSION_SLOTS;

/// Locks that one session may wait for at once.
pub const LOCK_WAITS: usize = 1024;

/// Pieces that one request reclaims at most.
pub const LOCKS_RECLAIMED_AT_ONCE: usize = 1024;
