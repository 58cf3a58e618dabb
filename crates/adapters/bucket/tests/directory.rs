//! A directory keeps every clause.

use ebb_bucket::{BucketSettings, suite};

fn open(path: &std::path::Path) -> std::rc::Rc<dyn ebb_ports::Bucket> {
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    executor
        .block_on(ebb_bucket::open(
            &format!("file://{}", path.display()),
            &BucketSettings::default(),
        ))
        .unwrap()
}

#[test]
fn a_directory_passes_the_suite() {
    let root = tempfile::tempdir().unwrap();
    suite::run(&open(root.path()), std::env::var("EBB_TEST_ONLY").ok().as_deref(), &[]);
}
