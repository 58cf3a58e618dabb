//! Operations on file data besides read and write.

use crate::holes::{create, fallocate};
use crate::joining::free_address;
use crate::place::{Ending, Place};
use crate::quota::room;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

const BLOCK: u64 = 64 << 10;

fn outcome(result: i64) -> Result<u64, i32> {
    u64::try_from(result).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn seek(file: &File, offset: u64, whence: i32) -> Result<u64, i32> {
    // SAFETY: the descriptor is open and the rest are plain integers.
    outcome(unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) })
}

fn copy(from: (&File, u64), to: (&File, u64), len: usize) -> Result<u64, i32> {
    let (mut from_offset, mut to_offset) = (from.1 as i64, to.1 as i64);
    // SAFETY: both descriptors are open and both offsets outlive the call.
    outcome(unsafe {
        libc::copy_file_range(
            from.0.as_raw_fd(),
            &mut from_offset,
            to.0.as_raw_fd(),
            &mut to_offset,
            len,
            0,
        ) as i64
    })
}

/// Situation: a sparse file, partly written, partly only in the bucket, and partly stored through a
/// mapping. Expectation: all of that is data, the rest are holes, before and after the upload.
#[test]
fn holes_are_found_and_data_is_never_passed_over() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let path = place.path("mnt/file");
    let file = create(&path);
    file.write_all_at(b"data", 3 * BLOCK + 5).unwrap();
    file.set_len(10 * BLOCK).unwrap();
    let check = |file: &File| {
        assert_eq!(seek(file, 0, libc::SEEK_DATA), Ok(3 * BLOCK));
        assert_eq!(seek(file, 0, libc::SEEK_HOLE), Ok(0));
        assert_eq!(seek(file, 3 * BLOCK, libc::SEEK_HOLE), Ok(4 * BLOCK));
        assert_eq!(seek(file, 4 * BLOCK, libc::SEEK_DATA), Err(libc::ENXIO));
        assert_eq!(seek(file, 10 * BLOCK, libc::SEEK_DATA), Err(libc::ENXIO));
        assert_eq!(seek(file, 10 * BLOCK, libc::SEEK_HOLE), Err(libc::ENXIO));
        assert_eq!(seek(file, -1i64 as u64, libc::SEEK_DATA), Err(libc::ENXIO));
    };
    check(&file);
    place.ebb(&["flush", "mnt"]).good();
    check(&file);
    place.ebb(&["evict", "mnt"]).good();
    // Ranges that only the bucket has are data.
    check(&file);

    let len = 10 * BLOCK as usize;
    // SAFETY: the mapping is of a file as long as it, and unmapped before the file is closed.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().add(6 * BLOCK as usize).write(7);
        assert_eq!(seek(&file, 4 * BLOCK, libc::SEEK_DATA), Ok(6 * BLOCK));
        assert_eq!(seek(&file, 6 * BLOCK, libc::SEEK_HOLE), Ok(7 * BLOCK));
        // A second descriptor sees it, too, and so does a copy.
        at.cast::<u8>().add(8 * BLOCK as usize).write(8);
        let reader = File::open(&path).unwrap();
        assert_eq!(seek(&reader, 7 * BLOCK, libc::SEEK_DATA), Ok(8 * BLOCK));
        let other = create(&place.path("mnt/other"));
        at.cast::<u8>().add(9 * BLOCK as usize).write(9);
        assert_eq!(copy((&reader, 9 * BLOCK), (&other, 0), 1), Ok(1));
        assert_eq!(fs::read(place.path("mnt/other")).unwrap(), [9]);
        libc::munmap(at, len);
    }
    drop(file);
    place.umount();
}

/// One write of libaio's system calls, waited for.
fn write_asynchronously(file: &File, data: &[u8]) {
    #[repr(C)]
    #[derive(Default)]
    struct Iocb {
        data: u64,
        key: u32,
        rw_flags: u32,
        opcode: u16,
        priority: u16,
        fd: u32,
        buffer: u64,
        len: u64,
        offset: i64,
        reserved: u64,
        flags: u32,
        resfd: u32,
    }
    const PWRITE: u16 = 1;
    let mut context = 0u64;
    let mut events = [0u64; 4];
    let (buffer, len) = (data.as_ptr() as u64, data.len() as u64);
    let iocb = Iocb { opcode: PWRITE, fd: file.as_raw_fd() as u32, buffer, len, ..Iocb::default() };
    let mut list = [&iocb as *const Iocb];
    // SAFETY: all that the kernel is given outlives the write, which is waited for.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &mut context), 0);
        assert_eq!(libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()), 1);
        assert_eq!(
            libc::syscall(
                libc::SYS_io_getevents,
                context,
                1,
                1,
                events.as_mut_ptr(),
                std::ptr::null::<u8>()
            ),
            1
        );
        libc::syscall(libc::SYS_io_destroy, context);
    }
    assert_eq!(events[2], len, "{}", events[2] as i64);
}

/// Situation: parallel direct writes, while another program reads through the page cache. Danger:
/// pages that were read ahead during a write stay cached.
#[test]
fn page_cache_readers_see_parallel_direct_writes() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/file");
    fs::write(&path, vec![0; 4 * BLOCK as usize]).unwrap();
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let reader = File::open(&path).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut content = vec![0; 4 * BLOCK as usize];
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                reader.read_at(&mut content, 0).unwrap();
            }
        });
        let _ending = Ending(&over);
        let stale = (0..200u32).find(|round| {
            let written = vec![*round as u8; 4 * BLOCK as usize];
            write_asynchronously(&direct, &written);
            let mut seen = vec![0; 4 * BLOCK as usize];
            reader.read_exact_at(&mut seen, 0).unwrap();
            seen != written
        });
        assert_eq!(stale, None);
    });
    drop((direct, reader));
    place.umount();
}

/// Situation: chown(2) with neither owner nor group, which the kernel does not pass to FUSE.
#[test]
fn a_change_of_owner_to_the_same_takes_set_id_bits_away() {
    let place = Place::new();
    place.mount_with(&["-o", "allow_other"]);
    for base in ["backing", "mnt"] {
        let path = place.path(base).join("set-id");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        std::os::unix::fs::chown(&path, None, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{base}");
        // Other users lack the permission, as on ext4.
        std::os::unix::fs::chown(&path, Some(1), Some(1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let run = |script: &str, user: u32| {
            let mut command = std::process::Command::new("perl");
            assert!(
                command
                    .args(["-e", script])
                    .arg(&path)
                    .uid(user)
                    .gid(user)
                    .status()
                    .unwrap()
                    .success(),
                "{base} {user}: {script}"
            );
            fs::metadata(&path).unwrap().mode() & 0o7777
        };
        assert_eq!(run("chown -1, -1, $ARGV[0]", 2), 0o6777, "{base}");
        assert_eq!(run("chown -1, -1, $ARGV[0]", 1), 0o777, "{base}");
        // A write clears them.
        for mode in [0o6777, 0o4666, 0o6666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                run("open F, '>>', $ARGV[0] or die; print F 'x'; close F or die $!", 2),
                mode & 0o777,
                "{base}"
            );
        }
    }
    fs::remove_file(place.path("backing/set-id")).unwrap();
    place.umount();
}

/// A write past the page cache clears set-id bits like one through it, and stat(2) shows that
/// although the kernel may cache attributes.
#[test]
fn direct_writes_take_set_id_bits_away() {
    let place = Place::new();
    place.mount_with(&["-o", "allow_other"]);
    for (flags, mode, left) in
        [(0, 0o6644, 0o2644), (libc::O_DIRECT, 0o6644, 0o2644), (libc::O_DIRECT, 0o6755, 0o755)]
    {
        let path = place.path("mnt/file");
        fs::write(&path, "content").unwrap();
        std::os::unix::fs::chown(&path, Some(1), Some(1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
        let script = format!(
            "use Fcntl; sysopen(F, $ARGV[0], O_WRONLY | {flags}) or die $!; syswrite(F, 'x' x \
             4096) == 4096 or die $!"
        );
        let mut command = std::process::Command::new("perl");
        command.args(["-e", &script]).arg(&path).uid(1).gid(1);
        assert!(command.status().unwrap().success());
        crate::place::until("it is seen", || fs::metadata(&path).unwrap().mode() & 0o7777 == left);
        fs::remove_file(&path).unwrap();
    }
    place.umount();
}

/// copy_file_range runs in the node: between files, within one, past its end; it fails where Linux
/// fails; and the kernel drops its cached pages of the target.
#[test]
fn ranges_are_copied() {
    let place = Place::over_s3();
    place.mount_with(&["--flush-interval", "1h"]);
    let content: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 7 % 251) as u8).collect();
    fs::write(place.path("mnt/from"), &content).unwrap();
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["evict", "mnt"]).good();
    let from = OpenOptions::new().read(true).write(true).open(place.path("mnt/from")).unwrap();
    let path = place.path("mnt/to");
    let to = create(&path);
    to.write_all_at(&[1; 1000], 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [1; 1000]);

    let mut done = 0;
    while done < content.len() {
        let copied = copy((&from, done as u64), (&to, 100 + done as u64), content.len()).unwrap();
        assert!(copied > 0);
        done += copied as usize;
    }
    assert_eq!(copy((&from, content.len() as u64), (&to, 0), 10), Ok(0), "nothing is left");
    assert_eq!(
        copy((&from, content.len() as u64 - 3), (&to, 100 + content.len() as u64), 10),
        Ok(3)
    );
    let mut expected = [&[1; 100][..], &content, &content[content.len() - 3..]].concat();
    assert_eq!(fs::read(&path).unwrap(), expected);

    assert_eq!(copy((&to, 0), (&to, 50), 100), Err(libc::EINVAL), "the ranges overlap");
    assert_eq!(copy((&to, 0), (&to, 200), 100), Ok(100));
    expected.copy_within(0..100, 200);
    assert_eq!(fs::read(&path).unwrap(), expected);
    let largest = 5u64 << 40;
    assert_eq!(copy((&from, 0), (&to, largest), 10), Err(libc::EFBIG));
    let appending = OpenOptions::new().append(true).open(&path).unwrap();
    assert_eq!(copy((&from, 0), (&appending, 0), 10), Err(libc::EBADF));
    // std copies with it.
    fs::copy(place.path("mnt/from"), place.path("mnt/again")).unwrap();
    assert_eq!(fs::read(place.path("mnt/again")).unwrap(), content);
    drop((from, to, appending));
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(fs::read(&path).unwrap(), expected);
    place.umount();
}

pub fn tmpfile(dir: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(dir).unwrap()
}

fn link(file: &File, to: &Path) -> Result<u64, i32> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let to = CString::new(to.as_os_str().as_bytes()).unwrap();
    // SAFETY: both paths end in NUL.
    outcome(
        unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        }
        .into(),
    )
}

/// Situation: files are created without a name; one gets a name, one does not, and the daemon is
/// killed while others are open. Expectation: the named one is in the bucket with everything
/// written before; nothing is left of the others.
#[test]
fn files_without_a_name() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    let (named, nameless) = (tmpfile(&dir), tmpfile(&dir));
    (&named).write_all(b"content").unwrap();
    (&nameless).write_all(b"gone").unwrap();
    assert_eq!((named.metadata().unwrap().nlink(), fs::read_dir(&dir).unwrap().count()), (0, 0));
    assert_eq!(link(&named, &dir.join("name")), Ok(0));
    assert_eq!(link(&named, &dir.join("name")), Err(libc::EEXIST));
    assert_eq!(named.metadata().unwrap().nlink(), 1);
    assert_eq!(fs::read(dir.join("name")).unwrap(), b"content");
    // SAFETY: the path ends in NUL; the new descriptor has no other owner.
    let sealed = unsafe {
        let dir = CString::new(dir.as_os_str().as_bytes()).unwrap();
        File::from_raw_fd(libc::open(
            dir.as_ptr(),
            libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL,
            0o600,
        ))
    };
    assert_eq!(link(&sealed, &dir.join("sealed")), Err(libc::ENOENT), "O_EXCL: it gets no name");
    drop(nameless);
    place.ebb(&["flush", "mnt"]).good();
    assert_eq!(fs::read(place.path("backing/dir/name")).unwrap(), b"content");
    let inodes =
        || place.ebb(&["status", "mnt", "--json"]).good().json()["inodes"].as_u64().unwrap();
    let before = inodes();
    place.kill("mnt");
    drop((named, sealed));
    place.ebb(&["umount", "--lazy", "--no-wait", "mnt"]);
    place.mount();
    assert_eq!(fs::read(dir.join("name")).unwrap(), b"content");
    assert_eq!(inodes(), before - 1, "the one that was open is gone");
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

/// A file size beyond the disk's and the store's limit fails at once; a write that begins below the
/// limit is short.
#[test]
fn the_largest_file() {
    let place = Place::over_s3();
    place.mount();
    let path = place.path("mnt/file");
    let file = create(&path);
    let largest = 5u64 << 40;
    assert_eq!(file.write_at(b"xx", largest).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    assert_eq!(file.set_len(largest + 1).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    assert_eq!(fallocate(&file, 0, largest, 1), Err(libc::EFBIG));
    assert_eq!(file.write_at(b"abc", largest - 2).unwrap(), 2);
    assert_eq!(file.metadata().unwrap().len(), largest);
    file.set_len(0).unwrap();
    drop(file);
    place.umount();
}

/// Several descriptors, processes and mounts append unaligned records to one file: each record is
/// present, whole and once.
#[test]
fn appends_do_not_overwrite_each_other() {
    let mut place = Place::new();
    let url = place.url().to_owned();
    let (node, line) = place.start(&[
        "serve",
        "--data",
        "node",
        "--backing",
        &url,
        "--name",
        "v",
        "--listen",
        "127.0.0.1:0",
    ]);
    let address =
        line.split("ebb://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    place.ebb(&["mount", &format!("ebb://{address}/v"), "mnt", "--data", "client"]).good();
    let path = place.path("mnt/log");
    let record = |writer: usize, number: usize| {
        format!("{writer}-{number:06}-{}", "x".repeat(800 + number * 7 % 400))
    };
    // Open before the second mount attaches, with the end of file cached by the kernel.
    let early: Vec<File> =
        (0..2).map(|_| OpenOptions::new().append(true).create(true).open(&path).unwrap()).collect();
    (&early[0]).write_all(b"begin...\n").unwrap();
    place.ebb(&["mount", &format!("ebb://{address}/v"), "mnt2", "--data", "client2"]).good();
    let late: Vec<File> = ["mnt/log", "mnt2/log"]
        .iter()
        .map(|name| OpenOptions::new().append(true).open(place.path(name)).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (writer, file) in early.iter().chain(&late).enumerate() {
            scope.spawn(move || {
                for number in 0..100 {
                    let mut file = file;
                    let record = format!("{}\n", record(writer, number));
                    assert_eq!(file.write(record.as_bytes()).unwrap(), record.len());
                }
            });
        }
    });
    drop((early, late));
    let text = fs::read_to_string(place.path("mnt2/log")).unwrap();
    let mut lines: Vec<&str> = text.lines().skip(1).collect();
    lines.sort_unstable();
    let mut expected: Vec<String> =
        (0..4).flat_map(|writer| (0..100).map(move |number| record(writer, number))).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    place.umount_at("mnt2");
    place.umount_at("mnt");
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Situation: on a mount that others can join, one program reads a file through the page cache
/// while another one appends past it. Danger: the last page is read before an append, and shown
/// with zeros when the file is longer. Expectation: reads return the appended bytes.
#[test]
fn append_shows_no_zeros_to_page_cache_readers() {
    let place = Place::new();
    place.mount_with(&["--listen", "127.0.0.1:0"]);
    let path = place.path("mnt/log");
    fs::write(&path, "x").unwrap();
    let reader = File::open(&path).unwrap();
    let log = OpenOptions::new().append(true).open(&path).unwrap();
    let mut seen = vec![0; 1 << 20];
    for round in 1..=1000 {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (&log).write_all(&[b'x'; 100]).unwrap());
            while !writer.is_finished() {
                let len = reader.read_at(&mut seen, 0).unwrap();
                assert!(!seen[..len].contains(&0), "zeros in {len} bytes");
            }
        });
        assert_eq!(reader.read_at(&mut seen, 0).unwrap(), 1 + 100 * round);
    }
    drop((reader, log));
    place.umount();
}

/// Situation: the bucket is a directory of a small file system. Expectation: df shows its free
/// space minus unflushed data, and writes beyond that fail at once.
#[test]
fn a_directory_has_the_room_of_its_file_system() {
    let place = Place::new();
    let backing = place.path("backing").display().to_string();
    place.program("mount", &["-t", "tmpfs", "-o", "size=64m", "none", &backing]).good();
    place.mount_with(&["--flush-interval", "1h"]);
    let [total, free, available, ..] = room(&place.path("mnt"));
    assert!(
        (60 << 20..=64 << 20).contains(&free) && total == free && available == free,
        "{total} {free} {available}"
    );
    let file = fs::File::create(place.path("mnt/file")).unwrap();
    file.write_all_at(&vec![1; 10 << 20], 0).unwrap();
    let [total, after, ..] = room(&place.path("mnt"));
    assert_eq!((total, after), (free, free - (10 << 20)), "it is not sent yet");
    // SAFETY: the descriptor is open.
    let refused = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, 80 << 20) };
    assert_eq!(refused, libc::ENOSPC);
    place.ebb(&["flush", "mnt"]).good();
    let [_, sent, ..] = room(&place.path("mnt"));
    assert!(sent.abs_diff(after) < 1 << 20, "{sent} {after}");
    drop(file);
    place.umount();
    place.program("umount", &[&backing]).good();
}

/// Situation: a file has gaps on the disk of the node, which is full but for some pages, and a
/// write goes over written pages and gaps. Expectation: write(2) returns how many bytes are there,
/// the next one fails with ENOSPC, and the file has exactly these, after a crash, too.
#[test]
fn write_that_a_full_disk_cuts_short_says_so() {
    const PAGE: usize = 4096;
    let place = Place::new();
    let small = place.path("small").display().to_string();
    fs::create_dir(&small).unwrap();
    place.program("mount", &["-t", "tmpfs", "-o", "size=64m", "none", &small]).good();
    let mount = || {
        let args = ["mount", place.url(), "mnt", "--data", "small/data", "--flush-interval", "1h"];
        place.ebb(&args).good();
    };
    mount();
    let open = || OpenOptions::new().read(true).write(true).open(place.path("mnt/file")).unwrap();
    fs::write(place.path("mnt/file"), "").unwrap();
    let file = open();
    let mut model = vec![0; 16 * BLOCK as usize];
    file.set_len(model.len() as u64).unwrap();
    // From the end on: a small file that grows is copied, gaps included.
    for at in (0..model.len()).step_by(BLOCK as usize).rev() {
        file.write_all_at(&[7; PAGE], at as u64).unwrap();
        model[at..at + PAGE].fill(7);
    }
    file.sync_all().unwrap();

    let mut ballast = File::create(place.path("small/ballast")).unwrap();
    while ballast.write_all(&[0; PAGE]).is_ok() {}
    ballast.set_len(ballast.metadata().unwrap().len() - 3 * PAGE as u64).unwrap();
    let data = vec![8; model.len()];
    let written = file.write_at(&data, 0).unwrap();
    assert!((PAGE..BLOCK as usize).contains(&written), "{written} bytes");
    model[..written].fill(8);
    let refused = file.write_at(&data[written..], written as u64).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    assert!(fs::read(place.path("mnt/file")).unwrap() == model, "other bytes");

    drop((file, ballast));
    place.kill("mnt");
    place.ebb(&["umount", "mnt"]).refused(1, "goes on with it");
    fs::remove_file(place.path("small/ballast")).unwrap();
    mount();
    assert!(fs::read(place.path("mnt/file")).unwrap() == model, "other bytes after a crash");
    let file = open();
    file.write_all_at(&data, 0).unwrap();
    drop(file);
    assert!(fs::read(place.path("mnt/file")).unwrap() == data, "other bytes with room");
    place.umount();
    place.program("umount", &[&small]).good();
}

/// A bucket has no size limit: the free space is constant.
#[test]
fn a_bucket_has_no_size() {
    let place = Place::over_s3();
    place.mount();
    fs::write(place.path("mnt/object"), vec![1; 5 << 20]).unwrap();
    place.umount();
    place.drop_cache();
    place.mount();
    let [total, free, available, inodes, free_inodes] = room(&place.path("mnt"));
    assert_eq!(
        (total, free, available, inodes - free_inodes),
        (1 << 50, 1 << 50, 1 << 50, 0),
        "nothing has been looked at"
    );
    fs::write(place.path("mnt/file"), vec![1; 1 << 20]).unwrap();
    assert_eq!(fs::read_dir(place.path("mnt")).unwrap().count(), 2);
    let [total, free, available, inodes, free_inodes] = room(&place.path("mnt"));
    assert_eq!(
        (total - free, free, available, inodes - free_inodes),
        (6 << 20, 1 << 50, 1 << 50, 2)
    );
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["evict", "mnt"]).good();
    assert_eq!(
        room(&place.path("mnt"))[0],
        (1 << 50) + (6 << 20),
        "what is cached says nothing of what there is"
    );
    place.umount();
}

/// The log positions that are written and forced.
pub fn indices(place: &Place) -> (u64, u64) {
    let status = place.ebb(&["status", "mnt", "--json"]).good().json();
    (status["log_index"].as_u64().unwrap(), status["durable_index"].as_u64().unwrap())
}

/// syncfs(2) forces nothing, because the kernel does not pass it on; fsync(2) of the mount's root
/// forces every file. When the first assertion fails, the kernel has changed, and the semantics can
/// promise more.
#[test]
fn syncfs_is_not_passed_on() {
    let place = Place::new();
    place.mount_with(&["--commit-interval", "1h", "--flush-interval", "1h"]);
    let file = create(&place.path("mnt/file"));
    file.write_all_at(b"written", 0).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(outcome(unsafe { libc::syncfs(file.as_raw_fd()) }.into()), Ok(0));
    let (written, durable) = indices(&place);
    assert!(durable < written, "{durable} of {written} are durable");
    let lost = || {
        place.ebb(&["explain", "mnt/file", "--json"]).good().json()["survives"]["power cut"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_ne!(lost(), "nothing is lost");
    File::open(place.path("mnt")).unwrap().sync_all().unwrap();
    let (written, durable) = indices(&place);
    assert!(durable >= written, "{durable} of {written} are durable");
    assert_eq!(lost(), "nothing is lost");
    drop(file);
    place.umount();
}

/// O_SYNC and O_DSYNC: a completed write(2) survives a power cut, so the log is forced up to it.
/// O_DIRECT: any offset, length and address.
#[test]
fn synchronous_and_direct_writes() {
    let place = Place::new();
    place.mount_with(&["--commit-interval", "1h", "--flush-interval", "1h"]);
    for flag in [libc::O_SYNC, libc::O_DSYNC] {
        let path = place.path(&format!("mnt/{flag}"));
        let file =
            OpenOptions::new().write(true).create_new(true).custom_flags(flag).open(&path).unwrap();
        file.write_all_at(b"synced", 0).unwrap();
        let (written, durable) = indices(&place);
        assert!(durable >= written, "{durable} of {written} are durable");
    }
    let path = place.path("mnt/direct");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let data: Vec<u8> = (0..100_000).map(|at: u32| at as u8).collect();
    file.write_all_at(&data[1..77_778], 13).unwrap();
    let mut back = vec![0; 77_777];
    file.read_exact_at(&mut back[..], 13).unwrap();
    assert_eq!(back, data[1..77_778]);
    // Visible through the page cache, which had cached the file before.
    assert_eq!(fs::read(&path).unwrap()[13..], data[1..77_778]);
    file.write_all_at(b"direct", 20).unwrap();
    assert_eq!(&fs::read(&path).unwrap()[20..26], b"direct");
    drop(file);
    place.umount();
}

/// A file that was opened while another mount was attached is not cached, and the kernel leaves the
/// force of O_SYNC writes to the mount. After the other mount has left, that is the only force.
#[test]
fn synchronous_writes_that_are_not_cached() {
    let place = Place::new();
    place.mount_with(&[
        "--listen",
        &free_address(),
        "--commit-interval",
        "1h",
        "--flush-interval",
        "1h",
    ]);
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2", "--take-over", "join"]).good();
    let open = |name: &str, flag| {
        let path = place.path("mnt").join(name);
        OpenOptions::new().write(true).create_new(true).custom_flags(flag).open(path).unwrap()
    };
    let (synced, plain) = (open("synced", libc::O_SYNC), open("plain", 0));
    place.umount_at("mnt2");
    plain.write_all_at(b"plain", 0).unwrap();
    let (written, durable) = indices(&place);
    assert!(durable < written, "{durable} of {written} are durable without being asked for");
    synced.write_all_at(b"synced", 0).unwrap();
    let (written, durable) = indices(&place);
    assert!(durable >= written, "{durable} of {written} are durable");
    drop((synced, plain));
    place.umount();
}

/// Nanoseconds and birth time are exact, also for a node that starts with only the bucket.
#[test]
fn times_are_exact() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/file");
    fs::write(&path, "x").unwrap();
    let born = fs::metadata(&path).unwrap().created().unwrap();
    let times = |access, modify| {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let times = [
            libc::timespec { tv_sec: 1_000_000_001, tv_nsec: access },
            libc::timespec { tv_sec: -5, tv_nsec: modify },
        ];
        // SAFETY: the path ends in NUL and there are two times.
        assert_eq!(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) }, 0);
    };
    times(123_456_789, 987_654_321);
    let expected = ((1_000_000_001, 123_456_789), (-5, 987_654_321), born);
    let seen = || {
        let meta = fs::metadata(&path).unwrap();
        (
            (meta.atime(), meta.atime_nsec()),
            (meta.mtime(), meta.mtime_nsec()),
            meta.created().unwrap(),
        )
    };
    assert_eq!(seen(), expected);
    fs::read(&path).unwrap();
    assert_eq!(seen(), expected, "reading changes no time");
    place.umount();
    place.drop_cache();
    place.mount();
    assert_eq!(seen(), expected);
    place.umount();
}
