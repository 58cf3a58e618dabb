//! The clock port over Linux clocks and tokio timers.

use ebb_model::Time;
use ebb_ports::{Clock, PortFuture};
use std::time::Duration;

/// CLOCK_REALTIME and CLOCK_BOOTTIME.
pub struct OsClock;

impl Clock for OsClock {
    fn wall(&self) -> Time {
        let now = read(libc::CLOCK_REALTIME);
        Time { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
    }

    fn monotonic(&self) -> Duration {
        let now = read(libc::CLOCK_BOOTTIME);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn sleep(&self, duration: Duration) -> PortFuture<'static, ()> {
        let end = self.monotonic().saturating_add(duration);
        Box::pin(async move {
            loop {
                let left = end.saturating_sub(OsClock.monotonic());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(LONGEST_NAP)).await;
            }
        })
    }
}

/// tokio's timers stop during suspension and boot time does not. This bounds how late a sleeper
/// wakes after a resume, which the holder of a lease depends on.
const LONGEST_NAP: Duration = Duration::from_secs(1);

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to.
    let result = unsafe { libc::clock_gettime(clock, &mut now) };
    assert_eq!(result, 0, "every Linux that ebb runs on has this clock");
    now
}
