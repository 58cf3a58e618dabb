//! The bytes of a file in the model: sparse, and shared between the states of a history.

use ebb_model::BLOCK_BYTES;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

const PAGE: usize = 4096;
type Page = Rc<[u8; PAGE]>;

thread_local! {
    /// Pages that were written a short time ago, by a print of them.
    static KNOWN: RefCell<HashMap<u64, Page>> = RefCell::default();
}

/// Pages that are kept for others that become the same.
const MAX_KNOWN: usize = 16 << 10;

/// The states of a history take the same writes one by one. They are compared all the time, which
/// is soon done where the page is the same one.
fn share(page: &mut Page) {
    let words =
        page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let print = words.fold(0u64, |print, word| {
        (print.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    KNOWN.with_borrow_mut(|known| {
        match known.get(&print) {
            Some(there) if there == page => return *page = there.clone(),
            _ if known.len() >= MAX_KNOWN => known.clear(),
            _ => {}
        }
        known.insert(print, page.clone());
    });
}

/// Laws: bytes behind the end are zero; absent pages are zero.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

impl Content {
    pub fn from_bytes(data: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(0, data);
        content
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (index, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = (PAGE - within).min(data.len() - done);
            let piece = &data[done..done + part];
            done += part;
            if piece.iter().all(|byte| *byte == 0) && !self.pages.contains_key(&index) {
                continue;
            }
            let page = Rc::make_mut(self.pages.entry(index).or_insert_with(|| Rc::new([0; PAGE])));
            page[within..within + part].copy_from_slice(piece);
            if page.iter().all(|byte| *byte == 0) {
                self.pages.remove(&index);
            } else {
                share(self.pages.get_mut(&index).expect("was written"));
            }
        }
        self.size = self.size.max(offset + data.len() as u64);
    }

    /// Makes a range zeros; the size stays.
    pub fn zero(&mut self, offset: u64, len_bytes: u64) {
        let end = offset.saturating_add(len_bytes).min(self.size);
        if offset >= end {
            return;
        }
        let touched: Vec<u64> = self
            .pages
            .range(offset / PAGE as u64..end.div_ceil(PAGE as u64))
            .map(|(index, _)| *index)
            .collect();
        for index in touched {
            let start = index * PAGE as u64;
            let (from, to) = (offset.max(start) - start, end.min(start + PAGE as u64) - start);
            let page = Rc::make_mut(self.pages.get_mut(&index).expect("was found"));
            page[from as usize..to as usize].fill(0);
            if page.iter().all(|byte| *byte == 0) {
                self.pages.remove(&index);
            }
        }
    }

    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE as u64));
            let index = size / PAGE as u64;
            if let Some(page) = self.pages.get_mut(&index) {
                let page = Rc::make_mut(page);
                page[(size % PAGE as u64) as usize..].fill(0);
                if page.iter().all(|byte| *byte == 0) {
                    self.pages.remove(&index);
                }
            }
        }
        self.size = size;
    }

    /// The first byte of `data`, read from `offset`, that neither this content nor one of `others`
    /// has in the same place.
    pub fn first_stranger(&self, others: &[Content], offset: u64, data: &[u8]) -> Option<u64> {
        let mut expected = vec![0; data.len()];
        self.read_over(offset, &mut expected);
        if expected == data {
            return None;
        }
        let alternatives: Vec<Vec<u8>> = others
            .iter()
            .map(|other| {
                let mut bytes = vec![0; data.len()];
                other.read_over(offset, &mut bytes);
                bytes
            })
            .collect();
        (0..data.len())
            .find(|at| {
                expected[*at] != data[*at]
                    && alternatives.iter().all(|bytes| bytes[*at] != data[*at])
            })
            .map(|at| offset + at as u64)
    }

    /// How many bytes are in blocks of which everything may be zeros, here or byte for byte in
    /// one of the others.
    pub fn bytes_in_zero_blocks(&self, others: &[Content]) -> u64 {
        let touched: BTreeSet<u64> =
            self.pages.keys().map(|index| index * PAGE as u64 / BLOCK_BYTES).collect();
        let data = touched.into_iter().map(|block| {
            let start = block * BLOCK_BYTES;
            let len_bytes = BLOCK_BYTES.min(self.size - start);
            let zeros = vec![0; len_bytes as usize];
            if self.first_stranger(others, start, &zeros).is_some() { len_bytes } else { 0 }
        });
        self.size - data.sum::<u64>()
    }

    pub fn read(&self, offset: u64, len_bytes: usize) -> Vec<u8> {
        let mut data = vec![0; len_bytes];
        self.read_over(offset, &mut data);
        data
    }

    /// Fills in the bytes from `offset`; zeros behind the end.
    fn read_over(&self, offset: u64, data: &mut [u8]) {
        let end = offset + data.len() as u64;
        for (index, page) in self.pages.range(offset / PAGE as u64..end.div_ceil(PAGE as u64)) {
            let start = index * PAGE as u64;
            let (from, to) = (offset.max(start), end.min(start + PAGE as u64));
            data[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
        }
    }
}
