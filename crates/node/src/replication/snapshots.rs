//! Snapshots of the partition on their way from the leader to a replica that is too far behind.

use super::messages::Ask;
use super::{Host, PATIENCE};
use bytes::Bytes;
use ebb_consensus::{Base, Origin, SnapshotRequest};
use ebb_core::partition::{Partition, SnapshotItem};
use ebb_format::record::GroupId;
use ebb_format::snapshot::{self, SnapshotHeader};
use ebb_journal::ReceivedAt;
use ebb_model::*;
use ebb_ports::OpenMode;
use std::time::Duration;

const GROUP: GroupId = GroupId::PARTITION;

/// Bytes of one message.
const PIECE_BYTES: usize = 512 << 10;

/// Loading and forcing a large snapshot takes its time.
const INSTALL_PATIENCE: Duration = Duration::from_secs(600);

impl Host {
    pub(super) async fn send_snapshot(&self, to: NodeId, request: SnapshotRequest) {
        let replica = request.to;
        let sent = self.try_send(to, request).await;
        if let Err(error) = &sent {
            tracing::info!(node = %to, %error, "a snapshot has not arrived, and is sent again");
        }
        // An error is that of the log, which ends the process.
        let (Ok(()) | Err(_)) = self.replica.snapshot_sent(replica, sent.is_ok()).await;
    }

    async fn try_send(&self, to: NodeId, request: SnapshotRequest) -> Result<(), RpcError> {
        let base = self.newest_base(&request.base);
        let request = SnapshotRequest { base, ..request };
        let path = ebb_journal::snapshot_path(GROUP, request.base.index);
        let failed = |error| {
            tracing::warn!(%error, path, "a snapshot cannot be read");
            RpcError::Retry
        };
        let file = self.ports.disk.open(&path, OpenMode::Existing).await.map_err(failed)?;
        let ask = |ask, data, patience| self.peers.ask(to, ask, data, patience);
        ask(Ask::SnapshotBegin { request }, Bytes::new(), PATIENCE).await?;
        let mut offset = 0;
        loop {
            let piece = file.read_at(offset, PIECE_BYTES).await.map_err(failed)?;
            if piece.is_empty() {
                break;
            }
            offset += piece.len() as u64;
            ask(Ask::SnapshotPiece, piece, PATIENCE).await?;
        }
        ask(Ask::SnapshotEnd, Bytes::new(), INSTALL_PATIENCE).await.map(drop)
    }

    /// The base of the newest snapshot, which can be newer than the requested one.
    fn newest_base(&self, requested: &Base) -> Base {
        let newest = self.quorum().newest_base();
        newest.filter(|base| base.index > requested.index).unwrap_or_else(|| requested.clone())
    }

    pub(super) async fn install_snapshot(
        &self,
        from: Origin,
        request: &SnapshotRequest,
        header: SnapshotHeader,
        frames: Vec<Vec<u8>>,
    ) -> Result<(), RpcError> {
        let mut items: Vec<SnapshotItem> = Vec::new();
        for frame in &frames {
            let part: Vec<SnapshotItem> = snapshot::value_of(frame)
                .map_err(|error| RpcError::Denied(format!("a broken snapshot: {error}")))?;
            items.extend(part);
        }
        let partition = Partition::from_items(items)
            .map_err(|error| RpcError::Denied(format!("a snapshot that cannot be: {error}")))?;
        let SnapshotHeader { term, index, version, .. } = header;
        let at = ReceivedAt { term, index, version };
        // The records of bytes that are not forced are given up with the log.
        if let Err(error) = self.store.sync(SyncScope::All).await {
            self.fail(format!("bytes here cannot be forced: {error}"));
            return Err(RpcError::Lost);
        }
        let own = self.origin.node;
        let installed = self
            .replica
            .install(from, request, at, frames, |state| state.with_partition(partition, own))
            .await;
        match installed {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(refusal)) => Err(RpcError::Denied(refusal.to_string())),
            Err(error) => {
                self.fail(format!("a snapshot could not be installed: {error}"));
                Err(RpcError::Lost)
            }
        }
    }
}
