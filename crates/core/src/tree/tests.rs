use super::leaf::{MAX_BYTES, MAX_ENTRIES};
use super::*;
use ebb_model::{Ino, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;

impl<K: Key + Ord, V: Value<K>> Tree<K, V> {
    fn check(&self) {
        assert_eq!(self.iter().count(), self.len);
        assert!(self.iter().is_sorted_by(|(a, _), (b, _)| a < b));
        check_node(&self.root, None, None, true);
        assert_eq!(self.bytes(), bytes_below(&self.root));
        assert!(self.is_recent_so());
    }
}

fn bytes_below(node: &Node) -> usize {
    match node {
        Node::Leaf(_) => node.bytes(),
        Node::Branch(branch) => {
            node.bytes() + branch.children.iter().map(|child| bytes_below(child)).sum::<usize>()
        }
    }
}

/// Checks the laws at and below `node`, with keys in `low..high`, and returns its depth.
fn check_node(node: &Node, low: Option<&[u8]>, high: Option<&[u8]>, root: bool) -> usize {
    match node {
        Node::Leaf(leaf) => {
            let mut cursor = Cursor::default();
            let mut keys = Vec::new();
            while cursor.advance(leaf).is_some() {
                keys.push(cursor.key.clone());
            }
            assert_eq!(keys.len(), leaf.len());
            assert!(root || !keys.is_empty());
            assert!(keys.len() <= MAX_ENTRIES);
            assert!(keys.is_sorted_by(|a, b| a < b));
            assert!(keys.iter().all(|key| low.is_none_or(|low| low <= &key[..])
                && high.is_none_or(|high| &key[..] < high)));
            0
        }
        Node::Branch(branch) => {
            assert_eq!(branch.keys.len() + 1, branch.children.len());
            assert!(branch.children.len() <= FANOUT);
            assert!(branch.children.len() >= if root { 2 } else { SPARSE });
            let keys: Vec<&[u8]> = (0..branch.keys.len()).map(|at| branch.keys.get(at)).collect();
            assert!(keys.is_sorted_by(|a, b| a < b));
            let mut depths = branch.children.iter().enumerate().map(|(at, child)| {
                let low = if at == 0 { low } else { Some(keys[at - 1]) };
                check_node(child, low, keys.get(at).copied().or(high), false)
            });
            let depth = depths.next().expect("a branch has children");
            assert!(depths.all(|other| other == depth));
            depth + 1
        }
    }
}

/// Keys with common prefixes, and values of all sizes.
type Entries = (Tree<String, Option<String>>, BTreeMap<String, Option<String>>);

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, usize),
    /// This many consecutive keys from this one on.
    Fill(u16, u16, usize),
    /// The same number at once, with this distance between two.
    Extend(u16, u16, u16, usize),
    Remove(u16),
    /// This many consecutive keys from this one on.
    Clear(u16, u16),
    Change(u16, usize),
    Get(u16),
    Clone,
    Range(Bound<u16>, Bound<u16>),
    Below(u16),
}

fn op() -> impl Strategy<Value = Op> {
    // Some keys are drawn repeatedly.
    let key = prop_oneof![2 => 0..2000u16, 1 => 7..11u16].boxed();
    let bound = prop_oneof![
        key.clone().prop_map(Bound::Included),
        key.clone().prop_map(Bound::Excluded),
        Just(Bound::Unbounded)
    ];
    let size = prop_oneof![8 => 0..100usize, 2 => 100..300usize, 1 => MAX_BYTES - 30..MAX_BYTES + 30, 1 => Just(4 * MAX_BYTES)];
    prop_oneof![
        4 => (key.clone(), size.clone()).prop_map(|(key, size)| Op::Insert(key, size)),
        2 => (key.clone(), 0..300u16, 0..100usize).prop_map(|(key, count, size)| Op::Fill(key, count, size)),
        2 => (key.clone(), 0..2000u16, 1..40u16, size.clone()).prop_map(|(key, count, step, size)| Op::Extend(key, count / step, step, size)),
        4 => key.clone().prop_map(Op::Remove),
        2 => (key.clone(), 0..300u16).prop_map(|(key, count)| Op::Clear(key, count)),
        2 => (key.clone(), size).prop_map(|(key, size)| Op::Change(key, size)),
        4 => key.clone().prop_map(Op::Get),
        1 => Just(Op::Clone),
        2 => (bound.clone(), bound).prop_map(|(from, to)| Op::Range(from, to)),
        2 => key.prop_map(Op::Below),
    ]
}

/// "" and "1" are prefixes of "11"; every seventh key is long.
fn key(number: u16) -> String {
    match number % 7 {
        0 => format!("{}/{number}", "long ".repeat(usize::from(number % 50))),
        _ => number.to_string().trim_start_matches('2').into(),
    }
}

fn value(size: usize) -> Option<String> {
    (size > 0).then(|| "v".repeat(size))
}

/// Ranges at which BTreeMap panics are empty here.
fn range(
    map: &BTreeMap<String, Option<String>>,
    bounds: (Bound<String>, Bound<String>),
) -> Vec<(String, Option<String>)> {
    map.iter()
        .filter(|(key, _)| bounds.contains(*key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn own<K: Clone, V: Clone>(entry: Option<(&K, &V)>) -> Option<(K, V)> {
    entry.map(|(key, value)| (key.clone(), value.clone()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// After any operations on a tree and its clones, each equals a BTreeMap with the same history.
    #[test]
    fn a_tree_and_its_clones_are_maps(ops in prop::collection::vec(op(), 1..60)) {
        let (mut tree, mut map): Entries = Default::default();
        let mut clones: Vec<Entries> = Vec::new();
        for op in ops {
            match op {
                Op::Insert(number, size) => {
                    prop_assert_eq!(tree.insert(&key(number), &value(size)), map.insert(key(number), value(size)).is_none());
                }
                Op::Fill(from, count, size) => for number in from..from + count {
                    prop_assert_eq!(tree.insert(&key(number), &value(size)), map.insert(key(number), value(size)).is_none());
                },
                Op::Extend(from, count, step, size) => {
                    let entries: BTreeMap<_, _> = (0..count).map(|at| (key(from + at * step), value(size))).collect();
                    tree.extend(entries.clone());
                    map.extend(entries);
                }
                Op::Remove(number) => prop_assert_eq!(tree.remove(&key(number)), map.remove(&key(number))),
                Op::Clear(from, count) => for number in from..from + count {
                    prop_assert_eq!(tree.remove(&key(number)), map.remove(&key(number)));
                },
                Op::Change(number, size) => {
                    let changed = tree.change(&key(number), |found| std::mem::replace(found, value(size)));
                    let expected = map.get_mut(&key(number)).map(|found| std::mem::replace(found, value(size)));
                    prop_assert_eq!(changed, expected);
                }
                Op::Get(number) => prop_assert_eq!(tree.get(&key(number)), map.get(&key(number)).cloned()),
                Op::Clone => clones.push((tree.clone(), map.clone())),
                Op::Range(from, to) => {
                    let bounds = (from.map(key), to.map(key));
                    let found: Vec<_> = tree.range(bounds.clone()).collect();
                    prop_assert_eq!(found, range(&map, bounds));
                }
                Op::Below(end) => {
                    let mut below = range(&map, (Bound::Unbounded, Bound::Excluded(key(end))));
                    below.reverse();
                    prop_assert_eq!(tree.below(key(end)).collect::<Vec<_>>(), below);
                }
            }
            assert!(tree.is_recent_so());
            prop_assert_eq!(tree.bytes(), bytes_below(&tree.root));
            prop_assert_eq!(tree.len(), map.len());
            prop_assert_eq!(tree.first(), own(map.first_key_value()));
            prop_assert_eq!(tree.last(), own(map.last_key_value()));
        }
        clones.push((tree, map));
        for (tree, map) in &clones {
            tree.check();
            prop_assert!(tree.iter().eq(map.iter().map(|(key, value)| (key.clone(), value.clone()))));
            prop_assert_eq!(tree.is_empty(), map.is_empty());
            for number in 0..2000 {
                let key = key(number);
                prop_assert_eq!(tree.get(&key), map.get(&key).cloned());
                prop_assert_eq!(tree.contains_key(&key), map.contains_key(&key));
            }
        }
    }

    /// Packed keys sort like the keys and unpack to them.
    #[test]
    fn packed_keys_have_the_order_of_keys(
        one in (any::<i64>(), 0..1_000_000_000u32, any::<bool>(), any::<u64>(), 0..64),
        other in (any::<i64>(), 0..1_000_000_000u32, any::<bool>(), any::<u64>(), 0..64),
    ) {
        let turn = |(secs, nanos, flag, ino, _)| (Time { secs, nanos }, flag, Ino(ino));
        let (a, b) = (turn(one), turn(other));
        prop_assert_eq!(packed(&a).cmp(&packed(&b)), a.cmp(&b));
        prop_assert_eq!(<(Time, bool, Ino)>::unpack(&packed(&a)), a);
        let block = |(_, _, _, ino, shift): (i64, u32, bool, u64, i32)| (Ino(ino % 3), ino >> shift);
        let (a, b) = (block(one), block(other));
        prop_assert_eq!(packed(&a).cmp(&packed(&b)), a.cmp(&b));
        prop_assert_eq!(<(Ino, u64)>::unpack(&packed(&a)), a);
    }
}

/// A tree filled in order, like inode ids and directory streams, has no half-empty leaves.
#[test]
fn filling_in_order_fills_leaves() {
    let mut tree = Tree::new();
    for key in 0..MAX_ENTRIES as u64 * 100 {
        tree.insert(&key, &());
    }
    tree.check();
    assert_eq!(leaves(&tree.root), 100);
    let at_once = (0..10).fold(Tree::new(), |mut tree, part| {
        let entries = MAX_ENTRIES as u64 * 10;
        tree.extend((part * entries..(part + 1) * entries).map(|key| (key, ())));
        tree
    });
    at_once.check();
    assert_eq!(leaves(&at_once.root), 100);
}

/// A tree filled in batches of scattered keys, like hashes of names, has leaves that are full
/// enough.
#[test]
fn scattered_insertions_keep_leaves_full_enough() {
    let mut tree = Tree::new();
    for part in 0..50 {
        tree.extend(
            (part * 1000..(part + 1) * 1000u64)
                .map(|number| (Ino(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), ())),
        );
        tree.check();
    }
    let (entries, leaves) = (tree.len(), leaves(&tree.root));
    assert!(leaves * MAX_ENTRIES * 6 / 10 <= entries, "{entries} in {leaves}");
}

/// As many keys as a directory can have, at once.
#[test]
fn many_at_once_are_spread_over_branches() {
    let mut tree: Tree<Ino, ()> =
        (0..3).map(|number| (Ino(number << 40), ())).fold(Tree::new(), |mut tree, (key, value)| {
            tree.insert(&key, &value);
            tree
        });
    tree.extend((1..200_000).map(|number| (Ino(number), ())));
    tree.check();
    assert_eq!(tree.len(), 200_002);
}

/// Emptied from either end, a tree keeps its laws and ends as a single leaf.
#[test]
fn a_tree_can_be_emptied_from_both_ends() {
    let full: Tree<u64, ()> = (0..5000).fold(Tree::new(), |mut tree, key| {
        tree.insert(&key, &());
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

fn leaves(node: &Node) -> usize {
    match node {
        Node::Leaf(_) => 1,
        Node::Branch(branch) => branch.children.iter().map(|child| leaves(child)).sum(),
    }
}
