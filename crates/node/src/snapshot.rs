//! Snapshots: the state after one command, in frames, so that the log before it can be dropped.

use crate::Node;
use crate::recover::OpenError;
use crate::replica::refusal;
use ebb_core::partition::SnapshotItem;
use ebb_format::record::GroupId;
use ebb_format::snapshot;
use ebb_journal::{Log, LogError, SnapshotAt, SnapshotFrames};
use ebb_model::*;

/// Items of one frame of a snapshot.
const ITEMS_PER_FRAME: usize = 512;

impl Node {
    /// Writes the state as a snapshot, so that the log before it can be dropped.
    pub(crate) async fn write_snapshot(&self) -> Result<(), RpcError> {
        let at = self.replica.snapshot_at();
        let (state, holes) = (self.replica.view().clone(), self.data.holes_made());
        // All holes in the snapshot are in the store files and forced before it counts.
        holes.await;
        // The first one has no commands before it, and is written before any command is logged: a
        // log needs a snapshot.
        if at.index > LogIndex(0) && !Planted::SnapshotNotForced.is_on() {
            self.force(SyncScope::All).await?;
        }
        let kept = |item: &SnapshotItem| {
            !(Planted::LostSession.is_on() && matches!(item, SnapshotItem::Session { .. }))
        };
        write(self.replica.log(), at, state.items().filter(kept)).await.map_err(refusal)?;
        self.snapshot_at.set(at.index);
        Ok(())
    }
}

/// Writes the partition's snapshot, behind that of the local group, which has no commands yet.
pub(crate) async fn write(
    log: &Log,
    at: SnapshotAt,
    items: impl Iterator<Item = SnapshotItem>,
) -> Result<(), LogError> {
    let local = SnapshotAt { index: LogIndex(0), version: Version(0), ..at };
    log.snapshot(GroupId::LOCAL, local, std::iter::empty()).await?;
    log.snapshot(GroupId::PARTITION, at, frames(items)).await
}

pub(crate) async fn items(mut snapshot: SnapshotFrames) -> Result<Vec<SnapshotItem>, OpenError> {
    let mut items = Vec::new();
    while let Some(frame) = snapshot.next().await? {
        items.append(&mut snapshot::value_of::<Vec<SnapshotItem>>(&frame)?);
    }
    Ok(items)
}

fn frames(items: impl Iterator<Item = SnapshotItem>) -> impl Iterator<Item = Vec<u8>> {
    let mut items = items.peekable();
    let mut cut_off = Vec::<Vec<SnapshotItem>>::new();
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
