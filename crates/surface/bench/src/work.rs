//! Pieces of work. Each does a given amount in one directory or on one file and leaves the clock to
//! its caller; each checks `stop` regularly, and ends with `Interrupted` once it is set.

use crate::Rng;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A small file.
pub const SMALL_BYTES: usize = 4096;
/// Size of a random read or write.
pub const PAGE_BYTES: usize = 4096;
/// One write of a large file.
pub const WRITE_BYTES: usize = 1 << 20;
/// One read of a large file from its beginning to its end.
pub const READ_BYTES: usize = 128 << 10;

/// Whether a call must be durable when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Whenever the file system likes.
    Unforced,
    /// When it has returned: fsync(2).
    Forced,
}

/// A flag that ends a workload.
#[derive(Default)]
pub struct Stop(AtomicBool);

impl Stop {
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

/// Names of small files of one worker.
pub fn small(root: &Path, worker: usize, count: usize) -> Vec<PathBuf> {
    (0..count).map(|n| root.join(format!("small-{worker}-{n}"))).collect()
}

/// Create, write 4 KiB, close, each thread as many files, all in one directory.
pub fn create(
    root: &Path,
    threads: usize,
    each: usize,
    durability: Durability,
    stop: &Stop,
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let work = |worker| {
            move || {
                small(root, worker, each).iter().try_for_each(|path| {
                    stop.check()?;
                    let mut file = File::create_new(path)?;
                    file.write_all(&[7; SMALL_BYTES])?;
                    if durability == Durability::Forced { file.sync_all() } else { Ok(()) }
                })
            }
        };
        let workers: Vec<_> = (0..threads).map(|worker| scope.spawn(work(worker))).collect();
        // Join all workers before the first error is returned.
        let ends: Vec<io::Result<()>> = workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect();
        ends.into_iter().collect()
    })
}

/// Open, read, close.
pub fn read_small(paths: &[PathBuf], stop: &Stop) -> io::Result<()> {
    let mut buffer = [0; SMALL_BYTES];
    paths.iter().try_for_each(|path| {
        stop.check()?;
        File::open(path)?.read_exact_at(&mut buffer, 0)
    })
}

pub fn stat(paths: &[PathBuf], stop: &Stop) -> io::Result<()> {
    paths.iter().try_for_each(|path| {
        stop.check()?;
        lstat(path)
    })
}

/// lstat(2), as `ls` and `find` use it. The standard library also requests the birth time, which
/// costs a FUSE file system one request per inode.
fn lstat(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends in NUL and `stat` is valid to write to.
    match unsafe { libc::lstat(path.as_ptr(), stat.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn unlink(paths: &[PathBuf], stop: &Stop) -> io::Result<()> {
    paths.iter().try_for_each(|path| {
        stop.check()?;
        fs::remove_file(path)
    })
}

/// readdir and lstat of every entry, which it counts.
pub fn list(directory: &Path, stop: &Stop) -> io::Result<usize> {
    let mut listed = 0;
    for entry in fs::read_dir(directory)? {
        stop.check()?;
        lstat(&entry?.path())?;
        listed += 1;
    }
    Ok(listed)
}

/// A new file in writes of 1 MiB, of bytes that nothing can make fewer of.
pub fn write_stream(
    path: &Path,
    len_bytes: u64,
    durability: Durability,
    stop: &Stop,
) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let block = Rng(1).bytes(WRITE_BYTES);
    let mut left = len_bytes;
    while left > 0 {
        stop.check()?;
        let len = left.min(WRITE_BYTES as u64);
        file.write_all(&block[..len as usize])?;
        left -= len;
    }
    if durability == Durability::Forced { file.sync_all() } else { Ok(()) }
}

/// A file from its beginning to its end, as many bytes at a time as the buffer has.
pub fn read_stream(file: &File, buffer: &mut [u8], stop: &Stop) -> io::Result<u64> {
    let mut at = 0;
    loop {
        stop.check()?;
        match file.read_at(buffer, at)? {
            0 => return Ok(at),
            len => at += len as u64,
        }
    }
}

/// Pages anywhere in the first `len_bytes` of a file.
pub fn read_random(
    file: &File,
    len_bytes: u64,
    count: usize,
    rng: &mut Rng,
    stop: &Stop,
) -> io::Result<()> {
    let mut buffer = [0; PAGE_BYTES];
    (0..count).try_for_each(|_| {
        stop.check()?;
        file.read_exact_at(
            &mut buffer,
            rng.below(len_bytes / PAGE_BYTES as u64) * PAGE_BYTES as u64,
        )
    })
}

/// Overwrites pages anywhere in a file.
pub fn write_random(
    file: &File,
    len_bytes: u64,
    count: usize,
    rng: &mut Rng,
    durability: Durability,
    stop: &Stop,
) -> io::Result<()> {
    let page = rng.bytes(PAGE_BYTES);
    (0..count).try_for_each(|_| {
        stop.check()?;
        file.write_all_at(&page, rng.below(len_bytes / PAGE_BYTES as u64) * PAGE_BYTES as u64)
    })?;
    if durability == Durability::Forced { file.sync_data() } else { Ok(()) }
}
