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
        let (ino, offset, bytes) = match mutation {
            ClientMutation::Write { ino, data, .. } | ClientMutation::Append { ino, data, .. } => {
                let Some(offset) = done.replay.offset else { return Ok(()) };
                (*ino, offset, Repeated::Data(data.clone()))
            }
            // Bytes behind the cut are gone, up to the end of the block in which it was.
            ClientMutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size), .. } } => {
                (*ino, *size, Repeated::Zeros(size.next_multiple_of(BLOCK_BYTES) - size))
            }
            ClientMutation::Fallocate { ino, offset, len_bytes, what: Allocation::Zero, .. } => {
                (*ino, *offset, Repeated::Zeros(*len_bytes))
            }
            _ => return Ok(()),
        };
        let _guard = self.locks.lock(ino, Mode::Exclusive).await;
        let pieces: Vec<Range<u64>> = {
            let state = self.replica.view();
            let Ok(attr) = state.namespace().attr(ino) else { return Ok(()) };
            let end = offset.saturating_add(bytes.len_bytes()).min(attr.size_bytes);
            let blocks = touched_blocks(offset, end.saturating_sub(offset));
            let dirty = state.extents().dirty_runs(ino, blocks).into_iter().flatten();
            dirty.map(|block| offset.max(block * BLOCK_BYTES)..end.min((block + 1) * BLOCK_BYTES)).collect()
        };
        for piece in pieces {
            let block = piece.start / BLOCK_BYTES;
            let unsynced = ExtentCommand::Unsynced { ino, first: block, count: 1 };
            // Forced, for the sum of the block must not outlive its bytes. The client keeps the
            // bytes until this command is safe.
            done.index = self.commit(Command::Extent(unsynced)).await?;
            self.force_log().await?;
            let bytes = bytes.slice(piece.start - offset..piece.end - offset);
            self.store.write(ino, piece.start, bytes).await.map_err(|error| self.disk_failed(ino, error))?;
        }
        Ok(())
    }
}

/// What an operation leaves behind in the store file.
enum Repeated {
    Data(Bytes),
    Zeros(u64),
}

impl Repeated {
    fn len_bytes(&self) -> u64 {
        match self {
            Repeated::Data(data) => data.len() as u64,
            Repeated::Zeros(len_bytes) => *len_bytes,
        }
    }

    fn slice(&self, range: Range<u64>) -> Bytes {
        match self {
            Repeated::Data(data) => data.slice(range.start as usize..range.end as usize),
            Repeated::Zeros(_) => Bytes::from(vec![0; (range.end - range.start) as usize]),
        }
    }
}
