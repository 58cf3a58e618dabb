//! bench, on a mount and on any directory.

use crate::place::{Place, until};
use std::fs;

const LITTLE: [&str; 4] = ["--files", "20", "--size", "2M"];

#[test]
fn any_directory_can_be_measured() {
    let place = Place::new();
    place.mount();
    for path in ["mnt", "backing"] {
        let done = place.ebb(&[&["bench", path, "--json"], &LITTLE[..]].concat()).good().json();
        let figures = done["figures"].as_array().unwrap();
        assert!(
            figures.len() > 10
                && figures.iter().all(|figure| figure["value"].as_f64().unwrap() > 0.0),
            "{done}"
        );
        assert_eq!((&done["files"], &done["size_bytes"]), (&20.into(), &(2 << 20).into()));
        let forced = figures
            .iter()
            .find(|figure| figure["name"].as_str().unwrap().contains("then fsync"))
            .unwrap();
        assert_eq!(forced["forced"], true, "{forced}");
    }
    let table = place.ebb(&[&["bench", "mnt"], &LITTLE[..]].concat()).good().out;
    assert!(
        ["small files", "large file", "metadata", "1/s", "MB/s", "not yet"]
            .iter()
            .all(|part| table.contains(part)),
        "{table}"
    );
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 0);

    place.ebb(&["bench", "no such directory"]).refused(1, "no such directory");
    place.ebb(&["bench", "mnt", "--size", "1"]).refused(2, "--size");
    place.umount();
}

/// Situation: SIGINT, or the terminal goes. Expectation: it ends soon, reports that, and leaves no
/// files.
#[test]
fn bench_interrupted_leaves_no_files() {
    let mut place = Place::new();
    for signal in [libc::SIGINT, libc::SIGHUP] {
        let bench =
            place.start_silent(&["bench", "backing", "--files", "1000000", "--threads", "2"]);
        let backing = place.path("backing");
        let made = || fs::read_dir(&backing).unwrap().count();
        until("it works", || made() == 1);
        assert_eq!(place.signal(bench, signal), 1);
        assert_eq!(made(), 0);
    }
}
