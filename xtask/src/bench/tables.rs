//! The tables: which work, where, and what ebb is to reach.

use super::place::{Column, Places};
use super::{bucket, data, names};
use crate::Outcome;
use Column::{Curl, Ebb, Memory, Native, Noop, Passthrough};

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// What machine and kernel can do.
    Limits,
    /// Bytes of files, and small files.
    Files,
    /// Names and attributes.
    Metadata,
    /// What comes from the bucket, and what goes there.
    Bucket,
}

pub struct Row {
    pub name: &'static str,
    pub unit: &'static str,
    pub columns: &'static [Column],
    /// Of the column `ebb`.
    pub goal: Option<Goal>,
    /// More is better, unless the unit is seconds.
    pub measure: fn(&mut Places, Column) -> Outcome<f64>,
}

pub struct Goal {
    pub against: Column,
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

const fn at_least(part: f64, against: Column) -> Option<Goal> {
    Some(Goal { against, bound: Bound::AtLeast(part) })
}

const fn at_most(times: f64, against: Column) -> Option<Goal> {
    Some(Goal { against, bound: Bound::AtMost(times) })
}

impl Table {
    pub fn rows(self) -> &'static [Row] {
        match self {
            Table::Limits => LIMITS,
            Table::Files => FILES,
            Table::Metadata => METADATA,
            Table::Bucket => BUCKET,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Table::Limits => "limits",
            Table::Files => "files",
            Table::Metadata => "metadata",
            Table::Bucket => "bucket",
        }
    }
}

macro_rules! row {
    ($name:literal, $unit:literal, $columns:expr, $goal:expr, $measure:path) => {
        Row { name: $name, unit: $unit, columns: $columns, goal: $goal, measure: $measure }
    };
}

const EVERY_KERNEL: &[Column] = &[Native, Memory, Passthrough, Noop];

const LIMITS: &[Row] = &[
    row!("read cached, sequential 128 KiB", "MB/s", EVERY_KERNEL, None, data::read_sequential),
    row!("read cached, random 4 KiB", "k/s", EVERY_KERNEL, None, data::read_random),
    row!("read mapped, cached", "M pages/s", EVERY_KERNEL, None, data::read_mapped),
    row!("write new file, 1 MiB, and fsync", "MB/s", &[Native, Memory, Passthrough], None, data::write_stream),
    row!("create, write 4 KiB, close, 1 thread", "k/s", EVERY_KERNEL, None, data::create_one),
    row!("create, write 4 KiB, close, 4 threads", "k/s", EVERY_KERNEL, None, data::create_four),
    row!("stat, cached", "k/s", EVERY_KERNEL, None, data::stat),
    row!("open, read 4 KiB, close, cached", "k/s", EVERY_KERNEL, None, data::open_read),
    row!("untar 5,000 files", "s", &[Native, Memory, Noop], None, names::untar),
    row!("rm -rf", "s", &[Native, Memory, Noop], None, names::remove),
];

const FILES: &[Row] = &[
    row!("read cached, sequential 128 KiB", "MB/s", &[Native, Passthrough, Ebb], at_least(0.97, Passthrough), data::read_sequential),
    row!("read cached, random 4 KiB", "k/s", &[Native, Passthrough, Ebb], at_least(0.97, Passthrough), data::read_random),
    row!("read mapped, cached", "M pages/s", &[Native, Passthrough, Ebb], at_least(0.97, Passthrough), data::read_mapped),
    row!("write new file, 1 MiB, and fsync", "MB/s", &[Native, Passthrough, Ebb], at_least(0.85, Native), data::write_stream),
    row!("create, write 4 KiB, close, 1 thread", "k/s", &[Native, Noop, Ebb], at_least(0.75, Noop), data::create_one),
    row!("create, write 4 KiB, close, 4 threads", "k/s", &[Native, Noop, Ebb], at_least(0.75, Noop), data::create_four),
    row!("stat, cached", "k/s", &[Native, Noop, Ebb], at_least(0.85, Native), data::stat),
    row!("open, read 4 KiB, close, cached", "k/s", &[Native, Noop, Ebb], at_least(0.9, Noop), data::open_read),
];

const METADATA: &[Row] = &[
    row!("readdir and lstat of 100,000, cached", "k/s", &[Native, Noop, Ebb], at_least(0.8, Native), names::list_warm),
    row!("readdir and lstat of 100,000, first", "s", &[Native, Noop, Ebb], at_most(1.2, Native), names::list_first),
    row!("untar 5,000 files", "s", &[Native, Noop, Ebb], at_most(1.3, Noop), names::untar),
    row!("find in them, ten times", "s", &[Native, Noop, Ebb], None, names::find),
    row!("rm -rf", "s", &[Native, Noop, Ebb], at_most(1.3, Noop), names::remove),
    row!("git clone", "s", &[Native, Noop, Ebb], at_most(1.3, Noop), names::clone),
];

const BUCKET: &[Row] = &[
    row!("read, sequential", "MB/s", &[Curl, Ebb], at_least(0.9, Curl), bucket::sequential),
    row!("read the first 128 KiB of files, one after the other", "/s", &[Curl, Ebb], at_least(0.67, Curl), bucket::beginnings),
    row!("read 128 KiB anywhere, 8 at one time", "/s", &[Curl, Ebb], at_least(0.8, Curl), bucket::anywhere),
    row!("fetched for each byte of these", "bytes", &[Ebb], None, bucket::amplification),
    row!("write, until the bucket has it", "MB/s", &[Curl, Ebb], at_least(0.9, Curl), bucket::write_back),
];

/// Every column of a table, once, in the order in which they are shown.
pub fn columns<'a>(rows: impl IntoIterator<Item = &'a [Column]>) -> Vec<Column> {
    let mut columns: Vec<Column> = rows.into_iter().flatten().copied().collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}
