//! Proving that what a node knows and holds is as it should be: of a node that runs, and of a data
//! directory that none has open.

use crate::Node;
use crate::admin::path_bytes;
use crate::identity;
use crate::locks::Mode;
use crate::log::Log;
use crate::recover::{OpenError, Replayed, replay};
use crate::store::{self, Place, Store};
use ebb_core::partition::Partition;
use ebb_format::segment::VolumeId;
use ebb_model::*;
use ebb_ports::Ports;
use std::rc::Rc;

/// More are counted and not told.
const MAX_PROBLEMS: usize = 1000;

impl Node {
    /// Proves the invariants of the state and reads every cached block against its checksum.
    pub(crate) async fn fsck(self: &Rc<Self>) -> Result<FsckReport, RpcError> {
        let (mut report, files) = {
            let state = self.replica.view();
            let mut report = of_state(&state);
            report.problems.extend(self.advisory.borrow().check());
            (report, state.extents().files().map(|(ino, _)| ino).collect::<Vec<_>>())
        };
        for (ino, error) in self.store.failed() {
            let file = named(&self.replica.view(), ino);
            report.problems.push(format!("{file}: its bytes could not be forced to disk: {error}"));
        }
        for ino in files {
            let _guard = self.locks.lock(ino, Mode::Shared).await;
            let (file, blocks) = {
                let state = self.replica.view();
                (named(&state, ino), summed_blocks(&state, ino))
            };
            compare(&self.store, (&self.place(ino), &file), blocks, &mut report).await;
        }
        Ok(bounded(report))
    }
}

/// The same of a data directory that no node has open. Nothing there is changed.
pub async fn fsck(ports: Ports) -> Result<FsckReport, OpenError> {
    ports.disk.lock()?;
    let serves = identity::load(&*ports.disk).await?.and_then(|identity| identity.serves).ok_or(OpenError::Unused)?;
    let recovery = Log::read(ports.disk.clone(), VolumeId(serves.cluster.0)).await?;
    if recovery.is_empty() {
        return Ok(FsckReport::default());
    }
    let damaged = recovery.damaged.clone();
    let Replayed { partition, doubtful, .. } = replay(recovery).await?;
    let mut report = of_state(&partition);
    report.problems.extend(damaged.map(|damage| format!("a snapshot is damaged, an older one stands in for it: {damage}")));
    let store = Store::found(ports.disk).await?;
    for (ino, _) in partition.extents().files() {
        let mut blocks = summed_blocks(&partition, ino);
        // What was not forced need not be what was written: the next start takes it as it is.
        let doubted = doubtful.get(&ino).map_or(&[][..], |runs| runs);
        blocks.retain(|(block, _)| !doubted.iter().any(|run| run.contains(block)));
        compare(&store, (&store::place(&partition, ino), &named(&partition, ino)), blocks, &mut report).await;
    }
    Ok(bounded(report))
}

/// An inode as people know it.
fn named(state: &Partition, ino: Ino) -> String {
    match state.namespace().path_of(ino) {
        Some(path) => format!("/{} (inode {ino})", String::from_utf8_lossy(&path_bytes(&path))),
        None => format!("inode {ino}, which has no name"),
    }
}

fn of_state(state: &Partition) -> FsckReport {
    FsckReport { inodes: state.namespace().len() as u64, blocks: 0, problems: state.check() }
}

/// Blocks of a file that are there, and have a checksum.
fn summed_blocks(state: &Partition, ino: Ino) -> Vec<(u64, u32)> {
    let size = state.namespace().attr(ino).map_or(0, |attr| attr.size_bytes);
    let chunks = 0..size.div_ceil(CHUNK_BYTES);
    let blocks = chunks.flat_map(|chunk| state.extents().chunk_blocks(ino, chunk));
    blocks.filter_map(|(block, state)| Some((block, state.sum?))).collect()
}

async fn compare(store: &Store, (place, file): (&Place, &str), blocks: Vec<(u64, u32)>, report: &mut FsckReport) {
    for (block, sum) in blocks {
        report.blocks += 1;
        match store.read(place, block * BLOCK_BYTES, BLOCK_BYTES as usize).await {
            Ok(data) if ebb_format::crc32c(&data) == sum => {}
            Ok(_) => report.problems.push(format!("{file}: block {block} on the node's disk is not what was written")),
            Err(error) => report.problems.push(format!("{file}: block {block} cannot be read: {error}")),
        }
    }
}

fn bounded(mut report: FsckReport) -> FsckReport {
    let all = report.problems.len();
    if all > MAX_PROBLEMS {
        report.problems.truncate(MAX_PROBLEMS);
        report.problems.push(format!("and {} more", all - MAX_PROBLEMS));
    }
    report
}
