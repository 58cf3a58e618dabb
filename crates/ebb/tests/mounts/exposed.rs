//! Passthrough files that others write: everybody sees one file, and stores through mappings, of
//! which the node gets no notification, are never lost.

use crate::data::indices;
use crate::native::{
    LEN, content, evicted, holding, is_native, open, open_direct, open_natively, read, store,
};
use crate::place::{Place, until};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

fn open_to_write(place: &Place, name: &str) -> File {
    OpenOptions::new().write(true).open(place.path("mnt").join(name)).unwrap()
}

fn open_to_store(place: &Place, name: &str) -> File {
    OpenOptions::new().read(true).write(true).open(place.path("mnt").join(name)).unwrap()
}

/// A shared mapping that can be stored to, and stays when the file is closed.
struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: usize) -> Mapping {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping; bytes behind the end of the file are not touched.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { at: at.cast(), len }
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: within the mapping, which has no references into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(at), bytes.len()) };
    }

    fn load(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len);
        let mut bytes = vec![0; range.len()];
        // SAFETY: within the mapping, and into memory of its own.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at.add(range.start), bytes.as_mut_ptr(), range.len())
        };
        bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn is_exposed(place: &Place, name: &str) -> bool {
    place.ebb(&["explain", &format!("mnt/{name}"), "--json"]).good().json()["exposed"]
        .as_bool()
        .unwrap()
}

/// The bytes that sendfile(2) transfers.
fn sent(file: &File, at: i64, len: usize) -> Vec<u8> {
    let (mut from, to) =
        (at, std::env::temp_dir().join(format!("ebb-sent-{}-{at}", std::process::id())));
    let target = File::create_new(&to).unwrap();
    // SAFETY: the offset is this function's, and the descriptors are open.
    let done = unsafe { libc::sendfile(target.as_raw_fd(), file.as_raw_fd(), &mut from, len) };
    let bytes = fs::read(&to).unwrap();
    fs::remove_file(to).unwrap();
    assert_eq!(done, len as isize);
    bytes
}

fn allocate(file: &File, mode: i32, offset: usize, len: usize) {
    // SAFETY: fallocate takes plain integers, and the descriptor is open.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn zero(model: &mut [u8], offset: usize, len: usize) {
    let end = model.len().min(offset + len);
    model[offset.min(end)..end].fill(0);
}

fn assert_is(file: &File, model: &[u8], what: &str) {
    let found = read(file);
    let differs = found.iter().zip(model).position(|(a, b)| a != b);
    assert!(
        found == model,
        "{what}: {} bytes, not {}; first difference at {differs:?}",
        found.len(),
        model.len()
    );
    assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "{what}");
}

/// New files and cached files are read past the daemon on the same mount.
#[test]
fn writable_mounts_read_past_the_daemon() {
    let place = holding(Place::over_s3(), &[("cold", LEN)]);
    place.mount();
    fs::write(place.path("mnt/new"), content(LEN)).unwrap();
    let new = open_natively(&place, "new");
    assert!(read(&new) == content(LEN));
    assert!(read(&open(&place, "cold")) == content(LEN));
    let cold = open_natively(&place, "cold");
    assert!(read(&cold) == content(LEN));
    drop((new, cold));
    // A file opened for writing before any reader does not use passthrough.
    let writer = open_to_store(&place, "new");
    let reader = open(&place, "new");
    if !is_native(&place, "new", &reader) {
        assert!(!is_exposed(&place, "new"));
    }
    drop((writer, reader));
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    assert!(fs::read(place.path("mnt/new")).is_err());
}

/// Situation: a user other than the owner writes by passthrough to a file with set-id bits, so no
/// write(2) reaches the daemon. Expectation: the bits are removed.
#[test]
fn passthrough_write_removes_set_id_bits() {
    let place = Place::new();
    place.mount_with(&["-o", "allow_other"]);
    let path = place.path("mnt/file");
    fs::write(&path, content(LEN)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
    let reader = open_natively(&place, "file");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o6777);
    let script = "open F, '+<', $ARGV[0] or die $!; syswrite(F, 'x') == 1 or die $!";
    let mut writer = std::process::Command::new("perl");
    assert!(writer.args(["-e", script]).arg(&path).uid(2).gid(2).status().unwrap().success());
    assert_eq!(mode(), 0o777);
    drop(reader);
    place.umount();
}

/// Changes a file in every possible way while it is read by passthrough: the reader sees each
/// change when it returns, up to the new end and no further.
#[test]
fn passthrough_readers_see_changes_of_others() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount();
    read(&open(&place, "file"));
    let reader = open_natively(&place, "file");
    let writer = open_to_write(&place, "file");
    let mut model = content(LEN);
    let check = |model: &[u8], what: &str| {
        assert_is(&reader, model, what);
        assert_is(&open_direct(&place, "file"), model, what);
        assert_eq!(
            fs::metadata(store(&place, "file")).unwrap().len(),
            model.len() as u64,
            "{what}"
        );
    };
    check(&model, "as it was");
    writer.write_all_at(b"overwritten", 70_000).unwrap();
    model[70_000..][..11].copy_from_slice(b"overwritten");
    check(&model, "overwritten");
    writer.write_all_at(b"far behind", 500_000).unwrap();
    model.resize(500_000, 0);
    model.extend_from_slice(b"far behind");
    check(&model, "extended over a gap");
    writer.set_len(123_456).unwrap();
    model.truncate(123_456);
    check(&model, "cut");
    writer.set_len(400_000).unwrap();
    model.resize(400_000, 0);
    check(&model, "extended");
    let mut appender = OpenOptions::new().append(true).open(place.path("mnt/file")).unwrap();
    appender.write_all(&content(200_000)).unwrap();
    model.extend_from_slice(&content(200_000));
    check(&model, "appended to");
    allocate(&writer, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 10_000, 200_000);
    zero(&mut model, 10_000, 200_000);
    check(&model, "punched");
    allocate(&writer, libc::FALLOC_FL_ZERO_RANGE, 450_000, 300_000);
    model.resize(750_000, 0);
    zero(&mut model, 450_000, 300_000);
    check(&model, "zeroed");
    allocate(&writer, 0, 700_000, 100_000);
    model.resize(800_000, 0);
    check(&model, "allocated");
    let (mut from, mut to) = (400_000, 120_000);
    // SAFETY: the offsets are this function's, and the descriptors are open.
    let copied = unsafe {
        libc::copy_file_range(
            open(&place, "file").as_raw_fd(),
            &mut from,
            writer.as_raw_fd(),
            &mut to,
            50_000,
            0,
        )
    };
    assert_eq!(copied, 50_000);
    model.copy_within(400_000..450_000, 120_000);
    check(&model, "copied within");
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(place.path("mnt/file"))
        .unwrap()
        .write_all(&content(5000))
        .unwrap();
    model = content(5000);
    check(&model, "written anew");
    assert!(!is_exposed(&place, "file"), "nobody could map it to store");
    drop((reader, writer, appender));
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    assert!(fs::read(place.path("backing/file")).unwrap() == model);
}

/// Situation: a file is read by passthrough, and others append to it until it is larger than the
/// cache. Danger: it cannot be evicted, so there is no room. Expectation: it grows, and the rest of
/// the cache keeps working.
#[test]
fn passthrough_file_may_grow_beyond_the_cache() {
    const MIB: usize = 1 << 20;
    let place = holding(Place::new(), &[("other", 12 * MIB)]);
    place.mount_with(&["--cache-size", "32M", "--dirty-size", "16M", "--space-timeout", "5s"]);
    fs::write(place.path("mnt/file"), content(12 * MIB)).unwrap();
    let reader = open_natively(&place, "file");
    let mut appender = OpenOptions::new().append(true).open(place.path("mnt/file")).unwrap();
    let mut model = content(12 * MIB);
    for _ in 0..40 {
        appender.write_all(&content(MIB)).unwrap();
        model.extend_from_slice(&content(MIB));
    }
    assert_is(&reader, &model, "grown");
    assert!(fs::read(place.path("mnt/other")).unwrap() == content(12 * MIB));
    drop((reader, appender));
    until("it can be evicted", || {
        place.ebb(&["flush", "mnt"]).good().status == 0 && evicted(&place, "file") > 0
    });
    assert!(fs::read(place.path("mnt/file")).unwrap() == model);
    place.umount();
}

/// Situation: a file is read by passthrough, and a process maps it for writing. Danger: the node
/// gets no notification of stores. Expectation: everybody sees them at once; the file is not
/// evicted while it is mapped; afterwards the stores are found, and go to the bucket.
#[test]
fn mapping_stores_show_at_once_and_reach_the_bucket() {
    let place = holding(Place::over_s3(), &[("file", LEN)]);
    place.mount();
    read(&open(&place, "file"));
    let reader = open_natively(&place, "file");
    let storer = open_to_store(&place, "file");
    assert!(is_exposed(&place, "file"));
    let mapping = Mapping::new(&storer, LEN);
    let mut model = content(LEN);
    let mut store = |at: usize, bytes: &[u8]| {
        mapping.store(at, bytes);
        model[at..][..bytes.len()].copy_from_slice(bytes);
        model.clone()
    };
    let model = store(100_000, b"stored");
    assert_eq!(sent(&storer, 100_000, 6), b"stored", "by sendfile");
    for (file, what) in [
        (&reader, "natively"),
        (&storer, "through the node"),
        (&open_direct(&place, "file"), "directly"),
    ] {
        assert_is(file, &model, what);
    }
    storer.write_all_at(b"written", 200_000).unwrap();
    assert_eq!(mapping.load(200_000..200_007), b"written");
    store(200_000, b"written");
    // The bucket gets the stored bytes while all have the file open.
    place.ebb(&["flush", "mnt"]).good();
    let before = storer.metadata().unwrap().modified().unwrap();
    store(66_000, b"more");
    assert_eq!(sent(&storer, 66_000, 4), b"more", "by sendfile");
    let model = store(66_000, b"MORE");
    until("sendfile sends what was stored", || sent(&storer, 66_000, 4) == b"MORE");
    storer.sync_all().unwrap();
    drop((reader, storer));
    assert_eq!(evicted(&place, "file"), 0);
    // A new open, also for storing, uses the same file.
    let again = open_to_store(&place, "file");
    assert_is(&again, &model, "opened again");
    let other = Mapping::new(&again, LEN);
    other.store(299_999, b"!");
    assert_eq!(mapping.load(299_999..LEN), b"!");
    drop((again, other));
    let model = store(299_999, b"!");
    assert!(is_exposed(&place, "file"));
    drop(mapping);
    until("nobody can store into it", || !is_exposed(&place, "file"));
    assert!(fs::metadata(place.path("mnt/file")).unwrap().modified().unwrap() > before);
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["fsck", "mnt"]).good();
    until("it is evicted", || evicted(&place, "file") == 5 << 16);
    assert_is(&open(&place, "file"), &model, "from the bucket");
    place.umount();
}

/// O_SYNC of a writer while others read by passthrough: the kernel leaves the forcing to the mount.
#[test]
fn synchronous_writes_are_forced() {
    let place = Place::new();
    place.mount_with(&["--commit-interval", "1h", "--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), content(LEN)).unwrap();
    let reader = open_natively(&place, "file");
    let synced = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(place.path("mnt/file"))
        .unwrap();
    synced.write_all_at(b"synced", 0).unwrap();
    let (written, durable) = indices(&place);
    assert!(durable >= written, "{durable} of {written} are durable");
    drop((reader, synced));
    place.umount();
}

/// Holes have no checksums. Bytes stored into them count all the same, and so do zeros written over
/// them later.
#[test]
fn holes_can_be_stored_into() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount();
    read(&open(&place, "file"));
    let reader = open_natively(&place, "file");
    let storer = open_to_store(&place, "file");
    let punched = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    storer.set_len(1_000_000).unwrap();
    let mut model = content(LEN);
    model.resize(1_000_000, 0);
    let mapping = Mapping::new(&storer, 1_000_000);
    allocate(&storer, punched, 65_536, 131_072);
    zero(&mut model, 65_536, 131_072);
    for (at, bytes) in [(70_000, b"in a hole"), (600_000, b"at behind"), (800_000, b"zeroed...")] {
        mapping.store(at, bytes);
        model[at..][..9].copy_from_slice(bytes);
    }
    assert_is(&reader, &model, "stored");
    assert_is(&storer, &model, "stored");
    // A write into a part of such a block keeps the rest of it.
    storer.write_all_at(b"next", 600_100).unwrap();
    model[600_100..][..4].copy_from_slice(b"next");
    allocate(&storer, punched, 790_000, 100_000);
    zero(&mut model, 790_000, 100_000);
    // SAFETY: lseek takes plain integers.
    assert_eq!(unsafe { libc::lseek(storer.as_raw_fd(), 70_000, libc::SEEK_DATA) }, 70_000);
    assert_is(&reader, &model, "written and punched");
    assert_is(&storer, &model, "written and punched");
    drop((reader, storer, mapping));
    until("nobody can store into it", || !is_exposed(&place, "file"));
    assert_is(&open(&place, "file"), &model, "compared");
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    assert!(fs::read(place.path("backing/file")).unwrap() == model);
}

/// Situation: the daemon dies, or the whole mount, while a process stores through a mapping.
/// Expectation: bytes stored before, during and after that are in the file.
#[test]
fn mappings_outlive_daemons_and_mounts() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount();
    read(&open(&place, "file"));
    let reader = open_natively(&place, "file");
    let storer = open_to_store(&place, "file");
    let mapping = Mapping::new(&storer, LEN);
    mapping.store(0, b"before");
    let record = place.record("mnt");
    place.kill_daemon("mnt");
    mapping.store(100_000, b"meanwhile");
    until("another one serves", || place.record("mnt").daemon != record.daemon);
    let mut model = content(LEN);
    model[..6].copy_from_slice(b"before");
    model[100_000..][..9].copy_from_slice(b"meanwhile");
    assert!(is_exposed(&place, "file"));
    assert_is(&reader, &model, "natively");
    assert_is(&storer, &model, "through the node");
    assert_is(&open_to_store(&place, "file"), &model, "opened anew");
    // The new daemon knows which opens must see this.
    storer.set_len(350_000).unwrap();
    model.resize(350_000, 0);
    assert_is(&reader, &model, "extended");
    assert_eq!(evicted(&place, "file"), 0);
    place.kill("mnt");
    mapping.store(200_000, b"afterwards");
    model[200_000..][..10].copy_from_slice(b"afterwards");
    place.mount();
    assert!(is_exposed(&place, "file"));
    assert_is(&open(&place, "file"), &model, "mounted anew");
    mapping.store(250_000, b"still");
    model[250_000..][..5].copy_from_slice(b"still");
    assert_is(&open(&place, "file"), &model, "mounted anew");
    drop((reader, storer, mapping));
    until("nobody can store into it", || !is_exposed(&place, "file"));
    place.ebb(&["fsck", "mnt"]).good();
    place.umount();
    assert!(fs::read(place.path("backing/file")).unwrap() == model);
}

/// Small numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// All ways to change and to read one file, in any order, beside a model of it; now and then the
/// daemon dies or everything is flushed and evicted.
fn changed_at_random(place: &Place, seed: u64, rounds: usize) {
    const MOST: usize = 1 << 20;
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut model = content(MOST / 2);
    fs::write(place.path("mnt/random"), &model).unwrap();
    let reader = open_natively(place, "random");
    let mut storer = open_to_store(place, "random");
    let mut mapping = Mapping::new(&storer, MOST);
    let punched = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for round in 0..rounds {
        let what = dice.below(100);
        let (at, len) = (dice.below(MOST - 100_000), 1 + dice.below(100_000));
        let bytes: Vec<u8> =
            content(len).into_iter().map(|byte| byte.wrapping_add(round as u8) | 1).collect();
        match what {
            0..30 => {
                storer.write_all_at(&bytes, at as u64).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..][..len].copy_from_slice(&bytes);
            }
            30..70 => {
                let at = at.min(model.len());
                let len = len.min(model.len() - at);
                mapping.store(at, &bytes[..len]);
                model[at..][..len].copy_from_slice(&bytes[..len]);
            }
            70..76 => {
                storer.set_len(at as u64).unwrap();
                model.resize(at, 0);
            }
            76..84 => {
                allocate(&storer, punched, at, len);
                zero(&mut model, at, len);
            }
            84..86 => storer.sync_all().unwrap(),
            86..88 => drop(place.ebb(&["flush", "mnt"]).good()),
            88..90 => assert_eq!(evicted(place, "random"), 0),
            90..94 => {
                storer = open_to_store(place, "random");
                mapping = Mapping::new(&storer, MOST);
            }
            94..96 => {
                storer.seek(SeekFrom::Start(at as u64)).unwrap();
                storer.write_all(&bytes).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..][..len].copy_from_slice(&bytes);
            }
            96 if round % 4 == 0 => {
                let record = place.record("mnt");
                place.kill_daemon("mnt");
                until("another one serves", || place.record("mnt").daemon != record.daemon);
            }
            _ => {
                assert!(mapping.load(0..model.len()) == model, "seed {seed}, round {round}: mapped")
            }
        }
        let said = format!("seed {seed}, round {round}, after {what} at {at}, {len} bytes");
        assert_is(&reader, &model, &format!("{said}: natively"));
        if round % 3 == 0 {
            assert_is(&storer, &model, &format!("{said}: through the node"));
        }
    }
    drop((reader, storer, mapping));
    until("nobody can store into it", || !is_exposed(place, "random"));
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["fsck", "mnt"]).good();
    assert!(fs::read(place.path("backing/random")).unwrap() == model, "seed {seed}: in the bucket");
    fs::remove_file(place.path("mnt/random")).unwrap();
}

#[test]
fn everybody_sees_one_file() {
    let seeds = std::env::var("EBB_SEEDS")
        .map_or(vec![1, 2], |seeds| seeds.split(',').map(|seed| seed.parse().unwrap()).collect());
    let rounds = std::env::var("EBB_ROUNDS").map_or(300, |rounds| rounds.parse().unwrap());
    let place = Place::new();
    place.mount();
    assert!(Path::new(&place.path("mnt")).exists());
    for seed in seeds {
        changed_at_random(&place, seed, rounds);
    }
    place.umount();
}

/// Opens of all kinds race each other: in any order none fails, and all see the bytes that one has
/// written.
#[test]
fn opens_of_all_kinds_race() {
    let place = holding(Place::new(), &[("file", LEN)]);
    place.mount();
    let path = place.path("mnt/file");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                for round in 0..150_u32 {
                    let kind = (u32::from(thread) + round) % 5;
                    let mut how = OpenOptions::new();
                    how.read(kind != 1).write(kind == 1 || kind == 2);
                    if kind == 3 {
                        how.custom_flags(libc::O_DIRECT);
                    }
                    let file =
                        how.open(path).unwrap_or_else(|error| panic!("{thread}, {round}: {error}"));
                    let mark = [thread + 1, round as u8];
                    let at = 1000 * usize::from(thread);
                    match kind {
                        1 => file.write_all_at(&mark, at as u64).unwrap(),
                        2 => Mapping::new(&file, LEN).store(at, &mark),
                        _ => {}
                    }
                    if matches!(kind, 1 | 2) {
                        drop(file);
                        let mut found = [0; 2];
                        File::open(path).unwrap().read_exact_at(&mut found, at as u64).unwrap();
                        assert_eq!(found, mark, "{thread}, {round}: kind {kind}");
                    }
                }
            });
        }
    });
    until("nobody can store into it", || !is_exposed(&place, "file"));
    place.ebb(&["fsck", "mnt"]).good();
    let seen = read(&open(&place, "file"));
    place.umount();
    assert!(fs::read(place.path("backing/file")).unwrap() == seen);
}
