//! The default data directory of a volume: the same one for every spelling of its address.
//!
//! Earlier versions named it after the address as it was typed. Such a directory is still used:
//! otherwise data that exists only in it would never reach the bucket.

use crate::failure::Failure;
use crate::output::Shown;
use ebb_cli::places;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The data directory of the storage at `url`, and those that were used for it before and are no
/// longer.
pub fn of_storage(url: &str) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    let address = |url: &str| ebb_bucket::address(url).ok();
    let own = ebb_bucket::address(url).map_err(|error| Failure::Usage(error.to_string()))?;
    let of_spellings = [&own, url, &format!("{own}/")].map(places::data_dir);
    let named =
        places::data_dirs().into_iter().filter(|(_, url)| address(url).as_ref() == Some(&own));
    let mut used: Vec<PathBuf> = named
        .map(|(path, _)| path)
        .chain(of_spellings)
        .filter(|path| path.join(IDENTITY).exists())
        .collect();
    used.sort_unstable();
    used.dedup();
    match &used[..] {
        [] => Ok((places::data_dir(&own), Vec::new())),
        [only] => Ok((only.clone(), Vec::new())),
        _ => {
            let last = last_of(&used).ok_or_else(|| several(&own, &used))?;
            used.retain(|path| *path != last);
            Ok((last, used))
        }
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
        "{} was made for this volume too, under another spelling of its address, before {}: \
         `ebb fsck` of it says whether something in it never reached the bucket; then remove it",
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
    cluster: Option<String>,
    incarnation: u16,
}

/// `None` where it cannot be read, as in an encrypted directory.
fn identity(data_dir: &Path) -> Option<Identity> {
    serde_json::from_slice(&fs::read(data_dir.join(IDENTITY)).ok()?).ok()
}

const IDENTITY: &str = "identity";
