//! The directory with other programs, other processes, crashes and limited file systems.

use super::notes::Notes;
use super::store::{Abilities, Store};
use super::sys::{self, Kind};
use super::{Directory, open_store};
use crate::background::Background;
use crate::{OpenError, suite};
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ListRequest, Piece, UploadId};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn store(root: &Path) -> Store {
    open_store(root, false).unwrap()
}

fn put(store: &Store, key: &str, text: &str) -> ebb_ports::ETag {
    store.put(key, Bytes::from(text.to_string()), &Condition::Always, vec![]).unwrap()
}

fn keys(store: &Store, prefix: &str, by_directory: bool) -> Vec<String> {
    let page = store
        .list(&ListRequest { prefix: prefix.into(), by_directory, after: None, limit: 1000 })
        .unwrap();
    page.entries.iter().map(|entry| entry.key().to_string()).collect()
}

/// No extended attributes and no file locks, as on plain NFS or FAT: the same objects, except that
/// directories stay when their last key is deleted. The skipped clauses test exactly that.
#[test]
fn a_poorer_file_system_only_keeps_emptied_directories() {
    let root = tempfile::tempdir().unwrap();
    let rich = store(root.path());
    let poor = Store::new(
        rich.root,
        rich.incoming,
        Notes::Files,
        Abilities { locks_files: false, longest_bytes: 1 << 30 },
    );
    let background = Background::start("test", 1, 8).unwrap();
    let bucket: Rc<dyn Bucket> =
        Rc::new(Directory { store: Arc::new(poor), path: root.path().into(), background });
    assert!(!bucket.capabilities().conditional_put);
    let directories_stay =
        ["a_file_and_its_directory", "many_at_once", "listing_sees_acknowledged_changes"];
    suite::run(&bucket, None, &directories_stay);
}

/// Situation: a file that is mostly holes, on a file system that can keep them. Expectation: it
/// takes as little there, put at once, in parts or as a copy, and reads the same.
#[test]
fn holes_take_no_room() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    let mut content = vec![0; (8 << 20) + 10];
    content[(3 << 20) + 5..][..5].copy_from_slice(b"bytes");
    let content = Bytes::from(content);
    store.put("put", content.clone(), &Condition::Always, vec![]).unwrap();
    let etag = store.copy("put", "copied", None, &Condition::Always).unwrap();
    let upload = store.upload_begin("parts", vec![]).unwrap();
    let first = store.upload_part("parts", &upload, 1, &content).unwrap();
    let piece = Piece { key: "copied".into(), etag, range: 1 << 20..content.len() as u64 };
    let second = store.upload_part_copy("parts", &upload, 2, &piece).unwrap();
    store.upload_complete("parts", &upload, &[first, second], &Condition::Always).unwrap();
    let twice = Bytes::from([&content[..], &content[1 << 20..]].concat());
    for (key, content) in [("put", &content), ("copied", &content), ("parts", &twice)] {
        assert!(store.get(key, None, None).unwrap().body == *content, "{key}");
        let room_bytes = fs::metadata(root.path().join(key)).unwrap().blocks() * 512;
        assert!(room_bytes < 1 << 20, "{key} takes {room_bytes} bytes");
    }
    assert!(store.longest_bytes > 1 << 30 && store.longest_bytes <= i64::MAX as u64);
}

#[test]
fn edits_by_others_change_the_tag() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    let tags = vec![("a".to_string(), "b".to_string())];
    let first = store.put("d/k", Bytes::from("one"), &Condition::Always, tags.clone()).unwrap();
    assert_eq!(store.head("d/k").unwrap().tags, tags);
    let path = root.path().join("d/k");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(store.head("d/k").unwrap().etag, first, "a chmod is no new content");
    fs::write(&path, "two").unwrap();
    let second = store.head("d/k").unwrap();
    assert_ne!(second.etag, first);
    assert_eq!(second.tags, vec![], "tags belong to the content that they came with");
    let stale = store.put("d/k", Bytes::from("three"), &Condition::Match(first.clone()), vec![]);
    assert!(matches!(stale, Err(BucketError::Precondition { .. })), "{stale:?}");
    assert!(matches!(store.delete("d/k", Some(&first)), Err(BucketError::Precondition { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"two");
}

/// Another program creates links, within the directory and out of it.
#[test]
fn links_are_neither_followed_nor_replaced() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "s").unwrap();
    symlink(outside.path(), root.path().join("dir")).unwrap();
    symlink(outside.path().join("secret"), root.path().join("file")).unwrap();
    let store = store(root.path());
    for key in ["dir/secret", "file", "dir/"] {
        assert!(matches!(store.get(key, None, None), Err(BucketError::NotFound { .. })), "{key}");
        store.delete(key, None).unwrap();
        let put = store.put(key, Bytes::new(), &Condition::Always, vec![]);
        assert!(matches!(put, Err(BucketError::Refused { .. })), "{key}: {put:?}");
    }
    assert!(matches!(
        store.put("dir/new", Bytes::new(), &Condition::Always, vec![]),
        Err(BucketError::Refused { .. })
    ));
    assert_eq!(keys(&store, "", false), Vec::<String>::new());
    assert_eq!(keys(&store, "dir/", false), Vec::<String>::new());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert!(root.path().join("file").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn special_files_and_invalid_names_are_not_listed() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    let pipe = std::ffi::CString::new(root.path().join("pipe").to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    fs::write(root.path().join(std::ffi::OsStr::new("ok")), "x").unwrap();
    let not_utf8 = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"bad\xff");
    fs::write(root.path().join(not_utf8), "x").unwrap();
    assert_eq!(keys(&store, "", false), ["ok"]);
    assert!(matches!(store.get("pipe", None, None), Err(BucketError::NotFound { .. })));
    store.delete("pipe", None).unwrap();
    assert!(root.path().join("pipe").exists());
}

/// Implicit directories are removed with their last key; explicit ones stay.
#[test]
fn only_directories_of_our_own_are_removed() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("theirs/empty")).unwrap();
    let store = store(root.path());
    put(&store, "theirs/ours/deep/k", "x");
    assert_eq!(keys(&store, "", false), ["theirs/", "theirs/empty/", "theirs/ours/deep/k"]);
    store.delete("theirs/ours/deep/k", None).unwrap();
    assert_eq!(keys(&store, "", false), ["theirs/", "theirs/empty/"]);
    assert!(!root.path().join("theirs/ours").exists());
    assert!(root.path().join("theirs/empty").exists());
    assert_eq!(keys(&store, "", true), ["theirs/"], "the private directory is not shown");
    put(&store, ".ebb/head", "h");
    assert_eq!(keys(&store, "", true), [".ebb/", "theirs/"]);
    store.delete(".ebb/head", None).unwrap();
    assert_eq!(keys(&store, "", true), ["theirs/"]);
}

/// A crash leaves an unfinished object; a put that is running looks the same but for its lock.
#[test]
fn opening_removes_leftovers_of_a_crash() {
    let root = tempfile::tempdir().unwrap();
    let first = store(root.path());
    let incoming = root.path().join(".ebb/incoming");
    fs::write(incoming.join("put-0123"), "left by a crash").unwrap();
    let (running, file) = first.new_file().unwrap();
    let upload = first.upload_begin("k", vec![]).unwrap();
    let _second = store(root.path());
    assert!(!incoming.join("put-0123").exists());
    assert!(incoming.join(&running).exists());
    assert!(
        incoming.join(&upload.0).exists(),
        "uploads are carried on or aborted by those who recorded them"
    );
    drop(file);
    let _third = store(root.path());
    assert!(!incoming.join(&running).exists());
    first.upload_abort("k", &upload).unwrap();
    first.upload_abort("k", &UploadId("0".repeat(32))).unwrap();
    assert!(!incoming.join(&upload.0).exists());
    assert!(matches!(
        first.put(".ebb/incoming/x", Bytes::new(), &Condition::Always, vec![]),
        Err(BucketError::Refused { .. })
    ));
}

/// Parts arrive while their upload is aborted, once by a process that is killed in between and once
/// by one that continues. Expectation: no file is left.
#[test]
fn parts_that_come_in_during_an_abort_go_too() {
    let root = tempfile::tempdir().unwrap();
    let first = store(root.path());
    let incoming = root.path().join(".ebb/incoming");
    for round in 0..200 {
        let upload = first.upload_begin("k", vec![]).unwrap();
        let sender = store(root.path());
        let sent = upload.clone();
        let sending = std::thread::spawn(move || {
            (1..)
                .take_while(|number| {
                    sender.upload_part("k", &sent, *number, &Bytes::from_static(b"part")).is_ok()
                })
                .count()
        });
        std::thread::sleep(std::time::Duration::from_micros(100 * (round % 10)));
        first.upload_abort("k", &upload).unwrap();
        sending.join().unwrap();
        assert!(!incoming.join(&upload.0).exists(), "round {round}");
    }
    let upload = first.upload_begin("k", vec![]).unwrap();
    first.upload_part("k", &upload, 1, &Bytes::from_static(b"part")).unwrap();
    fs::remove_file(incoming.join(&upload.0).join("upload")).unwrap();
    first.upload_abort("k", &upload).unwrap();
    assert!(!incoming.join(&upload.0).exists());
}

/// Other processes open the directory and remove crash leftovers while files are begun.
#[test]
fn opening_keeps_files_of_running_puts() {
    let root = tempfile::tempdir().unwrap();
    let first = store(root.path());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store(root.path());
            }
        });
        let mut lost = 0;
        for _ in 0..20_000 {
            let (name, _file) = first.new_file().unwrap();
            lost += u32::from(!root.path().join(".ebb/incoming").join(&name).exists());
            first.discard(&name);
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(lost, 0);
    });
}

/// Two processes with a store each on one directory increment a counter with conditional puts while
/// directories are created and removed beside it. Expectation: no increment is lost.
#[test]
fn conditions_hold_between_processes() {
    let root = tempfile::tempdir().unwrap();
    put(&store(root.path()), "n", "0");
    let raise = |root: &Path| {
        let store = store(root);
        let mut raised = 0;
        while raised < 50 {
            let now = store.get("n", None, None).unwrap();
            let next = std::str::from_utf8(&now.body).unwrap().parse::<u32>().unwrap() + 1;
            match store.put(
                "n",
                Bytes::from(next.to_string()),
                &Condition::Match(now.meta.etag),
                vec![],
            ) {
                Ok(_) => raised += 1,
                Err(BucketError::Precondition { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            put(&store, "d/e/f", "x");
            store.delete("d/e/f", None).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| raise(root.path()));
        }
    });
    assert_eq!(store(root.path()).get("n", None, None).unwrap().body, "200");
    assert_eq!(keys(&store(root.path()), "", false), ["n"]);
}

#[test]
fn every_put_is_told_apart_from_the_last_of_its_size() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    let tags: std::collections::BTreeSet<_> = (0..200).map(|_| put(&store, "k", "same")).collect();
    assert_eq!(tags.len(), 200);
}

#[test]
fn a_directory_of_thousands_is_listed_right_while_it_changes() {
    let root = tempfile::tempdir().unwrap();
    for n in 0..3_000 {
        fs::write(root.path().join(format!("{n:05}")), "").unwrap();
    }
    // Simulates a directory without recent changes: the store then caches its names.
    fs::File::open(root.path())
        .unwrap()
        .set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60))
        .unwrap();
    let store = open_store(root.path(), true).unwrap();
    let page = |after: &str| {
        store
            .list(&ListRequest {
                prefix: "".into(),
                by_directory: true,
                after: Some(after.into()),
                limit: 1000,
            })
            .unwrap()
    };
    assert_eq!(page("00999").entries[0].key(), "01000");
    fs::write(root.path().join("01000a"), "").unwrap();
    fs::remove_file(root.path().join("01002")).unwrap();
    let keys: Vec<String> =
        page("00999").entries.iter().take(4).map(|entry| entry.key().to_string()).collect();
    assert_eq!(keys, ["01000", "01000a", "01001", "01003"]);
}

#[test]
fn read_only_leaves_no_trace() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("k"), "x").unwrap();
    let store = open_store(root.path(), true).unwrap();
    assert_eq!(store.get("k", None, None).unwrap().body, "x");
    for refused in [
        store.put("k", Bytes::new(), &Condition::Always, vec![]).map(drop),
        store.delete("k", None),
        store.copy("k", "l", None, &Condition::Always).map(drop),
        store.upload_begin("k", vec![]).map(drop),
    ] {
        assert!(matches!(refused, Err(BucketError::Forbidden { .. })), "{refused:?}");
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn opening_reports_unusable_directories() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let error = |path: &Path| open_store(path, false).map(drop).unwrap_err();
    let missing = error(&root.path().join("nothing"));
    assert!(missing.to_string().contains("no such directory; create it"), "{missing}");
    let file = error(&root.path().join("file"));
    assert!(file.to_string().contains("it is no directory"), "{file}");
    let unwritable = error(Path::new("/proc/self/fdinfo"));
    assert!(
        matches!(unwritable, OpenError::Forbidden { .. } | OpenError::Unreachable { .. }),
        "{unwritable}"
    );
}

/// Objects have the permissions of any new file, so that other programs can use them.
#[test]
fn objects_are_ordinary_files() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    put(&store, "k", "x");
    fs::write(root.path().join("theirs"), "x").unwrap();
    let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().mode();
    assert_eq!(mode("k"), mode("theirs"));
    assert_eq!(sys::stat_at(&store.root, "k").unwrap().kind, Kind::File);
}

/// A process died between removing an object and the folder that was made for it.
#[test]
fn a_folder_that_was_left_behind_is_in_nobodys_way() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    for again in [false, true] {
        store.put("d/e/x", Bytes::new(), &Condition::Always, vec![]).unwrap();
        fs::remove_file(root.path().join("d/e/x")).unwrap();
        if again {
            store.delete("d/e/x", None).unwrap();
            assert!(!root.path().join("d").exists());
        } else {
            store.put("d/e", Bytes::new(), &Condition::Always, vec![]).unwrap();
            store.delete("d/e", None).unwrap();
        }
    }
    store.put("d/", Bytes::new(), &Condition::Always, vec![]).unwrap();
    assert!(
        matches!(
            store.put("d", Bytes::new(), &Condition::Always, vec![]),
            Err(BucketError::Nested { .. })
        ),
        "somebody asked for it"
    );
    assert!(matches!(store.upload_begin("d", vec![]), Err(BucketError::Nested { .. })));
}
