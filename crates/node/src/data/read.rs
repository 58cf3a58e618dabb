//! Reading: bytes in the store file are verified and returned, bytes in the bucket are fetched
//! first, and returned as they arrive, holes are zeros.

use crate::Node;
use crate::admin::troubles::Subject;
use crate::data::fetch::{MAX_ATTEMPTS, Piece};
use bytes::{Bytes, BytesMut};
use ebb_core::byte_map::{ByteOrigin, Segment};
use ebb_core::extent::Block;
use ebb_model::*;
use ebb_ports::DiskError;
use ebb_store::Mode;
use std::ops::Range;
use std::rc::Rc;

impl Node {
    pub(crate) async fn read(
        self: &Rc<Self>,
        ino: Ino,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Bytes, RpcError> {
        let len_bytes = u64::from(len_bytes).min(MAX_IO_BYTES as u64);
        let wanted = offset..offset.saturating_add(len_bytes);
        self.read_ahead(ino, &wanted);
        let mut pieces = Vec::new();
        for attempt in 0..MAX_ATTEMPTS {
            let guard = self.data.latches.hold(ino, Mode::Shared).await;
            let plan = {
                let state = self.replica.view();
                let size = state.namespace().attr(ino)?.file_bytes()?;
                state.extents().plan_read(ino, wanted.clone(), size)
            };
            if attempt == 0 {
                self.instruments.counters().read(&plan);
            }
            let remote = plan
                .iter()
                .filter(|part| part.origin == ByteOrigin::Remote)
                .map(|part| part.range.clone());
            let remote: Vec<Range<u64>> =
                remote.filter(|range| self.fetched(ino, range, &pieces).is_none()).collect();
            if remote.is_empty() {
                match self.gather(ino, &plan, &pieces).await? {
                    Some(data) => {
                        if attempt > 0 {
                            self.trouble(Subject::Fetched(ino), None);
                        }
                        self.data.cache.touch(ino, &wanted);
                        return Ok(data);
                    }
                    // A clean block was damaged: it is absent now, and fetched by the next attempt.
                    None => continue,
                }
            }
            drop(guard);
            let _waits = self.attachments.read_waits(self.ports.clock.monotonic());
            pieces.extend(self.fetch_to_read(ino, &remote).await?);
        }
        Err(self.fetched_in_vain(ino))
    }

    /// The length of an inode that must be a regular file.
    pub(crate) fn file_size(&self, ino: Ino) -> Result<u64, RpcError> {
        Ok(self.replica.view().namespace().attr(ino)?.file_bytes()?)
    }

    /// The parts of an absent range in these pieces, if they are from the file's present home
    /// object.
    pub(crate) fn fetched(
        &self,
        ino: Ino,
        range: &Range<u64>,
        pieces: &[Piece],
    ) -> Option<Vec<Bytes>> {
        let etag = self.absent_of(ino)?;
        let mut parts = Vec::new();
        let mut rest = range.clone();
        while !rest.is_empty() {
            let part = pieces.iter().find_map(|piece| piece.beginning_of(&etag, &rest))?;
            rest.start += part.len() as u64;
            parts.push(part);
        }
        Some(parts)
    }

    /// Reads a plan with its absent bytes in these pieces. The caller holds the inode's latch.
    pub(crate) async fn gather(
        &self,
        ino: Ino,
        plan: &[Segment],
        pieces: &[Piece],
    ) -> Result<Option<Bytes>, RpcError> {
        if let ([first, ..], true) = (plan, self.is_exposed(ino)) {
            let end = plan.last().map_or(first.range.end, |last| last.range.end);
            return self.read_local(ino, &(first.range.start..end)).await;
        }
        if let [Segment { origin: ByteOrigin::Local, range }] = plan {
            return self.read_local(ino, range).await;
        }
        if let [Segment { origin: ByteOrigin::Remote, range }] = plan
            && let Some([data]) = self.fetched(ino, range, pieces).as_deref()
        {
            return Ok(Some(data.clone()));
        }
        let len_bytes =
            plan.iter().map(|part| part.range.end - part.range.start).sum::<u64>() as usize;
        let mut data = BytesMut::with_capacity(len_bytes);
        for part in plan {
            match part.origin {
                ByteOrigin::Zero => {
                    data.resize(data.len() + (part.range.end - part.range.start) as usize, 0)
                }
                ByteOrigin::Local => match self.read_local(ino, &part.range).await? {
                    Some(bytes) => data.extend_from_slice(&bytes),
                    None => return Ok(None),
                },
                ByteOrigin::Remote => match self.fetched(ino, &part.range, pieces) {
                    Some(parts) => parts.iter().for_each(|bytes| data.extend_from_slice(bytes)),
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(data.freeze()))
    }

    /// Reads present blocks and verifies those with a checksum, which are read whole for it, and
    /// blocks of an exposed file. `None` after a clean block that is damaged or cannot be read was
    /// dropped.
    pub(crate) async fn read_local(
        &self,
        ino: Ino,
        range: &Range<u64>,
    ) -> Result<Option<Bytes>, RpcError> {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let first_byte = blocks.start * BLOCK_BYTES;
        let len_bytes = ((blocks.end - blocks.start) * BLOCK_BYTES) as usize;
        let data = match self.store.read(&self.location(ino), first_byte, len_bytes).await {
            Ok(data) => data,
            Err(error) => return self.cannot_read(ino, blocks, &error).await.map(|()| None),
        };
        let start = (range.start - first_byte) as usize;
        let wanted = data.slice(start..start + (range.end - range.start) as usize);
        if self.is_exposed(ino) {
            return Ok(Some(wanted));
        }
        for block in blocks.clone() {
            let start = (block * BLOCK_BYTES - first_byte) as usize;
            let state = self.replica.view().extents().block(ino, block);
            let Some(state) = state else { return Ok(None) };
            let subject = || Subject::Block { ino, block, version: state.version };
            if state.sum.is_none_or(|sum| {
                ebb_format::crc32c(&data[start..start + BLOCK_BYTES as usize]) == sum
            }) {
                self.trouble(subject(), None);
                continue;
            }
            if state.dirty {
                let what = format!(
                    "block {block} of inode {ino} is damaged on the node's disk, and the bucket \
                     does not have it yet"
                );
                self.trouble(subject(), Some(what));
                return Err(FsError::Io.into());
            }
            tracing::warn!(%ino, block, "a cached block is damaged on the node's disk and is \
                fetched again");
            self.commit_local(LocalCommand::Absent { ino, first: block, count: 1 }).await?;
            return Ok(None);
        }
        self.data.grants.verified(ino, blocks);
        Ok(Some(wanted))
    }

    /// The node's disk fails to read a range of blocks: the unreadable ones are found by reading
    /// them one by one. Those that the bucket has are dropped: they are fetched again and written
    /// over the unreadable place. An error if others were unreadable too.
    pub(crate) async fn cannot_read(
        &self,
        ino: Ino,
        blocks: Range<u64>,
        error: &DiskError,
    ) -> Result<(), RpcError> {
        tracing::debug!(%ino, %error, "bytes could not be read");
        let (mut dropped, mut lost) = (false, false);
        for block in blocks {
            let read = self
                .store
                .read(&self.location(ino), block * BLOCK_BYTES, BLOCK_BYTES as usize)
                .await;
            let known = self.replica.view().extents().block(ino, block);
            let (Err(error), Some(Block { version, dirty, .. })) = (read, known) else { continue };
            if dirty || self.is_exposed(ino) {
                let what = format!(
                    "block {block} of inode {ino} cannot be read from the node's disk: {error}"
                );
                self.trouble(Subject::Block { ino, block, version }, Some(what));
                lost = true;
            } else {
                tracing::warn!(%ino, block, %error, "a cached block cannot be read from the node's \
                    disk and is fetched again");
                self.commit_local(LocalCommand::Absent { ino, first: block, count: 1 }).await?;
                dropped = true;
            }
        }
        if dropped && !lost { Ok(()) } else { Err(FsError::Io.into()) }
    }
}
