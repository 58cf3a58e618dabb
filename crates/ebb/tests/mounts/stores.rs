//! Commands on stores that refuse, fail, or do not answer, and their messages.

use crate::front::{self, Instead, Request};
use crate::place::{Place, until};
use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const BUSY: Instead = Instead::Refuse { status: 503, code: "SlowDown" };

/// Situation: the store refuses each request of a command once, as it does when it is busy.
/// Expectation: every command succeeds.
#[test]
fn passing_fault_of_any_request_is_asked_again() {
    let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
    let first = {
        let seen = seen.clone();
        move |request: &Request| {
            let line = format!("{} {}", request.method(), request.target());
            seen.lock().unwrap().insert(line).then_some(BUSY)
        }
    };
    let mut place = Place::over(front::before(&ebb_s3_server::start().unwrap(), first));
    let place = &mut place;
    // Each command meets every request as a first one.
    let ebb = |place: &Place, args: &[&str]| {
        seen.lock().unwrap().clear();
        place.ebb(args).good()
    };
    let url = place.url().to_owned();
    let mount = ["mount", &url, "mnt", "--data", "data", "--flush-interval", "1h"];
    ebb(place, &mount);
    fs::write(place.path("mnt/file"), "kept").unwrap();
    ebb(place, &["flush", "mnt"]);
    fs::write(place.path("mnt/file"), "not kept").unwrap();
    ebb(place, &["rollback", "mnt/file", "--yes"]);
    fs::create_dir(place.path("backup")).unwrap();
    let backup = format!("s3://{}/backup", ebb_s3_server::BUCKET);
    ebb(place, &["backup", "mnt", &backup]);
    ebb(place, &["fsck", "mnt", "--bucket"]);
    ebb(place, &["umount", "mnt"]);
    ebb(place, &["fsck", "data", "--bucket"]);
    ebb(place, &["restore", &backup, "data2", &url, "--yes"]);
    seen.lock().unwrap().clear();
    let (node, line) = place.start(&[
        "serve",
        "--backing",
        &url,
        "--name",
        "v",
        "--data",
        "data3",
        "--listen",
        "127.0.0.1:0",
        "--take-over",
        "if-abandoned",
    ]);
    assert!(line.starts_with("serving ebb://"), "{line}");
    let served = line.split(' ').nth(1).unwrap();
    ebb(place, &["mount", served, "mnt", "--data", "data4"]);
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "kept");
    ebb(place, &["umount", "mnt"]);
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: the store stays busy, from the first request or from the first change.
/// Expectation: the command ends within its stated time, and names the fault.
#[test]
fn fault_that_stays_is_named() {
    for changes_only in [false, true] {
        let busy =
            move |request: &Request| (!changes_only || request.method() == "PUT").then_some(BUSY);
        let place = Place::over(front::before(&ebb_s3_server::start().unwrap(), busy));
        let done = place
            .ebb(&["mount", place.url(), "mnt", "--data", "data", "--bucket-timeout", "2s"])
            .refused(1, "SlowDown");
        let said = &done.err;
        assert!(said.contains("try again later") && !said.contains("timed out"), "{said}");
        assert!(!said.contains("grant") && !said.contains("check the endpoint"), "{said}");
    }
}

/// Situation: the store refuses to return an object, as it does with an archived one, and later
/// returns it. Expectation: the program gets an error, and the status names the store's reason and
/// the key as long as it lasts.
#[test]
fn refused_read_is_told_with_the_reason_of_the_store() {
    let archived = Arc::new(AtomicBool::new(false));
    let refuses = {
        let archived = archived.clone();
        move |request: &Request| {
            let is_it = request.method() == "GET" && request.target().contains("/cold");
            (is_it && archived.load(Relaxed))
                .then_some(Instead::Refuse { status: 403, code: "InvalidObjectState" })
        }
    };
    let place = Place::over(front::before(&ebb_s3_server::start().unwrap(), refuses));
    place.mount();
    fs::write(place.path("mnt/cold"), "data").unwrap();
    place.umount();
    place.drop_cache();
    place.mount();
    archived.store(true, Relaxed);
    let error = fs::read(place.path("mnt/cold")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let told = |text: &str| text.contains("InvalidObjectState") && text.contains("cold");
    let status = || place.ebb(&["status", "mnt"]).good().out;
    let explained = || place.ebb(&["explain", "mnt/cold"]).good().out;
    let log = fs::read_to_string(place.path("data/ebb.log")).unwrap();
    assert!(told(&status()) && told(&explained()) && told(&log), "{}{log}", status());
    archived.store(false, Relaxed);
    assert_eq!(fs::read_to_string(place.path("mnt/cold")).unwrap(), "data");
    assert!(!told(&status()) && !told(&explained()), "{}", status());
    place.umount();
}

/// Situation: the store refuses deletes, of a legal hold for one, and accepts all else.
/// Expectation: a flush ends, and reports the refused objects and the reason.
#[test]
fn flush_counts_refused_deletes() {
    let held = Arc::new(AtomicBool::new(false));
    let refuses = {
        let held = held.clone();
        move |request: &Request| {
            let is_it = request.method() == "DELETE" && request.target().contains("/held");
            (is_it && held.load(Relaxed))
                .then_some(Instead::Refuse { status: 403, code: "AccessDenied" })
        }
    };
    let place = Place::over(front::before(&ebb_s3_server::start().unwrap(), refuses));
    place.mount_with(&["--flush-interval", "1h"]);
    for name in ["held1", "held2", "free"] {
        fs::write(place.path("mnt").join(name), name).unwrap();
    }
    place.ebb(&["flush", "mnt"]).good();
    held.store(true, Relaxed);
    for name in ["held1", "held2", "free"] {
        fs::remove_file(place.path("mnt").join(name)).unwrap();
    }
    fs::write(place.path("mnt/new"), "new").unwrap();
    let done = place.ebb(&["flush", "mnt"]).refused(1, "the store refuses 2 deletes: ");
    assert!(done.err.contains("AccessDenied") && done.err.contains("held1"), "{done:?}");
    assert!(done.out.starts_with("1 files"), "{done:?}");
    let counted = place.ebb(&["flush", "mnt", "--json"]).json();
    assert_eq!(
        (&counted["refused"]["deletes"], &counted["refused"]["writes"]),
        (&2.into(), &0.into())
    );
    held.store(false, Relaxed);
    place.ebb(&["flush", "mnt"]).good();
    place.umount();
}

/// Situation: the store accepts a request and never answers. Expectation: a read ends after one
/// request, within the stated time, although the kernel requests the page twice.
#[test]
fn read_of_a_silent_store_waits_once() {
    let silent = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU32::new(0));
    let rule = {
        let (silent, asked) = (silent.clone(), asked.clone());
        move |request: &Request| {
            let is_it = request.method() == "GET" && request.target().contains("/cold");
            (is_it && silent.load(Relaxed)).then(|| {
                asked.fetch_add(1, Relaxed);
                Instead::Silence
            })
        }
    };
    let place = Place::over(front::before(&ebb_s3_server::start().unwrap(), rule));
    place.mount_with(&["--bucket-timeout", "2s"]);
    fs::write(place.path("mnt/cold"), "data").unwrap();
    place.umount();
    place.drop_cache();
    place.mount_with(&["--bucket-timeout", "2s"]);
    silent.store(true, Relaxed);
    let error = fs::read(place.path("mnt/cold")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    assert_eq!(asked.load(Relaxed), 1);
    silent.store(false, Relaxed);
    until("the store is asked again", || fs::read(place.path("mnt/cold")).is_ok());
    place.umount();
}

/// Expectation: a mount that fails leaves no data directory that it has made, and never takes away
/// one that was there.
#[test]
fn refused_mount_leaves_no_data_directory() {
    let place = Place::new();
    let gone = format!("file://{}", place.text("no such"));
    for more in [&[][..], &["--foreground"]] {
        let mount = |data: &str| {
            place
                .ebb(&[&["mount", &gone, "mnt", "--data", data], more].concat())
                .refused(1, "no such");
        };
        mount("new");
        assert!(!place.path("new").exists());
        fs::create_dir_all(place.path("empty")).unwrap();
        mount("empty");
        assert!(place.path("empty").exists());
        fs::create_dir_all(place.path("full")).unwrap();
        fs::write(place.path("full/mine"), "mine").unwrap();
        mount("full");
        assert_eq!(fs::read_to_string(place.path("full/mine")).unwrap(), "mine");
    }
}

#[test]
fn mount_prints_source_mount_point_and_data_directory() {
    let mut place = Place::new();
    let mount = ["mount", place.url(), "mnt", "--data", "data"];
    let line = format!(
        "{} is mounted at {}; its data directory is {}\n",
        place.url(),
        place.text("mnt"),
        place.text("data")
    );
    assert_eq!(place.ebb(&mount).good().out, line);
    place.umount();
    // A node has one volume: its name is optional.
    let url = place.url().to_owned();
    let (node, served) = place.start(&[
        "serve",
        "--backing",
        &url,
        "--name",
        "v",
        "--data",
        "data2",
        "--listen",
        "127.0.0.1:0",
    ]);
    let address = served.split(' ').nth(1).unwrap().strip_suffix("/v").unwrap().to_owned();
    place.ebb(&["mount", &address, "mnt", "--data", "data3"]).good();
    fs::write(place.path("mnt/file"), "by no name").unwrap();
    place.umount();
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "by no name");
}
