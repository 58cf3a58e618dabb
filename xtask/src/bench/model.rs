//! Start-up of a model service (evaluated in the Objcache paper): 464 files, each read whole into
//! memory, one after the other.

use super::curl::{self, AT_ONCE, Request};
use super::place::{Column, Places};
use super::{PAGES_AND_NAMES, drop_caches, seconds};
use crate::{Outcome, tool};
use ebb_bench::Rng;
use std::fs;
use std::path::{Path, PathBuf};

/// The number of files of the paper's model, at a hundredth of its size.
const FILES: usize = 464;

/// File sizes in rotation: small vectors and large matrices, 457 MB in all.
const SIZES: [usize; 4] = [4 << 10, 256 << 10, 1 << 20, 5 << 19];

/// With a cold cache: s until the model is in memory.
pub fn first(places: &mut Places, column: Column) -> Outcome<f64> {
    make(places, column.owner())?;
    if column == column.owner() {
        places.begin_cold(column, &[])?;
        let directory = directory(places, column)?;
        return seconds(|| load(&directory));
    }
    let copy = places.scratch("model-copy")?;
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    fs::create_dir(&copy)?;
    places.settle(column)?;
    let at_once = if column == Column::Parallel { AT_ONCE as usize } else { 1 };
    let save =
        |file: usize| Request::save(&format!("model/{}", name(file)), &copy.join(name(file)));
    let lists =
        (0..at_once).map(|list| (list..FILES).step_by(at_once).map(save).collect()).collect();
    seconds(|| {
        curl::run(places, lists)?;
        load(&copy)
    })
}

/// As [`first`], after `ebb warmup`.
pub fn warmed_up(places: &mut Places, column: Column) -> Outcome<f64> {
    if column != Column::Ebb {
        return first(places, column);
    }
    make(places, column)?;
    places.begin_cold(column, &[])?;
    let directory = directory(places, column)?;
    let rig = places.rig()?;
    seconds(|| {
        tool::output(rig.ebb(&["warmup"]).arg(&directory))?;
        load(&directory)
    })
}

/// Cached on the node's disk, with an empty page cache: s.
pub fn from_disk(places: &mut Places, column: Column) -> Outcome<f64> {
    let directory = loaded(places, column)?;
    drop_caches(PAGES_AND_NAMES)?;
    seconds(|| load(&directory))
}

/// From the page cache: s.
pub fn from_memory(places: &mut Places, column: Column) -> Outcome<f64> {
    let directory = loaded(places, column)?;
    seconds(|| load(&directory))
}

fn load(directory: &Path) -> Outcome<()> {
    (0..FILES).try_for_each(|file| match fs::read(directory.join(name(file)))?.len() {
        len if len == size(file) => Ok(()),
        len => Err(format!("{len} bytes of {}", size(file)).into()),
    })
}

/// The model of a place after one load.
fn loaded(places: &mut Places, column: Column) -> Outcome<PathBuf> {
    make(places, column)?;
    places.settle(column)?;
    let directory = directory(places, column)?;
    load(&directory)?;
    Ok(directory)
}

/// Makes the model, once per place.
fn make(places: &mut Places, column: Column) -> Outcome<()> {
    let directory = directory(places, column)?;
    if directory.exists() {
        return Ok(());
    }
    fs::create_dir(&directory)?;
    let mut rng = Rng(464);
    (0..FILES).try_for_each(|file| fs::write(directory.join(name(file)), rng.bytes(size(file))))?;
    places.settle(column)
}

fn directory(places: &mut Places, column: Column) -> Outcome<PathBuf> {
    Ok(places.root(column)?.join("model"))
}

fn name(file: usize) -> String {
    format!("weights-{file:03}")
}

fn size(file: usize) -> usize {
    SIZES[file % SIZES.len()]
}
