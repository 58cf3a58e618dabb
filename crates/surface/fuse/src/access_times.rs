//! Updates of access times. The kernel leaves them to the FUSE server and reads from its page cache
//! without a request; so an inode whose update is due is not read from the page cache.

use ebb_model::{Attr, FileKind, Ino, Time};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// The rule of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// `noatime`: never. Otherwise reading a bucket would write to it.
    #[default]
    Kept,
    /// `relatime`: at the first read after a change, and once a day.
    Relative,
    /// `strictatime`: once per open that reads.
    Strict,
}

/// The rule, and whether directories are read too (`nodiratime`: they are not).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessRule {
    pub times: AccessTimes,
    pub directories: bool,
}

impl Default for AccessRule {
    fn default() -> AccessRule {
        AccessRule { times: AccessTimes::Kept, directories: true }
    }
}

/// Inodes whose next read updates the access time.
pub(crate) struct Readings {
    rule: AccessRule,
    due: RefCell<BTreeSet<Ino>>,
}

impl Readings {
    pub fn new(rule: AccessRule) -> Readings {
        Readings { rule, due: RefCell::default() }
    }

    /// Records the attributes of an inode that go to the kernel.
    pub fn seen(&self, ino: Ino, attr: &Attr) {
        match self.rule.times {
            AccessTimes::Relative if attr.kind != FileKind::Directory => {
                let mut due = self.due.borrow_mut();
                if is_due(attr, now()) {
                    due.insert(ino)
                } else {
                    due.remove(&ino)
                };
            }
            _ => {}
        }
    }

    /// Records a change of the inode's bytes: it counts as unread at once, independent of the
    /// clocks.
    pub fn changed(&self, ino: Ino) {
        if self.rule.times == AccessTimes::Relative {
            self.due.borrow_mut().insert(ino);
        }
    }

    /// Records an open for reading. Returns whether the kernel must drop its cached pages, so that
    /// it sends a request. `attr` are those of a directory, whose access time the kernel never
    /// updates.
    pub fn opened(&self, ino: Ino, attr: Option<&Attr>) -> bool {
        let mut due = self.due.borrow_mut();
        let unread = match (self.rule.times, attr) {
            (AccessTimes::Kept, _) => return false,
            (AccessTimes::Strict, _) => true,
            (AccessTimes::Relative, Some(attr)) => is_due(attr, now()),
            (AccessTimes::Relative, None) => return due.contains(&ino),
        };
        if unread {
            due.insert(ino)
        } else {
            due.remove(&ino)
        };
        unread
    }

    /// Records a read. Returns whether to update the access time.
    pub fn read(&self, ino: Ino) -> bool {
        self.rule.times != AccessTimes::Kept && self.due.borrow_mut().remove(&ino)
    }

    pub fn forget(&self, ino: Ino) {
        if self.rule.times != AccessTimes::Kept {
            self.due.borrow_mut().remove(&ino);
        }
    }

    pub fn of_directories(&self) -> bool {
        self.rule.directories && self.rule.times != AccessTimes::Kept
    }
}

/// Linux's rule: not read since the last change, or not for a day.
fn is_due(attr: &Attr, now: i64) -> bool {
    let order = |time: Time| (time.secs, time.nanos);
    order(attr.atime) <= order(attr.mtime)
        || order(attr.atime) <= order(attr.ctime)
        || now.saturating_sub(attr.atime.secs) >= DAY
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

const DAY: i64 = 24 * 60 * 60;
