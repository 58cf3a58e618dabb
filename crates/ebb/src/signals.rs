//! SIGTERM and SIGINT: the first asks for a clean end, the second for an end now.

use crate::failure::Failure;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Who ends everything that belongs to a mount signals the supervisor too, which passes it on.
const ECHO: Duration = Duration::from_millis(100);

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    last: Option<Instant>,
}

impl Signals {
    pub fn listen() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::of("signals", error));
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())?, last: None })
    }

    /// Completes with the next of them.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            let last = self.last.replace(Instant::now());
            if last.is_none_or(|last| last.elapsed() >= ECHO) {
                return;
            }
        }
    }
}
