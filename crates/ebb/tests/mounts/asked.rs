//! status, ls-dirty, flush, evict, fsck and explain.

use crate::place::{Place, until};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[test]
fn status_and_flush_report_dirty_files() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/file"), vec![1; 300_000]).unwrap();
    fs::write(place.path("mnt/other"), "x").unwrap();

    let status = place.ebb(&["status", "mnt"]).good().out;
    assert!(
        status.contains("dirty")
            && status.contains(place.url())
            && status.contains("encryption at rest is off"),
        "{status}"
    );
    let status = place.ebb(&["status", "mnt/d/file", "--json"]).good().json();
    assert!(status["dirty_bytes"].as_u64().unwrap() >= 300_000, "{status}");
    assert_eq!(status["troubles"], serde_json::json!([]));

    let listed = place.ebb(&["ls-dirty", "mnt"]).good().out;
    assert!(listed.contains("/d/file") && listed.contains("/other"), "{listed}");
    // The two files, and the pages of both directories.
    let listed = place.ebb(&["ls-dirty", "mnt", "--json", "--limit", "1"]).good().json();
    assert_eq!((listed["dirty"].as_array().unwrap().len(), &listed["left_out"]), (1, &3.into()));
    let listed = place.ebb(&["ls-dirty", "mnt", "--limit", "1"]).good().out;
    assert!(listed.lines().count() == 2 && listed.ends_with("… and 3 more\n"), "{listed}");
    let none = place.ebb(&["ls-dirty", "mnt", "--limit", "0"]);
    assert!(none.status == 2 && none.err.starts_with("error: "), "{none:?}");

    // Below a path only.
    place.ebb(&["flush", "mnt/d"]).good();
    assert_eq!(fs::read(place.path("backing/d/file")).unwrap().len(), 300_000);
    assert!(!place.path("backing/other").exists());
    let flushed = place.ebb(&["flush", "mnt", "--json"]).good().json();
    assert!(flushed["files"].as_u64().unwrap() >= 1, "{flushed}");
    assert_eq!(place.ebb(&["ls-dirty", "mnt"]).good().out, "everything has reached the bucket\n");

    let evicted = place.ebb(&["evict", "mnt/d/file", "--json"]).good().json();
    assert!(evicted["bytes"].as_u64().unwrap() >= 300_000, "{evicted}");
    assert_eq!(fs::read(place.path("mnt/d/file")).unwrap(), vec![1; 300_000]);
    assert!(place.ebb(&["fsck", "mnt"]).good().out.contains("no problem"));
    assert_eq!(
        place.ebb(&["fsck", "mnt", "--json"]).good().json()["problems"],
        serde_json::json!([])
    );

    place.ebb(&["flush", "mnt/no/such"]).refused(1, "no such file");
    place.ebb(&["evict", "mnt/no/such"]).refused(1, "no such file");
    place.umount();
}

/// Situation: more files are dirty than one reply holds. Danger: a user who wants to remove the
/// data directory takes unlisted files for uploaded. Expectation: the list is complete.
#[test]
fn all_that_is_dirty_can_be_listed() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    let deep = place.path("mnt").join(vec!["n".repeat(250); 14].join("/"));
    fs::create_dir_all(&deep).unwrap();
    (0..200).for_each(|at| fs::write(deep.join(at.to_string()), "x").unwrap());
    let listed = |limit: &str| {
        // More than a pipe holds.
        let script =
            format!("{} ls-dirty mnt --json --limit {limit} >listed", env!("CARGO_BIN_EXE_ebb"));
        place.program("sh", &["-c", &script]).good();
        serde_json::from_slice::<serde_json::Value>(&fs::read(place.path("listed")).unwrap())
            .unwrap()
    };
    let all = listed("100000");
    assert_eq!(all["left_out"], 0);
    let dirty: Vec<&str> = all["dirty"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["path"].as_str().unwrap())
        .collect();
    (0..200).for_each(|at| {
        assert_eq!(dirty.iter().filter(|path| path.ends_with(&format!("/{at}"))).count(), 1, "{at}")
    });
    let some = listed("180");
    assert_eq!(
        (some["dirty"].as_array().unwrap().len(), &some["left_out"]),
        (180, &(dirty.len() - 180).into())
    );
    place.umount();
}

/// Danger: a user who may create files injects lines or control characters into output that root
/// reads. Expectation: a name is printed escaped, in one line.
#[test]
fn names_forge_no_lines() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    let names: [&[u8]; 4] =
        [b"evil\neverything has reached the bucket", b"\x1b[2J", b"\xff", b"\xfe"];
    names
        .iter()
        .for_each(|name| fs::write(place.path("mnt").join(OsStr::from_bytes(name)), "x").unwrap());
    let listed = place.ebb(&["ls-dirty", "mnt"]).good().out;
    assert!(listed.lines().count() == 5 && !listed.contains('\x1b'), "{listed:?}");
    let bytes = place.ebb(&["ls-dirty", "mnt", "--json"]).good().json()["dirty"]
        .as_array()
        .unwrap()
        .clone();
    let bytes: Vec<&str> = bytes.iter().filter_map(|item| item["path_bytes"].as_str()).collect();
    assert_eq!(bytes, ["ff", "fe"]);
    let explained =
        place.ebb(&[OsStr::new("explain"), OsStr::from_bytes(b"mnt/\x1b[2J")]).good().out;
    assert!(
        explained.contains(r"path      /\x1b[2J") && !explained.contains('\x1b'),
        "{explained:?}"
    );
    let gone = OsStr::from_bytes(b"mnt/no\n\x1b[31m\xff\\");
    for command in ["explain", "flush", "evict", "pin", "umount", "bench"] {
        let told = place.ebb(&[OsStr::new(command), gone]);
        let is_whole = |line: &str| {
            line.contains(r"mnt/no\n\x1b[31m\xff\\: ")
                || line.contains(r"mnt/no\n\x1b[31m\xff\\ is ")
        };
        assert!(
            told.status > 0 && told.err.lines().all(is_whole) && !told.err.contains('\x1b'),
            "{command}: {told:?}"
        );
    }
    place.umount();
    fs::create_dir(place.path("m\x1b[2J")).unwrap();
    place.ebb(&["mount", place.url(), "m\x1b[2J", "--data", "data"]).good();
    let status = place.ebb(&["status", "m\x1b[2J"]).good().out;
    assert!(status.contains(r"m\x1b[2J, consistency") && !status.contains('\x1b'), "{status:?}");
    place.umount_at("m\x1b[2J");
}

/// Situation: a command's path is, or contains, a symbolic link on the mount. Danger: nothing is
/// done, and success is reported. Expectation: the command applies to the target; a dangling link,
/// or one that leaves the mount, is an error.
#[test]
fn command_paths_follow_symbolic_links() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::create_dir_all(place.path("mnt/real")).unwrap();
    let links = [
        ("mnt/cur", "real"),
        ("mnt/lf", "real/file"),
        ("mnt/nowhere", "gone"),
        ("mnt/out", "/etc"),
        ("outer", "mnt"),
    ];
    links.iter().for_each(|(link, to)| symlink(to, place.path(link)).unwrap());
    let written = |path: &str, text: &str| {
        fs::write(place.path("mnt/real/file"), text).unwrap();
        place.ebb(&["flush", path]).good();
        fs::read_to_string(place.path("backing/real/file")).is_ok_and(|sent| sent == text)
    };
    for path in ["mnt/cur", "mnt/lf", "mnt/cur/file", "outer/cur", "mnt/real/../cur/file"] {
        assert!(written(path, path), "{path}");
    }
    let path_of = |path: &str| {
        place.ebb(&["explain", path, "--json"]).good().json()["path"].as_str().unwrap().to_owned()
    };
    assert_eq!((path_of("mnt/cur/file"), path_of("mnt/lf")), ("real/file".into(), "lf".into()));
    assert!(place.ebb(&["evict", "mnt/lf", "--json"]).good().json()["bytes"].as_u64().unwrap() > 0);
    place.ebb(&["quota", "set", "mnt/cur", "--inodes", "10"]).good();
    assert!(place.ebb(&["quota", "get", "mnt/real"]).good().out.contains("/real  "));
    for command in ["flush", "evict"] {
        place.ebb(&[command, "mnt/nowhere"]).refused(1, "No such file");
        place.ebb(&[command, "mnt/out"]).refused(2, "is on no mount of ebb");
    }

    place.ebb(&["trash", "keep", "mnt/cur", "1h"]).good();
    fs::remove_file(place.path("mnt/real/file")).unwrap();
    assert!(place.ebb(&["trash", "list", "mnt/cur/"]).good().out.contains("/real/file"));
    place.ebb(&["trash", "restore", "mnt/cur/file"]).good();
    assert!(place.path("mnt/real/file").exists());
    place.umount();
}

/// Situation: bits of the node's disk have flipped. Expectation: fsck reports the location, and its
/// exit status is that of damage.
#[test]
fn fsck_finds_flipped_bits() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), vec![7; 1 << 20]).unwrap();
    place.ebb(&["fsck", "mnt"]).good();
    let stores = place.store();
    let store = fs::read_dir(&stores)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| fs::metadata(path).unwrap().len() >= 1 << 20);
    let store =
        fs::OpenOptions::new().write(true).open(store.expect("the file has a store file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&store, b"rot", 500_000).unwrap();
    let found = place.ebb(&["fsck", "mnt"]);
    assert_eq!(found.status, 4, "{found:?}");
    assert!(found.out.contains("NOT CLEAN"), "{found:?}");
}

/// Situation: a daemon has died, and its data directory is not in use. Expectation: fsck checks it
/// without changes and finds damage; for a directory in use it reports the owner.
#[test]
fn a_data_directory_is_checked_without_its_node() {
    let place = Place::new();
    place.ebb(&["fsck", "data"]).refused(2, "is on no mount");
    place.mount_with(&["--flush-interval", "1h"]);
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/file"), vec![7; 1 << 20]).unwrap();
    fs::File::open(place.path("mnt/d/file")).unwrap().sync_all().unwrap();
    place.ebb(&["fsck", "data"]).refused(8, "in use");
    place.kill("mnt");
    let before = contents(&place.path("data"));
    let found = place.ebb(&["fsck", "data", "--json"]).good().json();
    assert_eq!((&found["problems"], &found["blocks"]), (&serde_json::json!([]), &16.into()));
    assert!(contents(&place.path("data")) == before, "something was changed");

    let store = fs::read_dir(place.store()).unwrap().next().unwrap().unwrap().path();
    std::os::unix::fs::FileExt::write_all_at(
        &fs::OpenOptions::new().write(true).open(store).unwrap(),
        b"rot",
        500_000,
    )
    .unwrap();
    let found = place.ebb(&["fsck", "data"]);
    assert_eq!(found.status, 4, "{found:?}");
    assert!(
        found.out.contains("/d/file")
            && found.out.contains("block 7 is damaged on the node's disk"),
        "{found:?}"
    );
}

/// Every file of a directory except for the lock, which records its last user.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false if path.ends_with("LOCK") => {}
            false => found.push((path.clone(), fs::read(path).unwrap())),
        }
    }
    found.sort();
    found
}

/// `ebb explain` follows fsync, flush and evict.
#[test]
fn explain_follows_fsync_flush_and_evict() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h", "--commit-interval", "1h"]);
    let explain = |path: &str| place.ebb(&["explain", path, "--json"]).good().json();
    fs::create_dir(place.path("mnt/d")).unwrap();
    let file = fs::File::create(place.path("mnt/d/file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 100_000], 0).unwrap();

    let new = explain("mnt/d/file");
    assert_eq!(
        (&new["path"], &new["size_bytes"], &new["object"]),
        (&"d/file".into(), &100_000.into(), &serde_json::Value::Null)
    );
    assert_eq!(new["dirty_runs"], serde_json::json!([{ "offset": 0, "len_bytes": 100_000 }]));
    assert!(place.path("data").join(new["store_file"].as_str().unwrap()).exists());
    assert_eq!(new["forced"], false);
    assert!(
        survives(&new, "kill -9").contains("nothing is lost")
            && survives(&new, "disk lost").contains("all of it is lost"),
        "{new}"
    );

    file.sync_all().unwrap();
    assert_eq!(survives(&explain("mnt/d/file"), "power cut"), "nothing is lost");

    place.ebb(&["flush", "mnt"]).good();
    let flushed = explain("mnt/d/file");
    assert_eq!((&flushed["dirty_bytes"], &flushed["object"]["key"]), (&0.into(), &"d/file".into()));
    assert!(survives(&flushed, "disk lost").contains("the bucket has all of it"), "{flushed}");
    assert!(survives(&explain("mnt/d"), "disk lost").contains("the bucket has all of it"));

    std::os::unix::fs::FileExt::write_all_at(&file, b"new", 90_000).unwrap();
    let changed = explain("mnt/d/file");
    assert_eq!(
        changed["dirty_runs"],
        serde_json::json!([{ "offset": 65_536, "len_bytes": 34_464 }])
    );
    assert!(
        survives(&changed, "disk lost").contains("goes back to what the object has"),
        "{changed}"
    );
    drop(file);

    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["evict", "mnt"]).good();
    let text = place.ebb(&["explain", "mnt/d/file"]).good().out;
    assert!(
        text.contains("cache     nothing") && text.contains("ETag") && text.contains(place.url()),
        "{text}"
    );
    place.ebb(&["explain", "mnt/no/such"]).refused(1, "no such file");
    place.umount();
}

fn survives<'a>(explained: &'a serde_json::Value, failure: &str) -> &'a str {
    explained["survives"][failure].as_str().unwrap_or_else(|| panic!("{explained}"))
}

/// Entries without bytes are in the log and in directory pages, which are named with their upload
/// state.
#[test]
fn explain_names_log_and_directory_pages() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h", "--commit-interval", "1h"]);
    let text = |path: &str| place.ebb(&["explain", path]).good().out;
    let pages = |path: &str| {
        place.ebb(&["explain", path, "--json"]).good().json()["pages"].as_array().unwrap().clone()
    };
    fs::create_dir(place.path("mnt/d")).unwrap();
    std::os::unix::fs::symlink("there", place.path("mnt/d/link")).unwrap();
    place.program("mkfifo", &["mnt/d/pipe"]).good();
    for path in ["mnt", "mnt/d", "mnt/d/link", "mnt/d/pipe"] {
        let said = text(path);
        assert!(
            said.contains("log       names")
                && said.contains("page      .ebb/d/")
                && !said.contains("object "),
            "{said}"
        );
        assert!(
            said.contains("to be written") && !said.contains("the bucket has all of it"),
            "{said}"
        );
    }
    place.ebb(&["flush", "mnt"]).good();
    for (path, count) in [("mnt", 1), ("mnt/d", 2), ("mnt/d/link", 1), ("mnt/d/pipe", 1)] {
        let (said, pages) = (text(path), pages(path));
        assert_eq!(pages.len(), count, "{said}");
        for page in pages {
            assert!(place.path("backing").join(page["key"].as_str().unwrap()).exists(), "{page}");
            assert!(
                page["etag"].is_string() && page["there"] == true && page["since_secs"].is_null(),
                "{page}"
            );
        }
        assert!(
            said.contains("with names and attributes")
                && said.contains("nothing of its names and attributes is lost"),
            "{said}"
        );
    }
    place.ebb(&["trash", "keep", "mnt/d", "1h"]).good();
    fs::remove_file(place.path("mnt/d/link")).unwrap();
    place.ebb(&["explain", "mnt/.ebb.trash"]).refused(1, "no such file");
    place.umount();
}

/// Situation: bits of a dirty block have flipped. Danger: the report says that nothing is lost.
/// Expectation: it counts the bytes.
#[test]
fn explain_counts_bytes_lost_already() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h", "--scrub-interval", "1s"]);
    fs::write(place.path("mnt/file"), vec![7; 1 << 20]).unwrap();
    let explain = || place.ebb(&["explain", "mnt/file", "--json"]).good().json();
    assert_eq!(survives(&explain(), "kill -9"), "nothing is lost");
    let store = place.path("data").join(explain()["store_file"].as_str().unwrap());
    let store = fs::OpenOptions::new().write(true).open(store).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&store, b"rot", 70_000).unwrap();
    until("the scrub has found it", || explain()["damaged_runs"] != serde_json::json!([]));
    let explained = explain();
    assert_eq!(
        explained["damaged_runs"],
        serde_json::json!([{ "offset": 65_536, "len_bytes": 65_536 }])
    );
    for failure in ["kill -9", "power cut"] {
        assert!(
            survives(&explained, failure).contains("bytes 65536 to 131072 are lost already"),
            "{explained}"
        );
    }
    fs::write(place.path("mnt/file"), vec![8; 1 << 20]).unwrap();
    assert_eq!(survives(&explain(), "kill -9"), "nothing is lost");
    place.umount();
}

/// Situation: the daemon of a mount is at its limit of descriptors. Danger: `ebb status` gets no
/// answer, and the log is flooded. Expectation: every `ebb status` is answered and reports it; the
/// log reports it once.
#[test]
fn a_daemon_without_descriptors_can_be_asked() {
    let place = Place::new();
    // Uploads open files for a moment only.
    place.mount_with(&["--flush-interval", "1h"]);
    let daemon = place.record("mnt").daemon.pid;
    let numbers = || {
        fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().map(|entry| entry.unwrap().file_name())
    };
    let highest = numbers().filter_map(|name| name.to_str()?.parse::<u64>().ok()).max().unwrap();
    let limits = fs::read_to_string(format!("/proc/{daemon}/limits")).unwrap();
    let most = limits
        .lines()
        .find_map(|line| {
            line.strip_prefix("Max open files")?.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .unwrap();
    let usual = limit_descriptors(daemon, highest + 1);
    assert_eq!(usual, most.min(1 << 20) - 16, "{limits}");
    let short = || {
        place.ebb(&["status", "mnt"]).good().out.contains("has descriptors for no more connections")
    };
    // A descriptor that was in use for a moment when a file could not be opened is free again.
    let write = |number: usize| fs::write(place.path(&format!("mnt/{number}")), vec![1; 200_000]);
    let written = (0..1000).find(|number| write(*number).is_err() && short());
    assert!(written.is_some(), "its files are open");
    for again in 0..5 {
        // It has the descriptor of the last connection.
        write(1000 + again).ok();
        assert!(short(), "{}", place.ebb(&["status", "mnt"]).good().out);
    }
    limit_descriptors(daemon, usual);
    let status = place.ebb(&["status", "mnt"]).good().out;
    assert!(!status.contains("has descriptors for no more"), "{status}");
    let log = fs::read_to_string(place.path("data/ebb.log")).unwrap();
    assert_eq!(
        log.matches("has descriptors for no more").count(),
        2,
        "when it begins, and when it is over: {log}"
    );
    place.umount();
}

/// Sets a process's limit of descriptors; returns the previous one.
fn limit_descriptors(pid: u32, most: u64) -> u64 {
    let (mut before, mut limit) =
        (libc::rlimit { rlim_cur: 0, rlim_max: 0 }, libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    // SAFETY: both limits outlive the calls.
    unsafe {
        assert_eq!(
            libc::prlimit(pid as i32, libc::RLIMIT_NOFILE, std::ptr::null(), &mut before),
            0
        );
        limit.rlim_cur = most;
        limit.rlim_max = before.rlim_max;
        assert_eq!(libc::prlimit(pid as i32, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()), 0);
    }
    before.rlim_cur
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let place = Place::new();
    place.mount();
    let binary = env!("CARGO_BIN_EXE_ebb");
    let script = format!(
        "set -o pipefail; {binary} completion bash | head -c 10 >/dev/null; {binary} status mnt | \
         head -c 1 >/dev/null"
    );
    let status = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(&place.dir)
        .status()
        .unwrap();
    assert!(status.success());
    place.umount();
}
