//! copy_file_range(2): copies bytes from one file to another without leaving the node. In the log a
//! copy is a write.

use crate::Node;
use crate::clients::mutate::{MutationContext, Written};
use crate::data::fetch::MAX_ATTEMPTS;
use ebb_core::byte_map::ByteOrigin;
use ebb_model::*;
use ebb_store::{Guard, Latches, Mode};
use std::ops::Range;
use std::rc::Rc;

impl Node {
    /// Copies a range of `from`, at most the bytes of one write at one time: both files are locked.
    /// Where the source has no bytes left nothing is written, and the answer says so.
    pub(crate) async fn copy(
        self: &Rc<Self>,
        context: &MutationContext,
        (from, from_offset): (Ino, u64),
        (ino, offset): (Ino, u64),
        len_bytes: u64,
        drop_set_id: bool,
    ) -> Result<Mutated, RpcError> {
        self.reserve_for(context, len_bytes.min(MAX_IO_BYTES as u64)).await?;
        for _ in 0..MAX_ATTEMPTS {
            let guards = hold_both(&self.data.latches, from, ino).await;
            let source_bytes = self.file_size(from)?;
            let left = source_bytes.saturating_sub(from_offset);
            let len_bytes = len_bytes.min(left).min(MAX_IO_BYTES as u64);
            if from == ino && from_offset.abs_diff(offset) < len_bytes {
                return Err(FsError::Invalid.into());
            }
            let wanted = from_offset..from_offset.saturating_add(len_bytes);
            let plan = self.replica.view().extents().plan_read(from, wanted, source_bytes);
            let remote: Vec<Range<u64>> = plan
                .iter()
                .filter(|part| part.origin == ByteOrigin::Remote)
                .map(|part| part.range.clone())
                .collect();
            if !remote.is_empty() {
                drop(guards);
                self.fetch(from, &remote).await?;
                continue;
            }
            // A clean block was damaged: it is absent now, and fetched by the next attempt.
            let Some(data) = self.gather(from, &plan, &[]).await? else { continue };
            // The copy outlives a power cut, so the bytes that it shows must too.
            if context.must_force {
                self.force_bytes_of_others(from, Some(context.tx.session)).await?;
            }
            match self.write_locked(context, ino, offset, data, drop_set_id).await? {
                Written::Done(mutated) => return Ok(mutated),
                Written::Missing(remote) => {
                    drop(guards);
                    self.fetch(ino, &remote).await?;
                }
            }
        }
        Err(self.fetched_in_vain(ino))
    }
}

/// Holds the latches of the source and the target, in the order of ids.
async fn hold_both(latches: &Latches<Ino>, read: Ino, written: Ino) -> Vec<Guard<Ino>> {
    let mut guards = Vec::new();
    let mut inos = vec![read, written];
    inos.sort_unstable();
    inos.dedup();
    for ino in inos {
        let mode = if ino == written { Mode::Exclusive } else { Mode::Shared };
        guards.push(latches.hold(ino, mode).await);
    }
    guards
}
