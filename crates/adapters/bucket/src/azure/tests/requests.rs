//! Requests on the wire.

use super::{head, last, listing, nobody, open, store, wait};
use crate::http::base64;
use bytes::Bytes;
use ebb_ports::{Bucket, Condition, ETag, ListEntry, ListRequest, PartTag, UploadId};

#[test]
fn conditions_and_tags_are_headers() {
    let script = store(|_| {
        head(
            "201 Created",
            "x-ms-meta-ebb_txn: t\r\nx-ms-copy-id: c\r\nx-ms-copy-status: success\r\n",
        )
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    wait(bucket.put(
        "a//b",
        Bytes::from_static(b"x"),
        Condition::Absent,
        vec![("ebb-txn".into(), "t".into())],
    ))
    .unwrap();
    let put = last(&script);
    assert!(
        put.starts_with("PUT /acc/container/a%2F%2Fb ") && put.contains("if-none-match: *\r\n"),
        "{put}"
    );
    assert!(
        put.contains("x-ms-meta-ebb_txn: t\r\n") && put.contains("x-ms-blob-type: BlockBlob\r\n"),
        "{put}"
    );
    assert_eq!(wait(bucket.head("k")).unwrap().tags, [("ebb-txn".to_string(), "t".to_string())]);
    wait(bucket.copy("a", "b", Some(&ETag("0x1".into())), Condition::Match(ETag("0x2".into()))))
        .unwrap();
    let copied = last(&script);
    assert!(
        copied.contains("x-ms-source-if-match: \"0x1\"\r\n")
            && copied.contains("\r\nif-match: \"0x2\"\r\n"),
        "{copied}"
    );
}

/// Blocks are committed under the tag that the upload began with, and copied under the
/// caller's condition.
#[test]
fn an_upload_is_committed_and_copied() {
    let script = store(|_| head("201 Created", "x-ms-copy-id: c\r\nx-ms-copy-status: success\r\n"));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let upload = wait(bucket.upload_begin("k", vec![])).unwrap();
    let part = wait(bucket.upload_part("k", &upload, 7, Bytes::from_static(b"x"))).unwrap();
    let again = wait(bucket.upload_part("k", &upload, 7, Bytes::from_static(b"x"))).unwrap();
    assert!(
        part.receipt.starts_with("00007-")
            && part.receipt.len() == again.receipt.len()
            && part != again
    );
    wait(bucket.upload_complete("k", &upload, vec![again], Condition::Match(ETag("0x5".into()))))
        .unwrap();
    let seen = script.seen.lock().unwrap();
    let committed = seen.iter().find(|request| request.contains("comp=blocklist")).unwrap();
    assert!(
        committed.contains(".ebb%2Fuploads%2F") && committed.contains("if-match: \"0x8D\"\r\n"),
        "{committed}"
    );
    assert_eq!(committed.matches("<Latest>").count(), 1);
    let copied = seen.iter().find(|request| request.contains("x-ms-copy-source: ")).unwrap();
    assert!(
        copied.starts_with("PUT /acc/container/k ") && copied.contains("if-match: \"0x5\"\r\n"),
        "{copied}"
    );
    assert!(seen.last().unwrap().starts_with("DELETE /acc/container/.ebb%2Fuploads%2F"));
}

/// The service puts a blob together in the order of the list that commits its blocks.
#[test]
fn blocks_are_committed_in_the_order_of_their_parts() {
    let script = store(|_| head("201 Created", "x-ms-copy-id: c\r\nx-ms-copy-status: success\r\n"));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let upload = wait(bucket.upload_begin("k", vec![])).unwrap();
    let send = |number| wait(bucket.upload_part("k", &upload, number, Bytes::from_static(b"x")));
    let parts: Vec<PartTag> = [1, 2, 10].map(|number| send(number).unwrap()).into();
    wait(bucket.upload_complete("k", &upload, parts.clone(), Condition::Absent)).unwrap();
    let seen = script.seen.lock().unwrap();
    let committed = seen.iter().find(|request| request.contains("comp=blocklist")).unwrap();
    let blocks: Vec<&str> = committed
        .split("<Latest>")
        .skip(1)
        .filter_map(|rest| rest.split_once("</Latest>"))
        .map(|(block, _)| block)
        .collect();
    let receipts: Vec<String> =
        parts.iter().map(|part| base64::encode(part.receipt.as_bytes())).collect();
    assert_eq!(blocks, receipts);
}

#[test]
fn parts_of_nobody_are_refused() {
    let script = store(|_| head("200 OK", ""));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let part = |number, receipt: &str| PartTag { number, receipt: receipt.into() };
    let upload = UploadId("0123456789abcdef0123456789abcdef".into());
    for parts in [vec![], vec![part(1, "00002-a")], vec![part(2, "00002-a"), part(1, "00001-a")]] {
        let completed =
            wait(bucket.upload_complete("k", &upload, parts.clone(), Condition::Always));
        assert!(
            matches!(completed, Err(ebb_ports::BucketError::Refused { .. })),
            "{parts:?}: {completed:?}"
        );
    }
}

/// Continuing at the end of a batch costs one request; starting after any other key returns the
/// same entries.
#[test]
fn a_listing_goes_on_at_the_markers_that_it_was_given() {
    let blob = |name: &str| {
        let properties = "<Etag>0x8D</Etag><Content-Length>1</Content-Length>";
        format!("<Blob><Name>{name}</Name><Properties>{properties}</Properties></Blob>")
    };
    let script = store(move |request| match request {
        _ if request.contains("marker=m2") => listing(&blob("c"), ""),
        _ if request.contains("marker=m1") => listing(&blob("b"), "m2"),
        _ => listing(&blob("a"), "m1"),
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let list = |after: Option<&str>| {
        let before = script.seen.lock().unwrap().len();
        let request = ListRequest {
            prefix: "".into(),
            by_directory: false,
            after: after.map(str::to_string),
            limit: 2,
        };
        let page = wait(bucket.list(request)).unwrap();
        let keys: Vec<String> =
            page.entries.iter().map(ListEntry::key).map(str::to_string).collect();
        (keys.concat(), page.more, script.seen.lock().unwrap().len() - before)
    };
    assert_eq!(list(Some("aa")), ("b".into(), true, 2));
    assert_eq!(list(None), ("a".into(), true, 1));
    assert_eq!(list(Some("a")), ("b".into(), true, 1));
    assert_eq!(list(Some("b")), ("c".into(), false, 1));
}
