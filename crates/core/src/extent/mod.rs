//! Extents: the cached bytes of each file, and the dirty ones among them, which exist nowhere else.
//!
//! A store file is sparse, with bytes at their own offsets, in blocks of [`BLOCK_BYTES`]. A block
//! is absent (the store file's bytes there must not be read), clean (the backing object has it) or
//! dirty. The bytes of an absent block follow from the backing object: below
//! [`ObjectBytes::valid_bytes`] they are the object's, all others are zeros. Blocks of holes are
//! zeros.
//!
//! Laws:
//! - The block map changes only by [`Extents::apply`], [`Extents::observe`] and the records of the
//!   bucket ([`Extents::uploaded`] and its neighbours).
//! - A checksum covers all 64 KiB of a block; bytes behind the end of the file count as zeros. So a
//!   file can grow without a change of any block. Only writes, truncations and power failures void
//!   a checksum.
//! - `valid_bytes` grows only with a new object, so truncated or overwritten bytes never reappear
//!   from an old one.
//! - A packed file has no block that begins behind its pack range, and no non-zero byte behind it.
//!   Pack ranges do not overlap.
//! - While a file has writable mappings its block states can be outdated: a checksum proves
//!   nothing, and a hole can have bytes. So no block is dropped because of a checksum or a lost
//!   sync.
//! - A file without any state has no entry. Counters equal the sums of the entries.

mod edit;
mod packs;
mod plan;
mod seek;
mod snapshot;
mod unforced;

use edit::Edit;
use packs::Packs;
pub(crate) use plan::sums_of_touched;
pub use plan::{ByteOrigin, Edge, Fill, ResidentChunk, Segment};
pub use snapshot::ExtentItem;
pub use unforced::Unforced;

use crate::blocks::{BlockRuns, MAX_BLOCKS, touched_blocks, whole_blocks};
use crate::namespace::Change;
use crate::tree::{Tree, Value, pack, remembered_wrongly, take, unpack};
use ebb_model::{BLOCK_BYTES, ExtentCommand, Ino, PackRange, Planted, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::iter::repeat;
use std::ops::Range;

/// Extents of all files, with totals in bytes. Laws in the module header.
#[derive(Clone, Default)]
pub struct Extents {
    blocks: Tree<(Ino, u64), Block>,
    files: Tree<Ino, FileExtents>,
    /// Absent blocks that are zeros although the object can have bytes there. Holes end with the
    /// valid part of the object: all absent blocks behind it are zeros anyway.
    holes: BlockRuns,
    packs: Packs,
    /// Files with writable mappings, through which stores bypass the node.
    exposed: Tree<Ino, ()>,
    resident_bytes: u64,
    dirty_bytes: u64,
}

/// A present block. It corresponds to the paper's chunk record (O-35), without a list of writes,
/// which happen in place, and without a deleted flag: truncated blocks are absent.
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
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileExtents {
    object: Option<ObjectBytes>,
    /// During an upload: its truncations as (version, length), both strictly increasing. A later,
    /// shorter truncation replaces the longer ones before it.
    cuts: Option<Vec<(Version, u64)>>,
    resident: u64,
    dirty: u64,
    /// Number of blocks that can be non-zero: present, or with valid bytes of the object.
    /// Recomputed when a snapshot is read.
    #[serde(skip)]
    data: u64,
    /// Restored from an item of its own.
    #[serde(skip)]
    packed: Option<PackRange>,
}

impl Value<Ino> for FileExtents {
    fn pack(&self, _: &Ino, out: &mut Vec<u8>) {
        let FileExtents { object, cuts, resident, dirty, data, packed } = self;
        pack(&(object, cuts, resident, dirty, data, packed), out);
    }

    fn unpack(_: &Ino, bytes: &[u8]) -> FileExtents {
        let (object, cuts, resident, dirty, data, packed) = unpack(bytes);
        FileExtents { object, cuts, resident, dirty, data, packed }
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

impl FileExtents {
    /// Leading bytes that absent blocks have from the object.
    fn valid_bytes(&self) -> u64 {
        self.object.as_ref().map_or(0, |object| object.valid_bytes)
    }

    /// Number of blocks with valid bytes of the object, if they are absent and not holes.
    fn object_blocks(&self) -> u64 {
        self.object.as_ref().map_or(0, ObjectBytes::blocks)
    }

    /// Disk space of a block. In a pack file only its bytes within the range count.
    fn block_bytes(&self, block: u64) -> u64 {
        let in_range = |range: PackRange| {
            range.len_bytes.saturating_sub(block.saturating_mul(BLOCK_BYTES)).min(BLOCK_BYTES)
        };
        self.packed.map_or(BLOCK_BYTES, in_range)
    }
}

/// The backing object, from which absent blocks are read (O-36).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectBytes {
    pub etag: String,
    /// Leading bytes of the object that are still the file's.
    pub valid_bytes: u64,
}

impl ObjectBytes {
    /// Number of blocks with valid bytes.
    fn blocks(&self) -> u64 {
        self.valid_bytes.div_ceil(BLOCK_BYTES)
    }
}

/// Recomputed counts of one file.
#[derive(Clone, Copy, Default)]
struct Sums {
    resident: u64,
    dirty: u64,
    behind_object: u64,
}

impl Extents {
    /// Memory of the trees, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.blocks.bytes()
            + self.files.bytes()
            + self.holes.memory_bytes()
            + self.packs.memory_bytes()
            + self.exposed.bytes()
    }

    /// Whether the bucket has all bytes of a file of this length, and no other state exists.
    pub fn is_clean(&self, ino: Ino, len_bytes: u64) -> bool {
        let is_whole = |object: &ObjectBytes| object.valid_bytes == len_bytes;
        self.look(ino, |file| {
            file.dirty == 0 && file.cuts.is_none() && file.object.as_ref().is_some_and(is_whole)
        }) && !self.is_exposed(ino)
            && self.holes.next(ino, 0).is_none()
    }

    /// Whether a byte of the file is on the node's disk, or space for it is allocated.
    pub fn is_stored(&self, ino: Ino) -> bool {
        self.look(ino, |file| file.resident > 0 || file.packed.is_some())
    }

    /// Applies a command. One that no longer matches the state is ignored, such as a `Present` for
    /// a replaced object.
    pub fn apply(&mut self, command: &ExtentCommand) {
        match *command {
            ExtentCommand::Present { ino, ref etag, first, ref sums } => self.edit(ino, |edit| {
                if edit.file.object.as_ref().is_none_or(|object| object.etag != *etag)
                    || first >= MAX_BLOCKS
                {
                    return;
                }
                for (block, sum) in (first..MAX_BLOCKS).zip(sums) {
                    if edit.block(block).is_none() && !edit.is_hole(block) {
                        edit.put(
                            block,
                            Block { version: Version(0), dirty: false, sum: Some(*sum) },
                        );
                    }
                }
            }),
            ExtentCommand::Absent { ino, .. } | ExtentCommand::Unsynced { ino, .. }
                if self.is_exposed(ino) => {}
            ExtentCommand::Absent { ino, first, count } => self.edit(ino, |edit| {
                for (block, state) in edit.list(first..first.saturating_add(count)) {
                    if !state.dirty || Planted::DirtyEvicted.is_on() {
                        edit.take(block);
                    }
                }
            }),
            // Only recovery uses it, from the log.
            ExtentCommand::Synced { .. } => {}
            ExtentCommand::Summed { ino, version, ref sums } => self.edit(ino, |edit| {
                for &(block, sum) in sums {
                    if let Some(state) = edit.block(block)
                        && state.sum.is_none()
                        && state.version <= version
                    {
                        edit.put(block, Block { sum: Some(sum), ..state });
                    }
                }
            }),
            ExtentCommand::Unsynced { ino, first, count } => self.edit(ino, |edit| {
                for (block, state) in edit.list(first..first.saturating_add(count)) {
                    if state.dirty {
                        edit.put(block, Block { sum: None, ..state });
                    } else {
                        edit.take(block);
                    }
                }
            }),
            ExtentCommand::Packed { ino, range } => self.edit(ino, |edit| edit.pack(range)),
            ExtentCommand::Exposed { ino, exposed: true } => drop(self.exposed.insert(&ino, &())),
            ExtentCommand::Exposed { ino, exposed: false } => drop(self.exposed.remove(&ino)),
        }
    }

    /// Applies a change of the namespace.
    pub(crate) fn observe(&mut self, change: &Change) {
        match *change {
            Change::Written { ino, offset, len_bytes, ref sums, packed, stamp } => {
                self.edit(ino, |edit| {
                    if packed.is_some() {
                        edit.pack(packed);
                    }
                    for (block, sum) in touched_blocks(offset, len_bytes)
                        .zip(sums.iter().copied().chain(repeat(None)))
                    {
                        // A dirty block with a void checksum gets one at its upload. So rewrites
                        // until then need no further command that voids it.
                        let rewritten = edit
                            .block(block)
                            .is_some_and(|block| block.dirty && block.sum.is_none());
                        let sum = sum.filter(|_| !rewritten);
                        edit.put(block, Block { version: stamp.version, dirty: true, sum });
                    }
                })
            }
            Change::Zeroed { ino, ref range, ref edges, stamp } => {
                self.zero(ino, range, edges, stamp.version)
            }
            Change::Resized { ino, old_bytes, new_bytes, stamp } if new_bytes < old_bytes => {
                self.cut(ino, new_bytes, stamp.version)
            }
            Change::Gone { ino, .. } | Change::Forgotten { ino } => {
                self.holes.remove(ino, 0..u64::MAX);
                self.edit(ino, |edit| {
                    edit.drop_blocks(0);
                    edit.pack(None);
                    edit.file = FileExtents::default();
                });
                self.exposed.remove(&ino);
            }
            _ => {}
        }
    }

    fn zero(&mut self, ino: Ino, range: &Range<u64>, edges: &[u64], version: Version) {
        let len_bytes = range.end.saturating_sub(range.start);
        let whole = whole_blocks(range.start, len_bytes);
        self.edit(ino, |edit| {
            for block in [range.start / BLOCK_BYTES, range.end / BLOCK_BYTES] {
                if edges.contains(&block) && !whole.contains(&block) {
                    edit.put(block, Block { version, dirty: true, sum: None });
                }
            }
            for (block, _) in edit.list(whole.clone()) {
                edit.take(block);
            }
            edit.dig(whole.start..whole.end.min(edit.file.object_blocks()));
        });
    }

    /// Truncated blocks become absent, and the object no longer counts for them: no deleted flag is
    /// needed (O-83).
    fn cut(&mut self, ino: Ino, len_bytes: u64, version: Version) {
        self.edit(ino, |edit| {
            edit.drop_blocks(len_bytes.div_ceil(BLOCK_BYTES));
            let boundary = len_bytes / BLOCK_BYTES;
            if !len_bytes.is_multiple_of(BLOCK_BYTES) && edit.block(boundary).is_some() {
                edit.put(boundary, Block { version, dirty: true, sum: None });
            }
            if let Some(object) =
                edit.file.object.clone().filter(|object| object.valid_bytes > len_bytes)
                && !Planted::CutKeepsTail.is_on()
            {
                edit.set_object(Some(ObjectBytes { valid_bytes: len_bytes, ..object }));
            }
            if let Some(cuts) = &mut edit.file.cuts {
                cuts.retain(|&(_, shorter)| shorter < len_bytes);
                cuts.push((version, len_bytes));
            }
        });
    }

    /// Sets the backing object of a newly loaded file.
    pub(crate) fn set_object(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.edit(ino, |edit| {
            edit.fill(0..u64::MAX);
            edit.set_object(Some(ObjectBytes { etag: etag.into(), valid_bytes: len_bytes }));
        });
    }

    /// Equivalent to [`Extents::set_object`] of each file without any state: inode, tag and length
    /// of the object.
    pub(crate) fn set_objects<'a>(&mut self, homes: impl Iterator<Item = (Ino, &'a str, u64)>) {
        self.files.extend(homes.map(|(ino, etag, len_bytes)| {
            let object = ObjectBytes { etag: etag.into(), valid_bytes: len_bytes };
            (
                ino,
                FileExtents {
                    data: object.blocks(),
                    object: Some(object),
                    ..FileExtents::default()
                },
            )
        }));
    }

    /// From `version` on truncations are recorded until the upload ends. An earlier truncation
    /// applies to an upload of older bytes. A multipart upload that gets its id later keeps its
    /// first version.
    pub(crate) fn upload_begun(&mut self, ino: Ino, version: Version) {
        self.edit(ino, |Edit { file, .. }| {
            let object = file.object.as_ref();
            file.cuts.get_or_insert_with(|| {
                object.map(|object| (version, object.valid_bytes)).into_iter().collect()
            });
        });
    }

    pub(crate) fn upload_aborted(&mut self, ino: Ino) {
        self.edit(ino, |edit| edit.file.cuts = None);
    }

    /// The object is gone; absent blocks become zeros.
    pub(crate) fn forget_object(&mut self, ino: Ino) {
        self.edit(ino, |edit| edit.set_object(None));
    }

    /// The object `etag` holds the `len_bytes` bytes of the file at `version`. This version can
    /// precede [`Extents::upload_begun`]: a recovered node finds a copy of the object, or the
    /// object itself, without having sent a byte.
    pub fn uploaded(&mut self, ino: Ino, etag: &str, len_bytes: u64, version: Version) {
        let is_exposed = self.is_exposed(ino);
        self.edit(ino, |edit| {
            let zeros_from = edit.file.object_blocks();
            let mut cuts = edit.file.cuts.take().unwrap_or_default();
            if Planted::CutForgottenByUpload.is_on() {
                cuts.clear();
            }
            let since = cuts.into_iter().filter(|(cut, _)| *cut > version).map(|(_, len)| len);
            let object =
                ObjectBytes { etag: etag.into(), valid_bytes: since.fold(len_bytes, u64::min) };
            edit.set_object(Some(object));
            edit.keep_zeros(zeros_from);
            for (block, state) in edit.list(0..u64::MAX) {
                match state.sum {
                    _ if !state.dirty || state.version > version => {}
                    Some(_) => edit.put(block, Block { dirty: false, ..state }),
                    None if is_exposed => {}
                    // The uploaded block had a checksum. A later write was about to replace it, or
                    // the power failed: the local bytes are undefined, and the object has the
                    // uploaded ones.
                    None => edit.take(block),
                }
            }
        });
    }

    /// The object was copied: the same bytes under another tag.
    pub fn moved(&mut self, ino: Ino, etag: &str) {
        self.edit(ino, |edit| {
            if let Some(object) = &mut edit.file.object {
                object.etag = etag.into();
            }
        });
    }

    /// Another writer replaced the object. Dirty blocks and truncations stay. `keep_length`: the
    /// file's own length takes precedence.
    pub fn replaced(&mut self, ino: Ino, etag: &str, len_bytes: u64, keep_length: bool) {
        self.edit(ino, |edit| {
            for (block, state) in edit.list(0..u64::MAX) {
                if !state.dirty {
                    edit.take(block);
                }
            }
            if !keep_length {
                edit.fill(0..u64::MAX);
            }
            let limit = if keep_length { edit.file.valid_bytes() } else { u64::MAX };
            edit.set_object(Some(ObjectBytes {
                etag: etag.into(),
                valid_bytes: len_bytes.min(limit),
            }));
        });
    }

    /// The object is gone and every block is present: all of them become dirty.
    pub fn send_again(&mut self, ino: Ino, version: Version) {
        self.edit(ino, |edit| {
            for (block, state) in edit.list(0..u64::MAX) {
                edit.put(block, Block { version, dirty: true, ..state });
            }
        });
    }

    /// Drops all local state in favour of the object.
    pub fn rolled_back(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.edit(ino, |edit| edit.drop_blocks(0));
        self.set_object(ino, etag, len_bytes);
    }

    /// All local bytes of the file were lost.
    pub(crate) fn bytes_lost(&mut self, ino: Ino) {
        self.exposed.remove(&ino);
        self.edit(ino, |edit| {
            edit.drop_blocks(0);
            edit.pack(None);
        });
    }

    /// Whether the node has, or can have, dirty bytes.
    pub(crate) fn has_unsent(&self, ino: Ino) -> bool {
        self.is_exposed(ino) || self.look(ino, |file| file.dirty > 0)
    }

    /// Whether the file is all zeros without bytes of an object or the node.
    pub(crate) fn is_zero_without_object(&self, ino: Ino, size_bytes: u64) -> bool {
        let is_zero = !self.is_exposed(ino) && self.look(ino, |file| file.data == 0);
        size_bytes == 0 || is_zero
    }

    pub fn object(&self, ino: Ino) -> Option<ObjectBytes> {
        self.look(ino, |file| file.object.clone())
    }

    /// State of a block; `None` if it is absent.
    pub fn block(&self, ino: Ino, block: u64) -> Option<Block> {
        self.blocks.get(&(ino, block))
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

    pub fn dirty_bytes_of(&self, ino: Ino) -> u64 {
        let whole =
            self.look(ino, |file| file.packed.is_none().then_some(file.dirty * BLOCK_BYTES));
        whole.unwrap_or_else(|| self.sum_bytes(ino, |block| block.dirty))
    }

    pub fn resident_bytes_of(&self, ino: Ino) -> u64 {
        let whole =
            self.look(ino, |file| file.packed.is_none().then_some(file.resident * BLOCK_BYTES));
        whole.unwrap_or_else(|| self.sum_bytes(ino, |_| true))
    }

    /// Sums block by block: blocks of small files differ in size.
    fn sum_bytes(&self, ino: Ino, counts: impl Fn(&Block) -> bool) -> u64 {
        let blocks = self.list(ino, 0..u64::MAX).into_iter().filter(|(_, state)| counts(state));
        blocks.map(|(block, _)| self.block_bytes(ino, block)).sum()
    }

    /// Bytes of a file that are in holes for certain, in whole blocks up to its end.
    pub fn hole_bytes(&self, ino: Ino, size_bytes: u64) -> u64 {
        if size_bytes == 0 {
            return 0;
        }
        let data = self.look(ino, |file| file.data);
        let last = (size_bytes - 1) / BLOCK_BYTES;
        // The last block can be partial.
        match self.is_zero(ino, last) {
            true => size_bytes.saturating_sub(data.saturating_mul(BLOCK_BYTES)),
            false => (last + 1).saturating_sub(data).saturating_mul(BLOCK_BYTES),
        }
    }

    /// Every file with any state.
    pub fn files(&self) -> impl Iterator<Item = (Ino, FileExtents)> {
        self.files.iter()
    }

    /// Descriptions of broken laws.
    pub fn check(&self) -> Vec<String> {
        let mut problems = remembered_wrongly([
            ("blocks", self.blocks.is_recent_so()),
            ("files", self.files.is_recent_so()),
            ("packs", self.packs.is_recent_so()),
            ("exposed", self.exposed.is_recent_so()),
        ]);
        let mut sums = BTreeMap::<Ino, Sums>::new();
        for ((ino, at), block) in self.blocks.iter() {
            let sum = sums.entry(ino).or_default();
            sum.resident += 1;
            sum.dirty += u64::from(block.dirty);
            sum.behind_object += u64::from(at >= self.object_blocks(ino));
        }
        let mut holes = BTreeMap::<Ino, u64>::new();
        for (ino, run) in self.holes.iter() {
            let sum = holes.entry(ino).or_default();
            *sum = run.end.saturating_sub(run.start).saturating_add(*sum);
        }
        for (ino, file) in self.files() {
            let Sums { resident, dirty, behind_object } = sums.remove(&ino).unwrap_or_default();
            if (resident, dirty) != (file.resident, file.dirty) {
                problems.push(format!(
                    "inode {ino}: {resident} blocks, {dirty} dirty, but {} and {} are counted",
                    file.resident, file.dirty
                ));
            }
            let data = (self.object_blocks(ino) + behind_object)
                .checked_sub(holes.get(&ino).copied().unwrap_or_default());
            if data != Some(file.data) {
                problems.push(format!(
                    "inode {ino}: {data:?} blocks may have other bytes than \
                    zeros, but {} are counted",
                    file.data
                ));
            }
            if file == FileExtents::default() {
                problems.push(format!("inode {ino}: its extent map is empty and not removed"));
            }
        }
        problems
            .extend(sums.keys().map(|ino| format!("inode {ino}: blocks without an extent map")));
        let mut counted = (0, 0);
        for ((ino, at), block) in self.blocks.iter() {
            let bytes = self.block_bytes(ino, at);
            counted = (counted.0 + bytes, counted.1 + bytes * u64::from(block.dirty));
        }
        if counted != (self.resident_bytes, self.dirty_bytes) {
            problems.push("bytes of all files are miscounted".into());
        }
        problems.extend(self.check_packs());
        let mut before = None;
        for (ino, run) in self.holes.iter() {
            if run.is_empty() || run.end > self.object_blocks(ino) {
                problems.push(format!("inode {ino}: hole {run:?} is empty or beyond the object"));
            }
            if before.is_some_and(|(other, end)| other == ino && end >= run.start) {
                problems.push(format!("inode {ino}: the hole {run:?} begins in another"));
            }
            if self.blocks.range((ino, run.start)..(ino, run.end.max(run.start))).next().is_some() {
                problems.push(format!("inode {ino}: a block in the hole {run:?} is present"));
            }
            before = Some((ino, run.end));
        }
        problems
    }

    /// State of a file; the default for a file without any.
    fn look<T>(&self, ino: Ino, at: impl FnOnce(&FileExtents) -> T) -> T {
        self.files.look(&ino, |file| match file {
            Some(file) => at(file),
            None => at(&FileExtents::default()),
        })
    }

    fn object_blocks(&self, ino: Ino) -> u64 {
        self.look(ino, FileExtents::object_blocks)
    }

    fn list(&self, ino: Ino, blocks: Range<u64>) -> Vec<(u64, Block)> {
        if blocks.is_empty() {
            return Vec::new();
        }
        self.blocks
            .range((ino, blocks.start)..(ino, blocks.end))
            .map(|((_, block), state)| (block, state))
            .collect()
    }
}

#[cfg(test)]
mod naive_blocks;
#[cfg(test)]
mod tests;
