//! File sets smaller and larger than the cache, over a store that is far slower than the disk
//! (evaluated in the HyCache+ paper).

use super::curl::{self, AT_ONCE, Request};
use super::line::Line;
use super::place::{Column, Places, Setup};
use super::{PAGES_AND_NAMES, drop_caches, seconds};
use crate::Outcome;
use ebb_bench::Rng;
use ebb_bench::work::{self, Durability, Stop, WRITE_BYTES};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// The settings that differ from the other tables.
pub const SETUP: Setup = Setup {
    fill: 0,
    line: Some(Line { bytes_per_sec: 20_000_000, delay: Duration::ZERO }),
    flags: &["--cache-size", "64M", "--dirty-size", "32M", "--read-ahead", "8M"],
    note: "The store is behind a connection of 20 MB/s in each direction, shared by all requests; \
        the cache is limited to 64 MiB, of which 32 MiB can be dirty (`--cache-size 64M \
        --dirty-size 32M --read-ahead 8M`). Half the cache is 32 files of 1 MiB, twice the cache \
        128; files that are read again are not in the page cache. `curl` discards the data, so \
        one pass over 32 MiB shows the connection.",
};

/// Files in half a cache; the larger set is twice the cache.
const HALF: usize = 32;
const TWICE: usize = 128;
const FILE_BYTES: usize = 1 << 20;

/// Request kinds that upload file data.
const SENDS: &[&str] = &["put", "upload-part"];

/// Overwrites of one file, as in the paper.
const PASSES: usize = 63;
const OVERWRITTEN_BYTES: u64 = 16 << 20;

/// Reads of whole files; four fifths of the reads go to one fifth of the files.
const SKEWED_READS: usize = 128;

/// One file that fits into the cache, overwritten from start to end again and again: MB/s.
pub fn overwrite(places: &mut Places, column: Column) -> Outcome<f64> {
    if column == Column::Curl {
        return put(places);
    }
    let path = places.root(column)?.join("overwritten");
    let block = Rng(63).bytes(WRITE_BYTES);
    let took = seconds(|| {
        let file = File::create(&path)?;
        for _ in 0..PASSES {
            (0..OVERWRITTEN_BYTES)
                .step_by(WRITE_BYTES)
                .try_for_each(|at| file.write_all_at(&block, at))?;
        }
        Ok(())
    })?;
    fs::remove_file(&path)?;
    Ok(PASSES as f64 * OVERWRITTEN_BYTES as f64 / 1e6 / took)
}

/// A new file of twice the cache size, until it is in the bucket: MB/s.
pub fn write_twice(places: &mut Places, column: Column) -> Outcome<f64> {
    if column == Column::Curl {
        return put(places);
    }
    let (path, len_bytes) = (places.root(column)?.join("written"), (TWICE * FILE_BYTES) as u64);
    let took = seconds(|| {
        work::write_stream(&path, len_bytes, Durability::Unforced, &Stop::default())?;
        places.drain(column)
    })?;
    fs::remove_file(&path)?;
    Ok(len_bytes as f64 / 1e6 / took)
}

/// Bytes uploaded per byte written by [`write_twice`].
pub fn sent(places: &mut Places, column: Column) -> Outcome<f64> {
    places.root(column)?;
    let before = places.moved_bytes(SENDS)?;
    write_twice(places, column)?;
    Ok((places.moved_bytes(SENDS)? - before) as f64 / (TWICE * FILE_BYTES) as f64)
}

/// Second read of a set of half the cache size: MB/s.
pub fn read_half(places: &mut Places, column: Column) -> Outcome<f64> {
    let in_order: Vec<usize> = (0..HALF).collect();
    read_again(places, column, &in_order, &in_order)
}

/// Second sequential read of a set of twice the cache size: MB/s.
pub fn read_twice(places: &mut Places, column: Column) -> Outcome<f64> {
    let in_order: Vec<usize> = (0..TWICE).collect();
    read_again(places, column, &in_order, &in_order)
}

/// Skewed reads of a set of twice the cache size, after a warm-up of as many reads: MB/s.
pub fn read_skewed(places: &mut Places, column: Column) -> Outcome<f64> {
    let mut rng = Rng(80);
    let [before, measured] = [(); 2].map(|()| skewed(&mut rng));
    read_again(places, column, &before, &measured)
}

fn skewed(rng: &mut Rng) -> Vec<usize> {
    let draw = |rng: &mut Rng| {
        let fifth = TWICE / 5;
        match rng.below(5) {
            0 => fifth + rng.below((TWICE - fifth) as u64) as usize,
            _ => rng.below(fifth as u64) as usize,
        }
    };
    (0..SKEWED_READS).map(|_| draw(rng)).collect()
}

/// Starts with a cold cache.
fn read_again(
    places: &mut Places,
    column: Column,
    before: &[usize],
    measured: &[usize],
) -> Outcome<f64> {
    let files = files(places)?;
    if column == Column::Curl {
        places.settle(Column::Ebb)?;
        let get = |file: usize| Request::get(&key(file), 0, FILE_BYTES as u64);
        let lists = (0..AT_ONCE as usize)
            .map(|list| (list..HALF).step_by(AT_ONCE as usize).map(get).collect())
            .collect();
        return Ok(rate(HALF, seconds(|| curl::run(places, lists))?));
    }
    places.begin_cold(column, &[])?;
    let read = |order: &[usize]| {
        order.iter().try_for_each(|file| match fs::read(&files[*file])?.len() {
            FILE_BYTES => Ok(()),
            len => Err(format!("{len} bytes of {FILE_BYTES}").into()),
        })
    };
    read(before)?;
    drop_caches(PAGES_AND_NAMES)?;
    Ok(rate(measured.len(), seconds(|| read(measured))?))
}

/// The file set, made once.
fn files(places: &mut Places) -> Outcome<Vec<PathBuf>> {
    let root = places.root(Column::Ebb)?;
    let directory = root.join("set");
    let files = (0..TWICE).map(|file| root.join(key(file))).collect::<Vec<_>>();
    if !directory.exists() {
        fs::create_dir(&directory)?;
        let mut rng = Rng(256);
        files.iter().try_for_each(|path| fs::write(path, rng.bytes(FILE_BYTES)))?;
        places.settle(Column::Ebb)?;
    }
    Ok(files)
}

fn key(file: usize) -> String {
    format!("set/{file:03}")
}

/// Uploads half a cache: MB/s.
fn put(places: &mut Places) -> Outcome<f64> {
    let file = places.scratch("sent")?;
    if !file.exists() {
        fs::write(&file, Rng(1).bytes(HALF * FILE_BYTES / AT_ONCE as usize))?;
    }
    places.root(Column::Ebb)?;
    places.settle(Column::Ebb)?;
    let lists = (0..AT_ONCE).map(|at| vec![Request::put(&format!("sent-{at}"), &file)]).collect();
    Ok(rate(HALF, seconds(|| curl::run(places, lists))?))
}

fn rate(files: usize, seconds: f64) -> f64 {
    (files * FILE_BYTES) as f64 / 1e6 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_reads_are_of_few_files() {
        let (mut rng, fifth) = (Rng(1), TWICE / 5);
        let draws: Vec<usize> = (0..80).flat_map(|_| skewed(&mut rng)).collect();
        let hot = draws.iter().filter(|file| **file < fifth).count();
        assert!(draws.iter().all(|file| *file < TWICE));
        assert!((0.78..0.82).contains(&(hot as f64 / draws.len() as f64)));
    }
}
