//! Large files that are sent while they grow, over S3.

use crate::place::{Place, until};
use std::fs::{self, File};
use std::io::Write;

const MIB: usize = 1 << 20;

fn content(at: usize) -> Vec<u8> {
    (0..MIB).map(|byte| (at * 7 + byte / 100) as u8).collect()
}

/// Complete parts are uploaded before the file is closed, and not again; leftovers of a killed
/// daemon are deleted.
#[test]
fn a_file_is_in_the_bucket_soon_after_its_last_byte() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let counted = |request: &str, what: &str| {
        let stats = place.ebb(&["stats", "mnt", "--interval", "0", "--json"]).good().json();
        stats["node"]["bucket"][request][what].as_u64().unwrap_or(0)
    };
    let write = |name: &str| {
        let mut file = File::create(place.path(name)).unwrap();
        (0..50).for_each(|at| file.write_all(&content(at)).unwrap());
        until("what is whole is there", || counted("put", "bytes") >= 48 * MIB as u64);
    };
    write("mnt/killed");
    place.kill("mnt");
    place.mount_with(&["--flush-interval", "1h"]);
    fs::remove_file(place.path("mnt/killed")).unwrap();
    write("mnt/new");
    fs::rename(place.path("mnt/new"), place.path("mnt/file")).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    assert_eq!(counted("upload-part", "bytes"), 2 * MIB as u64);
    // Parts of 8 MiB: the leftover ones, and those that became the file.
    until("nothing else is left", || counted("delete", "count") == 12);
    assert!(place.ebb(&["fsck", "mnt"]).good().out.contains("no problem"));
    place.umount();
    place.ebb(&["mount", place.url(), "mnt", "--data", "elsewhere"]).good();
    let found = fs::read(place.path("mnt/file")).unwrap();
    assert!(
        (0..50).all(|at| found[at * MIB..(at + 1) * MIB] == content(at)) && found.len() == 50 * MIB
    );
    place.umount();
}
