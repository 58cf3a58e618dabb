//! Passthrough reads: the eligible files, and equal results.

use crate::place::{Place, until};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Five blocks, the last one short.
pub const LEN: usize = 300_000;

pub fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// A place whose bucket has these files, with nothing cached.
pub fn holding(place: Place, files: &[(&str, usize)]) -> Place {
    place.mount();
    for (name, len) in files {
        fs::write(place.path("mnt").join(name), content(*len)).unwrap();
    }
    place.umount();
    place.drop_cache();
    place
}

pub fn open(place: &Place, name: &str) -> File {
    File::open(place.path("mnt").join(name)).unwrap()
}

/// Opens with O_DIRECT: the node answers reads, whatever the kernel has cached.
pub fn open_direct(place: &Place, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(place.path("mnt").join(name))
        .unwrap()
}

pub fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let mut len = 0;
    loop {
        match file.read_at(&mut bytes[len..], len as u64).unwrap() {
            0 => break,
            more => len += more,
        }
        if len == bytes.len() {
            bytes.resize(2 * len, 0);
        }
    }
    bytes.truncate(len);
    bytes
}

/// The file that the node has the bytes of a file in.
pub fn store(place: &Place, name: &str) -> PathBuf {
    let explained = place.ebb(&["explain", &format!("mnt/{name}"), "--json"]).good().json();
    place.path("data").join(explained["store_file"].as_str().expect("something of it is cached"))
}

/// Whether reads come from the store file: flips a byte there for a moment.
pub fn is_native(place: &Place, name: &str, file: &File) -> bool {
    is_read_from(&store(place, name), file)
}

pub fn is_read_from(store: &Path, file: &File) -> bool {
    let byte = |file: &File| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    };
    let before = byte(file);
    let store = OpenOptions::new().write(true).open(store).unwrap();
    store.write_all_at(&[!before], 0).unwrap();
    let seen = byte(file);
    store.write_all_at(&[before], 0).unwrap();
    seen == !before
}

/// Opens a fully cached file. The kernel's read-ahead keeps a closed open, and with it the inode's
/// I/O mode, for a moment.
pub fn open_natively(place: &Place, name: &str) -> File {
    for _ in 0..100 {
        let file = open(place, name);
        if is_native(place, name, &file) {
            return file;
        }
        drop(file);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{name} is not read natively");
}

pub fn evicted(place: &Place, name: &str) -> u64 {
    place.ebb(&["evict", &format!("mnt/{name}"), "--json"]).good().json()["bytes"].as_u64().unwrap()
}

/// A mapping of a whole file that stays when the file is closed.
struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(file: &File) -> Mapping {
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping of a file that is not truncated.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping { at, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as this, and the test writes nothing there.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing points into it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Reading a file caches it; an open after that reads past the daemon, all of it and no more, by
/// every system call. A small file does not.
#[test]
fn passthrough_reads_cached_files() {
    let place = holding(Place::over_s3(), &[("file", LEN), ("small", 100_000)]);
    place.mount_with(&["-o", "ro"]);
    let cold = open(&place, "file");
    assert!(read(&cold) == content(LEN));
    // The kernel has one I/O mode per inode at a time.
    let beside = open(&place, "file");
    assert!(read(&beside) == content(LEN) && !is_native(&place, "file", &beside));
    drop((cold, beside));

    let warm = open_natively(&place, "file");
    assert!(read(&warm) == content(LEN));
    assert_eq!(fs::metadata(store(&place, "file")).unwrap().len(), LEN as u64);
    assert!(Mapping::new(&warm).bytes() == content(LEN));
    assert_eq!(warm.metadata().unwrap().len(), LEN as u64);
    // The node's disk requires alignment for these; ebb does not.
    let direct = open_direct(&place, "file");
    let mut odd = vec![0; 12_345];
    direct.read_exact_at(&mut odd, 77_777).unwrap();
    assert!(odd == content(LEN)[77_777..][..12_345]);
    drop((direct, warm));
    let direct = open_direct(&place, "file");
    direct.read_exact_at(&mut odd, 99_999).unwrap();
    assert!(odd == content(LEN)[99_999..][..12_345]);
    drop(direct);

    for _ in 0..2 {
        let small = open(&place, "small");
        assert!(read(&small) == content(100_000) && !is_native(&place, "small", &small));
    }
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

/// With passthrough off, everything is read through the daemon.
#[test]
fn passthrough_off_reads_through_the_daemon() {
    let place = holding(Place::new(), &[("file", LEN)]);
    for flags in [&["-o", "ro", "--passthrough", "off"][..], &["--passthrough", "off"]] {
        place.mount_with(flags);
        for _ in 0..2 {
            let file = open(&place, "file");
            assert!(read(&file) == content(LEN) && !is_native(&place, "file", &file), "{flags:?}");
        }
        place.umount();
        place.drop_cache();
    }
}

/// Situation: a file is open, then only mapped, and is to be evicted. Danger: evicted ranges read
/// as zeros. Expectation: it stays while it is in use, `ebb evict` reports that, and afterwards it
/// is evicted.
#[test]
fn passthrough_file_in_use_is_not_evicted() {
    let place = holding(Place::over_s3(), &[("file", LEN)]);
    place.mount_with(&["-o", "ro"]);
    read(&open(&place, "file"));
    let file = open_natively(&place, "file");
    assert_eq!(evicted(&place, "file"), 0);
    let mapping = Mapping::new(&file);
    drop(file);
    assert_eq!(evicted(&place, "file"), 0);
    assert!(mapping.bytes() == content(LEN));
    // Opened again in between, it is the same file.
    let file = open_natively(&place, "file");
    assert!(read(&file) == content(LEN));
    drop(file);
    assert_eq!(evicted(&place, "file"), 0);
    drop(mapping);
    until("it is evicted", || evicted(&place, "file") == 5 << 16);
    let file = open(&place, "file");
    assert!(read(&file) == content(LEN) && !is_native(&place, "file", &file));
    drop(file);
    place.umount();
}

/// Situation: the daemon dies while a file is open, another one takes over. Danger: the new daemon
/// does not know of the open. Expectation: reads of the open file continue, whatever is evicted.
#[test]
fn passthrough_file_of_a_dead_mount_is_not_evicted() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount_with(&["-o", "ro"]);
    read(&open(&place, "file"));
    let old = open_natively(&place, "file");
    place.kill("mnt");
    assert!(read(&old) == content(LEN));
    place.mount_with(&["-o", "ro"]);
    assert!(read(&open(&place, "file")) == content(LEN));
    assert_eq!(evicted(&place, "file"), 0);
    assert!(read(&old) == content(LEN));
    drop(old);
    until("it is evicted", || evicted(&place, "file") == 5 << 16);
    assert!(read(&open(&place, "file")) == content(LEN));
    place.umount();
}

/// Situation: a block is damaged on the node's disk. Expectation: no program reads it: the first
/// read after a start goes through the node, which verifies the block.
#[test]
fn passthrough_is_not_granted_for_damaged_blocks() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount_with(&["-o", "ro"]);
    read(&open(&place, "file"));
    let store = store(&place, "file");
    place.umount();
    OpenOptions::new().write(true).open(store).unwrap().write_all_at(b"rot", 200_000).unwrap();
    place.mount_with(&["-o", "ro"]);
    let first = open(&place, "file");
    let mut part = [0; 1000];
    first.read_exact_at(&mut part, 0).unwrap();
    drop(first);
    let second = open(&place, "file");
    assert!(!is_native(&place, "file", &second), "most of it was not looked at");
    assert!(read(&second) == content(LEN));
    drop(second);
    let third = open_natively(&place, "file");
    assert!(read(&third) == content(LEN));
    drop(third);
    place.umount();
}

/// Situation: another program replaces the object of a file that is open by passthrough, with a
/// longer and a shorter one, and the node detects it. Expectation: the open file shows the change.
#[test]
fn passthrough_readers_see_replaced_object() {
    for len in [LEN + 100_000, LEN - 100_000] {
        let place = holding(Place::new(), &[("file", LEN)]);
        place.mount_with(&["-o", "ro"]);
        read(&open(&place, "file"));
        let file = open_natively(&place, "file");
        let new: Vec<u8> = content(len).into_iter().map(|byte| !byte).collect();
        fs::write(place.path("new"), &new).unwrap();
        fs::rename(place.path("new"), place.path("backing/file")).unwrap();
        // The node queries the bucket when it needs an object from there.
        OpenOptions::new()
            .write(true)
            .open(store(&place, "file"))
            .unwrap()
            .write_all_at(b"rot", 0)
            .unwrap();
        let direct = open_direct(&place, "file");
        let mut part = [0; 100];
        direct.read_exact_at(&mut part, 0).unwrap();
        assert_eq!(part, new[..100]);
        until("the open file is the new object", || read(&file) == new);
        let again = open_natively(&place, "file");
        assert!(read(&again) == new);
        drop((file, direct, again));
        place.ebb(&["fsck", "mnt"]).good();
        place.umount();
    }
}

/// Situation: another program replaces the object of a file that is open by passthrough, then
/// removes it, and the name is looked up after `--revalidate`. Expectation: the open file shows the
/// new object, also after its removal; the look-up fails.
#[test]
fn passthrough_readers_outlive_removed_object() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount_with(&["-o", "ro", "--revalidate", "1s"]);
    read(&open(&place, "file"));
    let file = open_natively(&place, "file");
    let new: Vec<u8> = content(LEN + 100_000).into_iter().map(|byte| !byte).collect();
    fs::write(place.path("new"), &new).unwrap();
    fs::rename(place.path("new"), place.path("backing/file")).unwrap();
    // No new open: a look-up of the name must suffice.
    let len = || fs::metadata(place.path("mnt/file")).unwrap().len();
    until("the open file is the new object", || len() == new.len() as u64 && read(&file) == new);
    fs::remove_file(place.path("backing/file")).unwrap();
    until("the name is gone", || !place.path("mnt/file").exists());
    assert!(read(&file) == new);
    drop(file);
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

/// Granted files cannot be evicted, so they take at most half of the cache; the rest of the cache
/// keeps working.
#[test]
fn a_cache_is_not_lent_out_as_a_whole() {
    const MIB: usize = 1 << 20;
    let place = holding(Place::new(), &[("one", 6 * MIB), ("two", 6 * MIB), ("three", 12 * MIB)]);
    place.mount_with(&["-o", "ro", "--cache-size", "16M"]);
    read(&open(&place, "one"));
    let one = open_natively(&place, "one");
    read(&open(&place, "two"));
    let two = open(&place, "two");
    assert!(!is_native(&place, "two", &two));
    // Larger than the space left.
    let expected = content(12 * MIB);
    for _ in 0..3 {
        assert!(read(&open(&place, "three")) == expected);
    }
    assert!(read(&one) == content(6 * MIB) && read(&two) == content(6 * MIB));
    let cached =
        place.ebb(&["status", "mnt", "--json"]).good().json()["cached_bytes"].as_u64().unwrap();
    // Parallel downloads make room independently.
    assert!(cached <= 24 << 20, "{cached}");
    drop((one, two));
    until("there is room again", || {
        read(&open_direct(&place, "two"));
        is_native(&place, "two", &open(&place, "two"))
    });
    place.umount();
}

/// Situation: the kernel remounts the mount writable, which the node is not. Danger: a read-write
/// open maps the store file. Expectation: EROFS.
#[test]
fn a_remount_opens_nothing() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount_with(&["-o", "ro"]);
    read(&open(&place, "file"));
    let file = open_natively(&place, "file");
    let point = std::ffi::CString::new(place.text("mnt")).unwrap();
    let flags = libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: the string ends in NUL and outlives the call; the other pointers are unused.
    assert_eq!(
        unsafe {
            libc::mount(std::ptr::null(), point.as_ptr(), std::ptr::null(), flags, std::ptr::null())
        },
        0
    );
    for how in [OpenOptions::new().read(true).write(true), OpenOptions::new().write(true)] {
        assert_eq!(how.open(place.path("mnt/file")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    assert!(read(&file) == content(LEN));
    drop(file);
    place.umount();
}

/// Opens and closes race with evictions and reads through the node: no open fails, and all reads
/// agree.
#[test]
fn opens_race() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount_with(&["-o", "ro"]);
    let (over, expected) = (AtomicBool::new(false), content(LEN));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let (place, expected) = (&place, &expected);
                scope.spawn(move || {
                    for round in 0..300 {
                        let direct = if (reader + round) % 7 == 0 { libc::O_DIRECT } else { 0 };
                        let file = OpenOptions::new()
                            .read(true)
                            .custom_flags(direct)
                            .open(place.path("mnt/file"))
                            .unwrap();
                        assert!(read(&file) == *expected, "reader {reader}, round {round}");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                evicted(&place, "file");
            }
        });
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|reader| reader.unwrap());
    });
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
}

/// Situation: a file is open by passthrough, and the daemon dies. Danger: the kernel rejects every
/// other open of the file that does not name the same store file. Expectation: reads continue
/// without a daemon, and opens continue with the next one.
#[test]
fn passthrough_reads_outlive_the_daemon() {
    let place = holding(Place::new(), &[("file", LEN), ("other", LEN)]);
    place.mount_with(&["-o", "ro"]);
    fs::read(place.path("mnt/file")).unwrap();
    let native = open(&place, "file");
    assert!(is_native(&place, "file", &native));
    let ordinary = open(&place, "other");
    assert_eq!(read(&ordinary), content(LEN));
    // The next daemon takes unforced data for absent, yet the kernel uses that store file.
    let (file, other) = (store(&place, "file"), store(&place, "other"));
    let record = place.record("mnt");
    place.kill_daemon("mnt");
    assert_eq!(read(&native), content(LEN));
    let next = open(&place, "file");
    until("another one serves", || place.record("mnt").daemon != record.daemon);
    assert!(is_read_from(&file, &next) && is_read_from(&file, &native));
    assert_eq!((read(&next), read(&open_direct(&place, "file"))), (content(LEN), content(LEN)));
    assert!(!is_read_from(&other, &ordinary) && !is_read_from(&other, &open(&place, "other")));
    assert_eq!(read(&ordinary), content(LEN));
    drop((native, next));
    assert_eq!(read(&open(&place, "file")), content(LEN));
    drop(ordinary);
    place.umount();
}
