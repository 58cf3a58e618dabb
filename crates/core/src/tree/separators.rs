//! The separators of a branch in one allocation: a search touches little memory.

use std::ops::Range;

#[derive(Clone, Default)]
pub(super) struct Separators {
    bytes: Vec<u8>,
    /// End offset of each.
    ends: Vec<u32>,
}

impl Separators {
    pub fn one(key: &[u8]) -> Separators {
        let mut keys = Separators::default();
        keys.push(key);
        keys
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Heap memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    pub fn get(&self, at: usize) -> &[u8] {
        &self.bytes[self.range(at)]
    }

    /// Number of separators `<= key`.
    pub fn up_to(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.get(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low
    }

    pub fn insert(&mut self, at: usize, key: &[u8]) {
        let start = self.range(at).start;
        self.bytes.splice(start..start, key.iter().copied());
        self.ends.insert(at, start as u32);
        self.ends[at..].iter_mut().for_each(|end| *end += key.len() as u32);
    }

    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u32);
    }

    pub fn remove(&mut self, at: usize) -> Vec<u8> {
        let key: Vec<u8> = self.bytes.drain(self.range(at)).collect();
        self.ends.remove(at);
        self.ends[at..].iter_mut().for_each(|end| *end -= key.len() as u32);
        key
    }

    /// Splits off the separators from `at` on.
    pub fn split_off(&mut self, at: usize) -> Separators {
        let start = self.range(at).start;
        let bytes = self.bytes.split_off(start);
        let mut ends = self.ends.split_off(at);
        ends.iter_mut().for_each(|end| *end -= start as u32);
        Separators { bytes, ends }
    }

    pub fn append(&mut self, other: &Separators) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| end + start));
    }

    fn range(&self, at: usize) -> Range<usize> {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]) as usize;
        start..self.ends.get(at).map_or(start, |end| *end as usize)
    }
}
