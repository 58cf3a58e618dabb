//! Advisory locks across two mounts of one volume.

use crate::detached::serve;
use crate::place::Place;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::Path;

pub const READ: i32 = libc::F_RDLCK;
pub const WRITE: i32 = libc::F_WRLCK;
pub const NONE: i32 = libc::F_UNLCK;

/// One volume at `mnt` and `mnt2`, with a file in it.
pub fn twice() -> Place {
    let mut place = Place::new();
    let (_, address) = serve(&mut place, "127.0.0.1:0");
    for (mountpoint, data) in [("mnt", "client"), ("mnt2", "client2")] {
        place
            .ebb(&["mount", &format!("ebb://{address}/volume"), mountpoint, "--data", data])
            .good();
    }
    File::create(place.path("mnt/file")).unwrap();
    place
}

pub fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

pub fn both(place: &Place) -> (File, File) {
    (open(&place.path("mnt/file")), open(&place.path("mnt2/file")))
}

/// fcntl(2) on `len` bytes, 0 for all that follow.
pub fn record(
    fd: RawFd,
    command: i32,
    kind: i32,
    start: i64,
    len: i64,
) -> Result<libc::flock, i32> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the lock outlives the call.
    match unsafe { libc::fcntl(fd, command, &mut lock) } {
        0 => Ok(lock),
        _ => Err(errno()),
    }
}

pub fn set(file: &File, kind: i32, start: i64, len: i64) -> Result<(), i32> {
    record(file.as_raw_fd(), libc::F_SETLK, kind, start, len).map(drop)
}

/// F_GETLK: kind, start, length and process of a conflicting lock.
fn test(file: &File, kind: i32, start: i64, len: i64) -> Option<(i32, i64, i64, i32)> {
    let found = record(file.as_raw_fd(), libc::F_GETLK, kind, start, len).unwrap();
    (i32::from(found.l_type) != NONE).then_some((
        found.l_type.into(),
        found.l_start,
        found.l_len,
        found.l_pid,
    ))
}

fn open_set(file: &File, kind: i32, start: i64, len: i64) -> Result<(), i32> {
    record(file.as_raw_fd(), libc::F_OFD_SETLK, kind, start, len).map(drop)
}

pub fn flock(file: &File, operation: i32) -> Result<(), i32> {
    // SAFETY: flock takes plain integers.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Runs `work` in a forked process; its result is the exit status. The process was forked from one
/// with several threads, so `work` may only make system calls.
pub fn forked(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls only, and never returns.
    match unsafe { libc::fork() } {
        0 => unsafe { libc::_exit(work()) },
        pid => pid,
    }
}

pub fn exit_status(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

const BUSY: Result<(), i32> = Err(libc::EAGAIN);

/// As in LTP's fcntl11: locks are split, merged and converted, and the other mount sees the result.
#[test]
fn ranges_split_and_merge() {
    let place = twice();
    let (here, there) = both(&place);
    let seen = |start, len| {
        test(&there, WRITE, start, len).map(|(kind, start, len, _)| (kind, start, len))
    };
    set(&here, WRITE, 10, 20).unwrap();
    assert_eq!(seen(0, 0), Some((WRITE, 10, 20)));
    assert_eq!((seen(0, 10), seen(30, 0)), (None, None));
    assert_eq!((set(&there, READ, 29, 1), set(&there, READ, 30, 5)), (BUSY, Ok(())));
    set(&there, NONE, 30, 5).unwrap();
    // Another kind in the middle, and nothing in the middle of that.
    set(&here, READ, 15, 10).unwrap();
    set(&here, NONE, 18, 2).unwrap();
    assert_eq!(
        (seen(0, 0), seen(15, 0), seen(18, 2), seen(18, 0)),
        (Some((WRITE, 10, 5)), Some((READ, 15, 3)), None, Some((READ, 20, 5)))
    );
    assert_eq!(seen(25, 0), Some((WRITE, 25, 5)));
    // The gap is closed, and neighbours of one kind are one.
    set(&here, READ, 18, 2).unwrap();
    assert_eq!(seen(15, 0), Some((READ, 15, 10)));
    set(&here, WRITE, 0, 0).unwrap();
    assert_eq!(seen(500, 1), Some((WRITE, 0, 0)));
    set(&here, NONE, 100, 0).unwrap();
    assert_eq!((seen(0, 0), seen(100, 0)), (Some((WRITE, 0, 100)), None));
    // A negative length: the range before the start.
    let mut lock = libc::flock {
        l_type: NONE as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 100,
        l_len: -90,
        l_pid: 0,
    };
    // SAFETY: the lock outlives the call.
    assert_eq!(unsafe { libc::fcntl(here.as_raw_fd(), libc::F_SETLK, &mut lock) }, 0);
    assert_eq!(seen(0, 0), Some((WRITE, 0, 10)));
}

#[test]
fn shared_locks_get_along() {
    let place = twice();
    let (here, there) = both(&place);
    set(&here, READ, 0, 10).unwrap();
    set(&there, READ, 5, 10).unwrap();
    assert_eq!(set(&here, WRITE, 0, 5), Ok(()), "only these bytes were its own");
    assert_eq!((set(&here, WRITE, 0, 10), set(&there, WRITE, 5, 10)), (BUSY, BUSY));
    // A failed request changes nothing.
    assert_eq!(
        test(&there, READ, 0, 0).map(|(kind, start, len, _)| (kind, start, len)),
        Some((WRITE, 0, 5))
    );
    assert_eq!(
        test(&there, WRITE, 5, 1).map(|(kind, start, len, _)| (kind, start, len)),
        Some((READ, 5, 5))
    );
    set(&there, NONE, 0, 0).unwrap();
    assert_eq!(set(&here, WRITE, 0, 10), Ok(()));
    assert_eq!(set(&there, READ, 9, 1), BUSY);
}

/// The number of a process is one only on its own mount.
#[test]
fn the_holder_is_named() {
    let place = twice();
    let (here, there) = both(&place);
    set(&here, WRITE, 0, 0).unwrap();
    assert_eq!(test(&there, READ, 0, 0), Some((WRITE, 0, 0, 0)));
    assert_eq!(test(&here, READ, 0, 0), None, "nobody is in one's own way");
    let (fd, parent) = (here.as_raw_fd(), std::process::id() as i32);
    let child = forked(move || match record(fd, libc::F_GETLK, READ, 0, 0) {
        Ok(found) if (i32::from(found.l_type), found.l_pid) == (WRITE, parent) => 0,
        Ok(_) => 1,
        Err(errno) => errno,
    });
    assert_eq!(exit_status(child), 0);
}

/// A process that closes any descriptor of a file loses its locks on it; its child, which inherits
/// the open file, has none, and releases none when it ends.
#[test]
fn a_process_loses_its_locks_with_any_close() {
    let place = twice();
    let (here, there) = both(&place);
    set(&here, WRITE, 0, 10).unwrap();
    let fd = here.as_raw_fd();
    let child = forked(move || match record(fd, libc::F_SETLK, READ, 0, 1) {
        Err(errno) => errno,
        Ok(_) => 0,
    });
    assert_eq!(exit_status(child), libc::EAGAIN);
    assert_eq!(set(&there, WRITE, 0, 1), BUSY);
    drop(File::open(place.path("mnt/file")).unwrap());
    assert_eq!(set(&there, WRITE, 0, 1), Ok(()));
    set(&there, NONE, 0, 0).unwrap();
    // Also locks set through a descriptor that stays open, and a close of a duplicate.
    set(&here, WRITE, 0, 10).unwrap();
    drop(here.try_clone().unwrap());
    assert_eq!(set(&there, WRITE, 0, 1), Ok(()));
}

/// Locks of open file descriptions: two of one process exclude each other, closing another
/// descriptor of the file changes nothing, and the last close of their own releases them.
#[test]
fn open_files_have_locks_of_their_own() {
    let place = twice();
    let (here, there) = both(&place);
    let beside = open(&place.path("mnt/file"));
    open_set(&here, WRITE, 0, 10).unwrap();
    assert_eq!(
        (open_set(&beside, READ, 9, 1), open_set(&there, READ, 9, 1), set(&there, READ, 9, 1)),
        (BUSY, BUSY, BUSY)
    );
    assert_eq!(set(&beside, READ, 0, 1), BUSY, "a process is another owner than its open files");
    open_set(&beside, READ, 10, 5).unwrap();
    // F_OFD_GETLK with F_UNLCK reports the caller's own locks (Linux 6.5).
    let own = |file: &File, start| {
        let found = record(file.as_raw_fd(), libc::F_OFD_GETLK, NONE, start, 0)
            .map(|found| (found.l_type.into(), found.l_start, found.l_len));
        found.unwrap()
    };
    assert_eq!(
        (own(&here, 0), own(&here, 5), own(&beside, 0)),
        ((WRITE, 0, 10), (WRITE, 0, 10), (READ, 10, 5))
    );
    assert_eq!((own(&here, 10).0, own(&there, 0).0), (NONE, NONE));
    drop(File::open(place.path("mnt/file")).unwrap());
    assert_eq!((open_set(&there, READ, 9, 1), open_set(&there, WRITE, 10, 1)), (BUSY, BUSY));
    let duplicate = here.try_clone().unwrap();
    drop(here);
    assert_eq!(open_set(&there, READ, 9, 1), BUSY);
    drop(duplicate);
    crate::place::until("the lock goes with the open file", || {
        open_set(&there, WRITE, 0, 10).is_ok()
    });
    drop(beside);
    crate::place::until("the lock goes with the open file", || {
        open_set(&there, WRITE, 0, 0).is_ok()
    });
}

/// A request right after a close finds the locks released. In a process of its own, since programs
/// that other tests start inherit the descriptors of this process until they exec.
#[test]
fn locks_of_a_closed_file_are_released() {
    let place = twice();
    let asks = open(&place.path("mnt/file"));
    let name = CString::new(place.path("mnt/file").into_os_string().into_encoded_bytes()).unwrap();
    let round = || {
        // SAFETY: the name outlives the call; the new descriptor has no other owner.
        let had = match unsafe { libc::open(name.as_ptr(), libc::O_RDWR) } {
            -1 => return Err(errno()),
            fd => unsafe { File::from_raw_fd(fd) },
        };
        open_set(&had, WRITE, 0, 10)?;
        flock(&had, libc::LOCK_EX | libc::LOCK_NB)?;
        drop(had);
        record(asks.as_raw_fd(), libc::F_OFD_GETLK, WRITE, 0, 10)
            .map(|found| i32::from(found.l_type))
    };
    let child = forked(|| if (0..200).all(|_| round() == Ok(NONE)) { 0 } else { 1 });
    assert_eq!(exit_status(child), 0);
}

/// LTP's flock01 to flock06 over two mounts.
#[test]
fn whole_files_are_locked() {
    let place = twice();
    let (here, there) = both(&place);
    let beside = open(&place.path("mnt/file"));
    let (shared, exclusive, none) =
        (libc::LOCK_SH | libc::LOCK_NB, libc::LOCK_EX | libc::LOCK_NB, libc::LOCK_UN);
    flock(&here, shared).unwrap();
    flock(&there, shared).unwrap();
    flock(&beside, shared).unwrap();
    assert_eq!(flock(&there, exclusive), BUSY);
    // flock(2): a failed conversion loses the existing lock.
    assert_eq!((flock(&here, none), flock(&beside, none)), (Ok(()), Ok(())));
    assert_eq!(flock(&here, exclusive), Ok(()));
    assert_eq!((flock(&there, shared), flock(&beside, shared)), (BUSY, BUSY));
    flock(&here, shared).unwrap();
    flock(&there, shared).unwrap();
    flock(&there, none).unwrap();
    // They are independent of fcntl(2) locks.
    set(&there, WRITE, 0, 0).unwrap();
    set(&there, NONE, 0, 0).unwrap();
    flock(&here, exclusive).unwrap();
    // A duplicate and a child share the lock, and either can release it.
    let duplicate = here.try_clone().unwrap();
    drop(here);
    assert_eq!(flock(&there, shared), BUSY);
    assert_eq!(flock(&duplicate, exclusive), Ok(()));
    let fd = duplicate.as_raw_fd();
    // SAFETY: flock takes plain integers.
    let child = forked(move || unsafe { libc::flock(fd, libc::LOCK_UN) });
    assert_eq!(exit_status(child), 0);
    assert_eq!(flock(&there, exclusive), Ok(()));
    flock(&there, none).unwrap();
    flock(&duplicate, exclusive).unwrap();
    drop(duplicate);
    crate::place::until("the lock goes with the last close", || flock(&there, exclusive).is_ok());
}

/// A lock needs a descriptor with the matching access mode; the kernel locks anything that is no
/// regular file.
#[test]
fn lock_without_matching_access_mode_is_refused() {
    let place = twice();
    let (here, _) = both(&place);
    let reader = File::open(place.path("mnt/file")).unwrap();
    assert_eq!(set(&reader, WRITE, 0, 1), Err(libc::EBADF));
    assert_eq!(set(&reader, READ, 0, 1), Ok(()));
    assert_eq!(set(&here, 77, 0, 1), Err(libc::EINVAL));
    assert_eq!(record(here.as_raw_fd(), libc::F_SETLK, WRITE, -5, 1).map(drop), Err(libc::EINVAL));
    let directory = File::open(place.path("mnt")).unwrap();
    assert_eq!(flock(&directory, libc::LOCK_EX), Ok(()));
    let elsewhere = File::open(place.path("mnt2")).unwrap();
    assert_eq!(
        flock(&elsewhere, libc::LOCK_EX | libc::LOCK_NB),
        Ok(()),
        "locks of directories are of one mount"
    );
}

/// On a sole mount that no other can join, the kernel manages the locks.
#[test]
fn a_mount_of_its_own_has_locks_too() {
    let place = Place::new();
    place.mount();
    File::create(place.path("mnt/file")).unwrap();
    let (here, beside) = (open(&place.path("mnt/file")), open(&place.path("mnt/file")));
    set(&here, WRITE, 0, 10).unwrap();
    let fd = beside.as_raw_fd();
    let child = forked(move || record(fd, libc::F_SETLK, READ, 9, 1).err().unwrap_or(0));
    assert_eq!(exit_status(child), libc::EAGAIN);
    flock(&here, libc::LOCK_EX).unwrap();
    assert_eq!(flock(&beside, libc::LOCK_SH | libc::LOCK_NB), BUSY);
    drop((here, beside));
    place.umount();
}

/// Situation: both mounts map the file, one of them since before the other attached, and take turns
/// under a lock. Expectation: each sees the other's stores made under the lock.
#[test]
fn lock_shows_stores_through_mappings() {
    let mut place = Place::new();
    let (_, address) = serve(&mut place, "127.0.0.1:0");
    let url = format!("ebb://{address}/volume");
    place.ebb(&["mount", &url, "mnt", "--data", "client"]).good();
    std::fs::write(place.path("mnt/file"), [0; 4096]).unwrap();
    let here = open(&place.path("mnt/file"));
    let mapped = Mapped::of(&here);
    assert_eq!(mapped.get(), 0);
    place.ebb(&["mount", &url, "mnt2", "--data", "client2"]).good();
    let there = open(&place.path("mnt2/file"));
    let other = Mapped::of(&there);
    for turn in 0..20u8 {
        let (file, map) = if turn % 2 == 0 { (&here, &mapped) } else { (&there, &other) };
        record(file.as_raw_fd(), libc::F_SETLKW, WRITE, 0, 0).unwrap();
        assert_eq!(map.get(), turn, "turn {turn}");
        map.set(turn + 1);
        set(file, NONE, 0, 0).unwrap();
    }
}

/// The first page of a file.
struct Mapped(*mut u8);

impl Mapped {
    fn of(file: &File) -> Mapped {
        // SAFETY: a new mapping of an open file, which is a page long.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapped(at.cast())
    }

    fn get(&self) -> u8 {
        // SAFETY: mapped until this is dropped.
        unsafe { self.0.read_volatile() }
    }

    fn set(&self, value: u8) {
        // SAFETY: as above.
        unsafe { self.0.write_volatile(value) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping is left.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// A pipe, to wait for a forked process.
pub fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: both descriptors are new, without another owner.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}
