//! A bucket of very many objects: the mount is usable at once, a large directory lists its first
//! name long before its last, and memory is used only for loaded names.

use crate::rig::{Rig, Shape};
use crate::{Outcome, tool};
use std::fs;
use std::time::Instant;

pub fn run(keys: u64, release: bool) -> Outcome<()> {
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    println!("filling a bucket with {keys} objects");
    let mut rig = Rig::filled(Shape::EmbeddedS3, &binaries, keys)?;
    // The server answers once it is filled.
    rig.mount("")?;
    rig.umount()?;
    rig.drop_cache()?;

    let mounted = rig.mount("")?;
    println!("{:>9.3} s  until the mount can be used", mounted.as_secs_f64());
    let top = fs::read_dir(rig.mountpoint())?.count();
    let large = rig.mountpoint().join("d00");
    let began = Instant::now();
    let mut names = fs::read_dir(&large)?;
    names.next().ok_or("the directory is empty")??;
    let first = began.elapsed();
    let mut listed = 1;
    for name in names {
        name?;
        listed += 1;
    }
    println!("{:>9.3} s  until the first name of a directory of {listed}", first.as_secs_f64());
    println!("{:>9.3} s  until the last", began.elapsed().as_secs_f64());
    println!(
        "{:>9.1} MB resident with that one of {top} directories listed",
        rig.resident_bytes()? as f64 / 1e6
    );
    rig.umount()
}
