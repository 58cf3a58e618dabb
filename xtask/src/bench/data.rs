//! Workloads on file data. Every file is in the root of its place, since the bare servers have no
//! directories.

use super::place::{Column, Places};
use super::put_aside;
use crate::Outcome;
use ebb_bench::Rng;
use ebb_bench::work::{self, Durability, PAGE_BYTES, READ_BYTES, SMALL_BYTES, Stop, WRITE_BYTES};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Larger than processor caches, smaller than the memory of ordinary machines.
pub const LARGE_BYTES: u64 = 512 << 20;
pub const SMALL_FILES: usize = 1000;
/// Files that each thread creates.
pub const CREATES: usize = 4000;
const APPENDS: usize = 4000;
const RECORD_BYTES: usize = 300;
/// Minimum duration of a repeated workload.
const SPAN: Duration = Duration::from_secs(1);

/// Sequential reads of 128 KiB from the page cache: MB/s.
pub fn read_sequential(places: &mut Places, column: Column) -> Outcome<f64> {
    let (file, mut buffer) = (warm(places, column)?, vec![0; READ_BYTES]);
    repeat(|| Ok(read_all(&file, &mut buffer)? as f64 / 1e6))
}

/// Random reads of 4 KiB from the page cache: thousand/s.
pub fn read_random(places: &mut Places, column: Column) -> Outcome<f64> {
    const AT_ONCE: usize = 1000;
    let (file, mut rng) = (warm(places, column)?, Rng(4096));
    repeat(|| {
        work::read_random(&file, LARGE_BYTES, AT_ONCE, &mut rng, &Stop::default())?;
        Ok(AT_ONCE as f64 / 1e3)
    })
}

/// One access to every page of a new mapping, in order: million pages/s.
pub fn read_mapped(places: &mut Places, column: Column) -> Outcome<f64> {
    let (file, len) = (warm(places, column)?, LARGE_BYTES as usize);
    repeat(|| {
        // SAFETY: a new mapping of a whole file that no process truncates during the run.
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
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        for page in 0..len / PAGE_BYTES {
            // SAFETY: within the mapping, which no thread writes to.
            unsafe { at.cast::<u8>().add(page * PAGE_BYTES).read_volatile() };
        }
        // SAFETY: the mapping from above; no reference into it is left.
        match unsafe { libc::munmap(at, len) } {
            0 => Ok((len / PAGE_BYTES) as f64 / 1e6),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    })
}

/// A new file in writes of 1 MiB, with fsync and close: MB/s.
pub fn write_stream(places: &mut Places, column: Column) -> Outcome<f64> {
    let path = places.root(column)?.join("written");
    let began = Instant::now();
    write_large(&path)?;
    let rate = LARGE_BYTES as f64 / 1e6 / began.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

/// Appended records, each followed by fdatasync, as a log is written: thousand/s.
pub fn append(places: &mut Places, column: Column) -> Outcome<f64> {
    let (path, records) = (places.root(column)?.join("log"), column.share(APPENDS));
    let mut file = File::options().create(true).append(true).open(&path)?;
    let began = Instant::now();
    for _ in 0..records {
        file.write_all(&[b'r'; RECORD_BYTES])?;
        file.sync_data()?;
    }
    let rate = records as f64 / 1e3 / began.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(&path)?;
    Ok(rate)
}

/// Writes of 4 KiB one after the other in a file, each followed by fsync: thousand/s.
pub fn write_forced(places: &mut Places, column: Column) -> Outcome<f64> {
    let (path, writes) = (places.root(column)?.join("forced"), column.share(APPENDS));
    let mut file = File::create_new(&path)?;
    let began = Instant::now();
    for _ in 0..writes {
        file.write_all(&[b'w'; SMALL_BYTES])?;
        file.sync_all()?;
    }
    let rate = writes as f64 / 1e3 / began.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(&path)?;
    Ok(rate)
}

pub fn create_one(places: &mut Places, column: Column) -> Outcome<f64> {
    create(places, column, 1)
}

pub fn create_four(places: &mut Places, column: Column) -> Outcome<f64> {
    create(places, column, 4)
}

/// Create, write 4 KiB, close, all in one directory: thousand/s.
fn create(places: &mut Places, column: Column, threads: usize) -> Outcome<f64> {
    let (root, each, stop) = (places.root(column)?, column.share(CREATES), Stop::default());
    // The files of the native column are moved aside like a cache (see `put_aside`).
    let aside = (column == Column::Native).then(|| root.join("created"));
    aside.iter().try_for_each(fs::create_dir)?;
    let dir = aside.as_ref().unwrap_or(&root);
    let began = Instant::now();
    work::create(dir, threads, each, Durability::Unforced, &stop)?;
    let rate = (threads * each) as f64 / 1e3 / began.elapsed().as_secs_f64();
    match &aside {
        Some(dir) => put_aside(dir)?,
        None => (0..threads)
            .try_for_each(|worker| work::unlink(&work::small(dir, worker, each), &stop))?,
    }
    Ok(rate)
}

/// stat(2) of names and attributes that the kernel has cached: thousand/s.
pub fn stat(places: &mut Places, column: Column) -> Outcome<f64> {
    let paths = small(places, column)?;
    let work = || {
        work::stat(&paths, &Stop::default())?;
        Ok(paths.len() as f64 / 1e3)
    };
    work()?;
    repeat(work)
}

/// Open, read, close of small files in the page cache: thousand/s.
pub fn open_read(places: &mut Places, column: Column) -> Outcome<f64> {
    let paths = small(places, column)?;
    let work = || {
        work::read_small(&paths, &Stop::default())?;
        Ok(paths.len() as f64 / 1e3)
    };
    work()?;
    repeat(work)
}

/// The large file of a place, made once.
pub fn large(places: &mut Places, column: Column) -> Outcome<PathBuf> {
    let path = places.root(column)?.join("large");
    if !path.exists() {
        write_large(&path)?;
        places.settle(column)?;
    }
    Ok(path)
}

/// The large file with all of its bytes in the page cache.
fn warm(places: &mut Places, column: Column) -> Outcome<File> {
    let file = File::open(large(places, column)?)?;
    read_all(&file, &mut vec![0; WRITE_BYTES])?;
    Ok(file)
}

/// The small files of a place, made once.
fn small(places: &mut Places, column: Column) -> Outcome<Vec<PathBuf>> {
    let root = places.root(column)?;
    let paths: Vec<PathBuf> = (0..SMALL_FILES).map(|n| root.join(format!("small-{n}"))).collect();
    if !paths[0].exists() {
        paths.iter().try_for_each(|path| fs::write(path, [1; SMALL_BYTES]))?;
        places.settle(column)?;
    }
    Ok(paths)
}

fn write_large(path: &Path) -> Outcome<()> {
    Ok(work::write_stream(path, LARGE_BYTES, Durability::Forced, &Stop::default())?)
}

pub fn read_all(file: &File, buffer: &mut [u8]) -> Outcome<u64> {
    match work::read_stream(file, buffer, &Stop::default())? {
        LARGE_BYTES => Ok(LARGE_BYTES),
        len => Err(format!("{len} bytes of {LARGE_BYTES}").into()),
    }
}

/// Repeats `work` for [`SPAN`]; returns the amount of work per second.
fn repeat(mut work: impl FnMut() -> Outcome<f64>) -> Outcome<f64> {
    let began = Instant::now();
    let mut done = 0.0;
    while began.elapsed() < SPAN {
        done += work()?;
    }
    Ok(done / began.elapsed().as_secs_f64())
}
