//! An ordered map with low memory use and O(1) clones, which later writes do not affect: a
//! partition is snapshotted while it applies further commands (C-12).
//!
//! A copy-on-write B+tree: a write copies the nodes of its path that a clone shares. Leaves store
//! packed keys and values, which are unpacked on access. [`Recent`] caches the last accessed
//! entries unpacked.
//!
//! Laws:
//! - All leaves are at the same depth; no node but the root is empty.
//! - `Branch::keys[i]` is `>` every key in `children[i]` and `<=` every key in `children[i + 1]`.
//! - `bytes` is the sum of [`Node::bytes`].
//! - `recent` agrees with a search.
//! - A branch has at most [`FANOUT`] children and at least two; below the root at least [`SPARSE`].
//!   Leaves have no lower limit, so sequential inserts leave full leaves; a removal refills a
//!   sparse node.

mod leaf;
mod packed;
mod recent;
mod remove;
mod separators;

pub(crate) use packed::values;
pub use packed::{FixedKey, Key, KeyBytes, Value, pack, take, unpack};

use leaf::{Cursor, Leaf};
use recent::Recent;
use separators::Separators;
use std::cell::RefCell;
use std::iter::from_fn;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::slice::Iter;
use std::sync::Arc;

/// Maximum children of a branch.
const FANOUT: usize = 32;

/// A removal merges a branch with fewer children with a neighbour, or refills it from one.
const SPARSE: usize = FANOUT / 4;

/// A copy-on-write B+tree. Laws in the module header.
pub struct Tree<K, V> {
    root: Arc<Node>,
    len: usize,
    bytes: usize,
    recent: RefCell<Recent<K, V>>,
    entries: PhantomData<fn() -> (K, V)>,
}

#[derive(Clone)]
enum Node {
    Leaf(Leaf),
    /// Boxed: branches are rare and larger than leaves.
    Branch(Box<Branch>),
}

#[derive(Clone)]
struct Branch {
    keys: Separators,
    children: Vec<Arc<Node>>,
}

/// The right part of a split node, and the separator between the two.
struct Split {
    key: Vec<u8>,
    right: Node,
}

/// Entries in key order.
type Run<'a> = &'a [(&'a [u8], &'a [u8])];

impl<K, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Tree {
            root: self.root.clone(),
            len: self.len,
            bytes: self.bytes,
            recent: RefCell::default(),
            entries: PhantomData,
        }
    }
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        let root = Node::Leaf(Leaf::default());
        Tree {
            bytes: root.bytes(),
            root: Arc::new(root),
            len: 0,
            recent: RefCell::default(),
            entries: PhantomData,
        }
    }
}

impl<K, V> Tree<K, V> {
    pub fn new() -> Self {
        Tree::default()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory in bytes. Nodes shared with clones count in each of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<K: Key, V: Value<K>> Tree<K, V> {
    /// A clone of the value.
    pub fn get(&self, key: &K) -> Option<V> {
        self.look(key, |value| value.cloned())
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.look(key, |value| value.is_some())
    }

    /// Like [`Tree::get`], without a clone of the value. `at` must not access the same tree.
    pub fn look<T>(&self, key: &K, at: impl FnOnce(Option<&V>) -> T) -> T {
        let mut recent = self.recent.borrow_mut();
        if let Some(value) = recent.get(key) {
            return at(value);
        }
        let place = packed(key);
        let found = self.find(&place);
        let value = found.map(|bytes| V::unpack(key, bytes));
        let outcome = at(value.as_ref());
        recent.note(key, value, place.len().max(found.map_or(0, <[u8]>::len)));
        outcome
    }

    /// Whether the cached entries agree with a search.
    pub fn is_recent_so(&self) -> bool {
        let is_so = |(key, value): &(K, Option<V>)| {
            self.find(&packed(key)).map(|bytes| V::unpack(key, bytes)) == *value
        };
        self.recent.borrow().known().all(is_so)
    }

    fn find(&self, key: &[u8]) -> Option<&[u8]> {
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => return leaf.get(key),
                Node::Branch(branch) => node = &branch.children[branch.child_of(key)],
            }
        }
    }

    /// Returns whether the key is new.
    pub fn insert(&mut self, key: &K, value: &V) -> bool {
        self.put(key, value.clone())
    }

    /// Inserts each entry, in any order, at a fraction of the cost if many are neighbours. Keys
    /// must be distinct.
    pub fn extend(&mut self, entries: impl IntoIterator<Item = (K, V)>) {
        let (mut bytes, mut parts) = (Vec::new(), Vec::new());
        for (key, value) in entries {
            let start = bytes.len();
            bytes.extend_from_slice(&packed(&key));
            let border = bytes.len();
            value.pack(&key, &mut bytes);
            parts.push((start..border, border..bytes.len()));
        }
        let mut run: Vec<_> =
            parts.into_iter().map(|(key, value)| (&bytes[key], &bytes[value])).collect();
        if run.is_empty() {
            return;
        }
        run.sort_unstable();
        assert!(run.is_sorted_by(|(one, _), (next, _)| one < next), "keys are distinct");
        *self.recent.get_mut() = Recent::default();
        self.put_all(&run);
    }

    fn put(&mut self, key: &K, value: V) -> bool {
        let (place, mut bytes) = (packed(key), Vec::with_capacity(64));
        value.pack(key, &mut bytes);
        debug_assert!(V::unpack(key, &bytes) == value, "unpacking yields the packed value");
        self.recent.get_mut().note(key, Some(value), place.len().max(bytes.len()));
        self.put_all(&[(&place, &bytes)]) > 0
    }

    /// Returns the number of new keys.
    fn put_all(&mut self, run: Run) -> usize {
        let (new, mut splits) = Node::insert(&mut self.root, run, &mut self.bytes);
        while !splits.is_empty() {
            let mut root =
                Branch { keys: Separators::default(), children: vec![Arc::clone(&self.root)] };
            root.add(0, splits);
            splits = root.split();
            self.root = Arc::new(Node::Branch(Box::new(root)));
            self.bytes +=
                self.root.bytes() + splits.iter().map(|split| split.right.bytes()).sum::<usize>();
        }
        self.len += new;
        new
    }

    /// Applies `change` to the value of the key, if it exists.
    pub fn change<T>(&mut self, key: &K, change: impl FnOnce(&mut V) -> T) -> Option<T> {
        let (outcome, changed) = self.look(key, |found| {
            let found = found?;
            let mut value = found.clone();
            let outcome = change(&mut value);
            Some((outcome, (value != *found).then_some(value)))
        })?;
        if let Some(value) = changed {
            self.put(key, value);
        }
        Some(outcome)
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = packed(key);
        self.recent.get_mut().note(key, None, place.len());
        let old =
            Node::remove(&mut self.root, &place, |value| V::unpack(key, value), &mut self.bytes)?;
        self.len -= 1;
        if let Node::Branch(branch) = &*self.root
            && let [only] = &branch.children[..]
        {
            self.bytes -= self.root.bytes();
            self.root = Arc::clone(only);
        }
        Some(old)
    }

    pub fn first(&self) -> Option<(K, V)> {
        self.iter().next()
    }

    pub fn last(&self) -> Option<(K, V)> {
        let mut node = &self.root;
        while let Node::Branch(branch) = &**node {
            node = branch.children.last()?;
        }
        let Node::Leaf(leaf) = &**node else { return None };
        let (mut cursor, mut last) = (Cursor::default(), None);
        while let Some(value) = cursor.advance(leaf) {
            last = Some(value);
        }
        last.map(|value| entry(&cursor.key, value))
    }

    pub fn iter(&self) -> Range<'_, K, V> {
        self.range(..)
    }

    /// In key order. Bounds without content yield an empty range.
    pub fn range(&self, bounds: impl RangeBounds<K>) -> Range<'_, K, V> {
        let (ahead, end) = (Vec::new(), bounds.end_bound().map(packed));
        let mut range =
            Range { ahead, leaf: None, cursor: Cursor::default(), end, entries: PhantomData };
        range.descend(&self.root, bounds.start_bound().map(packed));
        range
    }

    /// The entries below `end`, in reverse.
    pub fn below(&self, end: K) -> impl Iterator<Item = (K, V)> {
        let (mut end, mut left) = (packed(&end).to_vec(), Vec::new());
        from_fn(move || {
            if left.is_empty() {
                left = self.root.below(&end);
                end.clone_from(&left.first()?.0);
            }
            left.pop().map(|(key, value)| entry(&key, value))
        })
    }
}

/// Descriptions of the named trees for which [`Tree::is_recent_so`] is false.
pub fn remembered_wrongly(trees: impl IntoIterator<Item = (&'static str, bool)>) -> Vec<String> {
    let wrong = trees.into_iter().filter(|(_, is_so)| !is_so);
    wrong
        .map(|(tree, _)| format!("the cached entries of the tree of {tree} differ from a search"))
        .collect()
}

fn entry<K: Key, V: Value<K>>(key: &[u8], value: &[u8]) -> (K, V) {
    let key = K::unpack(key);
    let value = V::unpack(&key, value);
    (key, value)
}

fn packed(key: &impl Key) -> KeyBytes {
    let mut bytes = KeyBytes::new();
    key.pack(&mut bytes);
    bytes
}

impl Node {
    /// Memory without its children.
    fn bytes(&self) -> usize {
        let counts = 2 * size_of::<usize>();
        let beside = match self {
            Node::Leaf(leaf) => leaf.bytes(),
            Node::Branch(branch) => {
                size_of::<Branch>()
                    + branch.keys.bytes()
                    + branch.children.capacity() * size_of::<Arc<Node>>()
            }
        };
        counts + size_of::<Node>() + beside
    }

    /// Keys and values `< end` of the last leaf that has any.
    fn below(&self, end: &[u8]) -> Vec<(Vec<u8>, &[u8])> {
        match self {
            Node::Leaf(leaf) => leaf.below(end),
            Node::Branch(branch) => {
                let children = branch.children[..=branch.child_of(end)].iter().rev();
                children
                    .map(|child| child.below(end))
                    .find(|found| !found.is_empty())
                    .unwrap_or_default()
            }
        }
    }

    /// Returns the number of new keys, and the nodes to insert beside this one. `bytes` are those
    /// of all nodes.
    fn insert(node: &mut Arc<Node>, run: Run, bytes: &mut usize) -> (usize, Vec<Split>) {
        *bytes -= node.bytes();
        let node = Arc::make_mut(node);
        let (new, splits) = match node {
            Node::Leaf(leaf) => {
                let (new, leaves) = leaf.insert_all(run);
                let split = |(key, right)| Split { key, right: Node::Leaf(right) };
                (new, leaves.into_iter().map(split).collect())
            }
            Node::Branch(branch) => (branch.insert(run, bytes), branch.split()),
        };
        *bytes +=
            node.bytes() + splits.iter().map(|split: &Split| split.right.bytes()).sum::<usize>();
        (new, splits)
    }
}

impl Branch {
    /// Index of the child that can hold `key`.
    fn child_of(&self, key: &[u8]) -> usize {
        self.keys.up_to(key)
    }

    /// Returns the number of new keys. Afterwards the branch can have too many children.
    fn insert(&mut self, mut run: Run, bytes: &mut usize) -> usize {
        let mut new = 0;
        // Backwards, so the positions of the remaining ones stay valid.
        while let Some((key, _)) = run.last() {
            let at = self.child_of(key);
            let others = &run[..run.len() - 1];
            let first = at.checked_sub(1).map_or(0, |before| {
                others.partition_point(|(key, _)| *key < self.keys.get(before))
            });
            let (of_child, splits) = Node::insert(&mut self.children[at], &run[first..], bytes);
            if !splits.is_empty() {
                self.add(at, splits);
            }
            (new, run) = (new + of_child, &run[..first]);
        }
        new
    }

    /// Inserts the parts that the child at `at` split off.
    fn add(&mut self, at: usize, splits: Vec<Split>) {
        let (keys, children): (Vec<_>, Vec<_>) =
            splits.into_iter().map(|Split { key, right }| (key, Arc::new(right))).unzip();
        let behind = self.keys.split_off(at);
        keys.iter().for_each(|key| self.keys.push(key));
        self.keys.append(&behind);
        self.children.splice(at + 1..at + 1, children);
    }

    /// Splits off surplus children, in nodes of about equal size.
    fn split(&mut self) -> Vec<Split> {
        if self.children.len() <= FANOUT {
            return Vec::new();
        }
        let kept = (1..self.children.len().div_ceil(FANOUT)).rev();
        let mut splits: Vec<Split> =
            kept.map(|kept| self.split_at(self.children.len() * kept / (kept + 1))).collect();
        splits.reverse();
        self.children.shrink_to(FANOUT + 1);
        splits
    }

    /// Splits off the children from `cut` on.
    fn split_at(&mut self, cut: usize) -> Split {
        let children = self.children.split_off(cut);
        let keys = self.keys.split_off(cut);
        let key = self.keys.remove(cut - 1);
        Split { key, right: Node::Branch(Box::new(Branch { keys, children })) }
    }
}

/// Iterator over a range of a [`Tree`], in key order.
pub struct Range<'a, K, V> {
    /// Remaining children of each branch on the path from the root.
    ahead: Vec<Iter<'a, Arc<Node>>>,
    leaf: Option<&'a Leaf>,
    cursor: Cursor,
    end: Bound<KeyBytes>,
    entries: PhantomData<fn() -> (K, V)>,
}

impl<'a, K: Key, V: Value<K>> Range<'a, K, V> {
    /// Positions at the first entry at or below `node` that is `>= start`.
    fn descend(&mut self, mut node: &'a Arc<Node>, start: Bound<KeyBytes>) {
        loop {
            match &**node {
                Node::Leaf(leaf) => {
                    self.leaf = Some(leaf);
                    self.cursor = match &start {
                        Bound::Included(start) => Cursor::before(leaf, start),
                        Bound::Excluded(start) => Cursor::after(leaf, start),
                        Bound::Unbounded => Cursor::default(),
                    };
                    return;
                }
                Node::Branch(branch) => {
                    let at = match &start {
                        Bound::Included(start) | Bound::Excluded(start) => branch.child_of(start),
                        Bound::Unbounded => 0,
                    };
                    self.ahead.push(branch.children[at + 1..].iter());
                    node = &branch.children[at];
                }
            }
        }
    }

    fn advance(&mut self) -> Option<&'a [u8]> {
        loop {
            if let Some(value) = self.leaf.and_then(|leaf| self.cursor.advance(leaf)) {
                return Some(value);
            }
            match self.ahead.last_mut()?.next() {
                Some(node) => self.descend(node, Bound::Unbounded),
                None => {
                    self.ahead.pop();
                }
            }
        }
    }
}

impl<K: Key, V: Value<K>> Iterator for Range<'_, K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        let value = self.advance()?;
        let key = &self.cursor.key[..];
        let inside = match &self.end {
            Bound::Included(end) => key <= &end[..],
            Bound::Excluded(end) => key < &end[..],
            Bound::Unbounded => true,
        };
        if !inside {
            self.ahead.clear();
            self.leaf = None;
            return None;
        }
        Some(entry(key, value))
    }
}

#[cfg(test)]
mod tests;
