//! The limit of bytes on their way to a bucket at one time.
//!
//! All uploads share the line. On a slow line with too many of them none would end before it is
//! given up, and none ever would. The limit grows as long as answers come soon, and is halved once
//! they do not.

use ebb_ports::{Clock, SLOWEST_UPLOAD_BYTES_PER_SECOND};
use ebb_store::{Buffers, Room};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub struct UploadWindow {
    clock: Rc<dyn Clock>,
    line: Buffers,
    /// Monotonic time at which it was last made smaller.
    shrunk: Cell<Option<Duration>>,
    /// Since when no body is on its way.
    idle: Cell<Duration>,
}

/// The outcome of sending a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Taken,
    /// Refused: the line may not have carried it.
    Refused,
    Lost,
}

/// A body on its way, until dropped.
pub struct Sending<'a> {
    window: &'a UploadWindow,
    room: Room<'a>,
    began: Duration,
    /// At least half of the window is taken with it.
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

    /// Waits until so many bytes may be sent. Small bodies pass at once.
    pub async fn send(&self, bytes: u64) -> Option<Sending<'_>> {
        if bytes < SMALL_BYTES {
            return None;
        }
        if self.line.taken_bytes() == 0 && self.clock.monotonic() - self.idle.get() > FORGOTTEN {
            // The line may have changed.
            self.line.set_limit(self.line.limit_bytes().min(FIRST_BYTES));
        }
        let room = self.line.take(bytes).await;
        let fills = self.line.taken_bytes() >= self.line.limit_bytes() / 2;
        Some(Sending { window: self, room, began: self.clock.monotonic(), fills })
    }

    /// Shrinks the window, at most once for all bodies that were under way together.
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
            // With a window of twice or four times the size an upload takes at most half of its
            // time limit.
            Fate::Taken if took < given_up / 4 => {
                let times = if took < given_up / 16 { 3 } else { 1 };
                // An upload that does not fill the window does not show that more would fit.
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

/// The time for so many bytes on the slowest line that carries anything to a bucket.
pub fn slow_upload(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST_UPLOAD_BYTES_PER_SECOND)
}

/// A line without any upload for so long is taken for a new one.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// A smaller body never waits for its turn.
const SMALL_BYTES: u64 = 16 << 10;

/// The limit before anything is known of the line, and its lower bound. One body is always let out.
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
    fn upload_window_shrinks_once_for_late_or_lost_parts() {
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
