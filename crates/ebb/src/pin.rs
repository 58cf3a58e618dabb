//! A pin is an extended attribute.

use crate::attribute;
use crate::failure::Failure;
use ebb_model::PIN;
use std::path::{Path, PathBuf};

pub fn set(path: &Path) -> Result<(), Failure> {
    attribute::set(path, PIN, b"")
}

/// The first that cannot be unpinned ends it.
pub fn remove(paths: &[PathBuf]) -> Result<(), Failure> {
    paths.iter().try_for_each(|path| {
        attribute::remove(path, PIN, "is not pinned itself; `ebb explain` says what keeps it")
    })
}
