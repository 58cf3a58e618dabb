//! Checksums of written bytes: a block that grows with its file has one from its first write on,
//! and loses it before any of its bytes is overwritten.

use crate::Node;
use crate::buckets::ask::Damage;
use crate::readahead::streams::MAX_REQUEST_BYTES;
use ebb_core::blocks;
use ebb_core::byte_map::{ByteOrigin, Segment};
use ebb_core::extent::Block;
use ebb_format::sums::Sums;
use ebb_model::*;
use ebb_ports::ETag;
use ebb_store::{Mode, StoreLocation};
use std::ops::Range;
use std::rc::Rc;

impl Node {
    /// The checksums of blocks that a write touches, as far as the content of the whole block is
    /// known with it: a block that the write covers, and the last block of the file if there are
    /// only zeros where it is written. A block inside the file that is written in pieces has none,
    /// for it would lose it with the next piece. The inode's latch is held exclusively.
    pub(crate) fn sums_of_write(
        &self,
        location: &StoreLocation,
        offset: u64,
        data: &[u8],
    ) -> Vec<Option<u32>> {
        let (ino, len_bytes) = (location.ino, data.len() as u64);
        let state = self.replica.view();
        // An upload that has just ended may have dropped blocks whose bytes are here still.
        let left = state.extents().missing_for_write(ino, offset, len_bytes);
        let has_zeros =
            |block: u64| !left.iter().any(|fill| fill.block == block && fill.object_bytes > 0);
        let sum_of = |block: u64| {
            let start = block * BLOCK_BYTES;
            let written = offset.max(start)..(offset + len_bytes).min(start + BLOCK_BYTES);
            let (at, bytes) = (
                (written.start - start) as usize,
                &data[(written.start - offset) as usize..(written.end - offset) as usize],
            );
            if bytes.len() as u64 == BLOCK_BYTES {
                return Some(ebb_format::crc32c(bytes));
            }
            if written.end < location.size_bytes || self.is_exposed(ino) {
                return None;
            }
            match state.extents().block(ino, block) {
                None if has_zeros(block) => Some(ebb_format::crc32c_in_block(at, bytes)),
                Some(_) if at == 0 => Some(ebb_format::crc32c_in_block(at, bytes)),
                Some(Block { sum, .. }) if written.start >= location.size_bytes => {
                    Some(ebb_format::crc32c_with(sum?, at, bytes))
                }
                _ => None,
            }
        };
        blocks::touched_blocks(offset, len_bytes).map(sum_of).collect()
    }

    /// The checksum of bytes of an object, if all of them are cached unchanged.
    pub(crate) fn sum_of_cached(&self, ino: Ino, etag: &ETag, range: &Range<u64>) -> Option<u32> {
        let state = self.replica.view();
        state
            .extents()
            .object(ino)
            .filter(|home| home.etag == etag.0 && range.end <= home.valid_bytes)?;
        let clean_sum =
            |block: u64| state.extents().block(ino, block).filter(|known| !known.dirty)?.sum;
        let blocks = blocks::touched_blocks(range.start, range.end - range.start);
        // A sequential reader gets the last block last.
        clean_sum(blocks.end - 1).filter(|_| !state.extents().is_exposed(ino))?;
        ebb_format::crc32c_of_blocks(range.end - range.start, blocks.map(clean_sum))
    }

    /// Bytes that arrived in pieces could not be checked before all of a span is here. If a span
    /// differs from the written one, wrong bytes may have been read; the fetched blocks of it are
    /// dropped, and fetched at one time. A span that is too long for that is dropped only once.
    pub(crate) async fn check_spans(
        self: &Rc<Self>,
        ino: Ino,
        key: &str,
        etag: &ETag,
        sums: &Sums,
        range: Range<u64>,
    ) -> Result<(), RpcError> {
        for (span, sum) in sums.cut_spans(&range) {
            match self.sum_of_cached(ino, etag, &span) {
                None => continue,
                Some(cached) if cached == sum => {
                    self.is_sound(key, &span);
                    continue;
                }
                Some(_) => {}
            }
            // A grant that is made at the same time takes the file for whole.
            let _guard = self.data.latches.hold(ino, Mode::Exclusive).await;
            if self.sum_of_cached(ino, etag, &span).is_none_or(|cached| cached == sum) {
                continue;
            }
            let is_known = self.instruments.troubles().contents(key).contains(&span);
            let what = format!(
                "bytes {} to {} have another checksum, and were perhaps read so",
                span.start, span.end
            );
            self.is_damaged(key, &Damage { at: span.clone(), what });
            if is_known && span.end - span.start > MAX_REQUEST_BYTES {
                continue;
            }
            self.drop_fetched(ino, &span).await?;
            self.refresh_granted(ino);
        }
        Ok(())
    }

    /// Drops the unchanged blocks of these bytes that were fetched from the bucket.
    pub(crate) async fn drop_fetched(&self, ino: Ino, range: &Range<u64>) -> Result<(), RpcError> {
        let runs = {
            let state = self.replica.view();
            let is_fetched = |block: &u64| {
                state
                    .extents()
                    .block(ino, *block)
                    .is_some_and(|known| !known.dirty && known.version == Version(0))
            };
            blocks::runs(
                blocks::touched_blocks(range.start, range.end - range.start).filter(is_fetched),
            )
        };
        for run in runs {
            self.commit_local(LocalCommand::Absent {
                ino,
                first: run.start,
                count: run.end - run.start,
            })
            .await?;
        }
        Ok(())
    }

    /// Nothing is written beside damaged bytes: a block that is about to lose its checksum, or its
    /// copy in the bucket, is compared once more, even if it had been compared before. A damaged
    /// clean block is dropped, and its range returned to be fetched.
    pub(crate) async fn verify_rest(
        &self,
        location: &StoreLocation,
        written: &Range<u64>,
    ) -> Result<Option<Range<u64>>, RpcError> {
        for block in rest(location, written) {
            let known = self.replica.view().extents().block(location.ino, block);
            let Some(Block { dirty, sum: Some(_), .. }) =
                known.filter(|_| !self.is_exposed(location.ino))
            else {
                continue;
            };
            let there = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            let is_last_time = !dirty
                || written.start.max(there.start)
                    < written.end.min(there.end).min(location.size_bytes);
            let is_sound = || {
                self.is_verified(location.ino, block)
                    && !self.damaged_blocks(location.ino).contains(&block)
            };
            if (is_last_time || !is_sound())
                && Box::pin(self.read_local(location.ino, &there)).await?.is_none()
            {
                return Ok(Some(there));
            }
        }
        Ok(None)
    }

    /// As [`Node::verify_rest`] and [`Node::void_sums`], for a file that is about to be cut. If the
    /// store file is longer, the cut is forced before it is made; any other is overwritten in place
    /// at the cut.
    pub(crate) async fn void_cut(
        &self,
        location: &StoreLocation,
        size: u64,
    ) -> Result<(), RpcError> {
        if size == 0 || size >= location.size_bytes {
            return Ok(());
        }
        // A dropped clean block has the bucket's content up to there.
        self.verify_rest(location, &(size..location.size_bytes)).await?;
        let end = match location.packed {
            Some(_) => location.size_bytes,
            None if self
                .store
                .is_longer(location, size)
                .await
                .map_err(|error| self.disk_failed(location.ino, error))? =>
            {
                size
            }
            None => location.size_bytes.min(size.next_multiple_of(BLOCK_BYTES)),
        };
        self.void_sums(location, size..end).await
    }

    /// Dirty blocks lose their checksums before they are overwritten in place: a crash before the
    /// command is safe would leave the sum of the old bytes, and bytes that were forced long ago
    /// could not be read any more. Clean blocks would be fetched anew: their clean state is forced
    /// first, or a power cut would make them dirty again. The whole chunk is taken at once, so that
    /// a file rewritten in small pieces forces the log once per chunk. A file of which nothing was
    /// reported as forced has no such promise in the log: the record that voids the sums comes
    /// before any. The remaining bytes of a block that is changed in part were verified before.
    pub(crate) async fn void_sums(
        &self,
        location: &StoreLocation,
        changed: Range<u64>,
    ) -> Result<(), RpcError> {
        let ino = location.ino;
        if self.is_exposed(ino) || changed.is_empty() {
            return Ok(());
        }
        let touched = blocks::touched_blocks(changed.start, changed.end - changed.start);
        let is_clean = |block: u64| {
            self.replica
                .view()
                .extents()
                .block(ino, block)
                .is_some_and(|block| !block.dirty && block.sum.is_some())
        };
        if self.flusher.may_be_dirty_again(ino, self.replica.durable())
            && touched.clone().any(is_clean)
        {
            self.force_log().await?;
        }
        let summed = |block: Block| block.dirty && block.sum.is_some();
        // Damaged blocks beside the change stay known as damaged.
        let damaged = self.damaged_blocks(ino);
        let runs = {
            let state = self.replica.view();
            let stays = |block: u64| damaged.contains(&block) && !touched.contains(&block);
            if !touched.clone().any(|block| state.extents().block(ino, block).is_some_and(summed)) {
                return Ok(());
            }
            let per_chunk = CHUNK_BYTES / BLOCK_BYTES;
            let mut runs = Vec::<Range<u64>>::new();
            for chunk in touched.start / per_chunk..touched.end.div_ceil(per_chunk) {
                for (block, _) in state
                    .extents()
                    .chunk_blocks(ino, chunk)
                    .filter(|(block, known)| summed(*known) && !stays(*block))
                {
                    match runs.last_mut() {
                        Some(run) if run.end == block => run.end += 1,
                        _ => runs.push(block..block + 1),
                    }
                }
            }
            runs
        };
        for run in runs {
            self.commit_local(LocalCommand::Unsynced {
                ino,
                first: run.start,
                count: run.end - run.start,
            })
            .await?;
        }
        if self.store.is_never_synced(ino) { Ok(()) } else { self.force_log().await.map(drop) }
    }

    /// Computes the checksums of such blocks, by their versions, that have none, so that later
    /// damage is found.
    pub(crate) async fn sum_void(
        &self,
        ino: Ino,
        plan: &[Segment],
        of: impl Fn(u64, Version) -> bool,
    ) -> Result<(), RpcError> {
        let mut sums = Vec::new();
        let version = self.replica.view().version();
        for part in plan.iter().filter(|part| part.origin == ByteOrigin::Local) {
            for block in part.range.start / BLOCK_BYTES..part.range.end.div_ceil(BLOCK_BYTES) {
                let known = self.replica.view().extents().block(ino, block);
                let void =
                    known.is_some_and(|known| known.sum.is_none() && of(block, known.version));
                if void {
                    let data = self
                        .store
                        .read(&self.location(ino), block * BLOCK_BYTES, BLOCK_BYTES as usize)
                        .await;
                    sums.push((
                        block,
                        ebb_format::crc32c(&data.map_err(|error| self.disk_failed(ino, error))?),
                    ));
                }
            }
        }
        self.sum_unless_exposed(ino, version, &sums).await
    }
}

/// Blocks at the edges of these bytes that keep other bytes of the file, at most two.
fn rest(location: &StoreLocation, written: &Range<u64>) -> Vec<u64> {
    if written.is_empty() {
        return Vec::new();
    }
    let mut ends = vec![written.start / BLOCK_BYTES, (written.end - 1) / BLOCK_BYTES];
    ends.dedup();
    let is_left = |block: &u64| {
        let there = block * BLOCK_BYTES..location.size_bytes.min((block + 1) * BLOCK_BYTES);
        there.start < written.start.min(there.end) || written.end < there.end
    };
    ends.retain(is_left);
    ends
}
