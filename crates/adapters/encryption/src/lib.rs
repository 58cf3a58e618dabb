//! Encryption at rest: any disk, with the contents of all its files encrypted (decision 11). Bytes
//! and what they protect from are `docs/format/encryption.md`'s.
//!
//! The data directory has a key of its own, drawn at random, which is in it encrypted with the
//! owner's. So a wrong key is refused before anything is read with it.

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

/// Holds the wrapped key, in the clear.
pub(crate) const KEY_FILE: &str = "encryption";
pub(crate) const KEY_DRAFT: &str = "encryption.new";

const MAX_KEY_FILE_BYTES: usize = 4 << 10;

/// What a node makes in a data directory. One that has nothing of it can become an encrypted one.
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
        "a key was given, and what is there is not encrypted: start without a key and unmount, so \
         that everything is in the bucket, \
         and then with the key and an empty data directory"
    )]
    Plain,
}

/// The disk as a node is to see it: encrypted if a key is given. One that nobody has used yet is
/// made so. Whatever is refused is refused before anything has changed.
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

/// The owner's key becomes another one: what is encrypted stays as it is. The data directory is
/// locked.
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

/// What was there before stays until the new one is forced.
async fn store(disk: &dyn Disk, key: &WrappedKey) -> Result<(), DiskError> {
    let file = disk.open(KEY_DRAFT, OpenMode::Create).await?;
    file.set_len(0).await?;
    file.write_at(0, encryption::encode_key(key)).await?;
    file.sync_data().await?;
    disk.rename(KEY_DRAFT, KEY_FILE).await?;
    disk.sync_dir("").await
}
