//! Listings against a naive model: all keys of all buckets in one sorted set.

use super::*;
use ebb_ports::{ListEntry, ListRequest};
use proptest::prelude::*;
use std::collections::BTreeSet;

const DIRS: [&str; 3] = ["b", "b!", "bb"];

fn pieces() -> impl Strategy<Value = String> {
    let piece =
        prop::sample::select(vec!["b", "bb", "b!", "a", "/", "/", ".ebb", "!", "z", "\u{10FFFF}"]);
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// The port's rules for listings, over one set of keys.
fn expected(
    keys: &BTreeSet<String>,
    prefix: &str,
    by_directory: bool,
    after: Option<&str>,
) -> Vec<String> {
    let under = keys.iter().filter(|key| key.starts_with(prefix));
    let shown = under.map(|key| match key[prefix.len()..].find('/').filter(|_| by_directory) {
        Some(at) => key[..prefix.len() + at + 1].to_owned(),
        None => key.clone(),
    });
    let shown: BTreeSet<String> =
        shown.filter(|key| after.is_none_or(|after| key.as_str() > after)).collect();
    shown.into_iter().collect()
}

proptest! {
    #[test]
    fn pages_are_those_of_one_bucket(
        root in prop::collection::btree_set(pieces(), 0..12),
        below in prop::collection::vec(prop::collection::btree_set(pieces(), 0..8), 3),
        (prefix, after, by_directory, limit) in (pieces(), prop::option::of(pieces()), any::<bool>(), 1usize..5),
    ) {
        let world = world(&DIRS);
        let mut keys: BTreeSet<String> = DIRS.iter().map(|dir| format!("{dir}/")).collect();
        for key in root.iter().filter(|key| !key.is_empty()) {
            put(&world.root, key, "");
            if !DIRS.iter().any(|dir| key.starts_with(&format!("{dir}/"))) {
                keys.insert(key.clone());
            }
        }
        for ((dir, bucket), below) in DIRS.iter().zip(&world.members).zip(&below) {
            for key in below.iter().filter(|key| !key.is_empty()) {
                put(bucket, key, "");
                if key != ".ebb" && !key.starts_with(".ebb/") {
                    keys.insert(format!("{dir}/{key}"));
                }
            }
        }
        let expected = expected(&keys, &prefix, by_directory, after.as_deref());
        let mut found: Vec<String> = Vec::new();
        let mut from = after.clone();
        loop {
            let request = ListRequest { prefix: prefix.clone(), by_directory, after: from.clone(), limit };
            let page = now(world.all.list(request)).unwrap();
            prop_assert!(page.entries.len() <= limit);
            prop_assert!(!page.more || !page.entries.is_empty());
            for entry in &page.entries {
                let is_prefix = matches!(entry, ListEntry::Prefix { .. });
                let rest = &entry.key()[prefix.len()..];
                prop_assert_eq!(is_prefix, by_directory && rest.contains('/'));
            }
            found.extend(page.entries.iter().map(|entry| entry.key().to_owned()));
            from = found.last().cloned();
            if !page.more {
                break;
            }
        }
        prop_assert_eq!(found, expected);
    }
}

/// Situation: the root bucket has 5,000 keys below a member's directory. Expectation: they
/// cost one request, not one for each page.
#[test]
fn listing_skips_hidden_keys_in_one_request() {
    let world = world(&["m"]);
    for index in 0..5000 {
        put(&world.root, &format!("m/{index}"), "");
    }
    put(&world.root, "z", "");
    let page = now(world.all.list(ListRequest {
        prefix: "".into(),
        by_directory: false,
        after: None,
        limit: 10,
    }))
    .unwrap();
    let keys: Vec<&str> = page.entries.iter().map(ListEntry::key).collect();
    assert_eq!((keys, page.more), (vec!["m/", "z"], false));
}

/// A member's key that would be too long as one of the volume is not shown, nor written.
#[test]
fn keys_that_are_too_long_with_their_directory_are_not_shown() {
    let world = world(&["member"]);
    let (fits, long) = ("k".repeat(1024 - 7), "l".repeat(1024 - 6));
    put(&world.members[0], &fits, "");
    put(&world.members[0], &long, "");
    let page = now(world.all.list(ListRequest {
        prefix: "member/k".into(),
        by_directory: true,
        after: None,
        limit: 10,
    }))
    .unwrap();
    assert_eq!(page.entries.len(), 1);
    let page = now(world.all.list(ListRequest {
        prefix: "member/l".into(),
        by_directory: true,
        after: None,
        limit: 10,
    }))
    .unwrap();
    assert!(page.entries.is_empty());
    let key = format!("member/{long}");
    assert!(matches!(
        now(world.all.put(&key, vec![].into(), Condition::Always, vec![])),
        Err(ebb_ports::BucketError::Refused { .. })
    ));
}
