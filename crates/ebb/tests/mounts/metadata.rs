//! The bound of the memory that names and attributes take, on a real mount.

use crate::place::{Place, until};
use std::fs::{self, File};

/// Files are created until ENOSPC. Status reports the reason, and removals end it.
#[test]
fn metadata_memory_limit_refuses_creations() {
    let place = Place::new();
    // Dirty names cannot be evicted.
    place.mount_with(&["--metadata-memory", "1M", "--flush-interval", "1h"]);
    let path = |number: usize| place.path(&format!("mnt/d/{number}"));
    fs::create_dir(place.path("mnt/d")).unwrap();
    let (count, refused) = (0..100_000)
        .find_map(|number| File::create(path(number)).err().map(|error| (number, error)))
        .unwrap();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    assert!(count > 4000, "{count} files in 1 MiB");
    let status = place.ebb(&["status", "mnt", "--json"]).good().json();
    assert_eq!(status["metadata_limit_bytes"], 1 << 20);
    let taken = status["metadata_bytes"].as_u64().unwrap();
    assert!((1_040_000..=1 << 20).contains(&taken), "{status}");
    let shown = place.ebb(&["status", "mnt"]).good().out;
    assert!(shown.contains("of 1 MiB\n") && shown.contains("--metadata-memory"), "{shown}");

    fs::write(path(0), "what is there can be written to").unwrap();
    for number in 1..count {
        fs::remove_file(path(number)).unwrap();
    }
    File::create(path(count)).unwrap();
    until("there is room again", || {
        place.ebb(&["status", "mnt", "--json"]).good().json()["troubles"] == serde_json::json!([])
    });
    place.umount();
}
