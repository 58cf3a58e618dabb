//! Everyday work, and the same tree afterwards: with the cache kept, and from the bucket alone.

use crate::place::Place;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

fn large() -> Vec<u8> {
    (0..20_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn work(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/file"), "hello").unwrap();
    OpenOptions::new()
        .append(true)
        .open(root.join("a/file"))
        .unwrap()
        .write_all(b", world")
        .unwrap();
    fs::write(root.join("a/b/large"), large()).unwrap();
    OpenOptions::new()
        .write(true)
        .open(root.join("a/b/large"))
        .unwrap()
        .write_all_at(b"changed", 17_000_000)
        .unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(3_000_000).unwrap();
    sparse.write_all_at(b"middle", 1_500_000).unwrap();
    fs::hard_link(root.join("a/file"), root.join("a/b/link")).unwrap();
    symlink("../file", root.join("a/b/symlink")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    fs::write(root.join("moved"), "moved").unwrap();
    fs::rename(root.join("moved"), root.join("a/b/c/moved here")).unwrap();
    fs::write(root.join("removed"), "removed").unwrap();
    fs::remove_file(root.join("removed")).unwrap();
    fs::create_dir(root.join("old")).unwrap();
    fs::write(root.join("old/inside"), "inside").unwrap();
    fs::rename(root.join("old"), root.join("new")).unwrap();
    fs::set_permissions(root.join("a/file"), fs::Permissions::from_mode(0o4640)).unwrap();
    chown(root.join("new"), Some(1234), Some(5678)).unwrap();
    fs::set_permissions(root.join("new"), fs::Permissions::from_mode(0o1771)).unwrap();
    set_xattr(&root.join("a/file"), "user.colour", b"blue");
    set_xattr(&root.join("a"), "user.kind", b"\x00\xff");
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    File::open(root.join("a/file")).unwrap().set_modified(time).unwrap();
    let fifo = CString::new(root.join("fifo").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    fs::write(root.join("ümlaut and blank %2F"), "odd").unwrap();
    File::create(root.join("empty")).unwrap();
}

fn check(root: &Path) {
    assert_eq!(fs::read_to_string(root.join("a/file")).unwrap(), "hello, world");
    let mut expected = large();
    expected[17_000_000..17_000_007].copy_from_slice(b"changed");
    assert!(fs::read(root.join("a/b/large")).unwrap() == expected);
    let sparse = fs::read(root.join("sparse")).unwrap();
    assert_eq!((sparse.len(), &sparse[1_500_000..1_500_006]), (3_000_000, &b"middle"[..]));
    assert_eq!(sparse.iter().filter(|byte| **byte != 0).count(), 6);

    let (file, link) =
        (fs::metadata(root.join("a/file")).unwrap(), fs::metadata(root.join("a/b/link")).unwrap());
    assert_eq!((file.ino(), file.nlink(), link.nlink()), (link.ino(), 2, 2));
    assert_eq!(
        (file.mode() & 0o7777, file.mtime(), file.mtime_nsec()),
        (0o4640, 1_000_000_000, 123_456_789)
    );
    assert_eq!(fs::read_link(root.join("a/b/symlink")).unwrap(), Path::new("../file"));
    assert_eq!(fs::read_to_string(root.join("a/b/symlink")).unwrap(), "hello, world");
    assert_eq!(fs::read_link(root.join("dangling")).unwrap(), Path::new("nowhere"));
    assert_eq!(fs::read_to_string(root.join("a/b/c/moved here")).unwrap(), "moved");
    assert!(
        !root.join("moved").exists()
            && !root.join("removed").exists()
            && !root.join("old").exists()
    );
    assert_eq!(fs::read_to_string(root.join("new/inside")).unwrap(), "inside");
    let new = fs::metadata(root.join("new")).unwrap();
    assert_eq!((new.uid(), new.gid(), new.mode() & 0o7777), (1234, 5678, 0o1771));
    assert_eq!(xattr(&root.join("a/file"), "user.colour"), b"blue");
    assert_eq!(xattr(&root.join("a"), "user.kind"), b"\x00\xff");
    assert!(fs::symlink_metadata(root.join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(fs::read_to_string(root.join("ümlaut and blank %2F")).unwrap(), "odd");
    assert_eq!(fs::metadata(root.join("empty")).unwrap().len(), 0);
    let mut names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "dangling", "empty", "fifo", "new", "sparse", "ümlaut and blank %2F"]);
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let (path, name) =
        (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    // SAFETY: both strings end in NUL, and the length is that of the value.
    assert_eq!(
        unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        },
        0
    );
}

fn xattr(path: &Path, name: &str) -> Vec<u8> {
    let (path, name) =
        (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    let mut value = vec![0u8; 100];
    // SAFETY: both strings end in NUL, and the length is that of the buffer.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    value.truncate(len.try_into().unwrap());
    value
}

fn comes_back(place: &Place) {
    let root = place.path("mnt");
    place.mount();
    work(&root);
    check(&root);
    assert!(place.umount().out.contains("everything is in the bucket"));
    place.mount();
    check(&root);
    place.umount();
    place.drop_cache();
    place.mount();
    check(&root);
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

#[test]
fn everything_comes_back_from_a_directory() {
    let place = Place::new();
    comes_back(&place);
    // Objects are ordinary files under their path.
    assert_eq!(fs::read_to_string(place.path("backing/a/file")).unwrap(), "hello, world");
}

#[test]
fn everything_comes_back_from_s3() {
    comes_back(&Place::over_s3());
}

/// Objects of other programs appear as files, also below implicit directories.
#[test]
fn objects_of_other_programs_appear_as_files() {
    let place = Place::new();
    fs::create_dir_all(place.path("backing/deep/er")).unwrap();
    fs::write(place.path("backing/deep/er/object"), "theirs").unwrap();
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/deep/er/object")).unwrap(), "theirs");
    fs::write(place.path("mnt/deep/er/ours"), "ours").unwrap();
    place.umount();
    assert_eq!(fs::read_to_string(place.path("backing/deep/er/ours")).unwrap(), "ours");
}

#[test]
fn a_file_lives_until_it_is_closed() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/open");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    let mut content = [0; 4];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"kept");
    drop(file);
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

#[test]
fn a_read_only_mount_writes_nothing() {
    let place = Place::new();
    fs::write(place.path("backing/object"), "theirs").unwrap();
    place.mount_with(&["-o", "ro"]);
    assert_eq!(fs::read_to_string(place.path("mnt/object")).unwrap(), "theirs");
    let refused = fs::write(place.path("mnt/new"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    place.umount();
    let names: Vec<_> = fs::read_dir(place.path("backing"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["object"], "not even a head is left");
}
