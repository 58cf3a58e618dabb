//! More names than the node's memory may hold, on a real mount over a bucket.

use crate::place::Place;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const DIRS: usize = 40;
const FILES: usize = 300;

fn listed(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    // As `ls -l` does.
    entries
        .inspect(|entry| assert!(entry.metadata().unwrap().is_file()))
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// All names are visited again and again, within the node's memory limit. Inodes in use stay
/// unchanged, written files come back with their ids, and all files can be read again.
#[test]
fn a_bucket_that_does_not_fit_can_be_used() {
    let place = Place::new();
    for dir in 0..DIRS {
        let dir = place.path(&format!("backing/{dir}"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..FILES {
            fs::write(dir.join(format!("an object with a name {file}")), format!("{file}"))
                .unwrap();
        }
    }
    place.mount_with(&["--metadata-memory", "1M", "--flush-interval", "1s"]);
    let top = place.path("mnt");
    let used = File::open(top.join("7/an object with a name 7")).unwrap();
    let (used_ino, used_dir) = (used.metadata().unwrap().ino(), File::open(top.join("8")).unwrap());
    let used_dir_ino = used_dir.metadata().unwrap().ino();
    fs::create_dir(top.join("made")).unwrap();
    fs::write(top.join("made/file"), "made").unwrap();
    let made = fs::metadata(top.join("made/file")).unwrap();
    place.ebb(&["flush", "mnt"]).good();

    let expected: BTreeSet<String> =
        (0..FILES).map(|file| format!("an object with a name {file}")).collect();
    for round in 0..2 {
        for dir in 0..DIRS {
            assert_eq!(listed(&top.join(dir.to_string())), expected, "{dir} in round {round}");
            let file = (dir * 31 + round) % FILES;
            let read = fs::read_to_string(top.join(format!("{dir}/an object with a name {file}")))
                .unwrap();
            assert_eq!(read, file.to_string());
        }
        let status = place.ebb(&["status", "mnt", "--json"]).good().json();
        // One listing batch may exceed the limit.
        assert!(status["metadata_bytes"].as_u64().unwrap() < (1 << 20) + (128 << 10), "{status}");
        assert!(status["inodes"].as_u64().unwrap() < (DIRS * FILES * 3 / 4) as u64, "{status}");
    }
    assert_eq!(
        fs::metadata(top.join("7/an object with a name 7")).unwrap().ino(),
        used_ino,
        "it is open"
    );
    assert_eq!(used.metadata().unwrap().ino(), used_ino);
    assert_eq!(used_dir.metadata().unwrap().ino(), used_dir_ino);
    let again = fs::metadata(top.join("made/file")).unwrap();
    assert_eq!(
        (again.ino(), again.mtime(), again.mtime_nsec()),
        (made.ino(), made.mtime(), made.mtime_nsec())
    );
    assert_eq!(fs::read_to_string(top.join("made/file")).unwrap(), "made");
    place.ebb(&["fsck", "mnt"]).good();
    drop((used, used_dir));
    place.umount();
}
