//! What becomes of names while a directory is read.

use crate::place::Place;
use std::collections::BTreeSet;
use std::fs::{self, File};

const FILES: usize = 2000;

/// Situation: a program renames each file that a directory shows it, to and fro or for good.
/// Danger: the new name is further on, and shown again, without end. Expectation: each file is
/// shown once.
#[test]
fn who_renames_what_a_directory_shows_comes_to_the_end() {
    let place = Place::new();
    place.mount();
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..FILES {
        File::create(dir.join(format!("{number}"))).unwrap();
    }
    for to_and_fro in [true, false] {
        let mut shown = BTreeSet::new();
        for entry in fs::read_dir(&dir).unwrap() {
            let name = entry.unwrap().file_name();
            let new = if to_and_fro { "moved".into() } else { format!("{}.moved", name.display()) };
            fs::rename(dir.join(&name), dir.join(&new)).unwrap();
            if to_and_fro {
                fs::rename(dir.join(&new), dir.join(&name)).unwrap();
            }
            assert!(shown.insert(name), "a file is shown again");
        }
        assert_eq!(shown.len(), FILES);
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES);
    place.umount();
}
