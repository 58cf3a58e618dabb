//! After a power cut the log may have a write with lost bytes. Its client still has them, sends the
//! operation again, and finds it done: then its bytes are put where the log says they are.
//!
//! Laws:
//! - A byte is repeated by the last change in the log that wrote it, in any order of the clients'
//!   return, and only until it is written anew.
//! - Until every client has come back or expired, no record says that bytes of earlier runs are
//!   synced, so that a next start knows as much.
//! - Until the writers of the missing bytes of a file have come back or expired, the file's bytes
//!   are not shown, changed or uploaded.

use crate::Node;
use crate::replica::Proposal;
use bytes::Bytes;
use ebb_core::blocks::touched_blocks;
use ebb_model::*;
use ebb_store::Mode;
use std::ops::Range;

impl Node {
    /// Puts the bytes of an operation that an earlier run executed in their place. Returns the
    /// command up to which its client must keep them, or `None` if nothing can be missing. Only
    /// dirty blocks can lack bytes: clean ones are also in the bucket.
    pub(crate) async fn repeat_bytes(
        &self,
        tx: TxId,
        mutation: &ClientMutation,
        replay: Replay,
    ) -> Result<Option<LogIndex>, RpcError> {
        // A client that has come back has replayed everything.
        if !self.attachments.awaits(tx.session) {
            return Ok(None);
        }
        let (ino, offset, bytes) = match mutation {
            ClientMutation::Write { ino, data, .. } | ClientMutation::Append { ino, data, .. } => {
                let Some(offset) = replay.offset else { return Ok(None) };
                (*ino, offset, Repeated::Data(data.clone()))
            }
            ClientMutation::SetAttr { ino, set: SetAttr { size_bytes: Some(size), .. } }
                if *size <= MAX_FILE_BYTES =>
            {
                (*ino, *size, Repeated::Zeros(size.next_multiple_of(BLOCK_BYTES) - size))
            }
            ClientMutation::Fallocate {
                ino, offset, len_bytes, what: Allocation::Zero, ..
            } => (*ino, *offset, Repeated::Zeros(*len_bytes)),
            _ => return Ok(None),
        };
        if self.bring_to_repeat(ino).await.is_err() {
            return Ok(None);
        }
        let _guard = self.data.latches().hold(ino, Mode::Exclusive).await;
        let pieces: Vec<Range<u64>> = {
            let state = self.replica.view();
            let Ok(attr) = state.namespace().attr(ino) else { return Ok(None) };
            let end = offset.saturating_add(bytes.len_bytes()).min(attr.size_bytes);
            let unforced = self.unforced.borrow();
            let missing = unforced
                .last_written(ino, replay.stamp.version)
                .map(|part| part.start.max(offset)..part.end.min(end));
            let dirty = missing.flat_map(|part| {
                let blocks = touched_blocks(part.start, part.end.saturating_sub(part.start));
                let runs = state.extents().dirty_runs(ino, blocks).into_iter();
                runs.map(move |run| {
                    part.start.max(run.start * BLOCK_BYTES)..part.end.min(run.end * BLOCK_BYTES)
                })
            });
            dirty.collect()
        };
        let void = |piece: &Range<u64>| {
            let blocks = touched_blocks(piece.start, piece.end - piece.start);
            let count = blocks.end - blocks.start;
            LocalCommand::Unsynced { ino, first: blocks.start, count }
        };
        // Forced, for the sums of the blocks must not outlive their bytes. After a power cut those
        // of lost bytes are void already.
        let summed: Vec<&Range<u64>> =
            pieces.iter().filter(|piece| self.is_summed(ino, piece)).collect();
        for piece in &summed {
            self.commit_local(void(piece)).await?;
        }
        if !summed.is_empty() {
            self.force_log().await?;
        }
        let mut kept_until = None;
        for piece in pieces {
            let unsynced = void(&piece);
            let bytes = bytes.slice(piece.start - offset..piece.end - offset);
            self.note_writer(ino, tx.session);
            self.store
                .write(&self.make_room(ino, piece.end).await?, piece.start, bytes)
                .await
                .map_err(|error| self.disk_failed(ino, error))?;
            // A force that covers this command covers the bytes.
            let repeated = Proposal::of_both(vec![unsynced], Command::BytesRepeated { ino });
            kept_until = Some(self.replica.propose(|_| Ok(repeated)).await?.0);
        }
        Ok(kept_until)
    }

    fn is_summed(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        let state = self.replica.view();
        touched_blocks(bytes.start, bytes.end - bytes.start)
            .any(|block| state.extents().block(ino, block).is_some_and(|block| block.sum.is_some()))
    }
}

/// The bytes that an operation leaves behind in the store file.
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
