//! An ordered map whose clone is O(1) and unaffected by later writes: this is how a
//! partition is snapshotted while it goes on (C-12).
//!
//! A B+tree of shared nodes; a write copies those nodes on its path that a clone still
//! shares. Laws:
//! - All leaves are at the same depth; no node but the root is empty.
//! - `Branch::keys[i]` is above every key in `children[i]` and not above any in
//!   `children[i + 1]`.
//! - No node has more than [`FANOUT`] entries; branches have two at least, and below the
//!   root [`SPARSE`]. Leaves have no lower limit, so that filling in order leaves full
//!   leaves behind; a removal refills what it made sparse.

mod remove;

use std::cmp::Ordering;
use std::iter::Zip;
use std::ops::{Bound, RangeBounds};
use std::slice::Iter;
use std::sync::Arc;

/// Entries of a node. Twice as many save little memory and double what the first write
/// after a snapshot copies.
const FANOUT: usize = 32;

/// A node left with fewer entries by a removal is merged with or filled from a neighbour.
/// Leaves also grow by so many at a time: they hold most of the memory.
const SPARSE: usize = FANOUT / 4;

#[derive(Clone)]
pub struct Tree<K, V> {
    root: Arc<Node<K, V>>,
    len: usize,
}

#[derive(Clone)]
enum Node<K, V> {
    Leaf(Leaf<K, V>),
    Branch(Branch<K, V>),
}

#[derive(Clone)]
struct Leaf<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
}

#[derive(Clone)]
struct Branch<K, V> {
    keys: Vec<K>,
    children: Vec<Arc<Node<K, V>>>,
}

/// The right half of a node that was split, and the lowest key in it.
struct Split<K, V> {
    key: K,
    right: Arc<Node<K, V>>,
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Tree { root: Arc::new(Node::Leaf(Leaf { keys: Vec::new(), values: Vec::new() })), len: 0 }
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

    /// The value of the key that `order` calls `Equal`; `order` says how a key compares to
    /// the one sought, and spares the caller building a key that owns its parts.
    pub fn find(&self, order: impl Fn(&K) -> Ordering) -> Option<&V> {
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => return leaf.keys.binary_search_by(order).ok().map(|at| &leaf.values[at]),
                Node::Branch(branch) => node = &branch.children[branch.keys.partition_point(|key| order(key).is_le())],
            }
        }
    }

    pub fn first(&self) -> Option<(&K, &V)> {
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => return leaf.keys.first().zip(leaf.values.first()),
                Node::Branch(branch) => node = branch.children.first()?,
            }
        }
    }

    pub fn last(&self) -> Option<(&K, &V)> {
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => return leaf.keys.last().zip(leaf.values.last()),
                Node::Branch(branch) => node = branch.children.last()?,
            }
        }
    }
}

impl<K: Ord + Clone, V: Clone> Tree<K, V> {
    pub fn get(&self, key: &K) -> Option<&V> {
        self.find(|other| other.cmp(key))
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let mut node = &mut self.root;
        loop {
            match Arc::make_mut(node) {
                Node::Leaf(leaf) => return leaf.keys.binary_search(key).ok().map(|at| &mut leaf.values[at]),
                Node::Branch(branch) => {
                    let at = branch.child_of(key);
                    node = &mut branch.children[at];
                }
            }
        }
    }

    /// The value that the key had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (old, split) = Node::insert(&mut self.root, key, value);
        if let Some(Split { key, right }) = split {
            let left = Arc::clone(&self.root);
            self.root = Arc::new(Node::Branch(Branch { keys: vec![key], children: vec![left, right] }));
        }
        self.len += usize::from(old.is_none());
        old
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let old = Node::remove(&mut self.root, key)?;
        self.len -= 1;
        if let Node::Branch(branch) = &*self.root
            && let [only] = &branch.children[..]
        {
            self.root = Arc::clone(only);
        }
        Some(old)
    }

    pub fn iter(&self) -> Range<'_, K, V> {
        self.range(..)
    }

    /// In the order of the keys. Bounds that contain nothing give nothing.
    pub fn range(&self, bounds: impl RangeBounds<K>) -> Range<'_, K, V> {
        let mut range = Range { ahead: Vec::new(), leaf: [].iter().zip(&[]), end: bounds.end_bound().cloned() };
        range.descend(&self.root, bounds.start_bound());
        range
    }
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    fn insert(node: &mut Arc<Node<K, V>>, key: K, value: V) -> (Option<V>, Option<Split<K, V>>) {
        match Arc::make_mut(node) {
            Node::Leaf(leaf) => match leaf.keys.binary_search(&key) {
                Ok(at) => (Some(std::mem::replace(&mut leaf.values[at], value)), None),
                Err(at) => (None, leaf.add(at, key, value)),
            },
            Node::Branch(branch) => {
                let at = branch.child_of(&key);
                let (old, split) = Node::insert(&mut branch.children[at], key, value);
                (old, split.and_then(|split| branch.add(at, split)))
            }
        }
    }
}

impl<K: Clone, V> Leaf<K, V> {
    fn add(&mut self, at: usize, key: K, value: V) -> Option<Split<K, V>> {
        let len = self.keys.len();
        if len < FANOUT {
            self.put(at, key, value);
            return None;
        }
        let cut = if at == len { len } else { len / 2 };
        let mut right = self.split_off(cut);
        if at < cut {
            self.put(at, key, value);
        } else {
            right.put(at - cut, key, value);
        }
        Some(Split { key: right.keys[0].clone(), right: Arc::new(Node::Leaf(right)) })
    }

    fn put(&mut self, at: usize, key: K, value: V) {
        if self.keys.len() == self.keys.capacity() {
            self.keys.reserve_exact(SPARSE);
            self.values.reserve_exact(SPARSE);
        }
        self.keys.insert(at, key);
        self.values.insert(at, value);
    }

    /// Gives away the upper entries, and the room that is left to what they took.
    fn split_off(&mut self, cut: usize) -> Leaf<K, V> {
        let right = Leaf { keys: self.keys.split_off(cut), values: self.values.split_off(cut) };
        self.keys.shrink_to_fit();
        self.values.shrink_to_fit();
        right
    }
}

impl<K: Ord, V> Branch<K, V> {
    /// The position of the child that holds `key` if any does.
    fn child_of(&self, key: &K) -> usize {
        self.keys.partition_point(|other| other <= key)
    }

    /// Takes in the right half of the child at `at`.
    fn add(&mut self, at: usize, split: Split<K, V>) -> Option<Split<K, V>> {
        self.keys.insert(at, split.key);
        self.children.insert(at + 1, split.right);
        if self.children.len() <= FANOUT {
            return None;
        }
        let cut = self.children.len() / 2;
        let children = self.children.split_off(cut);
        let keys = self.keys.split_off(cut);
        let key = self.keys.pop().expect("a branch has a key between two children");
        Some(Split { key, right: Arc::new(Node::Branch(Branch { keys, children })) })
    }
}

/// Iterator over a part of a [`Tree`], in the order of the keys.
pub struct Range<'a, K, V> {
    /// Children to come, of each branch on the path from the root.
    ahead: Vec<Iter<'a, Arc<Node<K, V>>>>,
    leaf: Zip<Iter<'a, K>, Iter<'a, V>>,
    end: Bound<K>,
}

impl<'a, K: Ord, V> Range<'a, K, V> {
    /// Goes to the first entry at or below `node` that is not before `start`.
    fn descend(&mut self, mut node: &'a Arc<Node<K, V>>, start: Bound<&K>) {
        loop {
            match &**node {
                Node::Leaf(leaf) => {
                    let at = match start {
                        Bound::Included(start) => leaf.keys.partition_point(|key| key < start),
                        Bound::Excluded(start) => leaf.keys.partition_point(|key| key <= start),
                        Bound::Unbounded => 0,
                    };
                    self.leaf = leaf.keys[at..].iter().zip(&leaf.values[at..]);
                    return;
                }
                Node::Branch(branch) => {
                    let at = match start {
                        Bound::Included(start) | Bound::Excluded(start) => branch.child_of(start),
                        Bound::Unbounded => 0,
                    };
                    self.ahead.push(branch.children[at + 1..].iter());
                    node = &branch.children[at];
                }
            }
        }
    }

    fn advance(&mut self) -> Option<(&'a K, &'a V)> {
        loop {
            if let Some(entry) = self.leaf.next() {
                return Some(entry);
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

impl<'a, K: Ord, V> Iterator for Range<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.advance()?;
        let inside = match &self.end {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        };
        if !inside {
            self.ahead.clear();
            self.leaf = [].iter().zip(&[]);
            return None;
        }
        Some((key, value))
    }
}

#[cfg(test)]
mod tests;
