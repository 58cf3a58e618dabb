//! Waits for locks across mounts, and their ends: signals, deaths, restarts.

use crate::detached::serve;
use crate::locks::{
    NONE, READ, WRITE, both, errno, exit_status, flock, forked, open, pipe, record, set, twice,
};
use crate::place::{Place, kill, until};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

fn lock_waiting(file: &File, kind: i32, start: i64, len: i64) -> Result<(), i32> {
    record(file.as_raw_fd(), libc::F_SETLKW, kind, start, len).map(drop)
}

/// A child that acquires a lock, reports that, and waits until it is killed.
fn holder(fd: RawFd) -> i32 {
    let (mut said, says) = pipe();
    let tell = says.as_raw_fd();
    let child = forked(move || {
        if let Err(errno) = record(fd, libc::F_SETLK, WRITE, 0, 0) {
            return errno;
        }
        // SAFETY: one byte of a constant, and a wait.
        unsafe {
            libc::write(tell, c"1".as_ptr().cast(), 1);
            libc::pause()
        }
    });
    drop(says);
    said.read_exact(&mut [0]).expect("the lock was free");
    child
}

#[test]
fn lock_waiters_are_served_at_its_release() {
    let place = twice();
    let (here, there) = both(&place);
    set(&here, WRITE, 0, 10).unwrap();
    flock(&here, libc::LOCK_EX).unwrap();
    std::thread::scope(|scope| {
        let record = scope.spawn(|| lock_waiting(&there, WRITE, 5, 10));
        let whole = scope.spawn(|| flock(&there, libc::LOCK_SH));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!record.is_finished() && !whole.is_finished());
        set(&here, NONE, 0, 5).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!record.is_finished(), "part of it is still held");
        set(&here, NONE, 5, 5).unwrap();
        flock(&here, libc::LOCK_UN).unwrap();
        assert_eq!((record.join().unwrap(), whole.join().unwrap()), (Ok(()), Ok(())));
    });
    assert_eq!(set(&here, READ, 5, 1), Err(libc::EAGAIN));
}

/// Many more wait on one mount than requests can be under way: the unlock still gets through,
/// and each has its turn.
#[test]
fn a_crowd_waits_and_is_served() {
    const CROWD: usize = 400;
    let place = twice();
    let (here, _) = both(&place);
    flock(&here, libc::LOCK_EX).unwrap();
    let files: Vec<File> = (0..CROWD)
        .map(|at| open(&place.path(if at % 2 == 0 { "mnt/file" } else { "mnt2/file" })))
        .collect();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(move || {
                    flock(file, libc::LOCK_EX)?;
                    flock(file, libc::LOCK_UN)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        flock(&here, libc::LOCK_UN).unwrap();
        assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap() == Ok(())));
    });
}

/// LTP's fcntl17 over two mounts: three processes in a circle. The kernel would find it on one
/// machine; here the node does.
#[test]
fn a_circle_is_refused() {
    let place = twice();
    let (here, there) = both(&place);
    let (fd, (mut said, says)) = (here.as_raw_fd(), pipe());
    let tell = says.as_raw_fd();
    set(&there, WRITE, 0, 1).unwrap();
    let circle = |own: i64, wanted: i64| {
        forked(move || {
            if let Err(errno) = record(fd, libc::F_SETLK, WRITE, own, 1) {
                return errno;
            }
            // SAFETY: one byte of a constant.
            unsafe { libc::write(tell, c"1".as_ptr().cast(), 1) };
            record(fd, libc::F_SETLKW, WRITE, wanted, 1).err().unwrap_or(0)
        })
    };
    let first = circle(1, 0);
    said.read_exact(&mut [0]).unwrap();
    // It has the lock that the second one waits for.
    let second = circle(2, 1);
    drop(says);
    said.read_exact(&mut [0]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(lock_waiting(&there, WRITE, 2, 1), Err(libc::EDEADLK));
    set(&there, NONE, 0, 1).unwrap();
    assert_eq!((exit_status(first), exit_status(second)), (0, 0));
}

extern "C" fn nothing(_: i32) {}

#[test]
fn a_signal_ends_a_wait() {
    let place = twice();
    let (here, there) = both(&place);
    set(&there, WRITE, 0, 0).unwrap();
    flock(&there, libc::LOCK_EX).unwrap();
    let fd = here.as_raw_fd();
    // SAFETY: the handler does nothing, without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    for whole in [false, true] {
        let waiting = forked(move || {
            // SAFETY: flock takes plain integers.
            match whole {
                true if unsafe { libc::flock(fd, libc::LOCK_SH) } == 0 => 0,
                true => errno(),
                false => record(fd, libc::F_SETLKW, READ, 0, 0).err().unwrap_or(0),
            }
        });
        // The first signal may arrive before the wait.
        let signalling = std::thread::spawn(move || exit_status(waiting));
        while !signalling.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            // SAFETY: kill takes plain integers; the process id is not reused so soon.
            unsafe { libc::kill(waiting, libc::SIGUSR1) };
        }
        assert_eq!(signalling.join().unwrap(), libc::EINTR);
        // SIGKILL ends the wait, too.
        let waiting = forked(move || record(fd, libc::F_SETLKW, READ, 0, 0).err().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(300));
        kill(waiting as u32, libc::SIGKILL);
        assert_eq!(exit_status(waiting), -1);
    }
    // Nothing of the waits is left.
    set(&there, NONE, 0, 0).unwrap();
    flock(&there, libc::LOCK_UN).unwrap();
    set(&there, WRITE, 0, 0).unwrap();
    flock(&there, libc::LOCK_EX | libc::LOCK_NB).unwrap();
}

#[test]
fn the_locks_of_a_dead_process_are_free() {
    let place = twice();
    let (here, there) = both(&place);
    let child = holder(here.as_raw_fd());
    assert_eq!(set(&there, READ, 0, 1), Err(libc::EAGAIN));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock_waiting(&there, WRITE, 0, 0));
        std::thread::sleep(Duration::from_millis(200));
        kill(child as u32, libc::SIGKILL);
        exit_status(child);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
}

/// As [`twice`], with one mount in the node's process and another one with a short session term.
fn joined() -> Place {
    let place = Place::new();
    let url = place.url().to_owned();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    place
        .ebb(&[
            "mount",
            &url,
            "mnt",
            "--data",
            "data",
            "--listen",
            &address,
            "--session-term",
            "3s",
        ])
        .good();
    place.ebb(&["mount", &url, "mnt2", "--data", "data2", "--take-over", "join"]).good();
    File::create(place.path("mnt/file")).unwrap();
    place
}

/// A mount dies with its locks: they are released when its session expires, and not before.
#[test]
fn the_locks_of_a_dead_mount_are_free_after_its_term() {
    let place = joined();
    let (here, there) = both(&place);
    set(&there, WRITE, 0, 0).unwrap();
    flock(&there, libc::LOCK_EX).unwrap();
    assert_eq!(set(&here, READ, 0, 1), Err(libc::EAGAIN));
    let began = Instant::now();
    place.kill("mnt2");
    lock_waiting(&here, WRITE, 0, 0).unwrap();
    flock(&here, libc::LOCK_EX).unwrap();
    let took = began.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(20), "{took:?}");
}

/// A mount is stopped for longer than its session term, and other mounts take its locks.
/// Expectation: when it continues, its writes fail until the file is opened again.
#[test]
fn lost_lock_fails_later_writes() {
    let place = joined();
    let (here, mut there) = both(&place);
    set(&there, WRITE, 0, 0).unwrap();
    let daemon = place.record("mnt2").daemon.pid;
    kill(daemon, libc::SIGSTOP);
    lock_waiting(&here, WRITE, 0, 0).unwrap();
    (&here).write_all(b"here").unwrap();
    kill(daemon, libc::SIGCONT);
    assert_eq!(
        there.write_all(b"there").map_err(|error| error.raw_os_error()),
        Err(Some(libc::EIO))
    );
    assert_eq!(set(&there, READ, 0, 0), Err(libc::EIO));
    assert_eq!(there.sync_all().map_err(|error| error.raw_os_error()), Err(Some(libc::EIO)));
    drop(there);
    // close(2) returns before the release: an open before that adds a description.
    until("the error goes with the last close", || {
        set(&open(&place.path("mnt2/file")), READ, 0, 1) == Err(libc::EAGAIN)
    });
    let mut again = open(&place.path("mnt2/file"));
    set(&here, NONE, 0, 0).unwrap();
    lock_waiting(&again, READ, 0, 0).unwrap();
    let mut read = String::new();
    again.read_to_string(&mut read).unwrap();
    assert_eq!(read, "here");
}

/// The daemons of mounts die: each owner keeps its locks, each waiter keeps waiting, and each lock
/// is released when it should be. The same with the node elsewhere, and with a node that dies with
/// a mount.
#[test]
fn locks_outlive_the_daemons() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    for (mountpoint, data) in [("mnt", "client"), ("mnt2", "client2")] {
        place
            .ebb(&["mount", &format!("ebb://{address}/volume"), mountpoint, "--data", data])
            .good();
    }
    locks_stay_while_daemons_die(&place);
    for mountpoint in ["mnt", "mnt2"] {
        // A child of another test may have inherited descriptors.
        until("it is unmounted", || place.ebb(&["umount", mountpoint]).status == 0);
    }
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
    locks_stay_while_daemons_die(&joined());
}

fn locks_stay_while_daemons_die(place: &Place) {
    let another_serves = |mountpoint: &str| {
        let daemon = place.record(mountpoint).daemon;
        kill(daemon.pid, libc::SIGKILL);
        until("another one serves", || place.record(mountpoint).daemon != daemon);
    };
    File::create(place.path("mnt/file")).unwrap();
    let (here, there) = both(place);
    let (whole, description) = (open(&place.path("mnt/file")), open(&place.path("mnt/file")));
    set(&here, WRITE, 0, 10).unwrap();
    set(&here, READ, 20, 5).unwrap();
    set(&here, NONE, 5, 2).unwrap();
    flock(&whole, libc::LOCK_SH).unwrap();
    record(description.as_raw_fd(), libc::F_OFD_SETLK, WRITE, 50, 5).unwrap();
    let is_kept = || {
        let refused =
            [set(&there, READ, 9, 1), set(&there, WRITE, 24, 1), set(&there, READ, 50, 1)];
        assert_eq!(refused, [Err(libc::EAGAIN); 3]);
        assert_eq!(flock(&there, libc::LOCK_EX | libc::LOCK_NB), Err(libc::EAGAIN));
        assert_eq!((set(&there, WRITE, 5, 2), set(&there, READ, 24, 1)), (Ok(()), Ok(())));
    };
    for mountpoint in ["mnt", "mnt2", "mnt"] {
        another_serves(mountpoint);
        is_kept();
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock_waiting(&there, WRITE, 0, 1));
        let blocked = scope.spawn(|| flock(&there, libc::LOCK_EX));
        std::thread::sleep(Duration::from_millis(200));
        another_serves("mnt2");
        another_serves("mnt");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished() && !blocked.is_finished());
        set(&here, NONE, 0, 1).unwrap();
        drop(whole);
        assert_eq!((waiting.join().unwrap(), blocked.join().unwrap()), (Ok(()), Ok(())));
    });
    drop(description);
    until("it goes with the last close", || set(&there, WRITE, 50, 5).is_ok());
    drop(here);
    until("they go with the last close", || set(&there, WRITE, 0, 0).is_ok());
}

/// The node dies and restarts: each owner keeps its locks, each waiter keeps waiting, and a new
/// request does not get ahead of them.
#[test]
fn locks_outlive_the_node() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    for (mountpoint, data) in [("mnt", "client"), ("mnt2", "client2")] {
        place
            .ebb(&["mount", &format!("ebb://{address}/volume"), mountpoint, "--data", data])
            .good();
    }
    File::create(place.path("mnt/file")).unwrap();
    let (here, there) = both(&place);
    set(&here, WRITE, 0, 10).unwrap();
    set(&here, READ, 20, 5).unwrap();
    flock(&here, libc::LOCK_SH).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock_waiting(&there, WRITE, 0, 1));
        std::thread::sleep(Duration::from_millis(200));
        place.signal(node, libc::SIGKILL);
        let (_, again) = serve(&mut place, &address);
        assert_eq!(again, address);
        let refused = [
            set(&there, READ, 9, 1),
            set(&there, WRITE, 24, 1),
            flock(&there, libc::LOCK_EX | libc::LOCK_NB),
        ];
        assert_eq!(refused, [Err(libc::EAGAIN); 3]);
        assert_eq!((set(&there, READ, 24, 1), set(&there, WRITE, 10, 10)), (Ok(()), Ok(())));
        assert!(!waiting.is_finished());
        set(&here, NONE, 0, 1).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    // All locks can be released.
    drop(here);
    until("they go with the last close", || {
        set(&there, WRITE, 0, 0).is_ok() && flock(&there, libc::LOCK_EX | libc::LOCK_NB).is_ok()
    });
}
