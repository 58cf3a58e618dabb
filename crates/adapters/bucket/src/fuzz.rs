//! What the fuzz targets reach.

use crate::http::page::page;
use crate::{azure, gcs, s3};
use ebb_ports::ListRequest;

/// A body that any of the stores might have sent as a page of a listing.
pub fn listing(body: &[u8]) {
    let request = ListRequest { prefix: "d/".into(), by_directory: true, after: Some("d/b".into()), limit: 10 };
    s3::listing::read_uploads(body);
    for read in [s3::listing::read, gcs::listing::read, azure::listing::read] {
        let Some(listed) = read(body) else { continue };
        let page = page(listed.entries, listed.more, &request);
        let keys: Vec<&str> = page.entries.iter().map(|entry| entry.key()).collect();
        assert!(keys.len() <= request.limit && keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert!(keys.iter().all(|key| key.starts_with("d/") && *key > "d/b"), "{keys:?}");
    }
}
