//! Exposed files: while a writable passthrough grant exists, a mapping can store into the store
//! file past the node (decision 8).
//!
//! Laws:
//! - The log records the exposure before any such store is possible, and all bytes of the file are
//!   forced before that.
//! - While a file is exposed all its bytes are in its store file, in holes too; that content is the
//!   file. No checksum is verified, no block is dropped, and nothing is fetched that is not absent
//!   from the bucket's side; bytes are forced before a record says that the bucket has them.
//! - Stores are found by comparing blocks with their checksums, and logged as writes. For an upload
//!   the very bytes that are sent are compared: earlier changes stay dirty, and later ones are
//!   found by the next comparison.
//! - The exposure ends once the file is not in use, all of it was compared after that, and its
//!   bytes are forced.

use crate::Node;
use crate::replica::Proposal;
use bytes::Bytes;
use ebb_model::*;
use ebb_store::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How often the kernel is asked whether the files are still in use.
const POLL: Duration = Duration::from_secs(1);

/// The search for stored bytes takes at most this share of the time.
const COMPARED_SHARE: u32 = 20;

/// Blocks compared at one time, while the file's writers wait.
const PIECE_BLOCKS: u64 = 16;

/// The most checksums in one record: any segment has room for them.
const SUMS_AT_ONCE: usize = 512;

impl Node {
    pub(crate) fn is_exposed(&self, ino: Ino) -> bool {
        self.replica.view().extents().is_exposed(ino)
    }

    /// Permits stores into the store file of a granted file, by mappings. The inode's latch is
    /// held.
    pub(crate) async fn expose(&self, ino: Ino) -> Result<(), RpcError> {
        if self.is_exposed(ino) {
            return Ok(());
        }
        self.log_exposed(ino).await
    }

    /// Holes of an exposed file were made: any later bytes in them were stored there.
    pub(crate) async fn note_holes(&self, ino: Ino) -> Result<(), RpcError> {
        if self.is_exposed(ino) { self.log_exposed(ino).await } else { Ok(()) }
    }

    async fn log_exposed(&self, ino: Ino) -> Result<(), RpcError> {
        self.fsync(ino).await?;
        self.commit_local(LocalCommand::Exposed { ino, exposed: true }).await?;
        self.flusher.exposed(ino);
        self.force_log().await.map(drop)
    }

    /// Finds the bytes stored into these blocks of an exposed file, and returns the blocks' bytes
    /// as they were compared. The inode's latch is held.
    pub(crate) async fn compare(&self, ino: Ino, blocks: Range<u64>) -> Result<Bytes, RpcError> {
        let _turn = self.data.exposures.compare_blocks(ino).await;
        let location = self.location(ino);
        let (start, len_bytes) =
            (blocks.start * BLOCK_BYTES, ((blocks.end - blocks.start) * BLOCK_BYTES) as usize);
        let data = self
            .store
            .read(&location, start, len_bytes)
            .await
            .map_err(|error| self.disk_failed(ino, error))?;
        let version = self.replica.view().version();
        let (mut stored, mut summed) = (Vec::<(u64, Vec<u32>)>::new(), Vec::new());
        for (block, bytes) in blocks.zip(data.chunks(BLOCK_BYTES as usize)) {
            let sum = ebb_format::crc32c(bytes);
            let state = self.replica.view();
            let known = state.extents().block(ino, block).map(|block| block.sum);
            let differs = match known {
                Some(None) => {
                    summed.push((block, sum));
                    false
                }
                Some(known) => known != Some(sum),
                None => state.extents().is_zero(ino, block) && bytes.iter().any(|byte| *byte != 0),
            };
            match stored.last_mut() {
                _ if !differs => {}
                Some((first, sums)) if *first + sums.len() as u64 == block => sums.push(sum),
                _ => stored.push((block, vec![sum])),
            }
        }
        if !summed.is_empty() {
            self.commit_local(LocalCommand::Summed { ino, version, sums: summed }).await?;
        }
        let time = self.ports.clock.wall();
        for (first, sums) in stored {
            let blocks = first..first + sums.len() as u64;
            let count = sums.len() as u64;
            let sums = sums.into_iter().map(Some).collect();
            let proposed = self.replica.propose(|state| {
                let stamp = Stamp { time, version: state.next_version() };
                let version = stamp.version;
                Ok(Proposal::of_both(
                    vec![LocalCommand::Staged { ino, version, first, sums, range: None }],
                    Command::Found { ino, first, count, stamp },
                ))
            });
            let (_, applied) = proposed.await?;
            self.store.stored(&location, blocks);
            self.unforced_writers.unknown(ino);
            self.perform_effects(applied, None).await?;
        }
        Ok(data)
    }

    /// Bytes of an exposed file as they were compared. The inode's latch is held.
    pub(crate) async fn read_compared(
        &self,
        ino: Ino,
        range: &Range<u64>,
    ) -> Result<Bytes, RpcError> {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let start = (range.start - blocks.start * BLOCK_BYTES) as usize;
        let data = self.compare(ino, blocks).await?;
        Ok(data.slice(start..start + (range.end - range.start) as usize))
    }

    /// As [`Node::compare`] for a range of bytes of any file: one that is not exposed is not
    /// compared.
    pub(crate) async fn find_stored(&self, ino: Ino, range: &Range<u64>) -> Result<(), RpcError> {
        if !self.is_exposed(ino) {
            return Ok(());
        }
        let end = range.end.min(self.location(ino).size_bytes).div_ceil(BLOCK_BYTES);
        let mut at = range.start / BLOCK_BYTES;
        while at < end {
            let piece = at..(at + PIECE_BLOCKS).min(end);
            at = piece.end;
            self.compare(ino, piece).await?;
        }
        Ok(())
    }

    /// Finds all bytes stored into an exposed file before the call, while clients go on using it.
    /// Callers that ask while one comparison is under way share the next one.
    pub(crate) async fn find_all_stored(&self, ino: Ino) -> Result<(), RpcError> {
        let asked = self.data.exposures.moment();
        let _turn = self.data.exposures.compare_whole(ino).await;
        if self.data.exposures.is_found_since(ino, asked) {
            return Ok(());
        }
        let (began, mut at) = (self.data.exposures.moment(), 0);
        while self.is_exposed(ino) && at < self.location(ino).size_bytes {
            let _guard = self.data.latches.hold(ino, Mode::Shared).await;
            let piece = at..at + PIECE_BLOCKS * BLOCK_BYTES;
            at = piece.end;
            self.find_stored(ino, &piece).await?;
        }
        self.data.exposures.found(ino, began);
        Ok(())
    }

    /// Ends the exposure of a file that is not in use.
    async fn end_exposure(&self, ino: Ino) -> Result<bool, RpcError> {
        if self.is_in_use(ino).await? {
            return Ok(false);
        }
        self.data.exposures.begin_end(ino);
        self.find_all_stored(ino).await?;
        let _guard = self.data.latches.hold(ino, Mode::Exclusive).await;
        if !self.data.exposures.end(ino) {
            return Ok(false);
        }
        self.fsync(ino).await?;
        self.commit_local(LocalCommand::Exposed { ino, exposed: false }).await?;
        Ok(true)
    }

    /// Ends each exposure that can end, and finds the bytes stored so far into the other files.
    pub(crate) async fn find_stores(&self) -> Result<(), RpcError> {
        let exposed: Vec<Ino> = self.replica.view().extents().exposed().collect();
        for ino in exposed {
            if !self.end_exposure(ino).await? {
                self.find_all_stored(ino).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn find_stores_for_ever(self: Rc<Self>) {
        let mut due = BTreeMap::<Ino, Duration>::new();
        while !self.is_stopping() {
            self.ports.clock.sleep(POLL).await;
            // Replays of clients that have yet to return come first.
            if self.attachments.awaits_sole() {
                continue;
            }
            let exposed = self.replica.view().extents().exposed().collect::<Vec<_>>();
            let exposed: BTreeSet<Ino> =
                exposed.into_iter().filter(|ino| !self.lacks_bytes(*ino)).collect();
            due.retain(|ino, _| exposed.contains(ino));
            self.data.exposures.retain(&exposed);
            let mut found = Ok(());
            for ino in exposed {
                let began = self.ports.clock.monotonic();
                let compared = match self.end_exposure(ino).await {
                    Ok(false) if due.get(&ino).is_none_or(|due| *due <= began) => {
                        self.find_all_stored(ino).await
                    }
                    Ok(false) => continue,
                    ended => ended.map(drop),
                };
                let now = self.ports.clock.monotonic();
                due.insert(
                    ino,
                    now + self.options.flush_interval.max((now - began) * COMPARED_SHARE),
                );
                found = found.and(compared);
            }
            self.trouble(
                "mapped",
                found
                    .err()
                    .map(|error| format!("what is stored through mappings is not found: {error}")),
            );
        }
    }

    /// Bytes stored into exposed files are forced with the next sync: of all files, or of one.
    pub(crate) fn doubt_exposed(&self, only: Option<Ino>) {
        let exposed: Vec<Ino> = self
            .replica
            .view()
            .extents()
            .exposed()
            .filter(|ino| only.is_none_or(|only| only == *ino))
            .collect();
        for ino in exposed {
            self.store.stored(&self.location(ino), 0..u64::MAX);
        }
    }

    /// Bytes of an exposed file are forced before they are sent: once the bucket has them, older
    /// bytes must not come back with a power cut and count as stored.
    pub(crate) async fn force_for_upload(&self, ino: Ino) -> Result<(), RpcError> {
        match self.is_exposed(ino) {
            true => self.fsync(ino).await.map(drop),
            false => self.force_log().await.map(drop),
        }
    }

    /// Logs checksums of blocks, unless their bytes may have changed since they were read. There
    /// may be more than fit into one record.
    pub(crate) async fn sum_unless_exposed(
        &self,
        ino: Ino,
        version: Version,
        sums: &[(u64, u32)],
    ) -> Result<(), RpcError> {
        for sums in sums.chunks(SUMS_AT_ONCE) {
            let proposed = self.replica.propose(|state| match state.extents().is_exposed(ino) {
                true => Err(FsError::Busy.into()),
                false => Ok(LocalCommand::Summed { ino, version, sums: sums.to_vec() }),
            });
            match proposed.await {
                Ok(_) | Err(RpcError::Refused(FsError::Busy)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
