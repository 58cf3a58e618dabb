//! fallocate(2): zeros in place of bytes, and a new size of the file.

use crate::Node;
use crate::clients::mutate::{MutationContext, StagedBytes};
use crate::data::fetch::MAX_ATTEMPTS;
use bytes::Bytes;
use ebb_core::byte_map::Edge;
use ebb_core::namespace::zero_span;
use ebb_model::*;
use ebb_ports::DiskError;
use ebb_store::{Mode, StoreLocation};
use std::ops::Range;
use std::rc::Rc;

impl Node {
    /// Whole blocks become holes when the command is logged, and give their space back when that is
    /// forced. Blocks at the edges are first overwritten with zeros in part, as by a write, and the
    /// rules of a failed write hold for them.
    pub(crate) async fn fallocate(
        self: &Rc<Self>,
        context: &MutationContext,
        ino: Ino,
        (offset, len_bytes): (u64, u64),
        (what, keep_size): (Allocation, bool),
        drop_set_id: bool,
    ) -> Result<Mutated, RpcError> {
        let end = offset.checked_add(len_bytes).ok_or(FsError::TooLarge)?;
        // A volume that is too small is a better reason than a file that would be too large.
        if what == Allocation::Reserve {
            self.expect_room(ino, offset..end).await?;
        }
        if end > self.data.max_file_bytes {
            return Err(FsError::TooLarge.into());
        }
        let mut reserved = false;
        'attempts: for _ in 0..MAX_ATTEMPTS {
            let guard = self.data.latches.hold(ino, Mode::Exclusive).await;
            let size = self.file_size(ino)?;
            let span = zero_span(offset, len_bytes, size);
            let zeroes = what == Allocation::Zero && offset < size;
            if zeroes {
                self.find_stored(ino, &span).await?;
            }
            let edges = || {
                if zeroes { self.replica.view().extents().edges(ino, &span) } else { Vec::new() }
            };
            let absent = || edges().iter().filter_map(missing).collect::<Vec<_>>();
            let missing = absent();
            if !missing.is_empty() {
                drop(guard);
                self.fetch(ino, &missing).await?;
                continue;
            }
            let parts: Vec<(Range<u64>, bool)> = edges().into_iter().filter_map(present).collect();
            let location = self.location(ino);
            for (part, _) in &parts {
                if let Some(dropped) =
                    self.verify_rest(&location, &(part.start..part.end.min(size))).await?
                {
                    drop(guard);
                    self.fetch(ino, &[dropped]).await?;
                    continue 'attempts;
                }
            }
            if !reserved && parts.iter().any(|(_, dirty)| !dirty) {
                drop(guard);
                self.reserve_for(context, parts.len() as u64 * BLOCK_BYTES).await?;
                reserved = true;
                continue;
            }
            let _growth = if keep_size { None } else { self.grow_to(context, ino, size, end)? };
            // Refuse before the zeros are in place rather than after.
            self.replica.view().namespace().permit_bytes(ino, what == Allocation::Zero)?;
            let _stays =
                self.attachments.overwrite(context.tx.session).ok_or(RpcError::SessionExpired)?;
            let location = self
                .make_room(ino, parts.iter().map(|(part, _)| part.end.min(size)).max().unwrap_or(0))
                .await?;
            let missing = absent();
            if !missing.is_empty() {
                drop(guard);
                self.fetch(ino, &missing).await?;
                continue;
            }
            self.expect_log()?;
            if zeroes {
                self.force_rest(ino, span.clone()).await?;
                self.preserve_zeroed(ino, span).await?;
            }
            if !keep_size {
                self.clear_behind(&location, size, end).await?;
            }
            let parts: Vec<Range<u64>> =
                parts.into_iter().map(|(part, _)| part.start..part.end.min(size)).collect();
            for part in &parts {
                self.void_sums(&location, part.clone()).await?;
            }
            self.expect_log_room().await?;
            let edges: Vec<u64> = parts.iter().map(|part| part.start / BLOCK_BYTES).collect();
            self.note_writer(ino, context.tx.session);
            let done = match self.write_zeros(&location, &parts).await {
                Ok(()) => {
                    // An upload may have ended during the wait, and dropped one of the blocks: its
                    // bytes are here still.
                    let staged = edges.iter().map(|&first| {
                        let (sums, range) = (vec![None], None);
                        StagedBytes { ino, first, sums, range }
                    });
                    let staged = staged.collect();
                    let mutation = Mutation::Fallocate {
                        ino,
                        offset,
                        len_bytes,
                        what,
                        keep_size,
                        edges,
                        drop_set_id,
                    };
                    self.propose_staged(context, staged, mutation).await
                }
                Err(error) => Err(error),
            };
            if done.is_err() {
                parts.into_iter().for_each(|part| self.flusher.has_failed_at(ino, part));
                self.drop_if_gone(ino);
                return done;
            }
            if zeroes {
                self.unforced.borrow_mut().superseded(ino, offset..end);
                self.note_holes(ino).await?;
            }
            if !keep_size && end > size {
                self.show_length(ino).await?;
            }
            return done;
        }
        Err(self.fetched_in_vain(ino))
    }

    async fn write_zeros(
        &self,
        location: &StoreLocation,
        parts: &[Range<u64>],
    ) -> Result<(), RpcError> {
        for part in parts {
            let len_bytes = part.end - part.start;
            let zeros = Bytes::from(vec![0; len_bytes as usize]);
            let zeroed = match self.store.write(location, part.start, zeros).await {
                // Some of the zeros may be there. A hole needs no room.
                Err(DiskError::NoSpace) => self.store.hole(location, part.start, len_bytes).await,
                zeroed => zeroed,
            };
            zeroed.map_err(|error| self.disk_failed(location.ino, error))?;
        }
        Ok(())
    }

    /// Refuses a range that the volume has no room for, as far as that can be known. Nothing is set
    /// aside: bytes written later go to the bucket sooner or later, and not all of them have to be
    /// here at one time.
    async fn expect_room(&self, ino: Ino, range: Range<u64>) -> Result<(), RpcError> {
        let there = self.replica.view().extents().resident_bytes_of(ino);
        let wanted = (range.end - range.start).saturating_sub(there);
        if wanted > self.stat_volume().await.available_bytes {
            Err(FsError::NoSpace.into())
        } else {
            Ok(())
        }
    }
}

fn missing(edge: &Edge) -> Option<Range<u64>> {
    match edge {
        Edge::Missing(fill) => Some(fill.range()),
        Edge::Present { .. } => None,
    }
}

fn present(edge: Edge) -> Option<(Range<u64>, bool)> {
    match edge {
        Edge::Present { bytes, dirty } => Some((bytes, dirty)),
        Edge::Missing(_) => None,
    }
}
