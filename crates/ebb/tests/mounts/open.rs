//! Changes of names during an open and while a file is open.

use crate::place::{Ending, Place};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Situation: open directories are removed, one of them by a rename over it. Expectation: they stay
/// usable, nameless and empty, and reject new entries.
#[test]
fn a_directory_stays_while_it_is_open() {
    let place = Place::new();
    place.mount();
    let [removed, replaced, other] =
        ["mnt/removed", "mnt/replaced", "mnt/other"].map(|name| place.path(name));
    for dir in [&removed, &replaced, &other] {
        fs::create_dir(dir).unwrap();
    }
    fs::set_permissions(&replaced, fs::Permissions::from_mode(0o700)).unwrap();
    let open =
        [&removed, &replaced].map(|dir| (File::open(dir).unwrap(), fs::metadata(dir).unwrap()));
    fs::remove_dir(&removed).unwrap();
    fs::rename(&other, &replaced).unwrap();
    for (file, before) in &open {
        let now = file.metadata().unwrap();
        assert_eq!((now.ino(), now.mode(), now.nlink()), (before.ino(), before.mode(), 0));
        let through = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(
            fs::write(format!("{through}/new"), "").unwrap_err().raw_os_error(),
            Some(libc::ENOENT)
        );
        assert_eq!(fs::read_dir(&through).unwrap().count(), 0);
    }
    drop(open);
    place.ebb(&["fsck", "mnt"]).good();
}

/// Situation: a program runs. Danger: an open with O_TRUNC fails, and truncates it all the same.
#[test]
fn a_program_that_runs_cannot_be_written_or_cut() {
    let place = Place::new();
    place.mount();
    let program = place.path("mnt/sleep");
    let content = fs::read("/bin/sleep").unwrap();
    for at in 0..5 {
        fs::copy("/bin/sleep", &program).unwrap();
        let mut running = Command::new(&program).arg("60").spawn().unwrap();
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_TRUNC, libc::O_WRONLY | libc::O_TRUNC] {
            let path = CString::new(program.as_os_str().as_bytes()).unwrap();
            // SAFETY: the path ends in NUL.
            let opened = unsafe { libc::open(path.as_ptr(), flags) };
            assert_eq!(
                (opened, io::Error::last_os_error().raw_os_error()),
                (-1, Some(libc::ETXTBSY)),
                "{flags:o}, {at}"
            );
        }
        assert!(running.try_wait().unwrap().is_none() && fs::read(&program).unwrap() == content);
        running.kill().unwrap();
        running.wait().unwrap();
    }
    File::options().write(true).truncate(true).open(&program).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().len(), 0);
}

/// Situation: one name is constantly given to other files and to a symbolic link, while it is
/// opened. Danger: the looked-up inode is gone before the open, and the kernel retries only once.
/// Expectation: each open gets one of them.
#[test]
fn a_name_that_is_replaced_all_the_time_can_always_be_opened() {
    let place = Place::new();
    place.mount();
    let [name, new, target] = ["mnt/name", "mnt/new", "mnt/target"].map(|name| place.path(name));
    fs::write(&name, "content").unwrap();
    fs::write(&target, "content").unwrap();
    let (began, done) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(fs::read_to_string(&name).unwrap(), "content");
                }
            });
        }
        let _ending = Ending(&done);
        while began.elapsed() < Duration::from_secs(3) {
            fs::write(&new, "content").unwrap();
            fs::rename(&new, &name).unwrap();
            symlink("target", &new).unwrap();
            fs::rename(&new, &name).unwrap();
        }
    });
    place.ebb(&["fsck", "mnt"]).good();
}

/// Situation: an inode is in use without an open that the kernel reports, and loses its last name:
/// a FIFO, an O_PATH descriptor, a current directory. Danger: its attributes are ESTALE.
/// Expectation: as on this machine's disk, it stays usable without a name.
#[test]
fn unlinked_inode_in_use_without_open_keeps_attributes() {
    let place = Place::new();
    place.mount();
    for base in ["backing", "mnt"] {
        let at = |name: &str| place.path(&format!("{base}/{name}"));
        let made = Command::new("mkfifo").arg(at("fifo")).status().unwrap();
        assert!(made.success());
        fs::create_dir(at("dir")).unwrap();
        for name in ["removed", "replaced", "other"] {
            fs::write(at(name), "12345").unwrap();
        }
        let opened = File::options().append(true).open(at("removed")).unwrap();
        let by_path =
            |name| File::options().read(true).custom_flags(libc::O_PATH).open(at(name)).unwrap();
        let fifo = File::options().read(true).write(true).open(at("fifo")).unwrap();
        let [dir, removed, replaced] = ["dir", "removed", "replaced"].map(by_path);
        fs::remove_file(at("fifo")).unwrap();
        fs::remove_dir(at("dir")).unwrap();
        fs::remove_file(at("removed")).unwrap();
        fs::rename(at("other"), at("replaced")).unwrap();
        assert!(
            fifo.metadata().unwrap().file_type().is_fifo() && dir.metadata().unwrap().is_dir(),
            "{base}"
        );
        for file in [&fifo, &dir, &removed, &replaced] {
            assert_eq!(file.metadata().unwrap().nlink(), 0, "{base}");
        }
        (&opened).write_all(b"6789").unwrap();
        drop(opened);
        // The kernel reports that later.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(
            (removed.metadata().unwrap().len(), replaced.metadata().unwrap().len()),
            (9, 5),
            "{base}"
        );
        let script = "mkdir here && cd here && rmdir ../here && stat -c '%F %h' . && ls -a . && ! \
            touch new 2>/dev/null && ! mkdir new 2>/dev/null";
        let run =
            Command::new("sh").args(["-c", script]).current_dir(place.path(base)).output().unwrap();
        assert!(run.status.success() && run.stdout == b"directory 0\n", "{base}: {run:?}");
    }
    fs::remove_file(place.path("backing/replaced")).unwrap();
    place.umount();
}
