//! How a mount ends while all is well, or not quite.

use crate::place::{Place, kill, until};
use crate::switch::Switch;
use ebb_cli::places::{MountRecord, Process, RunDir};
use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

#[test]
fn a_mount_in_use_is_not_taken_away() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    let open = File::open(place.path("mnt/file")).unwrap();
    let told = place.ebb(&["umount", "mnt"]).refused(1, "in use by");
    assert!(told.err.contains(&std::process::id().to_string()), "{told:?}");
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    drop(open);
    place.umount();
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// A lazy unmount hides the mount at once; it ends with its last user.
#[test]
fn a_lazy_end_waits_for_the_last_user() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    let open = File::open(place.path("mnt/file")).unwrap();
    let daemon = place.record("mnt").daemon;
    place.ebb(&["umount", "mnt", "--lazy", "--no-wait"]).good();
    assert!(!place.is_mounted("mnt"));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "content");
    assert!(daemon.is_alive());
    drop(open);
    until("the daemon ends", || !daemon.is_alive());
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// Situation: an unmounted mount is still visible in another mount namespace, such as a
/// container's, or has open files. Danger: `ebb umount` waits silently. Expectation: it names the
/// processes, and ends when they have.
#[test]
fn umount_names_processes_that_keep_the_mount() {
    let mut place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    let sleeper = place.adopt(
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "6"])
            .spawn()
            .unwrap(),
    );
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    until("it has a namespace of its own", || {
        namespace(&place.pid(sleeper).to_string()) != namespace("self")
    });
    let open = File::open(place.path("mnt/file")).unwrap();
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(5));
        drop(open);
    });
    let told = place.ebb(&["umount", "mnt", "--lazy"]).good();
    for (kept, pid) in [
        ("until it is closed by", std::process::id()),
        ("gone from the mount namespace of", place.pid(sleeper)),
    ] {
        let line = told
            .err
            .lines()
            .find(|line| line.contains(kept))
            .unwrap_or_else(|| panic!("{kept}: {told:?}"));
        assert!(line.contains(&format!("({pid})")), "{line}");
    }
    closing.join().unwrap();
    assert_eq!(place.ended(sleeper), 0);
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// Situation: a mount needs a data directory whose previous mount has open files. Danger: it waits
/// silently. Expectation: it names the cause, and mounts once they are closed.
#[test]
fn mount_names_processes_that_keep_the_data_directory() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    let open = File::open(place.path("mnt/file")).unwrap();
    place.ebb(&["umount", "mnt", "--lazy", "--no-wait"]).good();
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(8));
        drop(open);
    });
    let told = place.ebb(&["mount", place.url(), "mnt", "--data", "data"]).good();
    let named = format!("{} is taken away, and served until it is closed by", place.text("mnt"));
    assert!(
        told.err.contains(&named) && told.err.contains(&format!("({})", std::process::id())),
        "{told:?}"
    );
    closing.join().unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

#[test]
fn a_signal_is_a_clean_end() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let place = Place::new();
        place.mount_with(&["--flush-interval", "1h"]);
        fs::write(place.path("mnt/file"), "content").unwrap();
        let daemon = place.record("mnt").daemon;
        kill(daemon.pid, signal);
        until("the daemon ends", || !daemon.is_alive());
        assert!(!place.is_mounted("mnt"));
        assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
        place.ebb(&["umount", "mnt"]).refused(2, "is no mount of ebb");
    }
}

#[test]
fn in_the_foreground_a_signal_ends_it_with_success() {
    let place = Place::new();
    let (url, data) = (place.url().to_owned(), place.text("data"));
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["mount", &url, &place.text("mnt"), "--data", &data, "--foreground"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("it is mounted", || place.is_mounted("mnt") && place.ebb(&["status", "mnt"]).status == 0);
    fs::write(place.path("mnt/file"), "content").unwrap();
    kill(child.id(), libc::SIGTERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// Situation: the disk with the log file is full. Danger: a failed log line ends the daemon.
/// Expectation: the line is lost, and everything else works.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let mut place = Place::new();
    let (url, data) = (place.url().to_owned(), place.text("data"));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args([
            "mount",
            &url,
            &place.text("mnt"),
            "--data",
            &data,
            "--foreground",
            "--log",
            "debug",
        ])
        .stderr(full.try_clone().unwrap())
        .spawn()
        .unwrap();
    let child = place.adopt(child);
    until("it is mounted", || place.is_mounted("mnt") && place.ebb(&["status", "mnt"]).status == 0);
    fs::write(place.path("mnt/file"), "content").unwrap();
    kill(place.record("mnt").daemon.pid, libc::SIGKILL);
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    assert_eq!(place.signal(child, libc::SIGTERM), 0);
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["status", &data])
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(refused.code(), Some(2));
}

/// Situation: the bucket is away, and the machine is to be shut down. Danger: the end waits for
/// ever, or unflushed data is forgotten. Expectation: a second signal ends it at once, the message
/// names the unflushed data and its location, and the next mount continues with it.
#[test]
fn a_second_signal_does_not_wait_for_the_bucket() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    place.mount_with(&["--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), "not in the bucket").unwrap();
    switch.close();
    let daemon = place.record("mnt").daemon;
    kill(daemon.pid, libc::SIGTERM);
    until("it is unmounted", || !place.is_mounted("mnt"));
    std::thread::sleep(Duration::from_secs(1));
    assert!(daemon.is_alive(), "it waits for the bucket");
    kill(daemon.pid, libc::SIGTERM);
    until("the daemon ends", || !daemon.is_alive());
    let told = place.ebb(&["umount", "mnt"]).refused(1, "have not reached the bucket");
    assert!(told.err.contains(&place.text("data")), "{told:?}");
    switch.open();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "not in the bucket");
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "not in the bucket");
    place.umount();
}

/// The bucket comes back while `ebb umount` waits for it with a message.
#[test]
fn unmounting_waits_for_a_bucket_that_is_away() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    place.mount_with(&["--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), "content").unwrap();
    switch.close();
    let later = switch.clone();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(7));
        later.open();
    });
    let done = place.umount();
    assert!(done.out.contains("everything is in the bucket"));
    assert!(
        done.err.contains("umount: 1 files, 4 KiB left: ")
            && done.err.contains("s3://bucket/prefix"),
        "{done:?}"
    );
    opener.join().unwrap();
    place.drop_cache();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

#[test]
fn the_outcome_can_be_had_as_json() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    let told = place.ebb(&["umount", "mnt", "--json"]).good().json();
    assert_eq!(
        (&told["unmounted"], &told["flushed"], &told["left"]),
        (&true.into(), &true.into(), &serde_json::Value::Null)
    );
}

/// umount(8) returns while the daemon still writes to the bucket. A mount at once afterwards waits
/// for it briefly, and continues its uploads; nothing is lost either way.
#[test]
fn mounting_follows_the_daemon_of_before() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    let umount = |place: &Place| drop(place.program("umount", &["mnt"]).good());
    for round in 0..5 {
        place.mount();
        fs::write(place.path("mnt/file"), round.to_string()).unwrap();
        umount(&place);
    }
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "4");
    switch.close();
    fs::write(place.path("mnt/file"), "last").unwrap();
    let daemon = place.record("mnt").daemon;
    umount(&place);
    until("the daemon is at its end", || place.record("mnt").ending);
    assert!(daemon.is_alive());
    let mount = ["mount", place.url(), "mnt", "--data", "data"];
    let told = place.ebb(&mount).refused(1, "cannot be reached");
    assert!(told.err.contains(&format!("process {} leaves to this mount", daemon.pid)), "{told:?}");
    until("it has ended", || !daemon.is_alive());
    switch.open();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "last");
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "last");
    place.umount();
}

/// Files that are open on a mount out of sight stay usable: it is not taken over.
#[test]
fn mount_waits_for_users_of_the_previous_mount() {
    let mut place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    let open = File::open(place.path("mnt/file")).unwrap();
    place.program("umount", &["--lazy", "mnt"]).good();
    let url = place.url().to_owned();
    let mounting = place.start_silent(&["mount", &url, "mnt", "--data", "data"]);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!place.is_mounted("mnt"));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "content");
    drop(open);
    assert_eq!(place.ended(mounting), 0);
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

/// A daemon removes its record before it unlocks the data directory.
#[test]
fn mount_waits_for_an_ending_daemon() {
    let mut place = Place::new();
    place.mount();
    let record = MountRecord { daemon: Process::this(), ..place.record("mnt") };
    place.umount();
    let lock = File::open(place.path("data/LOCK")).unwrap();
    lock.lock().unwrap();
    let run_dir = RunDir::of_user().unwrap();
    run_dir.write(&record).unwrap();
    let url = place.url().to_owned();
    let mounting = place.start_silent(&["mount", &url, "mnt", "--data", "data"]);
    std::thread::sleep(Duration::from_secs(3));
    run_dir.remove(&record).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    drop(lock);
    assert_eq!(place.ended(mounting), 0);
    place.umount();
}

/// Situation: a mount is interrupted while it waits for the previous node's term. Danger: its
/// daemon continues in the background and takes the volume over. Expectation: it ends, and the
/// previous node continues.
#[test]
fn a_mount_that_is_interrupted_takes_nothing_over() {
    let mut place = Place::new();
    place.mount_with(&["--flush-interval", "1h", "--head-term", "10s"]);
    fs::write(place.path("mnt/file"), "dirty").unwrap();
    place.kill("mnt");
    let url = place.url().to_owned();
    let child = place.start_silent(&["mount", &url, "mnt", "--data", "data2"]);
    let daemon = || fs::read_to_string(place.path("data2/LOCK")).ok()?.trim().parse().ok();
    until("there is a daemon", || daemon().is_some());
    let daemon: u32 = daemon().unwrap();
    // Not SIGINT, which background processes of a shell ignore.
    place.signal(child, libc::SIGTERM);
    until("the daemon has ended", || Process::of(daemon).is_none());
    place.mount_with(&[]);
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "dirty");
    place.umount();
}

/// Situation: a mount waits for the command that gives the key, and is interrupted. Danger: the
/// command is left behind. Expectation: it ends as well.
#[test]
fn a_mount_that_is_interrupted_leaves_no_command_behind() {
    let mut place = Place::new();
    let (url, asked) = (place.url().to_owned(), place.text("asked"));
    let command = format!("echo $$ > {asked}; sleep 1000; true");
    let child = place.start_silent(&[
        "mount",
        &url,
        "mnt",
        "--data",
        "data",
        "--encryption-key-command",
        &command,
    ]);
    let shell = || fs::read_to_string(&asked).ok()?.trim().parse().ok();
    until("the command runs", || shell().is_some());
    let shell: u32 = shell().unwrap();
    place.signal(child, libc::SIGTERM);
    until("the command has ended", || Process::of(shell).is_none());
}
