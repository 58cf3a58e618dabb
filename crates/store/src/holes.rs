//! Holes that are logged and not yet in their store files. After a crash between the two the log
//! still has to make them, so no snapshot may replace the log before they are made.

use ebb_ports::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Holes {
    pending: RefCell<BTreeSet<u64>>,
    begun: Cell<u64>,
    ended: Signal,
}

impl Holes {
    /// Lasts from the moment at which a command is applied until the range that it punches is a
    /// hole.
    pub fn begin(&self) -> Pending<'_> {
        let number = self.begun.get();
        self.begun.set(number + 1);
        self.pending.borrow_mut().insert(number);
        Pending { holes: self, number }
    }

    /// Completes when all holes begun before the call are made.
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
