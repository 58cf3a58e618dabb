//! The byte map: where the bytes of each file are. It joins [`Content`] (the blocks that the file
//! consists of) with [`Extents`] (the blocks that this node has), to read.
//!
//! Laws:
//! - A block is present only if the extents have it as the content names it: a dirty block at the
//!   version of its last write, a clean one of the file's object. [`ByteMap::present`] and
//!   [`ByteMap::block`] decide that, and nothing else does.
//! - A dirty block that is not present is lost. With one node that is a bug, and asserts.
//! - An absent block is clean: its bytes follow from the content alone.

mod check;
mod findings;
mod old_snapshot;
mod plan;
mod seek;

pub(crate) use check::{check, check_all_present};
pub(crate) use old_snapshot::restore;
pub use old_snapshot::{FileItem, JoinedItem};
pub use plan::{ByteOrigin, Edge, Fill, Segment};

use crate::blocks::BLOCKS_PER_CHUNK;
use crate::content::{Content, ObjectBytes};
use crate::extent::{Block, Extents, ResidentChunk};
use ebb_model::{BLOCK_BYTES, Ino, PackId, PackRange, Version};
use std::ops::Range;

/// Content and extents of all files, to read. Laws in the module header.
#[derive(Clone, Copy)]
pub struct ByteMap<'a> {
    content: &'a Content,
    extents: &'a Extents,
}

impl<'a> ByteMap<'a> {
    pub fn new(content: &'a Content, extents: &'a Extents) -> ByteMap<'a> {
        ByteMap { content, extents }
    }

    pub(crate) fn content(self) -> &'a Content {
        self.content
    }

    /// The present blocks among `blocks`, in order.
    pub(crate) fn present(
        self,
        ino: Ino,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (u64, Block)> + 'a {
        let mut dirty = self.content.dirty_versions(ino, blocks.clone()).peekable();
        let mut is_of_object = None;
        self.extents.blocks(ino, blocks).filter(move |(block, state)| {
            while dirty.next_if(|(run, _)| run.end <= *block).is_some() {}
            match dirty.peek().filter(|(run, _)| run.contains(block)) {
                Some((_, version)) => is_last_write(ino, *block, state, *version),
                None => !state.dirty && *is_of_object.get_or_insert_with(|| self.has_clean_of(ino)),
            }
        })
    }

    /// State of a block; `None` if it is absent.
    pub fn block(self, ino: Ino, block: u64) -> Option<Block> {
        let state = self.extents.block(ino, block)?;
        let is_present = match self.content.dirty_version(ino, block) {
            Some(version) => is_last_write(ino, block, &state, version),
            None => !state.dirty && self.has_clean_of(ino),
        };
        is_present.then_some(state)
    }

    /// Whether the clean blocks of the extents are those of the file's object.
    fn has_clean_of(self, ino: Ino) -> bool {
        self.extents.object_mark(ino).is_same_object(&self.content.object_mark(ino))
    }

    fn is_present(self, ino: Ino, block: u64) -> bool {
        self.block(ino, block).is_some()
    }

    /// Leading bytes that an absent block has from the object.
    fn object_bytes(self, ino: Ino, block: u64) -> u64 {
        self.assert_clean(ino, block);
        self.content.object_bytes(ino, block)
    }

    /// An absent block is not dirty: its bytes would be lost.
    fn assert_clean(self, ino: Ino, block: u64) {
        assert!(
            self.content.dirty_version(ino, block).is_none(),
            "inode {ino}: the bytes of dirty block {block} are lost"
        );
    }

    /// Whether the bucket has all bytes of a file of this length, and no other state exists.
    pub fn is_clean(self, ino: Ino, len_bytes: u64) -> bool {
        self.content.is_clean(ino, len_bytes) && !self.extents.is_exposed(ino)
    }

    /// Whether a byte of the file is on the node's disk, or space for it is allocated.
    pub fn is_stored(self, ino: Ino) -> bool {
        self.extents.is_stored(ino)
    }

    pub fn object(self, ino: Ino) -> Option<ObjectBytes> {
        self.content.object(ino)
    }

    /// Whether the file has writable mappings.
    pub fn is_exposed(self, ino: Ino) -> bool {
        self.extents.is_exposed(ino)
    }

    pub fn exposed(self) -> impl Iterator<Item = Ino> + 'a {
        self.extents.exposed()
    }

    /// Disk space of all present blocks.
    pub fn resident_bytes(self) -> u64 {
        self.extents.resident_bytes()
    }

    /// Disk space of all dirty blocks.
    pub fn dirty_bytes(self) -> u64 {
        self.extents.dirty_bytes()
    }

    pub fn dirty_bytes_of(self, ino: Ino) -> u64 {
        match self.extents.packed(ino) {
            None => self.content.dirty_count(ino) * BLOCK_BYTES,
            Some(_) => self.extents.sum_bytes(ino, |block| block.dirty),
        }
    }

    pub fn resident_bytes_of(self, ino: Ino) -> u64 {
        self.extents.resident_bytes_of(ino)
    }

    /// Disk space of a block. In a pack file only its bytes within the range count.
    pub fn block_bytes(self, ino: Ino, block: u64) -> u64 {
        self.extents.block_bytes(ino, block)
    }

    /// Bytes of a file that are in holes for certain, in whole blocks up to its end.
    pub fn hole_bytes(self, ino: Ino, size_bytes: u64) -> u64 {
        self.content.hole_bytes(ino, size_bytes)
    }

    /// Whether the block is clean and zeros.
    pub fn is_zero(self, ino: Ino, block: u64) -> bool {
        self.content.is_zero(ino, block)
    }

    /// Whether the block is in a hole: absent and zeros, whatever the object has there.
    pub fn is_hole(self, ino: Ino, block: u64) -> bool {
        self.content.is_hole(ino, block)
    }

    /// The pack range of a file; `None` if it has a store file of its own.
    pub fn packed(self, ino: Ino) -> Option<PackRange> {
        self.extents.packed(ino)
    }

    /// Pack files in use, each with its used bytes.
    pub fn packs(self) -> impl Iterator<Item = (PackId, u64)> + 'a {
        self.extents.packs()
    }

    /// Number of files in pack files.
    pub fn packed_count(self) -> u64 {
        self.extents.packed_count()
    }

    /// Used ranges of one pack file, in order.
    pub fn packed_in(self, pack: PackId) -> impl Iterator<Item = (PackRange, Ino)> + 'a {
        self.extents.packed_in(pack)
    }

    /// The first block on the node's disk at or after `from`, in its file or a later one, with the
    /// contiguous ones after it, at most `limit`.
    pub fn next_resident(self, from: (Ino, u64), limit: u64) -> Option<(Ino, Range<u64>)> {
        self.extents.next_resident(from, limit)
    }

    /// Blocks with a void checksum, in order: they can be overwritten without a command.
    pub fn void_blocks(self) -> impl Iterator<Item = (Ino, u64)> + 'a {
        self.extents.void_blocks()
    }

    /// Chunks with blocks on the node's disk, with their resident and dirty bytes, in order.
    pub fn chunks(self) -> impl Iterator<Item = ResidentChunk> + 'a {
        self.extents.chunks()
    }

    /// Present blocks of one chunk, for verification.
    pub fn chunk_blocks(self, ino: Ino, chunk: u64) -> impl Iterator<Item = (u64, Block)> + 'a {
        let first = chunk.saturating_mul(BLOCKS_PER_CHUNK);
        self.present(ino, first..first.saturating_add(BLOCKS_PER_CHUNK))
    }

    /// Every file with any state, in order.
    pub fn files(self) -> impl Iterator<Item = Ino> + 'a {
        let (mut content, mut extents) =
            (self.content.files().peekable(), self.extents.files().peekable());
        std::iter::from_fn(move || {
            let next = content.peek().into_iter().chain(extents.peek()).min().copied()?;
            content.next_if_eq(&next);
            extents.next_if_eq(&next);
            Some(next)
        })
    }
}

/// Whether the extents have the last write of a dirty block.
fn is_last_write(ino: Ino, block: u64, state: &Block, version: Version) -> bool {
    assert!(
        state.dirty && state.version == version,
        "inode {ino}: dirty block {block} is of version {version:?}, but {state:?} is stored"
    );
    true
}

#[cfg(test)]
mod tests;
