//! The manifest of a backup of a volume's metadata: the object `backup` (`docs/format/backup.md`).

use crate::json;
use crate::{Format, FormatError};
use bytes::Bytes;
use ebb_model::{ClusterId, Incarnation, LogIndex, Time};
use serde::{Deserialize, Serialize};

/// The manifest is written after all parts; a prefix without it holds no backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backup {
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// URL of the volume's backing at the time of the backup.
    pub backing: String,
    /// Index of the last command that the backup contains.
    pub index: LogIndex,
    /// Wall-clock time of the backup, whole seconds.
    pub made: Time,
    /// Random id of this backup run. It is in the key of every part, so parts of another run never
    /// match.
    pub run: u64,
    /// The file `encryption` of the data directory, if that directory is encrypted. The parts are
    /// then encrypted with the same data key.
    pub encryption: Option<String>,
    /// In order. Their concatenation is a snapshot file.
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub len_bytes: u32,
    pub crc32c: u32,
}

pub const KEY: &str = "backup";

/// Longest part, in bytes.
pub const MAX_PART_BYTES: usize = 8 << 20;

/// Longest manifest, in bytes: enough parts for a snapshot of 16 TiB.
pub const MAX_BYTES: usize = 128 << 20;

/// Key of part `number`; numbers start at 0.
pub fn part_key(run: u64, number: usize) -> String {
    format!("parts/{run:016x}/{number:08}")
}

const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    format: u8,
    cluster: String,
    incarnation: u64,
    backing: String,
    index: u64,
    made_secs: i64,
    run: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<String>,
    parts: Vec<(u32, String)>,
}

pub fn encode(backup: &Backup) -> Bytes {
    json::seal(&Content {
        format: FORMAT,
        cluster: backup.cluster.to_string(),
        incarnation: backup.incarnation.0,
        backing: backup.backing.clone(),
        index: backup.index.0,
        made_secs: backup.made.secs,
        run: format!("{:016x}", backup.run),
        encryption: backup.encryption.clone(),
        parts: backup
            .parts
            .iter()
            .map(|part| (part.len_bytes, format!("{:08x}", part.crc32c)))
            .collect(),
    })
}

pub fn decode(bytes: &[u8]) -> Result<Backup, FormatError> {
    let format = Format::Backup;
    let content: Content = json::unseal(format, FORMAT..=FORMAT, bytes)?;
    let invalid = |what: String| FormatError::Invalid { format, offset: 0, what };
    let cluster = ClusterId::parse(&content.cluster)
        .ok_or_else(|| invalid(format!("{:?} is no cluster id", content.cluster)))?;
    let part = |(len_bytes, sum): (u32, String)| {
        if len_bytes == 0 || len_bytes as usize > MAX_PART_BYTES {
            return Err(invalid(format!("no part has {len_bytes} bytes")));
        }
        Ok(Part { len_bytes, crc32c: json::from_hex(format, "checksum", &sum, 8)? as u32 })
    };
    Ok(Backup {
        cluster,
        incarnation: Incarnation(content.incarnation),
        backing: content.backing,
        index: LogIndex(content.index),
        made: Time::from_secs(content.made_secs),
        run: json::from_hex(format, "run", &content.run, 16)? as u64,
        encryption: content.encryption,
        parts: content.parts.into_iter().map(part).collect::<Result<_, _>>()?,
    })
}
