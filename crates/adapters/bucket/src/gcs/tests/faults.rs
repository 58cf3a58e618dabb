use super::{error, found, json, nobody, open, store, wait};
use crate::http::script::{Reply, answer};
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ETag, ListRequest, UploadId};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn unknown<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Unknown { .. }))
}

fn unavailable<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Unavailable { .. }))
}

fn listing() -> ListRequest {
    ListRequest { prefix: "".into(), by_directory: false, after: None, limit: 1000 }
}

fn upload() -> UploadId {
    UploadId("0123456789abcdef0123456789abcdef".into())
}

/// The connection closes after the request was read. Expectation: reads have no effect, and a
/// mutation has an unknown outcome and was sent exactly once.
#[test]
fn a_lost_reply_is_unknown_only_for_mutations() {
    let script = store(|_| Reply::Close);
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.get("k", None, None))));
    assert!(unavailable(&wait(bucket.head("k"))));
    assert!(unavailable(&wait(bucket.list(listing()))));
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
    for body in
        ["", "<html>", "{}", r#"{"generation":7}"#, r#"{"generation":"-7"}"#, r#"{"done":false}"#]
    {
        let script = store(move |_| answer("200 OK", "", body));
        let bucket = open(&script.address, nobody(), &[]).unwrap();
        assert!(unknown(&wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]))), "{body}");
        assert!(unknown(&wait(bucket.copy("a", "b", None, Condition::Always))), "{body}");
        assert!(unavailable(&wait(bucket.get("k", None, None))), "no generation: {body}");
    }
    let script = store(|_| {
        Reply::ThenClose(
            "HTTP/1.1 200 OK\r\nx-goog-generation: 7\r\ncontent-length: 100\r\n\r\nshort".into(),
        )
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.get("k", None, None))));
}

#[test]
fn a_bucket_that_vanishes_is_no_deleted_file() {
    let script =
        store(|_| error("404 Not Found", "notFound", "The specified bucket does not exist."));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let deleted = wait(bucket.delete("k", None));
    assert!(matches!(deleted, Err(BucketError::Refused { .. })), "{deleted:?}");
}

#[test]
fn a_store_that_is_busy_says_when_to_ask_again() {
    let script = store(|_| {
        answer(
            "429 Too Many Requests",
            "retry-after: 3\r\n",
            r#"{"error":{"errors":[{"reason":"rateLimitExceeded"}]}}"#,
        )
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let put = wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]));
    assert!(
        matches!(put, Err(BucketError::Unavailable { retry_after: Some(after), .. }) if after == Duration::from_secs(3)),
        "{put:?}"
    );
}

/// The store replies with another version than requested.
#[test]
fn another_generation_is_not_handed_out() {
    let script = store(|_| answer("200 OK", "x-goog-generation: 8\r\n", "text"));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let read = wait(bucket.get("k", None, Some(&ETag("7".into()))));
    assert!(matches!(read, Err(BucketError::Precondition { .. })), "{read:?}");
}

#[test]
fn an_endless_listing_ends() {
    let script = store(|_| json(r#"{"nextPageToken":"t"}"#));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.list(listing()))));
}

/// An answer that would fill the memory is rejected.
#[test]
fn an_answer_without_end_is_given_up() {
    let script = store(|_| answer("200 OK", "", &" ".repeat(33 << 20)));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let listed = wait(bucket.list(listing()));
    assert!(unavailable(&listed) && format!("{listed:?}").contains("longer than"), "{listed:?}");
}

#[test]
fn invalid_keys_cause_no_request() {
    let script = store(|_| found(7, ""));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let before = script.seen.lock().unwrap().len();
    for key in ["", ".", "..", "a\nb", "a\rb", &"x".repeat(1025)] {
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

/// Arbitrary bytes in a reply yield an error or a value; a mutation never reports "no effect" after
/// a status of success.
#[test]
fn hostile_answers_end_in_errors() {
    let reply = Arc::new(Mutex::new(String::new()));
    let now = reply.clone();
    let script = store(move |_| Reply::ThenClose(now.lock().unwrap().clone()));
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let config =
        ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(header in "[ -~]{0,40}", body in "\\PC{0,80}", json: bool)| {
        let body = if json { format!("{{\"items\":[{{\"name\":{body:?}}}],\"generation\":{body:?}}}") } else { body };
        *reply.lock().unwrap() = format!(
            "HTTP/1.1 200 OK\r\nx-goog-generation: {header}\r\nlast-modified: \
             {header}\r\ncontent-range: {header}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        drop(wait(bucket.head("k")));
        drop(wait(bucket.get("k", Some(3..9), None)));
        drop(wait(bucket.list(listing())));
        let put = wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]));
        prop_assert!(put.is_ok() || unknown(&put), "{put:?}");
    });
}
