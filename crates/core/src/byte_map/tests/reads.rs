//! The byte map compared with a naive model, which records for every quarter of a block the bytes
//! that a reader must see, those of the store file and those of the object.

use super::*;
use crate::blocks::{touched_blocks, whole_blocks};
use crate::namespace::zero_span;
use ebb_model::{LocalCommand, PACK_UNIT_BYTES, PACKED_BYTES, Stamp};
use proptest::prelude::*;

const CELL: u64 = BLOCK_BYTES / 4;
const CELLS: usize = 24;
const CELLS_PER_BLOCK: usize = 4;
const BLOCKS: u64 = (CELLS / CELLS_PER_BLOCK) as u64;

/// Contents of the cells: 0 for zeros, else the version that wrote them.
type Cells = [u64; CELLS];

struct World {
    maps: Maps,
    version: u64,
    size: usize,
    truth: Cells,
    store: Cells,
    object: Option<(String, Cells, usize)>,
    /// Version of the file in the object.
    object_version: u64,
    /// Contents, length and version of the file when the current upload began to read it.
    upload: Option<(Cells, usize, u64)>,
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: usize,
        len: usize,
    },
    Resize(usize),
    Zero {
        at: usize,
        len: usize,
    },
    Fetch(usize),
    /// This number of blocks.
    Evict(usize, u64),
    Sum(usize),
    PowerCut(usize, u64),
    UploadBegin,
    UploadEnd,
    UploadAbort,
    /// A restarted node finds the former object at the key of an upload.
    UploadFound,
    Move,
    Replace(usize),
    /// To a pack range of this many units, if the file fits; 0: to a store file of its own.
    Pack(u64),
    /// The node loses its disk, but no dirty bytes.
    LoseBytes,
    RollBack,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..CELLS, 1..10usize).prop_map(|(at, len)| Step::Write { at, len: len.min(CELLS - at) }),
        3 => (0..=CELLS).prop_map(Step::Resize),
        4 => (0..CELLS, 1..16usize).prop_map(|(at, len)| Step::Zero { at, len }),
        3 => (0..CELLS / CELLS_PER_BLOCK).prop_map(Step::Fetch),
        3 => (0..CELLS / CELLS_PER_BLOCK, 1..4u64).prop_map(|(block, count)| Step::Evict(block, count)),
        1 => (0..CELLS / CELLS_PER_BLOCK).prop_map(Step::Sum),
        1 => (0..CELLS / CELLS_PER_BLOCK, 1..4u64).prop_map(|(block, count)| Step::PowerCut(block, count)),
        3 => Just(Step::UploadBegin),
        3 => Just(Step::UploadEnd),
        1 => Just(Step::UploadAbort),
        1 => Just(Step::UploadFound),
        1 => Just(Step::Move),
        1 => (0..=CELLS).prop_map(Step::Replace),
        2 => (0..=PACKED_BYTES / PACK_UNIT_BYTES).prop_map(Step::Pack),
        1 => Just(Step::LoseBytes),
        1 => Just(Step::RollBack),
    ]
}

fn cells_of(block: u64) -> Range<usize> {
    let first = block as usize * CELLS_PER_BLOCK;
    first..first + CELLS_PER_BLOCK
}

fn sum_of(cells: &[u64]) -> u32 {
    cells.iter().fold(17u32, |sum, cell| sum.wrapping_mul(31).wrapping_add(*cell as u32))
}

impl World {
    fn new() -> World {
        World {
            maps: Maps::default(),
            version: 0,
            size: 0,
            truth: [0; CELLS],
            store: [0; CELLS],
            object: None,
            object_version: 0,
            upload: None,
        }
    }

    fn stamp(&mut self) -> Stamp {
        self.version += 1;
        Stamp { time: Time::from_secs(0), version: Version(self.version) }
    }

    /// Like the node before a write.
    fn make_room(&mut self, end: u64) {
        if self.maps.view().packed(INO).is_some_and(|range| range.len_bytes < end) {
            self.maps.apply(&LocalCommand::Packed { ino: INO, range: None });
        }
    }

    /// For half of the small files without blocks the first write itself assigns the pack range.
    fn first_room(&self, end: u64) -> Option<PackRange> {
        let is_first = self.maps.view().resident_bytes_of(INO) == 0
            && end <= PACKED_BYTES
            && self.version.is_multiple_of(2);
        let start = (self.version % 5) * PACK_UNIT_BYTES;
        is_first.then(|| PackRange {
            pack: PackId(3 + self.version % 2),
            start,
            len_bytes: end.next_multiple_of(PACK_UNIT_BYTES),
        })
    }

    /// Whether the whole block is defined after this write.
    fn is_known_with(&self, offset: u64, len_bytes: u64, block: u64) -> bool {
        let appends = offset.max(block * BLOCK_BYTES) >= self.size as u64 * CELL;
        let has_sum = |state: Block| appends && state.sum.is_some();
        whole_blocks(offset, len_bytes).contains(&block)
            || self.maps.view().block(INO, block).is_none_or(has_sum)
    }

    /// The result of a fetch: the object's cells, then zeros.
    fn fill(&mut self, fill: Fill) {
        let from_object = (fill.object_bytes / CELL) as usize;
        assert_eq!(fill.object_bytes % CELL, 0);
        for (at, cell) in cells_of(fill.block).enumerate() {
            self.store[cell] = if at < from_object {
                let (_, cells, len) =
                    self.object.as_ref().expect("reads come from an existing object");
                assert!(cell < *len, "reads stay within the object");
                cells[cell]
            } else {
                0
            };
        }
    }

    fn read(&self) -> Vec<u64> {
        let mut seen = Vec::new();
        let end = self.size as u64 * CELL;
        for segment in self.maps.view().plan_read(INO, 0..u64::MAX, end) {
            assert_eq!(seen.len() as u64 * CELL, segment.range.start, "segments leave no gap");
            for cell in (segment.range.start / CELL) as usize..(segment.range.end / CELL) as usize {
                seen.push(match segment.origin {
                    ByteOrigin::Local => self.store[cell],
                    ByteOrigin::Remote => {
                        self.object.as_ref().expect("a remote segment has an object").1[cell]
                    }
                    ByteOrigin::Zero => 0,
                });
            }
        }
        seen
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { at, len } => {
                let (offset, len_bytes) = (at as u64 * CELL, len as u64 * CELL);
                let packed = self.first_room(offset + len_bytes);
                if packed.is_none() {
                    self.make_room(offset + len_bytes);
                }
                for fill in self.maps.view().missing_for_write(INO, offset, len_bytes) {
                    self.fill(fill);
                }
                let stamp = self.stamp();
                let known: Vec<bool> = touched_blocks(offset, len_bytes)
                    .map(|block| self.is_known_with(offset, len_bytes, block))
                    .collect();
                self.store[at..at + len].fill(self.version);
                self.truth[at..at + len].fill(self.version);
                self.size = self.size.max(at + len);
                let sums = touched_blocks(offset, len_bytes).zip(known);
                let sums = sums
                    .map(|(block, known)| known.then(|| sum_of(&self.store[cells_of(block)])))
                    .collect();
                self.maps.write((offset, len_bytes), sums, packed, stamp);
                assert!(packed.is_none_or(|range| self.maps.view().packed(INO) == Some(range)));
            }
            Step::Resize(size) => {
                let stamp = self.stamp();
                let (old_bytes, new_bytes) = (self.size as u64 * CELL, size as u64 * CELL);
                self.maps.cut((old_bytes, new_bytes), stamp);
                if size < self.size {
                    self.truth[size..].fill(0);
                    self.store[size..].fill(0);
                }
                self.size = size;
            }
            Step::Zero { at, len } => {
                let span = zero_span(at as u64 * CELL, len as u64 * CELL, self.size as u64 * CELL);
                if at >= self.size {
                    return;
                }
                for edge in self.maps.view().edges(INO, &span) {
                    if let Edge::Missing(fill) = edge {
                        self.step(Step::Fetch(fill.block as usize));
                    }
                }
                let mut edges = Vec::new();
                for edge in self.maps.view().edges(INO, &span) {
                    let Edge::Present { bytes, .. } = edge else { panic!("{edge:?} was fetched") };
                    edges.push(bytes.start / BLOCK_BYTES);
                    self.store[(bytes.start / CELL) as usize..(bytes.end / CELL) as usize].fill(0);
                }
                let (start, end) = ((span.start / CELL) as usize, (span.end / CELL) as usize);
                self.truth[start..end].fill(0);
                let stamp = self.stamp();
                let whole = whole_blocks(span.start, span.end - span.start);
                for block in whole.clone() {
                    // Punched later, or never if the node dies first.
                    self.store[cells_of(block)].fill(u64::MAX);
                }
                self.maps.zero(span, edges, stamp);
                assert!(whole.into_iter().all(|block| self.maps.view().is_zero(INO, block)));
            }
            Step::Fetch(block) => {
                let Some((etag, ..)) = self.object.clone() else { return };
                let block = block as u64;
                if self.maps.view().is_zero(INO, block) {
                    // A hole is never fetched, and a late reply is ignored.
                    if self
                        .maps
                        .view()
                        .object(INO)
                        .is_some_and(|object| object.valid_bytes > block * BLOCK_BYTES)
                    {
                        self.maps.apply(&LocalCommand::Present {
                            ino: INO,
                            etag,
                            first: block,
                            sums: vec![1],
                        });
                        assert!(self.maps.view().is_zero(INO, block));
                    }
                    return;
                }
                for fill in self.maps.view().fills(INO, block..block + 1) {
                    self.fill(fill);
                }
                self.make_room((block + 1) * BLOCK_BYTES);
                // A late reply for an object that was replaced changes nothing.
                let sums = vec![sum_of(&self.store[cells_of(block)])];
                self.maps.apply(&LocalCommand::Present {
                    ino: INO,
                    etag: "stale".into(),
                    first: block,
                    sums: vec![1],
                });
                self.maps.apply(&LocalCommand::Present { ino: INO, etag, first: block, sums });
            }
            Step::Evict(first, count) => {
                let first = first as u64;
                self.maps.apply(&LocalCommand::Absent { ino: INO, first, count });
                for block in (first..first + count).take_while(|block| *block < BLOCKS) {
                    if self.maps.view().block(INO, block).is_none() {
                        self.store[cells_of(block)].fill(999_999);
                    }
                }
            }
            Step::Sum(block) => {
                let sum = sum_of(&self.store[cells_of(block as u64)]);
                let sums = vec![(block as u64, sum)];
                // Computed before the last write: must be rejected.
                let before = Version(self.version.saturating_sub(1));
                if self
                    .maps
                    .view()
                    .block(INO, block as u64)
                    .is_some_and(|state| state.version > before)
                {
                    self.maps.apply(&LocalCommand::Summed {
                        ino: INO,
                        version: before,
                        sums: vec![(block as u64, 1)],
                    });
                }
                self.maps.apply(&LocalCommand::Summed {
                    ino: INO,
                    version: Version(self.version),
                    sums,
                });
            }
            Step::PowerCut(first, count) => {
                let first = first as u64;
                let blocks = (first..first + count).take_while(|block| *block < BLOCKS);
                let dirty: Vec<(u64, bool)> = blocks
                    .map(|block| {
                        (block, self.maps.view().block(INO, block).is_some_and(|state| state.dirty))
                    })
                    .collect();
                self.maps.apply(&LocalCommand::Unsynced { ino: INO, first, count });
                for (block, dirty) in dirty {
                    match self.maps.view().block(INO, block) {
                        Some(state) => assert!(dirty && state.sum.is_none()),
                        None => assert!(!dirty),
                    }
                    if !dirty {
                        self.store[cells_of(block)].fill(999_999);
                    }
                }
            }
            Step::LoseBytes => {
                if self.maps.view().dirty_bytes_of(INO) == 0 {
                    self.maps.change(|content| content.bytes_lost(INO));
                    self.store.fill(999_999);
                }
            }
            Step::RollBack => {
                let Some((etag, cells, len)) =
                    self.object.clone().filter(|_| self.upload.is_none())
                else {
                    return;
                };
                self.maps.change(|content| content.rolled_back(INO, &etag, len as u64 * CELL));
                self.store.fill(999_999);
                (self.truth, self.size) = (cells, len);
            }
            Step::UploadBegin => {
                self.maps.change(|content| content.upload_begun(INO, Version(self.version)));
                self.upload = Some((self.truth, self.size, self.version));
            }
            Step::UploadEnd => {
                let Some((cells, len, version)) = self.upload.take() else { return };
                let etag = format!("put at {}", self.version);
                self.maps.uploaded(&etag, len as u64 * CELL, Version(version));
                self.object = Some((etag, cells, len));
                self.object_version = version;
                self.version += 1;
            }
            Step::UploadFound => {
                let (Some(_), Some((etag, _, len))) = (self.upload.take(), &self.object) else {
                    return;
                };
                let len_bytes = *len as u64 * CELL;
                self.maps.uploaded(&etag.clone(), len_bytes, Version(self.object_version));
            }
            Step::UploadAbort => {
                self.maps.change(|content| content.upload_aborted(INO));
                self.upload = None;
            }
            Step::Move => {
                if let Some((etag, ..)) = &mut self.object {
                    etag.push_str(" moved");
                    self.maps.change(|content| content.moved(INO, etag));
                }
            }
            Step::Replace(len) => {
                // A file follows an outside change in length only if it equals its object.
                if self.object.is_none()
                    || self.upload.is_some()
                    || self.maps.view().dirty_bytes_of(INO) > 0
                {
                    return;
                }
                self.version += 1;
                let mut cells = [0; CELLS];
                cells[..len].fill(self.version);
                let etag = format!("by others at {}", self.version);
                self.maps.change(|content| content.replaced(INO, &etag, len as u64 * CELL, false));
                self.object = Some((etag, cells, len));
                self.object_version = self.version;
                self.truth = cells;
                self.size = len;
            }
            Step::Pack(0) => self.maps.apply(&LocalCommand::Packed { ino: INO, range: None }),
            Step::Pack(units) => {
                let last = self
                    .maps
                    .view()
                    .resident_runs(INO, 0..u64::MAX)
                    .last()
                    .map_or(0, |run| run.end);
                let len_bytes = units * PACK_UNIT_BYTES;
                if last <= len_bytes.div_ceil(BLOCK_BYTES) {
                    let range = PackRange {
                        pack: PackId(self.version % 3),
                        start: 7 * PACK_UNIT_BYTES,
                        len_bytes,
                    };
                    self.maps.apply(&LocalCommand::Packed { ino: INO, range: Some(range) });
                    let resident =
                        (0..last).filter(|block| self.maps.view().block(INO, *block).is_some());
                    let bytes: u64 = resident
                        .map(|block| len_bytes.min((block + 1) * BLOCK_BYTES) - block * BLOCK_BYTES)
                        .sum();
                    assert_eq!(
                        self.maps.view().resident_bytes(),
                        bytes,
                        "used bytes are those of its range"
                    );
                }
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.maps.check(), Vec::<String>::new());
        assert_eq!(self.read(), self.truth[..self.size]);
        let of_file =
            (self.maps.view().resident_bytes_of(INO), self.maps.view().dirty_bytes_of(INO));
        assert_eq!(
            of_file,
            (self.maps.view().resident_bytes(), self.maps.view().dirty_bytes()),
            "there is one file"
        );
        self.check_seeks();
        self.check_holes();
        self.check_object();
        assert!(
            self.maps
                .view()
                .object(INO)
                .is_none_or(|object| object.valid_bytes <= self.size as u64 * CELL)
        );
        for (block, state) in (0..).map_while(|block| {
            (block < (CELLS / CELLS_PER_BLOCK) as u64)
                .then(|| (block, self.maps.view().block(INO, block)))
        }) {
            let Some(state) = state else { continue };
            if let Some(sum) = state.sum {
                assert_eq!(sum, sum_of(&self.store[cells_of(block)]), "block {block}");
            }
            if !state.dirty {
                let object =
                    self.maps.view().object(INO).expect("a clean block has a home").valid_bytes
                        / CELL;
                for cell in cells_of(block).filter(|cell| *cell < self.size) {
                    let (_, cells, _) = self.object.as_ref().unwrap();
                    let held = if (cell as u64) < object { cells[cell] } else { 0 };
                    assert_eq!(
                        held, self.truth[cell],
                        "cell {cell} is clean and not in the object"
                    );
                }
            }
        }
        let restored = Maps::restored(self.maps.items());
        assert_eq!(restored.items(), self.maps.items());
        assert_eq!(restored.check(), Vec::<String>::new());
    }
}

impl World {
    /// Checks every block: a hole is neither in the store file nor has valid bytes of the object.
    fn check_holes(&self) {
        let size_bytes = self.size as u64 * CELL;
        let blocks = (0..size_bytes.div_ceil(BLOCK_BYTES))
            .filter(|block| self.maps.view().is_zero(INO, *block));
        let holes =
            blocks.map(|block| size_bytes.min((block + 1) * BLOCK_BYTES) - block * BLOCK_BYTES);
        assert_eq!(self.maps.view().hole_bytes(INO, size_bytes), holes.sum::<u64>());
    }

    /// Bytes reported as equal to the object's equal them, now and when the current upload began.
    fn check_object(&self) {
        for (start, end) in
            (0..self.size).flat_map(|start| (start + 1..=self.size).map(move |end| (start, end)))
        {
            if self.maps.view().is_as_in_object(INO, start as u64 * CELL..end as u64 * CELL) {
                let (_, object, len) = self.object.as_ref().expect("a home has an object");
                assert!(end <= *len);
                assert_eq!(object[start..end], self.truth[start..end], "cells {start}..{end}");
                if let Some((sent, ..)) = &self.upload {
                    assert_eq!(
                        object[start..end],
                        sent[start..end],
                        "cells {start}..{end} of the upload"
                    );
                }
            }
        }
    }

    /// Checks every cell against the source of reads.
    fn check_seeks(&self) {
        let size_bytes = self.size as u64 * CELL;
        let plan = self.maps.view().plan_read(INO, 0..u64::MAX, size_bytes);
        let is_data = |cell: usize| {
            plan.iter().any(|part| {
                part.range.contains(&(cell as u64 * CELL)) && part.origin != ByteOrigin::Zero
            })
        };
        for from in 0..self.size {
            let data = (from..self.size).find(|cell| is_data(*cell)).map(|cell| cell as u64 * CELL);
            let hole =
                (from..self.size).find(|cell| !is_data(*cell)).unwrap_or(self.size) as u64 * CELL;
            assert_eq!(
                self.maps.view().seek_data(INO, from as u64 * CELL, size_bytes),
                data,
                "data from cell {from}"
            );
            assert_eq!(
                self.maps.view().seek_hole(INO, from as u64 * CELL, size_bytes),
                Some(hole),
                "a hole from cell {from}"
            );
        }
        assert_eq!(self.maps.view().seek_data(INO, size_bytes, size_bytes), None);
        assert_eq!(self.maps.view().seek_hole(INO, size_bytes, size_bytes), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// After any sequence of writes, truncations, fetches, evictions, power cuts, uploads of a
    /// changing file, moves and outside changes: a reader sees the written bytes, every checksum
    /// matches, and clean blocks can be fetched again from the object.
    #[test]
    fn reads_return_written_bytes_after_any_steps(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
        world.maps.observe(&gone());
        prop_assert!(world.maps.is_empty());
        let view = world.maps.view();
        prop_assert_eq!((view.resident_bytes(), view.dirty_bytes()), (0, 0));
    }
}

#[test]
fn uploaded_blocks_match_their_object_until_changed() {
    const BLOCKS: u64 = (CELLS / CELLS_PER_BLOCK) as u64;
    let range = |blocks: Range<u64>| blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
    let sent = || {
        let mut world = World::new();
        for step in [Step::Write { at: 0, len: CELLS }, Step::UploadBegin, Step::UploadEnd] {
            world.step(step);
        }
        assert!(world.maps.view().is_as_in_object(INO, range(0..BLOCKS)));
        world
    };
    let changed = |step: Step| {
        let mut world = sent();
        world.step(step);
        let kept = |block: &u64| world.maps.view().is_as_in_object(INO, range(*block..*block + 1));
        (0..BLOCKS).filter(kept).collect::<Vec<_>>()
    };
    assert_eq!(changed(Step::Evict(1, 1)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(changed(Step::Write { at: 5, len: 1 }), [0, 2, 3, 4, 5]);
    assert_eq!(changed(Step::Zero { at: 4, len: 4 }), [0, 2, 3, 4, 5]);
    assert_eq!(changed(Step::Resize(CELLS - 1)), [0, 1, 2, 3, 4]);
    let mut world = sent();
    assert!(
        !world.maps.view().is_as_in_object(INO, range(0..BLOCKS + 1)),
        "the object ends before"
    );
    world.maps.apply(&LocalCommand::Exposed { ino: INO, exposed: true });
    assert!(!world.maps.view().is_as_in_object(INO, range(0..1)), "a mapping can have changed it");
}

/// The log can contain anything: extreme numbers are rejected or cut.
#[test]
fn absurd_numbers_do_no_harm() {
    let mut maps = Maps::default();
    maps.change(|content| content.set_object(INO, "e", u64::MAX));
    maps.apply(&LocalCommand::Present {
        ino: INO,
        etag: "e".into(),
        first: u64::MAX,
        sums: vec![1, 2],
    });
    maps.apply(&LocalCommand::Absent { ino: INO, first: u64::MAX, count: u64::MAX });
    maps.apply(&LocalCommand::Unsynced { ino: INO, first: 3, count: u64::MAX });
    assert_eq!(maps.view().resident_bytes(), 0);
    assert_eq!(maps.view().fills(INO, 0..1), [Fill { block: 0, object_bytes: BLOCK_BYTES }]);
    assert_eq!(whole_blocks(u64::MAX - 1, u64::MAX).count(), 0);
    assert_eq!(
        (maps.view().hole_bytes(INO, u64::MAX), maps.view().hole_bytes(Ino(8), u64::MAX)),
        (0, u64::MAX)
    );
    assert_eq!(maps.view().hole_bytes(Ino(8), 0), 0);
    assert_eq!(maps.check(), Vec::<String>::new());
}

#[test]
fn eviction_is_asked_for_runs_of_clean_blocks() {
    let mut maps = Maps::default();
    maps.change(|content| content.set_object(INO, "e", 1 << 30));
    maps.apply(&LocalCommand::Present {
        ino: INO,
        etag: "e".into(),
        first: 250,
        sums: vec![0; 10],
    });
    let stamp = Stamp { time: Time::from_secs(0), version: Version(1) };
    maps.write((252 * BLOCK_BYTES, 1), vec![None], None, stamp);
    assert_eq!(maps.view().clean_runs(INO, 0), [250..252, 253..256]);
    assert_eq!(maps.view().clean_runs(INO, 1), vec![Range { start: 256, end: 260 }]);
    let chunks: Vec<_> = maps
        .view()
        .chunks()
        .map(|chunk| (chunk.chunk, chunk.resident_bytes, chunk.dirty_bytes))
        .collect();
    assert_eq!(chunks, [(0, 6 * BLOCK_BYTES, BLOCK_BYTES), (1, 4 * BLOCK_BYTES, 0)]);
}

#[test]
fn a_scrub_walks_over_everything_that_is_there() {
    let mut maps = Maps::default();
    for (ino, first, count) in [(Ino(3), 5, 4), (Ino(3), 100, 1), (Ino(9), 0, 2)] {
        maps.change(|content| content.set_object(ino, "e", 1 << 30));
        maps.apply(&LocalCommand::Present { ino, etag: "e".into(), first, sums: vec![0; count] });
    }
    let (mut at, mut walked) = ((Ino(0), 0), Vec::new());
    while let Some((ino, blocks)) = maps.view().next_resident(at, 3) {
        at = (ino, blocks.end);
        walked.push((ino.0, blocks.start, blocks.end));
    }
    assert_eq!(walked, [(3, 5, 8), (3, 8, 9), (3, 100, 101), (9, 0, 2)]);
    assert_eq!(maps.view().next_resident((Ino(9), u64::MAX), 3), None);
}

/// Situation: a file with writable mappings has clean and dirty blocks and one with a void
/// checksum. Danger: a checksum, an unclean stop or an upload drops a block. Expectation: no block
/// is dropped, a snapshot records the mappings, and stored blocks are dirty.
#[test]
fn of_an_exposed_file_nothing_is_let_go() {
    let mut maps = Maps::default();
    maps.change(|content| content.set_object(INO, "one", 3 * BLOCK_BYTES));
    maps.apply(&LocalCommand::Present {
        ino: INO,
        etag: "one".into(),
        first: 0,
        sums: vec![1, 2, 3],
    });
    let stamp = |version| Stamp { time: Time::default(), version: Version(version) };
    maps.write((BLOCK_BYTES, 1), vec![None], None, stamp(5));
    maps.apply(&LocalCommand::Exposed { ino: INO, exposed: true });
    let before = maps.items();
    maps.apply(&LocalCommand::Absent { ino: INO, first: 0, count: 3 });
    maps.apply(&LocalCommand::Unsynced { ino: INO, first: 0, count: 3 });
    assert_eq!(maps.items(), before);
    let restored = Maps::restored(before);
    assert!(restored.view().is_exposed(INO) && restored.view().exposed().eq([INO]));

    maps.change(|content| content.upload_begun(INO, Version(5)));
    maps.uploaded("two", 3 * BLOCK_BYTES, Version(5));
    let states = |maps: &Maps| {
        (0..3)
            .map(|block| maps.view().block(INO, block).map(|block| (block.dirty, block.sum)))
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&maps), [Some((false, Some(1))), Some((true, None)), Some((false, Some(3)))]);
    maps.write((0, BLOCK_BYTES), vec![Some(7)], None, stamp(6));
    assert_eq!(states(&maps)[0], Some((true, Some(7))));
    maps.apply(&LocalCommand::Exposed { ino: INO, exposed: false });
    maps.apply(&LocalCommand::Absent { ino: INO, first: 0, count: 3 });
    assert_eq!(states(&maps), [Some((true, Some(7))), Some((true, None)), None]);
    maps.apply(&LocalCommand::Exposed { ino: INO, exposed: true });
    maps.observe(&gone());
    assert!(!maps.view().is_exposed(INO) && maps.is_empty());
    assert_eq!(maps.check(), Vec::<String>::new());
}
