//! Listings: order, common prefixes, pages.

use super::{bytes, keys, list_all};
use crate::Memory;
use bytes::Bytes;
use ebb_ports::{Bucket, Condition, ListEntry, ListRequest};
use futures_util::future::join_all;

/// Names around `/` in byte order: `-` and `.` before it, `0` after.
const KEYS: &[&str] =
    &["a", "a-b", "b.c", "b/1", "b/1.x", "b/2/3", "b/2/4", "b0", "c/d/e/f", "c/d/e0", "é/ü", "z"];

async fn fill(bucket: &dyn Bucket) {
    for key in KEYS {
        bucket.put(key, bytes(key.len(), 1), Condition::Always, vec![]).await.unwrap();
    }
}

pub(super) async fn keys_come_in_byte_order(bucket: &dyn Bucket) {
    fill(bucket).await;
    let mut expected = KEYS.to_vec();
    expected.sort();
    for limit in [1, 2, 5, 1000] {
        let listed = list_all(bucket, "", false, limit).await;
        assert_eq!(keys(&listed), expected, "by {limit}");
        for entry in &listed {
            let ListEntry::Object { key, etag, len_bytes, modified_secs } = entry else {
                panic!("{entry:?}")
            };
            let meta = bucket.head(key).await.unwrap();
            assert_eq!((etag, *len_bytes), (&meta.etag, meta.len_bytes));
            assert!((modified_secs - meta.modified_secs).abs() <= 1);
        }
    }
}

/// Every prefix and limit, compared with the plainest implementation.
pub(super) async fn directories_come_once(bucket: &dyn Bucket) {
    let model = Memory::new();
    fill(bucket).await;
    fill(&model).await;
    for prefix in [
        "", "a", "b", "b.", "b/", "b/1", "b/2", "b/2/", "c", "c/", "c/d/e", "é/", "x", "x/", "z",
        "z/", "b//", "../",
    ] {
        for by_directory in [true, false] {
            for limit in [1, 3, 1000] {
                let (listed, expected) = (
                    list_all(bucket, prefix, by_directory, limit).await,
                    list_all(&model, prefix, by_directory, limit).await,
                );
                let shape = |entries: &[ListEntry]| -> Vec<(bool, String)> {
                    entries
                        .iter()
                        .map(|entry| {
                            (matches!(entry, ListEntry::Prefix { .. }), entry.key().to_string())
                        })
                        .collect()
                };
                assert_eq!(
                    shape(&listed),
                    shape(&expected),
                    "{prefix:?} {by_directory} by {limit}"
                );
            }
        }
    }
}

pub(super) async fn listings_go_on_after_any_text(bucket: &dyn Bucket) {
    let model = Memory::new();
    fill(bucket).await;
    fill(&model).await;
    for prefix in ["", "b/", "c/d/"] {
        for after in [
            "",
            "A",
            "a",
            "a-",
            "b",
            "b.c",
            "b/",
            "b/1",
            "b/2/",
            "b/2/3",
            "b/9",
            "b0",
            "c/",
            "c/d/",
            "c/d/e/",
            "c/e",
            "é",
            "\u{10FFFF}",
        ] {
            for by_directory in [true, false] {
                let request = ListRequest {
                    prefix: prefix.into(),
                    by_directory,
                    after: Some(after.into()),
                    limit: 3,
                };
                let (page, expected) = (
                    bucket.list(request.clone()).await.unwrap(),
                    model.list(request.clone()).await.unwrap(),
                );
                assert_eq!(keys(&page.entries), keys(&expected.entries), "{request:?}");
                assert_eq!(page.more, expected.more, "{request:?}");
            }
        }
    }
}

pub(super) async fn pages_cover_thousands_of_keys(bucket: &dyn Bucket) {
    let mut expected: Vec<String> = (0..2_500)
        .map(|n| format!("big/{:04}{}", n * 7_919 % 10_000, if n % 5 == 0 { "/x" } else { "" }))
        .collect();
    for some in expected.chunks(100) {
        for put in join_all(
            some.iter().map(|key| bucket.put(key, Bytes::new(), Condition::Always, vec![])),
        )
        .await
        {
            put.unwrap();
        }
    }
    expected.sort();
    assert!(
        keys(&list_all(bucket, "", false, 1000).await) == expected,
        "the pages together are not the keys"
    );
    let tops: Vec<String> =
        expected.iter().map(|key| key.trim_end_matches('x').to_string()).collect();
    assert!(
        keys(&list_all(bucket, "big/", true, 700).await) == tops,
        "the pages together are not the directories"
    );
    assert_eq!(keys(&list_all(bucket, "", true, 1000).await), ["big/"]);
    let page = bucket
        .list(ListRequest { prefix: "".into(), by_directory: false, after: None, limit: 5_000 })
        .await
        .unwrap();
    assert!(page.entries.len() <= 1000 && page.more, "a page holds at most 1000");
}

pub(super) async fn listing_sees_acknowledged_changes(bucket: &dyn Bucket) {
    for n in 0..20 {
        let key = format!("d/{n:02}");
        bucket.put(&key, Bytes::new(), Condition::Always, vec![]).await.unwrap();
        assert_eq!(list_all(bucket, "d/", false, 1000).await.len(), n + 1);
        assert_eq!(list_all(bucket, "d/", true, 3).await.len(), n + 1);
    }
    for n in 0..20 {
        bucket.delete(&format!("d/{n:02}"), None).await.unwrap();
        assert_eq!(list_all(bucket, "d/", true, 3).await.len(), 19 - n);
    }
    assert!(list_all(bucket, "", true, 10).await.is_empty());
}
