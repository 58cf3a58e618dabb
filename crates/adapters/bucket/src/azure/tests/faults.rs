use super::{error, head, listing, nobody, open, store, wait};
use crate::OpenError;
use crate::http::script::{Reply, answer, serve};
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ListRequest, PartTag, UploadId};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

fn unknown<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Unknown { .. }))
}

fn unavailable<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Unavailable { .. }))
}

fn every() -> ListRequest {
    ListRequest { prefix: "".into(), by_directory: false, after: None, limit: 1000 }
}

fn upload() -> UploadId {
    UploadId("0123456789abcdef0123456789abcdef".into())
}

#[test]
fn opening_reports_the_fault_of_a_container() {
    let refused = |reply: fn() -> Reply| {
        open(&serve(true, move |_| reply()).address, nobody(), &[]).map(drop).unwrap_err()
    };
    let missing = refused(|| error("404 Not Found", "ContainerNotFound"));
    assert!(matches!(missing, OpenError::NoBucket { .. }), "{missing}");
    let forbidden = refused(|| error("403 Forbidden", "AuthorizationFailure"));
    assert!(matches!(forbidden, OpenError::Forbidden { .. }), "{forbidden}");
    let page = refused(|| answer("200 OK", "", "<html>hello</html>"));
    assert!(page.to_string().contains("does not speak the Azure blob protocol"), "{page}");
    // Keys are paths there, and `a//b` is `a/b`.
    let tree = refused(|| match listing("", "") {
        Reply::Answer(text) => {
            Reply::Answer(text.replacen("\r\n", "\r\nx-ms-is-hns-enabled: true\r\n", 1))
        }
        other => other,
    });
    assert!(tree.to_string().contains("hierarchical"), "{tree}");
}

/// The connection closes after the request was read. Expectation: reads have no effect, and a
/// mutation has an unknown outcome and was sent exactly once.
#[test]
fn a_lost_reply_is_unknown_only_for_mutations() {
    let script = store(|_| Reply::Close);
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.get("k", None, None))));
    assert!(unavailable(&wait(bucket.head("k"))));
    assert!(unavailable(&wait(bucket.list(every()))));
    let before = script.seen.lock().unwrap().len();
    assert!(unknown(&wait(bucket.put("k", Bytes::from_static(b"x"), Condition::Always, vec![]))));
    assert!(unknown(&wait(bucket.delete("k", None))));
    assert!(unknown(&wait(bucket.copy("a", "b", None, Condition::Always))));
    assert!(unknown(&wait(bucket.upload_begin("k", vec![]))));
    assert!(unknown(&wait(bucket.upload_part("k", &upload(), 1, Bytes::from_static(b"x")))));
    assert!(unknown(&wait(bucket.upload_abort("k", &upload()))));
    assert_eq!(script.seen.lock().unwrap().len() - before, 6);
}

#[test]
fn a_success_that_cannot_be_read_is_no_success() {
    let script = store(|_| answer("200 OK", "", "<a/>"));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert!(unknown(&wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]))));
    assert!(unknown(&wait(bucket.copy("a", "b", None, Condition::Always))));
    assert!(unavailable(&wait(bucket.get("k", None, None))));
    assert!(unavailable(&wait(bucket.list(every()))));
    let script = store(|_| listing("", "same"));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.list(every()))), "a listing that does not go on ends");
}

/// The store is still copying: the copy has its outcome only when that ends.
#[test]
fn a_copy_is_waited_for() {
    let play = |ends: &'static str| {
        let script = store(move |request| match request.starts_with("PUT") {
            true => head("202 Accepted", "x-ms-copy-id: c\r\nx-ms-copy-status: pending\r\n"),
            false => head("200 OK", ends),
        });
        let bucket = open(&script.address, nobody(), &[]).unwrap();
        wait(bucket.copy("a", "b", None, Condition::Always))
    };
    assert_eq!(play("x-ms-copy-id: c\r\nx-ms-copy-status: success\r\n").unwrap().0, "0x8D");
    assert!(unknown(&play("x-ms-copy-id: c\r\nx-ms-copy-status: failed\r\n")));
    assert!(
        unknown(&play("x-ms-copy-id: other\r\nx-ms-copy-status: success\r\n")),
        "somebody has written there since"
    );
    assert!(unknown(&play("")));
}

/// A completion learns at any of its steps that its upload was aborted. Expectation: it reports
/// that, and no object is visible.
#[test]
fn a_completion_after_an_abort_finds_nothing() {
    for step in ["HEAD", "comp=blocklist", "x-ms-copy-source"] {
        let script = store(move |request| match request {
            _ if !request.contains(step) => head("201 Created", ""),
            _ if step == "comp=blocklist" => error("412 Precondition Failed", "ConditionNotMet"),
            _ => error("404 Not Found", "BlobNotFound"),
        });
        let bucket = open(&script.address, nobody(), &[]).unwrap();
        let part = PartTag { number: 1, receipt: "00001-a".into() };
        let completed = wait(bucket.upload_complete("k", &upload(), vec![part], Condition::Always));
        assert!(
            matches!(completed, Err(BucketError::NotFound { ref key }) if key == "k"),
            "{step}: {completed:?}"
        );
    }
}

#[test]
fn invalid_keys_cause_no_request() {
    let script = store(|_| head("200 OK", ""));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let before = script.seen.lock().unwrap().len();
    for key in [
        "",
        ".",
        "a/../b",
        "a./b",
        "end.",
        "back\\slash",
        "a\nb",
        "\u{7f}",
        &"x/".repeat(255),
        &"x".repeat(1025),
    ] {
        assert!(
            matches!(wait(bucket.delete(key, None)), Err(BucketError::Refused { .. })),
            "{key:?}"
        );
        assert!(
            matches!(
                wait(bucket.copy("k", key, None, Condition::Always)),
                Err(BucketError::Refused { .. })
            ),
            "{key:?}"
        );
    }
    assert_eq!(script.seen.lock().unwrap().len(), before);
}

/// Arbitrary bytes in a reply yield an error or a value.
#[test]
fn hostile_answers_end_in_errors() {
    let reply = Arc::new(Mutex::new(String::new()));
    let now = reply.clone();
    let script = store(move |_| Reply::ThenClose(now.lock().unwrap().clone()));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let config =
        ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(header in "[ -~]{0,40}", body in "\\PC{0,80}")| {
        *reply.lock().unwrap() = format!(
            "HTTP/1.1 200 OK\r\netag: {header}\r\nlast-modified: {header}\r\ncontent-range: \
             {header}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        drop(wait(bucket.head("k")));
        drop(wait(bucket.get("k", Some(3..9), None)));
        drop(wait(bucket.list(every())));
        let put = wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]));
        prop_assert!(put.is_ok() || unknown(&put), "{put:?}");
    });
}
