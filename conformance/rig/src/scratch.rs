//! Directories of a run, recognisable by their names.

use crate::{Outcome, tool};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A directory that is removed on drop.
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// In `TMPDIR`.
    pub fn new(name: &str) -> Outcome<Scratch> {
        Scratch::below(&std::env::temp_dir(), name)
    }

    pub fn in_memory(name: &str) -> Outcome<Scratch> {
        Scratch::below(Path::new(MEMORY), name)
    }

    /// On the disk of the target directory.
    pub fn beside_suites(name: &str) -> Outcome<Scratch> {
        Scratch::below(&tool::conformance()?, name)
    }

    fn below(place: &Path, name: &str) -> Outcome<Scratch> {
        let path = place.join(format!("ebb-{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Scratch { path, keep: false })
    }

    /// Keeps it on drop.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    pub fn is_kept(&self) -> bool {
        self.keep
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            remove(&self.path);
        }
    }
}

fn is_of(file_name: &OsStr, run: u32) -> bool {
    file_name
        .to_str()
        .and_then(|name| name.strip_prefix("ebb-")?.strip_suffix(&format!("-{run}")))
        .is_some()
}

/// Whether a path is in a directory of that run.
pub fn holds(path: &Path, run: u32) -> bool {
    path.iter().any(|part| is_of(part, run))
}

/// Removes all directories of a run that has ended.
pub fn remove_all(run: u32) -> Outcome<()> {
    let places = [std::env::temp_dir(), MEMORY.into(), tool::conformance()?];
    for place in places.iter().filter(|place| place.exists()) {
        for entry in fs::read_dir(place)? {
            let entry = entry?;
            if is_of(&entry.file_name(), run) {
                remove(&entry.path());
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            eprintln!("{} is left behind: {error}", path.display())
        }
        _ => {}
    }
}

/// The path of tmpfs on every distribution.
const MEMORY: &str = "/dev/shm";

#[cfg(test)]
mod tests {
    use super::*;

    /// Danger: the cleanup removes another run's directory, or one of a user's daemons.
    #[test]
    fn a_run_knows_its_own_directories() {
        let run = std::process::id();
        let scratch = Scratch::new("own").unwrap();
        assert!(
            holds(&scratch.join("mnt"), run)
                && !holds(&scratch, run + 1)
                && !holds(&scratch, run % 10)
        );
        assert!(
            !holds(Path::new("/tmp/ebb-65534"), 65534)
                && holds(Path::new("/tmp/ebb-x-65534"), 65534)
        );
    }
}
