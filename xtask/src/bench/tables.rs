//! The tables: workloads, columns and goals.

use super::line::Line;
use super::place::{BUCKET_PEERS, CLUSTER_PEERS, Column, Places, Setup};
use super::{bucket, cache, chunks, data, mdtest, model, names};
use crate::Outcome;
use Column::{
    Alone, Curl, Ebb, GeeseFs, JuiceFs, Memory, MooseFs, Mountpoint, Native, Noop, Parallel,
    Passthrough, Rclone, S3fs, SeaweedFs, Serial, ZeroFs,
};
use clap::ValueEnum;
use std::time::Duration;

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// Limits of machine and kernel.
    Limits,
    /// File data, and small files.
    Files,
    /// Names and attributes.
    Metadata,
    /// Downloads from the bucket, and uploads.
    Bucket,
    /// The same over a network with a realistic delay.
    Far,
    /// A service that reads its model.
    Model,
    /// A slow bucket, and file sets smaller and larger than the cache.
    Cache,
    /// Request sizes.
    Chunks,
    /// A mount alone, and with another mount of its volume.
    Shared,
}

pub struct Row {
    pub name: &'static str,
    pub unit: &'static str,
    /// Unavailable peers are skipped.
    pub columns: &'static [Column],
    /// Goals of the column `ebb`.
    pub goals: &'static [Goal],
    /// More is better, unless the unit is seconds.
    pub measure: fn(&mut Places, Column) -> Outcome<f64>,
}

pub struct Goal {
    /// The best available one of these counts.
    pub against: &'static [Column],
    pub bound: Bound,
}

#[derive(Clone, Copy)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }
}

const fn at_least(part: f64, against: &'static [Column]) -> Goal {
    Goal { against, bound: Bound::AtLeast(part) }
}

const fn at_most(times: f64, against: &'static [Column]) -> Goal {
    Goal { against, bound: Bound::AtMost(times) }
}

impl Table {
    pub fn rows(self) -> &'static [Row] {
        match self {
            Table::Limits => LIMITS,
            Table::Files => FILES,
            Table::Metadata => METADATA,
            Table::Bucket => BUCKET,
            Table::Far => FAR,
            Table::Model => MODEL,
            Table::Cache => CACHE,
            Table::Chunks => CHUNKS,
            Table::Shared => SHARED,
        }
    }

    pub fn setup(self) -> Setup {
        match self {
            Table::Far => Setup {
                line: Some(Line { bytes_per_sec: 250_000_000, delay: Duration::from_millis(5) }),
                note: "The store is behind a connection of 250 MB/s in each direction, shared by \
                    all requests, with 5 ms of latency each way. Otherwise as `bucket`.",
                fill: bucket::LISTED,
                ..Setup::default()
            },
            Table::Bucket => Setup { fill: bucket::LISTED, ..Setup::default() },
            Table::Cache => cache::SETUP,
            Table::Chunks => Setup {
                note: "Each row is a request size. ebb has no setting for it: it is mounted with a \
                    read-ahead of eight times as much, and requests 1/8 of it (at most 8 MiB) \
                    after a reader has read enough in order. `curl` requests ranges of that size \
                    in 8 processes.",
                ..Setup::default()
            },
            Table::Shared => Setup {
                note: "A directory as bucket, on the same disk as the data directories. A client \
                    that is alone caches names and attributes; the node forces what several \
                    clients see.",
                ..Setup::default()
            },
            _ => Setup::default(),
        }
    }
}

macro_rules! row {
    ($name:literal, $unit:literal, $columns:expr, [$($goal:expr),*], $measure:path) => {
        Row { name: $name, unit: $unit, columns: $columns, goals: &[$($goal),*], measure: $measure }
    };
}

const WITH_PASSTHROUGH: &[Column] = &[
    Native,
    Passthrough,
    Ebb,
    S3fs,
    Rclone,
    JuiceFs,
    GeeseFs,
    Mountpoint,
    ZeroFs,
    MooseFs,
    SeaweedFs,
];
const WITH_NOOP: &[Column] =
    &[Native, Noop, Ebb, S3fs, Rclone, JuiceFs, GeeseFs, Mountpoint, ZeroFs, MooseFs, SeaweedFs];
/// Without rclone, whose mount hangs on one of these in some runs.
const WITH_LOGS: &[Column] =
    &[Native, Ebb, S3fs, JuiceFs, GeeseFs, Mountpoint, ZeroFs, MooseFs, SeaweedFs];
const WITH_CURL: &[Column] = &[Ebb, Curl, S3fs, Rclone, JuiceFs, GeeseFs, Mountpoint, ZeroFs];
const WITH_PEERS: &[Column] = &[Ebb, S3fs, Rclone, JuiceFs, GeeseFs, Mountpoint, ZeroFs];
const WITH_COPIES: &[Column] =
    &[Serial, Parallel, Ebb, S3fs, Rclone, JuiceFs, GeeseFs, Mountpoint, ZeroFs];
const AGAIN: &[Column] = &[Native, Ebb, S3fs, Rclone, JuiceFs, GeeseFs, Mountpoint, ZeroFs];
const EVERY_KERNEL: &[Column] = &[Native, Memory, Passthrough, Noop];

const LIMITS: &[Row] = &[
    row!("read cached, sequential 128 KiB", "MB/s", EVERY_KERNEL, [], data::read_sequential),
    row!("read cached, random 4 KiB", "k/s", EVERY_KERNEL, [], data::read_random),
    row!("read mapped, cached", "M pages/s", EVERY_KERNEL, [], data::read_mapped),
    row!(
        "write new file, 1 MiB, and fsync",
        "MB/s",
        &[Native, Memory, Passthrough],
        [],
        data::write_stream
    ),
    row!("create, write 4 KiB, close, 1 thread", "k/s", EVERY_KERNEL, [], data::create_one),
    row!("create, write 4 KiB, close, 4 threads", "k/s", EVERY_KERNEL, [], data::create_four),
    row!("stat, cached", "k/s", EVERY_KERNEL, [], data::stat),
    row!("open, read 4 KiB, close, cached", "k/s", EVERY_KERNEL, [], data::open_read),
    row!("untar 5,000 files", "s", &[Native, Memory, Noop], [], names::untar),
    row!("rm -rf", "s", &[Native, Memory, Noop], [], names::remove),
];

const FILES: &[Row] = &[
    row!(
        "read cached, sequential 128 KiB",
        "MB/s",
        WITH_PASSTHROUGH,
        [at_least(0.97, &[Passthrough])],
        data::read_sequential
    ),
    row!(
        "read cached, random 4 KiB",
        "k/s",
        WITH_PASSTHROUGH,
        [at_least(0.97, &[Passthrough])],
        data::read_random
    ),
    row!(
        "read mapped, cached",
        "M pages/s",
        WITH_PASSTHROUGH,
        [at_least(0.97, &[Passthrough])],
        data::read_mapped
    ),
    row!(
        "write new file, 1 MiB, and fsync",
        "MB/s",
        WITH_PASSTHROUGH,
        [at_least(0.85, &[Native])],
        data::write_stream
    ),
    row!("append 300 bytes, fdatasync", "k/s", WITH_LOGS, [], data::append),
    row!(
        "create, write 4 KiB, close, 1 thread",
        "k/s",
        WITH_NOOP,
        [at_least(0.75, &[Noop]), at_least(10.0, BUCKET_PEERS), at_least(1.0, CLUSTER_PEERS)],
        data::create_one
    ),
    row!(
        "create, write 4 KiB, close, 4 threads",
        "k/s",
        WITH_NOOP,
        [at_least(0.75, &[Noop])],
        data::create_four
    ),
    row!("stat, cached", "k/s", WITH_NOOP, [at_least(0.85, &[Native])], data::stat),
    row!(
        "open, read 4 KiB, close, cached",
        "k/s",
        WITH_NOOP,
        [at_least(0.9, &[Noop])],
        data::open_read
    ),
];

const METADATA: &[Row] = &[
    row!(
        "readdir and lstat of 100,000, cached",
        "k/s",
        &[Native, Noop, Ebb],
        [at_least(0.8, &[Native])],
        names::list_warm
    ),
    row!(
        "readdir and lstat of 100,000, first",
        "s",
        &[Native, Noop, Ebb],
        [at_most(1.2, &[Native])],
        names::list_first
    ),
    row!("untar 5,000 files", "s", WITH_NOOP, [at_most(1.3, &[Noop])], names::untar),
    row!("find in them, ten times", "s", WITH_NOOP, [], names::find),
    row!("rm -rf", "s", WITH_NOOP, [at_most(1.3, &[Noop])], names::remove),
    row!("git clone", "s", &[Native, Noop, Ebb], [at_most(1.3, &[Noop])], names::clone),
    row!("git status, ten times", "s", &[Native, Noop, Ebb], [], names::status),
    row!("mdtest: create directories", "k/s", WITH_NOOP, [], mdtest::create_directories),
    row!("mdtest: stat directories", "k/s", WITH_NOOP, [], mdtest::stat_directories),
    row!("mdtest: remove directories", "k/s", WITH_NOOP, [], mdtest::remove_directories),
    row!("mdtest: create files", "k/s", WITH_NOOP, [], mdtest::create_files),
    row!("mdtest: stat files", "k/s", WITH_NOOP, [], mdtest::stat_files),
    row!("mdtest: remove files", "k/s", WITH_NOOP, [], mdtest::remove_files),
    row!("mdtest: create a tree", "k/s", WITH_NOOP, [], mdtest::create_tree),
    row!("mdtest: remove a tree", "k/s", WITH_NOOP, [], mdtest::remove_tree),
];

const SEQUENTIAL: Row =
    row!("read, sequential", "MB/s", WITH_CURL, [at_least(0.9, &[Curl])], bucket::sequential);
const BEGINNINGS: Row = row!(
    "read the first 128 KiB of files, one after the other",
    "/s",
    WITH_CURL,
    [at_least(0.67, &[Curl])],
    bucket::beginnings
);
const ANYWHERE: Row = row!(
    "read 128 KiB anywhere, 8 at one time",
    "/s",
    WITH_CURL,
    [at_least(0.8, &[Curl]), at_least(1.0, BUCKET_PEERS)],
    bucket::anywhere
);
const LIST: Row = row!(
    "readdir and lstat of 100,000 objects of others",
    "k/s",
    &[Ebb, Curl],
    [at_least(0.9, &[Curl])],
    bucket::list
);
const DRAIN: Row = row!(
    "drain what was written and forced",
    "MB/s",
    &[Ebb, Curl],
    [at_least(0.9, &[Curl])],
    bucket::drain
);
const WRITE_BACK: Row =
    row!("write, until the bucket has it", "MB/s", WITH_CURL, [], bucket::write_back);

const BUCKET: &[Row] = &[
    SEQUENTIAL,
    BEGINNINGS,
    ANYWHERE,
    row!("fetched for each byte of these", "bytes", &[Ebb], [], bucket::amplification),
    LIST,
    row!("the same of files that were made through ebb", "k/s", &[Ebb], [], bucket::list_own),
    DRAIN,
    WRITE_BACK,
];

/// Goals that two processors cannot show while they also run the S3 server are left out.
const FAR: &[Row] = &[
    SEQUENTIAL,
    BEGINNINGS,
    ANYWHERE,
    LIST,
    row!("find in 200 directories", "s", WITH_PEERS, [at_most(1.0, BUCKET_PEERS)], bucket::find),
    row!(
        "tar of the 1,000 small files in them",
        "s",
        WITH_PEERS,
        [at_most(1.0, BUCKET_PEERS)],
        bucket::read_tree
    ),
    row!(
        "the same by two threads, the last ones first",
        "s",
        WITH_PEERS,
        [at_most(1.0, BUCKET_PEERS)],
        bucket::read_last_first
    ),
    DRAIN,
    WRITE_BACK,
    row!(
        "a model of 464 files, first",
        "s",
        WITH_COPIES,
        [at_most(1.1, &[Parallel]), at_most(0.67, &[Serial])],
        model::first
    ),
    row!(
        "the same after `ebb warmup`, which counts",
        "s",
        &[Serial, Parallel, Ebb],
        [at_most(1.1, &[Parallel]), at_most(0.67, &[Serial])],
        model::warmed_up
    ),
];

const MODEL: &[Row] = &[
    row!(
        "first",
        "s",
        WITH_COPIES,
        [at_most(1.1, &[Parallel]), at_most(0.67, &[Serial])],
        model::first
    ),
    row!(
        "first, after `ebb warmup`, which counts",
        "s",
        &[Serial, Parallel, Ebb],
        [at_most(1.1, &[Parallel]), at_most(0.67, &[Serial])],
        model::warmed_up
    ),
    row!("again, from the node's disk", "s", AGAIN, [at_most(1.1, &[Native])], model::from_disk),
    row!(
        "again, from the kernel's memory",
        "s",
        AGAIN,
        [at_most(1.1, &[Native])],
        model::from_memory
    ),
];

const CACHE: &[Row] = &[
    row!("overwrite a file of 16 MiB 63 times", "MB/s", &[Curl, Ebb], [], cache::overwrite),
    row!(
        "write twice the cache, until the bucket has it",
        "MB/s",
        &[Curl, Ebb],
        [],
        cache::write_twice
    ),
    row!("sent for each byte of this", "bytes", &[Ebb], [], cache::sent),
    row!(
        "read half the cache again",
        "MB/s",
        &[Curl, Ebb],
        [at_least(2.2, &[Curl])],
        cache::read_half
    ),
    row!("read twice the cache again, in order", "MB/s", &[Curl, Ebb], [], cache::read_twice),
    row!(
        "read twice the cache, 80 % from a fifth of it",
        "MB/s",
        &[Curl, Ebb],
        [],
        cache::read_skewed
    ),
];

const CHUNKS: &[Row] = &[
    row!("256 KiB", "MB/s", &[Curl, Ebb], [], chunks::read::<256>),
    row!("1 MiB", "MB/s", &[Curl, Ebb], [], chunks::read::<1024>),
    row!("2 MiB", "MB/s", &[Curl, Ebb], [], chunks::read::<2048>),
    row!("4 MiB", "MB/s", &[Curl, Ebb], [], chunks::read::<4096>),
    row!("8 MiB, the default", "MB/s", &[Curl, Ebb], [], chunks::read::<8192>),
    row!("16 MiB", "MB/s", &[Curl], [], chunks::read::<16384>),
    row!("52 MiB", "MB/s", &[Curl], [], chunks::read::<53248>),
];

const ALONE_AND_SHARED: &[Column] = &[Alone, Column::Shared];

const SHARED: &[Row] = &[
    row!("create, write 4 KiB, close, 1 thread", "k/s", ALONE_AND_SHARED, [], data::create_one),
    row!("write 4 KiB, fsync", "k/s", ALONE_AND_SHARED, [], data::write_forced),
    row!("stat, cached", "k/s", ALONE_AND_SHARED, [], data::stat),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name_of;

    #[test]
    fn every_table_has_its_place_in_the_page() {
        let page = include_str!("../../../docs/benchmarks.md");
        for table in Table::value_variants() {
            let name = name_of(*table);
            let found =
                ["bench", "end"].map(|mark| page.contains(&format!("<!-- {mark} {name} -->")));
            assert_eq!(found, [true; 2], "{name}");
        }
        assert!(
            page.chars().all(|char| char == '\n' || !char.is_control()),
            "somebody's output has come into the page"
        );
    }
}
