use crate::{disk, run, temporary};
use bytes::Bytes;
use ebb_ports::{Disk, DiskError, OpenMode};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

#[test]
fn bytes_come_back_at_their_offsets() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::CreateNew).await.expect("it is new");
        file.write_at(0, Bytes::from_static(b"hello")).await.expect("written");
        file.write_at(10_000, Bytes::from_static(b"world")).await.expect("written");
        file.write_at(3, Bytes::from_static(b"p!")).await.expect("written");
        assert_eq!(file.len().await, Ok(10_005));
        assert_eq!(file.read_at(0, 5).await.expect("read"), "help!");
        assert_eq!(file.read_at(9_999, 6).await.expect("read"), "\0world");
        file.sync_data().await.expect("synced");
    });
}

/// A read is short only at the end of the file, and empty behind it.
#[test]
fn a_read_past_the_end_is_short() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::Create).await.expect("it opens");
        assert_eq!(file.read_at(0, 100).await.expect("read"), "");
        file.write_at(0, Bytes::from_static(b"0123456789")).await.expect("written");
        assert_eq!(file.read_at(6, 100).await.expect("read"), "6789");
        assert_eq!(file.read_at(10, 1).await.expect("read"), "");
        assert_eq!(file.read_at(1 << 40, 1).await.expect("read"), "");
        assert_eq!(file.read_at(0, 0).await.expect("read"), "");
    });
}

/// Situation: half of a file is in the page cache. Danger: the read stops after the cached half as
/// if the file ended there. Expectation: all bytes, in order.
#[test]
fn read_of_a_partly_cached_file_is_complete() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::Create).await.expect("it opens");
        let data: Bytes = (0..4u32 << 20).map(|at| (at / 7) as u8).collect::<Vec<u8>>().into();
        file.write_at(0, data.clone()).await.expect("written");
        file.sync_data().await.expect("synced");
        let other = fs::File::open(dir.path().join("f")).expect("it is there");
        for from in [0, 1 << 20] {
            // SAFETY: posix_fadvise takes no memory, and the descriptor is open.
            unsafe { libc::posix_fadvise(other.as_raw_fd(), from, 0, libc::POSIX_FADV_DONTNEED) };
            assert_eq!(file.read_at(0, (4 << 20) + 5).await.expect("read"), data);
        }
    });
}

#[test]
fn modes_of_opening() {
    run(async {
        let dir = temporary();
        let disk = disk(&dir);
        assert!(
            matches!(disk.open("a", OpenMode::Existing).await, Err(DiskError::NotFound { path }) if path.ends_with("/a"))
        );
        disk.open("a", OpenMode::Create)
            .await
            .expect("created")
            .write_at(0, Bytes::from_static(b"x"))
            .await
            .expect("written");
        assert_eq!(disk.open("a", OpenMode::Create).await.expect("there").len().await, Ok(1));
        assert_eq!(disk.open("a", OpenMode::Existing).await.expect("there").len().await, Ok(1));
        assert!(matches!(disk.open("a", OpenMode::CreateNew).await, Err(DiskError::Exists { .. })));
        assert!(matches!(
            disk.open("none/a", OpenMode::Create).await,
            Err(DiskError::NotFound { .. })
        ));
        let mode = fs::metadata(dir.path().join("a")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn names_are_made_moved_and_removed() {
    run(async {
        let dir = temporary();
        let disk = disk(&dir);
        disk.create_dir("x/y").await.expect("made");
        disk.create_dir("x/y").await.expect("made again");
        for name in ["x/y/b", "x/y/a", "x/c"] {
            disk.open(name, OpenMode::CreateNew).await.expect("created");
        }
        assert_eq!(disk.list("x/y").await, Ok(vec!["a".into(), "b".into()]));
        disk.rename("x/y/a", "x/y/b").await.expect("replaced");
        disk.rename("x/y/b", "x/d").await.expect("moved");
        disk.sync_dir("x").await.expect("synced");
        disk.sync_dir("").await.expect("synced");
        assert_eq!(disk.list("x").await, Ok(vec!["c".into(), "d".into(), "y".into()]));
        assert_eq!(disk.list("x/y").await, Ok(vec![]));
        assert_eq!(disk.list("nowhere").await, Ok(vec![]));
        assert!(matches!(disk.rename("none", "x/e").await, Err(DiskError::NotFound { .. })));
        assert!(matches!(disk.remove("none").await, Err(DiskError::NotFound { .. })));
        assert!(matches!(disk.create_dir("x/c").await, Err(DiskError::Exists { .. })));
    });
}

#[test]
fn a_removed_file_stays_usable_while_open() {
    run(async {
        let dir = temporary();
        let disk = disk(&dir);
        let file = disk.open("f", OpenMode::Create).await.expect("created");
        disk.remove("f").await.expect("removed");
        file.write_at(0, Bytes::from_static(b"still")).await.expect("written");
        assert_eq!(file.read_at(0, 10).await.expect("read"), "still");
        assert_eq!(disk.list("").await, Ok(vec![]));
    });
}

/// A punched range reads as zeros and frees its space; the length stays.
#[test]
fn a_punched_range_is_free_and_zero() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::Create).await.expect("created");
        file.write_at(0, vec![7; 1 << 20].into()).await.expect("written");
        file.sync_data().await.expect("synced");
        let blocks = || fs::metadata(dir.path().join("f")).expect("it is there").blocks();
        let before = blocks();
        file.punch(64 << 10, 512 << 10).await.expect("punched");
        file.punch(0, 0).await.expect("nothing to do");
        file.punch(2 << 20, 1 << 20).await.expect("behind the end is nothing");
        assert_eq!(file.len().await, Ok(1 << 20));
        assert!(
            file.read_at(64 << 10, 512 << 10).await.expect("read").iter().all(|&byte| byte == 0)
        );
        assert_eq!(file.read_at((64 << 10) - 1, 1).await.expect("read")[..], [7]);
        assert_eq!(file.read_at(576 << 10, 1).await.expect("read")[..], [7]);
        assert_eq!(before - blocks(), (512 << 10) / 512);
    });
}

#[test]
fn lengths_are_cut_and_extended_with_holes() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::Create).await.expect("created");
        file.write_at(0, Bytes::from_static(b"abcdef")).await.expect("written");
        file.set_len(3).await.expect("cut");
        file.set_len(5).await.expect("extended");
        assert_eq!(file.read_at(0, 10).await.expect("read"), "abc\0\0");
    });
}

#[test]
fn impossible_offsets_are_errors() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::Create).await.expect("created");
        assert!(file.read_at(u64::MAX, 1).await.is_err());
        assert!(file.write_at(u64::MAX, Bytes::from_static(b"x")).await.is_err());
        assert!(file.punch(u64::MAX, 1).await.is_err());
        assert!(file.punch(1, u64::MAX).await.is_err());
        assert!(file.set_len(u64::MAX).await.is_err());
    });
}

/// Situation: a name derived from foreign input. Danger: it leads out of the data directory.
/// Expectation: rejected before a system call.
#[test]
fn paths_stay_inside() {
    run(async {
        let dir = temporary();
        let disk = disk(&dir);
        for path in ["", "/etc/passwd", "..", "a/../../b", "./a", "a//b", "a/", "a\0b"] {
            let refused = |error: &DiskError| matches!(error, DiskError::Failed { what, .. } if what.contains("not a path inside"));
            assert!(
                disk.open(path, OpenMode::Create).await.is_err_and(|error| refused(&error)),
                "{path:?}"
            );
            assert!(disk.remove(path).await.is_err_and(|error| refused(&error)), "{path:?}");
            assert!(disk.create_dir(path).await.is_err_and(|error| refused(&error)), "{path:?}");
            assert!(disk.rename("a", path).await.is_err_and(|error| refused(&error)), "{path:?}");
            assert!(
                path.is_empty() || disk.list(path).await.is_err_and(|error| refused(&error)),
                "{path:?}"
            );
        }
    });
}

#[test]
fn a_foreign_name_is_an_error_not_an_omission() {
    run(async {
        use std::os::unix::ffi::OsStrExt;
        let dir = temporary();
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"\xff")), b"").expect("written");
        assert!(
            matches!(disk(&dir).list("").await, Err(DiskError::Failed { what, .. }) if what.contains("foreign \
                name"))
        );
    });
}

#[test]
fn the_data_directory_is_made_private_and_must_be_a_directory() {
    let dir = temporary();
    let made = dir.path().join("a/b");
    ebb_os::ports(&made).map(|_| ()).expect("made");
    assert_eq!(fs::metadata(&made).expect("it is there").permissions().mode() & 0o777, 0o700);
    fs::write(dir.path().join("f"), b"").expect("written");
    assert!(matches!(
        ebb_os::ports(&dir.path().join("f")).map(|_| ()),
        Err(DiskError::Failed { .. })
    ));
    assert!(ebb_os::ports(Path::new("/proc/none")).map(|_| ()).is_err());
}

#[test]
fn space_and_boot_id_are_the_machines() {
    run(async {
        let dir = temporary();
        let disk = disk(&dir);
        let space = disk.space().await.expect("it is known");
        assert!(0 < space.total_bytes && space.free_bytes <= space.total_bytes);
        assert_ne!(disk.boot_id(), 0);
        assert_eq!(disk.boot_id(), crate::disk(&dir).boot_id());
    });
}

/// `is_held` reports another open file description, also of this process, and a mapping that
/// outlives its descriptor. It ignores a duplicate of the same open file description.
#[test]
fn is_held_reports_other_opens_and_mappings() {
    run(async {
        let dir = temporary();
        let file = disk(&dir).open("f", OpenMode::Create).await.expect("it opens");
        file.write_at(0, Bytes::from_static(b"mapped")).await.expect("written");
        let own = file.descriptor().expect("it has one");
        assert_eq!(file.is_held(), Some(false));
        let reader = fs::File::open(dir.path().join("f")).expect("it opens again");
        assert_eq!(file.is_held(), Some(true));
        // SAFETY: a new mapping of a file that is never truncated.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                6,
                libc::PROT_READ,
                libc::MAP_SHARED,
                reader.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        drop(reader);
        assert_eq!(file.is_held(), Some(true));
        // SAFETY: the mapping from above; no pointer into it remains.
        assert_eq!(unsafe { libc::munmap(at, 6) }, 0);
        assert_eq!(file.is_held(), Some(false));
        drop(own);
    });
}
