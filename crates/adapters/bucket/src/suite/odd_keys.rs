//! Keys that no path would be. A store either keeps each of them apart or refuses it;
//! none may turn up under another name.

use super::{bytes, is_missing, is_refused, keys, list_all};
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition};

const ODD: &[&str] = &[
    "a b",
    "a+b",
    "a%2Bb",
    "a%20b",
    "a&b=c?d#e",
    "a\"b'c<d>",
    "a\\b",
    "a;b,c:d@e",
    "é",
    "e\u{301}",
    "日本語/キー",
    "🦀",
    "*",
    "~",
    "a~b",
    "[x]{y}|z^`",
    "-",
    "..a",
    "a..",
    "...",
    ".hidden",
    "a//b",
    "a/b//",
    "//",
    "/lead",
    "/",
    "dir/",
    "x/./y",
    "x/../y",
    "../x",
    "../../x",
    "..",
    ".",
    "./z",
    "t\tb",
    "n\nl",
    "\u{1}",
    "nul\0",
    "\u{7f}",
    "\u{10FFFF}",
    "\u{feff}",
    "con",
    "a ",
    " a",
    "%",
    "%zz",
    "$HOME",
];

pub(super) async fn odd_keys_are_kept_apart_or_refused(bucket: &dyn Bucket) {
    let mut kept = Vec::new();
    for key in ODD {
        let body =
            Bytes::from(if key.ends_with('/') { String::new() } else { format!("body of {key}") });
        match bucket.put(key, body, Condition::Always, vec![]).await {
            Ok(_) => kept.push(*key),
            refused => assert!(is_refused(&refused), "{key:?}: {refused:?}"),
        }
    }
    assert!(kept.len() >= 24, "only {kept:?} are kept");
    for key in ODD {
        if kept.contains(key) {
            let object = bucket
                .get(key, None, None)
                .await
                .unwrap_or_else(|error| panic!("{key:?} was put, and then: {error}"));
            let expected =
                if key.ends_with('/') { String::new() } else { format!("body of {key}") };
            assert_eq!(object.body, expected, "{key:?}");
        } else {
            let read = bucket.get(key, None, None).await;
            assert!(is_missing(&read) || is_refused(&read), "{key:?}: {read:?}");
        }
    }
    kept.sort();
    let listed = list_all(bucket, "", false, 7).await;
    assert_eq!(keys(&listed), kept);
    println!(
        "        {} of {} odd keys kept; refused: {:?}",
        kept.len(),
        ODD.len(),
        ODD.iter().filter(|key| !kept.contains(key)).collect::<Vec<_>>()
    );
    for key in kept.iter().rev() {
        bucket.delete(key, None).await.unwrap();
        assert!(is_missing(&bucket.head(key).await), "{key:?}");
    }
    let left = list_all(bucket, "", false, 1000).await;
    assert!(!left.iter().any(|entry| kept.contains(&entry.key())), "deleted, and listed: {left:?}");
}

pub(super) async fn long_keys_are_kept_or_refused(bucket: &dyn Bucket) {
    let longest = bucket.capabilities().max_key_bytes;
    // Segments of 200 bytes suit file systems as well.
    let fits: String =
        "s".repeat(200).chars().chain(['/']).cycle().take(longest.min(900)).collect();
    bucket.put(&fits, bytes(1, 1), Condition::Always, vec![]).await.unwrap();
    assert_eq!(bucket.get(&fits, None, None).await.unwrap().body, bytes(1, 1));
    for bad in ["x".repeat(longest + 1), "x/".repeat(longest)] {
        let put = bucket.put(&bad, Bytes::new(), Condition::Always, vec![]).await;
        assert!(is_refused(&put), "{} bytes: {put:?}", bad.len());
    }
    match bucket.put(&"x".repeat(256), bytes(1, 2), Condition::Always, vec![]).await {
        Ok(_) => {
            assert_eq!(bucket.get(&"x".repeat(256), None, None).await.unwrap().body, bytes(1, 2))
        }
        refused => assert!(is_refused(&refused), "{refused:?}"),
    }
}

pub(super) async fn a_file_and_its_directory(bucket: &dyn Bucket) {
    bucket.put("a", bytes(1, 1), Condition::Always, vec![]).await.unwrap();
    bucket.put("d/x", bytes(2, 2), Condition::Always, vec![]).await.unwrap();
    let mut expected = vec!["a", "d/x"];
    for (key, seed) in [("a/b", 3), ("d", 4)] {
        match bucket.put(key, bytes(3, seed), Condition::Always, vec![]).await {
            Ok(_) => expected.push(key),
            refused => {
                assert!(matches!(refused, Err(BucketError::Nested { .. })), "{key}: {refused:?}")
            }
        }
    }
    expected.sort();
    assert_eq!(keys(&list_all(bucket, "", false, 1000).await), expected);
    assert_eq!(bucket.get("a", None, None).await.unwrap().body, bytes(1, 1));
    assert_eq!(bucket.get("d/x", None, None).await.unwrap().body, bytes(2, 2));

    // Put and delete of a directory's own key leave its entries alone.
    bucket.put("e/", Bytes::new(), Condition::Always, vec![]).await.unwrap();
    assert_eq!(bucket.head("e/").await.unwrap().len_bytes, 0);
    bucket.put("e/f", bytes(1, 5), Condition::Always, vec![]).await.unwrap();
    assert_eq!(keys(&list_all(bucket, "e", false, 1000).await), ["e/", "e/f"]);
    bucket.delete("e/", None).await.unwrap();
    assert_eq!(keys(&list_all(bucket, "e", false, 1000).await), ["e/f"]);
    bucket.delete("e/f", None).await.unwrap();
    assert!(list_all(bucket, "e", true, 1000).await.is_empty());
    bucket.put("e/", Bytes::new(), Condition::Absent, vec![]).await.unwrap();
    bucket.put("e/f", bytes(1, 6), Condition::Always, vec![]).await.unwrap();
    bucket.delete("e/f", None).await.unwrap();
    assert_eq!(keys(&list_all(bucket, "e", true, 1000).await), ["e/"]);
    bucket.delete("e/", None).await.unwrap();
}
