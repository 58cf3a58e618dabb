//! A test of the disk itself with standard programs: forced data survives, unforced data may be
//! lost. With a disk that lost nothing, the power cut test could not fail.

use super::layer::Layer;
use crate::{Outcome, tool};
use std::fs;
use std::path::Path;
use std::process::Command;

const CUTS: u64 = 24;

pub fn run(dir: &Path) -> Outcome<()> {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..CUTS {
        match once(&dir.join(format!("trial-{seed}")), seed)? {
            true => kept += 1,
            false => lost += 1,
        }
    }
    if kept == 0 || lost == 0 {
        return Err(format!(
            "a disk that keeps {kept} of {CUTS} files that were not forced tries nothing"
        )
        .into());
    }
    println!("the disk keeps every file that was forced, and {kept} of {CUTS} that were not");
    Ok(())
}

/// Returns whether the unforced file survived intact.
fn once(dir: &Path, seed: u64) -> Outcome<bool> {
    let point = dir.join("disk");
    fs::create_dir_all(&point)?;
    let mut layer = Layer::new(&dir.join("platter"), &point)?;
    let script = "set -e
        mkdir safe
        dd if=/dev/urandom of=safe/draft bs=30000 count=3 conv=fsync status=none
        mv safe/draft safe/file
        sync . safe
        cp safe/file loose
        dd if=/dev/zero of=safe/later bs=1000 count=1 status=none";
    tool::run(Command::new("sh").args(["-c", script]).current_dir(&point))?;
    let written = fs::read(point.join("safe/file"))?;
    layer.switch_off();
    layer.take_away()?;
    layer.come_back(seed)?;
    if fs::read(point.join("safe/file"))? != written {
        return Err(format!("what was forced is lost with seed {seed}").into());
    }
    match fs::read(point.join("loose")) {
        Ok(loose) => Ok(loose == written),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}
