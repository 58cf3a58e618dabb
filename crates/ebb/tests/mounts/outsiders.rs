//! Other programs change the bucket of a mount with `--revalidate` (O-55).

use crate::place::{Place, until};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn external_changes_appear() {
    let place = Place::new();
    let [bucket, seen] = ["backing", "mnt"].map(|dir| move |name: &str| format!("{dir}/{name}"));
    let put = |name: &str, content: &str| {
        let path = place.path(&bucket(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // As tools do that leave nothing half written.
        let new = path.with_extension("new");
        fs::write(&new, content).unwrap();
        fs::rename(new, path).unwrap();
    };
    let read = |name: &str| fs::read_to_string(place.path(&seen(name))).ok();
    put("kept", "old");
    put("dir/gone", "gone");
    place.mount_with(&["--revalidate", "1s"]);
    assert_eq!((read("kept").as_deref(), read("dir/gone").as_deref()), (Some("old"), Some("gone")));
    assert_eq!(read("new"), None);
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 2);
    let before = fs::metadata(place.path("mnt")).unwrap().modified().unwrap();

    put("new", "new");
    put("deep/er/file", "deep");
    put("kept", "replaced by what is longer");
    fs::remove_dir_all(place.path("backing/dir")).unwrap();
    until("a new name is found", || read("new").as_deref() == Some("new"));
    until("a new directory is found", || read("deep/er/file").as_deref() == Some("deep"));
    // The kernel had its pages.
    until("a replaced file is read anew", || {
        read("kept").as_deref() == Some("replaced by what is longer")
    });
    until("a removed directory goes", || !place.path("mnt/dir").exists());
    let mut names: Vec<_> = fs::read_dir(place.path("mnt"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["deep", "kept", "new"]);
    assert!(fs::metadata(place.path("mnt")).unwrap().modified().unwrap() > before);
    place.umount();
}

/// Dirty changes survive repeated revalidation of their directory.
#[test]
fn an_own_file_is_left_alone() {
    let place = Place::new();
    place.mount_with(&["--revalidate", "1s", "--flush-interval", "0s"]);
    let file = fs::File::create(place.path("mnt/file")).unwrap();
    for round in 0..40u64 {
        file.write_all_at(&[round as u8; 1000], round * 1000).unwrap();
        assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 1);
        let read = fs::read(place.path("mnt/file")).unwrap();
        assert!(
            read.len() as u64 == (round + 1) * 1000
                && read.chunks(1000).zip(0..).all(|(part, byte)| part.iter().all(|b| *b == byte))
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(file);
    place.umount();
    assert_eq!(
        fs::read_dir(place.path("backing"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name() != ".ebb")
            .count(),
        1
    );
}

/// Situation: another program repeatedly replaces a file in the backing directory by one of equal
/// length, while it is changed on the mount. Danger: its versions have equal ETags, and one is
/// taken for another.
#[test]
fn versions_of_others_are_kept() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    let long = "n".repeat(240);
    for name in ["file", &long] {
        let mine = place.path("mnt").join(name);
        fs::write(&mine, "mine 0").unwrap();
        place.ebb(&["flush", "mnt"]).good();
        for round in 1..4 {
            fs::write(&mine, format!("mine {round}")).unwrap();
            let theirs = place.path("theirs");
            fs::write(&theirs, format!("their {round}")).unwrap();
            fs::rename(theirs, place.path("backing").join(name)).unwrap();
            place.ebb(&["flush", "mnt"]).good();
            assert_eq!(
                fs::read_to_string(place.path("backing").join(name)).unwrap(),
                format!("mine {round}")
            );
        }
    }
    let mut kept: Vec<String> = fs::read_dir(place.path("backing"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.display().to_string().contains(".ebb-conflict-"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    kept.sort();
    assert_eq!(kept, ["their 1", "their 1", "their 2", "their 2", "their 3", "their 3"]);
    place.umount();
}
