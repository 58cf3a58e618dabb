//! The times at which a disk has operations to do.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Law: `past` holds disjoint ranges of true time in ascending order, each before `began` while
/// operations are under way.
#[derive(Default)]
pub(super) struct Busy {
    under_way: Cell<usize>,
    began: Cell<Duration>,
    past: RefCell<Vec<Range<Duration>>>,
}

impl Busy {
    pub fn begin(&self, now: Duration) {
        if self.under_way.replace(self.under_way.get() + 1) == 0 {
            self.began.set(now);
        }
    }

    pub fn end(&self, now: Duration) {
        self.under_way.set(self.under_way.get() - 1);
        if self.under_way.get() == 0 {
            self.past.borrow_mut().push(self.began.get()..now);
        }
    }

    /// The latest moment since which the disk was idle for `idle` in sum; `None` if that is before
    /// `from`.
    pub fn idle_for(&self, idle: Duration, from: Duration, now: Duration) -> Option<Duration> {
        let (mut missing, mut end) = (idle, now);
        if self.under_way.get() > 0 {
            end = self.began.get();
        }
        for busy in self.past.borrow().iter().rev().take_while(|busy| busy.end > from) {
            let pause = end - busy.end;
            if pause >= missing {
                break;
            }
            missing -= pause;
            end = busy.start;
        }
        end.checked_sub(missing).filter(|at| *at >= from)
    }
}

/// One operation under way.
pub(super) struct UnderWay<Now: Fn() -> Duration> {
    pub busy: Rc<Busy>,
    pub now: Now,
}

impl<Now: Fn() -> Duration> Drop for UnderWay<Now> {
    fn drop(&mut self) {
        self.busy.end((self.now)());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk is busy from 10 to 20 and from 25 to 40, and it is 45: for 8 in sum it was idle
    /// since 22. Since 30 it was not idle for so long.
    #[test]
    fn idle_time_is_counted_between_operations() {
        let busy = Busy::default();
        let secs = Duration::from_secs;
        busy.begin(secs(10));
        busy.begin(secs(15));
        busy.end(secs(18));
        busy.end(secs(20));
        busy.begin(secs(25));
        busy.end(secs(40));
        assert_eq!(busy.idle_for(secs(8), secs(0), secs(45)), Some(secs(22)));
        assert_eq!(busy.idle_for(secs(8), secs(30), secs(45)), None);
        assert_eq!(busy.idle_for(secs(2), secs(41), secs(45)), Some(secs(43)));
    }
}
