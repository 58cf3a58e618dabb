//! After a power cut the log may have a write whose bytes are gone. The client that was
//! answered still has them, asks again, and finds its operation done: then its bytes are
//! put where the log says they are.

use crate::Node;
use crate::locks::Mode;
use bytes::Bytes;
use ebb_core::extent::touched_blocks;
use ebb_model::*;
use std::ops::Range;

impl Node {
    /// Puts the bytes of an operation that an earlier run executed where they belong. Only
    /// blocks that are dirty can lack them: the others are the bucket's. Operations of one
    /// client come in their order, so that the last one stays.
    pub(crate) async fn repeat_bytes(&self, mutation: &ClientMutation, done: &mut Mutated) -> Result<(), RpcError> {
        let (ino, offset, data) = match mutation {
            ClientMutation::Write { ino, data, .. } | ClientMutation::Append { ino, data, .. } => {
                let Some(offset) = done.replay.offset else { return Ok(()) };
                (*ino, offset, data.clone())
            }
            // Bytes behind the cut are gone, up to the end of the block in which it was.
            ClientMutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size), .. } } => {
                let zeros = size.next_multiple_of(BLOCK_BYTES) - size;
                (*ino, *size, Bytes::from(vec![0; zeros as usize]))
            }
            _ => return Ok(()),
        };
        let _guard = self.locks.lock(ino, Mode::Exclusive).await;
        let pieces: Vec<Range<u64>> = {
            let state = self.replica.view();
            let Ok(attr) = state.namespace().attr(ino) else { return Ok(()) };
            let end = (offset + data.len() as u64).min(attr.size_bytes);
            let dirty = |block: &u64| state.extents().block(ino, *block).is_some_and(|block| block.dirty);
            let blocks = touched_blocks(offset, end.saturating_sub(offset)).filter(dirty);
            blocks.map(|block| offset.max(block * BLOCK_BYTES)..end.min((block + 1) * BLOCK_BYTES)).collect()
        };
        for piece in pieces {
            let block = piece.start / BLOCK_BYTES;
            let unsynced = ExtentCommand::Unsynced { ino, first: block, count: 1 };
            // Forced, for the sum of the block must not outlive its bytes. The client keeps the
            // bytes until this command is safe.
            done.index = self.commit(Command::Extent(unsynced)).await?;
            self.force_log().await?;
            let bytes = data.slice((piece.start - offset) as usize..(piece.end - offset) as usize);
            self.store.write(ino, piece.start, bytes).await.map_err(|error| self.disk_failed(ino, error))?;
        }
        Ok(())
    }
}
