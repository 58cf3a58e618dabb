//! When reading changes access times. The kernel leaves them to whoever serves a mount, and reads
//! from its page cache without asking: so what is due is not read from there.

use ebb_model::{Attr, FileKind, Ino, Time};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// The rule of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// `noatime`: they stay. Otherwise whoever reads a bucket would write to it.
    #[default]
    Kept,
    /// `relatime`: they tell whether something was read since it last changed, and the day.
    Relative,
    /// `strictatime`: each opening whose descriptor is read from counts.
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

/// Which inodes' next reading is to be noted.
pub(crate) struct Readings {
    rule: AccessRule,
    due: RefCell<BTreeSet<Ino>>,
}

impl Readings {
    pub fn new(rule: AccessRule) -> Readings {
        Readings { rule, due: RefCell::default() }
    }

    /// The kernel is given these attributes of an inode that it knows by this id.
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

    /// Its bytes are changed here. It counts as unread at once, whatever the clocks say.
    pub fn changed(&self, ino: Ino) {
        if self.rule.times == AccessTimes::Relative {
            self.due.borrow_mut().insert(ino);
        }
    }

    /// Somebody opens it for reading. Whether the kernel is to forget what it has cached of it, so
    /// that it asks. `attr` are those of a directory, of which the kernel changes none itself.
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

    /// It is read. Whether that is to be noted.
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

/// As Linux has it: not read since it last changed, or not for a day.
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
