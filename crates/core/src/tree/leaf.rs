//! A leaf: entries in key order in one allocation. Heads come first, then keys, then values, so a
//! search reads little more than heads.
//!
//! Keys are prefix-compressed. A head holds three lengths: of the prefix shared with the previous
//! key, of the rest of the key, and of the value. A length that exceeds its field continues in a
//! number in front of the key's bytes. The first key shares nothing, so a leaf is readable on its
//! own.

use super::Run;
use std::cmp::Ordering;
use std::iter::from_fn;
use std::ops::Range;

/// Maximum entries: a search reads half of the keys.
pub(super) const MAX_ENTRIES: usize = 64;

/// Maximum bytes, unless of a single entry: a change moves half of them.
pub(super) const MAX_BYTES: usize = 4096;

/// Growth of the allocation: leaves hold nearly all of the memory.
const GROWTH_BYTES: usize = 64;

/// Field limits of a head for the lengths of keys and values.
const MOST_OF_KEY: usize = (1 << KEY_BITS) - 1;
const MOST_OF_VALUE: usize = (1 << (16 - 2 * KEY_BITS)) - 1;

/// Bits of each key length in a head.
const KEY_BITS: u32 = 5;

const HEAD_BYTES: usize = size_of::<u16>();

#[derive(Clone, Default)]
pub(super) struct Leaf {
    bytes: Vec<u8>,
    /// Offset of the values.
    border: u32,
    /// Number of entries.
    len: u32,
}

/// Outcome of an insert.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inserted {
    /// Replaced the value of an existing key.
    InPlace,
    /// A new entry before another one.
    Between,
    AtEnd,
}

/// An entry, by offsets in the bytes.
#[derive(Clone)]
struct Entry {
    index: usize,
    /// Length of the prefix that its key shares with the previous one.
    shared: usize,
    /// Offset of its part of the keys, including length numbers.
    start: usize,
    suffix: Range<usize>,
    value: Range<usize>,
}

/// The heads, keys and values of a range of entries.
struct Offsets {
    /// Indices of the entries.
    heads: Range<usize>,
    keys: Range<usize>,
    values: Range<usize>,
}

/// The position of a key, present or not.
struct Position {
    /// The entry of the key, or the one before which the key belongs.
    entry: Option<Entry>,
    is_there: bool,
    /// Lengths of the prefixes that the key shares with the previous key and with that of `entry`.
    shared: usize,
    shared_with_next: usize,
}

impl Leaf {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Heap memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub fn is_sparse(&self) -> bool {
        self.len == 0 || (self.len as usize) < MAX_ENTRIES / 4 && self.bytes.len() < MAX_BYTES / 4
    }

    pub fn is_too_large(&self) -> bool {
        self.len as usize > MAX_ENTRIES || self.len > 1 && self.bytes.len() > MAX_BYTES
    }

    /// Keys and values `< end`, in order.
    pub fn below(&self, end: &[u8]) -> Vec<(Vec<u8>, &[u8])> {
        let mut cursor = Cursor::default();
        let entries = from_fn(|| cursor.advance(self).map(|value| (cursor.key.clone(), value)));
        entries.take_while(|(key, _)| key[..] < *end).collect()
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let place = self.position(key);
        place.entry.filter(|_| place.is_there).map(|entry| &self.bytes[entry.value])
    }

    /// Like [`Leaf::merge`].
    pub fn insert_all(&mut self, run: Run) -> (usize, Vec<(Vec<u8>, Leaf)>) {
        let [(key, value)] = run else { return self.merge(run) };
        let inserted = self.insert(key, value);
        let split = self.is_too_large().then(|| self.split(inserted == Inserted::AtEnd));
        (usize::from(inserted != Inserted::InPlace), split.into_iter().collect())
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Inserted {
        let place = self.position(key);
        match place.entry {
            Some(entry) if place.is_there => {
                let mut numbers = Vec::new();
                let head = put_numbers(&mut numbers, entry.shared, entry.suffix.len(), value.len());
                let its = Offsets {
                    heads: entry.index..entry.index + 1,
                    keys: entry.start..entry.suffix.start,
                    values: entry.value,
                };
                self.splice(its, &[head], &numbers, value);
                Inserted::InPlace
            }
            None => {
                let mut with = Vec::with_capacity(key.len() + 8);
                let head = put_key(&mut with, place.shared, &key[place.shared..], value.len());
                self.splice(self.end(), &[head], &with, value);
                Inserted::AtEnd
            }
            Some(next) => {
                let mut with = Vec::with_capacity(key.len() + 8 + next.suffix.len());
                let head = put_key(&mut with, place.shared, &key[place.shared..], value.len());
                // The next entry shares a longer prefix with the new key than with the previous
                // one.
                let suffix =
                    &self.bytes[next.suffix.clone()][place.shared_with_next - next.shared..];
                let next_head =
                    put_key(&mut with, place.shared_with_next, suffix, next.value.len());
                let values = next.value.start..next.value.start;
                let its = Offsets {
                    heads: next.index..next.index + 1,
                    keys: next.start..next.suffix.end,
                    values,
                };
                self.splice(its, &[head, next_head], &with, value);
                Inserted::Between
            }
        }
    }

    /// Removes an entry and passes its value to `old`.
    pub fn remove<T>(&mut self, key: &[u8], old: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let place = self.position(key);
        let entry = place.entry.filter(|_| place.is_there)?;
        let old = old(&self.bytes[entry.value.clone()]);
        let mut with = Vec::new();
        let mut its = Offsets {
            heads: entry.index..entry.index + 1,
            keys: entry.start..entry.suffix.end,
            values: entry.value.clone(),
        };
        let next = self.entry(entry.index + 1, entry.suffix.end, entry.value.end);
        let next_head = next.map(|next| {
            // The next entry stores the prefix that it shared only with the removed key.
            let kept = next.shared.saturating_sub(entry.shared);
            let mut suffix = self.bytes[entry.suffix.start..entry.suffix.start + kept].to_vec();
            suffix.extend_from_slice(&self.bytes[next.suffix.clone()]);
            (its.heads.end, its.keys.end) = (next.index + 1, next.suffix.end);
            put_key(&mut with, next.shared - kept, &suffix, next.value.len())
        });
        self.splice(its, next_head.as_slice(), &with, &[]);
        Some(old)
    }

    /// Splits off the upper half, or the last entry alone, with a separator. Neither part exceeds
    /// [`MAX_ENTRIES`] if the leaf has at most twice as many.
    pub fn split(&mut self, last_alone: bool) -> (Vec<u8>, Leaf) {
        let mut cursor = Cursor::default();
        let len = self.len as usize;
        let first = if last_alone { len - 1 } else { len.saturating_sub(MAX_ENTRIES).max(1) };
        let last = if last_alone { len - 1 } else { MAX_ENTRIES.min(len - 1) };
        let mut read = 0;
        for index in 0..=last {
            let entry = cursor.advance_entry(self).expect("the leaf has this many entries");
            read += HEAD_BYTES + entry.suffix.end - entry.start + entry.value.len();
            if index == last || index >= first && read > self.bytes.len() / 2 {
                let right = self.split_at(&entry, &cursor.key);
                // The shortest prefix that is above the previous key.
                cursor.key.truncate(entry.shared + 1);
                return (cursor.key, right);
            }
        }
        unreachable!("a split leaf has at least two entries")
    }

    /// Splits off the entries from `first` on.
    fn split_at(&mut self, first: &Entry, key: &[u8]) -> Leaf {
        let (len, border) = (self.len as usize, self.border());
        let mut keys = Vec::with_capacity(border - first.start + key.len());
        let head = put_key(&mut keys, 0, key, first.value.len());
        keys.extend_from_slice(&self.bytes[first.suffix.end..border]);
        let bytes = [
            &head[..],
            self.heads()[first.index + 1..].as_flattened(),
            &keys,
            &self.bytes[first.value.start..],
        ]
        .concat();
        let right = Leaf {
            border: (bytes.len() - (self.bytes.len() - first.value.start)) as u32,
            bytes,
            len: (len - first.index) as u32,
        };
        self.splice(
            Offsets {
                heads: first.index..len,
                keys: first.start..border,
                values: first.value.start..self.bytes.len(),
            },
            &[],
            &[],
            &[],
        );
        self.bytes.shrink_to_fit();
        right
    }

    /// Merges sorted entries and returns the number of new keys. Surplus entries fill further
    /// leaves, each with its separator.
    fn merge(&mut self, run: Run) -> (usize, Vec<(Vec<u8>, Leaf)>) {
        let (mut filling, mut new) =
            (Filling { most: self.most_of_each(run), ..Filling::default() }, 0);
        let mut cursor = Cursor::default();
        let mut own = cursor.advance(self);
        for (key, value) in run {
            while let Some(before) = own.filter(|_| cursor.key[..] < **key) {
                filling.push(&cursor.key, before);
                own = cursor.advance(self);
            }
            match own {
                Some(_) if cursor.key[..] == **key => own = cursor.advance(self),
                _ => new += 1,
            }
            filling.push(key, value);
        }
        while let Some(behind) = own {
            filling.push(&cursor.key, behind);
            own = cursor.advance(self);
        }
        let mut filled = filling.end().into_iter();
        *self = filled.next().map_or_else(Leaf::default, |(_, leaf)| leaf);
        (new, filled.collect())
    }

    /// Entries per leaf for a merge. A run behind the last key fills leaves completely. A run in
    /// between leaves space in every leaf, since more entries are likely.
    fn most_of_each(&self, run: Run) -> usize {
        if run.first().is_none_or(|(first, _)| self.position(first).entry.is_none()) {
            return MAX_ENTRIES;
        }
        let entries = self.len as usize + run.len();
        let bytes = self.bytes.len()
            + run.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let leaves = entries.div_ceil(MAX_ENTRIES).max(bytes.div_ceil(MAX_BYTES));
        entries.div_ceil(leaves)
    }

    /// Appends all entries of the leaf to the right.
    pub fn append(&mut self, right: &Leaf) {
        let Some(first) = right.entry(0, right.keys_at(), right.border()) else { return };
        let mut cursor = Cursor::default();
        while cursor.advance(self).is_some() {}
        let key = &right.bytes[first.suffix.clone()];
        let shared = common(&cursor.key, key);
        let mut keys = Vec::with_capacity(right.border());
        let mut heads = vec![put_key(&mut keys, shared, &key[shared..], first.value.len())];
        heads.extend(&right.heads()[1..]);
        keys.extend_from_slice(&right.bytes[first.suffix.end..right.border()]);
        self.splice(self.end(), &heads, &keys, &right.bytes[right.border()..]);
    }

    /// The empty range behind the last entry.
    fn end(&self) -> Offsets {
        let (len, border, end) = (self.len as usize, self.border(), self.bytes.len());
        Offsets { heads: len..len, keys: border..border, values: end..end }
    }

    /// Replaces a range of entries.
    fn splice(&mut self, its: Offsets, heads: &[Head], keys: &[u8], values: &[u8]) {
        self.splice_bytes(its.values, values);
        self.border = (self.border() + keys.len() + size_of_val(heads)
            - its.keys.len()
            - HEAD_BYTES * its.heads.len()) as u32;
        self.splice_bytes(its.keys, keys);
        self.len = (self.len as usize + heads.len() - its.heads.len()) as u32;
        self.splice_bytes(
            its.heads.start * HEAD_BYTES..its.heads.end * HEAD_BYTES,
            heads.as_flattened(),
        );
    }

    fn splice_bytes(&mut self, range: Range<usize>, with: &[u8]) {
        let (len, end) = (self.bytes.len(), range.start + with.len());
        if end > range.end {
            let growth = end - range.end;
            if self.bytes.capacity() - len < growth {
                self.bytes.reserve_exact(growth + GROWTH_BYTES);
            }
            self.bytes.resize(len + growth, 0);
        }
        if end != range.end {
            self.bytes.copy_within(range.end..len, end);
            self.bytes.truncate(end + len - range.end);
        }
        self.bytes[range.start..end].copy_from_slice(with);
    }

    /// Offset of the keys.
    fn keys_at(&self) -> usize {
        self.len as usize * HEAD_BYTES
    }

    fn border(&self) -> usize {
        self.border as usize
    }

    fn heads(&self) -> &[Head] {
        self.bytes[..self.keys_at()].as_chunks().0
    }

    /// The entry with its key at `start` and its value at `value`.
    fn entry(&self, index: usize, start: usize, value: usize) -> Option<Entry> {
        Some(self.entry_of(*self.heads().get(index)?, index, start, value))
    }

    /// Inlined: a search calls it often.
    #[inline(always)]
    fn entry_of(&self, head: Head, index: usize, start: usize, value: usize) -> Entry {
        let (shared, suffix, len) = numbers_of(head);
        let mut at = start;
        let mut whole = |few: usize, most: usize| {
            if few < most { few } else { most + get_number(&self.bytes, &mut at) }
        };
        let shared = whole(shared, MOST_OF_KEY);
        let suffix = whole(suffix, MOST_OF_KEY);
        let value_len = whole(len, MOST_OF_VALUE);
        Entry { index, shared, start, suffix: at..at + suffix, value: value..value + value_len }
    }

    fn position(&self, key: &[u8]) -> Position {
        // The prefix of `key` shared with the last smaller entry, and the byte after it.
        let mut shared = 0;
        let mut next = key.first();
        let (mut at, mut value) = (self.keys_at(), self.border());
        for (index, head) in self.heads().iter().enumerate() {
            // Most entries are skipped by their head or the first byte of their suffix.
            let (its_shared, suffix, len) = numbers_of(*head);
            let says_all = its_shared < MOST_OF_KEY && suffix < MOST_OF_KEY && len < MOST_OF_VALUE;
            if says_all
                && (its_shared > shared
                    || its_shared == shared
                        && suffix > 0
                        && next.is_some_and(|next| self.bytes[at] < *next))
            {
                (at, value) = (at + suffix, value + len);
                continue;
            }
            let entry = self.entry_of(*head, index, at, value);
            (at, value) = (entry.suffix.end, entry.value.end);
            match entry.shared.cmp(&shared) {
                // It agrees with the previous entry beyond the first difference from `key`: still
                // smaller.
                Ordering::Greater => {}
                // It differs from the previous entry within the prefix shared with `key`: larger.
                Ordering::Less => {
                    let shared_with_next = entry.shared;
                    return Position {
                        entry: Some(entry),
                        is_there: false,
                        shared,
                        shared_with_next,
                    };
                }
                Ordering::Equal => {
                    let suffix = &self.bytes[entry.suffix.clone()];
                    let (mut more, mut order) = (0, suffix.first().cmp(&next));
                    if order.is_eq() {
                        let rest = &key[shared..];
                        more = common(suffix, rest);
                        order = suffix.get(more).cmp(&rest.get(more));
                    }
                    let shared_with_next = shared + more;
                    if order.is_ge() {
                        return Position {
                            entry: Some(entry),
                            is_there: order.is_eq(),
                            shared,
                            shared_with_next,
                        };
                    }
                    if more > 0 {
                        (shared, next) = (shared_with_next, key.get(shared_with_next));
                    }
                }
            }
        }
        Position { entry: None, is_there: false, shared, shared_with_next: 0 }
    }
}

/// Fills consecutive leaves in key order.
#[derive(Default)]
struct Filling {
    /// Entries per leaf.
    most: usize,
    /// Full leaves, each with its separator from the previous one.
    full: Vec<(Vec<u8>, Leaf)>,
    /// Separator between the last full leaf and the current one.
    between: Vec<u8>,
    heads: Vec<Head>,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// The last key.
    last: Vec<u8>,
}

impl Filling {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let shared = common(&self.last, key);
        let keys = self.keys.len();
        let mut head = put_key(&mut self.keys, shared, &key[shared..], value.len());
        let bytes =
            (self.heads.len() + 1) * HEAD_BYTES + self.keys.len() + self.values.len() + value.len();
        if self.heads.len() == self.most || !self.heads.is_empty() && bytes > MAX_BYTES {
            self.keys.truncate(keys);
            self.next(key[..=shared].to_vec());
            head = put_key(&mut self.keys, 0, key, value.len());
        }
        self.heads.push(head);
        self.values.extend_from_slice(value);
        self.last.truncate(shared);
        self.last.extend_from_slice(&key[shared..]);
    }

    /// Begins the next leaf.
    fn next(&mut self, between: Vec<u8>) {
        let heads = std::mem::take(&mut self.heads);
        let bytes = [heads.as_flattened(), &self.keys, &self.values].concat();
        let leaf = Leaf {
            border: (bytes.len() - self.values.len()) as u32,
            bytes,
            len: heads.len() as u32,
        };
        self.full.push((std::mem::replace(&mut self.between, between), leaf));
        self.keys.clear();
        self.values.clear();
    }

    fn end(mut self) -> Vec<(Vec<u8>, Leaf)> {
        self.next(Vec::new());
        self.full
    }
}

/// A position in a leaf, with the current key.
#[derive(Default)]
pub(super) struct Cursor {
    /// Number of passed entries, and bytes of their keys and values.
    index: usize,
    keys: usize,
    values: usize,
    pub key: Vec<u8>,
}

impl Cursor {
    /// The value of the next entry.
    pub fn advance<'a>(&mut self, leaf: &'a Leaf) -> Option<&'a [u8]> {
        let entry = self.advance_entry(leaf)?;
        Some(&leaf.bytes[entry.value])
    }

    fn advance_entry(&mut self, leaf: &Leaf) -> Option<Entry> {
        let entry =
            leaf.entry(self.index, leaf.keys_at() + self.keys, leaf.border() + self.values)?;
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(&leaf.bytes[entry.suffix.clone()]);
        self.index += 1;
        self.keys = entry.suffix.end - leaf.keys_at();
        self.values += entry.value.len();
        Some(entry)
    }

    /// Before the first entry `>= key`.
    pub fn before(leaf: &Leaf, key: &[u8]) -> Cursor {
        Cursor::to(&leaf.position(key), leaf, key)
    }

    /// Before the first entry `> key`.
    pub fn after(leaf: &Leaf, key: &[u8]) -> Cursor {
        let place = leaf.position(key);
        let mut cursor = Cursor::to(&place, leaf, key);
        if place.is_there {
            cursor.advance(leaf);
        }
        cursor
    }

    fn to(place: &Position, leaf: &Leaf, key: &[u8]) -> Cursor {
        match &place.entry {
            Some(entry) => Cursor {
                index: entry.index,
                keys: entry.start - leaf.keys_at(),
                values: entry.value.start - leaf.border(),
                // A prefix shared with the previous entry is also shared with `key`.
                key: key[..entry.shared].to_vec(),
            },
            None => Cursor { index: leaf.len as usize, ..Cursor::default() },
        }
    }
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

type Head = [u8; HEAD_BYTES];

fn put_key(out: &mut Vec<u8>, shared: usize, suffix: &[u8], value_len: usize) -> Head {
    let head = put_numbers(out, shared, suffix.len(), value_len);
    out.extend_from_slice(suffix);
    head
}

fn put_numbers(out: &mut Vec<u8>, shared: usize, suffix: usize, value: usize) -> Head {
    let mut part = |number: usize, most: usize| {
        if number >= most {
            put_number(out, number - most);
        }
        number.min(most) as u16
    };
    let (shared, suffix, value) =
        (part(shared, MOST_OF_KEY), part(suffix, MOST_OF_KEY), part(value, MOST_OF_VALUE));
    (shared | suffix << KEY_BITS | value << (2 * KEY_BITS)).to_le_bytes()
}

/// Decodes a head: lengths of the shared prefix, of the suffix and of the value. The maximum means
/// that a number follows.
#[inline(always)]
fn numbers_of(head: Head) -> (usize, usize, usize) {
    let head = usize::from(u16::from_le_bytes(head));
    (head & MOST_OF_KEY, head >> KEY_BITS & MOST_OF_KEY, head >> (2 * KEY_BITS))
}

/// A varint: seven bits per byte, lowest first; the eighth bit marks a continuation.
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
