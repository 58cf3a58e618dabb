use super::{keys, open};
use crate::http::script::{Reply, answer, serve};
use crate::{BucketSettings, OpenError};
use std::time::Instant;

fn error_of(status: &'static str, headers: &'static str, body: &'static str) -> OpenError {
    let script = serve(true, move |_| answer(status, headers, body));
    open(&script.address, keys(), &[]).map(drop).unwrap_err()
}

#[test]
fn what_is_wrong_with_a_bucket_is_said() {
    let missing = error_of("404 Not Found", "", "<Error><Code>NoSuchBucket</Code></Error>");
    assert!(matches!(missing, OpenError::NoBucket { .. }), "{missing}");
    let forbidden = error_of(
        "403 Forbidden",
        "",
        "<Error><Code>AccessDenied</Code><Message>no</Message></Error>",
    );
    assert!(matches!(forbidden, OpenError::Forbidden { .. }), "{forbidden}");
    let elsewhere = error_of(
        "301 Moved",
        "x-amz-bucket-region: eu-west-1\r\n",
        "<Error><Code>PermanentRedirect</Code></Error>",
    );
    assert!(elsewhere.to_string().contains("region eu-west-1"), "{elsewhere}");
    for body in ["<html>hello</html>", "", "garbage <"] {
        let page = error_of("200 OK", "", body);
        assert!(page.to_string().contains("does not speak the S3 protocol"), "{page}");
    }
}

#[test]
fn a_store_that_is_not_there_is_said_fast() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let started = Instant::now();
    let error = open(&format!("http://127.0.0.1:{port}"), keys(), &[]).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("check the endpoint"), "{error}");
    assert!(started.elapsed().as_secs() < 5);
    let closed = serve(true, |_| Reply::Close);
    assert!(matches!(
        open(&closed.address, keys(), &[]).map(drop),
        Err(OpenError::Unreachable { .. })
    ));
}

#[test]
fn half_a_key_pair_is_said() {
    let half = BucketSettings { access_key: Some("a".into()), ..BucketSettings::default() };
    let error = open("http://127.0.0.1:9", half, &[]).map(drop).unwrap_err();
    assert!(error.to_string().contains("go together"), "{error}");
}

#[test]
fn secrets_are_not_shown() {
    let settings = BucketSettings { session_token: Some("hush-token".into()), ..keys() };
    assert!(!format!("{settings:?}").contains("hush"));
    let script = serve(true, |_| {
        answer("403 Forbidden", "", "<Error><Code>SignatureDoesNotMatch</Code></Error>")
    });
    let error = open(&script.address, settings, &[]).map(drop).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hush"));
}
