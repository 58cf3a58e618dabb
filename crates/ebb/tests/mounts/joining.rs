//! Several mounts of one bucket: the first serves it, the others join.

use crate::place::{Place, until};
use crate::switch::Switch;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Situation: a second machine mounts the same bucket and joins. Expectation: it works through the
/// first one's node, also across a restart of that node; once the first is gone for good, the next
/// mount takes the volume over.
#[test]
fn a_second_mount_of_the_storage_joins_the_first() {
    let place = Place::new();
    let url = place.url().to_owned();
    let address = free_address();
    let first = [
        "mount",
        &url,
        "mnt",
        "--data",
        "data",
        "--listen",
        &address,
        "--head-term",
        "3s",
        "--session-term",
        "3s",
    ];
    let second = ["mount", &url, "mnt2", "--data", "data2", "--take-over", "join"];
    place.ebb(&first).good();
    fs::write(place.path("mnt/file"), "one").unwrap();
    // Without the option it fails, with a hint.
    place.ebb(&second[..5]).refused(1, "--take-over=join");
    place.ebb(&second).good();
    assert_eq!(fs::read_to_string(place.path("mnt2/file")).unwrap(), "one");
    fs::write(place.path("mnt2/file"), "two, and longer").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "two, and longer");

    place.kill("mnt");
    place.ebb(&first).good();
    fs::write(place.path("mnt2/after"), "three").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/after")).unwrap(), "three");

    place.umount_at("mnt2");
    place.kill("mnt");
    // Unflushed data is only in the first one's data directory.
    place.ebb(&second).good();
    fs::write(place.path("mnt2/own"), "four").unwrap();
    place.umount_at("mnt2");
    assert_eq!(fs::read_to_string(place.path("backing/own")).unwrap(), "four");
}

/// Situation: a sole mount is joined by another, while a read waits for the bucket for longer than
/// the session term. Danger: the kernel cannot drop a page that it waits for, and the reader's
/// session ends for that. Expectation: the other mount waits for the bucket's reply, and no session
/// ends.
#[test]
fn joining_waits_for_reads_of_the_bucket() {
    let switch = Switch::default();
    let mut place = Place::behind(&switch);
    let server = switch.server();
    let (url, address) = (place.url().to_owned(), free_address());
    let first =
        ["mount", &url, "mnt", "--data", "data", "--listen", &address, "--session-term", "3s"];
    place.ebb(&first).good();
    fs::write(place.path("mnt/cold"), vec![7; 1 << 20]).unwrap();
    place.umount();
    fs::remove_dir_all(place.path("data")).unwrap();
    place.ebb(&first).good();
    // It would be lost with its session.
    let unnamed = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(place.path("mnt/unnamed"))
        .unwrap();
    fs::remove_file(place.path("mnt/unnamed")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&unnamed, b"kept", 0).unwrap();

    switch.close();
    let cold = place.path("mnt/cold");
    let reader = std::thread::spawn(move || fs::read(cold));
    std::thread::sleep(Duration::from_millis(500));
    place.turn_to(&server);
    let second =
        place.start_silent(&["mount", &url, "mnt2", "--data", "data2", "--take-over", "join"]);
    std::thread::sleep(Duration::from_secs(10));
    assert!(!place.is_mounted("mnt2") && !reader.is_finished());
    switch.open();
    assert_eq!(reader.join().unwrap().unwrap(), vec![7; 1 << 20]);
    assert_eq!(place.ended(second), 0);
    let mut bytes = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&unnamed, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"kept");
    drop(unnamed);
    fs::write(place.path("mnt2/cold"), "theirs").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/cold")).unwrap(), "theirs");
    let log = fs::read_to_string(place.path("data/ebb.log")).unwrap();
    assert!(!log.contains("its session ends"), "{log}");
    place.umount_at("mnt2");
    place.umount();
}

#[test]
fn listen_needs_storage_and_a_valid_address() {
    let place = Place::new();
    place
        .ebb(&["mount", "ebb://127.0.0.1:1/v", "mnt", "--data", "data", "--listen", "127.0.0.1:0"])
        .refused(2, "--listen is for");
    place
        .ebb(&["mount", place.url(), "mnt", "--data", "data", "--listen", "nowhere"])
        .refused(1, "cannot listen");
}

/// Situation: the node is gone, and another volume of the same name is served at its address.
/// Expectation: no client of the first volume ever gets the second, neither a new mount nor one
/// that reconnects with acknowledged operations.
#[test]
fn an_address_that_another_volume_has_now_is_not_followed() {
    let place = Place::new();
    for dir in ["a/data", "b/data", "mnt3"] {
        fs::create_dir_all(place.path(dir)).unwrap();
    }
    let (a, b) =
        (format!("file://{}", place.text("a/data")), format!("file://{}", place.text("b/data")));
    let address = free_address();
    let serving = |url: &str, data: &str| -> Vec<String> {
        [
            "mount",
            url,
            "mnt",
            "--data",
            data,
            "--listen",
            &address,
            "--head-term",
            "3s",
            "--session-term",
            "3s",
        ]
        .map(str::to_owned)
        .into()
    };
    place.ebb(&serving(&a, "data")).good();
    place.ebb(&["mount", &a, "mnt2", "--data", "data2", "--take-over", "join"]).good();
    fs::write(place.path("mnt2/of a"), "acknowledged").unwrap();
    place.kill("mnt");

    place.ebb(&serving(&b, "data-b")).good();
    fs::write(place.path("mnt/of b"), "b").unwrap();
    until("the joined mount is refused", || fs::metadata(place.path("mnt2/of a")).is_err());
    assert!(fs::write(place.path("mnt2/new"), "x").is_err());
    place.ebb(&["umount", "--lazy", "--no-wait", "mnt2"]);
    let joined = place.ebb(&["mount", &a, "mnt2", "--data", "data3", "--take-over", "join"]).good();
    assert!(joined.err.contains("another volume of the name"), "{joined:?}");
    fs::write(place.path("mnt2/to a"), "a").unwrap();
    place.umount_at("mnt2");
    place.umount();
    assert_eq!(fs::read_to_string(place.path("a/data/to a")).unwrap(), "a");
    let of_b: Vec<_> = fs::read_dir(place.path("b/data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(of_b.iter().all(|name| name == "of b" || name == ".ebb"), "{of_b:?}");
}

/// Situation: a machine dies with unflushed data, another one takes over, and the first one joins.
/// Expectation: the message names the unflushed data.
#[test]
fn join_reports_unflushed_data_of_an_earlier_node() {
    let place = Place::new();
    let (first, second) = (free_address(), free_address());
    place.mount_with(&["--listen", &first, "--flush-interval", "1h"]);
    fs::write(place.path("mnt/stranded"), "acknowledged").unwrap();
    place.kill("mnt");
    place
        .ebb(&[
            "mount",
            place.url(),
            "mnt2",
            "--data",
            "data2",
            "--listen",
            &second,
            "--take-over",
            "now",
        ])
        .good();
    let joined =
        place.ebb(&["mount", place.url(), "mnt", "--data", "data", "--take-over", "join"]).good();
    assert!(joined.err.contains("never reached"), "{joined:?}");
    assert!(!place.path("mnt/stranded").exists());
    place.umount();
    place.umount_at("mnt2");
}

/// Danger: a node whose disk has failed stops answering and never ends, so it is not restarted and
/// all its clients hang.
#[test]
fn a_mount_that_others_join_ends_with_its_disk() {
    let mut place = Place::new();
    place.fail_forcing();
    let (address, url) = (free_address(), place.url().to_owned());
    let daemon = place.start_silent(&[
        "mount",
        &url,
        "mnt",
        "--data",
        "data",
        "--listen",
        &address,
        "--foreground",
    ]);
    until("it is mounted", || place.is_mounted("mnt"));
    fs::write(place.path("mnt/file"), "x").unwrap();
    fs::write(place.path("disk fails"), "").unwrap();
    assert!(Command::new("sync").arg(place.path("mnt/file")).status().is_ok());
    assert_eq!(place.ended(daemon), 1);
    let log = fs::read_to_string(place.path("started.log")).unwrap();
    assert!(log.contains("clients wait for the next start"), "{log}");
    fs::remove_file(place.path("disk fails")).unwrap();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "x");
    place.umount();
}

pub fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
