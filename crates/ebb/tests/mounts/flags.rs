//! Flags of chattr(1): a mount answers like this machine's disk, also a later mount that starts
//! with only the bucket.

use crate::place::Place;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

const GETFLAGS: u64 = 0x8008_6601;
const SETFLAGS: u64 = 0x4008_6602;
const IMMUTABLE: i64 = 0x10;
const APPEND: i64 = 0x20;
const NO_DUMP: i64 = 0x40;
/// Of ext4 alone: extents, and directories with an index.
const NOT_OURS: i64 = 0x8_0000 | 0x1000;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
}

fn flags(path: &Path) -> i64 {
    let mut flags: i64 = 0;
    // SAFETY: the descriptor is open, and the kernel writes no more than a long.
    assert_eq!(
        unsafe { libc::ioctl(open(path).as_raw_fd(), GETFLAGS as _, &mut flags) },
        0,
        "{}",
        io::Error::last_os_error()
    );
    flags & !NOT_OURS
}

fn set_flags(path: &Path, flags: i64) -> Option<i32> {
    let file = open(path);
    let mut kept: i64 = 0;
    // SAFETY: the descriptor is open; the kernel writes no more than a long, and reads no more.
    let result = unsafe {
        libc::ioctl(file.as_raw_fd(), GETFLAGS as _, &mut kept);
        let wanted = kept & NOT_OURS | flags;
        libc::ioctl(file.as_raw_fd(), SETFLAGS as _, &wanted)
    };
    (result != 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap())
}

fn set_xattr(path: &Path) -> Option<i32> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: both strings end in NUL, and the length is that of the value.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), c"user.a".as_ptr(), c"1".as_ptr().cast(), 1, 0) };
    (result != 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
}

fn punch(file: &File) -> Option<i32> {
    // SAFETY: the descriptor is open and the rest are plain integers.
    let result = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            0,
            1,
        )
    };
    (result != 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
}

/// Results of all operations that a flag may forbid.
fn answers(root: &Path) -> Vec<(String, Option<i32>)> {
    let mut said = Vec::new();
    for flag in [IMMUTABLE, APPEND, NO_DUMP] {
        let dir = root.join(format!("dir-{flag}"));
        let (file, inner) = (root.join(format!("file-{flag}")), dir.join("inner"));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "content").unwrap();
        fs::write(&inner, "content").unwrap();
        let before = OpenOptions::new().write(true).open(&file).unwrap();
        let mut say = |what: &str, error| said.push((format!("{flag:#x}: {what}"), error));
        say("set file", set_flags(&file, flag));
        say("set directory", set_flags(&dir, flag));
        assert_eq!((flags(&file), flags(&dir)), (flag, flag));
        say("write what was open", errno((&before).write(b"C")));
        say("truncate what was open", errno(before.set_len(3)));
        say("punch what was open", punch(&before));
        say("open to read", errno(File::open(&file)));
        say("open to write", errno(OpenOptions::new().write(true).open(&file)));
        say("open to append", errno(OpenOptions::new().append(true).open(&file)));
        say(
            "append",
            errno(
                OpenOptions::new()
                    .append(true)
                    .open(&file)
                    .and_then(|mut file| file.write(b"more")),
            ),
        );
        say("open to truncate", errno(OpenOptions::new().write(true).truncate(true).open(&file)));
        say(
            "open to append and truncate",
            errno(OpenOptions::new().append(true).custom_flags(libc::O_TRUNC).open(&file)),
        );
        say("chmod", errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o600))));
        say("chown", errno(chown(&file, Some(1), None)));
        say("touch", errno(open(&file).set_modified(std::time::UNIX_EPOCH)));
        say("set xattr", set_xattr(&file));
        say("link", errno(fs::hard_link(&file, root.join("link"))));
        say("rename", errno(fs::rename(&file, root.join("renamed"))));
        say("rename over it", {
            fs::write(root.join("over"), "").unwrap();
            errno(fs::rename(root.join("over"), &file))
        });
        say("remove", errno(fs::remove_file(&file)));
        say("make in the directory", errno(fs::write(dir.join("new"), "")));
        say("make a directory in the directory", errno(fs::create_dir(dir.join("newdir"))));
        say("remove from the directory", errno(fs::remove_file(&inner)));
        say("rename out of the directory", errno(fs::rename(&inner, root.join("out"))));
        say(
            "chmod the directory",
            errno(fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))),
        );
        say("rename the directory", errno(fs::rename(&dir, root.join("moved"))));
        say("a flag that is not known", set_flags(root, 0x4000_0000));
        for path in [&file, &dir] {
            if path.exists() {
                say("reset", set_flags(path, 0));
                assert_eq!(flags(path), 0);
            }
        }
        say(
            "remove in the end",
            errno(fs::remove_dir_all(&dir)).filter(|errno| *errno != libc::ENOENT),
        );
    }
    let saved = root.join("saved");
    fs::create_dir(&saved).unwrap();
    set_flags(&saved, NO_DUMP);
    fs::write(saved.join("file"), "").unwrap();
    fs::create_dir(saved.join("dir")).unwrap();
    said.push((
        format!("{:#x} {:#x} are inherited", flags(&saved.join("file")), flags(&saved.join("dir"))),
        None,
    ));
    said
}

#[test]
fn a_mount_heeds_them_as_the_disk_does() {
    let place = Place::over_s3();
    place.mount_with(&["-o", "allow_other"]);
    let (disk, mount) = (place.path("disk"), place.path("mnt/t"));
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&mount).unwrap();
    let (expected, found) = (answers(&disk), answers(&mount));
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    place.umount();
}

/// The bucket keeps them, lists do not show them, and no call on attributes gets around them.
#[test]
fn they_outlive_the_cache_and_are_no_attributes() {
    let place = Place::over_s3();
    place.mount();
    let file = place.path("mnt/file");
    fs::write(&file, "content").unwrap();
    assert_eq!(set_flags(&file, IMMUTABLE | NO_DUMP), None);
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(flags(&file), IMMUTABLE | NO_DUMP);
    assert_eq!(errno(fs::write(&file, "")), Some(libc::EPERM));
    let path = CString::new(file.as_os_str().as_bytes()).unwrap();
    let name = CString::new(ebb_model::InodeFlags::ATTRIBUTE).unwrap();
    let mut value = [0u8; 64];
    // SAFETY: all strings end in NUL and the length is that of the buffer.
    let (listed, got, removed, set) = unsafe {
        (
            libc::listxattr(path.as_ptr(), value.as_mut_ptr().cast(), value.len()),
            libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()),
            libc::removexattr(path.as_ptr(), name.as_ptr()),
            libc::setxattr(path.as_ptr(), name.as_ptr(), [0u8; 4].as_ptr().cast(), 4, 0),
        )
    };
    assert_eq!((listed, got, removed, set), (0, -1, -1, -1));
    assert_eq!(flags(&file), IMMUTABLE | NO_DUMP);
    assert_eq!(set_flags(&file, 0), None);
    fs::remove_file(&file).unwrap();
    place.umount();
}

/// Situation: a file that is open for writing becomes immutable. Expectation: writes fail, without
/// effect on the mount and in the object.
#[test]
fn immutable_file_refuses_writes_through_open_descriptors() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/file");
    fs::write(&path, [1; 1000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(set_flags(&path, IMMUTABLE), None);
    assert_eq!(errno(file.write_at(&[2; 100], 10)), Some(libc::EPERM));
    assert_eq!(punch(&file), Some(libc::EPERM));
    assert_eq!(set_flags(&path, APPEND), None);
    assert_eq!(punch(&file), Some(libc::EPERM));
    place.ebb(&["flush", "mnt"]).good();
    assert!(fs::read(place.path("backing/file")).unwrap() == [1; 1000]);
    assert_eq!(set_flags(&path, 0), None);
    drop(file);
    place.umount();
    place.mount();
    assert!(fs::read(&path).unwrap() == [1; 1000]);
    place.umount();
}
