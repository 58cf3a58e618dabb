//! Each source is shown by the access key and token that the store sees.

use super::{open, wait};
use crate::http::script::{Reply, Script, answer, empty_listing, serve};
use crate::{BucketSettings, OpenError};
use ebb_ports::Bucket;
use std::path::Path;
use std::time::Duration;

const JSON: &str = r#"{"AccessKeyId":"AKIAROLE","SecretAccessKey":"s","Token":"tok","Expiration":"2099-01-01T00:00:00Z"}"#;

fn store() -> Script {
    serve(true, |_| empty_listing())
}

fn signed_by(script: &Script) -> (String, Option<String>) {
    let seen = script.seen.lock().unwrap();
    let last = seen.last().unwrap();
    let after =
        |mark: &str, end: &str| Some(last.split_once(mark)?.1.split_once(end)?.0.to_string());
    (after("Credential=", "/").unwrap(), after("x-amz-security-token: ", "\r\n"))
}

fn missing(variables: &[(&str, &str)], settings: BucketSettings) -> String {
    let error = open(&store().address, settings, variables).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Forbidden { .. } | OpenError::Settings { .. }), "{error}");
    error.to_string()
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn the_environment_comes_first() {
    let store = store();
    let variables = [
        ("AWS_ACCESS_KEY_ID", "AKIAENV"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_SESSION_TOKEN", "t"),
        ("AWS_REGION", "eu-central-1"),
    ];
    open(&store.address, BucketSettings::default(), &variables).unwrap();
    assert_eq!(signed_by(&store), ("AKIAENV".into(), Some("t".into())));
    assert!(store.seen.lock().unwrap()[0].contains("/eu-central-1/s3/aws4_request"));
}

#[test]
fn profiles_are_read_from_both_files() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    write(
        &home.path().join(".aws/credentials"),
        "# a comment\n[default]\naws_access_key_id = \
         AKIADEF\naws_secret_access_key=s\n\n[work]\naws_access_key_id=AKIAWORK\naws_secret_access_key=a=b\n",
    );
    write(
        &home.path().join(".aws/config"),
        "[profile work]\nregion = eu-west-3\ns3 =\n  region = wrong\n[profile sso]\nsso_session = \
         x\n[profile half]\naws_access_key_id = x\n",
    );
    let home = home.path().to_str().unwrap();
    let store = store();
    open(&store.address, BucketSettings::default(), &[("HOME", home)]).unwrap();
    assert_eq!(signed_by(&store), ("AKIADEF".into(), None));
    open(&store.address, BucketSettings::default(), &[("HOME", home), ("AWS_PROFILE", "work")])
        .unwrap();
    assert_eq!(signed_by(&store), ("AKIAWORK".into(), None));
    assert!(store.seen.lock().unwrap().last().unwrap().contains("/eu-west-3/s3/"));
    // The configured profile takes precedence over keys in the environment.
    let named = || BucketSettings { profile: Some("work".into()), ..BucketSettings::default() };
    open(
        &store.address,
        named(),
        &[("HOME", home), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y")],
    )
    .unwrap();
    assert_eq!(signed_by(&store).0, "AKIAWORK");
    for (profile, said) in
        [("sso", "sso_session"), ("half", "only one of"), ("nobody", "in neither")]
    {
        let error = missing(&[("HOME", home), ("AWS_PROFILE", profile)], BucketSettings::default());
        assert!(error.contains(said), "{error}");
    }
}

/// Keys are rotated in the file while the process runs, and the old ones stop being valid.
#[test]
fn rotated_keys_are_picked_up_without_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("credentials");
    let profile =
        |key: &str| format!("[default]\naws_access_key_id={key}\naws_secret_access_key=s\n");
    write(&file, &profile("AKIAOLD"));
    let valid = std::sync::Arc::new(std::sync::Mutex::new("AKIAOLD"));
    let now_valid = valid.clone();
    let store = serve(true, move |request| match request.contains(*now_valid.lock().unwrap()) {
        true if request.starts_with("HEAD") => {
            Reply::Answer("HTTP/1.1 200 OK\r\ncontent-length: 1\r\netag: \"e\"\r\n\r\n".into())
        }
        true => empty_listing(),
        false if request.starts_with("HEAD") => {
            Reply::Answer("HTTP/1.1 403 Forbidden\r\n\r\n".into())
        }
        false => answer("403 Forbidden", "", "<Error><Code>InvalidAccessKeyId</Code></Error>"),
    });
    let bucket = open(
        &store.address,
        BucketSettings::default(),
        &[("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())],
    )
    .unwrap();
    wait(bucket.head("k")).unwrap();
    *valid.lock().unwrap() = "AKIANEW";
    write(&file, &profile("AKIANEW"));
    // A source is used at most once a second.
    std::thread::sleep(Duration::from_millis(1100));
    wait(bucket.head("k")).unwrap();
    assert_eq!(signed_by(&store).0, "AKIANEW");
    *valid.lock().unwrap() = "AKIANOBODY";
    assert!(wait(bucket.head("k")).is_err());
}

#[test]
fn a_web_identity_is_exchanged() {
    let home = tempfile::tempdir().unwrap();
    let token = home.path().join("token");
    write(&token, "jwt+/=\n");
    let sts = serve(true, |request| {
        assert!(
            request.contains("WebIdentityToken=jwt%2B%2F%3D")
                && request.contains("RoleArn=arn%3Aaws%3Aiam"),
            "{request}"
        );
        answer(
            "200 OK",
            "",
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKIAWEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>tok</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        )
    });
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_ENDPOINT_URL_STS", &sts.address),
    ];
    let store = store();
    open(&store.address, BucketSettings::default(), &variables).unwrap();
    assert_eq!(signed_by(&store), ("AKIAWEB".into(), Some("tok".into())));
    let refusing = serve(true, |_| {
        answer(
            "400 Bad Request",
            "",
            "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>old</Message></Error></ErrorResponse>",
        )
    });
    let error = missing(
        &[variables[0], variables[1], ("AWS_ENDPOINT_URL_STS", &refusing.address)],
        BucketSettings::default(),
    );
    assert!(error.contains("InvalidIdentityToken"), "{error}");
}

#[test]
fn a_container_role_is_asked_for() {
    let agent = serve(true, |request| {
        assert!(
            request.starts_with("GET /creds ") && request.contains("authorization: hello"),
            "{request}"
        );
        answer("200 OK", "", JSON)
    });
    let store = store();
    let address = format!("{}/creds", agent.address);
    open(
        &store.address,
        BucketSettings::default(),
        &[
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &address),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hello"),
        ],
    )
    .unwrap();
    assert_eq!(signed_by(&store), ("AKIAROLE".into(), Some("tok".into())));
    let abroad = missing(
        &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1.evil.example/creds")],
        BucketSettings::default(),
    );
    assert!(abroad.contains("neither https nor"), "{abroad}");
}

#[test]
fn an_instance_role_is_asked_for() {
    let service = serve(true, |request| match request.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["PUT", "/latest/api/token"] => answer("200 OK", "", "session"),
        _ if !request.contains("x-aws-ec2-metadata-token: session") => {
            answer("401 Unauthorized", "", "")
        }
        ["GET", "/latest/meta-data/iam/security-credentials/"] => answer("200 OK", "", "my-role\n"),
        ["GET", "/latest/meta-data/iam/security-credentials/my-role"] => answer("200 OK", "", JSON),
        _ => answer("404 Not Found", "", ""),
    });
    let store = store();
    open(
        &store.address,
        BucketSettings::default(),
        &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.address)],
    )
    .unwrap();
    assert_eq!(signed_by(&store), ("AKIAROLE".into(), Some("tok".into())));
}

#[test]
fn without_any_source_it_says_where_they_were_looked_for() {
    let error = missing(&[("AWS_EC2_METADATA_DISABLED", "true")], BucketSettings::default());
    assert!(error.contains("AWS_ACCESS_KEY_ID"), "{error}");
    let half = missing(&[("AWS_ACCESS_KEY_ID", "x")], BucketSettings::default());
    assert!(half.contains("AWS_SECRET_ACCESS_KEY is not"), "{half}");
    let store = store();
    open(&store.address, BucketSettings { anonymous: true, ..BucketSettings::default() }, &[])
        .unwrap();
    assert!(!store.seen.lock().unwrap()[0].contains("authorization"));
}
