//! Benchmarks of ebb beside the machine, its kernel and other file systems: `docs/benchmarks.md`.
//!
//! A row of a table is a workload, a column a place to run it in. Every place exists for the whole
//! run, and each round runs every row in every place, so that noise of the machine affects all
//! columns alike.

mod bucket;
mod cache;
mod chunks;
mod curl;
mod data;
mod line;
mod mdtest;
mod model;
mod names;
mod peers;
mod place;
mod plot;
mod quiet;
mod report;
mod shared;
mod tables;

use crate::{Outcome, tool};
use clap::Args;
use peers::Programs;
use place::{Column, Places};
use quiet::Busy;
use report::{Report, Taken};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tables::Table;

#[derive(Args)]
pub struct Wanted {
    #[arg(value_enum)]
    table: Table,
    /// Measurements of each row in each column.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only rows whose names contain this.
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Write all measurements to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Replace the table in this page, and its plot beside it.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Also measure other file systems, whose programs are in `bin` of this directory or installed.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
}

/// The peers of a table: versions of those that were mounted, and reasons for those that were not.
#[derive(Default)]
struct Peers {
    there: Vec<(Column, String)>,
    absent: Vec<(Column, String)>,
}

pub fn run(wanted: Wanted) -> Outcome<()> {
    tool::needs("curl", "--version", "it reads objects beside ebb")?;
    let binaries = tool::build(&["ebb", "ebb-s3-server"], true)?;
    let examples = tool::build_examples("ebb-fuse", &["noop", "passthrough"])?;
    let rows: Vec<&tables::Row> = wanted
        .table
        .rows()
        .iter()
        .filter(|row| wanted.only.as_ref().is_none_or(|only| row.name.contains(only.as_str())))
        .collect();
    if rows.is_empty() {
        return Err("no row is called that".into());
    }
    let programs = wanted.peers.as_deref().map(Programs::new);
    let mut places = Places::new(&binaries, &examples, programs, wanted.table.setup())?;
    let peers =
        if wanted.peers.is_some() { start_peers(&mut places, &rows) } else { Peers::default() };
    let mut taken: Vec<Taken> = rows.iter().map(|row| Taken::of(row, &peers.there)).collect();
    let busy = measure(&mut places, &mut taken, wanted.rounds)?;
    let report = Report::new(wanted.table, wanted.rounds, taken, peers, &busy, &places)?;
    drop(places);
    println!("{}", report.markdown());
    if let Some(path) = &wanted.json {
        std::fs::write(path, report.json()?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &wanted.markdown {
        // Figures of a busy machine are not published.
        if busy.is_busy() {
            return Err(format!(
                "others had {:.0} % of the machine: {} stays as it is",
                100.0 * busy.worst(),
                path.display()
            )
            .into());
        }
        report.publish(path)?;
    }
    Ok(())
}

fn start_peers(places: &mut Places, rows: &[&tables::Row]) -> Peers {
    let mut peers = Peers::default();
    let named = rows.iter().flat_map(|row| row.columns).copied().filter(|column| column.is_peer());
    for column in named.collect::<BTreeSet<Column>>() {
        match places.start_peer(column) {
            Ok(version) => peers.there.push((column, version)),
            Err(why) => peers.absent.push((column, why.to_string())),
        }
    }
    peers
}

/// Every row in every round. Returns the load of the machine before each round and after the last.
fn measure(places: &mut Places, taken: &mut [Taken], rounds: u16) -> Outcome<Busy> {
    let mut busy = Busy::default();
    for round in 1..=rounds {
        places.turn_to(Column::Native)?;
        busy.look()?;
        for taken in &mut *taken {
            let row = taken.row;
            for column in taken.columns() {
                eprint!("\rround {round} of {rounds}: {}, {:<30}", row.name, column.name());
                let turned = places.turn_to(column);
                let measured = turned.and_then(|()| (row.measure)(places, column));
                let measured = measured.and_then(|value| places.settle(column).map(|()| value));
                match measured {
                    Ok(value) => taken.add(column, value),
                    Err(error) if column.is_peer() => taken.fail(column, error.to_string()),
                    Err(error) => {
                        return Err(format!("{}, {}: {error}", row.name, column.name()).into());
                    }
                }
            }
        }
    }
    places.turn_to(Column::Native)?;
    busy.look()?;
    eprintln!();
    Ok(busy)
}

/// The measured commit, followed by `+` if the tree has uncommitted changes.
fn commit(root: &Path) -> Outcome<String> {
    let hash =
        tool::output(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root))?;
    let changed = tool::output(
        Command::new("git")
            .args(["status", "--porcelain", "--untracked-files=no"])
            .current_dir(root),
    )?;
    Ok(format!("{}{}", hash.trim(), if changed.trim().is_empty() { "" } else { "+" }))
}

fn seconds(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}

/// The kernel cache to drop, by proc_sys_vm(5): dentries and inodes.
const NAMES: &str = "2";
const PAGES_AND_NAMES: &str = "3";

/// For the whole machine, since the kernel offers nothing finer. Dirty pages stay.
fn drop_caches(what: &str) -> Outcome<()> {
    std::fs::write("/proc/sys/vm/drop_caches", what)
        .map_err(|error| format!("/proc/sys/vm/drop_caches: {error}").into())
}

/// Renames a cache directory and truncates its files. Removing them would slow down the files that
/// are created next: ext4 scans inodes that were freed within the last minute before it allocates
/// one.
fn put_aside(cache: &Path) -> Outcome<()> {
    let name = cache.file_name().unwrap_or_default().to_string_lossy();
    let aside = (1..)
        .map(|number| cache.with_file_name(format!("{name}-before-{number}")))
        .find(|path| !path.exists());
    let aside = aside.ok_or("no name is free")?;
    std::fs::rename(cache, &aside)?;
    empty(&aside)
}

fn empty(dir: &Path) -> Outcome<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => empty(&entry.path())?,
            kind if kind.is_file() => {
                std::fs::OpenOptions::new().write(true).open(entry.path())?.set_len(0)?
            }
            _ => {}
        }
    }
    Ok(())
}
