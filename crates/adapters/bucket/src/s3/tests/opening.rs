use super::{keys, open, open_as};
use crate::http::credentials::Environment;
use crate::http::script::{Reply, answer, forward, serve};
use crate::http::transport::Transport;
use crate::{BucketSettings, OpenError};
use ebb_ports::Bucket;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

fn error_of(status: &'static str, headers: &'static str, body: &'static str) -> OpenError {
    let script = serve(true, move |_| answer(status, headers, body));
    open(&script.address, keys(), &[]).map(drop).unwrap_err()
}

#[test]
fn opening_reports_the_fault_of_a_bucket() {
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
fn a_store_that_is_not_there_is_said() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let impatient = || BucketSettings { patience: Some(Duration::from_millis(300)), ..keys() };
    let error = open(&format!("http://127.0.0.1:{port}"), impatient(), &[]).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("check the endpoint"), "{error}");
    let closed = serve(true, |_| Reply::Close);
    assert!(matches!(
        open(&closed.address, impatient(), &[]).map(drop),
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

/// Situation: one of the requests of an opening meets a passing fault, each of them in turn.
/// Expectation: it is sent again, and the opening has the same result as without the fault.
#[test]
fn opening_repeats_any_request_after_a_passing_fault() {
    let server = ebb_s3_server::start().unwrap();
    let settings = |endpoint: &str| BucketSettings {
        endpoint: Some(endpoint.into()),
        access_key: Some(ebb_s3_server::ACCESS_KEY.into()),
        secret_key: Some(ebb_s3_server::SECRET_KEY.into()),
        ..BucketSettings::default()
    };
    let well = open_as(settings(&server), &[]).unwrap();
    let faults: [fn() -> Reply; 3] = [
        || answer("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>"),
        || answer("500 Internal Server Error", "", "<Error><Code>InternalError</Code></Error>"),
        || Reply::Close,
    ];
    for fault in faults {
        for faulty in 1.. {
            let count = Arc::new(AtomicU32::new(0));
            let (server, counted) = (server.clone(), count.clone());
            let script =
                serve(true, move |request| match counted.fetch_add(1, Relaxed) + 1 == faulty {
                    true => fault(),
                    false => forward(&server, request),
                });
            let opened = open_as(settings(&script.address), &[]).unwrap();
            assert_eq!(opened.capabilities(), well.capabilities(), "request {faulty}");
            if count.load(Relaxed) < faulty {
                break;
            }
        }
    }
}

/// Expectation: a store that stays busy is named so, with its own reason.
#[test]
fn busy_store_is_no_matter_of_rights() {
    let busy = || answer("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>");
    let settings = |endpoint: &str, read_only| BucketSettings {
        endpoint: Some(endpoint.into()),
        patience: Some(Duration::from_secs(2)),
        read_only,
        ..keys()
    };
    // To reads as to writes.
    for (whole, read_only) in [(true, true), (false, false)] {
        let script = serve(whole, move |_| busy());
        let error = open_as(settings(&script.address, read_only), &[]).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Busy { .. }), "{text}");
        assert!(text.contains("SlowDown") && text.contains("try again later"), "{text}");
        assert!(text.contains("(asked "), "{text}");
    }
}

/// Situation: the store redirects and names no region. Expectation: the message names the target of
/// the redirect, and the setting to change.
#[test]
fn redirect_without_region_names_the_setting() {
    let by_body = error_of(
        "301 Moved",
        "",
        "<Error><Code>PermanentRedirect</Code><Endpoint>b.s3.eu.example</Endpoint></Error>",
    );
    assert!(by_body.to_string().contains("at b.s3.eu.example; set the endpoint"), "{by_body}");
    let by_header = error_of("308 Permanent Redirect", "location: https://h.example/b\r\n", "");
    assert!(by_header.to_string().contains("at https://h.example/b; set"), "{by_header}");
    let nowhere = error_of("301 Moved", "", "<Error><Code>PermanentRedirect</Code></Error>");
    assert!(nowhere.to_string().contains("or the region, which is us-east-1"), "{nowhere}");
}

/// Expectation: a name that no bucket has is refused without a request.
#[test]
fn bad_name_is_told_before_any_request() {
    let refused = |name: &str, endpoint: Option<&str>| {
        let settings = BucketSettings { endpoint: endpoint.map(str::to_owned), ..keys() };
        let environment: Environment = Arc::new(|_| None);
        let client = crate::s3::client(name, &settings, environment, Transport::to_store);
        client.map(drop).map_err(|error| error.to_string())
    };
    let own = Some("http://127.0.0.1:9");
    for name in ["ab", "-abc", "abc-", "a..b", "10.0.0.1"] {
        for endpoint in [None, own] {
            let error = refused(name, endpoint).unwrap_err();
            assert!(error.contains("cannot be the name of a bucket"), "{name}: {error}");
        }
    }
    // Other stores have these.
    for name in ["Bucket", "my_bucket"] {
        assert!(refused(name, None).is_err() && refused(name, own).is_ok(), "{name}");
    }
    assert_eq!(refused("my.bucket-1", None), Ok(()));
}

/// Situation: the endpoint is an http URL of a port that speaks TLS, or an https URL of one that
/// does not. Expectation: the error says so.
#[test]
fn endpoint_of_the_wrong_scheme_is_told() {
    let impatient = || BucketSettings { patience: Some(Duration::from_secs(5)), ..keys() };
    // An HTTP server's answer to a TLS hello.
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in plain.incoming() {
            let mut client = client.unwrap();
            assert!(client.read(&mut [0; 4096]).unwrap() > 0);
            client.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    let error = open(&address, impatient(), &[]).map(drop).unwrap_err().to_string();
    assert!(error.contains("plain port begins with http://"), "{error}");
    // The alert of a TLS server, and the end of the connection without one.
    for alert in ["\u{15}\u{3}\u{3}\0\u{2}\u{2}2", ""] {
        let tls = serve(true, move |_| Reply::ThenClose(alert.into())).address;
        let error = open(&tls, impatient(), &[]).map(drop).unwrap_err().to_string();
        assert!(error.contains("begins with https://"), "{error}");
    }
}
