//! Several buckets under one mount (O-24), each at a directory of its own.

use crate::place::{Done, Place, until};
use crate::switch::Switch;
use std::fs;
use std::io;
use std::path::Path;

/// A bucket on the same S3 server, with a prefix of its own, and a directory.
const TABLES: &str = r#"
[[bucket]]
dir = "logs"
url = "s3://bucket/of logs"
endpoint = "ENDPOINT"

[[bucket]]
dir = "models"
url = "file://DIR/models"
"#;

/// Two member buckets; those on the S3 server are reached at `endpoint`.
fn side_by_side(place: &Place, endpoint: &str) {
    fs::create_dir_all(place.path("models")).unwrap();
    configure(place, &TABLES.replace("ENDPOINT", endpoint));
}

fn configure(place: &Place, tables: &str) {
    fs::write(place.path("ebb.toml"), tables.replace("DIR", &place.dir.display().to_string()))
        .unwrap();
}

fn mount(place: &Place, more: &[&str]) -> Done {
    place.ebb(
        &[&["mount", place.url(), "mnt", "--data", "data", "--config", "ebb.toml"], more].concat(),
    )
}

fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Files of every size below each directory, and attributes that objects cannot hold.
fn write(place: &Place, round: &str) {
    for dir in ["logs", "models", "plain"] {
        let dir = place.path("mnt").join(dir).join(round);
        fs::create_dir_all(dir.join("deep")).unwrap();
        fs::write(dir.join("small"), format!("small {round}")).unwrap();
        fs::write(dir.join("deep/large"), vec![round.as_bytes()[0]; 20 << 20]).unwrap();
        std::os::unix::fs::symlink("small", dir.join("link")).unwrap();
        fs::hard_link(dir.join("small"), dir.join("deep/second")).unwrap();
    }
}

#[track_caller]
fn check(place: &Place, round: &str) {
    for dir in ["logs", "models", "plain"] {
        let dir = place.path("mnt").join(dir).join(round);
        assert_eq!(fs::read_to_string(dir.join("link")).unwrap(), format!("small {round}"));
        assert_eq!(fs::read_to_string(dir.join("deep/second")).unwrap(), format!("small {round}"));
        assert!(fs::read(dir.join("deep/large")).unwrap() == vec![round.as_bytes()[0]; 20 << 20]);
    }
}

/// Situation: a volume with two member buckets; the daemon is killed, and later every cache is
/// lost. Expectation: each file is in the bucket of its directory as an ordinary object, and
/// nothing is lost.
#[test]
fn each_directory_is_in_its_own_bucket() {
    let place = Place::over_s3();
    side_by_side(&place, place.variable("EBB_ENDPOINT"));
    mount(&place, &[]).good();
    assert_eq!(names(place.path("mnt")), ["logs", "models"]);
    write(&place, "1");
    place.ebb(&["flush", "mnt"]).good();
    assert_eq!(fs::read_to_string(place.path("models/1/small")).unwrap(), "small 1");
    assert_eq!(fs::metadata(place.path("models/1/deep/large")).unwrap().len(), 20 << 20);
    write(&place, "2");
    place.kill("mnt");
    mount(&place, &[]).good();
    check(&place, "1");
    check(&place, "2");
    fs::remove_dir_all(place.path("mnt/logs/1")).unwrap();
    fs::rename(place.path("mnt/models/1"), place.path("mnt/models/renamed")).unwrap();
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    assert_eq!(names(place.path("models")), [".ebb", "2", "renamed"]);
    // A directory as bucket stages uploads there.
    assert_eq!(
        names(place.path("models/.ebb")),
        ["head", "incoming"],
        "pages are in the root bucket"
    );

    // Nothing but the buckets.
    place.drop_cache();
    mount(&place, &[]).good();
    assert_eq!(names(place.path("mnt")), ["logs", "models", "plain"]);
    assert_eq!(names(place.path("mnt/logs")), ["2"]);
    assert_eq!(names(place.path("mnt/models")), ["2", "renamed"]);
    check(&place, "2");
    assert_eq!(fs::read_to_string(place.path("mnt/models/renamed/link")).unwrap(), "small 1");
    assert_eq!(
        place.ebb(&["fsck", "mnt", "--json"]).good().json()["problems"].as_array().unwrap().len(),
        0
    );
    let status = place.ebb(&["status", "mnt"]).good().out;
    assert!(
        status.contains("logs over s3://bucket/of logs/") && status.contains("models over file://"),
        "{status}"
    );
    place.umount();

    // The bucket of logs from the view of another program.
    place
        .ebb(&["mount", "s3://bucket/of logs", "mnt", "--data", "other", "--take-over", "never"])
        .good();
    assert_eq!(names(place.path("mnt")), ["2"]);
    assert_eq!(fs::read_to_string(place.path("mnt/2/small")).unwrap(), "small 2");
    place.umount();
}

/// Renames across buckets fail with EXDEV, as across file systems, and `mv` copies.
#[test]
fn nothing_is_moved_from_one_bucket_to_another() {
    let place = Place::over_s3();
    side_by_side(&place, place.variable("EBB_ENDPOINT"));
    mount(&place, &[]).good();
    let at = |path: &str| place.path("mnt").join(path);
    fs::create_dir(at("plain")).unwrap();
    fs::write(at("logs/file"), "content").unwrap();
    for to in ["models/file", "plain/file", "file"] {
        assert_eq!(errno(fs::rename(at("logs/file"), at(to))), libc::EXDEV, "{to}");
        assert_eq!(errno(fs::hard_link(at("logs/file"), at(to))), libc::EXDEV, "{to}");
    }
    assert_eq!(errno(fs::rename(at("plain"), at("logs/plain"))), libc::EXDEV);
    assert_eq!(errno(fs::remove_dir(at("logs"))), libc::EBUSY);
    assert_eq!(errno(fs::rename(at("logs"), at("elsewhere"))), libc::EBUSY);
    assert_eq!(errno(fs::rename(at("plain"), at("logs"))), libc::EBUSY);
    assert_eq!(errno(fs::create_dir(at("logs"))), libc::EEXIST);
    for dir in [".ebb", "logs/.ebb"] {
        assert_eq!(errno(fs::create_dir(at(dir))), libc::EACCES, "{dir}");
        assert_eq!(errno(fs::write(at(dir), "")), libc::EACCES, "{dir}");
    }
    assert_eq!(errno(fs::rename(at("logs/file"), at("logs/.ebb"))), libc::EACCES);
    fs::create_dir(at("plain/.ebb")).unwrap();
    // The directory itself has ordinary attributes.
    fs::set_permissions(at("logs"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let moved = std::process::Command::new("mv")
        .arg(at("logs/file"))
        .arg(at("models/file"))
        .status()
        .unwrap();
    assert!(moved.success() && !at("logs/file").exists());
    place.umount();
    assert_eq!(fs::read_to_string(place.path("models/file")).unwrap(), "content");
    place.drop_cache();
    mount(&place, &[]).good();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(at("logs")).unwrap().permissions())
            & 0o777,
        0o700
    );
    place.umount();
}

/// Situation: one bucket goes away while all are written. Expectation: the others work, the report
/// names the missing one, and its files arrive once it is back.
#[test]
fn a_bucket_that_goes_away_stops_only_its_own_directory() {
    let switch = Switch::default();
    let place = Place::over_s3();
    side_by_side(&place, &switch.before(place.variable("EBB_ENDPOINT")));
    mount(&place, &["--flush-interval", "0s", "--bucket-timeout", "2s"]).good();
    let at = |path: &str| place.path("mnt").join(path);
    fs::write(at("logs/before"), "1").unwrap();
    place.ebb(&["flush", "mnt"]).good();
    switch.close();
    fs::write(at("logs/during"), "2").unwrap();
    for index in 0..20 {
        fs::write(at(&format!("models/{index}")), "there").unwrap();
        fs::write(at(&format!("{index}")), "there").unwrap();
    }
    until("models arrives", || place.path("models/19").exists());
    place.ebb(&["flush", "mnt/models"]).good();
    place.ebb(&["flush", "mnt/19"]).good();
    place.ebb(&["flush", "mnt/logs"]).refused(1, "has not taken everything");
    let dirty = place.ebb(&["ls-dirty", "mnt", "--json"]).good().json();
    assert!(
        dirty["dirty"]
            .as_array()
            .unwrap()
            .iter()
            .all(|item| item["path"].as_str().unwrap().starts_with("logs")),
        "{dirty}"
    );
    let status = place.ebb(&["status", "mnt"]).good().out;
    let trouble = status.lines().find(|line| line.starts_with("TROUBLE")).unwrap_or_default();
    assert!(trouble.contains("logs"), "{status}");
    fs::read(at("logs/before")).unwrap();
    switch.open();
    until("what waited is taken", || place.ebb(&["flush", "mnt"]).status == 0);
    place.umount();
    place.drop_cache();
    mount(&place, &[]).good();
    assert_eq!(fs::read_to_string(at("logs/during")).unwrap(), "2");
    place.umount();
}

#[test]
fn a_served_volume_has_its_buckets_side_by_side() {
    let mut place = Place::over_s3();
    side_by_side(&place, place.variable("EBB_ENDPOINT"));
    let url = place.url().to_owned();
    let serve = [
        "serve",
        "--backing",
        &url,
        "--name",
        "v",
        "--data",
        "node",
        "--config",
        "ebb.toml",
        "--listen",
        "127.0.0.1:0",
    ];
    let (child, line) = place.start(&serve);
    let source = line.split_whitespace().nth(1).unwrap().to_owned();
    place
        .ebb(&["mount", &source, "mnt", "--data", "data", "--config", "ebb.toml"])
        .refused(2, "is served by another process");
    place.ebb(&["mount", &source, "mnt", "--data", "data"]).good();
    fs::write(place.path("mnt/models/x"), "served").unwrap();
    assert_eq!(
        errno(fs::rename(place.path("mnt/models/x"), place.path("mnt/logs/x"))),
        libc::EXDEV
    );
    place.umount();
    place.ebb(&["mount", &format!("{source}/models"), "mnt", "--data", "data"]).good();
    assert_eq!(fs::read_to_string(place.path("mnt/x")).unwrap(), "served");
    place.umount();
    assert_eq!(place.signal(child, libc::SIGTERM), 0);
    assert_eq!(fs::read_to_string(place.path("models/x")).unwrap(), "served");
}

/// Situation: a bucket of one volume is mounted by another. Expectation: one of them writes.
#[test]
fn bucket_of_two_volumes_has_one_writer() {
    let place = Place::over_s3();
    side_by_side(&place, place.variable("EBB_ENDPOINT"));
    mount(&place, &["--head-term", "3s"]).good();
    let models = format!("file://{}", place.text("models"));
    place
        .ebb(&["mount", &models, "mnt2", "--data", "alone", "--head-term", "3s"])
        .refused(1, "as models of s3://");
    place.umount();
    // After its release the bucket can be mounted alone.
    place.ebb(&["mount", &models, "mnt2", "--data", "alone", "--head-term", "3s"]).good();
    let refused = mount(&place, &["--head-term", "3s"]).refused(1, "the bucket of models: ");
    assert!(refused.err.contains("is served by"), "{refused:?}");
    place.umount_at("mnt2");
    mount(&place, &[]).good();
    place.umount();
    // Two directories over one bucket, by names that do not show it.
    std::os::unix::fs::symlink(place.path("models"), place.path("same")).unwrap();
    configure(
        &place,
        "[[bucket]]\ndir = \"a\"\nurl = \"file://DIR/models\"\n[[bucket]]\ndir = \"b\"\nurl = \
         \"file://DIR/same\"",
    );
    mount(&place, &["--rearrange", "--head-term", "3s"]).refused(1, "is served by");
}

#[test]
fn buckets_that_cannot_stand_there() {
    let place = Place::over_s3();
    side_by_side(&place, place.variable("EBB_ENDPOINT"));
    let refused = |tables: &str, status: i32, text: &str| {
        configure(&place, tables);
        mount(&place, &[]).refused(status, text);
    };
    let models = "[[bucket]]\ndir = \"models\"\nurl = \"file://DIR/models\"\n";
    refused("[[bucket]]\ndir = \"models\"\nurl = \"file://DIR/none\"", 1, "the bucket of models: ");
    refused("[[bucket]]\ndir = \"a\"\nurl = \"gopher://x\"", 2, "the bucket of a: ");
    refused(
        "[[bucket]]\ndir = \"a\"\nurl = \"s3://bucket/x\"\nendpoint = \"http://127.0.0.1:1\"",
        1,
        "the bucket of a: ",
    );
    for url in ["gs://bucket/x", "az://container@account/x"] {
        let table = format!(
            "[[bucket]]\ndir = \"a\"\nurl = \"{url}\"\nendpoint = \
             \"http://127.0.0.1:1\"\nanonymous = true"
        );
        refused(&table, 1, "the bucket of a: ");
    }
    let endpoint = place.variable("EBB_ENDPOINT");
    // The root bucket has a file, or anything below, where the member would be.
    configure(&place, "");
    mount(&place, &[]).good();
    fs::create_dir(place.path("mnt/models")).unwrap();
    fs::write(place.path("mnt/models/hidden"), "").unwrap();
    std::os::unix::fs::symlink("models", place.path("mnt/link")).unwrap();
    place.umount();
    refused(models, 1, "models cannot be the directory of a bucket");
    refused(
        &models.replace("\"models\"", "\"link\""),
        1,
        "link cannot be the directory of a bucket",
    );
    configure(&place, "");
    mount(&place, &[]).good();
    fs::remove_dir_all(place.path("mnt/models")).unwrap();
    place.umount();
    configure(&place, models);
    mount(&place, &[]).good();
    fs::write(place.path("mnt/models/shown"), "").unwrap();
    // Dirty data of one arrangement must not go to another.
    place.kill("mnt");
    place.ebb(&["umount", "mnt"]).refused(1, "goes on with it");
    refused("", 1, "start once more as it was");
    configure(&place, models);
    mount(&place, &[]).good();
    place.umount();
    // Removing or replacing a bucket needs an explicit flag.
    refused("", 1, "rearrange = true");
    fs::create_dir(place.path("others")).unwrap();
    refused(&models.replace("DIR/models", "DIR/others"), 1, "rearrange = true");
    mount(&place, &["--rearrange"]).good();
    assert_eq!(names(place.path("mnt/models")), Vec::<String>::new());
    place.umount();
    // One more is no matter.
    let more = format!(
        "[[bucket]]\ndir = \"more\"\nurl = \"s3://bucket/more\"\nendpoint = \"{endpoint}\"\n"
    );
    configure(&place, &(models.replace("DIR/models", "DIR/others") + &more));
    mount(&place, &[]).good();
    assert_eq!(names(place.path("mnt")), ["link", "models", "more"]);
    place.umount();
}

/// Each bucket has a trash of its own, and commands show them as one.
#[test]
fn each_bucket_has_its_trash() {
    let place = Place::over_s3();
    side_by_side(&place, place.variable("EBB_ENDPOINT"));
    mount(&place, &[]).good();
    place.ebb(&["trash", "keep", "mnt", "7d"]).good();
    let lost = ["logs/a", "models/b/c", "plain"];
    fs::create_dir(place.path("mnt/models/b")).unwrap();
    for path in lost {
        fs::write(place.path("mnt").join(path), path).unwrap();
        fs::remove_file(place.path("mnt").join(path)).unwrap();
    }
    fs::remove_dir(place.path("mnt/models/b")).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    assert!(
        fs::read_dir(place.path("models/.ebb.trash")).unwrap().count() > 0,
        "it is in the bucket that it was in"
    );
    assert_eq!(
        (names(place.path("mnt/models")).len(), names(place.path("mnt/logs")).len()),
        (0, 0)
    );
    place.umount();
    place.drop_cache();
    mount(&place, &[]).good();
    let kept = place.ebb(&["trash", "list", "mnt", "--json"]).good().json();
    let paths: Vec<&str> =
        kept.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["logs/a", "models/b", "models/b/c", "plain"]);
    let across = place.ebb(&["trash", "restore", "mnt/logs/a", "--to", "mnt/models/a"]);
    assert!(across.status == 1 && across.err.contains("/models/a: "), "{across:?}");
    place.ebb(&["trash", "restore", "mnt"]).good();
    for path in lost {
        assert_eq!(fs::read_to_string(place.path("mnt").join(path)).unwrap(), path);
    }
    place.ebb(&["fsck", "mnt", "--bucket"]).good();
    place.umount();
}
