//! Rejected commands: one line with the reason, and an exit status that tells usage errors from
//! failures.

use crate::place::Place;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

#[test]
fn mistakes_of_the_caller() {
    let place = Place::new();
    let mount = |source: &str, point: &str, more: &[&str]| {
        place.ebb(&[&["mount", source, point, "--data", "data"], more].concat())
    };
    mount("ftp://x", "mnt", &[]).refused(2, "its scheme is unknown");
    mount("gs://", "mnt", &[]).refused(2, "it names no bucket");
    mount("/plain/path", "mnt", &[]).refused(2, "it has no scheme");
    mount("ebb://host/volume", "mnt", &[]).refused(2, "it names no port");
    mount(place.url(), "missing", &[]).refused(2, "does not exist");
    fs::write(place.path("file"), "").unwrap();
    mount(place.url(), "file", &[]).refused(2, "is not a directory");
    mount(place.url(), "mnt", &["-o", "bogus"]).refused(2, "unknown mount option \"bogus\"");
    mount(place.url(), "mnt", &["--head-term", "1s"]).refused(2, "head-term must be at least");
    mount(place.url(), "mnt", &["--cache-size", "1K"]).refused(2, "--cache-size must be at least");
    mount(place.url(), "mnt", &["--buffer-memory", "1M"])
        .refused(2, "buffer-memory must be at least 32 MiB");
    mount(place.url(), "mnt", &["--commit-interval", "0"]).refused(2, "--ack=durable");
    fs::write(place.path("bad.toml"), "cash-size = 1").unwrap();
    mount(place.url(), "mnt", &["--config", "bad.toml"]).refused(2, "unknown key \"cash-size\"");
    mount(place.url(), "mnt", &["--config", "none.toml"]).refused(2, "none.toml: ");
    place.ebb(&["status", "backing"]).refused(2, "is on no mount of ebb");
    place.ebb(&["umount", "backing"]).refused(2, "is no mount of ebb");
    place
        .ebb(&["serve", "--backing", place.url(), "--name", "a/b", "--data", "data"])
        .refused(2, "cannot be the name of a volume");
    let unreadable = |args: &[&str]| {
        let done = place.ebb(args);
        assert!(done.status == 2 && done.err.starts_with("error: "), "{done:?}");
    };
    for unknown in [
        &["mount", "--frobnicate"][..],
        &["frobnicate"],
        &["status"],
        &["stats", "--interval", "9223372036854775807"],
    ] {
        unreadable(unknown);
    }
    // Values that overflow, and -1, which is no user id.
    for (flag, value) in [
        ("--cache-size", "much"),
        ("--flush-interval", "9223372036854775807"),
        ("--head-term", "9223372036854775807"),
        ("--space-timeout", "18446744073709549568"),
        ("--uid", "4294967295"),
        ("--gid", "4294967294"),
    ] {
        unreadable(&["mount", place.url(), "mnt", "--data", "data", flag, value]);
    }
    let ebb = env!("CARGO_BIN_EXE_ebb");
    let mount = ["mount", place.url(), "mnt", "--data", "data"];
    // As version 0.1.0 had it.
    let refused = place
        .program("env", &[&["EBB_HEAD_TERM=1s", ebb][..], &mount].concat())
        .refused(2, "head-term must be at least");
    assert!(refused.err.starts_with("ebb: EBB_HEAD_TERM: deprecated, "), "{refused:?}");
    assert!(!place.is_mounted("mnt"));
}

/// Situation: a setting comes from the environment. Expectation: an invalid value is reported under
/// the variable's name, and an empty one counts as unset.
#[test]
fn variables_that_cannot_be_or_are_empty() {
    let place = Place::new();
    let mount = |variables: &[&str], more: &[&str]| {
        let command = [env!("CARGO_BIN_EXE_ebb"), "mount", place.url(), "mnt", "--data", "data"];
        place.program("env", &[variables, &command, more].concat())
    };
    let wrong = mount(&["EBB_LOG=foo"], &[]);
    assert!(
        wrong.status == 2 && wrong.err.contains("invalid value 'foo' for 'EBB_LOG'"),
        "{wrong:?}"
    );
    let wrong = mount(&["EBB_LOG=foo"], &["--log", "loud"]);
    assert!(
        wrong.status == 2 && wrong.err.contains("invalid value 'loud' for '--log <LEVEL>'"),
        "{wrong:?}"
    );
    mount(&["EBB_DATA=", "EBB_LOG=", "EBB_CONFIG=", "EBB_FOREGROUND=", "EBB_CACHE_SIZE="], &[])
        .good();
    place.umount();
}

#[test]
fn names_that_no_record_can_have() {
    let place = Place::new();
    let point = OsStr::from_bytes(b"mnt\xff");
    fs::create_dir(place.path("").join(point)).unwrap();
    let args: [&OsStr; 5] =
        ["mount".as_ref(), place.url().as_ref(), point, "--data".as_ref(), "data".as_ref()];
    place.ebb(&args).refused(2, "is not UTF-8");
}

/// Situation: a server accepts connections and never replies. Danger: the command waits for ever.
#[test]
fn silent_server_is_refused_as_a_node() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    place.ebb(&["status", &address]).refused(1, "has said nothing for 5 s");
}

#[test]
fn failures_of_the_world() {
    let place = Place::new();
    let mount = |source: &str, more: &[&str]| {
        place.ebb(&[&["mount", source, "mnt", "--data", "data"], more].concat())
    };
    mount(&format!("file://{}", place.text("no such")), &[])
        .refused(1, "there is no such directory");
    place.ebb(&["status", "127.0.0.1:1"]).refused(1, "cannot be reached");
    mount("ebb://127.0.0.1:1/volume", &[]).refused(1, "cannot be reached");
    fs::write(place.path("data is a file"), "").unwrap();
    place
        .ebb(&["mount", place.url(), "mnt", "--data", "data is a file"])
        .refused(1, "Not a directory");
    assert!(!place.is_mounted("mnt"));
}

/// Situation: root in a container without the right to mount, or a user without fusermount3.
/// Danger: the volume is taken over first, by a data directory that is then lost. Expectation: the
/// message names the missing right or program, and nothing has changed.
#[test]
fn mount_without_the_right_changes_nothing() {
    let place = Place::new();
    let mount = [env!("CARGO_BIN_EXE_ebb"), "mount", place.url(), "mnt", "--data", "data"];
    place
        .program("setpriv", &[&["--bounding-set=-sys_admin"], &mount[..]].concat())
        .refused(1, "it wants root with CAP_SYS_ADMIN");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", "PATH=/nowhere"];
    let is_for_all = fs::metadata("/dev/fuse").unwrap().mode() & 0o6 == 0o6;
    let what =
        if is_for_all { "fusermount3, which cannot be run" } else { "/dev/fuse cannot be opened" };
    place.program("setpriv", &[&nobody, &mount[..]].concat()).refused(1, what);
    assert_eq!(fs::read_dir(place.path("backing")).unwrap().count(), 0);
}

#[test]
fn buckets_that_cannot_be_used() {
    let place = Place::over_s3();
    let mount = |source: &str, more: &[&str]| {
        place.ebb(&[&["mount", source, "mnt", "--data", "data"], more].concat())
    };
    mount("s3://no-such-bucket", &[]).refused(1, "no such bucket");
    mount("s3://bucket", &["--endpoint", "http://127.0.0.1:1"]).refused(1, "cannot be reached");
    mount("s3://bucket", &["--anonymous"]).refused(1, "access denied");
    assert!(!place.is_mounted("mnt"));
}

#[test]
fn two_daemons_never_share() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.ebb(&["mount", place.url(), "mnt", "--data", "data"]).refused(1, "is mounted at");
    place
        .ebb(&["mount", place.url(), "mnt2", "--data", "data"])
        .refused(1, "data directory is in use by process");
    place
        .ebb(&["mount", &format!("file://{}", place.text("gone")), "mnt2", "--data", "data"])
        .refused(1, "in use");
    // Another data directory, the same bucket: its owner lives.
    place
        .ebb(&["mount", place.url(), "mnt2", "--data", "data2", "--head-term", "3s"])
        .refused(1, "is served by");
    // Reading is always allowed.
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2", "--take-over", "never"]).good();
    assert_eq!(fs::read_to_string(place.path("mnt2/file")).unwrap(), "content");
    // It has taken nothing over.
    let status = place.ebb(&["status", "mnt2"]).good().out;
    assert!(status.lines().next().unwrap().ends_with(" (read-only)"), "{status}");
    assert!(place.ebb(&["status", "mnt2", "--json"]).good().json()["incarnation"].is_null());
    place.umount_at("mnt2");
    place.umount();
}

#[test]
fn a_data_directory_is_for_one_volume() {
    let place = Place::new();
    place.mount();
    place.umount();
    fs::create_dir(place.path("other")).unwrap();
    let other = format!("file://{}", place.text("other"));
    place.ebb(&["mount", &other, "mnt", "--data", "data"]).refused(1, "another volume");
}

#[test]
fn versions_and_completions_need_no_mount() {
    let place = Place::new();
    assert!(place.ebb(&["version"]).good().out.starts_with("ebb "));
    assert!(place.ebb(&["version", "--json"]).good().json()["version"].is_string());
    assert!(place.ebb(&["completion", "bash"]).good().out.contains("complete"));
    assert!(place.ebb(&["--help"]).good().out.contains("Usage"));
}

/// Statements in the help texts about requirements and results are correct.
#[test]
fn help_states_requirements_and_results() {
    let place = Place::new();
    let usage = place.ebb(&["profile", "--help"]).good().out;
    for way in [
        "ebb profile [OPTIONS] <PATH> -- <COMMAND>...",
        "ebb profile [OPTIONS] <PATH> --for <TIME>",
    ] {
        assert!(usage.contains(way), "{usage}");
    }
    for neither_or_both in
        [&["profile", "mnt"][..], &["profile", "mnt", "--for", "1s", "--", "true"]]
    {
        assert_eq!(place.ebb(neither_or_both).status, 2);
    }
    let fsck =
        place.ebb(&["fsck", "--help"]).good().out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        ["0 if", "1 if", "2 if", "4 if", "8 if"].iter().all(|status| fsck.contains(status)),
        "{fsck}"
    );
    place.ebb(&["fsck", "backing"]).refused(2, "is on no mount of ebb");
}

/// Danger: the daemon waits for itself. Expectation: it is refused, also where a link leads there.
#[test]
fn a_data_directory_is_not_below_its_own_mount() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.path("mnt"), place.path("link")).unwrap();
    for data in ["mnt/data", "mnt/a/b", "mnt", "link/data"] {
        place.ebb(&["mount", place.url(), "mnt", "--data", data]).refused(2, "below its own mount");
    }
    assert!(fs::read_dir(place.path("mnt")).unwrap().next().is_none(), "nothing is left there");
}

/// Situation: the given data directory contains foreign files, also with names that ebb uses.
/// Danger: they count as leftovers of an earlier start, and are removed. Expectation: it is
/// rejected, and nothing in it changes.
#[test]
fn a_data_directory_holds_nothing_of_others() {
    for theirs in ["log/syslog", "snapshot/monday.tar", "log/nginx/access", "notes"] {
        let place = Place::new();
        let file = place.path("data").join(theirs);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "precious").unwrap();
        let told = place
            .ebb(&["mount", place.url(), "mnt", "--data", "data"])
            .refused(1, "which is not ebb's");
        let name = if theirs.starts_with("log/nginx") { "log/nginx" } else { theirs };
        assert!(told.err.contains(&format!("{name:?}")), "{told:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        assert!(!place.path("data/identity").exists() && !place.path("backing/.ebb/head").exists());
    }
}

/// Situation: the data directory, or the mount point, is in the directory that the volume is stored
/// in. Danger: the log shows as a file of the volume, or the volume in itself without end.
/// Expectation: it is refused.
#[test]
fn data_directory_inside_the_storage_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("backing/at")).unwrap();
    let told = "where the volume is stored";
    place.ebb(&["mount", place.url(), "mnt", "--data", "backing/data"]).refused(2, told);
    place.ebb(&["mount", place.url(), "backing/at", "--data", "data"]).refused(2, told);
    place
        .ebb(&[
            "serve",
            "--data",
            "backing/data",
            "--backing",
            place.url(),
            "--name",
            "volume",
            "--listen",
            "127.0.0.1:0",
        ])
        .refused(2, told);
    assert_eq!(fs::read_dir(place.path("backing")).unwrap().count(), 1);
}

/// Situation: two data directories have served a volume, one after the other, both with unflushed
/// files, and the first one is mounted by mistake. Danger: it is rejected after it has taken the
/// volume over, and now the second one is rejected too. Expectation: nothing has changed, and the
/// second one continues with its files.
#[test]
fn a_mount_that_is_refused_takes_nothing_over() {
    let place = Place::new();
    let mount = |data: &str| {
        place.ebb(&[
            "mount",
            place.url(),
            "mnt",
            "--data",
            data,
            "--flush-interval",
            "1h",
            "--head-term",
            "3s",
        ])
    };
    for data in ["data", "data2"] {
        mount(data).good();
        fs::write(place.path("mnt").join(data), data).unwrap();
        place.kill("mnt");
        place.ebb(&["umount", "mnt"]);
    }
    let head = fs::read(place.path("backing/.ebb/head")).unwrap();
    mount("data").refused(1, "was served by another node");
    let found = place.ebb(&["fsck", "data"]).good().out;
    assert!(found.contains("wait to be written to the bucket"), "{found}");
    assert_eq!(fs::read(place.path("backing/.ebb/head")).unwrap(), head);
    mount("data2").good();
    assert_eq!(fs::read_to_string(place.path("mnt/data2")).unwrap(), "data2");
    place.umount();
}

/// Situation: two mounts of a new volume start together, and both find no data directory. Danger:
/// the refused one removes the directory, with what the other one has acknowledged. Expectation: it
/// stays.
#[test]
fn a_refused_mount_keeps_the_data_directory_of_another() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), "acknowledged").unwrap();
    // As its first process has found it.
    let found_none = ["EBB_MADE_DATA=1", env!("CARGO_BIN_EXE_ebb")];
    let mount = ["mount", place.url(), "mnt2", "--data", "data"];
    place
        .program("env", &[&found_none[..], &mount].concat())
        .refused(1, "data directory is in use by process");
    assert!(place.path("data/identity").exists());
    place.kill("mnt");
    place.ebb(&["umount", "mnt"]);
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "acknowledged");
    place.umount();
}

/// Situation: the address of `--metrics` is in use. Danger: the volume is taken over, and serves
/// other mounts, before that shows. Expectation: nothing has changed, and no data directory is
/// left.
#[test]
fn a_metrics_address_in_use_refuses_the_mount_before_anything_is_taken_over() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mount = ["mount", place.url(), "mnt", "--data", "data", "--listen", "127.0.0.1:0"];
    place.ebb(&[&mount[..], &["--metrics", &address]].concat()).refused(1, "in use");
    assert_eq!(fs::read_dir(place.path("backing")).unwrap().count(), 0);
    assert!(!place.path("data").exists());
    drop(taken);
    place.ebb(&[&mount[..], &["--metrics", &address]].concat()).good();
    place.umount();
}

/// Situation: the output cannot be written. Danger: exit status 0. Expectation: a failure.
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for asked in ["--help", "--version"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = std::process::Command::new(env!("CARGO_BIN_EXE_ebb"))
            .arg(asked)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(1), "{asked}: {done:?}");
    }
}
