//! Counters of a mount's requests, and the log of slow ones.

use crate::abi;
use crate::profile::Profiling;
use ebb_model::{Ino, LogBudget, MountStats, Tallies};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

pub struct Counters {
    began: Instant,
    operations: RefCell<Tallies>,
    /// Requests that take longer are logged.
    slow: Cell<Option<Duration>>,
    budget: RefCell<LogBudget>,
    pub(crate) profiling: RefCell<Option<Profiling>>,
}

/// A request that has no answer yet.
pub(crate) struct Arrival {
    pub opcode: u32,
    /// `None` if the request could not be read.
    pub ino: Option<Ino>,
    /// Bytes of files that came with the request.
    pub sent_bytes: usize,
    began: Instant,
}

impl Arrival {
    pub fn now(opcode: u32, ino: Option<Ino>, sent_bytes: usize) -> Arrival {
        Arrival { opcode, ino, sent_bytes, began: Instant::now() }
    }
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            began: Instant::now(),
            operations: RefCell::default(),
            slow: Cell::new(None),
            budget: RefCell::default(),
            profiling: RefCell::default(),
        }
    }

    /// Applies from the call on.
    pub fn tell_slower_than(&self, limit: Option<Duration>) {
        self.slow.set(limit);
    }

    pub fn stats(&self) -> MountStats {
        let uptime_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        MountStats { uptime_ms, operations: self.operations.borrow().counted() }
    }

    pub(crate) fn answered(&self, request: &Arrival, error: i32, body_bytes: usize) {
        let now = Instant::now();
        let took = now.saturating_duration_since(request.began);
        let bytes = match request.opcode {
            _ if error != 0 => 0,
            abi::READ => body_bytes,
            _ => request.sent_bytes,
        };
        let operation = abi::opcode_name(request.opcode);
        self.operations.borrow_mut().record(operation, took, error != 0, bytes as u64);
        if let Some(profiling) = self.profiling.borrow_mut().as_mut() {
            profiling.add(request, took, error != 0, bytes as u64);
        }
        // A wait for a lock depends on its owner, not on ebb.
        if request.opcode != abi::SETLKW && self.slow.get().is_some_and(|limit| took >= limit) {
            let told = self.budget.borrow_mut().take(now.saturating_duration_since(self.began));
            if let Some(left_out) = told {
                let took_ms = took.as_millis() as u64;
                tracing::warn!(
                    operation,
                    inode = request.ino.map(tracing::field::display),
                    took_ms,
                    error,
                    left_out,
                    "a slow operation"
                );
            }
        }
    }
}
