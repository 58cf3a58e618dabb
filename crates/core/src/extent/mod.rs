//! Extents: the blocks of each file that this node has on its disk.
//!
//! A store file is sparse, with bytes at their own offsets, in blocks of [`BLOCK_BYTES`]. A block
//! is absent (the store file's bytes there must not be read), dirty (written on this node at its
//! version) or clean (the bytes of the object with the file's [`ObjectMark`]). Whether those are
//! the file's bytes follows from [`crate::content`]; [`crate::byte_map`] compares the two.
//!
//! Laws:
//! - The block map changes only by commands of this node and by changes of content.
//! - A checksum covers all 64 KiB of a block; bytes behind the end of the file count as zeros. So a
//!   file can grow without a change of any block. Only writes, truncations and power failures void
//!   a checksum.
//! - All clean blocks of a file are of one object, and begin within its valid bytes.
//! - A packed file has no block that begins behind its pack range, and no non-zero byte behind it.
//!   Pack ranges do not overlap.
//! - While a file has writable mappings its block states can be outdated: a checksum proves
//!   nothing, and a hole can have bytes. So no block is dropped because of a checksum or a lost
//!   sync.
//! - A file without block and pack range has no entry. Counters equal the sums of the entries.

mod edit;
mod follow;
mod packs;
mod snapshot;
mod unforced;

pub use follow::Effect;
use packs::Packs;
pub use snapshot::ExtentItem;
pub use unforced::{Unforced, UnforcedItem};

use crate::blocks::{BLOCKS_PER_CHUNK, MAX_BLOCKS};
use crate::content::ObjectMark;
use crate::tree::{Tree, Value, pack, remembered_wrongly, take};
use ebb_model::{BLOCK_BYTES, Ino, LocalCommand, PackRange, Planted, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Extents of all files, with totals in bytes. Laws in the module header.
#[derive(Clone, Default)]
pub struct Extents {
    blocks: Tree<(Ino, u64), Block>,
    files: Tree<Ino, FileExtents>,
    packs: Packs,
    /// Files with writable mappings, through which stores bypass the node.
    exposed: Tree<Ino, ()>,
    resident_bytes: u64,
    dirty_bytes: u64,
}

/// A block on the node's disk. It corresponds to the paper's chunk record (O-35), without a list of
/// writes, which happen in place, and without a deleted flag: truncated blocks are absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Version of the last write to it; 0 if it came from the bucket.
    pub version: Version,
    /// Per block, and independent of the directory page with the file's attributes (O-37).
    pub dirty: bool,
    /// CRC-32C; `None` is void.
    pub sum: Option<u32>,
}

/// State of a file as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FileExtents {
    /// Object of the clean blocks. Without meaning if there is none.
    object: ObjectMark,
    resident: u64,
    packed: Option<PackRange>,
}

impl Default for FileExtents {
    fn default() -> FileExtents {
        FileExtents { object: ObjectMark::NONE, resident: 0, packed: None }
    }
}

const DIRTY: u8 = 1;
const SUMMED: u8 = 2;

impl Value<(Ino, u64)> for Block {
    fn pack(&self, _: &(Ino, u64), out: &mut Vec<u8>) {
        let flags = (u8::from(self.dirty) * DIRTY) | (u8::from(self.sum.is_some()) * SUMMED);
        pack(&(flags, self.version), out);
        out.extend(self.sum.into_iter().flat_map(u32::to_le_bytes));
    }

    fn unpack(_: &(Ino, u64), mut bytes: &[u8]) -> Block {
        let (flags, version): (u8, Version) = take(&mut bytes);
        let sum = (flags & SUMMED != 0).then(|| u32::from_le_bytes(take(&mut bytes)));
        Block { version, dirty: flags & DIRTY != 0, sum }
    }
}

const OF_OBJECT: u8 = 1;
const PACKED: u8 = 2;

impl Value<Ino> for FileExtents {
    fn pack(&self, _: &Ino, out: &mut Vec<u8>) {
        let FileExtents { object, resident, packed } = self;
        let flag = |is_set: bool, flag: u8| u8::from(is_set) * flag;
        let flags = flag(*object != ObjectMark::NONE, OF_OBJECT) | flag(packed.is_some(), PACKED);
        pack(&(flags, resident), out);
        if *object != ObjectMark::NONE {
            out.extend(object.etag_hash.to_le_bytes());
            pack(&object.blocks, out);
        }
        if let Some(range) = packed {
            pack(range, out);
        }
    }

    fn unpack(_: &Ino, mut bytes: &[u8]) -> FileExtents {
        let bytes = &mut bytes;
        let (flags, resident): (u8, u64) = take(bytes);
        let object = if flags & OF_OBJECT != 0 {
            ObjectMark { etag_hash: u64::from_le_bytes(take(bytes)), blocks: take(bytes) }
        } else {
            ObjectMark::NONE
        };
        let packed = (flags & PACKED != 0).then(|| take(bytes));
        FileExtents { object, resident, packed }
    }
}

impl FileExtents {
    /// Disk space of a block. In a pack file only its bytes within the range count.
    fn block_bytes(&self, block: u64) -> u64 {
        let in_range = |range: PackRange| {
            range.len_bytes.saturating_sub(block.saturating_mul(BLOCK_BYTES)).min(BLOCK_BYTES)
        };
        self.packed.map_or(BLOCK_BYTES, in_range)
    }
}

/// A chunk with present blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidentChunk {
    pub ino: Ino,
    pub chunk: u64,
    pub resident_bytes: u64,
    pub dirty_bytes: u64,
}

/// Changes.
impl Extents {
    /// Applies a command about blocks that the node has. [`Extents::fetched`] applies `Present`.
    pub(crate) fn apply(&mut self, command: &LocalCommand) {
        match *command {
            LocalCommand::Present { .. } => {}
            LocalCommand::Staged { ino, version, first, ref sums, range } => {
                self.written(ino, first, sums, range, version)
            }
            LocalCommand::Absent { ino, .. } | LocalCommand::Unsynced { ino, .. }
                if self.is_exposed(ino) => {}
            LocalCommand::Absent { ino, first, count } => self.edit(ino, |edit| {
                for (block, state) in edit.list(first..first.saturating_add(count)) {
                    if !state.dirty || Planted::DirtyEvicted.is_on() {
                        edit.take(block);
                    }
                }
            }),
            // Only recovery uses it, from the log.
            LocalCommand::Synced { .. } => {}
            LocalCommand::Summed { ino, version, ref sums } => self.edit(ino, |edit| {
                for &(block, sum) in sums {
                    if let Some(state) = edit.block(block)
                        && state.sum.is_none()
                        && state.version <= version
                    {
                        edit.put(block, Block { sum: Some(sum), ..state });
                    }
                }
            }),
            LocalCommand::Unsynced { ino, first, count } => self.edit(ino, |edit| {
                for (block, state) in edit.list(first..first.saturating_add(count)) {
                    if state.dirty {
                        edit.put(block, Block { sum: None, ..state });
                    } else {
                        edit.take(block);
                    }
                }
            }),
            LocalCommand::Packed { ino, range } => self.edit(ino, |edit| edit.pack(range)),
            LocalCommand::Exposed { ino, exposed: true } => drop(self.exposed.insert(&ino, &())),
            LocalCommand::Exposed { ino, exposed: false } => drop(self.exposed.remove(&ino)),
        }
    }

    /// Absent blocks from `first` on, except those that `is_hole`, have the bytes of `object`.
    pub(crate) fn fetched(
        &mut self,
        ino: Ino,
        object: ObjectMark,
        first: u64,
        sums: &[u32],
        is_hole: impl Fn(u64) -> bool,
    ) {
        self.edit(ino, |edit| {
            if !edit.file.object.is_same_object(&object) {
                edit.drop_clean();
            }
            edit.set_object(object);
            for (block, sum) in (first..MAX_BLOCKS).zip(sums) {
                let is_of_object = block < object.blocks && !is_hole(block);
                if edit.block(block).is_none() && is_of_object {
                    edit.put(block, Block { version: Version(0), dirty: false, sum: Some(*sum) });
                }
            }
        });
    }

    /// The blocks from `first` on were written, to the pack range `packed` if the file got one.
    /// `sums` are their checksums in order.
    fn written(
        &mut self,
        ino: Ino,
        first: u64,
        sums: &[Option<u32>],
        packed: Option<PackRange>,
        version: Version,
    ) {
        self.edit(ino, |edit| {
            if packed.is_some() {
                edit.pack(packed);
            }
            for (block, sum) in (first..MAX_BLOCKS).zip(sums.iter().copied()) {
                // A dirty block with a void checksum gets one at its upload. So rewrites until then
                // need no further command that voids it.
                let rewritten =
                    edit.block(block).is_some_and(|block| block.dirty && block.sum.is_none());
                edit.put(block, Block { version, dirty: true, sum: sum.filter(|_| !rewritten) });
            }
        })
    }
}

/// Answers.
impl Extents {
    /// Memory of the trees, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.blocks.bytes() + self.files.bytes() + self.packs.memory_bytes() + self.exposed.bytes()
    }

    /// Whether a byte of the file is on the node's disk, or space for it is allocated.
    pub fn is_stored(&self, ino: Ino) -> bool {
        self.look(ino, |file| file.resident > 0 || file.packed.is_some())
    }

    /// State of a block; `None` if it is absent.
    pub(crate) fn block(&self, ino: Ino, block: u64) -> Option<Block> {
        self.blocks.get(&(ino, block))
    }

    /// Blocks of a file, in order.
    pub(crate) fn blocks(
        &self,
        ino: Ino,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (u64, Block)> {
        let is_any = !blocks.is_empty() && self.look(ino, |file| file.resident > 0);
        let found = is_any.then(|| self.blocks.range((ino, blocks.start)..(ino, blocks.end)));
        found.into_iter().flatten().map(|((_, block), state)| (block, state))
    }

    /// Object of the file's clean blocks, if there is any.
    pub(crate) fn object_mark(&self, ino: Ino) -> ObjectMark {
        self.look(ino, |file| file.object)
    }

    /// Whether the file has writable mappings.
    pub fn is_exposed(&self, ino: Ino) -> bool {
        self.exposed.contains_key(&ino)
    }

    pub fn exposed(&self) -> impl Iterator<Item = Ino> {
        self.exposed.iter().map(|(ino, ())| ino)
    }

    /// Disk space of all present blocks.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Disk space of all dirty blocks.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    pub fn resident_bytes_of(&self, ino: Ino) -> u64 {
        let whole =
            self.look(ino, |file| file.packed.is_none().then_some(file.resident * BLOCK_BYTES));
        whole.unwrap_or_else(|| self.sum_bytes(ino, |_| true))
    }

    /// Sums block by block: blocks of small files differ in size.
    pub(crate) fn sum_bytes(&self, ino: Ino, counts: impl Fn(&Block) -> bool) -> u64 {
        let blocks = self.blocks(ino, 0..u64::MAX).filter(|(_, state)| counts(state));
        blocks.map(|(block, _)| self.block_bytes(ino, block)).sum()
    }

    /// The first block at or after `from`, in its file or a later one, with the contiguous ones
    /// after it, at most `limit`.
    pub fn next_resident(&self, from: (Ino, u64), limit: u64) -> Option<(Ino, Range<u64>)> {
        let mut blocks = self.blocks.range(from..).map(|(at, _)| at);
        let (ino, first) = blocks.next()?;
        let more = (first + 1..first.saturating_add(limit))
            .zip(blocks)
            .take_while(|(block, at)| *at == (ino, *block))
            .count();
        Some((ino, first..first + 1 + more as u64))
    }

    /// Blocks with a void checksum, in order: they can be overwritten without a command.
    pub fn void_blocks(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.blocks.iter().filter(|(_, state)| state.sum.is_none()).map(|(at, _)| at)
    }

    /// Chunks with present blocks, with their resident and dirty bytes, in order. A restarted node
    /// builds its eviction order from them.
    pub fn chunks(&self) -> impl Iterator<Item = ResidentChunk> {
        let mut blocks = self.blocks.iter().peekable();
        std::iter::from_fn(move || {
            let &((ino, block), _) = blocks.peek()?;
            let mut chunk = ResidentChunk {
                ino,
                chunk: block / BLOCKS_PER_CHUNK,
                resident_bytes: 0,
                dirty_bytes: 0,
            };
            while let Some((_, state)) =
                blocks.next_if(|(at, _)| (at.0, at.1 / BLOCKS_PER_CHUNK) == (ino, chunk.chunk))
            {
                let bytes = self.block_bytes(ino, block);
                chunk.resident_bytes += bytes;
                chunk.dirty_bytes += bytes * u64::from(state.dirty);
            }
            Some(chunk)
        })
    }

    /// Every file with a block or a pack range.
    pub(crate) fn files(&self) -> impl Iterator<Item = Ino> {
        self.files.iter().map(|(ino, _)| ino)
    }

    /// State of a file; the default for a file without any.
    fn look<T>(&self, ino: Ino, at: impl FnOnce(&FileExtents) -> T) -> T {
        self.files.look(&ino, |file| match file {
            Some(file) => at(file),
            None => at(&FileExtents::default()),
        })
    }
}

/// Whole states, for proofs.
impl Extents {
    /// Blocks of all files, ordered by inode and block.
    pub(crate) fn all_blocks(&self) -> impl Iterator<Item = ((Ino, u64), Block)> {
        self.blocks.iter()
    }

    /// Descriptions of broken laws.
    pub fn check(&self) -> Vec<String> {
        let mut problems = remembered_wrongly([
            ("blocks", self.blocks.is_recent_so()),
            ("extents", self.files.is_recent_so()),
            ("packs", self.packs.is_recent_so()),
            ("exposed", self.exposed.is_recent_so()),
        ]);
        let mut counts = BTreeMap::<Ino, u64>::new();
        let mut counted = (0, 0);
        for ((ino, at), block) in self.blocks.iter() {
            *counts.entry(ino).or_default() += 1;
            let (border, bytes) = self.look(ino, |file| (file.object.blocks, file.block_bytes(at)));
            if !block.dirty && at >= border {
                problems.push(format!("inode {ino}: clean block {at} is behind its object"));
            }
            counted = (counted.0 + bytes, counted.1 + bytes * u64::from(block.dirty));
        }
        for (ino, file) in self.files.iter() {
            let found = counts.remove(&ino).unwrap_or_default();
            if found != file.resident {
                problems.push(format!(
                    "inode {ino}: {found} blocks, but {} are counted",
                    file.resident
                ));
            }
            if (file.resident, file.packed) == (0, None) {
                problems.push(format!("inode {ino}: its extents are empty and not removed"));
            }
        }
        problems.extend(counts.keys().map(|ino| format!("inode {ino}: blocks without extents")));
        if counted != (self.resident_bytes, self.dirty_bytes) {
            problems.push("bytes of all files are miscounted".into());
        }
        problems.extend(self.check_packs());
        problems
    }
}
