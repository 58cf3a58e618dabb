use super::*;
use proptest::prelude::*;

const KEY: fn(u64) -> Key = |chunk| (Ino(1), chunk);

/// A working set is used again and again while a file ten times as large as the cache is
/// read once, in many requests per chunk. The scan must not evict the working set.
#[test]
fn a_scan_evicts_itself() {
    let mut cache = Cache::default();
    let room = |cache: &mut Cache| {
        if cache.bytes() > 1000 {
            cache.victims(cache.bytes() - 1000);
        }
    };
    for chunk in 0..500 {
        cache.insert(KEY(chunk % 50), 10);
        cache.touch(KEY(chunk % 50));
    }
    for chunk in 0..1000 {
        cache.insert((Ino(2), chunk), 10);
        for _ in 0..20 {
            cache.touch((Ino(2), chunk));
        }
        cache.touch(KEY(chunk % 50));
        room(&mut cache);
    }
    let kept = (0..50).filter(|&chunk| cache.entries.contains_key(&KEY(chunk))).count();
    assert_eq!(kept, 50, "of the working set's 50 chunks");
    assert!(cache.bytes() <= 1000);
}

/// A chunk that was evicted comes back soon: it is not new, and outlives what is.
#[test]
fn what_comes_back_is_kept() {
    let mut cache = Cache::default();
    for chunk in 0..100 {
        cache.insert(KEY(chunk), 1);
    }
    assert_eq!(cache.victims(10), (0..10).map(KEY).collect::<Vec<_>>());
    cache.insert(KEY(3), 1);
    let next = cache.victims(50);
    assert!(!next.contains(&KEY(3)) && next.len() == 50);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Touch(u64),
    Pin(u64),
    Unpin(u64),
    RemoveChunk(u64),
    Remove,
    Victims(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12u64, 0..20u64).prop_map(|(chunk, bytes)| Step::Insert(chunk, bytes)),
        2 => (0..12u64).prop_map(Step::Touch),
        1 => (0..12u64).prop_map(Step::Pin),
        1 => (0..12u64).prop_map(Step::Unpin),
        1 => (0..12u64).prop_map(Step::RemoveChunk),
        1 => Just(Step::Remove),
        2 => (0..40u64).prop_map(Step::Victims),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Beside the cache goes a plain map of weights and pins: victims are what is in it and
    /// not pinned, they are as many bytes as were asked for unless only pinned ones are
    /// left, and nothing else leaves.
    #[test]
    fn victims_are_what_may_go(steps in prop::collection::vec(step(), 1..80)) {
        let mut cache = Cache::default();
        let mut model = BTreeMap::<Key, (u64, u32)>::new();
        let key = |chunk: u64| (Ino(chunk % 2), chunk);
        for step in steps {
            match step {
                Step::Insert(chunk, bytes) => {
                    cache.insert(key(chunk), bytes);
                    model.entry(key(chunk)).or_default().0 = bytes;
                }
                Step::Touch(chunk) => cache.touch(key(chunk)),
                Step::Pin(chunk) => {
                    let pinned = model.get_mut(&key(chunk)).map(|entry| entry.1 += 1);
                    prop_assert_eq!(cache.pin(key(chunk)), pinned.is_some());
                }
                Step::Unpin(chunk) => {
                    cache.unpin(key(chunk));
                    if let Some(entry) = model.get_mut(&key(chunk)) {
                        entry.1 = entry.1.saturating_sub(1);
                    }
                }
                Step::RemoveChunk(chunk) => {
                    cache.remove_chunk(key(chunk));
                    model.remove(&key(chunk));
                }
                Step::Remove => {
                    cache.remove(Ino(1));
                    model.retain(|key, _| key.0 != Ino(1));
                    prop_assert!(cache.ghost.keys.keys().all(|key| key.0 != Ino(1)));
                }
                Step::Victims(bytes) => {
                    let mut freed = 0;
                    for key in cache.victims(bytes) {
                        prop_assert!(freed < bytes, "more than asked for");
                        let (weight, pins) = model.remove(&key).expect("a victim is in the cache");
                        prop_assert_eq!(pins, 0);
                        freed += weight;
                    }
                    prop_assert!(freed >= bytes || model.values().all(|entry| entry.1 > 0));
                    prop_assert!(cache.ghost.bytes <= cache.bytes());
                }
            }
            prop_assert_eq!(cache.check(), Vec::<String>::new());
            prop_assert_eq!(cache.bytes(), model.values().map(|entry| entry.0).sum::<u64>());
            prop_assert_eq!(cache.entries.keys().collect::<Vec<_>>(), model.keys().collect::<Vec<_>>());
        }
    }
}
