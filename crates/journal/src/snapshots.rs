//! Snapshot files: written beside the log, verified whole before they are used.

use super::LogError;
use bytes::Bytes;
use ebb_format::FormatError;
use ebb_format::record::{GroupId, Position, Term};
use ebb_format::segment::VolumeId;
use ebb_format::snapshot::{Part, SnapshotHeader, SnapshotReader, SnapshotWriter};
use ebb_model::{LogIndex, Version};
use ebb_ports::{Disk, DiskFile, OpenMode};
use std::rc::Rc;

pub const SNAPSHOT_DIR: &str = "snapshot";

/// The snapshot being written. The next one overwrites the remains after a crash.
const UNFINISHED: &str = "snapshot/unfinished";

/// Pieces are read and written in about this size, so that other tasks get their turn between them.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// The moment of a state. Law: it holds the group's commands up to `index`, which are those up to
/// `position`. The local group's state also depends on the other groups' commands up to there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotAt {
    pub index: LogIndex,
    /// Of a command of any group, or 0.
    pub position: Position,
    /// The last version that the partition has assigned; 0 of the local group.
    pub version: Version,
    /// Of the entry at `index`, in a replicated group. `None` in another group: the log knows it.
    pub term: Option<Term>,
}

/// The moment of a snapshot of a replicated group that another node has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedAt {
    /// The last entry in the snapshot, `>= 1` each.
    pub term: Term,
    pub index: LogIndex,
    /// The last version that the partition has assigned.
    pub version: Version,
}

pub fn path(group: GroupId, index: LogIndex) -> String {
    format!("{SNAPSHOT_DIR}/{:08x}-{:016x}", group.0, index.0)
}

/// Groups and indices of the existing snapshots, of each group oldest first. Files with other names
/// are foreign.
pub async fn list(disk: &dyn Disk) -> Result<Vec<(GroupId, LogIndex)>, LogError> {
    let names = disk.list(SNAPSHOT_DIR).await?;
    Ok(names.iter().filter_map(|name| parse(name)).collect())
}

/// A snapshot that was received from another node. It gets the name of other snapshots once the
/// base that names it is forced.
pub(super) fn received_path(group: GroupId, index: LogIndex) -> String {
    format!("{}{RECEIVED}", path(group, index))
}

const RECEIVED: &str = "-received";

/// Groups and indices of the received snapshots, of each group oldest first.
pub(super) async fn list_received(disk: &dyn Disk) -> Result<Vec<(GroupId, LogIndex)>, LogError> {
    let names = disk.list(SNAPSHOT_DIR).await?;
    Ok(names.iter().filter_map(|name| parse(name.strip_suffix(RECEIVED)?)).collect())
}

/// Whether a file in [`SNAPSHOT_DIR`] is a snapshot, or a received or unfinished one.
pub fn is_snapshot(name: &str) -> bool {
    parse(name.strip_suffix(RECEIVED).unwrap_or(name)).is_some()
        || format!("{SNAPSHOT_DIR}/{name}") == UNFINISHED
}

fn parse(name: &str) -> Option<(GroupId, LogIndex)> {
    let (group, index) = name.split_once('-')?;
    let group = GroupId(u32::from_str_radix(group, 16).ok()?);
    let index = LogIndex(u64::from_str_radix(index, 16).ok()?);
    (path(group, index) == format!("{SNAPSHOT_DIR}/{name}")).then_some((group, index))
}

/// Writes a snapshot to `path` and returns its length once it is durable; other snapshots stay.
pub(super) async fn write(
    disk: &dyn Disk,
    path: &str,
    header: SnapshotHeader,
    frames: impl Iterator<Item = Vec<u8>>,
) -> Result<u64, LogError> {
    let result = write_unfinished(disk, header, frames).await;
    if result.is_err() {
        // Give back the space, which may have been missing for it.
        if let Err(error) = disk.remove(UNFINISHED).await {
            tracing::warn!(%error, "unfinished snapshot stays until the next one");
        }
    }
    let len_bytes = result?;
    disk.rename(UNFINISHED, path).await?;
    disk.sync_dir(SNAPSHOT_DIR).await?;
    Ok(len_bytes)
}

async fn write_unfinished(
    disk: &dyn Disk,
    header: SnapshotHeader,
    frames: impl Iterator<Item = Vec<u8>>,
) -> Result<u64, LogError> {
    let file = disk.open(UNFINISHED, OpenMode::Create).await?;
    file.set_len(0).await?;
    let mut offset = 0;
    let (mut writer, first) = SnapshotWriter::new(&header);
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    piece.extend_from_slice(&first);
    for frame in frames {
        piece.extend_from_slice(
            &writer.frame(&frame).map_err(|error| LogError::format(UNFINISHED, offset, error))?,
        );
        if piece.len() >= PIECE_BYTES {
            let full = std::mem::replace(&mut piece, Vec::with_capacity(PIECE_BYTES));
            let len = full.len() as u64;
            file.write_at(offset, full.into()).await?;
            offset += len;
        }
    }
    piece.extend_from_slice(&writer.end());
    let len_bytes = offset + piece.len() as u64;
    file.write_at(offset, piece.into()).await?;
    file.sync_data().await?;
    Ok(len_bytes)
}

/// Removes snapshots of the group that are older than `newest`, which is durable. Those of a
/// replicated group with higher indices belong to an earlier replica.
pub(super) async fn remove_older(
    disk: &dyn Disk,
    group: GroupId,
    newest: LogIndex,
    is_replicated: bool,
) -> Result<(), LogError> {
    for (other, index) in list(disk).await? {
        if other == group && (index < newest || is_replicated && index > newest) {
            disk.remove(&path(group, index)).await?;
        }
    }
    disk.sync_dir(SNAPSHOT_DIR).await?;
    Ok(())
}

/// The frames of a snapshot that was verified whole, one by one.
pub struct SnapshotFrames {
    path: String,
    file: Rc<dyn DiskFile>,
    offset: u64,
    reader: SnapshotReader,
    header: SnapshotHeader,
    ended: bool,
    /// The length of the whole snapshot, once known.
    len_bytes: u64,
}

impl SnapshotFrames {
    /// Reads all of it once: only a whole snapshot may be used.
    pub async fn open(
        disk: &dyn Disk,
        volume: VolumeId,
        group: GroupId,
        index: LogIndex,
    ) -> Result<SnapshotFrames, LogError> {
        SnapshotFrames::open_at(disk, volume, (group, index), path(group, index)).await
    }

    /// The same, of a file of any name.
    pub(super) async fn open_at(
        disk: &dyn Disk,
        volume: VolumeId,
        of: (GroupId, LogIndex),
        path: String,
    ) -> Result<SnapshotFrames, LogError> {
        let mut frames = SnapshotFrames::unproved_at(disk, volume, of, path).await?;
        while frames.next().await?.is_some() {}
        let len_bytes = frames.offset;
        Ok(SnapshotFrames { len_bytes, ..SnapshotFrames::begin(frames.path, frames.file).await? })
    }

    /// Whether it is whole is known only after reading it to the end.
    pub(super) async fn unproved(
        disk: &dyn Disk,
        volume: VolumeId,
        group: GroupId,
        index: LogIndex,
    ) -> Result<SnapshotFrames, LogError> {
        SnapshotFrames::unproved_at(disk, volume, (group, index), path(group, index)).await
    }

    async fn unproved_at(
        disk: &dyn Disk,
        volume: VolumeId,
        (group, index): (GroupId, LogIndex),
        path: String,
    ) -> Result<SnapshotFrames, LogError> {
        let file = disk.open(&path, OpenMode::Existing).await?;
        let frames = SnapshotFrames::begin(path.clone(), file).await?;
        if frames.header.volume != volume {
            return Err(LogError::Foreign {
                file: path,
                found: frames.header.volume.to_string(),
                expected: volume.to_string(),
            });
        }
        if frames.header.index != index || frames.header.group != group {
            let what = format!(
                "its header is of command {} and group {}",
                frames.header.index.0, frames.header.group.0
            );
            return Err(LogError::Corrupt { file: path, offset: 0, what });
        }
        Ok(frames)
    }

    async fn begin(path: String, file: Rc<dyn DiskFile>) -> Result<SnapshotFrames, LogError> {
        let mut reader = SnapshotReader::new();
        let mut offset = 0;
        match advance(&path, &*file, &mut offset, &mut reader).await? {
            Part::Header(header) => Ok(SnapshotFrames {
                path,
                file,
                offset,
                reader,
                header,
                ended: false,
                len_bytes: 0,
            }),
            Part::Frame(_) | Part::End { .. } => {
                unreachable!("the header is the first part of a stream")
            }
        }
    }

    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    pub(super) fn read_bytes(&self) -> u64 {
        self.offset
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The content of the next frame; `None` behind the last.
    pub async fn next(&mut self) -> Result<Option<Bytes>, LogError> {
        if self.ended {
            return Ok(None);
        }
        match advance(&self.path, &*self.file, &mut self.offset, &mut self.reader).await? {
            Part::Frame(frame) => Ok(Some(frame.content)),
            Part::End { .. } => {
                self.ended = true;
                // Bytes behind the end would be damage, which the reader reports.
                let rest = read(&*self.file, &mut self.offset).await?;
                self.reader.push(&rest);
                self.reader.next_part().map_err(|error| corrupt(&self.path, error))?;
                Ok(None)
            }
            Part::Header(_) => unreachable!("a stream has one header"),
        }
    }
}

async fn advance(
    path: &str,
    file: &dyn DiskFile,
    offset: &mut u64,
    reader: &mut SnapshotReader,
) -> Result<Part, LogError> {
    loop {
        if let Some(part) = reader.next_part().map_err(|error| corrupt(path, error))? {
            return Ok(part);
        }
        let piece = read(file, offset).await?;
        if piece.is_empty() {
            let what = "ends too early".to_string();
            return Err(LogError::Corrupt { file: path.to_string(), offset: *offset, what });
        }
        reader.push(&piece);
    }
}

async fn read(file: &dyn DiskFile, offset: &mut u64) -> Result<Bytes, LogError> {
    let piece = file.read_at(*offset, PIECE_BYTES).await?;
    *offset += piece.len() as u64;
    Ok(piece)
}

fn corrupt(path: &str, error: FormatError) -> LogError {
    let offset = match &error {
        FormatError::Truncated { offset, .. }
        | FormatError::Checksum { offset, .. }
        | FormatError::Invalid { offset, .. } => *offset,
        FormatError::Foreign { .. } | FormatError::Version { .. } | FormatError::TooLong { .. } => {
            0
        }
    };
    LogError::format(path, offset, error)
}
