//! What is wrong now, and since when: for `ebb status`.

use ebb_model::{Time, Trouble};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Beyond this many a new trouble is only logged: a disk or a bucket that fails does so for
/// every file.
pub const MAX_TROUBLES: usize = 256;

#[derive(Default)]
pub struct Troubles {
    by_subject: RefCell<BTreeMap<String, Trouble>>,
}

impl Troubles {
    /// Keeps the time of the first report for as long as the trouble lasts.
    pub fn set(&self, subject: &str, what: Option<String>, now: Time) {
        let mut table = self.by_subject.borrow_mut();
        match what {
            None => {
                if let Some(over) = table.remove(subject) {
                    tracing::info!(what = over.what, "over");
                }
            }
            Some(what) => {
                if !table.contains_key(subject) {
                    tracing::warn!(what, "trouble");
                }
                if table.len() >= MAX_TROUBLES && !table.contains_key(subject) {
                    return;
                }
                let since = table.get(subject).map_or(now, |trouble| trouble.since);
                table.insert(subject.to_owned(), Trouble { since, what });
            }
        }
    }

    pub fn has(&self, subject: &str) -> bool {
        self.by_subject.borrow().contains_key(subject)
    }

    pub fn list(&self) -> Vec<Trouble> {
        self.by_subject.borrow().values().cloned().collect()
    }
}
