//! Removal, and refilling of sparse nodes.

use super::separators::Separators;
use super::{Branch, Node, SPARSE, Split};
use std::sync::Arc;

impl Node {
    /// Removes a key and passes its value to `old`. `bytes` are those of all nodes.
    pub(super) fn remove<T>(
        node: &mut Arc<Node>,
        key: &[u8],
        old: impl FnOnce(&[u8]) -> T,
        bytes: &mut usize,
    ) -> Option<T> {
        *bytes -= node.bytes();
        let node = Arc::make_mut(node);
        let removed = match node {
            Node::Leaf(leaf) => leaf.remove(key, old),
            Node::Branch(branch) => {
                let at = branch.child_of(key);
                let removed = Node::remove(&mut branch.children[at], key, old, bytes);
                if removed.is_some() {
                    branch.refill(at, bytes);
                }
                removed
            }
        };
        *bytes += node.bytes();
        removed
    }

    fn is_sparse(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.is_sparse(),
            Node::Branch(branch) => branch.children.len() < SPARSE,
        }
    }
}

impl Branch {
    /// Merges a sparse child at `at` with a neighbour, or balances the two.
    fn refill(&mut self, at: usize, bytes: &mut usize) {
        if !self.children[at].is_sparse() {
            return;
        }
        let left_at = at.saturating_sub(1);
        let between = self.keys.remove(left_at);
        let right = self.children.remove(left_at + 1);
        *bytes -= self.children[left_at].bytes() + right.bytes();
        let left = Arc::make_mut(&mut self.children[left_at]);
        if let Some(Split { key, right }) = left.append(&between, Arc::unwrap_or_clone(right)) {
            *bytes += right.bytes();
            self.keys.insert(left_at, &key);
            self.children.insert(left_at + 1, Arc::new(right));
        }
        *bytes += self.children[left_at].bytes();
    }
}

impl Node {
    /// Appends all entries of the node to the right; `between` is their separator. Splits the
    /// result if it is too large.
    fn append(&mut self, between: &[u8], right: Node) -> Option<Split> {
        match (self, right) {
            (Node::Leaf(leaf), Node::Leaf(right)) => {
                leaf.append(&right);
                leaf.is_too_large()
                    .then(|| leaf.split(false))
                    .map(|(key, right)| Split { key, right: Node::Leaf(right) })
            }
            (Node::Branch(branch), Node::Branch(right)) => {
                branch.keys.append(&Separators::one(between));
                branch.keys.append(&right.keys);
                branch.children.extend(right.children);
                branch.split().pop()
            }
            _ => unreachable!("neighbours are at the same depth"),
        }
    }
}
