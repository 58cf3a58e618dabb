//! The default data directory of a volume: the same one for every spelling of its address.
//!
//! Earlier versions named it after the address as it was typed. Such a directory is still used:
//! otherwise data that exists only in it would never reach the bucket.

use crate::failure::Failure;
use crate::output::Shown;
use ebb_cli::places;
use serde::Deserialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The data directory of the storage at `url`, and those that were used for it before and are no
/// longer.
///
/// Resolves the paths of other directories that store volumes, and blocks on a file system that
/// does not answer. A daemon that takes over must not call it: the mount that waits for the daemon
/// can be such a file system.
pub fn of_storage(url: &str) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    let own = ebb_bucket::address(url).map_err(|error| Failure::Usage(error.to_string()))?;
    let is_own = |known: &str| {
        scheme(known).eq_ignore_ascii_case(scheme(&own))
            && ebb_bucket::address(known).is_ok_and(|address| address == own)
    };
    let own_dir = places::data_dir(&own);
    let of_spellings =
        [own_dir.clone(), places::data_dir(url), places::data_dir(&format!("{own}/"))];
    let is_used = |path: &Path| path.join(IDENTITY).exists();
    let named = places::data_dirs().into_iter().filter(|(path, url)| is_used(path) && is_own(url));
    let mut used: Vec<PathBuf> = named
        .map(|(path, _)| path)
        .chain(of_spellings.into_iter().filter(|path| is_used(path)))
        .collect();
    used.sort_unstable();
    used.dedup();
    let (mut used, caches): (Vec<_>, Vec<_>) =
        used.into_iter().partition(|path| may_hold_changes(path));
    match &used[..] {
        [] => Ok((caches.into_iter().next().unwrap_or(own_dir), Vec::new())),
        [only] => Ok((only.clone(), Vec::new())),
        _ => {
            let last = last_of(&used).ok_or_else(|| several(&own, &used))?;
            used.retain(|path| *path != last);
            Ok((last, used))
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// Not if its identity names no volume, or a volume that was only read from it.
pub fn may_hold_changes(data_dir: &Path) -> bool {
    match fs::read(data_dir.join(IDENTITY)) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(bytes) => serde_json::from_slice(&bytes).map_or(true, |identity: Identity| {
            identity.cluster.is_some() && !identity.was_only_read()
        }),
    }
}

/// Removes a data directory that the caller has locked. `LOCK` goes last: a process that locks
/// another file of that name in the meantime keeps the directory.
pub fn remove(data_dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(data_dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_file(data_dir.join(LOCK))?;
    match fs::remove_dir(data_dir) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed,
    }
}

/// The one that has served the volume last, where all are of one volume.
fn last_of(used: &[PathBuf]) -> Option<PathBuf> {
    let known =
        used.iter().map(|path| Some((identity(path)?, path))).collect::<Option<Vec<_>>>()?;
    let of_one = known.windows(2).all(|pair| pair[0].0.cluster == pair[1].0.cluster);
    let last = known.iter().max_by_key(|(identity, _)| identity.incarnation)?;
    let of_last =
        known.iter().filter(|(identity, _)| identity.incarnation == last.0.incarnation).count();
    (of_one && of_last == 1).then(|| last.1.clone())
}

/// The message about a data directory that is no longer used.
pub fn former(left: &Path, used: &Path) -> String {
    format!(
        "{} holds this volume too, under another spelling of its address, and {} has taken the \
         volume over since: remove it only if `ebb fsck` of it finds nothing that is not in the \
         bucket",
        left.shown(),
        used.shown()
    )
}

fn several(url: &str, used: &[PathBuf]) -> Failure {
    let all: Vec<String> = used.iter().map(|path| path.shown()).collect();
    Failure::Failed(format!(
        "{url} has several data directories, made for different spellings of its address: {}. \
         What has not reached the bucket may be in any of them, which `ebb fsck DIRECTORY` says: \
         choose one with --data",
        all.join(", ")
    ))
}

/// The fields of the file `identity` that name the volume and its take-over
/// (`docs/format/data-directory.md`).
#[derive(Deserialize)]
struct Identity {
    #[serde(default)]
    format: u8,
    cluster: Option<String>,
    /// None if the volume was only read.
    incarnation: Option<u64>,
}

impl Identity {
    fn was_only_read(&self) -> bool {
        // As release 0.1.0 wrote it.
        self.incarnation.is_none() || self.format == 1 && self.incarnation == Some(65_535)
    }
}

/// `None` where it cannot be read, as in an encrypted directory.
fn identity(data_dir: &Path) -> Option<Identity> {
    serde_json::from_slice(&fs::read(data_dir.join(IDENTITY)).ok()?).ok()
}

const IDENTITY: &str = "identity";
const LOCK: &str = "LOCK";

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(identity: Option<&str>) -> PathBuf {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ebb-data-{}-{count}", std::process::id()));
        fs::create_dir_all(dir.join("log/deep")).unwrap();
        fs::write(dir.join(LOCK), "1").unwrap();
        fs::write(dir.join("ebb.log"), "").unwrap();
        if let Some(identity) = identity {
            fs::write(dir.join(IDENTITY), identity).unwrap();
        }
        dir
    }

    #[test]
    fn data_directory_without_a_volume_of_its_own_holds_no_changes() {
        for (identity, may_hold) in [
            (None, false),
            (Some(r#"{"cluster":null,"incarnation":0}"#), false),
            (Some(r#"{"format":1,"cluster":"only read","incarnation":65535}"#), false),
            (Some(r#"{"format":2,"cluster":"only read","incarnation":null}"#), false),
            (Some(r#"{"format":2,"cluster":"owned","incarnation":65535}"#), true),
            (Some(r#"{"cluster":"owned","incarnation":1}"#), true),
            (Some("encrypted"), true),
        ] {
            let dir = dir_with(identity);
            assert_eq!(may_hold_changes(&dir), may_hold, "{identity:?}");
            remove(&dir).unwrap();
            assert!(!dir.exists());
        }
    }
}
