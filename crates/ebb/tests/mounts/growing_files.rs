//! Files that are read, mapped and written while they grow (decision 25).

use crate::native::{LEN, open, read};
use crate::place::{Ending, Place};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn write_only(place: &Place, name: &str) -> File {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(place.path("mnt").join(name))
        .unwrap()
}

/// The kernel requests `security.capability` once, however often a file is written.
#[test]
fn growing_file_costs_one_request_for_capabilities() {
    let place = Place::new();
    place.mount();
    let file = write_only(&place, "file");
    (0..3).for_each(|at| file.write_all_at(&[7; 4096], at * 4096).unwrap());
    drop(file);
    // RELEASE is asynchronous.
    let mut counts = Default::default();
    for _ in 0..100 {
        let stats = place.ebb(&["stats", "mnt", "--interval", "0", "--json"]).good().json();
        counts = ["CREATE", "WRITE", "RELEASE", "GETXATTR", "FLUSH"]
            .map(|name| stats["mount"]["operations"][name]["count"].as_u64().unwrap_or(0));
        if counts[2] == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(counts, [1, 3, 1, 1, 0]);
    place.umount();
}

/// Records that tell where they are, so that each byte has one right value.
fn record(number: u64) -> [u8; RECORD] {
    let mut bytes = [b'\n'; RECORD];
    bytes[..RECORD - 1].copy_from_slice(format!("{number:06}").as_bytes());
    bytes
}

const RECORD: usize = 7;
const RECORDS: u64 = 4000;
const OVERWRITES: u64 = 1000;

/// Reads by one way from a place in the file: some bytes, or none at its end.
type Way = fn(&File, u64, &mut [u8]) -> usize;

fn by_read(file: &File, at: u64, bytes: &mut [u8]) -> usize {
    file.read_at(bytes, at).unwrap()
}

/// Has the kernel fill its pages, however the file is open.
fn by_sendfile(file: &File, at: u64, bytes: &mut [u8]) -> usize {
    let (mut ends, mut at) = ([0; 2], at as libc::off_t);
    // SAFETY: both calls write to values of this frame; the pipe's ends are owned below.
    let sent = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::sendfile(ends[1], file.as_raw_fd(), &mut at, bytes.len())
    };
    // SAFETY: nothing else owns these descriptors.
    let [mut out, _end] =
        ends.map(|fd| unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) });
    let len = usize::try_from(sent).expect("sendfile(2) of a file works");
    std::io::Read::read_exact(&mut out, &mut bytes[..len]).unwrap();
    len
}

/// Follows a file that grows, as `tail -f` does: acknowledged bytes are there, and each byte is as
/// it was written.
fn follow(file: &File, way: Way, acknowledged: &AtomicU64, over: &AtomicBool) {
    let (mut at, mut bytes) = (0, vec![0; 10_000]);
    while at < RECORDS * RECORD as u64 {
        let all_written = over.load(Ordering::Acquire);
        let least = acknowledged.load(Ordering::Acquire) * RECORD as u64;
        let len = way(file, at, &mut bytes);
        for (index, &byte) in bytes[..len].iter().enumerate() {
            let place = at as usize + index;
            assert_eq!(byte, record((place / RECORD) as u64)[place % RECORD], "byte {place}");
        }
        assert!(
            at + len as u64 >= least.min(at + bytes.len() as u64),
            "{at} and {len} bytes, of {least}"
        );
        assert!(len > 0 || !all_written, "nothing after {at} bytes");
        at += len as u64;
    }
}

fn followed(path: &Path, writer_first: bool, appends: bool) {
    let writer = || match appends {
        true => OpenOptions::new().append(true).create(true).open(path).unwrap(),
        false => OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap(),
    };
    let before = writer_first.then(writer);
    if !writer_first {
        File::create(path).unwrap();
    }
    let readers: [(File, Way); 2] =
        [by_read as Way, by_sendfile].map(|way| (File::open(path).unwrap(), way));
    let writer = before.unwrap_or_else(writer);
    let (acknowledged, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ending = Ending(&over);
        for (reader, way) in &readers {
            scope.spawn(|| follow(reader, *way, &acknowledged, &over));
        }
        // A request for the length makes the kernel learn of an append before the writer does.
        scope.spawn(|| {
            while !over.load(Ordering::Acquire)
                && readers[0].0.metadata().unwrap().len() < RECORDS * RECORD as u64
            {
                std::hint::spin_loop();
            }
        });
        for number in 0..RECORDS {
            std::io::Write::write_all(&mut &writer, &record(number)).unwrap();
            acknowledged.store(number + 1, Ordering::Release);
        }
    });
}

#[test]
fn growing_file_is_followed_byte_by_byte() {
    let place = Place::new();
    place.mount();
    for (name, writer_first, appends) in
        [("a", true, true), ("b", true, false), ("c", false, true), ("d", false, false)]
    {
        followed(&place.path("mnt").join(name), writer_first, appends);
    }
    place.umount();
}

/// After a counter's write was acknowledged, every way of reading shows at least that value.
#[test]
fn growing_file_shows_overwrites_at_once() {
    let place = Place::new();
    place.mount();
    for writer_first in [true, false] {
        fs::remove_file(place.path("mnt/counter")).ok();
        let before = write_only(&place, "counter");
        before.write_all_at(&[0; 8192], 0).unwrap();
        let writer = writer_first.then_some(before);
        let (reader, sender) = (open(&place, "counter"), open(&place, "counter"));
        // SAFETY: a new mapping of a file that is not truncated below it; it is unmapped at the
        // end.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                reader.as_raw_fd(),
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        let writer = writer.unwrap_or_else(|| write_only(&place, "counter"));
        let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let map = map as usize;
        let mapped = |at: u64| {
            // SAFETY: within the mapping, which lives until the threads are done.
            unsafe { ((map + at as usize) as *const u64).read_volatile() }
        };
        let asked = |file: &File, way: Way, at: u64| {
            let mut bytes = [0; 8];
            assert_eq!(way(file, at, &mut bytes), 8);
            u64::from_ne_bytes(bytes)
        };
        let watch = |value: &dyn Fn(u64) -> u64| {
            let mut at = 0;
            loop {
                at = 4096 - at;
                let all_written = over.load(Ordering::Acquire);
                let least = written.load(Ordering::Acquire);
                let seen = value(at);
                assert!(seen >= least, "{seen} after {least} was written");
                if all_written {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            let _ending = Ending(&over);
            scope.spawn(|| watch(&mapped));
            scope.spawn(|| watch(&|at| asked(&reader, by_read, at)));
            scope.spawn(|| watch(&|at| asked(&sender, by_sendfile, at)));
            for number in 1..=OVERWRITES {
                writer.write_all_at(&number.to_ne_bytes(), 0).unwrap();
                writer.write_all_at(&number.to_ne_bytes(), 4096).unwrap();
                written.store(number, Ordering::Release);
            }
        });
        // SAFETY: nothing points into it any more.
        unsafe { libc::munmap(map as *mut libc::c_void, 8192) };
    }
    place.umount();
}

/// Situation: while a file is created and written, others open it to read, to write and to map.
/// Expectation: no open fails, and no write and no store through a mapping is lost, with holes or
/// without.
#[test]
fn growing_file_loses_no_write_and_no_store() {
    let place = Place::new();
    place.mount();
    for round in 0..60_usize {
        let path = place.path("mnt").join(round.to_string());
        let len = if round % 2 == 0 { LEN } else { 1000 };
        // In half of the files behind a hole of whole blocks.
        let behind = len as u64 + if round % 4 < 2 { 10 } else { 300_000 };
        let (made, filled) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let opened = |how: &mut OpenOptions| loop {
                let is_made = made.load(Ordering::Acquire);
                match how.open(&path) {
                    Ok(file) => break file,
                    Err(error) => {
                        assert!(error.kind() == std::io::ErrorKind::NotFound && !is_made, "{error}")
                    }
                }
            };
            // Not by stat(2), which shows the length of a write(2) before the kernel maps it.
            let whole = || {
                while !made.load(Ordering::Acquire) && !filled.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            };
            scope.spawn(|| {
                let _ending = Ending(made);
                let maker = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
                maker.write_all_at(&vec![0; len], 0).unwrap();
                filled.store(true, Ordering::Release);
                (1..=200_u8).for_each(|number| maker.write_all_at(&[number], 0).unwrap());
            });
            scope.spawn(move || {
                let writer = opened(OpenOptions::new().write(true));
                (1..=200_u8).for_each(|number| writer.write_all_at(&[number], behind).unwrap());
            });
            for at in [20, 30] {
                scope.spawn(move || {
                    let both = opened(OpenOptions::new().read(true).write(true));
                    whole();
                    // SAFETY: a new mapping of a page of a file that is not truncated; it is
                    // unmapped at the end.
                    unsafe {
                        let map = libc::mmap(
                            std::ptr::null_mut(),
                            4096,
                            libc::PROT_READ | libc::PROT_WRITE,
                            libc::MAP_SHARED,
                            both.as_raw_fd(),
                            0,
                        );
                        assert_ne!(map, libc::MAP_FAILED);
                        let mut last = 0;
                        for number in 1..=200_u8 {
                            map.cast::<u8>().add(at).write_volatile(number);
                            let seen = map.cast::<u8>().read_volatile();
                            assert!(seen >= last, "round {round}: {seen} after {last}");
                            last = seen;
                            std::thread::sleep(Duration::from_micros(20));
                        }
                        assert_eq!(libc::munmap(map, 4096), 0);
                    }
                });
            }
            scope.spawn(move || {
                (0..20).for_each(|_| drop(read(&opened(OpenOptions::new().read(true)))))
            });
        });
        let seen = fs::read(&path).unwrap();
        assert_eq!([seen[0], seen[20], seen[30], seen[behind as usize]], [200; 4], "round {round}");
    }
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}
