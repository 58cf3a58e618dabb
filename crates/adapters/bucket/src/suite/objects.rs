//! One object at a time, and many at once.

use super::{bytes, is_changed, is_missing, is_refused};
use bytes::Bytes;
use ebb_ports::{Bucket, Condition, ETag};
use futures_util::future::join_all;

fn some_tags() -> Vec<(String, String)> {
    vec![("ebb-txn".into(), "7f-3".into()), ("mode".into(), "rw r--r--, \"x\"=1".into())]
}

fn nobody() -> ETag {
    ETag("00000000000000000000000000000000".into())
}

pub(super) async fn put_objects_are_read_back(bucket: &dyn Bucket) {
    for len in [0, 1, 4096, 200_000] {
        let body = bytes(len, 1);
        let etag = bucket.put("k", body.clone(), Condition::Always, some_tags()).await.unwrap();
        let object = bucket.get("k", None, None).await.unwrap();
        assert_eq!(object.body, body);
        assert_eq!(object.meta.etag, etag);
        assert_eq!(object.meta.len_bytes, len as u64);
        assert_eq!(object.meta.tags, some_tags());
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
                as i64;
        assert!(
            (now - object.meta.modified_secs).abs() < 600,
            "modified {} at {now}",
            object.meta.modified_secs
        );
        assert_eq!(bucket.head("k").await.unwrap(), object.meta);
        assert!(!etag.0.contains('"'));
    }
    bucket.put("k", Bytes::new(), Condition::Always, vec![]).await.unwrap();
    assert_eq!(bucket.head("k").await.unwrap().tags, vec![], "a put replaces the tags as well");
}

pub(super) async fn ranges_are_cut_at_the_end(bucket: &dyn Bucket) {
    let body = bytes(10_000, 2);
    let etag = bucket.put("k", body.clone(), Condition::Always, vec![]).await.unwrap();
    for (start, end) in [
        (0, 1),
        (0, 10_000),
        (5, 5),
        (9_999, 10_000),
        (9_000, 20_000),
        (10_000, 10_001),
        (50_000, 60_000),
        (0, u64::MAX),
    ] {
        let object = bucket.get("k", Some(start..end), Some(&etag)).await.unwrap();
        let cut = (start as usize).min(10_000)..end.min(10_000).max(start.min(10_000)) as usize;
        assert_eq!(object.body, body.slice(cut), "{start}..{end}");
        assert_eq!(object.meta.len_bytes, 10_000, "{start}..{end}");
        assert_eq!(object.meta.etag, etag);
    }
    bucket.put("empty", Bytes::new(), Condition::Always, vec![]).await.unwrap();
    assert!(bucket.get("empty", Some(0..10), None).await.unwrap().body.is_empty());
}

pub(super) async fn reads_are_guarded_by_the_tag(bucket: &dyn Bucket) {
    let first = bucket.put("k", bytes(100, 3), Condition::Always, vec![]).await.unwrap();
    bucket.get("k", None, Some(&first)).await.unwrap();
    bucket.put("k", bytes(101, 4), Condition::Always, vec![]).await.unwrap();
    for range in [None, Some(0..10), Some(5..5), Some(1_000..2_000)] {
        let read = bucket.get("k", range.clone(), Some(&first)).await;
        assert!(is_changed(&read), "{range:?}: {read:?}");
    }
}

pub(super) async fn missing_objects_are_not_found(bucket: &dyn Bucket) {
    bucket.put("dir/k", Bytes::new(), Condition::Always, vec![]).await.unwrap();
    for key in ["k", "dir", "dir/", "dir/l", "dir/k/x", "nodir/k"] {
        assert!(is_missing(&bucket.get(key, None, None).await), "{key}");
        assert!(is_missing(&bucket.get(key, Some(0..1), None).await), "{key}");
        assert!(is_missing(&bucket.head(key).await), "{key}");
        assert!(is_missing(&bucket.copy(key, "to", None, Condition::Always).await), "{key}");
        bucket.delete(key, None).await.unwrap();
    }
    assert!(is_missing(&bucket.head("to").await));
    bucket.head("dir/k").await.unwrap();
}

pub(super) async fn absent_is_won_once(bucket: &dyn Bucket) {
    bucket.put("k", bytes(1, 1), Condition::Absent, vec![]).await.unwrap();
    let second = bucket.put("k", bytes(2, 2), Condition::Absent, vec![]).await;
    assert!(is_changed(&second), "{second:?}");
    assert_eq!(bucket.get("k", None, None).await.unwrap().body, bytes(1, 1));
    bucket.delete("k", None).await.unwrap();
    bucket.put("k", bytes(3, 3), Condition::Absent, vec![]).await.unwrap();
}

pub(super) async fn match_is_won_once(bucket: &dyn Bucket) {
    let missing = bucket.put("k", bytes(1, 1), Condition::Match(nobody()), vec![]).await;
    assert!(is_changed(&missing), "{missing:?}");
    assert!(is_missing(&bucket.head("k").await));
    let first = bucket.put("k", bytes(1, 1), Condition::Always, vec![]).await.unwrap();
    let second =
        bucket.put("k", bytes(2, 2), Condition::Match(first.clone()), vec![]).await.unwrap();
    let stale = bucket.put("k", bytes(3, 3), Condition::Match(first), vec![]).await;
    assert!(is_changed(&stale), "{stale:?}");
    assert_eq!(bucket.head("k").await.unwrap().etag, second);
}

pub(super) async fn concurrent_conditions_have_one_winner(bucket: &dyn Bucket) {
    for round in 0..5 {
        let key = format!("k{round}");
        let claims =
            join_all((0..8).map(|who| {
                bucket.put(&key, bytes(10 + who, who as u8), Condition::Absent, vec![])
            }))
            .await;
        let winners: Vec<usize> = (0..8).filter(|who| claims[*who].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{claims:?}");
        let (winner, tag) = (winners[0], claims[winners[0]].clone().unwrap());
        assert_eq!(
            bucket.get(&key, None, Some(&tag)).await.unwrap().body,
            bytes(10 + winner, winner as u8)
        );
        let claims = join_all((0..8).map(|who| {
            bucket.put(&key, bytes(30 + who, who as u8), Condition::Match(tag.clone()), vec![])
        }))
        .await;
        assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1, "{claims:?}");
    }
}

pub(super) async fn every_put_has_a_tag_that_changes_with_content(bucket: &dyn Bucket) {
    let mut tags = Vec::new();
    for seed in 0..20 {
        tags.push(bucket.put("k", bytes(64, seed), Condition::Always, vec![]).await.unwrap());
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 20);
}

pub(super) async fn deletes_are_idempotent_and_guarded(bucket: &dyn Bucket) {
    bucket.delete("k", None).await.unwrap();
    bucket.delete("k", Some(&nobody())).await.unwrap();
    let first = bucket.put("k", bytes(1, 1), Condition::Always, vec![]).await.unwrap();
    let second = bucket.put("k", bytes(2, 2), Condition::Always, vec![]).await.unwrap();
    let stale = bucket.delete("k", Some(&first)).await;
    assert!(is_changed(&stale), "{stale:?}");
    bucket.head("k").await.unwrap();
    bucket.delete("k", Some(&second)).await.unwrap();
    assert!(is_missing(&bucket.head("k").await));
    bucket.delete("k", Some(&second)).await.unwrap();
}

/// For stores that check the condition on the target of a copy.
pub(super) async fn a_copy_takes_nobody_elses_place(bucket: &dyn Bucket) {
    let source = bucket.put("from", bytes(10, 1), Condition::Always, vec![]).await.unwrap();
    let first = bucket.copy("from", "to", Some(&source), Condition::Absent).await.unwrap();
    let theirs = bucket.put("to", bytes(20, 2), Condition::Always, vec![]).await.unwrap();
    for condition in [Condition::Absent, Condition::Match(first)] {
        let refused = bucket.copy("from", "to", Some(&source), condition).await;
        assert!(is_changed(&refused), "{refused:?}");
        assert_eq!(bucket.get("to", None, Some(&theirs)).await.unwrap().body, bytes(20, 2));
    }
    bucket.copy("from", "to", Some(&source), Condition::Match(theirs)).await.unwrap();
    assert_eq!(bucket.get("to", None, None).await.unwrap().body, bytes(10, 1));
}

pub(super) async fn copies_carry_content_and_tags(bucket: &dyn Bucket) {
    let etag =
        bucket.put("from x+é", bytes(5_000, 1), Condition::Always, some_tags()).await.unwrap();
    let copied = bucket.copy("from x+é", "d/to", Some(&etag), Condition::Always).await.unwrap();
    let object = bucket.get("d/to", None, Some(&copied)).await.unwrap();
    assert_eq!(object.body, bytes(5_000, 1));
    assert_eq!(object.meta.tags, some_tags());
    let stale = bucket.copy("from x+é", "d/other", Some(&nobody()), Condition::Always).await;
    assert!(is_changed(&stale), "{stale:?}");
    assert!(is_missing(&bucket.head("d/other").await));
    bucket.put("d/to", bytes(1, 1), Condition::Always, vec![]).await.unwrap();
    bucket.copy("from x+é", "d/to", None, Condition::Always).await.unwrap();
    assert_eq!(
        bucket.get("d/to", None, None).await.unwrap().body,
        bytes(5_000, 1),
        "a copy replaces what is there"
    );
    assert_eq!(
        bucket.get("from x+é", None, Some(&etag)).await.unwrap().body,
        bytes(5_000, 1),
        "the source stays as it was"
    );
}

pub(super) async fn bad_tags_are_refused(bucket: &dyn Bucket) {
    for (name, value) in
        [("", "x"), ("Upper", "x"), ("a b", "x"), ("a", "new\nline"), ("a", "é"), ("a", " x")]
    {
        let put = bucket
            .put("k", Bytes::new(), Condition::Always, vec![(name.into(), value.into())])
            .await;
        assert!(is_refused(&put), "{name:?} {value:?}: {put:?}");
    }
    assert!(is_missing(&bucket.head("k").await));
}

pub(super) async fn many_at_once(bucket: &dyn Bucket) {
    let name = |n: usize| format!("d{}/k{n}", n % 7);
    for put in join_all(
        (0..200).map(|n| bucket.put(&name(n), bytes(n * 37, n as u8), Condition::Always, vec![])),
    )
    .await
    {
        put.unwrap();
    }
    for (n, read) in
        join_all((0..200).map(|n| bucket.get(&name(n), None, None))).await.into_iter().enumerate()
    {
        assert_eq!(read.unwrap().body, bytes(n * 37, n as u8));
    }
    for deleted in join_all((0..200).map(|n| bucket.delete(&name(n), None))).await {
        deleted.unwrap();
    }
    assert!(super::list_all(bucket, "", false, 1000).await.is_empty());
}
