use crate::ClientPorts;
use std::time::Duration;

/// Waits between attempts. The nominal wait doubles each time, and half of it is random, so that
/// the clients of a restarted node do not retry in step.
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { next: FIRST }
    }

    pub(crate) async fn pause(&mut self, ports: &ClientPorts) {
        let half = self.next / 2;
        let jitter =
            Duration::from_nanos(ports.entropy.next_u64() % (half.as_nanos() as u64).max(1));
        self.next = (self.next * 2).min(LONGEST);
        ports.clock.sleep(half + jitter).await;
    }
}

const FIRST: Duration = Duration::from_millis(4);

/// A client finds a restarted node within this time.
const LONGEST: Duration = Duration::from_secs(2);
