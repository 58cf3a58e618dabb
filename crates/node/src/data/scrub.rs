//! Scrubbing: all cached bytes, the log and its snapshot are read and compared with their checksums
//! once in a stated time, so that rot on the node's disk is found while the bucket, or the node's
//! memory, still has the bytes.
//!
//! It reads as slowly as that time allows, and never faster than its rate limit.

use crate::Node;
use ebb_model::*;
use ebb_store::Mode;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How often the scrub computes its due bytes.
const TICK: Duration = Duration::from_secs(1);

/// Blocks read at one time, while the file's writers wait.
const PIECE_BLOCKS: u64 = 16;

/// The position before every block.
const START: (Ino, u64) = (Ino(0), 0);

/// Pause before another attempt to replace a damaged log.
const RETRY: Duration = Duration::from_secs(60);

/// The progress of the scrub.
#[derive(Default)]
pub struct Scrub {
    status: RefCell<ScrubStatus>,
}

impl Scrub {
    pub fn status(&self) -> ScrubStatus {
        self.status.borrow().clone()
    }
}

/// The rate limit of the scrub.
struct ScrubRate<'a> {
    node: &'a Node,
    interval: Duration,
    due_bytes: u64,
}

impl ScrubRate<'_> {
    async fn tick(&mut self) {
        self.node.ports.clock.sleep(TICK).await;
        let all =
            self.node.replica.view().extents().resident_bytes() + self.node.replica.log().bytes();
        let share = (all as f64 * (TICK.as_secs_f64() / self.interval.as_secs_f64())) as u64;
        // Bytes that could not be read in time are not caught up with.
        self.due_bytes = (self.due_bytes + share + 1).min(self.node.options.scrub_bytes_per_sec);
    }

    /// Waits until so many bytes may be read, or the most at one time, and returns how many.
    async fn afford(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.node.options.scrub_bytes_per_sec);
        while self.due_bytes < bytes && !self.node.is_stopping() {
            self.tick().await;
        }
        self.due_bytes = self.due_bytes.saturating_sub(bytes);
        bytes
    }
}

impl Node {
    pub(crate) async fn scrub_for_ever(self: Rc<Self>) {
        let Some(interval) = self.options.scrub_interval else { return };
        let mut rate = ScrubRate { node: &self, interval, due_bytes: 0 };
        while !self.is_stopping() {
            rate.tick().await;
            // Clients that are still to come back bring bytes whose checksums are not known yet,
            // nor does a snapshot say which these are.
            if self.attachments.awaits_any() {
                continue;
            }
            self.scrub_log(&mut rate).await;
            self.scrub_blocks(&mut rate).await;
            if !self.is_stopping() {
                self.data.scrub.status.borrow_mut().round_ended = Some(self.ports.clock.wall());
            }
        }
    }

    /// Damaged records of the log have their state in memory, and are written anew. As long as that
    /// cannot be done `status` reports the state at risk.
    async fn scrub_log(&self, rate: &mut ScrubRate<'_>) {
        let damage = self.replica.log().prove(async |bytes| rate.afford(bytes).await).await;
        if damage.is_none() {
            return;
        }
        while !self.is_stopping() {
            let Err(error) = self.renew_log(&damage).await else { return };
            let dirty = {
                let state = self.replica.view();
                let dirt = state.backing().dirt();
                match self.buckets.all() {
                    Some(_) => format!(
                        "{} files and {} directories, {} bytes of files, that are not in the \
                         bucket",
                        dirt.files,
                        dirt.pages,
                        state.extents().dirty_bytes()
                    ),
                    None => "all of the volume".to_owned(),
                }
            };
            self.trouble(
                "log",
                Some(format!(
                    "the log is damaged on the node's disk, and a start could not read what comes \
                     after: {damage}. A new snapshot cannot \
                     be written: {error}. If the node dies before one is, it does not start again, \
                     and out of reach are {dirty}"
                )),
            );
            self.ports.clock.sleep(RETRY).await;
        }
    }

    async fn scrub_blocks(self: &Rc<Self>, rate: &mut ScrubRate<'_>) {
        let mut at = START;
        while !self.is_stopping() {
            let next = self.replica.view().extents().next_resident(at, PIECE_BLOCKS);
            let Some((ino, blocks)) = next else { return };
            rate.afford((blocks.end - blocks.start) * BLOCK_BYTES).await;
            at = (ino, blocks.end);
            self.scrub(ino, blocks).await;
        }
    }

    /// Reads these blocks of a file, as far as they are still there. A damaged block that is also
    /// in the bucket is dropped, and fetched when it is next read; any other is named by `status`.
    async fn scrub(self: &Rc<Self>, ino: Ino, blocks: Range<u64>) {
        let guard = self.data.latches.hold(ino, Mode::Shared).await;
        let present = self.replica.view().extents().resident_runs(ino, blocks);
        let before = self.data.scrub.status().dropped;
        for block in present.into_iter().flatten() {
            let read =
                self.read_local(ino, &(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES)).await;
            let mut status = self.data.scrub.status.borrow_mut();
            status.blocks += 1;
            match read {
                Ok(Some(_)) => {}
                Ok(None) => status.dropped += 1,
                Err(_) => status.damaged += 1,
            }
        }
        drop(guard);
        if self.data.scrub.status().dropped > before {
            self.refresh_granted(ino);
        }
    }
}
