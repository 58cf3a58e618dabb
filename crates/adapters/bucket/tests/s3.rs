//! S3 keeps every clause: against a server in this process, and against the one at
//! EBB_TEST_S3_ENDPOINT (bucket EBB_TEST_S3_BUCKET, `ebb-test` by default, which must
//! exist; credentials from the environment) where that is set.

use ebb_bucket::{BucketSettings, suite};

fn only() -> Option<String> {
    std::env::var("EBB_TEST_ONLY").ok()
}

fn open(url: &str, settings: &BucketSettings) -> Result<std::rc::Rc<dyn ebb_ports::Bucket>, ebb_bucket::OpenError> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ebb_bucket::open(url, settings))
}

#[test]
fn s3_passes_the_suite() {
    let settings = BucketSettings {
        endpoint: Some(ebb_s3_server::start().expect("a server")),
        access_key: Some(ebb_s3_server::ACCESS_KEY.into()),
        secret_key: Some(ebb_s3_server::SECRET_KEY.into()),
        ..BucketSettings::default()
    };
    let bucket = open("s3://bucket", &settings).unwrap();
    println!("{:?}", bucket.capabilities());
    suite::run(&bucket, only().as_deref(), &[]);
}

#[test]
fn another_s3_server_passes_the_suite() {
    let Ok(endpoint) = std::env::var("EBB_TEST_S3_ENDPOINT") else { return };
    let name = std::env::var("EBB_TEST_S3_BUCKET").unwrap_or_else(|_| "ebb-test".into());
    let bucket = open(&format!("s3://{name}/suite"), &BucketSettings { endpoint: Some(endpoint), ..BucketSettings::default() }).unwrap();
    println!("{:?}", bucket.capabilities());
    // Clauses that it is known not to keep, by name.
    let known = std::env::var("EBB_TEST_S3_KNOWN").unwrap_or_default();
    suite::run(&bucket, only().as_deref(), &known.split(',').collect::<Vec<_>>());
}
