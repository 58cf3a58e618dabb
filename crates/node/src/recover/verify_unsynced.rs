//! Repairs the bytes of logged commands after the death of the previous process, or after a power
//! cut.

use super::replay::Blocks;
use crate::Node;
use crate::data::packs::location;
use ebb_core::blocks;
use ebb_core::extent::Block;
use ebb_core::state::State;
use ebb_model::*;
use ebb_ports::DiskError;
use ebb_store::Store;
use std::cell::Ref;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::ops::Range;
use std::time::Duration;

/// Blocks that a start reads, or writes once more, before other tasks have their turn.
const BLOCKS_IN_A_ROW: u64 = 256;

/// The most blocks that a start compares, 1 GiB: all later ones are doubted.
const MOST_COMPARED: u64 = 1 << 14;

/// If the intact blocks lie in more pieces than this, all of them are doubted: each gap takes a
/// record.
const MOST_RUNS: usize = 64;

impl Node {
    /// After a power cut, bytes without a record that they were forced may be anything.
    /// - Blocks written here stay if their checksums show that they are intact.
    /// - Other blocks that an upload is found to have made clean are fetched again.
    /// - Missing bytes are filled with zeros: later losses here have another cause.
    pub(super) async fn verify_unsynced(&self, unverified: Blocks) -> Result<(), RpcError> {
        let mut passed = 0;
        for (ino, ranges) in unverified {
            for blocks in ranges {
                self.store
                    .fill_up(&self.location(ino), &blocks)
                    .await
                    .map_err(|error| self.disk_failed(ino, error))?;
                let mut first = blocks.start;
                let as_written = self.as_written(ino, blocks.clone(), &mut passed).await;
                for Range { start, end } in
                    as_written.into_iter().chain(once(blocks.end..blocks.end))
                {
                    if first < start {
                        self.commit_local(LocalCommand::Unsynced {
                            ino,
                            first,
                            count: start - first,
                        })
                        .await?;
                    }
                    first = end;
                }
            }
        }
        Ok(())
    }

    /// Runs of those blocks that were written here and agree with their checksums.
    async fn as_written(&self, ino: Ino, blocks: Range<u64>, passed: &mut u64) -> Vec<Range<u64>> {
        let written: Vec<(u64, u32)> = {
            let state = self.replica.view();
            if state.extents().is_exposed(ino) {
                return Vec::new();
            }
            let is_written = |known: &Block| known.dirty || known.version != Version(0);
            let sum_of = |block| state.extents().block(ino, block).filter(is_written)?.sum;
            let resident = state.extents().resident_runs(ino, blocks).into_iter().flatten();
            resident.filter_map(|block| Some((block, sum_of(block)?))).collect()
        };
        let mut found = Vec::new();
        for (block, sum) in written {
            if *passed == MOST_COMPARED {
                break;
            }
            self.pass(passed).await;
            let read = self
                .store
                .read(&self.location(ino), block * BLOCK_BYTES, BLOCK_BYTES as usize)
                .await;
            if read.is_ok_and(|bytes| ebb_format::crc32c(&bytes) == sum) {
                found.push(block);
            }
        }
        Some(blocks::runs(found.into_iter()))
            .filter(|runs| runs.len() <= MOST_RUNS)
            .unwrap_or_default()
    }

    /// Yields to the task that renews the volume's lease.
    async fn pass(&self, passed: &mut u64) {
        *passed += 1;
        if passed.is_multiple_of(BLOCKS_IN_A_ROW) {
            self.ports.clock.sleep(Duration::from_micros(1)).await;
        }
    }

    /// A sync of the previous process's writes may have failed, and this process gets no error for
    /// it. Only clients that store into an exposed file may write to it.
    pub(super) async fn dirty_again(&self, kept: Blocks) -> Result<(), RpcError> {
        let mut passed = 0;
        for (ino, ranges) in
            kept.into_iter().filter(|(ino, _)| !self.replica.view().extents().is_exposed(*ino))
        {
            let dirty = |blocks: Range<u64>| self.replica.view().extents().dirty_runs(ino, blocks);
            for block in ranges.into_iter().flat_map(dirty).flatten() {
                self.pass(&mut passed).await;
                match self.store.dirty_again(&self.location(ino), block).await {
                    // A full disk does not prevent a start.
                    Err(DiskError::NoSpace) => {
                        tracing::warn!(%ino, block, "no room to write once more what is not forced")
                    }
                    again => again.map_err(|error| self.disk_failed(ino, error))?,
                }
            }
        }
        Ok(())
    }

    /// The loss of a block without a checksum could not be found later. Before the next write
    /// beside it, it gets a checksum that zeros do not have.
    pub(super) async fn find_missing(&self) -> Result<(), RpcError> {
        let mut void = BTreeMap::<Ino, Vec<u64>>::new();
        let version = {
            let state = self.replica.view();
            let unexposed =
                state.extents().void_blocks().filter(|(ino, _)| !state.extents().is_exposed(*ino));
            unexposed.for_each(|(ino, block)| void.entry(ino).or_default().push(block));
            state.version()
        };
        let damaged = !ebb_format::crc32c(&[0; BLOCK_BYTES as usize]);
        for (ino, blocks) in void {
            let missing = self.store.missing(&self.location(ino), blocks.into_iter()).await;
            let sums: Vec<(u64, u32)> = missing
                .map_err(|error| self.disk_failed(ino, error))?
                .into_iter()
                .map(|block| (block, damaged))
                .collect();
            if !sums.is_empty() {
                tracing::error!(%ino, blocks = sums.len(), "bytes that the bucket does not have \
                    are gone from the node's disk");
                self.sum_unless_exposed(ino, version, &sums).await?;
            }
        }
        Ok(())
    }

    /// A write into a block without a checksum is in the store file before any of it is in the log.
    /// If the process died in between, readers see bytes that have no record.
    pub(super) fn watch_void_blocks(&self) {
        let state = self.replica.view();
        let blocks: Vec<(Ino, Range<u64>)> =
            state.extents().void_blocks().map(|(ino, block)| (ino, block..block + 1)).collect();
        self.store.not_forced(blocks.iter().map(|(ino, block)| (self.location(*ino), block)));
    }
}

/// Removes the remains of a crash: between a command and its effects it leaves store files of
/// inodes that are gone or elsewhere, between bytes and their command it leaves bytes beyond
/// the end of a file (O-80).
pub(crate) async fn drop_strays<'a>(
    store: &Store,
    view: impl Fn() -> Ref<'a, State>,
) -> Result<(), DiskError> {
    for ino in store.list() {
        let place = location(&view(), ino);
        let is_known = view().namespace().inode(ino).is_some();
        match place.packed {
            _ if !is_known => store.drop_file(ino).await?,
            Some(_) => store.drop_own(ino).await?,
            None => store.cut(&place, place.size_bytes).await?,
        }
    }
    for pack in store.packs.found.clone() {
        let used: Vec<PackRange> =
            view().extents().packed_in(pack).map(|(range, _)| range).collect();
        if used.is_empty() {
            store.drop_pack(pack).await?;
            continue;
        }
        for gap in ebb_store::gaps(pack, &used) {
            store.free(gap).await?;
        }
    }
    // At once: if the run is killed before it forces them, no later run knows of the cuts.
    store.sync_cuts().await
}

/// Makes the holes that a crash has kept from the store file, as far as nothing was written
/// there since. They are forced before any read: the old bytes must not come back later.
pub(crate) async fn make_holes<'a>(
    store: &Store,
    view: impl Fn() -> Ref<'a, State>,
    holes: Vec<(Ino, Range<u64>)>,
) -> Result<(), DiskError> {
    let mut made = BTreeSet::new();
    for (ino, blocks) in holes {
        for block in blocks {
            if view().extents().block(ino, block).is_none() {
                let place = location(&view(), ino);
                store.hole(&place, block * BLOCK_BYTES, BLOCK_BYTES).await?;
                made.insert(ino);
            }
        }
    }
    for ino in made {
        store.sync(SyncScope::File(ino)).await?;
    }
    Ok(())
}
