//! Holes that are logged and not yet in their store files: a crash between the two leaves it to
//! the log to make them, so no snapshot may stand in for the log before they are made.

use crate::signal::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Holes {
    pending: RefCell<BTreeSet<u64>>,
    begun: Cell<u64>,
    ended: Signal,
}

impl Holes {
    /// From the moment at which a command is applied until what it makes a hole of is one.
    pub fn begin(&self) -> Pending<'_> {
        let number = self.begun.get();
        self.begun.set(number + 1);
        self.pending.borrow_mut().insert(number);
        Pending { holes: self, number }
    }

    /// Completes when all that had begun at the time of the call have ended.
    pub fn made(&self) -> impl Future<Output = ()> {
        let upto = self.begun.get();
        async move {
            while self.pending.borrow().first().is_some_and(|first| *first < upto) {
                self.ended.wait().await;
            }
        }
    }
}

pub struct Pending<'a> {
    holes: &'a Holes,
    number: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.holes.pending.borrow_mut().remove(&self.number);
        self.holes.ended.raise();
    }
}
