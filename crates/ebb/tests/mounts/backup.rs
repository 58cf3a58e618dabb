//! `ebb backup` and `ebb restore` after the loss of a data directory.

use crate::place::Place;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn target(place: &Place) -> String {
    fs::create_dir(place.path("backup")).unwrap();
    format!("file://{}", place.text("backup"))
}

fn write(place: &Place, name: &str, content: &str) {
    fs::write(place.path("mnt").join(name), content).unwrap();
}

fn read(place: &Place, name: &str) -> String {
    fs::read_to_string(place.path("mnt").join(name)).unwrap()
}

/// A tree of files whose bucket state is current, outdated or missing.
fn fill(place: &Place) {
    fs::create_dir(place.path("mnt/d")).unwrap();
    for name in ["d/kept", "d/changed", "d/removed"] {
        write(place, name, &format!("content of {name}"));
    }
    fs::set_permissions(place.path("mnt/d/kept"), fs::Permissions::from_mode(0o604)).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    write(place, "d/changed", "newer");
    write(place, "d/new", "never sent");
    fs::write(place.path("mnt/d").join(OsStr::from_bytes(b"\xff")), "nor this").unwrap();
    symlink("kept", place.path("mnt/d/link")).unwrap();
    fs::rename(place.path("mnt/d/kept"), place.path("mnt/d/renamed")).unwrap();
}

fn check(place: &Place, ino: u64) {
    assert_eq!(read(place, "d/renamed"), "content of d/kept");
    assert_eq!(read(place, "d/removed"), "content of d/removed");
    assert_eq!(read(place, "d/changed"), "content of d/changed");
    assert_eq!(fs::read_link(place.path("mnt/d/link")).unwrap().to_str(), Some("kept"));
    let renamed = fs::metadata(place.path("mnt/d/renamed")).unwrap();
    assert_eq!((renamed.ino(), renamed.mode() & 0o777), (ino, 0o604));
    let lost = fs::read(place.path("mnt/d/new")).unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(libc::EIO));
    let explained = place.ebb(&["explain", "mnt/d/new", "--json"]).good().json();
    assert_eq!(
        (&explained["missing_object"], &explained["object"]),
        (&"lost".into(), &serde_json::Value::Null)
    );
    let outcomes = explained["survives"].as_object().unwrap();
    assert!(
        outcomes.values().all(|outcome| outcome.as_str().unwrap().contains("lost already")),
        "{explained}"
    );
    let status = place.ebb(&["status", "mnt"]).good().out;
    assert!(
        status.contains("the bytes of d/new are nowhere") && !status.contains("can still be read"),
        "{status}"
    );
}

/// Situation: a node's disk is lost, with changes that had not reached the bucket. Expectation: a
/// restore lists the losses, waits for consent, and then restores names, attributes and inode ids;
/// lost data is an error on read, and can be rewritten.
#[test]
fn a_lost_data_directory_is_restored() {
    for place in [Place::new(), Place::over_s3()] {
        let backup = target(&place);
        place.mount_with(&["--flush-interval", "1h"]);
        fill(&place);
        let ino = fs::metadata(place.path("mnt/d/renamed")).unwrap().ino();
        let inside = format!("{}/below", place.url());
        if place.url().starts_with("s3") {
            place.ebb(&["backup", "mnt", &inside]).refused(2, "would be shown in the volume");
        }
        place.ebb(&["backup", "mnt", &backup]).good();
        place.ebb(&["backup", "mnt", &backup]).refused(1, "there is a backup in");
        place.kill("mnt");
        place.ebb(&["umount", "--lazy", "--no-wait", "mnt"]);
        fs::rename(place.path("data"), place.path("lost")).unwrap();

        let args = ["restore", &backup, "data", place.url(), "--json"];
        let told = place.ebb(&args);
        assert_eq!(told.status, 1, "{told:?}");
        let expected = serde_json::json!({
            "restored": false, "inodes": 8, "others": 0, "older": [{ "path": "d/changed" }], "changed": [],
            "lost": [{ "path": "d/new" }, { "path": "d/\u{fffd}", "path_bytes": "642fff" }],
        });
        assert_eq!(told.json(), expected);
        assert!(told.err.contains("nothing is done without --yes"), "{told:?}");
        place
            .ebb(&["restore", &backup, "lost", place.url(), "--yes"])
            .refused(1, "it is used, and nothing is restored over it");
        let done = place
            .ebb(&["restore", &backup, "data", place.url(), "--yes", "--take-over=now"])
            .good();
        assert!(
            done.out.contains("older    /d/changed\nlost     /d/new\nlost     /d/\\xff\n"),
            "{done:?}"
        );
        place.mount();
        check(&place, ino);
        write(&place, "d/new", "written anew");
        place.umount();
        place.drop_cache();
        place.mount();
        assert_eq!(
            (read(&place, "d/new").as_str(), read(&place, "d/renamed").as_str()),
            ("written anew", "content of d/kept")
        );
        place.umount();
        // Data recovered from the bucket is older than the restore.
        place
            .ebb(&["mount", place.url(), "mnt", "--data", "lost"])
            .refused(1, "was served by another node");
    }
}

/// Situation: the data directory is encrypted. Danger: that the backup is not. Expectation: it is,
/// with the same key, without which nothing is restored.
#[test]
fn backup_of_encrypted_data_directory_is_encrypted() {
    let place = Place::new();
    let key = ["--encryption-key-file", "key"];
    fs::write(place.path("key"), "00".repeat(32)).unwrap();
    fs::write(place.path("other"), "01".repeat(32)).unwrap();
    let backup = target(&place);
    place.mount_with(&key);
    write(&place, "secretname", "content");
    place.ebb(&["flush", "mnt"]).good();
    let done = place.ebb(&["backup", "mnt", &backup, "--json"]).good().json();
    assert_eq!(done["encrypted"], true);
    let parts = fs::read_dir(place.path("backup/parts")).unwrap().next().unwrap().unwrap().path();
    for part in fs::read_dir(parts).unwrap() {
        let bytes = fs::read(part.unwrap().path()).unwrap();
        assert!(!bytes.windows(10).any(|part| part == b"secretname"));
    }
    place.umount();
    place.drop_cache();
    let restore = ["restore", &backup, "data", place.url(), "--yes"];
    place.ebb(&restore).refused(1, "encrypted");
    place.ebb(&[&restore[..], &["--encryption-key-file", "other"]].concat()).refused(1, "key");
    place.ebb(&[&restore[..], &key].concat()).good();
    place.mount_with(&key);
    assert_eq!(read(&place, "secretname"), "content");
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    place.ebb(&["fsck", "data", "--encryption-key-file", "key"]).good();
}
