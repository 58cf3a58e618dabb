//! Removal, and how a node that has become sparse is refilled.

use super::{Branch, FANOUT, Node, SPARSE};
use std::sync::Arc;

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    pub(super) fn remove(node: &mut Arc<Node<K, V>>, key: &K) -> Option<V> {
        match Arc::make_mut(node) {
            Node::Leaf(leaf) => {
                let at = leaf.keys.binary_search(key).ok()?;
                leaf.keys.remove(at);
                Some(leaf.values.remove(at))
            }
            Node::Branch(branch) => {
                let at = branch.child_of(key);
                let old = Node::remove(&mut branch.children[at], key)?;
                branch.refill(at);
                Some(old)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.keys.len(),
            Node::Branch(branch) => branch.children.len(),
        }
    }
}

impl<K: Ord + Clone, V: Clone> Branch<K, V> {
    /// Merges the child at `at` with a neighbour, or shares entries with it, if it is sparse.
    fn refill(&mut self, at: usize) {
        if self.children[at].len() >= SPARSE {
            return;
        }
        let left_at = at.saturating_sub(1);
        let between = self.keys.remove(left_at);
        let right = self.children.remove(left_at + 1);
        let left = Arc::make_mut(&mut self.children[left_at]);
        left.append(between, Arc::unwrap_or_clone(right));
        if left.len() > FANOUT {
            let (key, right) = left.halve();
            self.keys.insert(left_at, key);
            self.children.insert(left_at + 1, Arc::new(right));
        }
    }
}

impl<K: Clone, V> Node<K, V> {
    /// Takes in all entries of the node to the right; `between` is the key that parted them.
    fn append(&mut self, between: K, right: Node<K, V>) {
        match (self, right) {
            (Node::Leaf(leaf), Node::Leaf(right)) => {
                leaf.keys.extend(right.keys);
                leaf.values.extend(right.values);
            }
            (Node::Branch(branch), Node::Branch(right)) => {
                branch.keys.push(between);
                branch.keys.extend(right.keys);
                branch.children.extend(right.children);
            }
            _ => unreachable!("neighbours are at the same depth"),
        }
    }

    /// Gives away the upper half; the key parts the two.
    fn halve(&mut self) -> (K, Node<K, V>) {
        match self {
            Node::Leaf(leaf) => {
                let cut = leaf.keys.len() / 2;
                let right = leaf.split_off(cut);
                (right.keys[0].clone(), Node::Leaf(right))
            }
            Node::Branch(branch) => {
                let cut = branch.children.len() / 2;
                let children = branch.children.split_off(cut);
                let keys = branch.keys.split_off(cut);
                let key = branch.keys.pop().expect("a branch has a key between two children");
                (key, Node::Branch(Branch { keys, children }))
            }
        }
    }
}
