//! A backup: the newest snapshot of a data directory, as it is on the disk, in some other storage
//! (`docs/format/backup.md`, decision 14). Reading it back is [`crate::admin::restore`]'s.

use crate::Node;
use crate::buckets::ask;
use crate::buckets::head::HeadError;
use crate::recover::OpenError;
use ebb_format::backup::{self, Backup, Part};
use ebb_format::record::GroupId;
use ebb_format::{FormatError, crc32c};
use ebb_journal::{LogError, SNAPSHOT_DIR, snapshot_path, snapshots};
use ebb_model::*;
use ebb_ports::{
    Bucket, BucketError, Condition, Disk, DiskError, DiskFile, OpenMode, PortFuture, Ports,
};
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// How long a request is repeated to a store that does not answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Debug, Error)]
pub enum BackupError {
    #[error("{0}")]
    Bucket(#[from] BucketError),
    #[error("the data directory: {0}")]
    Disk(#[from] DiskError),
    #[error("there is a backup in {target} already, which is not written over")]
    Taken { target: String },
    #[error("the snapshot that was to be copied is gone from the data directory")]
    Gone,
    #[error("there is no backup in {source_name}")]
    Missing { source_name: String },
    #[error("the backup in {source_name} is not what was written: {what}")]
    Damaged { source_name: String, what: String },
    #[error("{0} is in the data directory: it is used, and nothing is restored over it")]
    Used(String),
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error(transparent)]
    Open(Box<OpenError>),
}

impl From<OpenError> for BackupError {
    fn from(error: OpenError) -> BackupError {
        BackupError::Open(Box::new(error))
    }
}

impl From<LogError> for BackupError {
    fn from(error: LogError) -> BackupError {
        OpenError::from(error).into()
    }
}

/// The source of a snapshot ([`AdminRequest::Snapshot`]).
#[derive(Clone, Debug)]
pub struct Of {
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// The volume's storage, by its name for people.
    pub backing: String,
    pub index: LogIndex,
    /// The file `encryption` of the data directory, if there is one.
    pub encryption: Option<String>,
}

impl Node {
    pub(crate) async fn snapshot_for_backup(&self) -> Result<AdminReply, RpcError> {
        let denied = |why: &str| Err(RpcError::Denied(why.into()));
        if self.buckets.is_none() {
            return denied("the volume has no bucket: without it a backup has no content");
        }
        if !self.buckets.members().is_empty() {
            return denied("a volume of several buckets cannot be restored from a backup");
        }
        if self.buckets.head_lease().is_none() {
            return denied(
                "this node only reads the bucket, and has nothing that the bucket has not",
            );
        }
        if self.attachments.awaits_any() {
            return denied(
                "clients of before the node's restart are still to come back: try again in a \
                 minute",
            );
        }
        let index = self.write_snapshot().await?;
        let unloaded = {
            let state = self.replica.view();
            state
                .backing()
                .directories(Ino(0))
                .filter(|dir| !state.backing().is_complete(*dir))
                .count() as u64
        };
        Ok(AdminReply::Snapshot {
            cluster: self.run.cluster,
            incarnation: self.run.incarnation,
            index,
            unloaded,
        })
    }
}

/// Copies the snapshot, or a later one, from the data directory, which may be in use. `progress`
/// receives the number of bytes copied.
pub async fn backup(
    ports: &Ports,
    of: Of,
    disk: &dyn Disk,
    target: &dyn Bucket,
    mut progress: impl FnMut(u64),
) -> Result<Backup, BackupError> {
    let taken = || BackupError::Taken { target: target.describe() };
    if read_manifest(ports, target).await?.is_some() {
        return Err(taken());
    }
    let (index, file) = open_snapshot(disk, of.index).await?;
    let run = ports.entropy.next_u64();
    let (mut parts, mut copied) = (Vec::new(), 0);
    loop {
        let bytes = file.read_at(copied, backup::MAX_PART_BYTES).await?;
        if bytes.is_empty() {
            break;
        }
        let key = backup::part_key(run, parts.len());
        ask(ports, bytes.len(), || target.put(&key, bytes.clone(), Condition::Always, Vec::new()))
            .await?;
        parts.push(Part { len_bytes: bytes.len() as u32, crc32c: crc32c(&bytes) });
        copied += bytes.len() as u64;
        progress(copied);
    }
    let Of { cluster, incarnation, backing, encryption, .. } = of;
    let made = Time::from_secs(ports.clock.wall().secs);
    let done = Backup { cluster, incarnation, backing, index, made, run, encryption, parts };
    let manifest = backup::encode(&done);
    let condition = target.capabilities().guard(Condition::Absent);
    match ask(ports, manifest.len(), || {
        target.put(backup::KEY, manifest.clone(), condition.clone(), Vec::new())
    })
    .await
    {
        Ok(_) => Ok(done),
        // The backup there may be this one, with a lost answer.
        Err(BucketError::Precondition { .. })
            if read_manifest(ports, target).await?.as_ref() == Some(&done) =>
        {
            Ok(done)
        }
        Err(BucketError::Precondition { .. }) => Err(taken()),
        Err(error) => Err(error.into()),
    }
}

/// The newest snapshot. If a newer one is written during the call, that is opened.
async fn open_snapshot(
    disk: &dyn Disk,
    least: LogIndex,
) -> Result<(LogIndex, Rc<dyn DiskFile>), BackupError> {
    for _ in 0..MAX_ATTEMPTS {
        let newest = snapshots(disk)
            .await?
            .into_iter()
            .filter(|(group, _)| *group == GroupId::PARTITION)
            .map(|(_, index)| index)
            .next_back()
            .filter(|newest| *newest >= least)
            .ok_or(BackupError::Gone)?;
        match disk.open(&path_of(newest), OpenMode::Existing).await {
            Ok(file) => return Ok((newest, file)),
            Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(BackupError::Gone)
}

const MAX_ATTEMPTS: usize = 8;

/// The snapshot of a backup in a data directory.
pub(super) fn path_of(index: LogIndex) -> String {
    snapshot_path(GroupId::PARTITION, index)
}

/// Lists the parts of the backup in `source`.
pub async fn find_backup(ports: &Ports, source: &dyn Bucket) -> Result<Backup, BackupError> {
    read_manifest(ports, source)
        .await?
        .ok_or_else(|| BackupError::Missing { source_name: source.describe() })
}

async fn read_manifest(ports: &Ports, source: &dyn Bucket) -> Result<Option<Backup>, BackupError> {
    let damaged = |error: FormatError| BackupError::Damaged {
        source_name: source.describe(),
        what: error.to_string(),
    };
    match ask(ports, backup::MAX_BYTES, || {
        source.get(backup::KEY, Some(0..backup::MAX_BYTES as u64), None)
    })
    .await
    {
        Ok(object) => backup::decode(&object.body).map(Some).map_err(damaged),
        Err(BucketError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Puts the snapshot of the backup where the data directory has its own, and the wrapped key of an
/// encrypted one. Only a whole file is put there.
pub async fn fetch_backup(
    ports: &Ports,
    found: &Backup,
    source: &dyn Bucket,
    disk: &dyn Disk,
    mut progress: impl FnMut(u64),
) -> Result<(), BackupError> {
    check_unused(disk).await?;
    disk.create_dir(SNAPSHOT_DIR).await?;
    let file = disk.open(&path_of(found.index), OpenMode::Create).await?;
    file.set_len(0).await?;
    let mut copied = 0;
    for (number, part) in found.parts.iter().enumerate() {
        let key = backup::part_key(found.run, number);
        let damaged = |what: String| BackupError::Damaged { source_name: source.describe(), what };
        let body = match ask(ports, part.len_bytes as usize, || source.get(&key, None, None)).await
        {
            Ok(object) => object.body,
            Err(BucketError::NotFound { .. }) => return Err(damaged(format!("{key} is gone"))),
            Err(error) => return Err(error.into()),
        };
        if body.len() != part.len_bytes as usize || crc32c(&body) != part.crc32c {
            return Err(damaged(format!("{key} has another checksum")));
        }
        file.write_at(copied, body).await?;
        copied += u64::from(part.len_bytes);
        progress(copied);
    }
    file.sync_data().await?;
    if let Some(wrapped) = &found.encryption {
        let file = disk.open(ENCRYPTION, OpenMode::Create).await?;
        file.set_len(0).await?;
        file.write_at(0, wrapped.clone().into()).await?;
        file.sync_data().await?;
    }
    Ok(())
}

/// Removes the files that [`fetch_backup`] has put there.
pub async fn discard_backup(found: &Backup, disk: &dyn Disk) -> Result<(), BackupError> {
    disk.remove(&path_of(found.index)).await?;
    if found.encryption.is_some() {
        disk.remove(ENCRYPTION).await?;
    }
    Ok(disk.sync_dir(SNAPSHOT_DIR).await?)
}

/// The key of an encrypted data directory, wrapped (`docs/format/encryption.md`).
pub const ENCRYPTION: &str = "encryption";

/// Entries that a data directory may have before any node has used it: the lock, files for people,
/// and the remains of an attempt to restore.
const UNUSED: [&str; 4] = ["LOCK", "ebb.log", ENCRYPTION, SNAPSHOT_DIR];

async fn check_unused(disk: &dyn Disk) -> Result<(), BackupError> {
    match disk.list("").await?.into_iter().find(|name| !UNUSED.contains(&name.as_str())) {
        Some(name) => Err(BackupError::Used(name)),
        None => Ok(()),
    }
}

async fn ask<'a, T>(
    ports: &Ports,
    body_bytes: usize,
    request: impl Fn() -> PortFuture<'a, Result<T, BucketError>>,
) -> Result<T, BucketError> {
    ask::ask(ports, PATIENCE, body_bytes as u64, request).await
}
