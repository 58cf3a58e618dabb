//! Cooldowns: a file or page that changes all the time is not uploaded all the time.

use ebb_model::Ino;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Inodes that were uploaded a short time ago, with the ends of their pauses.
#[derive(Default)]
pub struct FlushCooldowns {
    until: RefCell<BTreeMap<Ino, Duration>>,
}

impl FlushCooldowns {
    pub(super) fn begin(&self, ino: Ino, until: Duration) {
        self.until.borrow_mut().insert(ino, until);
    }

    /// A caller waits for its upload.
    pub fn cancel(&self, ino: Ino) {
        self.until.borrow_mut().remove(&ino);
    }

    /// Forgets cooldowns that are over.
    pub(super) fn end(&self, now: Duration) {
        self.until.borrow_mut().retain(|_, until| *until > now);
    }

    pub(super) fn has(&self, ino: Ino, now: Duration) -> bool {
        self.until.borrow().get(&ino).is_some_and(|until| *until > now)
    }
}
