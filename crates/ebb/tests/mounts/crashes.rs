//! SIGKILL, and the state after it.

use crate::place::{Place, until};
use std::fs;
use std::time::{Duration, Instant};

#[test]
fn acknowledged_changes_survive_the_daemon() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::create_dir(place.path("mnt/d")).unwrap();
    for index in 0..100 {
        fs::write(place.path(&format!("mnt/d/{index}")), format!("content {index}")).unwrap();
    }
    fs::rename(place.path("mnt/d/7"), place.path("mnt/seven")).unwrap();
    place.kill("mnt");
    let dead = fs::read_dir(place.path("mnt")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    place.ebb(&["status", "mnt"]).refused(1, "has ended");
    // The dead mount is found, and replaced.
    place.mount();
    for index in (0..100).filter(|index| *index != 7) {
        assert_eq!(
            fs::read_to_string(place.path(&format!("mnt/d/{index}"))).unwrap(),
            format!("content {index}")
        );
    }
    assert_eq!(fs::read_to_string(place.path("mnt/seven")).unwrap(), "content 7");
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    assert_eq!(fs::read_to_string(place.path("backing/seven")).unwrap(), "content 7");
}

/// Situation: the daemon is dead, and the user unmounts instead of mounting again. Danger: success
/// is reported while data has not reached the bucket. Expectation: the mount is removed, the
/// message names the data directory and the next command, and that command works.
#[test]
fn a_dead_mount_is_cleared_away_and_nothing_is_forgotten() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), "only in the log").unwrap();
    place.kill("mnt");
    let told = place.ebb(&["umount", "mnt"]).refused(1, "goes on with it");
    assert!(told.err.contains(&place.text("data")), "{told:?}");
    assert!(!place.is_mounted("mnt"));
    place.ebb(&["umount", "mnt"]).refused(2, "is no mount of ebb");
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "only in the log");
    place.umount();
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "only in the log");
}

#[test]
fn a_dead_mount_is_told_in_json() {
    let place = Place::new();
    place.mount();
    place.kill("mnt");
    let told = place.ebb(&["umount", "mnt", "--json"]);
    assert_eq!(told.status, 1);
    assert_eq!(told.json()["flushed"], false);
    assert_eq!(told.json()["data_dir"], place.text("data"));
}

/// Situation: a node dies with unflushed files, and another one takes the volume over. Expectation:
/// the first data directory is rejected, and its files can be read as docs/operation.md describes.
#[test]
fn overtaken_data_directory_can_still_be_read() {
    let place = Place::new();
    let url = place.url().to_owned();
    let old =
        ["mount", &url, "mnt", "--data", "old", "--flush-interval", "1h", "--head-term", "3s"];
    place.ebb(&old).good();
    fs::write(place.path("mnt/sent"), "in the bucket").unwrap();
    place.ebb(&["flush", "mnt"]).good();
    fs::write(place.path("mnt/unsent"), "only here").unwrap();
    place.kill("mnt");
    place.ebb(&["umount", "mnt"]);
    place.ebb(&["mount", &url, "mnt2", "--data", "new"]).good();
    assert!(!place.path("mnt2/unsent").exists());
    place.umount_at("mnt2");

    place.ebb(&old).refused(1, "docs/operation.md");
    place.ebb(&["mount", &url, "mnt", "--data", "old", "--take-over", "never"]).good();
    let dirty = place.ebb(&["ls-dirty", "mnt"]).good().out;
    assert!(dirty.contains("unsent") && !dirty.contains("/sent"), "{dirty}");
    assert_eq!(fs::read_to_string(place.path("mnt/unsent")).unwrap(), "only here");
    assert_eq!(fs::read_to_string(place.path("mnt/sent")).unwrap(), "in the bucket");
    let began = Instant::now();
    place.ebb(&["flush", "mnt/unsent"]).refused(
        1,
        "mnt is mounted without taking over (--take-over=never, or ro): nothing is written",
    );
    assert!(began.elapsed() < Duration::from_secs(20), "it is refused at once");
    let told = place.umount_at("mnt").out;
    assert!(
        told.contains(
            "; 1 files (4 KiB) of its data directory have not reached the bucket, \
        and nothing was written"
        ),
        "{told}"
    );
    place.ebb(&["mount", &url, "mnt", "--data", "old", "--take-over", "never"]).good();
    let told = place.ebb(&["umount", "mnt", "--json"]).good().json();
    assert_eq!(
        (&told["flushed"], &told["left"]["files"], &told["left"]["bytes"]),
        (&false.into(), &1.into(), &4096.into())
    );
    place.ebb(&["mount", &url, "mnt", "--data", "new", "--take-over", "never"]).good();
    let told = place.ebb(&["umount", "mnt", "--no-wait"]).good().out;
    assert!(told.ends_with("everything is in the bucket\n"), "{told}");
}

/// Situation: a node is unmounted after another one has taken its volume, with unflushed files.
/// Danger: success is reported. Expectation: the message says that they are not in the bucket.
#[test]
fn umount_of_overtaken_node_reports_unflushed_files() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h", "--head-term", "3s"]);
    fs::write(place.path("mnt/unsent"), "only here").unwrap();
    place.ebb(&["mount", place.url(), "mnt2", "--data", "new", "--take-over", "now"]).good();
    until("it knows", || {
        place.ebb(&["status", "mnt"]).good().out.contains("the volume was taken over by")
    });
    let told = place
        .ebb(&["umount", "mnt"])
        .refused(1, "1 files and 0 deletions have not reached the bucket");
    assert!(told.err.contains(&place.text("data")), "{told:?}");
    place.umount_at("mnt2");
}

/// Situation: a data directory has lost its identity file. Danger: it counts as new, and its dirty
/// data is removed. Expectation: it is rejected, and with the file back everything is there.
#[test]
fn a_data_directory_without_an_identity_is_not_taken_for_a_new_one() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    let content = vec![7; 200_000];
    fs::write(place.path("mnt/file"), &content).unwrap();
    place.kill("mnt");
    fs::rename(place.path("data/identity"), place.path("kept")).unwrap();
    let mount = ["mount", place.url(), "mnt", "--data", "data"];
    place.ebb(&mount).refused(1, "has lost its file \"identity\"");
    place.ebb(&["fsck", "data"]).refused(8, "has lost its file \"identity\"");
    fs::rename(place.path("kept"), place.path("data/identity")).unwrap();
    place.ebb(&mount).good();
    assert!(fs::read(place.path("mnt/file")).unwrap() == content);
    place.umount();
}

/// Situation: the daemon has died, and nothing takes over. Danger: the suggested command uses
/// another data directory, so another node takes the volume over, and dirty data is left behind.
/// Expectation: it continues with the mount's data directory.
#[test]
fn suggested_mount_command_continues_the_mount() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), "dirty").unwrap();
    place.kill("mnt");
    let status = place.ebb(&["status", "mnt"]).refused(1, "has ended");
    let umount = place.ebb(&["umount", "mnt"]).refused(1, "goes on with it");
    let said: Vec<&str> =
        [&status, &umount].into_iter().map(|done| done.err.split('`').nth(1).unwrap()).collect();
    assert_eq!(said[0], said[1]);
    place.ebb(&said[0].split(' ').skip(1).collect::<Vec<_>>()).good();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "dirty");
    place.umount();
}
