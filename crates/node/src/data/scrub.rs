//! Scrubbing: everything that is cached, the log and its snapshot are read and compared with their
//! checksums once in a stated time, so that what rots on the node's disk is found while the bucket,
//! or the node's memory, still has it.
//!
//! It reads as slowly as that allows, and never faster than it may.

use crate::Node;
use crate::latches::Mode;
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

/// After this time it is tried again to replace a damaged log.
const RETRY: Duration = Duration::from_secs(60);

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

/// How much may be read.
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
        // What could not be read in time is not caught up with.
        self.due_bytes = (self.due_bytes + share + 1).min(self.node.options.scrub_bytes_per_sec);
    }

    /// Waits until so many bytes may be read, or as many as may be at one time, and says how many.
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
                self.scrub.status.borrow_mut().round_ended = Some(self.ports.clock.wall());
            }
        }
    }

    /// What is damaged of it is in memory, and written anew. As long as that cannot be done
    /// `status` says what is at stake.
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
                match self.bucket {
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

    /// Reads these blocks of a file, as far as they are still there. What is damaged and in the
    /// bucket too is dropped, and fetched when it is next read; the rest is named by `status`.
    async fn scrub(self: &Rc<Self>, ino: Ino, blocks: Range<u64>) {
        let guard = self.latches.hold(ino, Mode::Shared).await;
        let present = self.replica.view().extents().resident_runs(ino, blocks);
        let before = self.scrub.status().dropped;
        for block in present.into_iter().flatten() {
            let read =
                self.read_local(ino, &(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES)).await;
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
            self.refresh_granted(ino);
        }
    }
}
