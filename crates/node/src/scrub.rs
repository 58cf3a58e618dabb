//! Scrubbing: everything that is cached is read and compared with its checksum once in a stated
//! time, so that what rots on the node's disk is found while the bucket still has it.
//!
//! It reads as slowly as that allows, and never faster than it may.

use crate::Node;
use crate::locks::Mode;
use ebb_model::*;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How often it looks how much is due.
const TICK: Duration = Duration::from_secs(1);

/// Read at one time, while the file's writers wait.
const PIECE_BLOCKS: u64 = 16;

/// Before every block.
const START: (Ino, u64) = (Ino(0), 0);

/// How far the scrub has come.
#[derive(Default)]
pub struct Scrub {
    status: RefCell<ScrubStatus>,
}

impl Scrub {
    pub fn status(&self) -> ScrubStatus {
        self.status.borrow().clone()
    }
}

impl Node {
    pub(crate) async fn scrub_for_ever(self: Rc<Self>) {
        let Some(interval) = self.options.scrub_interval else { return };
        let mut at = START;
        let mut due_bytes = 0;
        while !self.is_stopping() {
            self.ports.clock.sleep(TICK).await;
            let cached = self.replica.view().extents().resident_bytes();
            let share = (cached as f64 * (TICK.as_secs_f64() / interval.as_secs_f64())) as u64;
            // What could not be read in time is not caught up with.
            due_bytes = (due_bytes + share + 1).min(self.options.scrub_bytes_per_sec);
            // Clients that are still to come back bring bytes whose checksums are not known yet.
            while !self.is_stopping() && !self.attachments.awaits_any() {
                let next = self.replica.view().extents().next_resident(at, PIECE_BLOCKS);
                let Some((ino, blocks)) = next else {
                    if at != START {
                        self.scrub.status.borrow_mut().round_ended = Some(self.ports.clock.wall());
                    }
                    at = START;
                    break;
                };
                let len_bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
                if len_bytes > due_bytes {
                    break;
                }
                due_bytes -= len_bytes;
                at = (ino, blocks.end);
                self.scrub(ino, blocks).await;
            }
        }
    }

    /// Reads these blocks of a file, as far as they are still there. What is damaged and in the
    /// bucket too is dropped, and fetched when it is next read; the rest is named by `status`.
    async fn scrub(self: &Rc<Self>, ino: Ino, blocks: Range<u64>) {
        let guard = self.locks.lock(ino, Mode::Shared).await;
        let present = self.replica.view().extents().resident_runs(ino, blocks);
        let before = self.scrub.status().dropped;
        for block in present.into_iter().flatten() {
            let read = self.read_local(ino, &(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES)).await;
            let mut status = self.scrub.status.borrow_mut();
            status.blocks += 1;
            match read {
                Ok(Some(_)) => {}
                Ok(None) => status.dropped += 1,
                Err(_) => status.damaged += 1,
            }
        }
        drop(guard);
        if self.scrub.status().dropped > before {
            self.refresh_lent(ino);
        }
    }
}
