//! The identity of a data directory: written before the node first takes over a volume, so that it
//! knows its own head again after a crash at any point.

use crate::admin::backup::ENCRYPTION;
use crate::random_u128;
use ebb_format::identity::{self, Identity};
use ebb_journal::{LOG_DIR, SNAPSHOT_DIR};
use ebb_ports::{Disk, DiskError, Entropy, OpenMode};
use thiserror::Error;

const PATH: &str = "identity";
const DRAFT: &str = "identity.new";
const MAX_BYTES: usize = 64 << 10;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum IdentityError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{PATH}: {0}")]
    Format(#[from] ebb_format::FormatError),
    #[error(
        "it holds a volume ({dir}/{name}) and has lost its file {PATH:?}, which says of which: put \
         that back from a copy, or start with another \
         data directory and keep this one"
    )]
    Lost { dir: &'static str, name: String },
    #[error(
        "{0:?} is in it, which is not ebb's: give it a directory of its own, which is new or empty"
    )]
    Foreign(String),
}

/// The entries of a data directory: its folders, this file, the encryption key, files for people,
/// and entries of the file system itself.
const OWN: [&str; 14] = [
    LOG_DIR,
    SNAPSHOT_DIR,
    "store",
    "packs",
    PATH,
    DRAFT,
    ENCRYPTION,
    "encryption.new",
    "LOCK",
    "replica",
    "replica.new",
    "ebb.log",
    "ebb.log.1",
    "lost+found",
];

/// The identity of the data directory; an empty one gets one.
pub async fn load_or_create(
    disk: &dyn Disk,
    entropy: &dyn Entropy,
) -> Result<Identity, IdentityError> {
    if let Some(known) = load(disk).await? {
        return Ok(known);
    }
    let fresh = Identity::of(random_u128(entropy), None);
    store(disk, &fresh).await?;
    Ok(fresh)
}

/// `None` of a directory that no node has used: bytes of files come after the identity. The files
/// of a restore come before it, so an interrupted one leaves a log and a snapshot that no client
/// has seen.
pub async fn load(disk: &dyn Disk) -> Result<Option<Identity>, IdentityError> {
    match disk.open(PATH, OpenMode::Existing).await {
        Ok(file) => return Ok(Some(identity::decode(&file.read_at(0, MAX_BYTES).await?)?)),
        Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    for dir in ["store", "packs"] {
        if let Some(name) = disk.list(dir).await?.into_iter().next() {
            return Err(IdentityError::Lost { dir, name });
        }
    }
    // Foreign files must not be taken for those of an interrupted start, which are removed.
    for (dir, is_own) in [
        ("", is_own as fn(&str) -> bool),
        (LOG_DIR, ebb_journal::is_segment),
        (SNAPSHOT_DIR, ebb_journal::is_snapshot),
    ] {
        if let Some(name) = disk.list(dir).await?.into_iter().find(|name| !is_own(name)) {
            return Err(IdentityError::Foreign(if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            }));
        }
    }
    Ok(None)
}

fn is_own(name: &str) -> bool {
    OWN.contains(&name)
}

/// Replaces the identity; the old one stays until the new one is forced.
pub async fn store(disk: &dyn Disk, identity: &Identity) -> Result<(), IdentityError> {
    let file = disk.open(DRAFT, OpenMode::Create).await?;
    file.set_len(0).await?;
    file.write_at(0, identity::encode(identity)).await?;
    file.sync_data().await?;
    disk.rename(DRAFT, PATH).await?;
    disk.sync_dir("").await?;
    Ok(())
}
