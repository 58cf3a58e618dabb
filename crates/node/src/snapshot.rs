//! Snapshots: the state after one command, in frames, so that the log before it can be dropped.

use crate::Node;
use crate::recover::OpenError;
use crate::replica::refusal;
use ebb_core::partition::SnapshotItem;
use ebb_core::state::State;
use ebb_format::record::GroupId;
use ebb_format::snapshot;
use ebb_journal::{Log, LogError, SnapshotAt, SnapshotFrames};
use ebb_model::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Items of one frame of a snapshot.
const ITEMS_PER_FRAME: usize = 512;

impl Node {
    /// Writes the state as a snapshot, so that the log before it can be dropped. Returns the index
    /// of the partition's last command in it.
    pub(crate) async fn write_snapshot(&self) -> Result<LogIndex, RpcError> {
        let at = self.replica.snapshot_at();
        let (state, holes) = (self.replica.view().clone(), self.data.holes_made());
        // All holes in the snapshot are in the store files and forced before it counts.
        holes.await;
        // The first one has no commands before it, and is written before any command is logged: a
        // log needs a snapshot.
        if at.1.index > LogIndex(0) && !Planted::SnapshotNotForced.is_on() {
            self.force(SyncScope::All).await?;
        }
        self.replica.keep_snapshot(at, &state).await.map_err(refusal)?;
        self.snapshot_at.set(at.1.position);
        Ok(at.1.index)
    }
}

/// Writes a state as two snapshots: of the local group first, whose state depends on commands of
/// the partition.
pub(crate) async fn write(
    log: &Log,
    (local, shared): (SnapshotAt, SnapshotAt),
    state: &State,
) -> Result<(), LogError> {
    write_local(log, local, state).await?;
    let kept = |item: &SnapshotItem| {
        !(Planted::LostSession.is_on() && matches!(item, SnapshotItem::Session { .. }))
    };
    let items = state.partition().items().filter(kept);
    log.snapshot(GroupId::PARTITION, shared, frames(items)).await
}

/// Writes the extents of a state as the snapshot of the local group.
pub(crate) async fn write_local(log: &Log, at: SnapshotAt, state: &State) -> Result<(), LogError> {
    log.snapshot(GroupId::LOCAL, at, frames(state.local().items())).await
}

pub(crate) async fn items<T: DeserializeOwned>(
    mut snapshot: SnapshotFrames,
) -> Result<Vec<T>, OpenError> {
    let mut items = Vec::new();
    while let Some(frame) = snapshot.next().await? {
        items.append(&mut snapshot::value_of::<Vec<T>>(&frame)?);
    }
    Ok(items)
}

fn frames<T: Serialize>(items: impl Iterator<Item = T>) -> impl Iterator<Item = Vec<u8>> {
    let mut items = items.peekable();
    let mut cut_off = Vec::<Vec<T>>::new();
    std::iter::from_fn(move || {
        let mut frame = match cut_off.pop() {
            Some(frame) => frame,
            None => {
                items.peek()?;
                items.by_ref().take(ITEMS_PER_FRAME).collect()
            }
        };
        loop {
            let content =
                snapshot::content_of(&frame).expect("items of a partition have an encoding");
            if content.len() <= snapshot::MAX_FRAME_BYTES || frame.len() == 1 {
                return Some(content);
            }
            // Extended attributes and links make some items long.
            cut_off.push(frame.split_off(frame.len() / 2));
        }
    })
}
