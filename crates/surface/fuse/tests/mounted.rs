//! Ordinary programs on a real mount.

#![allow(dead_code, reason = "each test binary uses its part of the harness")]

mod harness;
mod memfs;

use harness::{Mounted, can_mount};
use memfs::Settings;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

#[test]
fn files_and_directories() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/a"), "hello").unwrap();
    assert_eq!(fs::read(mount.path("d/a")).unwrap(), b"hello");
    assert_eq!(fs::metadata(mount.path("d/a")).unwrap().len(), 5);

    let mut file = OpenOptions::new().append(true).open(mount.path("d/a")).unwrap();
    file.write_all(b", world").unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(mount.path("d/a")).unwrap(), "hello, world");

    fs::rename(mount.path("d/a"), mount.path("b")).unwrap();
    assert_eq!(fs::metadata(mount.path("d/a")).unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::hard_link(mount.path("b"), mount.path("c")).unwrap();
    assert_eq!(fs::metadata(mount.path("c")).unwrap().nlink(), 2);
    symlink("b", mount.path("s")).unwrap();
    assert_eq!(fs::read_link(mount.path("s")).unwrap(), Path::new("b"));
    assert_eq!(fs::read_to_string(mount.path("s")).unwrap(), "hello, world");

    fs::set_permissions(mount.path("b"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(fs::metadata(mount.path("c")).unwrap().mode() & 0o7777, 0o4755);
    OpenOptions::new().write(true).open(mount.path("b")).unwrap().set_len(3).unwrap();
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"hel");
    fs::write(mount.path("b"), "x").unwrap();
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"x", "an open with O_TRUNC has cut the file");

    assert_eq!(
        fs::remove_dir(mount.root().join("missing")).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    fs::write(mount.path("d/x"), "").unwrap();
    assert_eq!(
        fs::remove_dir(mount.path("d")).unwrap_err().kind(),
        io::ErrorKind::DirectoryNotEmpty
    );
    fs::remove_file(mount.path("d/x")).unwrap();
    fs::remove_dir(mount.path("d")).unwrap();
    let long = "n".repeat(256);
    assert_eq!(
        fs::write(mount.path(&long), "").unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
}

#[test]
fn large_files_pass_in_large_requests() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings { caching: ebb_fuse::Caching::Fresh, ..Settings::default() });
    let content: Vec<u8> =
        (0..9_000_000u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    let before = mount.tree().requests;
    fs::write(mount.path("big"), &content).unwrap();
    let written = mount.tree().requests - before;
    // Root has raised the kernel's limit, where there is one, by the missing page.
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
        .map_or(256, |said| said.trim().parse().unwrap());
    let (most, kib) = if limit > 256 { (18, 1024) } else { (28, 512) };
    assert!(written < most, "9 MB took {written} requests: they are not of {kib} KiB");
    let before = mount.tree().requests;
    assert_eq!(fs::read(mount.path("big")).unwrap(), content);
    let read = mount.tree().requests - before;
    assert!(read < 24, "9 MB took {read} requests: the kernel does not read ahead");

    let file = OpenOptions::new().read(true).write(true).open(mount.path("big")).unwrap();
    file.write_all_at(b"middle", 4_000_001).unwrap();
    let mut there = [0; 8];
    file.read_exact_at(&mut there, 4_000_000).unwrap();
    assert_eq!(&there, &[&[content[4_000_000]][..], b"middle", &[content[4_000_007]]].concat()[..]);
}

/// Situation: a directory is listed with a large buffer, as overlays and exports do. Danger: the
/// kernel requests as much as all pages of a request hold, which exceeds the limit of a READ.
/// Expectation: it gets the available entries.
#[test]
fn a_listing_may_be_asked_for_in_any_length() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::write(mount.path("f"), "").unwrap();
    for len_bytes in [64 << 10, 1 << 20, (1 << 20) + 4096, 4 << 20] {
        let (directory, mut buffer) = (File::open(mount.root()).unwrap(), vec![0u8; len_bytes]);
        let listed = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                directory.as_raw_fd(),
                buffer.as_mut_ptr(),
                len_bytes,
            )
        };
        assert!(listed > 0, "{len_bytes} bytes: {}", io::Error::last_os_error());
    }
}

#[test]
fn ten_thousand_entries() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::create_dir(mount.path("many")).unwrap();
    let expected: BTreeSet<String> =
        (0..10_000).map(|i| format!("entry-{i:05}{}", "x".repeat(i % 90))).collect();
    for name in &expected {
        File::create(mount.path("many").join(name)).unwrap();
    }
    for _ in 0..2 {
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(mount.path("many")).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file());
            assert_eq!(entry.metadata().unwrap().len(), 0);
            assert!(
                seen.insert(entry.file_name().into_string().unwrap()),
                "an entry is listed twice"
            );
        }
        assert_eq!(seen, expected);
    }
    fs::remove_dir_all(mount.path("many")).unwrap();
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
}

/// A reader that removes each listed entry must see every entry once: cookies are stable positions,
/// not counts.
#[test]
fn a_directory_emptied_while_it_is_listed() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings { caching: ebb_fuse::Caching::Fresh, ..Settings::default() });
    for i in 0..2_000 {
        File::create(mount.path(&format!("f{i}"))).unwrap();
    }
    let mut removed = 0;
    for entry in fs::read_dir(mount.root()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 2_000);
}

#[test]
fn extended_attributes() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    fs::write(mount.path("f"), "").unwrap();
    let path = CString::new(mount.path("f").as_os_str().as_bytes()).unwrap();
    let set = |name: &CStr, value: &[u8], flags| {
        let result = unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap()) }
    };
    let get = |name: &CStr, limit: usize| {
        let mut value = vec![0u8; limit];
        let len = unsafe {
            libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), limit)
        };
        match usize::try_from(len) {
            Ok(len) => Ok((len, value[..len.min(limit)].to_vec())),
            Err(_) => Err(io::Error::last_os_error().raw_os_error().unwrap()),
        }
    };
    assert_eq!(get(c"user.a", 10), Err(libc::ENODATA));
    set(c"user.a", b"value", libc::XATTR_CREATE).unwrap();
    assert_eq!(set(c"user.a", b"", libc::XATTR_CREATE), Err(libc::EEXIST));
    assert_eq!(set(c"user.b", b"", libc::XATTR_REPLACE), Err(libc::ENODATA));
    assert_eq!(get(c"user.a", 0), Ok((5, vec![])));
    assert_eq!(get(c"user.a", 4), Err(libc::ERANGE));
    assert_eq!(get(c"user.a", 5), Ok((5, b"value".to_vec())));
    let large = vec![7; 60_000];
    set(c"user.large", &large, 0).unwrap();
    assert_eq!(get(c"user.large", 65536), Ok((60_000, large)));

    let mut names = [0u8; 100];
    let len = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    assert_eq!(&names[..len as usize], b"user.a\0user.large\0");
    assert_eq!(unsafe { libc::removexattr(path.as_ptr(), c"user.a".as_ptr()) }, 0);
    assert_eq!(get(c"user.a", 10), Err(libc::ENODATA));
}

/// Uses a mapping in a process of its own, and expects true. A page fault in progress locks the
/// address space, which the server's threads may need to change for memory at that moment: in one
/// process they would deadlock. `work` makes system calls and touches existing memory only.
#[track_caller]
fn apart(work: impl FnOnce() -> bool) {
    // SAFETY: the child takes no lock and no memory until it ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let good = work();
        // SAFETY: ends this process.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn mapped_files() {
    if !can_mount() {
        return;
    }
    for caching in [ebb_fuse::Caching::Keep, ebb_fuse::Caching::Direct { parallel: true }] {
        let mount = Mounted::new(Settings { caching, ..Settings::default() });
        let content: Vec<u8> = (0..1_000_000u32).map(|i| (i / 7) as u8).collect();
        fs::write(mount.path("m"), &content).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(mount.path("m")).unwrap();
        let len = content.len();
        // SAFETY: a new mapping of the whole file, which is not truncated, and is unmapped before
        // this ends.
        apart(|| unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let map = libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if map == libc::MAP_FAILED {
                return false;
            }
            let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), len);
            let same = bytes == content;
            bytes[500_000] = !content[500_000];
            same && libc::msync(map, len, libc::MS_SYNC) == 0 && libc::munmap(map, len) == 0
        });
        let mut byte = [0];
        file.read_exact_at(&mut byte, 500_000).unwrap();
        assert_eq!(byte[0], !content[500_000], "{caching:?}");
    }
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("gone"))
        .unwrap();
    file.write_all(b"still here").unwrap();
    let ino = file.metadata().unwrap().ino();
    fs::remove_file(mount.path("gone")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "still here");
    drop(file);
    // RELEASE and FORGET arrive after close(2) has returned.
    let start = std::time::Instant::now();
    while mount.tree().references.contains_key(&ebb_model::Ino(ino)) {
        assert!(start.elapsed().as_secs() < 10, "the kernel never forgets the file");
        std::thread::yield_now();
    }
}

#[test]
fn special_files_and_rename_flags() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    let c_path = |name: &str| CString::new(mount.path(name).as_os_str().as_bytes()).unwrap();
    let (fifo, null) = (c_path("fifo"), c_path("null"));
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    assert_eq!(
        unsafe { libc::mknod(null.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) },
        0
    );
    let meta = fs::metadata(mount.path("null")).unwrap();
    assert_eq!(meta.rdev(), libc::makedev(1, 3));
    fs::write(mount.path("null"), "into the void").unwrap();

    fs::write(mount.path("a"), "a").unwrap();
    fs::write(mount.path("b"), "b").unwrap();
    let (a, b) = (c_path("a"), c_path("b"));
    let rename = |flags| match unsafe {
        libc::renameat2(libc::AT_FDCWD, a.as_ptr(), libc::AT_FDCWD, b.as_ptr(), flags)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
    };
    assert_eq!(rename(libc::RENAME_NOREPLACE), Err(libc::EEXIST));
    assert_eq!(rename(libc::RENAME_EXCHANGE), Ok(()));
    assert_eq!(fs::read_to_string(mount.path("a")).unwrap(), "b");
    assert_eq!(rename(libc::RENAME_WHITEOUT), Err(libc::EINVAL));
}

/// Operations that the file system lacks fail or are emulated by the kernel, and the connection
/// keeps working.
#[test]
fn operations_that_are_not_served() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    for _ in 0..2 {
        let tmpfile =
            OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(mount.root());
        assert_eq!(tmpfile.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        fs::write(mount.path("f"), "0123456789").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(mount.path("f")).unwrap();
        let fd = file.as_raw_fd();
        assert_eq!(unsafe { libc::fallocate(fd, 0, 0, 100) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(unsafe { libc::lseek(fd, 0, libc::SEEK_HOLE) }, 10);
        assert_eq!(unsafe { libc::lseek(fd, 3, libc::SEEK_DATA) }, 3);
        assert_eq!(unsafe { libc::flock(fd, libc::LOCK_EX) }, 0, "locks are the kernel's own");
        assert_eq!(unsafe { libc::ioctl(fd, 0x1234) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
        let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(unsafe { libc::poll(&mut wait, 1, 0) }, 1);
        let copied = fs::copy(mount.path("f"), mount.path("copy")).unwrap();
        assert_eq!(copied, 10);
        assert_eq!(fs::read(mount.path("copy")).unwrap(), b"0123456789");
        file.sync_all().unwrap();
    }
}

#[test]
fn statfs_and_birth_time() {
    if !can_mount() {
        return;
    }
    let mount = Mounted::new(Settings::default());
    let path = CString::new(mount.root().as_os_str().as_bytes()).unwrap();
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &mut stat) }, 0);
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 40);
    assert_eq!(stat.f_bavail * stat.f_frsize, 1 << 39);
    assert_eq!(stat.f_namemax, 255);

    fs::write(mount.path("f"), "x").unwrap();
    let meta = fs::metadata(mount.path("f")).unwrap();
    assert!(meta.created().unwrap() <= meta.modified().unwrap());
}

/// Situation: a file system without FLUSH. Expectation: close(2) sends none, and stores through a
/// mapping are present once the mapping is gone.
#[test]
fn close_sends_no_flush_where_none_can_fail() {
    if !can_mount() {
        return;
    }
    let flushes = |reports_at_close: bool| {
        let mount = Mounted::new(Settings { reports_at_close, ..Settings::default() });
        let path = CString::new(mount.path("file").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in NUL; the mapping is of the file's one page, is not truncated,
        // and is unmapped after the write.
        apart(|| unsafe {
            let file = libc::open(
                path.as_ptr(),
                libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC,
                0o600,
            );
            let written = libc::write(file, b"written".as_ptr().cast(), 7);
            let at = libc::mmap(
                std::ptr::null_mut(),
                7,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file,
                0,
            );
            if written != 7 || at == libc::MAP_FAILED || libc::close(file) != 0 {
                return false;
            }
            at.cast::<u8>().write_volatile(b'W');
            libc::munmap(at, 7) == 0
        });
        let ino = mount.tree().find(ebb_model::Ino::ROOT, "file").unwrap();
        assert_eq!(mount.tree().content(ino), b"Written");
        mount.tree().flushes
    };
    assert_eq!((flushes(true), flushes(false)), (1, 0));
}
