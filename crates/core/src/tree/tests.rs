use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

impl<K: Ord + Clone, V: Clone> Tree<K, V> {
    fn check(&self) {
        assert_eq!(self.iter().count(), self.len);
        check_node(&self.root, None, None, true);
    }
}

/// Checks the laws at and below `node`, whose keys are in `low..high`, and returns its depth.
fn check_node<K: Ord, V>(node: &Node<K, V>, low: Option<&K>, high: Option<&K>, root: bool) -> usize {
    match node {
        Node::Leaf(leaf) => {
            assert_eq!(leaf.keys.len(), leaf.values.len());
            assert!(root || !leaf.keys.is_empty());
            assert!(leaf.keys.len() <= FANOUT);
            assert!(leaf.keys.is_sorted_by(|a, b| a < b));
            assert!(leaf.keys.iter().all(|key| low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high)));
            0
        }
        Node::Branch(branch) => {
            assert_eq!(branch.keys.len() + 1, branch.children.len());
            assert!(branch.children.len() <= FANOUT);
            assert!(branch.children.len() >= if root { 2 } else { SPARSE });
            assert!(branch.keys.is_sorted_by(|a, b| a < b));
            let mut depths = branch.children.iter().enumerate().map(|(at, child)| {
                let low = if at == 0 { low } else { Some(&branch.keys[at - 1]) };
                check_node(child, low, branch.keys.get(at).or(high), false)
            });
            let depth = depths.next().expect("a branch has children");
            assert!(depths.all(|other| other == depth));
            depth + 1
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u8),
    /// So many keys in order from this one.
    Fill(u16, u16),
    Remove(u16),
    /// So many keys in order from this one.
    Clear(u16, u16),
    Change(u16, u8),
    Clone,
    Range(Bound<u16>, Bound<u16>),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..2000u16;
    let bound = prop_oneof![key.clone().prop_map(Bound::Included), key.clone().prop_map(Bound::Excluded), Just(Bound::Unbounded)];
    prop_oneof![
        4 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Op::Insert(key, value)),
        2 => (key.clone(), 0..300u16).prop_map(|(key, count)| Op::Fill(key, count)),
        4 => key.clone().prop_map(Op::Remove),
        2 => (key.clone(), 0..300u16).prop_map(|(key, count)| Op::Clear(key, count)),
        2 => (key, any::<u8>()).prop_map(|(key, value)| Op::Change(key, value)),
        1 => Just(Op::Clone),
        2 => (bound.clone(), bound).prop_map(|(from, to)| Op::Range(from, to)),
    ]
}

/// What BTreeMap would panic at is an empty range here.
fn range(map: &BTreeMap<u16, u8>, from: Bound<u16>, to: Bound<u16>) -> Vec<(u16, u8)> {
    map.iter().map(|(key, value)| (*key, *value)).filter(|(key, _)| (from, to).contains(key)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Whatever is done to a tree and its clones, each shows what a BTreeMap with the same
    /// history shows.
    #[test]
    fn a_tree_and_its_clones_are_maps(ops in prop::collection::vec(op(), 1..60)) {
        let mut tree = Tree::new();
        let mut map = BTreeMap::new();
        let mut clones: Vec<(Tree<u16, u8>, BTreeMap<u16, u8>)> = Vec::new();
        for op in ops {
            match op {
                Op::Insert(key, value) => prop_assert_eq!(tree.insert(key, value), map.insert(key, value)),
                Op::Fill(from, count) => for key in from..from + count {
                    prop_assert_eq!(tree.insert(key, 1), map.insert(key, 1));
                },
                Op::Remove(key) => prop_assert_eq!(tree.remove(&key), map.remove(&key)),
                Op::Clear(from, count) => for key in from..from + count {
                    prop_assert_eq!(tree.remove(&key), map.remove(&key));
                },
                Op::Change(key, value) => {
                    let mut found = tree.get_mut(&key);
                    prop_assert_eq!(&mut found, &mut map.get_mut(&key));
                    if let Some(found) = found {
                        *found = value;
                        map.insert(key, value);
                    }
                }
                Op::Clone => clones.push((tree.clone(), map.clone())),
                Op::Range(from, to) => {
                    let found: Vec<_> = tree.range((from, to)).map(|(key, value)| (*key, *value)).collect();
                    prop_assert_eq!(found, range(&map, from, to));
                }
            }
            prop_assert_eq!(tree.len(), map.len());
            prop_assert_eq!(tree.first(), map.first_key_value());
            prop_assert_eq!(tree.last(), map.last_key_value());
        }
        clones.push((tree, map));
        for (tree, map) in &clones {
            tree.check();
            prop_assert!(tree.iter().eq(map.iter()));
            prop_assert_eq!(tree.is_empty(), map.is_empty());
            for key in 0..2000 {
                prop_assert_eq!(tree.get(&key), map.get(&key));
                prop_assert_eq!(tree.contains_key(&key), map.contains_key(&key));
            }
        }
    }
}

/// A tree that was filled in order, as inode ids and directory streams are, does not
/// leave half-empty leaves behind.
#[test]
fn filling_in_order_fills_leaves() {
    let mut tree = Tree::new();
    for key in 0..FANOUT * 100 {
        tree.insert(key, ());
    }
    tree.check();
    assert_eq!(leaves(&tree.root), 100);
}

/// Emptied from either end, a tree keeps its laws and ends as a single leaf.
#[test]
fn a_tree_can_be_emptied_from_both_ends() {
    let full: Tree<usize, ()> = (0..5000).fold(Tree::new(), |mut tree, key| {
        tree.insert(key, ());
        tree
    });
    let (mut forward, mut backward) = (full.clone(), full.clone());
    for key in 0..5000 {
        assert!(forward.remove(&key).is_some());
        assert!(backward.remove(&(4999 - key)).is_some());
        if key % 97 == 0 {
            forward.check();
            backward.check();
        }
    }
    assert!(forward.is_empty() && backward.is_empty());
    assert_eq!((leaves(&forward.root), leaves(&backward.root)), (1, 1));
    full.check();
}

fn leaves<K, V>(node: &Node<K, V>) -> usize {
    match node {
        Node::Leaf(_) => 1,
        Node::Branch(branch) => branch.children.iter().map(|child| leaves(child)).sum(),
    }
}
