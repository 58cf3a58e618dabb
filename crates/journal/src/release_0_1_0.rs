//! The log of release 0.1.0, read to find out what is in it: no run goes on from there.
//!
//! That release had one group, and counted forced records and cuts by its indices. What it has
//! written can contain commands at the end that a power cut takes: they count here, since only
//! whether something is left to send is asked for.

use super::segments::{self, read};
use super::snapshots::{SNAPSHOT_DIR, SnapshotFrames, is_snapshot};
use super::{Log, LogError};
use ebb_format::record::{GroupId, release_0_1_0};
use ebb_format::segment::{self, SEGMENT_HEADER_BYTES, VolumeId};
use ebb_model::{Command, LogIndex};
use ebb_ports::{Disk, OpenMode};

/// The newest snapshot, and the commands behind it.
pub struct Log010 {
    pub snapshot: SnapshotFrames,
    pub commands: Vec<(LogIndex, Command)>,
}

impl Log {
    /// `None` if nothing was ever logged.
    pub async fn read_0_1_0(disk: &dyn Disk, volume: VolumeId) -> Result<Option<Log010>, LogError> {
        let names = disk.list(SNAPSHOT_DIR).await?;
        let index_of = |name: &String| {
            let index = LogIndex(u64::from_str_radix(name, 16).ok()?);
            (name.len() == 16).then_some(index)
        };
        let Some(newest) = names.iter().filter_map(index_of).max() else {
            // That release writes a snapshot before anything else.
            return match names.iter().find(|name| is_snapshot(name)) {
                Some(name) if *name != "unfinished" => {
                    let what = "a newer release wrote it, and release 0.1.0 the directory".into();
                    Err(LogError::Corrupt {
                        file: format!("{SNAPSHOT_DIR}/{name}"),
                        offset: 0,
                        what,
                    })
                }
                _ => Ok(None),
            };
        };
        let path = format!("{SNAPSHOT_DIR}/{:016x}", newest.0);
        let snapshot =
            SnapshotFrames::open_at(disk, volume, (GroupId::PARTITION, newest), path).await?;
        let mut commands: Vec<(LogIndex, Command)> = Vec::new();
        for generation in segments::list(disk).await? {
            let path = segments::path(generation);
            let file = disk.open(&path, OpenMode::Existing).await?;
            let bytes = read(&*file, file.len().await?).await?;
            let header =
                segment::decode(&bytes).map_err(|error| LogError::format(&path, 0, error))?;
            if header.volume != volume {
                return Err(LogError::Foreign {
                    file: path,
                    found: header.volume.to_string(),
                    expected: volume.to_string(),
                });
            }
            let mut at = SEGMENT_HEADER_BYTES;
            while let Some(record) = release_0_1_0::decode(&bytes[at..])
                .map_err(|error| LogError::format(&path, at as u64, error))?
            {
                let last = commands.last().map_or(newest, |(index, _)| *index);
                match record.command {
                    None => commands.retain(|(index, _)| *index <= record.index),
                    Some(_) if record.index <= newest => {}
                    Some(command) if record.index.0 == last.0 + 1 => {
                        commands.push((record.index, command));
                    }
                    Some(_) => {
                        let what =
                            format!("command {} comes behind command {}", record.index.0, last.0);
                        return Err(LogError::Corrupt { file: path, offset: at as u64, what });
                    }
                }
                at += record.consumed;
            }
        }
        Ok(Some(Log010 { snapshot, commands }))
    }
}
