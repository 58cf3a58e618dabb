//! Each source is shown by the token that the store sees.

use super::super::token::tests::published_key;
use super::{error, found, json, open, open_as, store, wait};
use crate::BucketSettings;
use crate::http::script::{Script, answer, serve};
use ebb_ports::Bucket;
use serde_json::json as value;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn plain() -> Script {
    store(|_| found(7, ""))
}

fn shown(script: &Script) -> Option<String> {
    let seen = script.seen.lock().unwrap();
    let (_, rest) = seen.last().unwrap().split_once("authorization: Bearer ")?;
    Some(rest.split_once("\r\n")?.0.to_string())
}

fn missing(variables: &[(&str, &str)]) -> String {
    open(&plain().address, BucketSettings::default(), variables).map(drop).unwrap_err().to_string()
}

fn file(directory: &tempfile::TempDir, content: serde_json::Value) -> String {
    let path = directory.path().join("application_default_credentials.json");
    std::fs::write(&path, content.to_string()).unwrap();
    path.to_str().unwrap().into()
}

const TOKEN: &str = r#"{"access_token":"ya29.token","expires_in":3599,"token_type":"Bearer"}"#;

#[test]
fn a_service_account_signs_for_itself() {
    let service = serve(true, |request| {
        assert!(
            request.starts_with("POST /token")
                && request.contains("%3Ajwt-bearer")
                && request.contains("assertion=ey"),
            "{request}"
        );
        json(TOKEN)
    });
    let directory = tempfile::tempdir().unwrap();
    let account = |key: &str| {
        value!({ "type": "service_account", "client_email": "a@b", "private_key_id": "k",
                 "private_key": key, "token_uri": format!("{}/token", service.address) })
    };
    let path = file(&directory, account(published_key().expose()));
    let store = plain();
    open(&store.address, BucketSettings::default(), &[("GOOGLE_APPLICATION_CREDENTIALS", &path)])
        .unwrap();
    assert_eq!(shown(&store).unwrap(), "ya29.token");
    assert!(service.seen.lock().unwrap()[0].contains("assertion=ey"));
    let path = file(&directory, account("hush"));
    let error = missing(&[("GOOGLE_APPLICATION_CREDENTIALS", &path)]);
    assert!(error.contains("the key of a@b") && !error.contains("hush"), "{error}");
}

/// The file of `gcloud auth application-default login` is read from its usual path.
#[test]
fn a_user_is_refreshed() {
    let service = serve(true, |request| {
        assert!(
            request.contains("refresh_token=1%2F%2Fr")
                && request.contains("grant_type=refresh_token"),
            "{request}"
        );
        json(TOKEN)
    });
    let directory = tempfile::tempdir().unwrap();
    file(
        &directory,
        value!({ "type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "1//r", "token_uri": service.address }),
    );
    let store = plain();
    open(
        &store.address,
        BucketSettings::default(),
        &[("CLOUDSDK_CONFIG", directory.path().to_str().unwrap())],
    )
    .unwrap();
    assert_eq!(shown(&store).unwrap(), "ya29.token");
}

#[test]
fn a_refusal_of_the_token_service_is_said() {
    let service = serve(true, |_| {
        answer("400 Bad Request", "", r#"{"error":"invalid_grant","error_description":"expired"}"#)
    });
    let directory = tempfile::tempdir().unwrap();
    let path = file(
        &directory,
        value!({ "type": "authorized_user", "client_id": "c", "client_secret": "hush", "refresh_token": "hush", "token_uri": service.address }),
    );
    let error = missing(&[("GOOGLE_APPLICATION_CREDENTIALS", &path)]);
    assert!(error.contains("invalid_grant: expired") && !error.contains("hush"), "{error}");
}

#[test]
fn a_machine_has_a_service_account() {
    let service = serve(true, |request| {
        assert!(
            request.starts_with("GET /computeMetadata/v1/instance/service-accounts/default/token"),
            "{request}"
        );
        assert!(request.contains("metadata-flavor: Google"), "{request}");
        answer("200 OK", "metadata-flavor: Google\r\n", TOKEN)
    });
    let host = service.address.trim_start_matches("http://").to_string();
    let store = plain();
    open(&store.address, BucketSettings::default(), &[("GCE_METADATA_HOST", &host)]).unwrap();
    assert_eq!(shown(&store).unwrap(), "ya29.token");
    // Another cloud's service at the same address is none.
    let other = serve(true, |_| json(TOKEN));
    let error = missing(&[("GCE_METADATA_HOST", other.address.trim_start_matches("http://"))]);
    assert!(error.contains("GOOGLE_APPLICATION_CREDENTIALS"), "{error}");
}

#[test]
fn an_emulator_is_not_asked_for_credentials() {
    let store = plain();
    let settings = || BucketSettings { read_only: true, ..BucketSettings::default() };
    let host = store.address.trim_start_matches("http://");
    for host in [host, &store.address] {
        open_as(settings(), &[("STORAGE_EMULATOR_HOST", host)]).unwrap();
        assert_eq!(shown(&store), None);
    }
    let error = missing(&[("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")]);
    assert!(error.contains("/no/such/file"), "{error}");
}

/// A token is revoked early: the adapter requests a new one and repeats the request.
#[test]
fn a_doubted_token_is_replaced() {
    let number = Arc::new(Mutex::new(0));
    let service = serve(true, move |_| {
        *number.lock().unwrap() += 1;
        json(&format!(r#"{{"access_token":"t{}","expires_in":3599}}"#, number.lock().unwrap()))
    });
    let directory = tempfile::tempdir().unwrap();
    let path = file(
        &directory,
        value!({ "type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r", "token_uri": service.address }),
    );
    let store = store(|request| match request.contains("Bearer t1\r\n") {
        true => error("401 Unauthorized", "authError", "Invalid Credentials"),
        false => found(7, ""),
    });
    let bucket = open(
        &store.address,
        BucketSettings::default(),
        &[("GOOGLE_APPLICATION_CREDENTIALS", &path)],
    )
    .unwrap();
    // A source is used at most once a second.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(wait(bucket.head("k")).unwrap().etag.0, "7");
    assert_eq!(shown(&store).unwrap(), "t2");
}
