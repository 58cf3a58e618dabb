//! Two mounts of one volume with `--consistency close-to-open`: an open sees all data closed before
//! on the other mount, and an open file never shows a state that did not exist.

use crate::detached::serve;
use crate::locks::{NONE, WRITE, open, record, set};
use crate::place::{Ending, Place};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE_BYTES: usize = 4096;

/// One volume at `mnt` and `mnt2`.
fn twice() -> Place {
    twice_as(["close-to-open"; 2]).0
}

/// With these modes. Returns the node and its address too.
pub fn twice_as(modes: [&str; 2]) -> (Place, usize, String) {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    for ((mountpoint, data), mode) in
        [("mnt", "client"), ("mnt2", "client2")].into_iter().zip(modes)
    {
        let url = format!("ebb://{address}/volume");
        place.ebb(&["mount", &url, mountpoint, "--data", data, "--consistency", mode]).good();
    }
    (place, node, address)
}

#[test]
fn a_mount_says_how_consistent_it_is() {
    let place = Place::new();
    place.mount_with(&["--consistency", "close-to-open"]);
    fs::write(place.path("mnt/file"), "x").unwrap();
    for args in [["status", "mnt"], ["explain", "mnt/file"]] {
        let said = place.ebb(&args).good().out;
        assert!(said.contains("consistency close-to-open"), "{said}");
        let json = place.ebb(&[&args[..], &["--json"]].concat()).good().json();
        assert_eq!(json["mount"]["consistency"], "close-to-open");
    }
    place.umount();
    place.mount();
    assert_eq!(
        place.ebb(&["status", "mnt", "--json"]).good().json()["mount"]["consistency"],
        "strong"
    );
    place.umount();
}

/// The mounts take turns to write a file and close it, in every way that there is (O-40), and the
/// other opens and reads it. Both also have it open all the time, so that there are always old
/// pages.
#[test]
fn close_to_open_shows_closed_writes() {
    let place = twice();
    let paths = ["mnt/file", "mnt2/file"].map(|name| place.path(name));
    let mut content = vec![0; 3 * PAGE_BYTES];
    fs::write(&paths[0], &content).unwrap();
    let old = [open(&paths[0]), open(&paths[1])];
    for round in 0..2000usize {
        let (here, there) = (round % 2, 1 - round % 2);
        let stamp = (round / 251 + round) as u8 | 1;
        let at = round * 97 % content.len();
        match round % 6 {
            // Overwrites existing bytes.
            0 | 1 => {
                let end = content.len().min(at + 5000);
                content[at..end].fill(stamp);
                OpenOptions::new()
                    .write(true)
                    .open(&paths[here])
                    .unwrap()
                    .write_all_at(&content[at..end], at as u64)
                    .unwrap();
            }
            2 => {
                content.extend_from_slice(&[stamp; 100]);
                OpenOptions::new()
                    .append(true)
                    .open(&paths[here])
                    .unwrap()
                    .write_all(&[stamp; 100])
                    .unwrap();
            }
            // A new, shorter content.
            3 if round % 90 == 3 => {
                content = vec![stamp; PAGE_BYTES + round % 500];
                fs::write(&paths[here], &content).unwrap();
            }
            3 => {
                content.truncate(content.len() - 50);
                OpenOptions::new()
                    .write(true)
                    .open(&paths[here])
                    .unwrap()
                    .set_len(content.len() as u64)
                    .unwrap();
            }
            // Through a mapping.
            4 => {
                let file = open(&paths[here]);
                Mapped::of(&file).set(7, stamp);
                content[7] = stamp;
            }
            _ => {
                content[at] = stamp;
                old[here].write_all_at(&[stamp], at as u64).unwrap();
            }
        }
        let seen = fs::read(&paths[there]).unwrap();
        assert!(seen == content, "round {round}: {} bytes of {}", seen.len(), content.len());
        // And where it was written.
        if round % 7 == 0 {
            assert!(fs::read(&paths[here]).unwrap() == content, "round {round}");
        }
    }
}

/// Each mount has its own mode: the strong one sees writes of the other at once, also in a file
/// that it has open; the other one sees writes when it opens.
#[test]
fn a_strong_mount_beside_it_stays_strong() {
    let (place, ..) = twice_as(["strong", "close-to-open"]);
    let paths = ["mnt/file", "mnt2/file"].map(|name| place.path(name));
    fs::write(&paths[0], [0; 100]).unwrap();
    let (strong, weak) = (open(&paths[0]), open(&paths[1]));
    let mut seen = [0; 100];
    for round in 1..200u8 {
        weak.write_all_at(&[round; 100], 0).unwrap();
        strong.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [round; 100]);
        strong.write_all_at(&[round + 1; 50], 50).unwrap();
        assert_eq!(fs::read(&paths[1]).unwrap()[50..], [round + 1; 50]);
    }
}

/// Situation: a mount that was alone has a directory open when another one comes, and reads it
/// again. Danger: the kernel still caches the listing, but gets no notification of changes.
/// Expectation: each reading shows the current entries.
#[test]
fn a_directory_that_was_opened_alone_is_read_anew() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let mount = |mountpoint: &str, data: &str| {
        let volume = format!("ebb://{address}/volume");
        place
            .ebb(&["mount", &volume, mountpoint, "--data", data, "--consistency", "close-to-open"])
            .good();
    };
    mount("mnt", "client");
    fs::create_dir(place.path("mnt/dir")).unwrap();
    let path = std::ffi::CString::new(place.text("mnt/dir")).unwrap();
    // SAFETY: the path lives for the call, and the directory is closed once, below.
    let dir = unsafe { libc::opendir(path.as_ptr()) };
    assert!(!dir.is_null());
    let count = || {
        // SAFETY: it is open.
        unsafe {
            libc::rewinddir(dir);
            std::iter::from_fn(|| libc::readdir64(dir).as_ref()).count() - 2
        }
    };
    assert_eq!(count(), 0);
    mount("mnt2", "client2");
    for names in 1..5 {
        assert_eq!(count(), names - 1);
        fs::write(place.path("mnt2/dir").join(names.to_string()), "").unwrap();
        assert_eq!(count(), names);
    }
    // SAFETY: it is open, and not used again.
    unsafe { libc::closedir(dir) };
    place.umount_at("mnt2");
    place.umount();
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// The node dies between a close and the open that must see it, and is started again.
#[test]
fn close_to_open_shows_closed_writes_after_a_node_restart() {
    let (mut place, mut node, address) = twice_as(["close-to-open"; 2]);
    let paths = ["mnt/file", "mnt2/file"].map(|name| place.path(name));
    fs::write(&paths[0], [b'0'; 100]).unwrap();
    let kept = File::open(&paths[1]).unwrap();
    for round in b'1'..b'9' {
        let mut seen = [0; 100];
        kept.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(fs::read(&paths[1]).unwrap(), [round - 1; 100]);
        fs::write(&paths[0], [round; 100]).unwrap();
        place.signal(node, libc::SIGKILL);
        (node, _) = serve(&mut place, &address);
        assert_eq!(fs::read(&paths[1]).unwrap(), [round; 100]);
    }
}

/// Readers have the file open all the time, while its pages are rewritten and added. They may see
/// old pages, and no zeros; on the other mount no page that was never written. (On the writing
/// mount a page is read while it is being filled, as on a disk.)
#[test]
fn open_file_shows_only_states_that_existed() {
    let place = twice();
    fs::write(place.path("mnt/file"), [1; PAGE_BYTES]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (name, whole) in [("mnt/file", false), ("mnt2/file", true), ("mnt2/file", true)] {
            let (path, done) = (place.path(name), &done);
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                let mut seen = vec![0; 64 * PAGE_BYTES];
                let mut longest = 0;
                while !done.load(Ordering::Relaxed) {
                    let len = file.read_at(&mut seen, 0).unwrap();
                    assert!(
                        len >= longest && len.is_multiple_of(PAGE_BYTES),
                        "{len} after {longest}"
                    );
                    longest = len;
                    for (number, page) in seen[..len].chunks(PAGE_BYTES).enumerate() {
                        let good =
                            page.iter().all(|byte| *byte != 0 && (!whole || *byte == page[0]));
                        assert!(good, "page {number} of {len} bytes begins with {:?}", &page[..8]);
                    }
                }
            });
        }
        let _ending = Ending(&done);
        let writer = open(&place.path("mnt/file"));
        let mut pages = 1;
        for round in 0..2000usize {
            let page = if round % 40 == 0 { pages } else { round * 31 % pages };
            pages = pages.max(page + 1);
            writer
                .write_all_at(&[round as u8 | 1; PAGE_BYTES], (page * PAGE_BYTES) as u64)
                .unwrap();
        }
    });
}

/// Both mounts append to one log, which is being read on both. Each result of reading is a prefix
/// of the final log.
#[test]
fn a_log_is_read_while_it_is_written() {
    let place = twice();
    let paths = ["mnt/log", "mnt2/log"].map(|name| place.path(name));
    fs::write(&paths[0], "begin\n").unwrap();
    let done = AtomicBool::new(false);
    let seen: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let readers: Vec<_> = paths
            .iter()
            .map(|path| {
                let done = &done;
                scope.spawn(move || {
                    let file = File::open(path).unwrap();
                    let mut seen = vec![0; 1 << 20];
                    let mut longest = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let len = file.read_at(&mut seen, 0).unwrap();
                        assert!(!seen[..len].contains(&0), "zeros in {len} bytes");
                        assert!(seen[..len].starts_with(&longest), "what was read is another now");
                        longest = seen[..len].to_vec();
                    }
                    longest
                })
            })
            .collect();
        let writers = paths.iter().enumerate().map(|(writer, path)| {
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                for number in 0..600 {
                    file.write_all(format!("{writer}-{number:06}\n").as_bytes()).unwrap();
                }
            })
        });
        {
            let _ending = Ending(&done);
            writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
        }
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let whole = fs::read(&paths[1]).unwrap();
    assert_eq!(whole.len(), 6 + 2 * 600 * 9);
    assert!(seen.iter().all(|seen| whole.starts_with(seen)));
    assert_eq!(fs::read(&paths[0]).unwrap(), whole);
}

/// A counter in a file that both mounts have open all the time and read through the cache: with the
/// lock each sees the other's last write.
#[test]
fn lock_shows_writes_of_others() {
    let place = twice();
    fs::write(place.path("mnt/file"), 0u64.to_le_bytes()).unwrap();
    std::thread::scope(|scope| {
        for name in ["mnt/file", "mnt2/file"] {
            let path = place.path(name);
            scope.spawn(move || {
                let file = open(&path);
                for _ in 0..200 {
                    let mut count = [0; 8];
                    record(file.as_raw_fd(), libc::F_SETLKW, WRITE, 0, 0).unwrap();
                    file.read_exact_at(&mut count, 0).unwrap();
                    file.write_all_at(&(u64::from_le_bytes(count) + 1).to_le_bytes(), 0).unwrap();
                    set(&file, NONE, 0, 0).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), 400u64.to_le_bytes());
}

/// write(2) sends the bytes that it was given, not the pages that they are in: two mounts that
/// write to different bytes of one page both keep theirs.
#[test]
fn writers_of_one_page_keep_their_bytes() {
    let place = twice();
    fs::write(place.path("mnt/file"), [b'.'; PAGE_BYTES]).unwrap();
    let files = ["mnt/file", "mnt2/file"].map(|name| open(&place.path(name)));
    let mut page = vec![0; PAGE_BYTES];
    // Both have the page.
    files.iter().for_each(|file| file.read_exact_at(&mut page, 0).unwrap());
    std::thread::scope(|scope| {
        for (writer, file) in files.iter().enumerate() {
            scope.spawn(move || {
                for at in (writer * 5..PAGE_BYTES - 5).step_by(10) {
                    file.write_all_at(&[b'0' + writer as u8; 5], at as u64).unwrap();
                }
            });
        }
    });
    drop(files);
    let mut expected: Vec<u8> = (0..PAGE_BYTES).map(|at| b'0' + (at / 5 % 2) as u8).collect();
    expected[PAGE_BYTES - 1] = b'.';
    for name in ["mnt/file", "mnt2/file"] {
        assert!(fs::read(place.path(name)).unwrap() == expected, "{name}");
    }
}

/// Lengths are requested as always: SEEK_END, fstat(2) and reading on at the end of an open file
/// show appends and truncations by others.
#[test]
fn lengths_are_never_cached() {
    let place = twice();
    fs::write(place.path("mnt/file"), "one").unwrap();
    let mut reader = File::open(place.path("mnt2/file")).unwrap();
    let mut seen = [0; 100];
    assert_eq!(reader.read_at(&mut seen, 0).unwrap(), 3);
    let writer = OpenOptions::new().append(true).open(place.path("mnt/file")).unwrap();
    for round in 1..200u64 {
        (&writer).write_all(b"!").unwrap();
        assert_eq!(reader.seek(std::io::SeekFrom::End(0)).unwrap(), 3 + round);
        assert_eq!(reader.metadata().unwrap().len(), 3 + round);
        assert_eq!(reader.read_at(&mut seen[..1], 2 + round).unwrap(), 1);
        assert_eq!(seen[0], b'!');
    }
    writer.set_len(2).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 2);
    assert_eq!(reader.read_at(&mut seen, 0).unwrap(), 2);
    assert_eq!(&seen[..2], b"on");
}

/// The first page of a file.
struct Mapped(*mut u8);

impl Mapped {
    fn of(file: &File) -> Mapped {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping of an open file, which is longer than a page.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapped(at.cast())
    }

    fn set(&self, at: usize, value: u8) {
        assert!(at < PAGE_BYTES);
        // SAFETY: it is mapped for as long as this is there.
        unsafe { self.0.add(at).write_volatile(value) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is not accessed any more.
        unsafe { libc::munmap(self.0.cast(), PAGE_BYTES) };
    }
}
