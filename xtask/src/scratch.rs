//! Directories of a run, which are known by their names to be its own.

use crate::{Outcome, tool};
use std::fs;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// One that is gone with this.
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// `TMPDIR` says on which disk.
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

    /// Leaves it when dropped.
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

fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => eprintln!("{} is left behind: {error}", path.display()),
        _ => {}
    }
}

/// Where tmpfs is, on every distribution.
const MEMORY: &str = "/dev/shm";
