//! Azure blobs keep every clause: at the URL in EBB_TEST_STORE, where that is one of theirs
//! (endpoint and credentials from the environment). `cargo xtask conformance stores` starts
//! an emulator and sets it.

use ebb_bucket::{BucketSettings, suite};

#[test]
fn azure_blobs_pass_the_suite() {
    let Some(url) = std::env::var("EBB_TEST_STORE").ok().filter(|url| url.starts_with("az://"))
    else {
        return;
    };
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bucket = executor.block_on(ebb_bucket::open(&url, &BucketSettings::default())).unwrap();
    println!("{:?}", bucket.capabilities());
    suite::run(&bucket, std::env::var("EBB_TEST_ONLY").ok().as_deref(), &[]);
}
