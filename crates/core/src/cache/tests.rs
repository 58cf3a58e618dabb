use super::*;
use proptest::prelude::*;

const KEY: fn(u64) -> Key = |chunk| (Ino(1), chunk);

/// A working set is used; then a file of ten times the cache is read once, in many requests per
/// chunk, with occasional uses of the working set. Returns the number of its 50 chunks that
/// survive.
fn kept_by_a_scan(eviction: Eviction) -> usize {
    let mut cache = Cache::new(eviction, 0);
    for chunk in 0..500 {
        cache.insert(KEY(chunk % 50), 10);
        cache.touch(KEY(chunk % 50));
    }
    for chunk in 0..1000 {
        cache.insert((Ino(2), chunk), 10);
        for _ in 0..20 {
            cache.touch((Ino(2), chunk));
        }
        if chunk % 200 < 50 {
            cache.touch(KEY(chunk % 50));
        }
        if cache.bytes() > 1000 {
            cache.victims(cache.bytes() - 1000);
        }
    }
    assert!(cache.bytes() <= 1000);
    (0..50).filter(|&chunk| cache.entries.contains_key(&KEY(chunk))).count()
}

/// The scan must not evict the working set. This is the purpose of S3-FIFO: LRU keeps none of it.
#[test]
fn a_scan_evicts_itself() {
    assert_eq!(kept_by_a_scan(Eviction::S3Fifo), 50);
    assert_eq!(kept_by_a_scan(Eviction::Lru), 0);
}

/// A cache of a few chunks, one of which is used repeatedly. Each chunk of a scan arrives in parts
/// and is read while the next one is read ahead. Danger: its own reader seems to use it again.
#[test]
fn a_scan_of_a_small_cache_evicts_itself() {
    let mut cache = Cache::new(Eviction::S3Fifo, 32);
    cache.insert(KEY(0), 16);
    cache.prefer(KEY(0));
    for at in 16..160 {
        let scanned = |at: u64| (Ino(2), at / 16);
        cache.insert(scanned(at), at % 16 + 1);
        cache.touch(scanned(at - 8));
        if cache.bytes() > 64 {
            cache.victims(cache.bytes() - 64);
        }
    }
    assert!(cache.entries.contains_key(&KEY(0)));
}

/// Under LRU only the last use counts.
#[test]
fn lru_evicts_by_last_use() {
    let mut cache = Cache::new(Eviction::Lru, 0);
    for chunk in 0..5 {
        cache.insert(KEY(chunk), 1);
    }
    for chunk in [3, 0, 3, 1] {
        cache.touch(KEY(chunk));
    }
    cache.insert(KEY(0), 2);
    assert_eq!(cache.victims(u64::MAX), [2, 4, 0, 3, 1].map(KEY));
}

/// The cache is full of chunks that were read once, or warmed and not used. A warmed chunk must
/// survive its arrival and the next scan.
#[test]
fn warmed_chunk_survives_arrival_and_next_scan() {
    for eviction in [Eviction::S3Fifo, Eviction::Lru] {
        let mut cache = Cache::new(eviction, 0);
        let room = |cache: &mut Cache| {
            if cache.bytes() > 1000 {
                cache.victims(cache.bytes() - 1000);
            }
        };
        for chunk in 0..100 {
            cache.insert((Ino(2), chunk), 10);
            if chunk % 2 == 0 {
                cache.prefer((Ino(2), chunk));
            }
        }
        for chunk in 0..80 {
            cache.insert(KEY(chunk), 10);
            room(&mut cache);
            cache.prefer(KEY(chunk));
        }
        let kept = |cache: &Cache| {
            (0..80).filter(|&chunk| cache.entries.contains_key(&KEY(chunk))).count()
        };
        assert_eq!(kept(&cache), 80, "{eviction:?}");
        if eviction == Eviction::S3Fifo {
            for chunk in 100..1100 {
                cache.insert((Ino(2), chunk), 10);
                room(&mut cache);
            }
            assert_eq!(kept(&cache), 80);
        }
    }
}

/// An evicted chunk that returns soon outlives new chunks.
#[test]
fn evicted_chunk_that_returns_outlives_new_chunks() {
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
    Prefer(u64),
    RemoveChunk(u64),
    Remove,
    Victims(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12u64, 0..20u64).prop_map(|(chunk, bytes)| Step::Insert(chunk, bytes)),
        2 => (0..12u64).prop_map(Step::Touch),
        1 => (0..12u64).prop_map(Step::Prefer),
        1 => (0..12u64).prop_map(Step::RemoveChunk),
        1 => Just(Step::Remove),
        2 => (0..40u64).prop_map(Step::Victims),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Both policies compared with a map of weights. Victims are chunks of the cache with at least
    /// the requested bytes, unless nothing is left, and no other chunk leaves.
    #[test]
    fn victims_match_the_model(lru: bool, steps in prop::collection::vec(step(), 1..80)) {
        let mut cache = Cache::new(if lru { Eviction::Lru } else { Eviction::S3Fifo }, 0);
        let mut model = BTreeMap::<Key, u64>::new();
        let key = |chunk: u64| (Ino(chunk % 2), chunk);
        for step in steps {
            match step {
                Step::Insert(chunk, bytes) => {
                    cache.insert(key(chunk), bytes);
                    model.insert(key(chunk), bytes);
                }
                Step::Touch(chunk) => cache.touch(key(chunk)),
                Step::Prefer(chunk) => cache.prefer(key(chunk)),
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
                        prop_assert!(freed < bytes, "more than requested");
                        freed += model.remove(&key).expect("a victim is in the cache");
                    }
                    prop_assert!(freed >= bytes || model.is_empty());
                    prop_assert!(cache.ghost.bytes <= cache.bytes());
                }
            }
            prop_assert_eq!(cache.check(), Vec::<String>::new());
            prop_assert_eq!(cache.bytes(), model.values().sum::<u64>());
            prop_assert_eq!(cache.entries.keys().collect::<Vec<_>>(), model.keys().collect::<Vec<_>>());
        }
    }
}
