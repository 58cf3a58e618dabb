//! The bytes of one file, as the process sees them and as the platter has them.

use crate::faults::Rate;
use crate::rng::Rng;
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// The unit that a power cut keeps, drops or tears.
pub const SECTOR_BYTES: u64 = 512;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Sectors tear between lines of this size, in which memory moves: no device does worse.
pub(crate) const LINE_BYTES: u64 = 64;

const LINE: usize = LINE_BYTES as usize;

pub(crate) type Sector = Rc<[u8; SECTOR]>;

/// Sparse bytes: a length, and the sectors that are allocated.
///
/// Laws: no sector lies wholly beyond the length; bytes of the last one beyond it are zero.
#[derive(Clone, Default)]
pub(crate) struct Content {
    len: u64,
    sectors: BTreeMap<u64, Sector>,
}

/// The durable state of a file, which outlives the machine's memory.
pub(crate) struct Stored {
    pub(crate) id: u64,
    pub(crate) content: RefCell<Content>,
    /// Sectors that fail every read until they are written again.
    pub(crate) spoiled: RefCell<BTreeSet<u64>>,
}

/// The volatile state of a file: its current bytes, and every version of each sector since its last
/// force. The kernel may write back at any moment, so a power cut may leave any of those versions
/// on the platter, or none.
///
/// Law: a byte that is neither in `content` nor dirty reads as in `stored` after a cut. The reverse
/// does not hold after a failed sync: see [`CachedFile::strand`].
pub(crate) struct CachedFile {
    pub(crate) stored: Rc<Stored>,
    content: Content,
    dirty_sectors: BTreeMap<u64, Vec<(u64, Option<Sector>)>>,
    dirty_lens: Vec<(u64, u64)>,
    /// Counts changes, so that a sync forces only those that precede it.
    sequence: u64,
    /// How many beside the node's process have it.
    pub(crate) holders: u32,
    /// Bytes allocated on the whole disk; this file keeps its share up to date.
    used_bytes: Rc<Cell<u64>>,
}

/// The effect of a power cut on unforced changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutMode {
    DropAll,
    KeepAll,
    Mixed,
}

impl CutMode {
    pub(crate) fn draw(rng: &Rng) -> CutMode {
        match rng.below(4) {
            0 => CutMode::DropAll,
            1 => CutMode::KeepAll,
            _ => CutMode::Mixed,
        }
    }

    /// The index in `versions` that survives; index 0 is the durable version.
    pub(crate) fn choose(self, rng: &Rng, versions: usize) -> usize {
        match self {
            CutMode::DropAll => 0,
            CutMode::KeepAll => versions - 1,
            CutMode::Mixed => rng.index(versions),
        }
    }
}

impl CachedFile {
    pub(crate) fn new(stored: Rc<Stored>, used_bytes: Rc<Cell<u64>>) -> CachedFile {
        let content = stored.content.borrow().clone();
        used_bytes.set(used_bytes.get() + content.allocated_bytes());
        CachedFile {
            stored,
            content,
            dirty_sectors: BTreeMap::new(),
            dirty_lens: Vec::new(),
            sequence: 0,
            holders: 0,
            used_bytes,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Bytes {
        self.content.read(offset, len)
    }

    /// Writes as much as fits into `room_bytes` of new sectors and answers how much that was.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], room_bytes: u64) -> usize {
        self.sequence += 1;
        let mut room_sectors = room_bytes / SECTOR_BYTES;
        let mut written = 0;
        while written < data.len() {
            let (index, within) = split(offset + written as u64);
            let old = self.content.sectors.get(&index);
            if old.is_none() {
                if room_sectors == 0 {
                    break;
                }
                room_sectors -= 1;
            }
            let part = (SECTOR - within).min(data.len() - written);
            let mut new = old.map_or([0; SECTOR], |sector| **sector);
            new[within..within + part].copy_from_slice(&data[written..written + part]);
            self.replace(index, Some(Rc::new(new)));
            written += part;
        }
        if written > 0 {
            self.note_len(self.content.len.max(offset + written as u64));
        }
        written
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        self.sequence += 1;
        self.zero(len..self.content.len.max(len));
        self.note_len(len);
    }

    pub(crate) fn punch(&mut self, offset: u64, len: u64) {
        self.sequence += 1;
        self.zero(offset..offset.saturating_add(len).min(self.content.len));
    }

    /// Forces all changes up to and including number `until`.
    pub(crate) fn sync(&mut self, until: u64) {
        let mut stored = self.stored.content.borrow_mut();
        self.dirty_sectors.retain(|index, versions| {
            let forced = versions.partition_point(|(sequence, _)| *sequence <= until);
            if let Some((_, sector)) = versions.drain(..forced).next_back() {
                stored.put(*index, sector);
            }
            !versions.is_empty()
        });
        let forced = self.dirty_lens.partition_point(|(sequence, _)| *sequence <= until);
        if let Some((_, len)) = self.dirty_lens.drain(..forced).next_back() {
            let is_cut = len < stored.len;
            stored.len = len;
            if is_cut {
                stored.cut_beyond_len();
            }
        }
    }

    /// A failed sync. As in Linux, the pages now count as clean although they may never have
    /// reached the platter: they read correctly until the machine loses power, and no later sync
    /// writes them.
    pub(crate) fn strand(&mut self, rng: &Rng) {
        self.settle(rng, CutMode::Mixed);
    }

    /// The power is cut: each sector and the length become one of their versions.
    pub(crate) fn settle(&mut self, rng: &Rng, mode: CutMode) {
        let mut stored = self.stored.content.borrow_mut();
        for (index, versions) in std::mem::take(&mut self.dirty_sectors) {
            let mut history = vec![stored.sectors.get(&index).cloned()];
            history.extend(versions.into_iter().map(|(_, sector)| sector));
            let chosen = mode.choose(rng, history.len());
            let sector = if mode == CutMode::Mixed && rng.chance(TORN) {
                let other = rng.index(history.len());
                torn(&history[chosen], &history[other], LINE * (1 + rng.index(SECTOR / LINE - 1)))
            } else {
                history[chosen].clone()
            };
            stored.put(index, sector);
        }
        let mut lens = vec![stored.len];
        lens.extend(std::mem::take(&mut self.dirty_lens).into_iter().map(|(_, len)| len));
        stored.len = lens[mode.choose(rng, lens.len())];
        stored.cut_beyond_len();
    }

    /// Flips bits of a stored byte, and of its copy in memory. False if no such byte is stored.
    pub(crate) fn rot(&mut self, offset: u64, mask: u8) -> bool {
        let (index, within) = split(offset);
        let mut stored = self.stored.content.borrow_mut();
        let Some(sector) = stored.sectors.get(&index).filter(|_| offset < stored.len) else {
            return false;
        };
        let mut rotten = **sector;
        rotten[within] ^= mask;
        let rotten = Rc::new(rotten);
        if self.content.sectors.get(&index).is_some_and(|cached| Rc::ptr_eq(cached, sector)) {
            self.content.sectors.insert(index, rotten.clone());
        }
        stored.sectors.insert(index, rotten);
        true
    }

    /// No read of these bytes succeeds until they are written.
    pub(crate) fn spoil(&mut self, range: Range<u64>) {
        self.stored.spoiled.borrow_mut().extend(sectors(&range));
    }

    pub(crate) fn is_spoiled(&self, range: Range<u64>) -> bool {
        self.stored.spoiled.borrow().range(sectors(&range)).next().is_some()
    }

    fn zero(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<(u64, Sector)> = self
            .content
            .sectors
            .range(range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES))
            .map(|(index, sector)| (*index, sector.clone()))
            .collect();
        for (index, sector) in touched {
            let start = index * SECTOR_BYTES;
            let (from, to) =
                (range.start.max(start) - start, (range.end - start).min(SECTOR_BYTES));
            // Beyond the end of the file are zeros, so a range up to the end covers the last
            // sector.
            if from == 0 && (to == SECTOR_BYTES || range.end >= self.content.len) {
                self.replace(index, None);
            } else {
                let mut bytes = *sector;
                bytes[from as usize..to as usize].fill(0);
                self.replace(index, Some(Rc::new(bytes)));
            }
        }
    }

    fn replace(&mut self, index: u64, new: Option<Sector>) {
        let before = self.content.allocated_bytes();
        self.stored.spoiled.borrow_mut().remove(&index);
        self.content.put(index, new.clone());
        self.used_bytes.set(self.used_bytes.get() + self.content.allocated_bytes() - before);
        self.dirty_sectors.entry(index).or_default().push((self.sequence, new));
    }

    /// Data that is rewritten after a failed sync also gets its length stored.
    fn note_len(&mut self, len: u64) {
        let is_stranded = self.dirty_lens.is_empty() && self.stored.content.borrow().len != len;
        if len != self.content.len || is_stranded {
            self.content.len = len;
            self.dirty_lens.push((self.sequence, len));
        }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.used_bytes.set(self.used_bytes.get() - self.content.allocated_bytes());
    }
}

impl Content {
    fn read(&self, offset: u64, len: usize) -> Bytes {
        let len = (len as u64).min(self.len.saturating_sub(offset));
        let mut out = BytesMut::zeroed(len as usize);
        for (&index, sector) in
            self.sectors.range(offset / SECTOR_BYTES..(offset + len).div_ceil(SECTOR_BYTES))
        {
            let start = index * SECTOR_BYTES;
            let (from, to) = (offset.max(start), (offset + len).min(start + SECTOR_BYTES));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        out.freeze()
    }

    fn put(&mut self, index: u64, sector: Option<Sector>) {
        match sector {
            Some(sector) => self.sectors.insert(index, sector),
            None => self.sectors.remove(&index),
        };
    }

    fn cut_beyond_len(&mut self) {
        let (last, within) = split(self.len);
        self.sectors.split_off(&self.len.div_ceil(SECTOR_BYTES));
        if let Some(sector) = self.sectors.get_mut(&last) {
            Rc::make_mut(sector)[within..].fill(0);
        }
    }

    fn allocated_bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }

    /// Offset of the first byte of an allocated sector, which the draw chooses.
    pub(crate) fn any_stored_offset(&self, rng: &Rng) -> Option<u64> {
        let chosen = rng.index(self.sectors.len().max(1));
        self.sectors.keys().nth(chosen).map(|index| index * SECTOR_BYTES)
    }
}

fn sectors(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR_BYTES..range.end.max(range.start).div_ceil(SECTOR_BYTES)
}

fn split(offset: u64) -> (u64, usize) {
    (offset / SECTOR_BYTES, (offset % SECTOR_BYTES) as usize)
}

fn torn(head: &Option<Sector>, tail: &Option<Sector>, at: usize) -> Option<Sector> {
    let bytes = |sector: &Option<Sector>| sector.as_ref().map_or([0; SECTOR], |sector| **sector);
    let mut torn = bytes(tail);
    torn[..at].copy_from_slice(&bytes(head)[..at]);
    Some(Rc::new(torn))
}

/// Real drives tear sectors seldom; here often enough that a few hundred cuts show it.
const TORN: Rate = Rate::one_in(8);
