//! How much may be on its way to a bucket at one time.
//!
//! All that is sent at one time shares the line, so on a slow one nothing would arrive before its
//! request is given up, and nothing ever would. More is let out as long as what was sent is
//! answered soon, half of it once it is not.

use crate::data::buffers::{Buffers, Room};
use ebb_ports::{Clock, SLOWEST_UPLOAD_BYTES_PER_SECOND};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub struct UploadWindow {
    clock: Rc<dyn Clock>,
    line: Buffers,
    /// Monotonic time at which it was last made smaller.
    shrunk: Cell<Option<Duration>>,
    /// Since when nothing is on its way.
    idle: Cell<Duration>,
}

/// What has become of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Taken,
    /// Refused, for which it need not have been carried.
    Refused,
    Lost,
}

/// A body on its way, until dropped.
pub struct Sending<'a> {
    window: &'a UploadWindow,
    room: Room<'a>,
    began: Duration,
    /// There was not much more to go beside it than went.
    fills: bool,
}

impl UploadWindow {
    pub fn new(clock: Rc<dyn Clock>) -> UploadWindow {
        UploadWindow {
            clock,
            line: Buffers::new(FIRST_BYTES, usize::MAX),
            shrunk: Cell::default(),
            idle: Cell::default(),
        }
    }

    /// Waits until so many bytes may go. Few do at once.
    pub async fn send(&self, bytes: u64) -> Option<Sending<'_>> {
        if bytes < SMALL_BYTES {
            return None;
        }
        if self.line.taken_bytes() == 0 && self.clock.monotonic() - self.idle.get() > FORGOTTEN {
            // It may be another line by now.
            self.line.set_limit(self.line.limit_bytes().min(FIRST_BYTES));
        }
        let room = self.line.take(bytes).await;
        let fills = self.line.taken_bytes() >= self.line.limit_bytes() / 2;
        Some(Sending { window: self, room, began: self.clock.monotonic(), fills })
    }

    /// At most once for all that was under way together.
    fn shrink(&self, began: Duration, by: u64) {
        if self.shrunk.get().is_none_or(|shrunk| began >= shrunk) {
            self.shrunk.set(Some(self.clock.monotonic()));
            let used = self.line.taken_bytes().min(self.line.limit_bytes());
            self.line.set_limit((used / by).max(LEAST_BYTES));
        }
    }
}

impl Sending<'_> {
    pub fn ended(self, fate: Fate) {
        let (window, bytes) = (self.window, self.room.bytes());
        let took = window.clock.monotonic() - self.began;
        let given_up = given_up_after(bytes);
        match fate {
            // Twice as much, or four times as much, takes no more than half of the time that there
            // is.
            Fate::Taken if took < given_up / 4 => {
                let times = if took < given_up / 16 { 3 } else { 1 };
                // Of less nobody knows what more would do.
                let more = if self.fills { times * bytes } else { 0 };
                window.line.set_limit(window.line.limit_bytes() + more);
            }
            Fate::Taken if took > given_up / 2 => window.shrink(self.began, 2),
            Fate::Taken | Fate::Refused => {}
            Fate::Lost => window.shrink(self.began, 4),
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.window.idle.set(self.window.clock.monotonic());
    }
}

/// The time that the client of a store gives a request with so many bytes (`ebb-bucket`).
fn given_up_after(bytes: u64) -> Duration {
    Duration::from_secs(35) + slow_upload(bytes)
}

/// What so many bytes take on the slowest line that carries anything to a bucket.
pub fn slow_upload(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST_UPLOAD_BYTES_PER_SECOND)
}

/// A line that nothing was sent over for so long is a new one.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Nobody waits for his turn with less.
const SMALL_BYTES: u64 = 16 << 10;

/// What is let out before anything is known of the line, and at least. One body always is.
const FIRST_BYTES: u64 = 8 << 20;
const LEAST_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::Time;
    use ebb_ports::PortFuture;
    use futures_util::FutureExt;

    const MIB: u64 = 1 << 20;

    #[derive(Default)]
    struct Watch(Cell<Duration>);

    impl Clock for Watch {
        fn wall(&self) -> Time {
            unreachable!("nobody asks what day it is")
        }

        fn monotonic(&self) -> Duration {
            self.0.get()
        }

        fn sleep(&self, _: Duration) -> PortFuture<'static, ()> {
            unreachable!("nobody sleeps")
        }
    }

    fn all_that_may<'a>(window: &'a UploadWindow, bytes: u64) -> Vec<Sending<'a>> {
        std::iter::from_fn(|| window.send(bytes).now_or_never().flatten()).take(100).collect()
    }

    #[test]
    fn a_line_that_answers_soon_is_filled() {
        let window = UploadWindow::new(Rc::new(Watch::default()));
        for most in [1, 4, 13, 34, 88] {
            let sent = all_that_may(&window, 8 * MIB);
            assert_eq!(sent.len(), most);
            sent.into_iter().for_each(|sending| sending.ended(Fate::Taken));
        }
    }

    #[test]
    fn one_after_the_other_says_nothing_of_more() {
        let window = UploadWindow::new(Rc::new(Watch::default()));
        for _ in 0..100 {
            window.send(MIB).now_or_never().flatten().unwrap().ended(Fate::Taken);
        }
        assert_eq!(all_that_may(&window, 4 * MIB).len(), 2);
    }

    #[test]
    fn what_is_late_or_lost_makes_it_smaller_once() {
        for (fate, expected) in [
            (Fate::Taken, [8, 4, 2, 1, 1]),
            (Fate::Lost, [8, 2, 1, 1, 1]),
            (Fate::Refused, [8, 8, 8, 8, 8]),
        ] {
            let watch = Rc::new(Watch::default());
            let window = UploadWindow::new(watch.clone());
            for most in expected {
                let sent = all_that_may(&window, MIB);
                assert_eq!(sent.len(), most);
                watch.0.set(watch.0.get() + given_up_after(MIB) / 2 + Duration::from_secs(1));
                sent.into_iter().for_each(|sending| sending.ended(fate));
            }
        }
    }

    #[test]
    fn after_a_pause_it_is_another_line() {
        let watch = Rc::new(Watch::default());
        let window = UploadWindow::new(watch.clone());
        for _ in 0..3 {
            all_that_may(&window, 8 * MIB)
                .into_iter()
                .for_each(|sending| sending.ended(Fate::Taken));
        }
        watch.0.set(FORGOTTEN);
        assert_eq!(all_that_may(&window, 8 * MIB).len(), 34);
        watch.0.set(3 * FORGOTTEN);
        assert_eq!(all_that_may(&window, 8 * MIB).len(), 1);
    }

    #[test]
    fn small_ones_pass_by() {
        let window = UploadWindow::new(Rc::new(Watch::default()));
        let _all = all_that_may(&window, 16 * MIB);
        assert!(matches!(window.send(SMALL_BYTES - 1).now_or_never(), Some(None)));
        assert!(window.send(SMALL_BYTES).now_or_never().is_none());
    }
}
