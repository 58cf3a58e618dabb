use super::{keys, open, open_as, wait};
use crate::BucketSettings;
use crate::http::script::{Reply, answer, empty_listing, serve};
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ETag, ListRequest, PartTag, Piece, UploadId};
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

/// The connection closes after the request was read. Expectation: reads have no effect, and a
/// mutation has an unknown outcome and was sent exactly once.
#[test]
fn a_lost_reply_is_unknown_only_for_mutations() {
    let script = serve(false, |_| Reply::Close);
    let bucket = open(&script.address, keys(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.get("k", None, None))));
    assert!(unavailable(&wait(bucket.head("k"))));
    assert!(unavailable(&wait(bucket.list(listing()))));
    let before = script.seen.lock().unwrap().len();
    let upload = UploadId("u".into());
    assert!(unknown(&wait(bucket.put("k", Bytes::from_static(b"x"), Condition::Always, vec![]))));
    assert!(unknown(&wait(bucket.delete("k", None))));
    assert!(unknown(&wait(bucket.copy("a", "b", None, Condition::Always))));
    assert!(unknown(&wait(bucket.upload_begin("k", vec![]))));
    assert!(unknown(&wait(bucket.upload_part("k", &upload, 1, Bytes::from_static(b"x")))));
    let piece = Piece { key: "from".into(), etag: ETag("e".into()), range: 0..5 };
    assert!(unknown(&wait(bucket.upload_part_copy("k", &upload, 1, piece))));
    assert!(unknown(&wait(bucket.upload_complete(
        "k",
        &upload,
        vec![PartTag { number: 1, receipt: "e".into() }],
        Condition::Always
    ))));
    assert!(unknown(&wait(bucket.upload_abort("k", &upload))));
    assert_eq!(script.seen.lock().unwrap().len() - before, 8);
}

#[test]
fn a_body_that_breaks_off_is_never_handed_out() {
    let head = "HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 100\r\n\r\n";
    let script = serve(false, move |_| Reply::ThenClose(format!("{head}too short")));
    let bucket = open(&script.address, keys(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.get("k", None, None))));
    assert!(unavailable(&wait(bucket.list(listing()))));
}

/// Completion and copy reply 200 and send blanks as keep-alive before they know the result.
#[test]
fn an_error_inside_a_success_is_an_error() {
    let play = |code: &'static str| {
        let body = format!(
            "\n \n<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>"
        );
        let script = serve(false, move |_| answer("200 OK", "", &body));
        let bucket = open(&script.address, keys(), &[]).unwrap();
        let parts = vec![PartTag { number: 1, receipt: "e".into() }];
        let completed =
            wait(bucket.upload_complete("k", &UploadId("u".into()), parts, Condition::Always));
        assert_eq!(
            completed.is_err(),
            wait(bucket.copy("a", "b", None, Condition::Always)).is_err()
        );
        completed
    };
    assert!(unknown(&play("InternalError")));
    assert!(unknown(&play("SomethingNew")));
    assert!(unavailable(&play("SlowDown")));
    assert!(matches!(play("NoSuchUpload"), Err(BucketError::NotFound { .. })));
    assert!(matches!(play("PreconditionFailed"), Err(BucketError::Precondition { .. })));
}

#[test]
fn a_success_that_cannot_be_read_is_no_success() {
    for body in ["", "<html>", "<CompleteMultipartUploadResult>", "<a/>", "\u{0}"] {
        let script = serve(false, move |_| answer("200 OK", "", body));
        let bucket = open(&script.address, keys(), &[]).unwrap();
        let parts = vec![PartTag { number: 1, receipt: "e".into() }];
        assert!(
            unknown(&wait(bucket.upload_complete(
                "k",
                &UploadId("u".into()),
                parts,
                Condition::Always
            ))),
            "{body}"
        );
        assert!(unknown(&wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]))), "{body}");
        assert!(unavailable(&wait(bucket.list(listing()))), "{body}");
        assert!(wait(bucket.get("k", None, None)).is_err(), "no ETag: {body}");
    }
}

#[test]
fn a_store_that_is_busy_says_when_to_ask_again() {
    let script = serve(false, |_| {
        answer("503 Slow Down", "retry-after: 3\r\n", "<Error><Code>SlowDown</Code></Error>")
    });
    let bucket = open(&script.address, keys(), &[]).unwrap();
    let put = wait(bucket.put("k", Bytes::new(), Condition::Always, vec![]));
    assert!(
        matches!(put, Err(BucketError::Unavailable { retry_after: Some(after), .. }) if after == Duration::from_secs(3)),
        "{put:?}"
    );
}

/// A listing that claims more pages without a token must not become an endless loop.
#[test]
fn an_endless_listing_ends() {
    let body = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    let script = serve(false, move |_| answer("200 OK", "", body));
    let bucket = open(&script.address, keys(), &[]).unwrap();
    assert!(unavailable(&wait(bucket.list(listing()))));
}

/// A request without a key is one about the bucket.
#[test]
fn no_request_reaches_the_bucket_itself() {
    let script = serve(false, |_| answer("200 OK", "etag: \"e\"\r\n", ""));
    let bucket = open(&script.address, keys(), &[]).unwrap();
    let before = script.seen.lock().unwrap().len();
    let tag = ETag("e".into());
    assert!(matches!(wait(bucket.delete("", None)), Err(BucketError::Refused { .. })));
    assert!(matches!(
        wait(bucket.put("", Bytes::new(), Condition::Match(tag), vec![])),
        Err(BucketError::Refused { .. })
    ));
    assert!(matches!(
        wait(bucket.copy("k", &"x".repeat(1025), None, Condition::Always)),
        Err(BucketError::Refused { .. })
    ));
    assert_eq!(script.seen.lock().unwrap().len(), before);
}

/// A source above 5 GiB is copied by parts, each guarded by the source's tag.
#[test]
fn copy_beyond_the_limit_goes_by_parts() {
    let long = 6u64 << 30;
    let script = serve(false, move |request| {
        if request.starts_with("HEAD") {
            return Reply::Answer(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {long}\r\netag: \"src\"\r\nx-amz-meta-ebb-txn: \
                 t\r\n\r\n"
            ));
        }
        if request.starts_with("POST") && request.contains("uploads=") {
            assert!(request.contains("x-amz-meta-ebb-txn: t"), "{request}");
            return answer(
                "200 OK",
                "",
                "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
            );
        }
        if request.starts_with("POST") {
            assert!(request.contains("if-none-match: *\r\n"), "{request}");
            return answer(
                "200 OK",
                "",
                "<CompleteMultipartUploadResult><ETag>\"done-6\"</ETag></CompleteMultipartUploadResult>",
            );
        }
        if request.contains("partNumber=") {
            assert!(request.contains("x-amz-copy-source-if-match: \"src\""), "{request}");
            return answer(
                "200 OK",
                "",
                "<CopyPartResult><ETag>&quot;p&quot;</ETag></CopyPartResult>",
            );
        }
        answer(
            "400 Bad Request",
            "",
            "<Error><Code>InvalidRequest</Code><Message>too large for one copy</Message></Error>",
        )
    });
    let bucket = open(&script.address, keys(), &[]).unwrap();
    assert_eq!(
        wait(bucket.copy("from", "to", None, Condition::Absent)).unwrap(),
        ETag("done-6".into())
    );
    let seen = script.seen.lock().unwrap();
    assert_eq!(
        seen.iter().filter(|request| request.contains("x-amz-copy-source-range: bytes=")).count(),
        6
    );
    assert!(seen.iter().any(|request| request.contains(&format!(
        "bytes={}-{}",
        5u64 << 30,
        long - 1
    ))));
}

/// Situation: neither a multipart copy nor its abort succeeds. Expectation: the outcome is reported
/// as unknown, so that the caller looks for uploads.
#[test]
fn an_upload_that_a_failed_copy_leaves_is_said() {
    let script = serve(false, |request| match request.split(' ').next().unwrap() {
        "HEAD" => Reply::Answer(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: \"src\"\r\n\r\n",
            6u64 << 30
        )),
        "POST" => answer(
            "200 OK",
            "",
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
        ),
        "PUT" if !request.contains("partNumber=") => {
            answer("400 Bad Request", "", "<Error><Code>InvalidRequest</Code></Error>")
        }
        _ => answer("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>"),
    });
    let bucket = open(&script.address, keys(), &[]).unwrap();
    assert!(unknown(&wait(bucket.copy("from", "to", None, Condition::Always))));
}

/// Situation: a store rejects the condition on the target of a copy as unsupported. Expectation:
/// the copy runs without it.
#[test]
fn a_store_that_guards_no_copies_copies() {
    let script = serve(false, |request| match request {
        request if request.starts_with("HEAD") => {
            Reply::Answer("HTTP/1.1 200 OK\r\ncontent-length: 1\r\netag: \"src\"\r\n\r\n".into())
        }
        request if request.contains("if-none-match: ") => {
            answer("501 Not Implemented", "", "<Error><Code>NotImplemented</Code></Error>")
        }
        _ => answer("200 OK", "", "<CopyObjectResult><ETag>\"done\"</ETag></CopyObjectResult>"),
    });
    let bucket = open(&script.address, keys(), &[]).unwrap();
    assert_eq!(
        wait(bucket.copy("from", "to", None, Condition::Absent)).unwrap(),
        ETag("done".into())
    );
}

/// Situation: a store ignores If-Match of a GET. Expectation: the body is not taken for the
/// requested version.
#[test]
fn another_object_than_was_asked_for_is_none() {
    let script = serve(false, |_| answer("200 OK", "etag: \"new\"\r\n", "x"));
    let bucket = open(&script.address, keys(), &[]).unwrap();
    let got = wait(bucket.get("k", None, Some(&ETag("old".into()))));
    assert!(matches!(got, Err(BucketError::Precondition { .. })), "{got:?}");
    assert_eq!(wait(bucket.get("k", None, Some(&ETag("new".into())))).unwrap().body, "x");
}

/// Some stores ignore the copy-source header, and store an empty part.
#[test]
fn a_part_that_is_not_copied_is_no_part() {
    let script = serve(false, |_| answer("200 OK", "etag: \"e\"\r\n", ""));
    let bucket = open(&script.address, keys(), &[]).unwrap();
    let piece = Piece { key: "from".into(), etag: ETag("e".into()), range: 0..5 };
    let copied = wait(bucket.upload_part_copy("k", &UploadId("u".into()), 1, piece));
    assert!(matches!(copied, Err(BucketError::Refused { .. })), "{copied:?}");
}

/// A proxy weakens ETags in transit, and no condition holds for a weak tag: If-Match would always
/// fail. Expectation: an error at once, and a put that may have happened has an unknown outcome.
#[test]
fn a_weak_tag_is_no_tag() {
    let script = serve(false, |request| {
        match request.starts_with("GET") && request.contains("list-type=2") {
            true => answer(
                "200 OK",
                "",
                "<ListBucketResult><Contents><Key>k</Key><Size>1</Size><ETag>W/\"e\"</ETag></Contents></ListBucketResult>",
            ),
            false => answer("200 OK", "etag: W/\"e\"\r\n", "x"),
        }
    });
    let bucket = open(&script.address, keys(), &[]).unwrap();
    let refused = |error: BucketError| {
        assert!(
            matches!(&error, BucketError::Refused { what } if what.contains("weak")),
            "{error:?}"
        )
    };
    refused(wait(bucket.head("k")).unwrap_err());
    refused(wait(bucket.get("k", None, None)).unwrap_err());
    refused(
        wait(bucket.upload_part("k", &UploadId("u".into()), 1, Bytes::from_static(b"x")))
            .unwrap_err(),
    );
    assert!(unknown(&wait(bucket.put("k", Bytes::from_static(b"x"), Condition::Always, vec![]))));
}

/// A store with weak tags is not writable; the open reports it before the mount.
#[test]
fn a_store_of_weak_tags_is_refused_at_opening() {
    let script = serve(true, |request| match request.split(' ').next() {
        Some("GET") => empty_listing(),
        Some("PUT") if request.contains("if-match") => answer("412 Precondition Failed", "", ""),
        _ => answer("200 OK", "etag: W/\"e\"\r\n", ""),
    });
    let error = open_as(BucketSettings { endpoint: Some(script.address.clone()), ..keys() }, &[])
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("weak"), "{error}");
}
