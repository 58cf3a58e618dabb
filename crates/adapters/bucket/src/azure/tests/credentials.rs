//! Each credential source, verified by the requests that the store receives.

use super::{error, head, last, open, store, wait};
use crate::BucketSettings;
use crate::http::script::{Script, answer, serve};
use ebb_ports::{Bucket, Condition};
use std::time::Duration;

fn plain() -> Script {
    store(|_| head("200 OK", ""))
}

/// Opens a store, sends one request, and returns that request.
fn seen(variables: &[(&str, &str)]) -> String {
    let store = plain();
    let bucket = open(&store.address, BucketSettings::default(), variables).unwrap();
    wait(bucket.head("k")).unwrap();
    last(&store)
}

fn missing(variables: &[(&str, &str)]) -> String {
    open(&plain().address, BucketSettings::default(), variables).map(drop).unwrap_err().to_string()
}

const TOKEN: &str = r#"{"access_token":"token","expires_in":"3599"}"#;

#[test]
fn the_key_of_the_account_signs() {
    for variables in [
        &[("AZURE_STORAGE_KEY", "aHVzaA==")][..],
        &[("AZURE_STORAGE_ACCOUNT", "acc"), ("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")],
        &[("AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;AccountKey=aHVzaA==")],
    ] {
        let request = seen(variables);
        assert!(
            request.contains("authorization: SharedKey acc:") && request.contains("x-ms-date: "),
            "{request}"
        );
        assert!(!request.contains("aHVzaA=="), "{request}");
    }
    let error = missing(&[("AZURE_STORAGE_KEY", "hush!")]);
    assert!(error.contains("no Base64") && !error.contains("hush"), "{error}");
}

/// The request for the source of a copy has the same signature.
#[test]
fn a_shared_access_signature_goes_along() {
    let store = store(|_| head("202 Accepted", "x-ms-copy-id: c\r\nx-ms-copy-status: success\r\n"));
    let bucket = open(
        &store.address,
        BucketSettings::default(),
        &[("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=a%2Bb")],
    )
    .unwrap();
    wait(bucket.copy("a", "b", None, Condition::Always)).unwrap();
    let request = last(&store);
    assert!(
        request.starts_with("PUT /acc/container/b?sv=1&sig=a%2Bb ")
            && request.contains("/acc/container/a?sv=1&sig=a%2Bb\r\n"),
        "{request}"
    );
    let error = missing(&[("AZURE_STORAGE_SAS_TOKEN", "hush")]);
    assert!(error.contains("no sig=") && !error.contains("hush"), "{error}");
}

#[test]
fn a_principal_shows_its_secret_or_anothers_word() {
    let service = serve(true, |request| {
        assert!(request.starts_with("POST /tenant/oauth2/v2.0/token "), "{request}");
        assert!(
            request.contains("client_secret=s") || request.contains("client_assertion=jwt"),
            "{request}"
        );
        assert!(request.contains("scope=https%3A%2F%2Fstorage.azure.com%2F.default"), "{request}");
        answer("200 OK", "", TOKEN)
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "jwt\n").unwrap();
    let common = [
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_CLIENT_ID", "c"),
        ("AZURE_AUTHORITY_HOST", &*service.address),
    ];
    for proof in
        [("AZURE_CLIENT_SECRET", "s"), ("AZURE_FEDERATED_TOKEN_FILE", file.to_str().unwrap())]
    {
        let request = seen(&[&common[..], &[proof]].concat());
        assert!(request.contains("authorization: Bearer token\r\n"), "{request}");
    }
    let refusing = serve(true, |_| {
        answer("401 Unauthorized", "", r#"{"error":"invalid_client","error_description":"no"}"#)
    });
    let error = missing(&[
        common[0],
        common[1],
        ("AZURE_AUTHORITY_HOST", &refusing.address),
        ("AZURE_CLIENT_SECRET", "hush"),
    ]);
    assert!(error.contains("invalid_client: no") && !error.contains("hush"), "{error}");
    let error = missing(&[
        common[0],
        common[1],
        ("AZURE_AUTHORITY_HOST", "http://evil.example"),
        ("AZURE_CLIENT_SECRET", "hush"),
    ]);
    assert!(error.contains("neither https"), "{error}");
}

#[test]
fn a_machine_has_an_identity() {
    let machine = serve(true, |request| {
        assert!(
            request.starts_with("GET /metadata/identity/oauth2/token?")
                && request.contains("metadata: true"),
            "{request}"
        );
        answer("200 OK", "", TOKEN)
    });
    assert!(
        seen(&[("AZURE_POD_IDENTITY_AUTHORITY_HOST", &machine.address)])
            .contains("authorization: Bearer token\r\n")
    );
    let agent = serve(true, |request| {
        assert!(
            request.contains("x-identity-header: h") && request.contains("client_id=c"),
            "{request}"
        );
        answer("200 OK", "", TOKEN)
    });
    let request = seen(&[
        ("IDENTITY_ENDPOINT", &agent.address),
        ("IDENTITY_HEADER", "h"),
        ("AZURE_CLIENT_ID", "c"),
    ]);
    assert!(request.contains("authorization: Bearer token\r\n"), "{request}");
    let other = serve(true, |_| answer("404 Not Found", "", ""));
    let error = missing(&[("AZURE_POD_IDENTITY_AUTHORITY_HOST", &other.address)]);
    assert!(error.contains("AZURE_STORAGE_CONNECTION_STRING"), "{error}");
}

/// A token expires early: the adapter requests a new one and repeats the request.
#[test]
fn a_doubted_token_is_replaced() {
    let mut number = 0;
    let service = serve(true, move |_| {
        number += 1;
        answer("200 OK", "", &format!(r#"{{"access_token":"t{number}","expires_in":3599}}"#))
    });
    let store = store(|request| match request.contains("Bearer t1\r\n") {
        true => error("401 Unauthorized", "InvalidAuthenticationInfo"),
        false => head("200 OK", ""),
    });
    let variables = [("AZURE_POD_IDENTITY_AUTHORITY_HOST", &*service.address)];
    let bucket = open(&store.address, BucketSettings::default(), &variables).unwrap();
    // A source is used at most once a second.
    std::thread::sleep(Duration::from_millis(1100));
    wait(bucket.head("k")).unwrap();
    assert!(last(&store).contains("Bearer t2\r\n"));
}
