//! The bucket in memory keeps every clause.

use ebb_bucket::{BucketSettings, suite};

#[test]
fn memory_passes_the_suite() {
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bucket = executor.block_on(ebb_bucket::open("mem://", &BucketSettings::default())).unwrap();
    suite::run(&bucket, None, &[]);
}
