//! Files that people bring into the cache and take out of it by name: `ebb warmup` and `ebb evict`.
//! Both are requested in pieces, so that the caller sets the speed and can stop. No progress is
//! kept here: a piece that is done is not done again.

use crate::Node;
use crate::admin::troubles::Subject;
use crate::readahead::streams::MAX_REQUEST_BYTES;
use ebb_core::byte_map::ByteOrigin;
use ebb_model::*;
use std::ops::Range;
use std::rc::Rc;

const BLOCKS_PER_CHUNK: u64 = CHUNK_BYTES / BLOCK_BYTES;

/// How often in a row a piece is fetched. If it is evicted again each time there is no room for it:
/// a reader needs its bytes all the same, a warm-up does not.
const MAX_ATTEMPTS: usize = 4;

/// Chunks without anything to drop, and files that are not meant, that are passed in one piece:
/// other tasks get their turn after it.
const MAX_PASSED: usize = 4096;

impl Node {
    /// Fetches the bytes of a range that are only in the bucket, at most one chunk's bytes, and
    /// prefers them to incidental reads. Returns how many bytes came.
    pub(crate) async fn warm(
        self: &Rc<Self>,
        ino: Ino,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64, RpcError> {
        // Changes of a client that has yet to come back are not there yet.
        if self.attachments.awaits_sole() || self.lacks_bytes(ino) {
            return Err(RpcError::Retry);
        }
        self.bring(ino).await?;
        let wanted = offset..offset.saturating_add(len_bytes.min(CHUNK_BYTES));
        let mut fetched_bytes = 0;
        for attempt in 0..=MAX_ATTEMPTS {
            let remote = self.remote_in(ino, &wanted)?;
            if remote.is_empty() {
                if attempt > 0 {
                    self.trouble(Subject::Fetched(ino), None);
                }
                self.data.cache.prefer(ino, &wanted);
                return Ok(fetched_bytes);
            }
            if attempt == MAX_ATTEMPTS {
                break;
            }
            let bytes = remote.iter().map(|range| range.end - range.start).sum();
            fetched_bytes = fetched_bytes.max(bytes);
            self.fetch_in(ino, &remote, MAX_REQUEST_BYTES).await?;
        }
        Err(self.fetched_in_vain(ino))
    }

    fn remote_in(&self, ino: Ino, wanted: &Range<u64>) -> Result<Vec<Range<u64>>, FsError> {
        let state = self.replica.view();
        let size = state.namespace().attr(ino)?.file_bytes()?;
        let plan = state.extents().plan_read(ino, wanted.clone(), size);
        Ok(plan
            .into_iter()
            .filter(|part| part.origin == ByteOrigin::Remote)
            .map(|part| part.range)
            .collect())
    }

    /// Drops clean blocks that are not pinned, of the files at or below an inode, beginning with
    /// this chunk of this file, until that many bytes are free. Returns how many are, and the
    /// position to go on from.
    pub(crate) async fn evict_below(
        &self,
        root: Ino,
        from: (Ino, u64),
        limit_bytes: u64,
    ) -> Result<(u64, Option<(Ino, u64)>), RpcError> {
        self.data.downloads.filled(|ino| self.is_below(ino, root)).await;
        let (mut at, mut freed, mut passed) = (from, 0, 0);
        loop {
            let next = self
                .replica
                .view()
                .extents()
                .next_resident((at.0, at.1.saturating_mul(BLOCKS_PER_CHUNK)), 1);
            let Some((ino, blocks)) = next else { return Ok((freed, None)) };
            let chunk = blocks.start / BLOCKS_PER_CHUNK;
            if freed >= limit_bytes || passed >= MAX_PASSED {
                return Ok((freed, Some((ino, chunk))));
            }
            let bytes = if self.is_below(ino, root) && !self.is_pinned(ino) {
                at = (ino, chunk + 1);
                self.evict(ino, chunk).await?
            } else {
                at = (Ino(ino.0.saturating_add(1)), 0);
                0
            };
            freed += bytes;
            passed += usize::from(bytes == 0);
        }
    }
}
