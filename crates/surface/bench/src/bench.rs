//! The workload of `ebb bench` in a directory of any file system: small files, a large one, names.
//!
//! Every figure states the work, and the failure that its calls had survived when they returned.
//! Figures of unforced work measure memory and log, and compare only with figures of the same kind.

use crate::Rng;
use crate::work::{self, Durability, PAGE_BYTES, READ_BYTES, Stop};
use Durability::{Forced, Unforced};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The amount of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amount {
    pub small_files: usize,
    pub large_bytes: u64,
    /// The number of threads, for the rows with several.
    pub threads: usize,
}

/// One row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    pub group: Group,
    pub name: &'static str,
    pub unit: Unit,
    pub value: f64,
    /// `None` where nothing was changed.
    pub durability: Option<Durability>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    Small,
    Large,
    Metadata,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Small => "small files",
            Group::Large => "large file",
            Group::Metadata => "metadata",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Million bytes a second.
    MegabytesPerSecond,
    /// Operations a second.
    PerSecond,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "1/s",
        }
    }
}

/// One in this many small files is forced, which can take a disk 10 ms each.
const FORCED_PART: usize = 10;

/// Reads and writes at random.
const RANDOM: usize = 2000;

/// Runs the workload in a new directory below `path` and removes it in any case. Calls `done` for
/// each figure.
pub fn run(path: &Path, amount: Amount, stop: &Stop, done: impl FnMut(&Figure)) -> io::Result<()> {
    let ground = Ground::new(path)?;
    let outcome = Bench { root: &ground.0, amount, stop, done }.all();
    let cleared = ground.clear();
    outcome.and(cleared)
}

/// The directory that is worked in.
struct Ground(PathBuf);

impl Ground {
    fn new(path: &Path) -> io::Result<Ground> {
        let directory = path.join(format!(".ebb-bench-{}", std::process::id()));
        fs::create_dir(&directory)?;
        Ok(Ground(directory))
    }

    fn clear(self) -> io::Result<()> {
        let cleared = fs::remove_dir_all(&self.0);
        std::mem::forget(self);
        cleared
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // During a panic, a failed cleanup is not worth reporting.
        fs::remove_dir_all(&self.0).ok();
    }
}

struct Bench<'a, F> {
    root: &'a Path,
    amount: Amount,
    stop: &'a Stop,
    done: F,
}

impl<F: FnMut(&Figure)> Bench<'_, F> {
    fn all(&mut self) -> io::Result<()> {
        self.small()?;
        self.large()?;
        self.metadata()
    }

    fn figure(
        &mut self,
        group: Group,
        name: &'static str,
        unit: Unit,
        durability: Option<Durability>,
        amount: f64,
        took: Duration,
    ) {
        let value = amount / took.as_secs_f64().max(1e-9);
        (self.done)(&Figure { group, name, unit, value, durability });
    }

    fn small(&mut self) -> io::Result<()> {
        let (files, stop) = (self.amount.small_files, self.stop);
        let rate = |bench: &mut Self, name, durability, count: usize, took| {
            bench.figure(Group::Small, name, Unit::PerSecond, durability, count as f64, took);
        };
        let (alone, forced, together) =
            (self.directory("alone")?, self.directory("forced")?, self.directory("together")?);
        let took = time(|| work::create(&alone, 1, files, Unforced, stop))?;
        rate(self, "create, write 4 KiB, close", Some(Unforced), files, took);
        let (threads, each) = (self.amount.threads, (files / self.amount.threads).max(1));
        let took = time(|| work::create(&together, threads, each, Unforced, stop))?;
        rate(self, "create, write 4 KiB, close, threads", Some(Unforced), threads * each, took);
        let some = (files / FORCED_PART).max(1);
        let took = time(|| work::create(&forced, 1, some, Forced, stop))?;
        rate(self, "create, write 4 KiB, fsync, close", Some(Forced), some, took);
        let paths = work::small(&alone, 0, files);
        let took = time(|| work::read_small(&paths, stop))?;
        rate(self, "open, read 4 KiB, close", None, files, took);
        Ok(())
    }

    fn large(&mut self) -> io::Result<()> {
        let (len, stop) = (self.amount.large_bytes, self.stop);
        let path = self.root.join("large");
        let megabytes = len as f64 / 1e6;
        let bytes = |bench: &mut Self, name, durability, took| {
            bench.figure(Group::Large, name, Unit::MegabytesPerSecond, durability, megabytes, took);
        };
        let took = time(|| work::write_stream(&path, len, Forced, stop))?;
        bytes(self, "write in order by 1 MiB, then fsync", Some(Forced), took);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut buffer = vec![0; READ_BYTES];
        forget(&file)?;
        let took = time(|| whole(work::read_stream(&file, &mut buffer, stop)?, len))?;
        bytes(self, "read in order by 128 KiB, not in the page cache", None, took);
        let took = time(|| whole(work::read_stream(&file, &mut buffer, stop)?, len))?;
        bytes(self, "read in order by 128 KiB, again", None, took);
        let mut rng = Rng(4096);
        forget(&file)?;
        let took = time(|| work::read_random(&file, len, RANDOM, &mut rng, stop))?;
        self.figure(
            Group::Large,
            "read 4 KiB at random, not in the page cache",
            Unit::PerSecond,
            None,
            RANDOM as f64,
            took,
        );
        let took = time(|| work::write_random(&file, len, RANDOM, &mut rng, Forced, stop))?;
        self.figure(
            Group::Large,
            "write 4 KiB at random, then fsync",
            Unit::PerSecond,
            Some(Forced),
            RANDOM as f64,
            took,
        );
        drop(file);
        fs::remove_file(path)
    }

    fn metadata(&mut self) -> io::Result<()> {
        let (count, stop) = (self.amount.small_files, self.stop);
        let rate = |bench: &mut Self, name, changes: bool, took| {
            bench.figure(
                Group::Metadata,
                name,
                Unit::PerSecond,
                changes.then_some(Unforced),
                count as f64,
                took,
            );
        };
        let root = self.directory("metadata")?;
        let numbered = |prefix: &str| -> Vec<PathBuf> {
            (0..count).map(|n| root.join(format!("{prefix}-{n}"))).collect()
        };
        let (directories, files, renamed) =
            (numbered("directory"), numbered("file"), numbered("renamed"));
        let each = |paths: &[PathBuf], work: fn(&Path) -> io::Result<()>| {
            time(|| paths.iter().try_for_each(|path| stop.check().and_then(|()| work(path))))
        };
        let took = each(&directories, |path| fs::create_dir(path))?;
        rate(self, "mkdir", true, took);
        let took = each(&directories, |path| fs::remove_dir(path))?;
        rate(self, "rmdir", true, took);
        let took = each(&files, |path| File::create_new(path).map(drop))?;
        rate(self, "create, close", true, took);
        let took = time(|| work::stat(&files, stop))?;
        rate(self, "stat", false, took);
        let took = time(|| whole(work::list(&root, stop)? as u64, count as u64))?;
        rate(self, "readdir and lstat of each entry", false, took);
        let took = time(|| {
            files
                .iter()
                .zip(&renamed)
                .try_for_each(|(from, to)| stop.check().and_then(|()| fs::rename(from, to)))
        })?;
        rate(self, "rename", true, took);
        let took = time(|| work::unlink(&renamed, stop))?;
        rate(self, "unlink", true, took);
        Ok(())
    }

    fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }
}

fn time(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// A file system that returns fewer bytes is broken, so there is no measurement.
fn whole(got: u64, expected: u64) -> io::Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(io::Error::other(format!("{got} came where {expected} were put")))
    }
}

/// Drops a forced file from the page cache.
fn forget(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The large file must have pages to choose from.
pub const LEAST_LARGE_BYTES: u64 = PAGE_BYTES as u64;

#[cfg(test)]
mod tests {
    use super::*;

    const AMOUNT: Amount = Amount { small_files: 20, large_bytes: 3 << 19, threads: 3 };

    #[test]
    fn everything_is_measured_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let mut figures = Vec::new();
        run(dir.path(), AMOUNT, &Stop::default(), |figure| figures.push(figure.clone())).unwrap();
        assert_eq!(figures.len(), 16);
        assert!(
            figures.iter().all(|figure| figure.value.is_finite() && figure.value > 0.0),
            "{figures:?}"
        );
        for group in [Group::Small, Group::Large, Group::Metadata] {
            assert!(figures.iter().any(|figure| figure.group == group));
        }
        let mut names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), figures.len(), "a figure is known by its name");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A run that is stopped at any point leaves no files.
    #[test]
    fn work_that_is_interrupted_clears_away() {
        for after in 0..16 {
            let dir = tempfile::tempdir().unwrap();
            let (stop, mut seen) = (Stop::default(), 0);
            if after == 0 {
                stop.stop();
            }
            let ended = run(dir.path(), AMOUNT, &stop, |_| {
                seen += 1;
                if seen == after {
                    stop.stop();
                }
            });
            assert_eq!((ended.unwrap_err().kind(), seen), (io::ErrorKind::Interrupted, after));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn where_nothing_can_be_made_nothing_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(run(&file, AMOUNT, &Stop::default(), |_| panic!("a figure")).is_err());
        assert!(
            run(&dir.path().join("missing"), AMOUNT, &Stop::default(), |_| panic!("a figure"))
                .is_err()
        );
        assert_eq!(fs::read_to_string(file).unwrap(), "");
    }
}
