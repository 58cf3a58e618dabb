//! An encrypted data directory, and secrecy of keys and credentials.

use crate::place::{Done, Place, until};
use std::fs;
use std::path::{Path, PathBuf};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

const ENCRYPTED: [&str; 2] = ["--encryption-key-file", "key"];

fn place() -> Place {
    with_keys(Place::new())
}

fn with_keys(place: Place) -> Place {
    fs::write(place.path("key"), format!("{KEY}\n")).unwrap();
    fs::write(place.path("other"), OTHER_KEY).unwrap();
    place
}

fn command(place: &Place) -> String {
    format!("cat {}", place.text("key"))
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[track_caller]
fn assert_nowhere(dir: &Path, words: &[&str]) {
    for path in files_below(dir) {
        let bytes = fs::read(&path).unwrap();
        for word in words {
            let found = bytes.windows(word.len()).any(|part| part == word.as_bytes());
            assert!(!found, "{word} is in {}", path.display());
        }
    }
}

/// Situation: files of all sizes are written, changed, uploaded and read back; the daemon is
/// killed, the mount is killed, the node restarts. Danger: the disk reveals data. Expectation:
/// everything is readable with the key, and neither names nor contents appear on the disk.
#[test]
fn encrypted_disk_reveals_no_names_or_contents() {
    let place = place();
    let words = ["secretname", "SECRETCONTENT", "secretlink"];
    let large = "SECRETCONTENT ".repeat(40_000);
    place.mount_with(&ENCRYPTED);
    assert!(place.ebb(&["status", "mnt"]).good().out.contains("encryption at rest is on"));
    fs::create_dir(place.path("mnt/secretname")).unwrap();
    fs::write(place.path("mnt/secretname/small"), "SECRETCONTENT").unwrap();
    fs::write(place.path("mnt/secretname/large"), &large).unwrap();
    std::os::unix::fs::symlink("secretlink/target", place.path("mnt/link")).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    fs::write(place.path("mnt/secretname/later"), &large[..150_001]).unwrap();
    fs::File::open(place.path("mnt/secretname/later")).unwrap().sync_all().unwrap();
    assert_nowhere(&place.path("data"), &words);

    let check = || {
        assert_eq!(
            fs::read_to_string(place.path("mnt/secretname/small")).unwrap(),
            "SECRETCONTENT"
        );
        assert!(fs::read_to_string(place.path("mnt/secretname/large")).unwrap() == large);
        assert!(
            fs::read_to_string(place.path("mnt/secretname/later")).unwrap() == large[..150_001]
        );
    };
    check();
    let first = place.record("mnt").daemon;
    place.kill_daemon("mnt");
    check();
    until("another daemon", || place.record("mnt").daemon != first);
    place.kill("mnt");
    place.mount_with(&ENCRYPTED);
    check();
    place.ebb(&["fsck", "mnt"]).good();
    place.ebb(&["evict", "mnt/secretname/large"]).good();
    check();
    place.umount();
    assert_nowhere(&place.path("data"), &words);
    for dir in ["log", "packs", "snapshot", "store"] {
        assert!(
            !files_below(&place.path("data").join(dir)).is_empty(),
            "there is something in {dir}"
        );
        assert_nowhere(&place.path("data").join(dir), &["file://", "EBBLOG", "EBBSNAP"]);
    }
    place.mount_with(&["--encryption-key-command", &command(&place)]);
    check();
    place.umount();
    place.ebb(&["fsck", "data", "--encryption-key-file", "key"]).good();
    assert!(fs::read_to_string(place.path("backing/secretname/large")).unwrap() == large);
}

/// A missing, wrong or malformed key, or a key for a plain directory, is rejected before any
/// change, with a message that names the remedy.
#[test]
fn only_the_right_key_is_taken() {
    let place = place();
    let url = place.url().to_owned();
    let mount = |data: &str, more: &[&str]| {
        place.ebb(&[&["mount", &url, "mnt", "--data", data][..], more].concat())
    };
    place.mount_with(&ENCRYPTED);
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.umount();
    let before: Vec<_> = files_below(&place.path("data"))
        .into_iter()
        .filter(|path| !path.ends_with("ebb.log"))
        .collect();
    let bytes = |paths: &[PathBuf]| {
        paths
            .iter()
            .filter(|path| !path.ends_with("LOCK"))
            .map(|path| fs::read(path).unwrap())
            .collect::<Vec<_>>()
    };
    let contents = bytes(&before);
    fs::write(place.path("short"), "0123").unwrap();
    mount("data", &[])
        .refused(1, "it is encrypted, and no key was given: see --encryption-key-file");
    mount("data", &["--encryption-key-file", "other"])
        .refused(1, "it is encrypted with another key");
    mount("data", &["--encryption-key-file", "short"])
        .refused(1, "short: a key is 32 random bytes, or 64 hexadecimal digits");
    mount("data", &["--encryption-key-file", "missing"]).refused(1, "No such file");
    mount("data", &["--encryption-key-command", "exit 3"]).refused(1, "exit status: 3");
    let twice = format!("{0}; {0}", command(&place));
    mount("data", &["--encryption-key-command", &twice]).refused(1, "64 hexadecimal digits");
    assert_eq!(
        mount("data", &["--encryption-key-command", &twice, "--encryption-key-file", "key"]).status,
        2
    );
    place.ebb(&["fsck", "data"]).refused(8, "no key was given");
    place.ebb(&["fsck", "data", "--encryption-key-file", "other"]).refused(8, "another key");
    assert!(bytes(&before) == contents);
    place.mount_with(&ENCRYPTED);
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();

    mount("plain", &[]).good();
    place.umount();
    mount("plain", &ENCRYPTED).refused(1, "the data directory is not encrypted");
    mount("plain", &[]).good();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

#[test]
fn the_key_can_be_changed() {
    let place = place();
    place.mount_with(&ENCRYPTED);
    fs::write(place.path("mnt/file"), "content").unwrap();
    let change = |from: &str| {
        place.ebb(&["change-key", "data", "--encryption-key-file", from, "--new-key-file", "other"])
    };
    change("key").refused(1, "data directory is in use by process");
    place.umount();
    change("other").refused(1, "encrypted with another key");
    place.ebb(&["change-key", "data", "--new-key-file", "other"]).refused(1, "no key was given");
    place
        .ebb(&["change-key", "backing", "--encryption-key-file", "key", "--new-key-file", "other"])
        .refused(2, "no encrypted data directory");
    change("key").good();
    place
        .ebb(&["mount", place.url(), "mnt", "--data", "data", "--encryption-key-file", "key"])
        .refused(1, "another key");
    place.mount_with(&["--encryption-key-file", "other"]);
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

/// Situation: full logging, and many failures: wrong keys, a bucket that rejects, a daemon that
/// dies. Expectation: neither the key nor the credentials appear in any output, log, record,
/// argument or environment, except where the user put them.
#[test]
fn secrets_are_told_to_nobody() {
    let place = with_keys(Place::over_s3());
    let url = place.url().to_owned();
    let wrong_secret = "WRONGSECRETWRONGSECRETWRONGSECRET";
    let told_by_command = "TOLDBYCOMMANDTOLDBYCOMMAND";
    let command = format!("echo {told_by_command} >&2; {}", command(&place));
    let secret = place.variable("AWS_SECRET_ACCESS_KEY").to_owned();
    let mount = [
        "mount",
        &url,
        "mnt",
        "--data",
        "data",
        "--log",
        "trace",
        "--encryption-key-command",
        &command,
    ];
    let mut told: Vec<Done> = Vec::new();
    told.push(place.ebb(&mount).good());
    let daemon = place.record("mnt").daemon.pid;
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.kill_daemon("mnt");
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    until("another daemon", || place.record("mnt").daemon.pid != daemon);
    let heir = place.record("mnt").daemon.pid;
    let dumped = fs::read_to_string(format!("/proc/{heir}/coredump_filter")).unwrap();
    assert_eq!(dumped.trim(), "00000000", "nothing of its memory");
    for of in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{heir}/{of}")).unwrap();
        assert!(!bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()), "the key is in {of}");
    }
    let record = format!("{:?}", place.record("mnt"));
    for command in [
        &["status", "mnt"][..],
        &["status", "mnt", "--json"],
        &["stats", "mnt", "--interval", "0", "--json"],
        &["explain", "mnt/file"],
        &["flush", "mnt"],
        &["fsck", "mnt", "--bucket"],
        &["umount", "mnt"],
    ] {
        told.push(place.ebb(command).good());
    }
    let other = [&mount[..7], &["--encryption-key-file", "other"]].concat();
    told.push(place.ebb(&other));
    let variable = format!("AWS_SECRET_ACCESS_KEY={wrong_secret}");
    let refused = [&[variable.as_str(), env!("CARGO_BIN_EXE_ebb")], &mount[..]].concat();
    told.push(place.program("env", &refused));
    assert!(told[told.len() - 2].status != 0 && told[told.len() - 1].status != 0, "{told:?}");
    let logged = fs::read_to_string(place.path("data/ebb.log")).unwrap();
    assert!(logged.contains("TRACE") || logged.contains("DEBUG"), "it is the whole log");
    let said = told.iter().map(|done| format!("{}{}", done.out, done.err)).collect::<String>()
        + &logged
        + &record;
    let raw: Vec<u8> = (0..32).collect();
    for (name, secret) in [
        ("key", KEY),
        ("other key", OTHER_KEY),
        ("secret", &secret),
        ("wrong secret", wrong_secret),
    ] {
        assert!(!said.contains(secret), "the {name} is told");
    }
    assert!(
        !said.as_bytes().windows(32).any(|part| part == raw) && !said.contains("[0, 1, 2, 3, 4, 5"),
        "the key is told"
    );
    assert_nowhere(&place.path("data"), &[KEY, OTHER_KEY, &secret, wrong_secret, told_by_command]);
}

/// Situation: a secret is given in the wrong place. Expectation: it is rejected without being
/// repeated.
#[test]
fn secrets_in_wrong_places_are_not_repeated() {
    let place = Place::new();
    fs::write(place.path("quick"), "[advanced]\nbucket-timeout = 1").unwrap();
    fs::write(place.path("config"), "endpoint = \"http://user:HUSH@127.0.0.1:1\n").unwrap();
    let azure = |text: &str| format!("AZURE_STORAGE_CONNECTION_STRING={text}");
    let (one_word, no_account) =
        (azure("AccountName=acc AccountKey=HUSH"), azure("AccountName=acc\nAccountKey=HUSH"));
    let signed = azure("AccountName=acc;BlobEndpoint=https://127.0.0.1:1/?sig=HUSH");
    for (variable, arguments) in [
        (&one_word[..], &["az://c"][..]),
        (&no_account, &["az://c@acc"]),
        (&signed, &["az://c"]),
        ("A=b", &["s3://b", "--endpoint", "http://user:HUSH@127.0.0.1:1"]),
        ("AWS_ENDPOINT_URL=http://user:HUSH@127.0.0.1:1", &["s3://b"]),
        ("A=b", &["s3://b", "--config", "config"]),
        (
            "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:1/x?token=HUSH",
            &["s3://b", "--endpoint", "http://127.0.0.1:1"],
        ),
        ("A=b", &["s3://AKID:HUSH@b"]),
        ("A=b", &["gs://u:HUSH@b"]),
        ("A=b", &["az://c@acc?sig=HUSH"]),
    ] {
        let cleared = [
            "-u",
            "AWS_ACCESS_KEY_ID",
            "-u",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_EC2_METADATA_DISABLED=true",
            "HOME=/nowhere",
            "EBB_CONFIG=quick",
        ];
        let (url, options) = arguments.split_first().unwrap();
        let mount = [env!("CARGO_BIN_EXE_ebb"), "mount", url, "mnt", "--data", "data"];
        let done = place.program("env", &[&cleared[..], &[variable], &mount, options].concat());
        let logged = fs::read_to_string(place.path("data/ebb.log")).unwrap_or_default();
        assert!(done.status != 0 && !done.err.is_empty(), "{arguments:?}: {done:?}");
        assert!(!format!("{done:?}{logged}").contains("HUSH"), "{arguments:?}: {done:?}");
    }
}

/// Encryption settings reach a store that checks signatures, and are an error for a store that
/// cannot honour them.
#[test]
fn the_store_is_told_how_to_encrypt() {
    let place = Place::over_s3();
    place.mount_with(&["--server-side-encryption", "aes256"]);
    fs::write(place.path("mnt/file"), "content").unwrap();
    fs::rename(place.path("mnt/file"), place.path("mnt/renamed")).unwrap();
    fs::write(place.path("mnt/large"), vec![7; 40 << 20]).unwrap();
    place.umount();
    place.drop_cache();
    place.mount_with(&["--kms-key", "key-id"]);
    assert_eq!(fs::read_to_string(place.path("mnt/renamed")).unwrap(), "content");
    assert!(fs::read(place.path("mnt/large")).unwrap() == vec![7; 40 << 20]);
    place.umount();
    let place = Place::new();
    let told = place.ebb(&["mount", place.url(), "mnt", "--data", "data", "--kms-key", "key-id"]);
    told.refused(2, "how this storage encrypts is a matter of its own settings");
}
