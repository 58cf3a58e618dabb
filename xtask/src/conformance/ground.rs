//! The places that a suite runs at, one after the other.

use super::Mounts;
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::{Outcome, name_of, tool};
use std::fs;
use std::path::PathBuf;

/// For suites that run as several users, create every file type and check permissions.
pub const OPTIONS: &str = "allow_other,default_permissions,dev,suid";

/// The name of this machine's disk in results.
pub const DISK: &str = "disk";

pub struct Ground {
    pub name: String,
    /// Empty at first, for the suite's files.
    pub dir: PathBuf,
    /// `None` on this machine's disk.
    pub rig: Option<Rig>,
}

/// Runs a suite on this machine's disk, unless it is left out, and on a fresh mount of each shape,
/// followed by `fsck`. `flags` go to the node.
pub fn everywhere<T>(
    on: &Mounts,
    flags: &[&str],
    mut suite: impl FnMut(&mut Ground) -> Outcome<T>,
) -> Outcome<Vec<(String, T)>> {
    let binaries = tool::build(&["ebb", "ebb-s3-server"], on.release)?;
    let mut results = Vec::new();
    if !on.mounts_only {
        let native = Scratch::beside_suites("disk")?;
        let mut disk = Ground { name: DISK.to_owned(), dir: native.to_path_buf(), rig: None };
        let result = suite(&mut disk)?;
        results.push((disk.name, result));
    }
    for shape in &on.mount {
        let mut rig = Rig::new(*shape, &binaries)?.with(flags);
        rig.mount(OPTIONS)?;
        let dir = rig.mountpoint().join("t");
        fs::create_dir(&dir)?;
        let mut ground = Ground { name: name_of(*shape), dir, rig: Some(rig) };
        let result = suite(&mut ground).and_then(|result| ground.end().map(|()| result));
        match result {
            Ok(result) => results.push((ground.name, result)),
            Err(error) => {
                let left = ground.rig.iter_mut().map(|rig| {
                    rig.keep();
                    rig.dir.display().to_string()
                });
                return Err(format!(
                    "{}: {error}\nleft to look at: {}",
                    name_of(*shape),
                    left.collect::<String>()
                )
                .into());
            }
        }
    }
    Ok(results)
}

impl Ground {
    /// Unmounts, and mounts again with an empty data directory, so that only the bucket's state is
    /// left. No effect on a disk.
    pub fn forget_all_but_the_bucket(&mut self) -> Outcome<()> {
        if let Some(rig) = &mut self.rig {
            rig.umount()?;
            rig.drop_cache()?;
            rig.mount(OPTIONS)?;
        }
        Ok(())
    }

    /// Fails on any finding of `ebb fsck`.
    pub fn fsck(&self) -> Outcome<()> {
        self.rig.as_ref().map_or(Ok(()), Rig::fsck)
    }

    fn end(&mut self) -> Outcome<()> {
        self.fsck()?;
        if let Some(rig) = &mut self.rig {
            rig.umount()?;
        }
        Ok(())
    }
}
