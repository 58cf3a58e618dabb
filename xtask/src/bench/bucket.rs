//! Workloads on objects in the bucket, beside `curl` at the same server.

use super::curl::{self, AT_ONCE, Request};
use super::data::{self, LARGE_BYTES};
use super::place::{Column, Places};
use super::{names, seconds};
use crate::{Outcome, tool};
use ebb_bench::Rng;
use ebb_bench::work::{self, Durability, READ_BYTES, Stop, WRITE_BYTES};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Files whose first 128 KiB are read.
const FILES: usize = 200;
const FILE_BYTES: usize = 1 << 20;

/// Directories of the tree that is listed and read.
const DIRECTORIES: usize = 200;
const FILES_EACH: usize = 5;
const CONTENT: &str = "what each of them has";

/// Objects in one directory that the store was filled with.
pub const LISTED: u64 = 100_000;

/// Keys in one answer to a listing request.
const PART: u64 = 1000;

/// Reads at random offsets.
const READS: u64 = 1024;

/// Sequential read of one object with a cold cache: MB/s.
pub fn sequential(places: &mut Places, column: Column) -> Outcome<f64> {
    sequential_with(places, column, &[], |key| {
        curl::ranges(key, LARGE_BYTES, LARGE_BYTES / AT_ONCE)
    })
}

/// As [`sequential`], with these flags of `ebb mount` and these requests of `curl`.
pub fn sequential_with(
    places: &mut Places,
    column: Column,
    flags: &[&str],
    requests: impl FnOnce(&str) -> Vec<Vec<Request>>,
) -> Outcome<f64> {
    let path = data::large(places, column.owner())?;
    let took = cold(places, column, flags, requests(name(&path)), || {
        let mut buffer = vec![0; WRITE_BYTES];
        data::read_all(&File::open(&path)?, &mut buffer).map(drop)
    })?;
    Ok(LARGE_BYTES as f64 / 1e6 / took)
}

/// The first 128 KiB of each of many files, one after the other, with cached names: files/s.
pub fn beginnings(places: &mut Places, column: Column) -> Outcome<f64> {
    let root = places.root(column.owner())?;
    let paths: Vec<PathBuf> = (0..FILES).map(|at| root.join(format!("begins-{at}"))).collect();
    if !paths[0].exists() {
        let content = Rng(7).bytes(FILE_BYTES);
        paths.iter().try_for_each(|path| fs::write(path, &content))?;
    }
    let asked = paths.iter().map(|path| Request::get(name(path), 0, READ_BYTES as u64)).collect();
    let took = cold(places, column, &[], vec![asked], || {
        let mut buffer = vec![0; READ_BYTES];
        paths.iter().try_for_each(|path| Ok(File::open(path)?.read_exact_at(&mut buffer, 0)?))
    })?;
    Ok(FILES as f64 / took)
}

/// Reads of 128 KiB at random offsets of one object, eight in parallel: reads/s.
pub fn anywhere(places: &mut Places, column: Column) -> Outcome<f64> {
    let path = data::large(places, column.owner())?;
    let mut rng = Rng(128);
    let offsets: Vec<u64> = (0..READS)
        .map(|_| rng.below(LARGE_BYTES / READ_BYTES as u64) * READ_BYTES as u64)
        .collect();
    let lists: Vec<&[u64]> = offsets.chunks((READS / AT_ONCE) as usize).collect();
    let get = |at: &u64| Request::get(name(&path), *at, READ_BYTES as u64);
    let asked = lists.iter().map(|list| list.iter().map(get).collect()).collect();
    let took = cold(places, column, &[], asked, || {
        let file = File::open(&path)?;
        let read = |list: &[u64]| {
            let mut buffer = vec![0; READ_BYTES];
            list.iter().try_for_each(|at| file.read_exact_at(&mut buffer, *at))
        };
        std::thread::scope(|scope| {
            let readers: Vec<_> = lists.iter().map(|list| scope.spawn(|| read(list))).collect();
            // Join all readers before the first error is returned.
            let ends: Vec<io::Result<()>> = readers
                .into_iter()
                .map(|reader| reader.join().expect("a reader does not panic"))
                .collect();
            Ok(ends.into_iter().collect::<io::Result<()>>()?)
        })
    })?;
    Ok(READS as f64 / took)
}

/// Bytes downloaded per byte read by [`anywhere`].
pub fn amplification(places: &mut Places, column: Column) -> Outcome<f64> {
    anywhere(places, column)?;
    let bytes = places.moved_bytes(&["get"])?;
    Ok(bytes as f64 / (READS * READ_BYTES as u64) as f64)
}

/// readdir and lstat of objects that another client put: thousand/s. `curl` lists their keys.
pub fn list(places: &mut Places, column: Column) -> Outcome<f64> {
    let directory = places.root(column.owner())?.join("d00");
    let first = |part: u64| Some(format!("d00/f{:05}", (part * PART).checked_sub(1)?));
    let asked = (0..LISTED / PART).map(|part| Request::list("d00/", first(part))).collect();
    let took = cold(places, column, &[], vec![asked], || names::list(&directory, LISTED as usize))?;
    Ok(LISTED as f64 / 1e3 / took)
}

/// As [`list`], for files that ebb wrote.
pub fn list_own(places: &mut Places, column: Column) -> Outcome<f64> {
    let directory = names::entries(places, column)?;
    let took = cold(places, column, &[], vec![], || names::list(&directory, names::ENTRIES))?;
    Ok(names::ENTRIES as f64 / 1e3 / took)
}

/// All names of a tree of many directories, with only the root cached: s.
pub fn find(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    cold(places, column, &[], vec![], || {
        let found = tool::output(Command::new("find").arg(&tree))?.lines().count();
        let expected = 1 + DIRECTORIES * (1 + FILES_EACH);
        if found == expected { Ok(()) } else { Err(format!("{found} of {expected} names").into()) }
    })
}

/// All files of the tree in tar order: s.
pub fn read_tree(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    cold(places, column, &[], vec![], || {
        let read = tool::output(Command::new("tar").args(["--create", "--file=-"]).arg(&tree))?
            .matches(CONTENT)
            .count();
        let expected = DIRECTORIES * FILES_EACH;
        if read == expected { Ok(()) } else { Err(format!("{read} of {expected} files").into()) }
    })
}

/// All files of the tree, read by two threads that pop directories from one stack, as ripgrep does:
/// s.
pub fn read_last_first(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    cold(places, column, &[], vec![], || {
        let (stack, files) =
            (Mutex::new(vec![(tree.clone(), true)]), AtomicUsize::new(DIRECTORIES * FILES_EACH));
        let look_into = |path: &Path, is_directory: bool| -> io::Result<()> {
            if !is_directory {
                let is_as_made = fs::read(path)? == CONTENT.as_bytes();
                files
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .ok();
                return if is_as_made {
                    Ok(())
                } else {
                    Err(io::Error::other(format!("{} has other bytes", path.display())))
                };
            }
            let entries = fs::read_dir(path)?.map(|entry| {
                entry.and_then(|entry| Ok((entry.path(), entry.file_type()?.is_dir())))
            });
            let entries = entries.collect::<io::Result<Vec<_>>>()?;
            stack.lock().expect("no reader panics").extend(entries);
            Ok(())
        };
        let read_all = || -> io::Result<()> {
            while files.load(Ordering::Relaxed) > 0 {
                let next = stack.lock().expect("no reader panics").pop();
                match next {
                    // An error in one thread must not leave the other one waiting.
                    Some((path, is_directory)) => look_into(&path, is_directory)
                        .inspect_err(|_| files.store(0, Ordering::Relaxed))?,
                    None => std::thread::sleep(Duration::from_micros(100)),
                }
            }
            Ok(())
        };
        let ends = std::thread::scope(|scope| {
            [(); 2]
                .map(|()| scope.spawn(read_all))
                .map(|reader| reader.join().expect("no reader panics"))
        });
        Ok(ends.into_iter().collect::<io::Result<()>>()?)
    })
}

/// The tree, made once per place.
fn tree(places: &mut Places, column: Column) -> Outcome<PathBuf> {
    let tree = places.root(column)?.join("tree");
    if !tree.exists() {
        for dir in 0..DIRECTORIES {
            let dir = tree.join(format!("{dir:03}"));
            fs::create_dir_all(&dir)?;
            (0..FILES_EACH).try_for_each(|file| fs::write(dir.join(file.to_string()), CONTENT))?;
        }
    }
    Ok(tree)
}

/// Flush of a dirty file that is already forced: MB/s. The file is overwritten in place, so that no
/// part of it was uploaded early.
pub fn drain(places: &mut Places, column: Column) -> Outcome<f64> {
    if column == Column::Curl {
        return parts_by_curl(places);
    }
    let path = places.root(column)?.join("drained");
    work::write_stream(&path, LARGE_BYTES, Durability::Unforced, &Stop::default())?;
    places.drain(column)?;
    let block = Rng(2).bytes(WRITE_BYTES);
    let file = File::options().write(true).open(&path)?;
    (0..LARGE_BYTES).step_by(WRITE_BYTES).try_for_each(|at| file.write_all_at(&block, at))?;
    file.sync_all()?;
    drop(file);
    let took = seconds(|| places.drain(column))?;
    fs::remove_file(&path)?;
    Ok(LARGE_BYTES as f64 / 1e6 / took)
}

/// A new large file, from the first write until it is in the bucket: MB/s.
pub fn write_back(places: &mut Places, column: Column) -> Outcome<f64> {
    if column == Column::Curl {
        return parts_by_curl(places);
    }
    let path = places.root(column)?.join("written-back");
    let took = seconds(|| {
        work::write_stream(&path, LARGE_BYTES, Durability::Unforced, &Stop::default())?;
        places.drain(column)
    })?;
    fs::remove_file(&path)?;
    Ok(LARGE_BYTES as f64 / 1e6 / took)
}

/// As many uploads in parallel as there are processes, from existing files that together have the
/// size of the large file: MB/s.
fn parts_by_curl(places: &mut Places) -> Outcome<f64> {
    let scratch = places.scratch("parts")?;
    let part = (LARGE_BYTES / AT_ONCE) as usize;
    if !scratch.exists() {
        fs::create_dir(&scratch)?;
        (0..AT_ONCE)
            .try_for_each(|at| fs::write(scratch.join(at.to_string()), Rng(at).bytes(part)))?;
    }
    let sent = (0..AT_ONCE)
        .map(|at| vec![Request::put(&format!("part-{at}"), &scratch.join(at.to_string()))])
        .collect();
    Ok(LARGE_BYTES as f64 / 1e6 / seconds(|| curl::run(places, sent))?)
}

/// Duration with a cold cache: `curl` runs the requests, ebb is mounted with these flags and runs
/// `read`.
fn cold(
    places: &mut Places,
    column: Column,
    flags: &[&str],
    requests: Vec<Vec<Request>>,
    read: impl FnOnce() -> Outcome<()>,
) -> Outcome<f64> {
    if column == Column::Curl {
        places.settle(Column::Ebb)?;
        return seconds(|| curl::run(places, requests));
    }
    places.begin_cold(column, flags)?;
    seconds(read)
}

/// The key of a file in the root of the volume.
fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
