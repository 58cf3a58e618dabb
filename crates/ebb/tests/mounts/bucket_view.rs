//! The view of a bucket that others use too, and the data directory and volume that belong to an
//! address.

use crate::place::Place;
use ebb_cli::places;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Data directories that were made by default, gone at the end.
struct Defaults(Vec<PathBuf>);

impl Drop for Defaults {
    fn drop(&mut self) {
        for path in &self.0 {
            // The test may have failed before it was made.
            fs::remove_dir_all(path).ok();
        }
    }
}

fn put(place: &Place, key: &str) {
    let path = place.path("backing").join(key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, key).unwrap();
}

fn has(place: &Place, key: &str) -> Option<String> {
    fs::read_to_string(place.path("backing").join(key)).ok()
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Situation: a directory is renamed that was never listed. Expectation: once a flush, or the
/// mount, has ended the objects are at the keys of its new name.
#[test]
fn rename_of_unlisted_directory_is_in_the_bucket_after_flush_and_umount() {
    let place = Place::new();
    ["old/a", "old/in/b", "late/c"].iter().for_each(|key| put(&place, key));
    place.mount();
    fs::rename(place.path("mnt/old"), place.path("mnt/new")).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    assert_eq!(has(&place, "new/a").as_deref(), Some("old/a"));
    assert_eq!(has(&place, "new/in/b").as_deref(), Some("old/in/b"));
    assert!(!place.path("backing/old").exists());
    fs::rename(place.path("mnt/late"), place.path("mnt/new/late")).unwrap();
    place.umount();
    assert_eq!(has(&place, "new/late/c").as_deref(), Some("late/c"));
    assert!(!place.path("backing/late").exists());
}

/// Situation: others change the bucket while nothing is mounted, and while it is. Expectation: the
/// next mount shows it, and so does `ebb refresh`, even for names that the kernel has cached as
/// absent.
#[test]
fn new_mount_and_refresh_show_changes_of_others() {
    let place = Place::new();
    ["dir/gone", "dir/stays"].iter().for_each(|key| put(&place, key));
    place.mount();
    assert_eq!(names(&place.path("mnt/dir")), ["gone", "stays"]);
    place.umount();
    fs::remove_file(place.path("backing/dir/gone")).unwrap();
    put(&place, "dir/new");
    place.mount();
    assert_eq!(names(&place.path("mnt/dir")), ["new", "stays"]);
    assert!(!place.path("mnt/dir/later").exists());
    ["dir/later", "dir/in/deep"].iter().for_each(|key| put(&place, key));
    fs::remove_file(place.path("backing/dir/new")).unwrap();
    let told = place.ebb(&["refresh", "mnt"]).good().out;
    assert!(told.contains("names have changed"), "{told}");
    assert_eq!(names(&place.path("mnt/dir")), ["in", "later", "stays"]);
    assert_eq!(fs::read_to_string(place.path("mnt/dir/later")).unwrap(), "dir/later");
    // The named path need not be known yet. `other` is new in a directory that was listed, names
    // below it have not changed.
    put(&place, "other/deep/file");
    let report = place.ebb(&["refresh", "mnt/other/deep", "--json"]).good().json();
    assert_eq!(report["changed"].as_u64(), Some(1), "{report}");
    assert_eq!(names(&place.path("mnt/other/deep")), ["file"]);
    place.ebb(&["refresh", "mnt/absent"]).refused(1, "no such");
    place.umount();
}

/// Situation: the address of a directory is spelled in several ways, and an earlier version has
/// named the data directory after one of them. Danger: changes that never reached the bucket stay
/// in it. Expectation: it is found; several are reported, and none is chosen blindly.
#[test]
fn volume_has_one_data_directory_however_its_address_is_spelled() {
    let place = Place::new();
    let real = place.path("backing").canonicalize().unwrap();
    symlink(&real, place.path("link")).unwrap();
    let url = format!("file://{}", real.display());
    let spellings = [
        format!("{url}/"),
        format!("FILE://{}/./backing", real.parent().unwrap().display()),
        format!("file://{}", place.text("link")),
    ];
    let own = places::data_dir(&url);
    let others = spellings.each_ref().map(|spelling| places::data_dir(spelling));
    let defaults = Defaults([std::slice::from_ref(&own), &others[..]].concat());
    let mount = |url: &str| place.ebb(&["mount", url, "mnt", "--head-term", "3s"]);
    mount(&spellings[0]).good();
    fs::write(place.path("mnt/file"), "kept").unwrap();
    place.umount();
    for spelling in &spellings[1..] {
        mount(spelling).good();
        assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "kept");
        place.umount();
    }
    assert!(own.join("identity").exists() && !others.iter().any(|other| other.exists()));
    // As an earlier version has named it, with something that is nowhere else.
    fs::rename(&own, &others[0]).unwrap();
    mount(&url).good();
    place.ebb(&["flush", "mnt"]).good();
    fs::write(place.path("mnt/precious"), "precious").unwrap();
    place.kill("mnt");
    place.ebb(&["umount", "mnt"]);
    assert!(!own.exists());
    mount(&url).good();
    assert_eq!(fs::read_to_string(place.path("mnt/precious")).unwrap(), "precious");
    place.umount();
    assert_eq!(has(&place, "precious").as_deref(), Some("precious"));
    // A directory from which the volume was only read has nothing that could be missed.
    place.ebb(&["mount", &url, "mnt", "--data", others[1].to_str().unwrap(), "-o", "ro"]).good();
    place.umount();
    mount(&url).good();
    assert_eq!(place.record("mnt").data_dir, others[0]);
    place.umount();
    place.program("cp", &["-a", others[0].to_str().unwrap(), own.to_str().unwrap()]).good();
    mount(&url).refused(1, "several data directories");
    mount(&url).refused(1, others[0].to_str().unwrap());
    drop(defaults);
}

/// Situation: the data directory belongs to another storage, store or volume than the one to mount.
/// Expectation: the refusal names the difference and the remedy.
#[test]
fn refusal_of_another_volume_says_how_it_differs() {
    let mut place = Place::over_s3();
    place.mount();
    place.umount();
    let first = place.variable("EBB_ENDPOINT").to_owned();
    place.turn_to(&ebb_s3_server::start().unwrap());
    let mount = |place: &Place| {
        place.ebb(&["mount", place.url(), "mnt", "--data", "data", "--head-term", "3s"])
    };
    mount(&place).refused(1, "the endpoint is another");
    mount(&place).refused(1, &first);
    mount(&place).refused(1, "(--data)");
    let read =
        |place: &Place| place.ebb(&["mount", place.url(), "mnt", "--data", "data", "-o", "ro"]);
    read(&place).refused(1, "the endpoint is another");

    let place = Place::new();
    place.mount();
    place.umount();
    fs::remove_dir_all(place.path("backing/.ebb")).unwrap();
    mount(&place).refused(1, "was emptied");
    read(&place).refused(1, "was emptied");
    place.ebb(&["mount", place.url(), "mnt", "--data", "new"]).good();
    place.umount();
    mount(&place).refused(1, "was made anew");
    fs::create_dir(place.path("other")).unwrap();
    let other = format!("file://{}", place.text("other"));
    place.ebb(&["mount", &other, "mnt", "--data", "data"]).refused(1, "the storage is another");
    place
        .ebb(&[
            "serve",
            "--backing",
            &other,
            "--name",
            "v",
            "--data",
            "data",
            "--listen",
            "127.0.0.1:0",
        ])
        .refused(1, "the storage is another");
    place
        .ebb(&["mount", &other, "mnt", "--data", "data", "-o", "ro"])
        .refused(1, "the storage is another");
}

/// Situation: a data directory was only used to read. Danger: it is taken for one with changes of
/// another volume, and refused. Expectation: it serves the same storage again, however that is
/// spelled, and starts anew for other storage and for a mount that writes.
#[test]
fn data_directory_that_was_only_read_is_a_cache() {
    let place = Place::new();
    put(&place, "dir/file");
    let mount = |url: &str, more: &[&str]| {
        place.ebb(&[&["mount", url, "mnt", "--data", "data"], more].concat()).good();
    };
    let identity = || fs::read_to_string(place.path("data/identity")).unwrap();
    mount(place.url(), &["-o", "ro"]);
    assert_eq!(fs::read_to_string(place.path("mnt/dir/file")).unwrap(), "dir/file");
    place.umount();
    let first = identity();
    symlink(place.path("backing"), place.path("link")).unwrap();
    for spelled in [format!("{}/", place.url()), format!("file://{}", place.text("link"))] {
        mount(&spelled, &["-o", "ro"]);
        assert_eq!(names(&place.path("mnt/dir")), ["file"]);
        place.umount();
        assert_eq!(identity(), first);
    }
    fs::create_dir_all(place.path("other/dir")).unwrap();
    fs::write(place.path("other/dir/new"), "new").unwrap();
    mount(&format!("file://{}", place.text("other")), &["-o", "ro"]);
    assert_eq!(names(&place.path("mnt/dir")), ["new"]);
    place.umount();
    assert_ne!(identity(), first);
    mount(place.url(), &["--head-term", "3s"]);
    assert_eq!(names(&place.path("mnt/dir")), ["file"]);
    fs::write(place.path("mnt/dir/written"), "written").unwrap();
    place.umount();
    assert_eq!(has(&place, "dir/written").as_deref(), Some("written"));
    mount(place.url(), &["--head-term", "3s"]);
    assert_eq!(names(&place.path("mnt/dir")), ["file", "written"]);
    place.umount();
}

/// Situation: a known data directory is of storage below the mount point, and the daemon dies.
/// Danger: the next daemon looks that path up, and waits for itself. Expectation: it takes over.
#[test]
fn daemon_that_takes_over_does_not_look_up_its_own_mount() {
    let place = Place::new();
    let url = format!("file://{}", place.path("backing").canonicalize().unwrap().display());
    let below = format!("file://{}/a/b", place.path("mnt").canonicalize().unwrap().display());
    let defaults = Defaults([&url, &below].map(|url| places::data_dir(url)).into());
    fs::create_dir_all(&defaults.0[1]).unwrap();
    fs::write(defaults.0[1].join("identity"), "{}").unwrap();
    place.ebb(&["mount", &url, "mnt", "--head-term", "3s"]).good();
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.kill_daemon("mnt");
    assert_eq!(place.program("cat", &["mnt/file"]).good().out, "content");
    place.umount();
    drop(defaults);
}
