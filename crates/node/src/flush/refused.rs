//! Work that the bucket has refused: it is paused for a while, and reported for as long as it is
//! due.

use super::Work;
use crate::admin::troubles::told;
use ebb_model::{Time, Trouble};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// A file that the bucket refuses is tried again after this long.
const PAUSE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct RefusedWork {
    table: RefCell<BTreeMap<Work, Refused>>,
}

struct Refused {
    /// `None` once it may be tried again.
    paused_until: Option<Duration>,
    trouble: Trouble,
}

impl RefusedWork {
    /// Keeps the time of the first refusal.
    pub fn add(&self, work: Work, what: String, monotonic: Duration, wall: Time) {
        let mut table = self.table.borrow_mut();
        let since = table.get(&work).map_or(wall, |before| before.trouble.since);
        if since == wall {
            tracing::warn!(what, "refused");
        }
        table.insert(
            work,
            Refused { paused_until: Some(monotonic + PAUSE), trouble: Trouble { since, what } },
        );
    }

    pub fn done(&self, work: &Work) {
        self.table.borrow_mut().remove(work);
    }

    /// Forgets work that is not there any more.
    pub fn retain(&self, is_there: impl Fn(&Work) -> bool) {
        self.table.borrow_mut().retain(|work, _| is_there(work));
    }

    pub fn try_again(&self) {
        self.table.borrow_mut().values_mut().for_each(|refused| refused.paused_until = None);
    }

    /// Ends the pauses that are over.
    pub fn go_on(&self, now: Duration) {
        let mut table = self.table.borrow_mut();
        let over = table
            .values_mut()
            .filter(|refused| refused.paused_until.is_some_and(|until| until <= now));
        over.for_each(|refused| refused.paused_until = None);
    }

    pub fn is_paused(&self, work: &Work) -> bool {
        self.table.borrow().get(work).is_some_and(|refused| refused.paused_until.is_some())
    }

    pub fn is_any_paused(&self) -> bool {
        self.table.borrow().values().any(|refused| refused.paused_until.is_some())
    }

    /// Calls `visit` with each paused work and its reason.
    pub fn for_each_paused(&self, mut visit: impl FnMut(&Work, &str)) {
        for (work, refused) in &*self.table.borrow() {
            if refused.paused_until.is_some() {
                visit(work, &refused.trouble.what);
            }
        }
    }

    /// Why this work is refused, if it is.
    pub fn reason(&self, work: &Work) -> Option<String> {
        self.table.borrow().get(work).map(|refused| refused.trouble.what.clone())
    }

    pub fn troubles(&self) -> Vec<Trouble> {
        told(self.table.borrow().values().map(|refused| &refused.trouble))
    }
}
