//! Content and extents, joined, compared with a naive model that records each block as a whole, as
//! if the facts of all replicas and those of one disk were one state.

use super::*;
use crate::blocks::{touched_blocks, whole_blocks};
use ebb_model::{LocalCommand, PACK_UNIT_BYTES, PackId, Stamp};
use proptest::prelude::*;

const BLOCKS: usize = 8;
const BYTES: u64 = BLOCKS as u64 * BLOCK_BYTES;

/// One file. `blocks` are the present ones, and a hole is an absent one.
#[derive(Clone, Default)]
struct Naive {
    blocks: [Option<Block>; BLOCKS],
    holes: [bool; BLOCKS],
    object: Option<ObjectBytes>,
    cuts: Option<Vec<(Version, u64)>>,
    packed: Option<PackRange>,
    is_exposed: bool,
}

impl Naive {
    /// Number of blocks with valid bytes of the object.
    fn covered(&self) -> usize {
        self.object.as_ref().map_or(0, |object| object.valid_bytes.div_ceil(BLOCK_BYTES) as usize)
    }

    fn put(&mut self, at: u64, block: Block) {
        self.blocks[at as usize] = Some(block);
        self.holes[at as usize] = false;
    }

    fn set_object(&mut self, object: Option<ObjectBytes>) {
        self.object = object;
        let covered = self.covered();
        self.holes[covered..].fill(false);
        for block in &mut self.blocks[covered.min(BLOCKS)..] {
            *block = block.filter(|block| block.dirty);
        }
    }

    fn data_count(&self) -> u64 {
        let is_data =
            |at: &usize| self.blocks[*at].is_some() || *at < self.covered() && !self.holes[*at];
        (0..BLOCKS).filter(is_data).count() as u64
    }

    fn block_bytes(&self, at: usize) -> u64 {
        self.packed.map_or(BLOCK_BYTES, |range| {
            range.len_bytes.saturating_sub(at as u64 * BLOCK_BYTES).min(BLOCK_BYTES)
        })
    }

    fn bytes(&self, counts: impl Fn(&Block) -> bool) -> u64 {
        let is_counted = |at: &usize| self.blocks[*at].as_ref().is_some_and(&counts);
        (0..BLOCKS).filter(is_counted).map(|at| self.block_bytes(at)).sum()
    }

    fn resident_until(&self) -> u64 {
        self.blocks.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1)
    }

    fn origin(&self, at: usize) -> ByteOrigin {
        match self.blocks[at] {
            Some(_) => ByteOrigin::Local,
            None if at < self.covered() && !self.holes[at] => ByteOrigin::Remote,
            None => ByteOrigin::Zero,
        }
    }

    fn apply(&mut self, step: &Step, version: Version) {
        if self.packed.is_some_and(|range| range.len_bytes < step.end()) {
            self.packed = None;
        }
        match *step {
            Step::Write { at, len_bytes, has_sums } => {
                for at in touched_blocks(at, len_bytes) {
                    let is_void = self.blocks[at as usize]
                        .is_some_and(|block| block.dirty && block.sum.is_none());
                    let sum = (has_sums && !is_void).then_some(at as u32);
                    self.put(at, Block { version, dirty: true, sum });
                }
            }
            Step::Zero { at, len_bytes, is_edged } => {
                let whole = whole_blocks(at, len_bytes);
                for edge in [at / BLOCK_BYTES, (at + len_bytes) / BLOCK_BYTES] {
                    if is_edged && edge < BLOCKS as u64 && !whole.contains(&edge) {
                        self.put(edge, Block { version, dirty: true, sum: None });
                    }
                }
                for at in whole.start as usize..whole.end as usize {
                    self.blocks[at] = None;
                    self.holes[at] |= at < self.covered();
                }
            }
            Step::Cut(len_bytes) => {
                let end = len_bytes.div_ceil(BLOCK_BYTES) as usize;
                self.blocks[end..].fill(None);
                let boundary = (len_bytes / BLOCK_BYTES) as usize;
                if !len_bytes.is_multiple_of(BLOCK_BYTES) && self.blocks[boundary].is_some() {
                    self.blocks[boundary] = Some(Block { version, dirty: true, sum: None });
                }
                if let Some(object) = self.object.clone() {
                    let valid_bytes = object.valid_bytes.min(len_bytes);
                    self.set_object(Some(ObjectBytes { valid_bytes, ..object }));
                }
                if let Some(cuts) = &mut self.cuts {
                    cuts.retain(|(_, shorter)| *shorter < len_bytes);
                    cuts.push((version, len_bytes));
                }
            }
            Step::Present { first, count, is_current } => {
                if self.object.as_ref().is_some_and(|object| is_current && !object.etag.is_empty())
                {
                    for at in first..(first + count).min(BLOCKS) {
                        if at < self.covered() && self.blocks[at].is_none() && !self.holes[at] {
                            self.blocks[at] =
                                Some(Block { version: Version(0), dirty: false, sum: Some(7) });
                        }
                    }
                }
            }
            Step::Absent { first, count } if !self.is_exposed => {
                for block in &mut self.blocks[first..(first + count).min(BLOCKS)] {
                    *block = block.filter(|block| block.dirty);
                }
            }
            Step::Unsynced { first, count } if !self.is_exposed => {
                for block in &mut self.blocks[first..(first + count).min(BLOCKS)] {
                    *block =
                        block.filter(|block| block.dirty).map(|block| Block { sum: None, ..block });
                }
            }
            Step::Absent { .. } | Step::Unsynced { .. } => {}
            Step::Summed { at, back } => {
                if let Some(block) = &mut self.blocks[at]
                    && block.sum.is_none()
                    && block.version.0 <= version.0.saturating_sub(back)
                {
                    block.sum = Some(8);
                }
            }
            Step::Packed(units) => {
                self.packed = pack_range(units, self.resident_until());
            }
            Step::Exposed(is_exposed) => self.is_exposed = is_exposed,
            Step::UploadBegun => {
                let object = self.object.as_ref();
                let first = object.map(|object| (version, object.valid_bytes));
                self.cuts.get_or_insert_with(|| first.into_iter().collect());
            }
            Step::UploadAborted => self.cuts = None,
            Step::Uploaded { len_bytes, back } => {
                let sent = Version(version.0.saturating_sub(back));
                let zeros_from = self.covered();
                let cuts = self.cuts.take().unwrap_or_default();
                let since = cuts.into_iter().filter(|(cut, _)| *cut > sent).map(|(_, len)| len);
                let valid_bytes = since.fold(len_bytes, u64::min);
                self.set_object(Some(ObjectBytes { etag: tag(version), valid_bytes }));
                for at in zeros_from..self.covered() {
                    self.holes[at] |= self.blocks[at].is_none();
                }
                let covered = self.covered();
                for (at, block) in self.blocks.iter_mut().enumerate() {
                    *block = match *block {
                        Some(block) if !block.dirty || block.version > sent => Some(block),
                        Some(Block { sum: None, .. }) if self.is_exposed => *block,
                        Some(Block { sum: None, .. }) => None,
                        Some(_) if at >= covered => None,
                        Some(block) => Some(Block { dirty: block.sum.is_none(), ..block }),
                        None => None,
                    };
                }
            }
            Step::Moved => {
                if let Some(object) = &mut self.object {
                    object.etag = tag(version);
                }
            }
            Step::Replaced { len_bytes, keep_length } => {
                for block in &mut self.blocks {
                    *block = block.filter(|block| block.dirty);
                }
                let valid_bytes = if keep_length {
                    len_bytes.min(self.object.as_ref().map_or(0, |object| object.valid_bytes))
                } else {
                    self.holes.fill(false);
                    len_bytes
                };
                self.set_object(Some(ObjectBytes { etag: tag(version), valid_bytes }));
            }
            Step::SendAgain if (0..BLOCKS).any(|at| self.origin(at) == ByteOrigin::Remote) => {}
            Step::SendAgain => {
                for block in self.blocks.iter_mut().flatten() {
                    *block = Block { version, dirty: true, ..*block };
                }
            }
            Step::RolledBack(len_bytes) => {
                self.blocks.fill(None);
                self.holes.fill(false);
                self.set_object(Some(ObjectBytes { etag: tag(version), valid_bytes: len_bytes }));
            }
            Step::ObjectForgotten { is_kept } => {
                for block in self.blocks.iter_mut().flatten().filter(|block| !block.dirty) {
                    if is_kept {
                        *block = Block { version, dirty: true, ..*block };
                    }
                }
                self.set_object(None);
            }
            Step::BytesLost => self.blocks.fill(None),
            Step::Gone => *self = Naive::default(),
        }
    }
}

fn tag(version: Version) -> String {
    format!("put at {}", version.0)
}

/// `None` if the file does not fit.
fn pack_range(units: u64, blocks: u64) -> Option<PackRange> {
    let len_bytes = units * PACK_UNIT_BYTES;
    let fits = units > 0 && blocks <= len_bytes.div_ceil(BLOCK_BYTES);
    fits.then_some(PackRange { pack: PackId(units % 2), start: 3 * PACK_UNIT_BYTES, len_bytes })
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: u64,
        len_bytes: u64,
        has_sums: bool,
    },
    Zero {
        at: u64,
        len_bytes: u64,
        is_edged: bool,
    },
    Cut(u64),
    Present {
        first: usize,
        count: usize,
        is_current: bool,
    },
    Absent {
        first: usize,
        count: usize,
    },
    Unsynced {
        first: usize,
        count: usize,
    },
    /// A checksum of this many versions ago.
    Summed {
        at: usize,
        back: u64,
    },
    Packed(u64),
    Exposed(bool),
    UploadBegun,
    UploadAborted,
    /// An upload of this many versions ago.
    Uploaded {
        len_bytes: u64,
        back: u64,
    },
    Moved,
    Replaced {
        len_bytes: u64,
        keep_length: bool,
    },
    SendAgain,
    RolledBack(u64),
    /// `is_kept`: what is left of the object here becomes dirty.
    ObjectForgotten {
        is_kept: bool,
    },
    BytesLost,
    Gone,
}

impl Step {
    /// End of the blocks that the step can add.
    fn end(&self) -> u64 {
        match *self {
            Step::Write { at, len_bytes, .. } => at + len_bytes,
            Step::Zero { at, len_bytes, .. } => at + len_bytes + BLOCK_BYTES,
            Step::Present { first, count, .. } => (first + count) as u64 * BLOCK_BYTES,
            _ => 0,
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    // Half of the offsets are at the borders of blocks.
    let bytes = || {
        let unit = BLOCK_BYTES / 4;
        prop_oneof![
            (0..=BYTES / BLOCK_BYTES).prop_map(|at| at * BLOCK_BYTES),
            (0..=BYTES / unit).prop_map(move |at| at * unit),
        ]
    };
    let span = move || (bytes(), bytes()).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b)));
    let blocks = || (0..BLOCKS, 0..4usize);
    let back = || prop_oneof![3 => Just(0u64), 2 => 0..6u64];
    prop_oneof![
        6 => (span(), any::<bool>()).prop_map(|((at, len_bytes), has_sums)| {
            Step::Write { at, len_bytes, has_sums }
        }),
        3 => (span(), any::<bool>()).prop_map(|((at, len_bytes), is_edged)| {
            Step::Zero { at, len_bytes, is_edged }
        }),
        2 => bytes().prop_map(Step::Cut),
        4 => (blocks(), prop::bool::weighted(0.8)).prop_map(|((first, count), is_current)| {
            Step::Present { first, count, is_current }
        }),
        2 => blocks().prop_map(|(first, count)| Step::Absent { first, count }),
        2 => blocks().prop_map(|(first, count)| Step::Unsynced { first, count }),
        1 => (0..BLOCKS, back()).prop_map(|(at, back)| Step::Summed { at, back }),
        1 => (0..32u64).prop_map(Step::Packed),
        1 => any::<bool>().prop_map(Step::Exposed),
        2 => Just(Step::UploadBegun),
        1 => Just(Step::UploadAborted),
        4 => (bytes(), back()).prop_map(|(len_bytes, back)| Step::Uploaded { len_bytes, back }),
        1 => Just(Step::Moved),
        1 => (bytes(), any::<bool>()).prop_map(|(len_bytes, keep_length)| {
            Step::Replaced { len_bytes, keep_length }
        }),
        1 => Just(Step::SendAgain),
        1 => bytes().prop_map(Step::RolledBack),
        1 => any::<bool>().prop_map(|is_kept| Step::ObjectForgotten { is_kept }),
        1 => Just(Step::BytesLost),
        1 => Just(Step::Gone),
    ]
}

impl Maps {
    fn step(&mut self, step: &Step, version: Version) {
        let stamp = Stamp { time: Time::default(), version };
        let number = |number: usize| number as u64;
        // Like the node before it adds blocks.
        if self.view().packed(INO).is_some_and(|range| range.len_bytes < step.end()) {
            self.apply(&LocalCommand::Packed { ino: INO, range: None });
        }
        match *step {
            Step::Write { at, len_bytes, has_sums } => {
                let sums =
                    touched_blocks(at, len_bytes).map(|at| has_sums.then_some(at as u32)).collect();
                self.write((at, len_bytes), sums, None, stamp)
            }
            Step::Zero { at, len_bytes, is_edged } => {
                let edges = (0..number(BLOCKS)).filter(|_| is_edged).collect();
                self.zero(at..at + len_bytes, edges, stamp);
            }
            Step::Cut(new_bytes) => self.cut((u64::MAX, new_bytes), stamp),
            Step::Present { first, count, is_current } => {
                let object = self.view().object(INO).filter(|_| is_current);
                let etag = object.map_or("another".into(), |object| object.etag);
                let sums = vec![7; count.min(BLOCKS - first)];
                let first = number(first);
                self.apply(&LocalCommand::Present { ino: INO, etag, first, sums });
            }
            Step::Absent { first, count } => {
                let (first, count) = (number(first), number(count));
                self.apply(&LocalCommand::Absent { ino: INO, first, count });
            }
            Step::Unsynced { first, count } => {
                let (first, count) = (number(first), number(count));
                self.apply(&LocalCommand::Unsynced { ino: INO, first, count });
            }
            Step::Summed { at, back } => {
                let version = Version(version.0.saturating_sub(back));
                let sums = vec![(number(at), 8)];
                self.apply(&LocalCommand::Summed { ino: INO, version, sums });
            }
            Step::Packed(units) => {
                let blocks = self.view().resident_runs(INO, 0..u64::MAX);
                let range = pack_range(units, blocks.last().map_or(0, |run| run.end));
                self.apply(&LocalCommand::Packed { ino: INO, range });
            }
            Step::Exposed(exposed) => self.apply(&LocalCommand::Exposed { ino: INO, exposed }),
            Step::UploadBegun => self.change(|content| content.upload_begun(INO, version)),
            Step::UploadAborted => self.change(|content| content.upload_aborted(INO)),
            Step::Uploaded { len_bytes, back } => {
                let sent = Version(version.0.saturating_sub(back));
                self.uploaded(&tag(version), len_bytes, sent);
            }
            Step::Moved => self.change(|content| content.moved(INO, &tag(version))),
            Step::Replaced { len_bytes, keep_length } => {
                self.change(|content| content.replaced(INO, &tag(version), len_bytes, keep_length))
            }
            Step::SendAgain => {
                let blocks = self.content.data_runs(INO);
                if blocks == self.view().resident_runs(INO, 0..u64::MAX) {
                    self.change(|content| content.dirtied(INO, blocks, version));
                }
            }
            Step::RolledBack(len_bytes) => {
                self.change(|content| content.rolled_back(INO, &tag(version), len_bytes))
            }
            Step::ObjectForgotten { is_kept } => {
                let kept = self.view().kept_without_object(INO);
                self.change(|content| {
                    if is_kept {
                        content.dirtied(INO, kept, version);
                    }
                    content.forget_object(INO);
                });
            }
            Step::BytesLost => self.change(|content| content.bytes_lost(INO)),
            Step::Gone => self.observe(&gone()),
        }
    }

    fn compare(&self, naive: &Naive) {
        let view = self.view();
        let dirty = |block: &Block| block.dirty;
        for at in 0..BLOCKS {
            let block = at as u64;
            assert_eq!(view.block(INO, block), naive.blocks[at], "block {at}");
            assert_eq!(view.is_hole(INO, block), naive.holes[at], "hole {at}");
            assert_eq!(view.is_zero(INO, block), naive.origin(at) == ByteOrigin::Zero);
            assert_eq!(view.block_bytes(INO, block), naive.block_bytes(at));
        }
        let runs = |is_in: &dyn Fn(&Block) -> bool| {
            let found = |at: &u64| naive.blocks[*at as usize].as_ref().is_some_and(is_in);
            crate::blocks::runs((0..BLOCKS as u64).filter(found))
        };
        assert_eq!(view.resident_runs(INO, 0..u64::MAX), runs(&|_| true));
        assert_eq!(view.dirty_runs(INO, 0..u64::MAX), runs(&dirty));
        assert_eq!(view.clean_runs(INO, 0), runs(&|block| !block.dirty));
        assert_eq!(view.object(INO), naive.object);
        let (resident, dirty) = (naive.bytes(|_| true), naive.bytes(dirty));
        assert_eq!((view.resident_bytes(), view.dirty_bytes()), (resident, dirty));
        assert_eq!((view.resident_bytes_of(INO), view.dirty_bytes_of(INO)), (resident, dirty));
        assert_eq!(self.content.data_count(INO), naive.data_count());
        assert_eq!(view.is_stored(INO), resident > 0 || naive.packed.is_some());
        let is_clean = |object: &ObjectBytes| object.valid_bytes == BYTES;
        assert_eq!(
            view.is_clean(INO, BYTES),
            dirty == 0
                && !naive.is_exposed
                && naive.cuts.is_none()
                && naive.object.as_ref().is_some_and(is_clean)
                && naive.holes == [false; BLOCKS]
        );
        for segment in view.plan_read(INO, 0..BYTES, BYTES) {
            let blocks =
                touched_blocks(segment.range.start, segment.range.end - segment.range.start);
            for at in blocks.filter(|at| at * BLOCK_BYTES >= segment.range.start) {
                assert_eq!(segment.origin, naive.origin(at as usize), "origin of block {at}");
            }
        }
        let restored = Maps::restored(self.items());
        assert_eq!((self.check(), restored.check()), (vec![], vec![]));
        assert_eq!(self.items(), restored.items());
        assert_eq!(self.content.cuts(INO), naive.cuts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Any commands in any order, also those that no node would log.
    #[test]
    fn answers_equal_a_naive_model_of_each_block(steps in prop::collection::vec(step(), 1..50)) {
        let (mut maps, mut naive) = (Maps::default(), Naive::default());
        for (version, step) in (1..).map(Version).zip(steps) {
            maps.step(&step, version);
            naive.apply(&step, version);
            maps.compare(&naive);
        }
        maps.step(&Step::Gone, Version(99));
        prop_assert!(maps.is_empty());
    }
}
