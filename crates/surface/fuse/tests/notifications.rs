//! The kernel's cached state stays until a notification, and goes with it.

#![allow(dead_code, reason = "each test binary uses its part of the harness")]

mod harness;
mod memfs;

use ebb_fuse::{Ended, Notification, NotifyError};
use ebb_model::{Ino, Name};
use harness::{Mounted, can_mount};
use memfs::Settings;
use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::thread;
use std::time::{Duration, Instant};

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

#[test]
fn content_changed_by_another_hand() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::write(mount.path("f"), "before").unwrap();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "before");
    let ino = mount.tree().find(Ino::ROOT, "f").unwrap();
    mount.tree().set_content(ino, b"behind");
    let before = mount.tree().requests;
    assert_eq!(
        fs::read_to_string(mount.path("f")).unwrap(),
        "before",
        "the kernel has no reason to ask"
    );
    // Open, attributes (a READ leaves atime in doubt), flush and release, but no READ.
    assert!(mount.tree().requests - before <= 4);
    mount.notify(Notification::Inode { ino, bytes: 0..u64::MAX });
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "behind");
    mount.tree().set_content(ino, b"longer than before");
    mount.notify(Notification::Inode { ino, bytes: 0..u64::MAX });
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "longer than before");
}

/// The kernel is notified that a file is longer: SEEK_END and reads of an open file go by that, and
/// a shorter length changes nothing. Mappings are tested with a daemon of its own
/// (`mounts::mappings`): in the process of the server a page fault would block the server.
#[test]
fn a_file_becomes_longer_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::write(mount.path("f"), [b'a'; 5000]).unwrap();
    let mut file = fs::File::open(mount.path("f")).unwrap();
    let ino = mount.tree().find(Ino::ROOT, "f").unwrap();
    mount.tree().set_content(ino, &[b'b'; 100_000]);
    for len_bytes in [5000, 6000, 100_000] {
        mount.notify(Notification::Longer { ino, len_bytes });
        assert!(file.seek(SeekFrom::End(0)).unwrap() >= len_bytes);
    }
    let mut last = [0];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, 99_999).unwrap();
    assert_eq!(last, [b'b']);
}

/// Attributes alone are dropped; the pages stay, as no notification says that they have changed.
#[test]
fn attributes_without_content() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::write(mount.path("f"), "aaaa").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"aaaa");
    let ino = mount.tree().find(Ino::ROOT, "f").unwrap();
    let old = fs::metadata(mount.path("f")).unwrap().modified().unwrap();
    thread::sleep(Duration::from_millis(5));
    mount.tree().set_content(ino, b"bbbb");
    assert_eq!(fs::metadata(mount.path("f")).unwrap().modified().unwrap(), old);
    mount.notify(Notification::Inode { ino, bytes: 0..0 });
    assert_ne!(fs::metadata(mount.path("f")).unwrap().modified().unwrap(), old);
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"aaaa");
    mount.notify(Notification::Inode { ino, bytes: 0..1 });
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"bbbb");
}

#[test]
fn names_removed_by_another_hand() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    let gone = |file: &str| {
        fs::metadata(mount.path(file))
            .is_err_and(|failure| failure.kind() == io::ErrorKind::NotFound)
    };
    for file in ["unhashed", "expired", "deleted", "epoch"] {
        fs::write(mount.path(file), "x").unwrap();
    }
    let child = mount.tree().find(Ino::ROOT, "deleted").unwrap();
    for file in ["unhashed", "expired", "deleted", "epoch"] {
        mount.tree().forget_name(Ino::ROOT, file);
        assert!(!gone(file), "the kernel has no reason to ask for {file}");
    }
    mount.notify(Notification::Entry { parent: Ino::ROOT, name: name("unhashed"), expire: false });
    assert!(gone("unhashed"));
    mount.notify(Notification::Entry { parent: Ino::ROOT, name: name("expired"), expire: true });
    assert!(gone("expired"));
    mount.notify(Notification::Deleted { parent: Ino::ROOT, child, name: name("deleted") });
    assert!(gone("deleted"));
    mount.notify(Notification::AllEntries);
    assert!(gone("epoch"));
}

#[test]
fn invalidation_of_unknown_inodes_succeeds() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    mount.notify(Notification::Inode { ino: Ino(12345), bytes: 0..u64::MAX });
    mount.notify(Notification::Entry {
        parent: Ino::ROOT,
        name: name("never-seen"),
        expire: false,
    });
    mount.notify(Notification::Entry {
        parent: Ino(12345),
        name: name("never-seen"),
        expire: true,
    });
    mount.notify(Notification::Resend);
}

/// Invalidating pages that a read in progress holds waits in the kernel for the read, and
/// the read waits for us. Both must end, and other requests must be served meanwhile.
#[test]
fn invalidation_during_a_read_of_the_same_pages() {
    if !can_mount() {
        return;
    }
    let mount =
        Mounted::new(Settings { read_delay: Duration::from_millis(300), ..Settings::default() });
    fs::write(mount.path("f"), vec![7; 100_000]).unwrap();
    let ino = mount.tree().find(Ino::ROOT, "f").unwrap();
    mount.notify(Notification::Inode { ino, bytes: 0..u64::MAX });
    let path = mount.path("f");
    let reader = thread::spawn(move || fs::read(path).unwrap());
    thread::sleep(Duration::from_millis(100));
    thread::scope(|scope| {
        scope.spawn(|| mount.notify(Notification::Inode { ino, bytes: 0..u64::MAX }));
        let start = Instant::now();
        fs::write(mount.path("other"), "x").unwrap();
        assert!(start.elapsed() < Duration::from_millis(150), "requests wait for a notification");
    });
    assert_eq!(reader.join().unwrap(), vec![7; 100_000]);
}

#[test]
fn after_the_end_there_is_nobody_to_tell() {
    if !can_mount() {
        return;
    }
    let mut mount = Mounted::new(Settings::default());
    assert_eq!(mount.stop(), Ended::Stopped);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(
        runtime.block_on(mount.notifier.send(Notification::AllEntries)),
        Err(NotifyError::Ended)
    );
}
