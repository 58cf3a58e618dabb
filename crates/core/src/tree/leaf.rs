//! A leaf: entries in the order of their keys, in one piece of memory. In front are the keys, behind
//! them the values, so that a search reads little more than keys.
//!
//! Of each key there is a head, the bytes that it does not share with the key before it, and the
//! length of its value. The head has how many bytes are shared in its upper half and how many follow
//! in its lower one; a half that is full goes on in a number behind it. The first key
//! shares nothing, so a leaf can be read without any other.

use std::cmp::Ordering;
use std::ops::Range;

/// More entries than this make a leaf too large, since a search reads half of their keys.
pub(super) const MAX_ENTRIES: usize = 64;

/// More bytes than this do too, if they are not of a single entry: a change moves half of them.
pub(super) const MAX_BYTES: usize = 4096;

/// Room is made for so many bytes at a time: leaves hold nearly all of the memory.
const GROWTH_BYTES: usize = 64;

/// What a half of a head can say by itself is below this.
const HALF: usize = 15;

#[derive(Clone, Default)]
pub(super) struct Leaf {
    bytes: Vec<u8>,
    /// Where values begin.
    border: u32,
    len: u32,
}

/// Where a value has come to stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    /// Of the one that the key had.
    InPlace,
    /// Of no other: the entry is new.
    Between,
    AtEnd,
}

/// An entry, by positions in the bytes.
#[derive(Clone)]
struct Entry {
    start: usize,
    /// How many bytes its key has in common with the one before.
    shared: usize,
    suffix: Range<usize>,
    /// Of the key and the length of the value.
    end: usize,
    value: Range<usize>,
}

/// Where a key is or would be.
struct Place {
    /// The entry there, or the one that the key would stand before.
    entry: Option<Entry>,
    is_there: bool,
    /// How many bytes the key has in common with the one before, and with the one of `entry`.
    shared: usize,
    shared_with_next: usize,
}

impl Leaf {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Of the memory beside itself.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub fn is_sparse(&self) -> bool {
        self.len == 0 || (self.len as usize) < MAX_ENTRIES / 4 && self.bytes.len() < MAX_BYTES / 4
    }

    pub fn is_too_large(&self) -> bool {
        self.len as usize > MAX_ENTRIES || self.len > 1 && self.bytes.len() > MAX_BYTES
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let place = self.place(key);
        place.entry.filter(|_| place.is_there).map(|entry| &self.bytes[entry.value])
    }

    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Inserted {
        let place = self.place(key);
        match place.entry {
            Some(entry) if place.is_there => {
                self.splice(entry.value, value);
                let mut len = Vec::new();
                put_number(&mut len, value.len());
                self.splice_keys(entry.suffix.end..entry.end, &len);
                Inserted::InPlace
            }
            next => {
                let at_end = next.is_none();
                let mut with = Vec::with_capacity(key.len() + 16);
                put_key(&mut with, place.shared, &key[place.shared..]);
                put_number(&mut with, value.len());
                let (replaced, value_at) = match next {
                    // It shares more with its new neighbour than with the one before.
                    Some(next) => {
                        let suffix = &self.bytes[next.suffix.clone()];
                        put_key(&mut with, place.shared_with_next, &suffix[place.shared_with_next - next.shared..]);
                        (next.start..next.suffix.end, next.value.start)
                    }
                    None => (self.border()..self.border(), self.bytes.len()),
                };
                self.splice(value_at..value_at, value);
                self.splice_keys(replaced, &with);
                self.len += 1;
                if at_end { Inserted::AtEnd } else { Inserted::Between }
            }
        }
    }

    /// Passes the value that the key had to `old`, if it was there.
    pub fn remove<T>(&mut self, key: &[u8], old: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let place = self.place(key);
        let entry = place.entry.filter(|_| place.is_there)?;
        let old = old(&self.bytes[entry.value.clone()]);
        let mut with = Vec::new();
        let mut end = entry.end;
        if let Some(next) = self.entry(entry.end, entry.value.end) {
            // What it shared with the removed one and that did not with the one before it has itself now.
            let kept = next.shared.saturating_sub(entry.shared);
            let mut suffix = self.bytes[entry.suffix.start..entry.suffix.start + kept].to_vec();
            suffix.extend_from_slice(&self.bytes[next.suffix.clone()]);
            put_key(&mut with, next.shared - kept, &suffix);
            end = next.suffix.end;
        }
        self.splice(entry.value, &[]);
        self.splice_keys(entry.start..end, &with);
        self.len -= 1;
        Some(old)
    }

    /// Gives away the upper half, or the last entry alone, and a key that parts the two. Neither has
    /// more than [`MAX_ENTRIES`] if there are not twice as many.
    pub fn split(&mut self, last_alone: bool) -> (Vec<u8>, Leaf) {
        let mut cursor = Cursor::default();
        let len = self.len as usize;
        let first = if last_alone { len - 1 } else { len.saturating_sub(MAX_ENTRIES).max(1) };
        let last = if last_alone { len - 1 } else { MAX_ENTRIES.min(len - 1) };
        let mut read = 0;
        for index in 0..=last {
            let entry = cursor.advance_entry(self).expect("there are as many entries");
            read += entry.end - entry.start + entry.value.len();
            if index == last || index >= first && read > self.bytes.len() / 2 {
                let right = self.split_at(&entry, &cursor.key, len - index);
                // No more of the key than it takes to be above the one before it.
                cursor.key.truncate(entry.shared + 1);
                return (cursor.key, right);
            }
        }
        unreachable!("a leaf that is split has two entries")
    }

    /// Gives away the last `moved` entries, of which this is the first.
    fn split_at(&mut self, first: &Entry, key: &[u8], moved: usize) -> Leaf {
        let mut bytes = Vec::with_capacity(self.bytes.len() - first.value.start + self.border() - first.start + key.len());
        put_key(&mut bytes, 0, key);
        bytes.extend_from_slice(&self.bytes[first.suffix.end..self.border()]);
        let border = bytes.len() as u32;
        bytes.extend_from_slice(&self.bytes[first.value.start..]);
        self.bytes.truncate(first.value.start);
        self.splice_keys(first.start..self.border(), &[]);
        self.bytes.shrink_to_fit();
        self.len -= moved as u32;
        Leaf { bytes, border, len: moved as u32 }
    }

    /// Takes in all entries of the leaf to the right.
    pub fn append(&mut self, right: &Leaf) {
        let Some(first) = right.entry(0, right.border()) else { return };
        let mut cursor = Cursor::default();
        while cursor.advance(self).is_some() {}
        let key = &right.bytes[first.suffix.clone()];
        let shared = common(&cursor.key, key);
        let mut keys = Vec::with_capacity(right.border());
        put_key(&mut keys, shared, &key[shared..]);
        keys.extend_from_slice(&right.bytes[first.suffix.end..right.border()]);
        self.splice(self.bytes.len()..self.bytes.len(), &right.bytes[right.border()..]);
        self.splice_keys(self.border()..self.border(), &keys);
        self.len += right.len;
    }

    /// Of values, or of keys by [`Leaf::splice_keys`].
    fn splice(&mut self, range: Range<usize>, with: &[u8]) {
        let growth = with.len().saturating_sub(range.len());
        if self.bytes.capacity() - self.bytes.len() < growth {
            self.bytes.reserve_exact(growth + GROWTH_BYTES);
        }
        self.bytes.splice(range, with.iter().copied());
    }

    fn splice_keys(&mut self, range: Range<usize>, with: &[u8]) {
        self.border = (self.border() + with.len() - range.len()) as u32;
        self.splice(range, with);
    }

    fn border(&self) -> usize {
        self.border as usize
    }

    /// The entry whose key is at `start` and whose value is at `value`. In line: a search comes to many.
    #[inline(always)]
    fn entry(&self, start: usize, value: usize) -> Option<Entry> {
        if start == self.border() {
            return None;
        }
        let mut at = start + 1;
        let head = self.bytes[start];
        let mut half = |half: u8| match usize::from(half) {
            HALF => HALF + get_number(&self.bytes, &mut at),
            few => few,
        };
        let (shared, suffix) = (half(head >> 4), half(head & 0xf));
        let suffix = at..at + suffix;
        at = suffix.end;
        let value_len = get_number(&self.bytes, &mut at);
        Some(Entry { start, shared, suffix, end: at, value: value..value + value_len })
    }

    fn place(&self, key: &[u8]) -> Place {
        // How many bytes of `key` the last entry has that was found to be below it.
        let mut shared = 0;
        let (mut at, mut value) = (0, self.border());
        while let Some(entry) = self.entry(at, value) {
            (at, value) = (entry.end, entry.value.end);
            match entry.shared.cmp(&shared) {
                // It is like the one before where that differs from `key`.
                Ordering::Greater => {}
                // It is above the one before where that is like `key`.
                Ordering::Less => {
                    let shared_with_next = entry.shared;
                    return Place { entry: Some(entry), is_there: false, shared, shared_with_next };
                }
                Ordering::Equal => {
                    let (suffix, rest) = (&self.bytes[entry.suffix.clone()], &key[shared..]);
                    let more = common(suffix, rest);
                    let shared_with_next = shared + more;
                    match suffix[more..].first().cmp(&rest[more..].first()) {
                        Ordering::Less => shared = shared_with_next,
                        order => return Place { entry: Some(entry), is_there: order.is_eq(), shared, shared_with_next },
                    }
                }
            }
        }
        Place { entry: None, is_there: false, shared, shared_with_next: 0 }
    }
}

/// A way through a leaf, and the key that it has come to.
#[derive(Default)]
pub(super) struct Cursor {
    at: usize,
    /// How many bytes of values are behind it.
    passed: usize,
    pub key: Vec<u8>,
}

impl Cursor {
    /// The value of the next entry.
    pub fn advance<'a>(&mut self, leaf: &'a Leaf) -> Option<&'a [u8]> {
        let entry = self.advance_entry(leaf)?;
        Some(&leaf.bytes[entry.value])
    }

    fn advance_entry(&mut self, leaf: &Leaf) -> Option<Entry> {
        let entry = leaf.entry(self.at, leaf.border() + self.passed)?;
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(&leaf.bytes[entry.suffix.clone()]);
        self.at = entry.end;
        self.passed += entry.value.len();
        Some(entry)
    }

    /// Before the first entry that is not below `key`.
    pub fn before(leaf: &Leaf, key: &[u8]) -> Cursor {
        Cursor::to(&leaf.place(key), leaf, key)
    }

    /// Before the first entry that is above `key`.
    pub fn after(leaf: &Leaf, key: &[u8]) -> Cursor {
        let place = leaf.place(key);
        let mut cursor = Cursor::to(&place, leaf, key);
        if place.is_there {
            cursor.advance(leaf);
        }
        cursor
    }

    fn to(place: &Place, leaf: &Leaf, key: &[u8]) -> Cursor {
        match &place.entry {
            // What it shares with the one before it, it shares with `key`.
            Some(entry) => Cursor { at: entry.start, passed: entry.value.start - leaf.border(), key: key[..entry.shared].to_vec() },
            None => Cursor { at: leaf.border(), passed: 0, key: Vec::new() },
        }
    }
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn put_key(out: &mut Vec<u8>, shared: usize, suffix: &[u8]) {
    out.push((shared.min(HALF) << 4 | suffix.len().min(HALF)) as u8);
    for half in [shared, suffix.len()] {
        if half >= HALF {
            put_number(out, half - HALF);
        }
    }
    out.extend_from_slice(suffix);
}

/// Seven bits to a byte, the lowest first; the eighth says that more follow.
fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline(always)]
fn get_number(bytes: &[u8], at: &mut usize) -> usize {
    match bytes[*at] {
        few @ ..0x80 => {
            *at += 1;
            usize::from(few)
        }
        _ => get_long_number(bytes, at),
    }
}

fn get_long_number(bytes: &[u8], at: &mut usize) -> usize {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
        shift += 7;
    }
}
