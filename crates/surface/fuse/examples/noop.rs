//! The cost of any FUSE server: keeps its files in memory and does nothing else.
//! `cargo xtask bench` mounts it beside ebb.

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/memfs/mod.rs"]
mod memfs;
mod serving;

use ebb_fuse::MountOptions;
use memfs::{MemFs, Settings};
use std::io;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let point = std::env::args_os()
        .nth(1)
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other("usage: noop MOUNTPOINT"))?;
    serving::serve(&point, &MountOptions::default(), |_| Ok(MemFs::new(Settings::default())))
}
