//! Objects in parts.

use super::{bytes, is_changed, is_missing, is_refused, list_all};
use ebb_ports::{Bucket, Condition, ETag, PartTag, Piece, UploadId};
use futures_util::future::join_all;

fn part_bytes(bucket: &dyn Bucket) -> usize {
    bucket.capabilities().min_part_bytes.max(100_000) as usize
}

pub(super) async fn parts_become_one_object(bucket: &dyn Bucket) {
    let (len, tags) = (part_bytes(bucket), vec![("ebb-txn".to_string(), "u-1".to_string())]);
    let upload = bucket.upload_begin("d/k é+", tags.clone()).await.unwrap();
    assert!(is_missing(&bucket.head("d/k é+").await), "nothing is visible before the completion");
    // Out of order, one of them twice.
    let third = bucket.upload_part("d/k é+", &upload, 3, bytes(17, 3)).await.unwrap();
    bucket.upload_part("d/k é+", &upload, 1, bytes(len, 9)).await.unwrap();
    let (first, second) = futures_util::join!(
        bucket.upload_part("d/k é+", &upload, 1, bytes(len, 1)),
        bucket.upload_part("d/k é+", &upload, 2, bytes(len, 2))
    );
    assert!(list_all(bucket, "", false, 10).await.is_empty());
    let etag = bucket
        .upload_complete(
            "d/k é+",
            &upload,
            vec![first.unwrap(), second.unwrap(), third],
            Condition::Always,
        )
        .await
        .unwrap();
    let object = bucket.get("d/k é+", None, Some(&etag)).await.unwrap();
    assert_eq!(object.body, [bytes(len, 1), bytes(len, 2), bytes(17, 3)].concat());
    assert_eq!(object.meta.tags, tags);
    assert_eq!(object.meta.etag, etag);
    let across =
        bucket.get("d/k é+", Some(len as u64 - 5..len as u64 + 5), Some(&etag)).await.unwrap();
    assert_eq!(across.body, object.body.slice(len - 5..len + 5));
    bucket.upload_abort("d/k é+", &upload).await.unwrap();
    bucket.head("d/k é+").await.unwrap();
}

pub(super) async fn large_parts_arrive_whole(bucket: &dyn Bucket) {
    let len = 16 << 20;
    let upload = bucket.upload_begin("large", vec![]).await.unwrap();
    let sent =
        join_all((1..=4).map(|n| bucket.upload_part("large", &upload, n, bytes(len, n as u8))))
            .await;
    let parts = sent.into_iter().map(|part| part.unwrap()).collect();
    let etag = bucket.upload_complete("large", &upload, parts, Condition::Absent).await.unwrap();
    assert_eq!(bucket.head("large").await.unwrap().len_bytes, 4 * len as u64);
    let reads = join_all(
        (0..4u64)
            .map(|n| bucket.get("large", Some(n * len as u64..(n + 1) * len as u64), Some(&etag))),
    )
    .await;
    for (n, read) in reads.into_iter().enumerate() {
        assert!(read.unwrap().body == bytes(len, n as u8 + 1), "part {n} differs");
    }
}

pub(super) async fn a_completion_keeps_to_its_condition(bucket: &dyn Bucket) {
    let prepare = async |seed: u8| {
        let upload = bucket.upload_begin("k", vec![]).await.unwrap();
        let part = bucket.upload_part("k", &upload, 1, bytes(50, seed)).await.unwrap();
        (upload, vec![part])
    };
    let nobody = ETag("00000000000000000000000000000000".into());
    let (upload, parts) = prepare(1).await;
    let missing = bucket.upload_complete("k", &upload, parts, Condition::Match(nobody)).await;
    assert!(is_changed(&missing) || is_missing(&missing), "{missing:?}");
    assert!(is_missing(&bucket.head("k").await));
    bucket.upload_abort("k", &upload).await.unwrap();

    let (upload, parts) = prepare(2).await;
    let first = bucket.upload_complete("k", &upload, parts, Condition::Absent).await.unwrap();
    let (upload, parts) = prepare(3).await;
    let again = bucket.upload_complete("k", &upload, parts, Condition::Absent).await;
    assert!(is_changed(&again), "{again:?}");
    bucket.upload_abort("k", &upload).await.unwrap();
    let (upload, parts) = prepare(4).await;
    bucket.upload_complete("k", &upload, parts, Condition::Match(first.clone())).await.unwrap();
    assert_eq!(bucket.get("k", None, None).await.unwrap().body, bytes(50, 4));
    let (upload, parts) = prepare(5).await;
    let stale = bucket.upload_complete("k", &upload, parts, Condition::Match(first)).await;
    assert!(is_changed(&stale), "{stale:?}");
    assert_eq!(bucket.get("k", None, None).await.unwrap().body, bytes(50, 4));
    bucket.upload_abort("k", &upload).await.unwrap();
}

pub(super) async fn aborted_uploads_are_gone(bucket: &dyn Bucket) {
    let upload = bucket.upload_begin("k", vec![]).await.unwrap();
    let part = bucket.upload_part("k", &upload, 1, bytes(10, 1)).await.unwrap();
    bucket.upload_abort("k", &upload).await.unwrap();
    bucket.upload_abort("k", &upload).await.unwrap();
    assert!(is_missing(&bucket.upload_part("k", &upload, 2, bytes(10, 1)).await));
    assert!(is_missing(&bucket.upload_complete("k", &upload, vec![part], Condition::Always).await));
    assert!(is_missing(&bucket.head("k").await));
}

pub(super) async fn wrong_parts_are_refused(bucket: &dyn Bucket) {
    let upload = bucket.upload_begin("k", vec![]).await.unwrap();
    let part = bucket.upload_part("k", &upload, 1, bytes(10, 1)).await.unwrap();
    let other = PartTag { number: 2, receipt: part.receipt.clone() };
    for parts in [vec![], vec![part.clone(), other]] {
        let completed = bucket.upload_complete("k", &upload, parts, Condition::Always).await;
        assert!(is_refused(&completed), "{completed:?}");
    }
    for name in ["../../etc", "", "no such upload", "a/b"] {
        let sent = bucket.upload_part("k", &UploadId(name.into()), 1, bytes(10, 1)).await;
        assert!(is_missing(&sent) || is_refused(&sent), "{name:?}: {sent:?}");
    }
    assert!(is_missing(&bucket.head("k").await));
    bucket.upload_complete("k", &upload, vec![part], Condition::Always).await.unwrap();
    assert_eq!(bucket.get("k", None, None).await.unwrap().body, bytes(10, 1));
}

/// Also from the object that the upload replaces.
pub(super) async fn parts_are_copied_from_objects(bucket: &dyn Bucket) {
    let len = part_bytes(bucket) as u64;
    let body = bytes(3 * len as usize, 7);
    let etag = bucket.put("d/from é+", body.clone(), Condition::Always, vec![]).await.unwrap();
    let piece = |range| Piece { key: "d/from é+".into(), etag: etag.clone(), range };
    let mut upload = bucket.upload_begin("d/from é+", vec![]).await.unwrap();
    let mut middle = bucket.upload_part_copy("d/from é+", &upload, 1, piece(len..2 * len)).await;
    if is_missing(&middle) {
        // Another one would do.
        bucket.upload_abort("d/from é+", &upload).await.unwrap();
        upload = bucket.upload_begin("d/from é+", vec![]).await.unwrap();
        middle = bucket.upload_part_copy("d/from é+", &upload, 1, piece(len..2 * len)).await;
    }
    if !bucket.capabilities().copies_parts {
        assert!(is_refused(&middle), "{middle:?}");
        return bucket.upload_abort("d/from é+", &upload).await.unwrap();
    }
    let sent = bucket.upload_part("d/from é+", &upload, 2, bytes(len as usize, 8)).await.unwrap();
    let last = bucket
        .upload_part_copy("d/from é+", &upload, 3, piece(3 * len - 5..3 * len))
        .await
        .unwrap();
    let stale = Piece { etag: ETag("00000000000000000000000000000000".into()), ..piece(0..len) };
    let copied = bucket.upload_part_copy("d/from é+", &upload, 4, stale).await;
    assert!(is_changed(&copied), "{copied:?}");
    let beyond =
        bucket.upload_part_copy("d/from é+", &upload, 4, piece(2 * len..3 * len + 1)).await;
    assert!(is_refused(&beyond), "{beyond:?}");
    let missing = bucket
        .upload_part_copy("d/from é+", &upload, 4, Piece { key: "nowhere".into(), ..piece(0..len) })
        .await;
    assert!(is_missing(&missing), "{missing:?}");
    let guard = Condition::Match(etag.clone());
    bucket
        .upload_complete("d/from é+", &upload, vec![middle.unwrap(), sent, last], guard)
        .await
        .unwrap();
    let (len, whole) = (len as usize, bucket.get("d/from é+", None, None).await.unwrap().body);
    assert_eq!(whole, [&body[len..2 * len], &bytes(len, 8), &body[3 * len - 5..]].concat());
}

pub(super) async fn unfinished_ones_are_told(bucket: &dyn Bucket) {
    let told = async |key: &str| {
        let mut uploads: Vec<String> =
            bucket.uploads(key).await.unwrap().into_iter().map(|upload| upload.0).collect();
        uploads.sort();
        uploads
    };
    let sorted = |uploads: &[&UploadId]| {
        let mut uploads: Vec<String> = uploads.iter().map(|upload| upload.0.clone()).collect();
        uploads.sort();
        uploads
    };
    assert_eq!(told("d/k é+").await, sorted(&[]));
    let first = bucket.upload_begin("d/k é+", vec![]).await.unwrap();
    let second = bucket.upload_begin("d/k é+", vec![]).await.unwrap();
    let longer = bucket.upload_begin("d/k é+1", vec![]).await.unwrap();
    let part = bucket.upload_part("d/k é+", &second, 1, bytes(10, 1)).await.unwrap();
    assert_eq!(told("d/k é+").await, sorted(&[&first, &second]));
    assert_eq!(told("d/k é+1").await, sorted(&[&longer]));
    bucket.upload_abort("d/k é+", &first).await.unwrap();
    assert_eq!(told("d/k é+").await, sorted(&[&second]));
    bucket.upload_complete("d/k é+", &second, vec![part], Condition::Always).await.unwrap();
    bucket.upload_abort("d/k é+1", &longer).await.unwrap();
    assert_eq!((told("d/k é+").await, told("d/k é+1").await), (vec![], vec![]));
}
