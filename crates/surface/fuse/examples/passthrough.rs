//! The kernel's limit for passthrough files of a FUSE mount: `cargo xtask bench` mounts it beside
//! ebb.

mod beside;
mod serving;

use beside::Beside;
use ebb_fuse::MountOptions;
use std::io;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(directory), Some(point)) = (args.next(), args.next()) else {
        return Err(io::Error::other("usage: passthrough DIRECTORY MOUNTPOINT"));
    };
    let options = MountOptions { passthrough: true, ..MountOptions::default() };
    serving::serve(&point, &options, |passthrough| {
        let passthrough =
            passthrough.ok_or_else(|| io::Error::other("this kernel has no passthrough"))?;
        Ok(Beside::new(directory, passthrough))
    })
}
