//! Workloads on names and attributes: listings, and programs that make and remove trees.

use super::place::{Column, Places};
use super::{NAMES, drop_caches, seconds};
use crate::{Outcome, tool};
use ebb_bench::Rng;
use ebb_bench::work::{self, Stop};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const ENTRIES: usize = 100_000;
pub const TREE_FILES: usize = 5000;
const TREE_DIRECTORIES: usize = 250;

/// readdir and lstat of every entry with warm kernel caches: thousand/s, the fastest of a few
/// passes. Where DAMON reclaims memory that looks unused, the kernel loses cached entries between
/// passes and requests all of them again.
pub fn list_warm(places: &mut Places, column: Column) -> Outcome<f64> {
    let directory = entries(places, column)?;
    list(&directory, ENTRIES)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..5 {
        fastest = fastest.min(seconds(|| list(&directory, ENTRIES))?);
    }
    Ok(ENTRIES as f64 / 1e3 / fastest)
}

/// As [`list_warm`], after the kernel has dropped names and attributes: s.
pub fn list_first(places: &mut Places, column: Column) -> Outcome<f64> {
    let directory = entries(places, column)?;
    places.settle(column)?;
    drop_caches(NAMES)?;
    seconds(|| list(&directory, ENTRIES))
}

/// tar of about 5,000 files in 250 directories: s.
pub fn untar(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = places.root(column)?.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
        places.settle(column)?;
    }
    unpack(places, &tree)
}

/// `rm -rf` of that tree: s.
pub fn remove(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    seconds(|| tool::run(Command::new("rm").arg("-rf").arg(&tree)))
}

/// `git clone` of a repository with that tree, from native: s.
pub fn clone(places: &mut Places, column: Column) -> Outcome<f64> {
    let copy = places.root(column)?.join("clone");
    let took = clone_to(places, &copy)?;
    fs::remove_dir_all(&copy)?;
    Ok(took)
}

/// `find` by an attribute of each file of that tree, ten times: s.
pub fn find(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    let find = || {
        tool::run(
            Command::new("find").arg(&tree).args(["-size", "+1000000k"]).stdout(Stdio::null()),
        )
    };
    find()?;
    seconds(|| (0..10).try_for_each(|_| find()))
}

/// `git status` in a clone of it, ten times: s.
pub fn status(places: &mut Places, column: Column) -> Outcome<f64> {
    let copy = places.root(column)?.join("clone-kept");
    if !copy.exists() {
        clone_to(places, &copy)?;
        places.settle(column)?;
    }
    let status =
        || tool::run(Command::new("git").args(["status", "--porcelain"]).current_dir(&copy));
    // The first run writes git's index.
    status()?;
    seconds(|| (0..10).try_for_each(|_| status()))
}

pub fn list(directory: &Path, entries: usize) -> Outcome<()> {
    let listed = work::list(directory, &Stop::default())?;
    if listed == entries { Ok(()) } else { Err(format!("{listed} entries of {entries}").into()) }
}

/// The large directory of a place, made once.
pub fn entries(places: &mut Places, column: Column) -> Outcome<PathBuf> {
    let directory = places.root(column)?.join("entries");
    if !directory.exists() {
        fs::create_dir(&directory)?;
        (0..ENTRIES).try_for_each(|n| {
            File::create_new(directory.join(format!("entry-{n:06}"))).map(drop)
        })?;
        places.settle(column)?;
    }
    Ok(directory)
}

fn tree(places: &mut Places, column: Column) -> Outcome<PathBuf> {
    let tree = places.root(column)?.join("tree");
    if !tree.exists() {
        unpack(places, &tree)?;
        places.settle(column)?;
    }
    Ok(tree)
}

fn clone_to(places: &Places, copy: &Path) -> Outcome<f64> {
    let repository = repository(places)?;
    seconds(|| {
        tool::run(
            Command::new("git").args(["clone", "--quiet", "--no-local"]).arg(&repository).arg(copy),
        )
    })
}

fn unpack(places: &Places, tree: &Path) -> Outcome<f64> {
    let archive = archive(places)?;
    fs::create_dir(tree)?;
    seconds(|| {
        tool::run(
            Command::new("tar")
                .arg("--extract")
                .arg("--file")
                .arg(&archive)
                .arg("--directory")
                .arg(tree),
        )
    })
}

/// Made once; file sizes of source code, about 30 MB in all.
fn archive(places: &Places) -> Outcome<PathBuf> {
    let archive = places.scratch("tree.tar")?;
    if !archive.exists() {
        let source = source(places)?;
        tool::run(
            Command::new("tar")
                .arg("--create")
                .arg("--file")
                .arg(&archive)
                .arg("--directory")
                .arg(&source)
                .arg("."),
        )?;
    }
    Ok(archive)
}

fn repository(places: &Places) -> Outcome<PathBuf> {
    let source = source(places)?;
    if !source.join(".git").exists() {
        archive(places)?;
        let git = |args: &[&str]| tool::output(Command::new("git").args(args).current_dir(&source));
        git(&["init", "--quiet"])?;
        git(&["add", "."])?;
        git(&[
            "-c",
            "user.name=bench",
            "-c",
            "user.email=bench@localhost",
            "commit",
            "--quiet",
            "--message",
            "tree",
        ])?;
    }
    Ok(source)
}

fn source(places: &Places) -> Outcome<PathBuf> {
    let source = places.scratch("source")?;
    if !source.exists() {
        let mut rng = Rng(7);
        fs::create_dir(&source)?;
        let mut directories = vec![source.clone()];
        for n in 1..TREE_DIRECTORIES {
            let parent = &directories[rng.below(n.min(50) as u64) as usize];
            let directory = parent.join(format!("d{n}"));
            fs::create_dir(&directory)?;
            directories.push(directory);
        }
        for n in 0..TREE_FILES {
            let directory = &directories[rng.below(directories.len() as u64) as usize];
            // Most are small and few are large: the sum of three powers of two.
            let len = (0..3).map(|_| 1u64 << rng.below(14)).sum::<u64>() + rng.below(1000);
            fs::write(directory.join(format!("f{n}.c")), rng.bytes(len as usize))?;
        }
    }
    Ok(source)
}
