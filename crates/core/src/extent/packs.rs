//! Ranges of small files in pack files (C-19, C-22).

use super::Extents;
use crate::tree::Tree;
use ebb_model::{BLOCK_BYTES, Ino, PACK_BYTES, PACK_UNIT_BYTES, PACKED_BYTES, PackId, PackRange};
use std::collections::BTreeMap;

#[derive(Clone, Default)]
pub(super) struct Packs {
    /// Used ranges by pack file and start, each with its length and inode.
    ranges: Tree<(PackId, u64), (u64, Ino)>,
    /// Used bytes, by pack file.
    bytes: Tree<PackId, u64>,
}

impl Packs {
    pub fn memory_bytes(&self) -> usize {
        self.ranges.bytes() + self.bytes.bytes()
    }

    pub fn is_recent_so(&self) -> bool {
        self.ranges.is_recent_so() && self.bytes.is_recent_so()
    }

    pub fn insert(&mut self, ino: Ino, PackRange { pack, start, len_bytes }: PackRange) {
        self.ranges.insert(&(pack, start), &(len_bytes, ino));
        let before = self.bytes.get(&pack).unwrap_or(0);
        self.bytes.insert(&pack, &before.saturating_add(len_bytes));
    }

    pub fn remove(&mut self, PackRange { pack, start, len_bytes }: PackRange) {
        self.ranges.remove(&(pack, start));
        match self.bytes.get(&pack).map_or(0, |bytes| bytes.saturating_sub(len_bytes)) {
            0 => drop(self.bytes.remove(&pack)),
            left => drop(self.bytes.insert(&pack, &left)),
        }
    }
}

impl Extents {
    /// The pack range of a file; `None` if it has a store file of its own.
    pub fn packed(&self, ino: Ino) -> Option<PackRange> {
        self.look(ino, |file| file.packed)
    }

    /// Pack files in use, each with its used bytes.
    pub fn packs(&self) -> impl Iterator<Item = (PackId, u64)> {
        self.packs.bytes.iter()
    }

    /// Used ranges, ordered by pack file and start.
    pub(crate) fn packed_files(&self) -> impl Iterator<Item = (PackRange, Ino)> {
        self.packs.ranges.iter().map(used_range)
    }

    /// Number of files in pack files.
    pub fn packed_count(&self) -> u64 {
        self.packs.ranges.len() as u64
    }

    /// Used ranges of one pack file, in order.
    pub fn packed_in(&self, pack: PackId) -> impl Iterator<Item = (PackRange, Ino)> {
        self.packs.ranges.range((pack, 0)..=(pack, u64::MAX)).map(used_range)
    }

    /// Disk space of a block. In a pack file only its bytes within the range count.
    pub fn block_bytes(&self, ino: Ino, block: u64) -> u64 {
        self.look(ino, |file| file.block_bytes(block))
    }

    pub(super) fn check_packs(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut before: Option<PackRange> = None;
        let mut used = BTreeMap::new();
        for (range, ino) in self.packed_files() {
            let PackRange { pack, start, len_bytes } = range;
            if self.packed(ino) != Some(range) {
                problems.push(format!("inode {ino}: not at its range of pack file {}", pack.0));
            }
            let is_possible = len_bytes > 0
                && len_bytes <= PACKED_BYTES
                && range.end() <= PACK_BYTES
                && [start, len_bytes].iter().all(|bytes| bytes.is_multiple_of(PACK_UNIT_BYTES));
            if !is_possible {
                problems.push(format!(
                    "inode {ino}: it cannot have {len_bytes} bytes at {start} of pack file {}",
                    pack.0
                ));
            }
            if before.is_some_and(|before| before.pack == pack && before.end() > start) {
                problems.push(format!(
                    "inode {ino}: its bytes at {start} of pack file {} are those \
                    of another file, too",
                    pack.0
                ));
            }
            if self
                .blocks
                .range((ino, len_bytes.div_ceil(BLOCK_BYTES))..=(ino, u64::MAX))
                .next()
                .is_some()
            {
                problems.push(format!(
                    "inode {ino}: it has blocks behind its {len_bytes} bytes of pack file {}",
                    pack.0
                ));
            }
            let sum = used.entry(pack).or_insert(0u64);
            *sum = sum.saturating_add(len_bytes);
            before = Some(range);
        }
        if !self.packs.bytes.iter().eq(used) {
            problems.push("bytes of pack files are miscounted".into());
        }
        for (ino, file) in self.files.iter() {
            if file
                .packed
                .is_some_and(|range| !self.packs.ranges.contains_key(&(range.pack, range.start)))
            {
                problems.push(format!("inode {ino}: no pack file lists its range"));
            }
        }
        problems
    }
}

fn used_range(((pack, start), (len_bytes, ino)): ((PackId, u64), (u64, Ino))) -> (PackRange, Ino) {
    (PackRange { pack, start, len_bytes }, ino)
}
