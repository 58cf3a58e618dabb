//! The trash on real mounts: restored files are unchanged, whatever happened in between.

use crate::detached::serve;
use crate::place::{Place, until};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

/// Of everything below a directory: kind and mode, owner, times of files, and content.
fn tree(dir: &Path) -> BTreeMap<String, (u32, u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let (mut mtime, mut content) = (metadata.mtime_nsec() + metadata.mtime(), Vec::new());
            if metadata.is_dir() {
                todo.push(path.clone());
                mtime = 0;
            } else if metadata.is_file() {
                content = fs::read(&path).unwrap();
            } else if metadata.is_symlink() {
                content = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
            }
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            found.insert(name, (metadata.mode(), metadata.uid(), mtime, content));
        }
    }
    found
}

pub fn entries(place: &Place, path: &str) -> Vec<serde_json::Value> {
    place.ebb(&["trash", "list", path, "--json"]).good().json().as_array().unwrap().clone()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Situation: `rm -rf` of a directory, and then the daemon is killed, the cache is lost, or both.
/// Expectation: one command restores everything, with modes, owners, times and contents.
fn comes_back(place: &Place) {
    place.mount();
    place.ebb(&["trash", "keep", "mnt", "7d"]).good();
    let dir = place.path("mnt/work");
    fs::create_dir_all(dir.join("deep/er")).unwrap();
    fs::set_permissions(dir.join("deep"), Permissions::from_mode(0o2750)).unwrap();
    chown(dir.join("deep"), Some(7), Some(8)).unwrap();
    for at in 0..20 {
        let path = dir.join(format!("deep/er/{at}"));
        fs::write(&path, vec![at as u8; 1000 + at * 10_000]).unwrap();
        chown(&path, Some(at as u32), None).unwrap();
    }
    fs::write(dir.join("tool"), "#!").unwrap();
    fs::set_permissions(dir.join("tool"), Permissions::from_mode(0o755)).unwrap();
    fs::hard_link(dir.join("tool"), dir.join("deep/same")).unwrap();
    symlink("deep/er", dir.join("link")).unwrap();
    let mut before = tree(&dir);

    assert_eq!(place.program("rm", &["-rf", "mnt/work"]).status, 0);
    assert_eq!(names(&place.path("mnt")), Vec::<String>::new());
    assert_eq!(fs::metadata(place.path("mnt/.ebb.trash")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        fs::create_dir(place.path("mnt/.ebb.trash")).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(entries(place, "mnt/work/deep/er").len(), 21);
    // One of two names is not kept.
    let was = entries(place, "mnt");
    assert_eq!(was.len(), 25, "{was:?}");
    let shared = was
        .iter()
        .find(|entry| ["work/tool", "work/deep/same"].iter().any(|path| entry["path"] == *path))
        .unwrap();
    let other = if shared["path"] == "work/tool" { "deep/same" } else { "tool" };
    before.remove(other).unwrap();

    place.kill("mnt");
    place.ebb(&["umount", "mnt"]);
    place.mount();
    assert_eq!(entries(place, "mnt"), was, "the log has it");
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(entries(place, "mnt"), was, "the bucket has it");
    assert_eq!(names(&place.path("mnt")), Vec::<String>::new());

    let done = place.ebb(&["trash", "restore", "mnt/work"]).good().out;
    assert_eq!(done, "25 restored, 0 not\n");
    assert_eq!(tree(&dir), before);
    assert_eq!(entries(place, "mnt"), Vec::<serde_json::Value>::new());
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["fsck", "mnt", "--bucket"]).good();
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(tree(&dir), before, "the bucket has it where it was");
    place.umount();
}

#[test]
fn trash_restores_removed_files_from_a_directory() {
    comes_back(&Place::new());
}

#[test]
fn trash_restores_removed_files_from_s3() {
    comes_back(&Place::over_s3());
}

/// Replaced files are kept too, version by version; a restore never replaces an existing entry, and
/// recreates a removed directory.
#[test]
fn versions_of_a_path_come_back_beside_it() {
    let place = Place::new();
    place.mount();
    place.ebb(&["trash", "keep", "mnt", "1h"]).good();
    fs::create_dir(place.path("mnt/d")).unwrap();
    for text in ["one", "two", "three"] {
        fs::write(place.path("mnt/d/new"), text).unwrap();
        fs::rename(place.path("mnt/d/new"), place.path("mnt/d/f")).unwrap();
    }
    let kept = entries(&place, "mnt/d/f");
    assert_eq!(kept.len(), 2);
    let refused = place.ebb(&["trash", "restore", "mnt/d/f"]);
    assert!(refused.status == 1 && refused.err.contains("/d/f: file exists"), "{refused:?}");
    let first = kept[0]["inode"].as_str().unwrap();
    place
        .ebb(&["trash", "restore", "mnt/d/f", "--entry", first, "--to", "mnt/far/away/f.old"])
        .good();
    assert_eq!(fs::read_to_string(place.path("mnt/far/away/f.old")).unwrap(), "one");
    fs::remove_file(place.path("mnt/d/f")).unwrap();
    fs::set_permissions(place.path("mnt/d"), Permissions::from_mode(0o700)).unwrap();
    fs::remove_dir(place.path("mnt/d")).unwrap();
    place.ebb(&["trash", "restore", "mnt/d/f"]).good();
    assert_eq!(
        fs::read_to_string(place.path("mnt/d/f")).unwrap(),
        "three",
        "what was removed last"
    );
    assert_eq!(fs::metadata(place.path("mnt/d")).unwrap().mode() & 0o7777, 0o700);
    place
        .ebb(&["trash", "restore", "mnt/none"])
        .refused(1, "nothing that was there is in the trash");

    // Moved below another directory, with its other entries.
    fs::create_dir(place.path("mnt/e")).unwrap();
    fs::write(place.path("mnt/e/g"), "g").unwrap();
    assert_eq!(place.program("rm", &["-r", "mnt/e"]).status, 0);
    place.ebb(&["trash", "restore", "mnt/e", "--to", "mnt/found"]).good();
    assert_eq!(fs::read_to_string(place.path("mnt/found/g")).unwrap(), "g");

    let older = place.ebb(&["trash", "empty", "mnt", "--older-than", "1d", "--json"]).good().json();
    assert_eq!(older["entries"], 0);
    assert_eq!(entries(&place, "mnt").len(), 1);
    let emptied = place.ebb(&["trash", "empty", "mnt", "--json"]).good().json();
    assert_eq!((&emptied["entries"], &emptied["bytes"]), (&1.into(), &3.into()));
    assert_eq!(place.ebb(&["trash", "list", "mnt"]).good().out, "nothing is in the trash\n");
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

/// Situation: a directory's path is taken. Danger: nothing is restored, and success is reported.
/// Expectation: an error, unless a directory is there, which then receives the entries.
#[test]
fn a_directory_that_cannot_come_back_is_told() {
    let place = Place::new();
    place.mount();
    place.ebb(&["trash", "keep", "mnt", "1h"]).good();
    fs::create_dir_all(place.path("mnt/d/sub")).unwrap();
    fs::remove_dir(place.path("mnt/d/sub")).unwrap();
    fs::write(place.path("mnt/d/sub"), "new").unwrap();
    let told = |args: &[&str], path: &str| {
        let done = place.ebb(&[&["trash", "restore"], args].concat());
        assert!(
            done.status == 1
                && done.out == "0 restored, 1 not\n"
                && done.err.contains(&format!("{path}: file exists")),
            "{done:?}"
        );
    };
    told(&["mnt/d/sub"], "/d/sub");
    let done = place.ebb(&["trash", "restore", "mnt/d/sub", "--json"]);
    assert_eq!((done.status, &done.json()["failed"][0]["path"]), (1, &"d/sub".into()));
    fs::create_dir(place.path("mnt/there")).unwrap();
    let entry = entries(&place, "mnt")[0]["inode"].as_str().unwrap().to_owned();
    told(&["mnt/d/sub", "--entry", &entry, "--to", "mnt/there"], "/there");
    fs::remove_file(place.path("mnt/d/sub")).unwrap();
    place.ebb(&["trash", "empty", "mnt"]).good();

    fs::create_dir_all(place.path("mnt/d/sub/empty")).unwrap();
    fs::write(place.path("mnt/d/sub/f"), "f").unwrap();
    assert_eq!(place.program("rm", &["-r", "mnt/d"]).status, 0);
    fs::create_dir_all(place.path("mnt/d/sub")).unwrap();
    assert_eq!(place.ebb(&["trash", "restore", "mnt/d"]).good().out, "2 restored, 0 not\n");
    assert_eq!(names(&place.path("mnt/d/sub")), ["empty", "f"]);
    place.umount();
}

/// An open removed file stays usable, and is restored with later writes. Unnamed files, and files
/// below a directory without a trash, are deleted as usual.
#[test]
fn trash_keeps_open_files_with_later_writes() {
    let place = Place::new();
    place.mount();
    let dir = place.path("mnt/d");
    fs::create_dir_all(dir.join("scratch")).unwrap();
    place.ebb(&["trash", "keep", "mnt/d", "1d"]).good();
    fs::write(place.path("mnt/plain"), "").unwrap();
    place.ebb(&["trash", "keep", "mnt/plain", "7d"]).refused(1, "mnt/plain: not a directory");
    place.ebb(&["trash", "keep", "mnt/d/scratch", "0"]).good();
    let explained = place.ebb(&["explain", "mnt/d"]).good().out;
    assert!(
        explained.contains("trash     kept for 24 h 0 min once it is removed, as /d has it"),
        "{explained}"
    );

    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("f"))
        .unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(dir.join("f")).unwrap();
    file.write_all_at(b" and after", 6).unwrap();
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"before and after");
    // A new file at the path is another one.
    fs::write(dir.join("f"), "new").unwrap();
    drop(file);
    fs::write(dir.join("scratch/g"), "g").unwrap();
    fs::remove_file(dir.join("scratch/g")).unwrap();
    fs::write(place.path("mnt/h"), "h").unwrap();
    fs::remove_file(place.path("mnt/h")).unwrap();
    drop(crate::data::tmpfile(&dir));
    let kept = entries(&place, "mnt");
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(
        (&kept[0]["path"], &kept[0]["size_bytes"], &kept[0]["uid"]),
        (&"d/f".into(), &16.into(), &0.into())
    );
    place.ebb(&["trash", "restore", "mnt/d/f", "--to", "mnt/d/saved"]).good();
    assert_eq!(fs::read_to_string(dir.join("saved")).unwrap(), "before and after");
    assert_eq!(fs::metadata(dir.join("saved")).unwrap().nlink(), 1);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "new");

    place.ebb(&["trash", "unkeep", "mnt/d"]).good();
    place.ebb(&["trash", "unkeep", "mnt/d"]).refused(1, "says nothing itself");
    fs::remove_file(dir.join("f")).unwrap();
    assert_eq!(entries(&place, "mnt").len(), 0);
    place.umount();
    place.mount_with(&["-o", "ro"]);
    assert_eq!(place.ebb(&["trash", "keep", "mnt/d", "1d"]).status, 1);
    place.ebb(&["trash", "empty", "mnt"]).refused(1, "read-only");
    place.umount();
}

/// Situation: a file is removed, and a look-up has failed; then it is restored, below the root and
/// below a directory. Danger: the kernel keeps the negative entry. Expectation: the file is
/// visible, and mounts beside it stay.
#[test]
fn restore_replaces_cached_negative_entry() {
    let place = Place::new();
    place.mount();
    place.ebb(&["trash", "keep", "mnt", "1h"]).good();
    for dir in ["mnt/d", "mnt/beside"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    assert_eq!(place.program("mount", &["-t", "tmpfs", "none", "mnt/beside"]).status, 0);
    fs::write(place.path("mnt/beside/x"), "x").unwrap();
    for path in ["mnt/f", "mnt/d/f"] {
        let path_here = place.path(path);
        fs::write(&path_here, "f").unwrap();
        fs::remove_file(&path_here).unwrap();
        assert_eq!(fs::metadata(&path_here).unwrap_err().kind(), ErrorKind::NotFound);
        place.ebb(&["trash", "restore", path]).good();
        until("it is there again", || fs::read_to_string(&path_here).is_ok_and(|text| text == "f"));
    }
    let beside = fs::read_to_string(place.path("mnt/beside/x"));
    place.program("umount", &["mnt/beside"]);
    assert_eq!(beside.unwrap(), "x");
    place.umount();
}

/// Another mount sees a removal and a restore at once.
#[test]
fn removal_and_restore_show_on_other_mounts() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let volume = format!("ebb://{address}/volume");
    for (mountpoint, data) in [("mnt", "client"), ("mnt2", "client2")] {
        place.ebb(&["mount", &volume, mountpoint, "--data", data]).good();
    }
    place.ebb(&["trash", "keep", "mnt", "7d"]).good();
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/f"), "f").unwrap();
    let seen = place.path("mnt2/d/f");
    let open = File::open(&seen).unwrap();
    fs::remove_file(place.path("mnt/d/f")).unwrap();
    assert_eq!(fs::metadata(&seen).unwrap_err().kind(), ErrorKind::NotFound);
    let mut byte = [0];
    open.read_exact_at(&mut byte, 0).unwrap();
    drop(open);
    place.ebb(&["trash", "restore", "mnt/d/f"]).good();
    until("the other mount has it again", || {
        fs::read_to_string(&seen).is_ok_and(|text| text == "f")
    });
    assert_eq!(names(&place.path("mnt2/d")), ["f"]);
    for mountpoint in ["mnt2", "mnt"] {
        place.umount_at(mountpoint);
    }
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: `ebb trash keep` for a directory outside any mount of ebb. Danger: success is
/// reported. Expectation: an error, as for pinning, and nothing is written there.
#[test]
fn trash_keep_outside_mounts_is_refused() {
    let place = Place::new();
    let dir = place.text("backing");
    for command in [
        &["trash", "keep", &dir, "1h"][..],
        &["trash", "unkeep", &dir],
        &["pin", &dir],
        &["unpin", &dir],
    ] {
        place.ebb(command).refused(2, "is on no mount of ebb");
    }
}
