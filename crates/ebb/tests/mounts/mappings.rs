//! Mappings of files that other mounts make longer and cut.

use crate::close_to_open::twice_as;
use crate::locks::{exit_status, forked, open};
use crate::place::{Ending, until};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mapping that may reach beyond the end of its file.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn to_read(file: &File, len: usize) -> Mapping {
        Mapping::new(file, len, libc::PROT_READ)
    }

    fn to_store(file: &File, len: usize) -> Mapping {
        Mapping::new(file, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn new(file: &File, len: usize, access: i32) -> Mapping {
        let (nowhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping of an open file.
        let at = unsafe { libc::mmap(nowhere, len, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping { at: at.cast(), len }
    }

    /// `None` where that is SIGBUS, which a forked process gets: the mapping is the same there.
    pub fn byte(&self, at: usize) -> Option<u8> {
        assert!(at < self.len);
        // SAFETY: within the mapping.
        let child = forked(|| i32::from(unsafe { self.at.add(at).read_volatile() }));
        u8::try_from(exit_status(child)).ok()
    }

    fn store(&self, at: usize, value: u8) {
        assert!(at < self.len);
        // SAFETY: within the mapping, which may be stored into.
        unsafe { self.at.add(at).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is not accessed any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// A mapping shows a change soon after its reply, and never a state that the file did not have.
#[test]
fn a_mapping_grows_with_its_file() {
    for mode in ["strong", "close-to-open"] {
        let place = twice_as([mode; 2]).0;
        let (here, there) = (place.path("mnt/file"), place.path("mnt2/file"));
        fs::write(&there, [b'a'; 4096]).unwrap();
        let reader = File::open(&here).unwrap();
        let mapping = Mapping::to_read(&reader, 1 << 20);
        assert_eq!(mapping.byte(0), Some(b'a'));
        assert_eq!(mapping.byte(4096), None, "beyond the end");
        let writer = OpenOptions::new().append(true).open(&there).unwrap();
        let mut content = vec![b'a'; 4096];
        for round in 0..40usize {
            let more = vec![b'b' + (round % 20) as u8; 1000 + round * 331 % 9000];
            (&writer).write_all(&more).unwrap();
            content.extend_from_slice(&more);
            let last = content.len() - 1;
            let end = content.len().next_multiple_of(4096);
            until("the mapping shows the file's new end", || match mapping.byte(last) {
                None => false,
                // The page of the former end is shown as it was, until it is dropped.
                Some(0) if (last - more.len()) / 4096 == last / 4096 => false,
                seen => {
                    assert_eq!(seen, Some(content[last]), "{mode}, round {round}");
                    true
                }
            });
            assert_eq!(mapping.byte(end), None, "{mode}, round {round}: beyond the end");
            for at in (0..content.len()).step_by(1777) {
                assert_eq!(mapping.byte(at), Some(content[at]), "{mode}, round {round}, {at}");
            }
        }
    }
}

/// Mapped pages beyond a truncation raise SIGBUS, whether they were read before or not. The rest
/// keeps its bytes, with zeros in the cut page; an extension shows the bytes written then.
#[test]
fn mapping_beyond_truncation_raises_sigbus() {
    for mode in ["strong", "close-to-open"] {
        let place = twice_as([mode; 2]).0;
        let (here, there) = (place.path("mnt/file"), place.path("mnt2/file"));
        let writer = {
            fs::write(&there, []).unwrap();
            open(&there)
        };
        let reader = File::open(&here).unwrap();
        let mapping = Mapping::to_read(&reader, 1 << 20);
        for round in 0..20u8 {
            let (long, short) = (100_000, 5000 + usize::from(round) * 1111);
            let fill = b'a' + round;
            writer.write_all_at(&vec![fill; long], 0).unwrap();
            until("all is there", || mapping.byte(long - 1) == Some(fill));
            for at in (0..long).step_by(4096 * (1 + usize::from(round) % 3)) {
                until("it is shown", || mapping.byte(at) == Some(fill));
            }
            writer.set_len(short as u64).unwrap();
            let end = short.next_multiple_of(4096);
            until("what is cut off is gone", || mapping.byte(long - 1).is_none());
            for at in (end..long).step_by(4096) {
                assert_eq!(mapping.byte(at), None, "{mode}, round {round}, {at}");
            }
            for at in (0..short).step_by(999) {
                assert_eq!(mapping.byte(at), Some(fill), "{mode}, round {round}, {at}");
            }
            if end > short {
                assert_eq!(mapping.byte(end - 1), Some(0), "{mode}, round {round}");
            }
        }
    }
}

/// A file that is changed through a mapping grows on another mount: both changes are kept.
#[test]
fn mapping_keeps_stores_when_others_append() {
    for mode in ["strong", "close-to-open"] {
        let place = twice_as([mode; 2]).0;
        let (here, there) = (place.path("mnt/file"), place.path("mnt2/file"));
        fs::write(&there, [b'.'; 4096]).unwrap();
        let file = open(&here);
        let mapping = Mapping::to_store(&file, 1 << 20);
        let writer = OpenOptions::new().append(true).open(&there).unwrap();
        let mut content = vec![b'.'; 4096];
        for round in 0..60usize {
            let at = round * 61 % 4096;
            mapping.store(at, b'a' + (round % 26) as u8);
            content[at] = b'a' + (round % 26) as u8;
            (&writer).write_all(&[b'0'; 4096]).unwrap();
            content.extend_from_slice(&[b'0'; 4096]);
        }
        drop((mapping, file));
        assert!(fs::read(&there).unwrap() == content, "{mode}");
    }
}

/// sendfile(2) takes pages of the kernel. Both mounts append, while one of them sends the file:
/// nothing of it is ever zeros.
#[test]
fn sendfile_sends_no_zeros_during_appends_of_others() {
    for mode in ["strong", "close-to-open"] {
        let place = twice_as([mode; 2]).0;
        let paths = ["mnt/log", "mnt2/log"].map(|name| place.path(name));
        fs::write(&paths[0], "begin\n").unwrap();
        let done = AtomicBool::new(false);
        let source = File::open(&paths[0]).unwrap();
        let sent = place.path("sent");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let target = File::create(&sent).unwrap();
                    let count = source.metadata().unwrap().len() as usize;
                    let mut offset = 0;
                    // SAFETY: the offset outlives the call.
                    let copied = unsafe {
                        let (to, from) = (target.as_raw_fd(), source.as_raw_fd());
                        libc::sendfile(to, from, &mut offset, count)
                    };
                    assert!(copied >= 0);
                    let seen = fs::read(&sent).unwrap();
                    assert!(!seen.contains(&0), "{mode}: zeros in {} bytes", seen.len());
                }
            });
            let _ending = Ending(&done);
            let writers = paths.each_ref().map(|path| {
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).open(path).unwrap();
                    for number in 0..300 {
                        log.write_all(format!("record {number:06}\n").as_bytes()).unwrap();
                    }
                })
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }
}
