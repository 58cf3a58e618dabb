//! Encryption at rest: a disk that encrypts the contents of all its files (decision 11).
//! `docs/format/encryption.md` specifies the bytes and the threat model.
//!
//! Law: each data directory has a random data key, stored in it wrapped with the owner's key.
//! Unwrapping detects a wrong key before any file is read with it.

mod disk;
mod file;
mod key;
mod xts;

pub use disk::EncryptedDisk;
pub use key::{Key, KeyError};

use ebb_format::FormatError;
use ebb_format::encryption::{self, WrappedKey};
use ebb_ports::{Disk, DiskError, Entropy, OpenMode};
use key::DataKey;
use std::rc::Rc;
use thiserror::Error;

/// File with the wrapped key, itself not encrypted.
pub(crate) const KEY_FILE: &str = "encryption";
pub(crate) const KEY_DRAFT: &str = "encryption.new";

const MAX_KEY_FILE_BYTES: usize = 4 << 10;

/// Names that a node creates. A data directory without any of them can become encrypted.
const OF_A_NODE: [&str; 6] = ["identity", "identity.new", "log", "packs", "snapshot", "store"];

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EncryptionError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{KEY_FILE}: {0}")]
    Format(#[from] FormatError),
    #[error(
        "it is encrypted, and no key was given: see --encryption-key-file and \
         --encryption-key-command"
    )]
    NoKey,
    #[error("it is encrypted with another key than the one that was given")]
    WrongKey,
    #[error(
        "a key was given, and the data directory is not encrypted: start without a key and unmount, \
         so that everything is in the bucket, and then with the key and an empty data directory"
    )]
    Plain,
}

/// Opens the disk for a node: encrypted if a key is given. An unused data directory becomes
/// encrypted. Every error is returned before any change.
pub async fn open(
    disk: Rc<dyn Disk>,
    key: Option<&Key>,
    entropy: Rc<dyn Entropy>,
) -> Result<Rc<dyn Disk>, EncryptionError> {
    let data_key = match (load(&*disk).await?, key) {
        (None, None) => return Ok(disk),
        (Some(_), None) => return Err(EncryptionError::NoKey),
        (Some(wrapped), Some(key)) => key.unwrap(&wrapped).ok_or(EncryptionError::WrongKey)?,
        (None, Some(key)) => {
            if disk.list("").await?.iter().any(|name| OF_A_NODE.contains(&name.as_str())) {
                return Err(EncryptionError::Plain);
            }
            let data_key = DataKey::draw(&*entropy);
            store(&*disk, &key.wrap(&data_key)).await?;
            data_key
        }
    };
    Ok(Rc::new(EncryptedDisk::new(disk, &data_key, entropy)))
}

/// Replaces the owner's key; the data key and the files stay the same. The caller holds the lock of
/// the data directory.
pub async fn change_key(disk: &dyn Disk, from: &Key, to: &Key) -> Result<(), EncryptionError> {
    let wrapped = load(disk).await?.ok_or_else(|| DiskError::NotFound { path: KEY_FILE.into() })?;
    let data_key = from.unwrap(&wrapped).ok_or(EncryptionError::WrongKey)?;
    Ok(store(disk, &to.wrap(&data_key)).await?)
}

async fn load(disk: &dyn Disk) -> Result<Option<WrappedKey>, EncryptionError> {
    match disk.open(KEY_FILE, OpenMode::Existing).await {
        Ok(file) => Ok(Some(encryption::decode_key(&file.read_at(0, MAX_KEY_FILE_BYTES).await?)?)),
        Err(DiskError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the key file atomically: the old one stays until the new one is durable.
async fn store(disk: &dyn Disk, key: &WrappedKey) -> Result<(), DiskError> {
    let file = disk.open(KEY_DRAFT, OpenMode::Create).await?;
    file.set_len(0).await?;
    file.write_at(0, encryption::encode_key(key)).await?;
    file.sync_data().await?;
    disk.rename(KEY_DRAFT, KEY_FILE).await?;
    disk.sync_dir("").await
}
