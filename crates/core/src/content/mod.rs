//! Content: the facts about the bytes of each file on which all replicas agree.
//!
//! A file consists of blocks of [`BLOCK_BYTES`]. A dirty block is newer than the backing object;
//! content records the version of its last write, and the disks of nodes have its bytes
//! ([`crate::extent`]). A block of a hole is zeros. Every other block is clean: its bytes below
//! [`ObjectBytes::valid_bytes`] are the object's, all others are zeros.
//!
//! Laws:
//! - Content has no fact about a disk: no presence, no checksum and no pack range. What a node has
//!   found on its disk, and what decides about content, is in the command.
//! - The extents of a node follow each change ([`ContentChange`]); content never looks at them.
//! - `valid_bytes` grows only with a new object, so truncated or overwritten bytes never reappear
//!   from an old one.
//! - Holes contain no dirty block and end with the valid part of the object.
//! - A file without any state has no entry. Counters equal the sums of the entries.

mod changes;
mod dirty_runs;
mod edit;
mod snapshot;

pub use changes::ContentChange;
pub(crate) use changes::ContentMut;
use dirty_runs::DirtyRuns;
use edit::Edit;
pub use snapshot::ContentItem;

use crate::blocks::{BlockRuns, gaps, runs, touched_blocks, whole_blocks};
use crate::namespace::Change;
use crate::tree::{Tree, Value, pack, remembered_wrongly, take};
use ebb_model::{BLOCK_BYTES, Ino, Planted, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Content of all files. Laws in the module header.
#[derive(Clone, Default)]
pub struct Content {
    files: Tree<Ino, FileContent>,
    dirty: DirtyRuns,
    /// Clean blocks that are zeros although the object can have bytes there. Clean blocks behind
    /// the valid part of the object are zeros anyway.
    holes: BlockRuns,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct FileContent {
    object: Option<ObjectBytes>,
    /// During an upload: its truncations as (version, length), both strictly increasing. A later,
    /// shorter truncation replaces the longer ones before it.
    cuts: Option<Vec<(Version, u64)>>,
    /// Number of dirty blocks.
    dirty: u64,
    /// Number of blocks that can be non-zero: dirty, or with valid bytes of the object.
    data: u64,
}

const OBJECT: u8 = 1;
const CUTS: u8 = 2;
const DIRTY: u8 = 4;
/// All object blocks count as data, and no dirty block lies over one.
const ALL_DATA: u8 = 8;

impl Value<Ino> for FileContent {
    fn pack(&self, _: &Ino, out: &mut Vec<u8>) {
        let FileContent { object, cuts, dirty, data } = self;
        let flag = |is_set: bool, flag: u8| u8::from(is_set) * flag;
        let is_all_data = *data == self.object_blocks().saturating_add(*dirty);
        out.push(
            flag(object.is_some(), OBJECT)
                | flag(cuts.is_some(), CUTS)
                | flag(*dirty > 0, DIRTY)
                | flag(is_all_data, ALL_DATA),
        );
        object.iter().for_each(|object| pack(object, out));
        cuts.iter().for_each(|cuts| pack(cuts, out));
        if *dirty > 0 {
            pack(dirty, out);
        }
        if !is_all_data {
            pack(data, out);
        }
    }

    fn unpack(_: &Ino, mut bytes: &[u8]) -> FileContent {
        let bytes = &mut bytes;
        let flags: u8 = take(bytes);
        let object = (flags & OBJECT != 0).then(|| take(bytes));
        let cuts = (flags & CUTS != 0).then(|| take(bytes));
        let dirty = if flags & DIRTY != 0 { take(bytes) } else { 0 };
        let mut file = FileContent { object, cuts, dirty, data: 0 };
        file.data = match flags & ALL_DATA {
            0 => take(bytes),
            _ => file.object_blocks().saturating_add(dirty),
        };
        file
    }
}

impl FileContent {
    fn valid_bytes(&self) -> u64 {
        self.object.as_ref().map_or(0, |object| object.valid_bytes)
    }

    fn object_blocks(&self) -> u64 {
        self.object.as_ref().map_or(0, ObjectBytes::blocks)
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

/// Identifies an object among those that a file has had, in few bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectMark {
    /// 0 if the file has no object.
    pub(crate) etag_hash: u64,
    /// Number of blocks with valid bytes of the object.
    pub(crate) blocks: u64,
}

impl ObjectMark {
    pub const NONE: ObjectMark = ObjectMark { etag_hash: 0, blocks: 0 };

    pub(crate) fn of(etag: &str, blocks: u64) -> ObjectMark {
        // FNV-1a. Two tags of one file collide with a probability of 2^-64.
        let hash = etag.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        ObjectMark { etag_hash: hash.max(1), blocks }
    }

    pub(crate) fn is_same_object(&self, other: &ObjectMark) -> bool {
        self.etag_hash == other.etag_hash
    }
}

/// Changes. [`ContentMut`] makes them and notes them for the extents.
impl Content {
    /// Applies a change of the namespace.
    fn observe(&mut self, change: &Change) {
        match *change {
            Change::Written { ino, offset, len_bytes, stamp, .. } => {
                self.edit(ino, |edit| edit.write(touched_blocks(offset, len_bytes), stamp.version))
            }
            Change::Zeroed { ino, ref range, ref edges, stamp } => {
                let whole = whole_blocks(range.start, range.end.saturating_sub(range.start));
                self.edit(ino, |edit| {
                    for block in zeroed_edges(range, edges) {
                        edit.write(block..block + 1, stamp.version);
                    }
                    edit.clean(whole.clone());
                    edit.dig(whole.start..whole.end.min(edit.file.object_blocks()));
                });
            }
            Change::Resized { ino, old_bytes, new_bytes, has_edge, stamp }
                if new_bytes < old_bytes =>
            {
                self.cut(ino, new_bytes, stamp.version, has_edge)
            }
            Change::Gone { ino, .. } | Change::Forgotten { ino } => self.gone(ino),
            _ => {}
        }
    }

    /// The file has no content any more.
    pub(crate) fn gone(&mut self, ino: Ino) {
        self.holes.remove(ino, 0..u64::MAX);
        self.dirty.remove(ino, 0..u64::MAX);
        self.files.remove(&ino);
    }

    /// Truncated blocks become clean, and the object no longer counts for them: no deleted flag is
    /// needed (O-83). The block that keeps only its first bytes becomes dirty if a node has it.
    fn cut(&mut self, ino: Ino, len_bytes: u64, version: Version, has_edge: bool) {
        self.edit(ino, |edit| {
            edit.clean(len_bytes.div_ceil(BLOCK_BYTES)..u64::MAX);
            let edge = len_bytes / BLOCK_BYTES..len_bytes.div_ceil(BLOCK_BYTES);
            if has_edge || !edit.dirty_runs(edge.clone()).is_empty() {
                edit.write(edge, version);
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
    fn set_object(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.edit(ino, |edit| {
            edit.fill(0..u64::MAX);
            edit.set_object(Some(ObjectBytes { etag: etag.into(), valid_bytes: len_bytes }));
        });
    }

    /// Equivalent to [`Content::set_object`] of each file without any state: inode, tag and length
    /// of the object.
    fn set_objects<'a>(&mut self, homes: impl Iterator<Item = (Ino, &'a str, u64)>) {
        self.files.extend(homes.map(|(ino, etag, len_bytes)| {
            let object = ObjectBytes { etag: etag.into(), valid_bytes: len_bytes };
            let data = object.blocks();
            (ino, FileContent { object: Some(object), data, ..FileContent::default() })
        }));
    }

    /// From `version` on truncations are recorded until the upload ends. An earlier truncation
    /// applies to an upload of older bytes. A multipart upload that gets its id later keeps its
    /// first version.
    fn upload_begun(&mut self, ino: Ino, version: Version) {
        self.edit(ino, |Edit { file, .. }| {
            let object = file.object.as_ref();
            file.cuts.get_or_insert_with(|| {
                object.map(|object| (version, object.valid_bytes)).into_iter().collect()
            });
        });
    }

    fn upload_aborted(&mut self, ino: Ino) {
        self.edit(ino, |edit| edit.file.cuts = None);
    }

    /// The object is gone; clean blocks become zeros.
    fn forget_object(&mut self, ino: Ino) {
        self.edit(ino, |edit| edit.set_object(None));
    }

    /// The object `etag` holds the `len_bytes` bytes of the file at `version`. This version can
    /// precede [`Content::upload_begun`]: a recovered node finds a copy of the object, or the
    /// object itself, without having sent a byte. `changed`: dirty blocks that stay so, in order.
    fn uploaded(
        &mut self,
        ino: Ino,
        etag: &str,
        len_bytes: u64,
        version: Version,
        changed: &[Range<u64>],
    ) {
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
            for (run, written) in edit.dirty_runs(0..u64::MAX) {
                if written <= version {
                    for sent in gaps(run, changed.iter().cloned()) {
                        edit.clean(sent);
                    }
                }
            }
        });
    }

    /// The object was copied: the same bytes under another tag.
    fn moved(&mut self, ino: Ino, etag: &str) {
        self.edit(ino, |edit| {
            if let Some(object) = &mut edit.file.object {
                object.etag = etag.into();
            }
        });
    }

    /// Another writer replaced the object. Dirty blocks and truncations stay. `keep_length`: the
    /// file's own length takes precedence.
    fn replaced(&mut self, ino: Ino, etag: &str, len_bytes: u64, keep_length: bool) {
        self.edit(ino, |edit| {
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

    /// A node has the bytes of these blocks: they become dirty.
    fn dirtied(&mut self, ino: Ino, blocks: &[Range<u64>], version: Version) {
        self.edit(ino, |edit| {
            for run in blocks {
                edit.write(run.clone(), version);
            }
        });
    }

    /// Drops all changes in favour of the object.
    fn rolled_back(&mut self, ino: Ino, etag: &str, len_bytes: u64) {
        self.dirty_lost(ino, 0..u64::MAX);
        self.set_object(ino, etag, len_bytes);
    }

    /// The bytes of these blocks were lost, as far as they are dirty.
    fn dirty_lost(&mut self, ino: Ino, blocks: Range<u64>) {
        self.edit(ino, |edit| edit.clean(blocks));
    }
}

/// The edges of a zeroed range that it covers in part.
pub(crate) fn zeroed_edges(range: &Range<u64>, edges: &[u64]) -> impl Iterator<Item = u64> {
    let whole = whole_blocks(range.start, range.end.saturating_sub(range.start));
    [range.start / BLOCK_BYTES, range.end / BLOCK_BYTES]
        .into_iter()
        .filter(move |block| edges.contains(block) && !whole.contains(block))
}

/// Answers.
impl Content {
    /// Memory of the trees, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.files.bytes() + self.dirty.memory_bytes() + self.holes.memory_bytes()
    }

    pub fn object(&self, ino: Ino) -> Option<ObjectBytes> {
        self.look(ino, |file| file.object.clone())
    }

    /// Identifies the object.
    pub fn object_mark(&self, ino: Ino) -> ObjectMark {
        self.look(ino, |file| match &file.object {
            Some(object) => ObjectMark::of(&object.etag, object.blocks()),
            None => ObjectMark::NONE,
        })
    }

    /// Whether the object has all bytes of a file of this length, and no other state exists.
    pub fn is_clean(&self, ino: Ino, len_bytes: u64) -> bool {
        let is_whole = |object: &ObjectBytes| object.valid_bytes == len_bytes;
        self.look(ino, |file| {
            file.dirty == 0 && file.cuts.is_none() && file.object.as_ref().is_some_and(is_whole)
        }) && self.holes.next(ino, 0).is_none()
    }

    /// The dirty parts of `blocks`, in order, each with the version of its last write.
    pub fn dirty_versions(
        &self,
        ino: Ino,
        blocks: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, Version)> {
        let is_any = self.dirty_count(ino) > 0;
        is_any.then(|| self.dirty.within(ino, blocks)).into_iter().flatten()
    }

    /// Runs of the blocks that can be non-zero: dirty, or with valid bytes of the object.
    pub fn data_runs(&self, ino: Ino) -> Vec<Range<u64>> {
        let object = 0..self.object_blocks(ino);
        let holes = self.holes.of(ino);
        let mut all = gaps(object, holes);
        all.extend(self.dirty_runs(ino, 0..u64::MAX));
        all.sort_unstable_by_key(|run| run.start);
        let mut merged = Vec::<Range<u64>>::new();
        for run in all {
            match merged.last_mut().filter(|last| last.end >= run.start) {
                Some(last) => last.end = last.end.max(run.end),
                None => merged.push(run),
            }
        }
        merged
    }

    /// Bytes of a file that are in holes for certain, in whole blocks up to its end.
    pub fn hole_bytes(&self, ino: Ino, size_bytes: u64) -> u64 {
        if size_bytes == 0 {
            return 0;
        }
        let data = self.data_count(ino);
        let last = (size_bytes - 1) / BLOCK_BYTES;
        // The last block can be partial.
        match self.is_zero(ino, last) {
            true => size_bytes.saturating_sub(data.saturating_mul(BLOCK_BYTES)),
            false => (last + 1).saturating_sub(data).saturating_mul(BLOCK_BYTES),
        }
    }

    /// Whether the block is clean and zeros.
    pub fn is_zero(&self, ino: Ino, block: u64) -> bool {
        self.dirty_version(ino, block).is_none() && self.object_bytes(ino, block) == 0
    }

    /// Runs of dirty blocks, whatever their versions.
    pub fn dirty_runs(&self, ino: Ino, blocks: Range<u64>) -> Vec<Range<u64>> {
        runs(self.dirty_versions(ino, blocks).flat_map(|(run, _)| run))
    }

    /// Version of the last write of a dirty block; `None` if it is clean.
    pub fn dirty_version(&self, ino: Ino, block: u64) -> Option<Version> {
        let blocks = block..block.saturating_add(1);
        self.dirty_versions(ino, blocks).next().map(|(_, version)| version)
    }

    /// Number of dirty blocks of the file.
    pub fn dirty_count(&self, ino: Ino) -> u64 {
        self.look(ino, |file| file.dirty)
    }

    /// Number of blocks that can be non-zero: dirty, or with valid bytes of the object.
    pub fn data_count(&self, ino: Ino) -> u64 {
        self.look(ino, |file| file.data)
    }

    /// Leading bytes that clean blocks have from the object.
    pub fn valid_bytes(&self, ino: Ino) -> u64 {
        self.look(ino, FileContent::valid_bytes)
    }

    /// Number of blocks with valid bytes of the object, if they are clean and not holes.
    pub fn object_blocks(&self, ino: Ino) -> u64 {
        self.look(ino, FileContent::object_blocks)
    }

    /// Leading bytes that a clean block has from the object.
    pub fn object_bytes(&self, ino: Ino, block: u64) -> u64 {
        let object_bytes = self
            .valid_bytes(ino)
            .saturating_sub(block.saturating_mul(BLOCK_BYTES))
            .min(BLOCK_BYTES);
        if object_bytes > 0 && self.is_hole(ino, block) { 0 } else { object_bytes }
    }

    /// Whether the block is zeros, whatever the object has there.
    pub fn is_hole(&self, ino: Ino, block: u64) -> bool {
        self.holes.contains(ino, block)
    }

    /// The first hole that ends behind `block`.
    pub fn next_hole(&self, ino: Ino, block: u64) -> Option<Range<u64>> {
        self.holes.next(ino, block)
    }

    /// Files with dirty blocks, in order.
    pub fn dirty_files(&self) -> impl Iterator<Item = Ino> {
        let mut last = None;
        self.dirty
            .iter()
            .filter_map(move |(ino, _, _)| (last.replace(ino) != Some(ino)).then_some(ino))
    }

    /// Every file with any state.
    pub fn files(&self) -> impl Iterator<Item = Ino> {
        self.files.iter().map(|(ino, _)| ino)
    }

    /// State of a file; the default for a file without any.
    fn look<T>(&self, ino: Ino, at: impl FnOnce(&FileContent) -> T) -> T {
        self.files.look(&ino, |file| match file {
            Some(file) => at(file),
            None => at(&FileContent::default()),
        })
    }
}

/// Whole states, for snapshots and proofs.
impl Content {
    /// Dirty runs of all files, ordered by inode and block.
    pub(crate) fn all_dirty(&self) -> impl Iterator<Item = (Ino, Range<u64>, Version)> {
        self.dirty.iter()
    }

    /// Holes of all files, ordered by inode and block.
    pub(crate) fn all_holes(&self) -> impl Iterator<Item = (Ino, Range<u64>)> {
        self.holes.iter()
    }

    #[cfg(test)]
    pub(crate) fn cuts(&self, ino: Ino) -> Option<Vec<(Version, u64)>> {
        self.look(ino, |file| file.cuts.clone())
    }

    /// Restores a file from a snapshot, before its holes and dirty blocks. The number of dirty
    /// blocks is trusted here; [`Content::check`] verifies it.
    pub(crate) fn restore_file(
        &mut self,
        ino: Ino,
        object: Option<ObjectBytes>,
        cuts: Option<Vec<(Version, u64)>>,
        dirty: u64,
    ) {
        let data = object.as_ref().map_or(0, ObjectBytes::blocks);
        let file = FileContent { object, cuts, dirty, data };
        if file != FileContent::default() {
            self.files.insert(&ino, &file);
        }
    }

    /// Restores dirty blocks of a restored file.
    pub(crate) fn restore_dirty(&mut self, ino: Ino, blocks: Range<u64>, version: Version) {
        let behind = self.object_blocks(ino).clamp(blocks.start, blocks.end)..blocks.end;
        self.dirty.insert(ino, blocks, version);
        self.count_restored(ino, |data| data.saturating_add(behind.end - behind.start));
    }

    /// Restores a hole of a restored file.
    pub(crate) fn restore_hole(&mut self, ino: Ino, blocks: Range<u64>) {
        let dug = self.holes.insert(ino, blocks);
        self.count_restored(ino, |data| data.saturating_sub(dug));
    }

    fn count_restored(&mut self, ino: Ino, count: impl FnOnce(u64) -> u64) {
        self.files.change(&ino, |file| file.data = count(file.data));
    }

    /// Descriptions of broken laws.
    pub fn check(&self) -> Vec<String> {
        let mut problems = remembered_wrongly([
            ("contents", self.files.is_recent_so()),
            ("dirty runs", self.dirty.is_recent_so()),
        ]);
        /// Recomputed counts of one file.
        #[derive(Clone, Copy, Default)]
        struct Counts {
            dirty: u64,
            dirty_behind: u64,
            holes: u64,
        }
        let mut counts = BTreeMap::<Ino, Counts>::new();
        for (ino, run, _) in self.dirty.iter() {
            let behind = self.object_blocks(ino).clamp(run.start, run.end.max(run.start));
            let count = counts.entry(ino).or_default();
            count.dirty += run.end.saturating_sub(run.start);
            count.dirty_behind += run.end.saturating_sub(behind);
        }
        for (ino, run) in self.holes.iter() {
            let holes = &mut counts.entry(ino).or_default().holes;
            *holes = run.end.saturating_sub(run.start).saturating_add(*holes);
        }
        for (ino, file) in self.files.iter() {
            let Counts { dirty, dirty_behind, holes } = counts.remove(&ino).unwrap_or_default();
            if dirty != file.dirty {
                problems.push(format!(
                    "inode {ino}: {dirty} blocks are dirty, but {} are counted",
                    file.dirty
                ));
            }
            let data = (file.object_blocks() + dirty_behind).checked_sub(holes);
            if data != Some(file.data) {
                problems.push(format!(
                    "inode {ino}: {data:?} blocks may have other bytes than \
                    zeros, but {} are counted",
                    file.data
                ));
            }
            if file == FileContent::default() {
                problems.push(format!("inode {ino}: its content is empty and not removed"));
            }
        }
        problems.extend(
            counts.keys().map(|ino| format!("inode {ino}: dirty blocks or holes without content")),
        );
        problems.extend(self.dirty.check());
        let mut before = None;
        for (ino, run) in self.holes.iter() {
            if run.is_empty() || run.end > self.object_blocks(ino) {
                problems.push(format!("inode {ino}: hole {run:?} is empty or beyond the object"));
            }
            if before.is_some_and(|(other, end)| other == ino && end >= run.start) {
                problems.push(format!("inode {ino}: the hole {run:?} begins in another"));
            }
            if self.dirty.within(ino, run.clone()).next().is_some() {
                problems.push(format!("inode {ino}: a block in the hole {run:?} is dirty"));
            }
            before = Some((ino, run.end));
        }
        problems
    }
}
