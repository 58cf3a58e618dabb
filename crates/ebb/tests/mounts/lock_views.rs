//! Two mounts of one volume under one lock: with it each sees all that the other did, as two
//! processes on a local file system do.

use crate::close_to_open::twice_as;
use crate::locks::{NONE, WRITE, errno, exit_status, flock, forked, open, record};
use crate::mappings::Mapping;
use crate::place::Place;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

const MODES: [&str; 2] = ["strong", "close-to-open"];
const MOUNTS: [&str; 2] = ["mnt", "mnt2"];

/// The interface that takes a lock, and its range.
#[derive(Clone, Copy, Debug)]
enum Lock {
    Process(i64, i64),
    Description(i64, i64),
    Flock,
}

const EVERY_KIND: [Lock; 3] = [Lock::Process(0, 0), Lock::Description(1 << 40, 1), Lock::Flock];

impl Lock {
    /// Waits for it.
    fn take(self, fd: RawFd) -> Result<(), i32> {
        self.call(fd, (libc::F_SETLKW, libc::F_OFD_SETLKW), WRITE, libc::LOCK_EX)
    }

    fn try_to_take(self, fd: RawFd) -> Result<(), i32> {
        let without_waiting = libc::LOCK_EX | libc::LOCK_NB;
        self.call(fd, (libc::F_SETLK, libc::F_OFD_SETLK), WRITE, without_waiting)
    }

    fn give_up(self, fd: RawFd) -> Result<(), i32> {
        self.call(fd, (libc::F_SETLK, libc::F_OFD_SETLK), NONE, libc::LOCK_UN)
    }

    /// System calls only: for forked processes too.
    fn call(self, fd: RawFd, commands: (i32, i32), kind: i32, whole: i32) -> Result<(), i32> {
        match self {
            Lock::Process(start, len) => record(fd, commands.0, kind, start, len).map(drop),
            Lock::Description(start, len) => record(fd, commands.1, kind, start, len).map(drop),
            // SAFETY: flock takes plain integers.
            Lock::Flock => match unsafe { libc::flock(fd, whole) } {
                0 => Ok(()),
                _ => Err(errno()),
            },
        }
    }
}

/// A process that takes the lock whenever it is free, releases it at once, and releases it also
/// where it was refused, as Python's mailbox does. Ends when it is dropped.
struct Poller(i32);

impl Poller {
    fn new(file: &File, lock: Lock) -> Poller {
        let fd = file.as_raw_fd();
        Poller(forked(move || {
            keep_only(fd);
            loop {
                let (Ok(()) | Err(_)) = lock.try_to_take(fd);
                if lock.give_up(fd).is_err() {
                    return 1;
                }
                // SAFETY: takes plain integers.
                unsafe { libc::usleep(200) };
            }
        }))
    }
}

/// Closes other descriptors inherited at the fork: they belong to tests that unmount their mounts.
fn keep_only(fd: RawFd) {
    let fd = fd as libc::c_uint;
    // SAFETY: system calls, on descriptors that nothing else in this process uses.
    unsafe {
        libc::close_range(3, fd - 1, 0);
        libc::close_range(fd + 1, libc::c_uint::MAX, 0);
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // SAFETY: the process is this one's child, and was not waited for yet.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        assert_eq!(exit_status(self.0), -1, "a poller has ended by itself");
    }
}

/// Situation: both mounts take turns under one lock, while others of the first mount poll it; in
/// each turn the file grows or is cut. Danger: the kernel drops the length that it requests,
/// because of a notification in between, and continues with an older one. Expectation: in each turn
/// the end, the bytes, the attributes and the mapped contents are those of the turn before.
#[test]
fn a_turn_under_a_lock_begins_where_the_last_one_ended() {
    for mode in MODES {
        let place = twice_as([mode; 2]).0;
        for (number, lock) in EVERY_KIND.into_iter().enumerate() {
            for pollers in [0, 2] {
                take_turns(&place, mode, &format!("file{number}-{pollers}"), lock, pollers);
            }
        }
    }
}

fn take_turns(place: &Place, mode: &str, name: &str, lock: Lock, pollers: usize) {
    let paths = MOUNTS.map(|mount| place.path(mount).join(name));
    File::create(&paths[0]).unwrap();
    let polled: Vec<File> = (0..pollers).map(|_| open(&paths[0])).collect();
    let _pollers: Vec<Poller> = polled.iter().map(|file| Poller::new(file, lock)).collect();
    let mut files = paths.each_ref().map(|path| open(path));
    let mappings = files.each_ref().map(|file| Mapping::to_read(file, 1 << 20));
    let mut content = Vec::new();
    for turn in 0..300usize {
        let (file, mapping) = (&mut files[turn % 2], &mappings[turn % 2]);
        lock.take(file.as_raw_fd()).unwrap();
        let at = format!("{mode}, {lock:?}, {pollers} pollers, turn {turn}");
        let end = file.seek(SeekFrom::End(0)).unwrap();
        assert_eq!(end, content.len() as u64, "SEEK_END: {at}");
        assert_eq!(file.metadata().unwrap().len(), end, "fstat: {at}");
        if turn % 3 == 2 {
            // Behind SEEK_END and fstat(2), which tell the kernel of the length.
            let mut seen = vec![0; content.len() + 100];
            let len = file.read_at(&mut seen, 0).unwrap();
            assert!(seen[..len] == content, "{len} bytes are read: {at}");
        }
        if let Some(last) = content.len().checked_sub(1) {
            assert_eq!(mapping.byte(last), Some(content[last]), "mapped: {at}");
        }
        if turn % 10 == 9 {
            content.truncate(content.len() - 25);
            file.set_len(content.len() as u64).unwrap();
        } else {
            let more = [b'a' + (turn % 26) as u8; 40];
            file.write_all_at(&more, content.len() as u64).unwrap();
            content.extend_from_slice(&more);
        }
        lock.give_up(file.as_raw_fd()).unwrap();
    }
    assert!(fs::read(&paths[0]).unwrap() == content);
}

/// The first operation under a lock may be a read, a seek to the end, or an access to a mapping:
/// for a mapping the kernel does not request the length.
#[test]
fn lock_shows_the_last_turn_to_any_first_operation() {
    for mode in MODES {
        let place = twice_as([mode; 2]).0;
        let paths = MOUNTS.map(|mount| place.path(mount).join("file"));
        File::create(&paths[0]).unwrap();
        let files = paths.each_ref().map(|path| open(path));
        let mappings = files.each_ref().map(|file| Mapping::to_read(file, 1 << 20));
        let mut content: Vec<u8> = Vec::new();
        for turn in 0..200usize {
            let (file, mapping) = (&files[turn % 2], &mappings[turn % 2]);
            let lock = EVERY_KIND[turn / 2 % 3];
            lock.take(file.as_raw_fd()).unwrap();
            match (turn / 6 % 3, content.len().checked_sub(1)) {
                (0, Some(last)) => assert_eq!(
                    mapping.byte(last),
                    Some(content[last]),
                    "{mode}, {lock:?}, turn {turn}"
                ),
                (1, Some(_)) => {
                    let mut seen = vec![0; content.len() + 1];
                    let len = file.read_at(&mut seen, 0).unwrap();
                    assert!(seen[..len] == content, "{mode}, {lock:?}, turn {turn}: {len} bytes");
                }
                (_, _) => {
                    let mapped = Mapping::to_read(file, content.len() + 1);
                    for at in (0..content.len()).step_by(997) {
                        assert_eq!(mapped.byte(at), Some(content[at]), "{mode}, turn {turn}");
                    }
                }
            }
            let more = vec![b'a' + (turn % 26) as u8; turn * 37 % 5000 + 1];
            file.write_all_at(&more, content.len() as u64).unwrap();
            content.extend_from_slice(&more);
            lock.give_up(file.as_raw_fd()).unwrap();
        }
    }
}

const RECORD: usize = 16;
const RECORDS: usize = 40;

/// Two processes and two threads of each mount append under one lock, each at the end that lseek(2)
/// returns, and hold locks of other ranges at the same time.
#[test]
fn appends_under_a_lock_overwrite_nothing() {
    for mode in MODES {
        let place = twice_as([mode; 2]).0;
        File::create(place.path("mnt/file")).unwrap();
        let path = |number: usize| place.path(MOUNTS[number % 2]).join("file");
        let open_files: Vec<File> = (0..8).map(|number| open(&path(number))).collect();
        let append = |number: usize| {
            let fd = open_files[number].as_raw_fd();
            let (lock, beside) = match number < 4 {
                true => (Lock::Process(1 << 40, 7), Lock::Process(number as i64, 1)),
                false => (Lock::Description(1 << 40, 7), Lock::Description(number as i64, 1)),
            };
            move || append_records(fd, number as u8, lock, beside)
        };
        let append_alone = |number: usize| {
            let (fd, append) = (open_files[number].as_raw_fd(), append(number));
            forked(move || {
                keep_only(fd);
                append()
            })
        };
        let processes: Vec<i32> = (0..4).map(append_alone).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (4..8).map(|number| scope.spawn(append(number))).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), 0, "{mode}");
            }
        });
        for process in processes {
            assert_eq!(exit_status(process), 0, "{mode}");
        }
        for mount in MOUNTS {
            let seen = fs::read(place.path(mount).join("file")).unwrap();
            assert_eq!(seen.len(), 8 * RECORDS * RECORD, "{mode}");
            let records: BTreeSet<&[u8]> = seen.chunks(RECORD).map(|record| &record[..2]).collect();
            assert_eq!(records.len(), 8 * RECORDS, "{mode}");
        }
    }
}

/// System calls only. 0 if all went well, else which step has failed.
fn append_records(fd: RawFd, number: u8, lock: Lock, beside: Lock) -> i32 {
    for record in 0..RECORDS {
        if beside.take(fd).is_err() || lock.take(fd).is_err() {
            return 1;
        }
        let bytes = [number + 1, record as u8 + 1, b'.', b'.'].repeat(RECORD / 4);
        // SAFETY: the bytes outlive the calls.
        let written = unsafe {
            let end = libc::lseek(fd, 0, libc::SEEK_END);
            if end % RECORD as i64 != 0 {
                return 2;
            }
            libc::pwrite(fd, bytes.as_ptr().cast(), RECORD, end)
        };
        if written != RECORD as isize {
            return 3;
        }
        if lock.give_up(fd).is_err() || beside.give_up(fd).is_err() {
            return 4;
        }
    }
    0
}

const DELIVER: &str = "
import mailbox, sys, time
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    box = mailbox.mbox(path)
    while True:
        try:
            box.lock()
            break
        except mailbox.ExternalClashError:
            time.sleep(0.001)
    box.add(f'From: {who}\\nSubject: {who}-{number}\\n\\ntext\\n')
    box.flush()
    box.unlock()
    box.close()
";

/// Python's mailbox polls for its lock, and appends where the file ends under it.
#[test]
fn a_mailbox_of_two_mounts_loses_no_message() {
    for mode in MODES {
        let place = twice_as([mode; 2]).0;
        let deliverers: Vec<_> = (0..4)
            .map(|who: usize| {
                let path = place.path(MOUNTS[who % 2]).join("mbox");
                let name = format!("deliverer{who}");
                Command::new("python3")
                    .args(["-c", DELIVER])
                    .arg(path)
                    .args([&name, "25"])
                    .spawn()
                    .expect("python3 is there")
            })
            .collect();
        for mut deliverer in deliverers {
            assert!(deliverer.wait().unwrap().success(), "{mode}");
        }
        for mount in MOUNTS {
            let seen = fs::read_to_string(place.path(mount).join("mbox")).unwrap();
            let subjects: BTreeSet<&str> =
                seen.lines().filter_map(|line| line.strip_prefix("Subject: ")).collect();
            assert_eq!(subjects.len(), 100, "{mode}");
        }
    }
}

/// Several processes of one mount hold compatible locks while others of it request the end of the
/// file: taking or releasing one lock does not invalidate another's request.
#[test]
fn locks_of_other_ranges_do_not_hide_the_end() {
    for mode in MODES {
        let place = twice_as([mode; 2]).0;
        let paths = MOUNTS.map(|mount| place.path(mount).join("file"));
        File::create(&paths[0]).unwrap();
        let polled: Vec<File> = (0..2).map(|_| open(&paths[0])).collect();
        let _pollers: Vec<Poller> = polled
            .iter()
            .zip(0i64..)
            .map(|(file, at)| Poller::new(file, Lock::Description(100 + at, 1)))
            .collect();
        let mut files = paths.each_ref().map(|path| open(path));
        for turn in 0..300u64 {
            let file = &mut files[turn as usize % 2];
            flock(file, libc::LOCK_EX).unwrap();
            assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 10 * turn, "{mode}, turn {turn}");
            file.write_all_at(b"0123456789", 10 * turn).unwrap();
            flock(file, libc::LOCK_UN).unwrap();
        }
    }
}
