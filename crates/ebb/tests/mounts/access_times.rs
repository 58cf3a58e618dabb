//! Access times under each mount option.

use crate::place::Place;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

/// When it was read, modified and changed, to the nanosecond.
fn times(path: &Path) -> [(i64, i64); 3] {
    let meta = fs::symlink_metadata(path).unwrap();
    [
        (meta.atime(), meta.atime_nsec()),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ]
}

/// Whether this moves the access time forward; asserts that no other time changes.
#[track_caller]
fn counts(path: &Path, reading: impl FnOnce()) -> bool {
    let [read, modified, changed] = times(path);
    reading();
    let [read_now, modified_now, changed_now] = times(path);
    assert_eq!((modified, changed), (modified_now, changed_now), "reading changes nothing else");
    assert!(read_now >= read);
    read_now > read
}

fn read(path: &Path) {
    assert_eq!(fs::read(path).unwrap(), b"content");
}

fn read_unnoted(path: &Path) {
    let mut content = Vec::new();
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(path)
        .unwrap()
        .read_to_end(&mut content)
        .unwrap();
    assert_eq!(content, b"content");
}

fn list(path: &Path) {
    assert!(fs::read_dir(path).unwrap().count() > 0);
}

fn place(options: &str) -> Place {
    let place = Place::over_s3();
    place.mount_with(&["-o", options]);
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/file"), "content").unwrap();
    symlink("file", place.path("mnt/dir/link")).unwrap();
    place
}

/// A bucket that is only read is not written to.
#[test]
fn they_stay_unless_it_is_asked_for() {
    for options in ["rw", "relatime,noatime"] {
        let place = place(options);
        let (dir, file, link) =
            (place.path("mnt/dir"), place.path("mnt/dir/file"), place.path("mnt/dir/link"));
        assert!(!counts(&file, || read(&file)));
        assert!(!counts(&dir, || list(&dir)));
        assert!(!counts(&link, || drop(fs::read_link(&link).unwrap())));
        place.umount();
    }
}

/// Independent of the kernel's caches: the first read since a change counts; later reads and reads
/// with O_NOATIME do not. The bucket stores access times like other times.
#[test]
fn relatime_records_first_read_since_a_change() {
    let place = place("relatime");
    let (dir, file, link) =
        (place.path("mnt/dir"), place.path("mnt/dir/file"), place.path("mnt/dir/link"));
    assert!(!counts(&file, || read_unnoted(&file)));
    assert!(!counts(&file, || drop(File::open(&file).unwrap())), "opening is not reading");
    assert!(counts(&file, || read(&file)));
    assert!(!counts(&file, || read(&file)));
    fs::write(&file, "content").unwrap();
    assert!(counts(&file, || read(&file)));
    assert!(counts(&dir, || list(&dir)));
    assert!(!counts(&dir, || list(&dir)));
    fs::write(dir.join("another"), "").unwrap();
    assert!(counts(&dir, || list(&dir)));
    assert!(counts(&link, || drop(fs::read_link(&link).unwrap())));
    let day_ago = fs::metadata(&file).unwrap().modified().unwrap()
        - std::time::Duration::from_secs(25 * 3600);
    let file_times = fs::FileTimes::new()
        .set_accessed(day_ago)
        .set_modified(day_ago - std::time::Duration::from_secs(1));
    File::options().write(true).open(&file).unwrap().set_times(file_times).unwrap();
    assert!(counts(&file, || read(&file)));
    let before = times(&file);
    place.umount();
    place.drop_cache();
    place.mount_with(&["-o", "relatime"]);
    assert_eq!(times(&file), before);
    assert!(!counts(&file, || read(&file)));
    place.umount();
    // A read-only mount reads without updating access times.
    place.mount_with(&["-o", "ro,strictatime"]);
    assert!(!counts(&file, || read(&file)));
    place.umount();
}

/// Situation: a program reads files whose attributes the kernel has from a listing, without a
/// look-up before. Danger: the daemon does not know that they are unread, and updates nothing.
/// Expectation: the reads count, also those of a file with preallocated space.
#[test]
fn relatime_counts_reads_after_a_listing() {
    let place = place("relatime");
    let (dir, file, link) =
        (place.path("mnt/dir"), place.path("mnt/dir/file"), place.path("mnt/dir/link"));
    place.umount();
    place.mount_with(&["-o", "relatime"]);
    list(&dir);
    read(&file);
    fs::read_link(&link).unwrap();
    for path in [&file, &link] {
        let [read, modified, _] = times(path);
        assert!(read > modified, "{path:?}");
    }
    assert!(!counts(&file, || self::read(&file)));
    place.program("fallocate", &["-l", "7", file.to_str().unwrap()]).good();
    let before = times(&file)[0];
    read(&file);
    assert!(times(&file)[0] > before);
    place.umount();
}

#[test]
fn strictatime_counts_every_opening_that_is_read_from() {
    let place = place("strictatime,nodiratime");
    let (dir, file) = (place.path("mnt/dir"), place.path("mnt/dir/file"));
    for _ in 0..3 {
        assert!(counts(&file, || read(&file)));
        assert!(!counts(&file, || read_unnoted(&file)));
        assert!(!counts(&dir, || list(&dir)));
    }
    let mut both = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    assert!(counts(&file, || {
        let mut content = Vec::new();
        both.rewind().unwrap();
        both.read_to_end(&mut content).unwrap();
    }));
    drop(both);
    place.umount();
}
