//! Effects on a node's disk, the same on the node that leads a partition and on one that follows.

use ebb_core::extent::Effect;
use ebb_model::{BLOCK_BYTES, Ino, Position, RpcError};
use ebb_ports::{DiskError, PortFuture};
use ebb_store::{Store, StoreLocation};

/// The cause of an effect that is not done.
pub(crate) enum EffectError {
    /// The log could not be forced.
    Log(RpcError),
    Cut(Ino, DiskError),
    /// The range is a hole in the state, and reads as zeros all the same.
    Hole(Ino, DiskError),
}

/// Performs the effect of a record at the position `at` or before. `force` forces the log.
pub(crate) async fn perform<'a, T>(
    store: &Store,
    location: impl Fn(Ino) -> StoreLocation,
    force: impl Fn() -> PortFuture<'a, Result<T, RpcError>>,
    effect: &Effect,
    at: Position,
) -> Result<(), EffectError> {
    match *effect {
        // A power cut may bring the inode back as long as the record is not forced.
        Effect::Drop { ino } => store.free_file_after(ino, at),
        Effect::Vacate { range } => store.free_range_after(range, at),
        Effect::Cut { ino, len_bytes } => {
            let place = location(ino);
            // Recorded first: the cut stays due if a later step fails.
            store.is_to_be_cut(&place);
            let failed = |error| EffectError::Cut(ino, error);
            if store.is_longer(&place, len_bytes).await.map_err(failed)? {
                // Otherwise a power cut could bring back the length without the bytes.
                force().await.map_err(EffectError::Log)?;
            }
            store.cut(&place, len_bytes).await.map_err(failed)?;
        }
        Effect::Punch { ino, ref blocks } => {
            // Otherwise a power cut could bring back the blocks without their bytes.
            force().await.map_err(EffectError::Log)?;
            let (start, len) =
                (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
            let made = store.hole(&location(ino), start, len).await;
            made.map_err(|error| EffectError::Hole(ino, error))?;
        }
    }
    Ok(())
}
