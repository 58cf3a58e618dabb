//! Retention of removed inodes.

use crate::{FileKind, Ino, Time};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Extended attribute of a directory: seconds that the trash keeps inodes removed from its subtree,
/// in decimal digits. 0 disables the trash, whatever directories above set.
pub const KEEP: &[u8] = b"trusted.ebb.trash";

/// Directory of the trash at the root of each bucket of a volume. No listing shows this name, and
/// no client can create, remove or rename it.
pub const TRASH: &[u8] = b".ebb.trash";

/// Parses the value of [`KEEP`].
pub fn parse_keep(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Destination of removed inodes, and their retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrashTarget {
    /// The directory in which the trash is, or is created.
    pub top: Ino,
    /// Inode id for a trash directory that does not exist yet, chosen by the leader.
    pub ino: Ino,
    pub keep_secs: u64,
}

/// Origin of an inode in the trash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trashed {
    /// Its path at the removal, from the root of the volume.
    pub path: Bytes,
    pub at: Time,
    /// Unix time in seconds at which its retention ends.
    pub until_secs: i64,
    /// User id of the caller that removed it.
    pub uid: u32,
}

/// An inode in the trash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrashEntry {
    pub ino: Ino,
    pub kind: FileKind,
    pub size_bytes: u64,
    pub trashed: Trashed,
}

/// Position in the trash of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrashPoint {
    /// Index of the bucket.
    pub bucket: u32,
    /// Cookie of the entry before the position.
    pub after: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_keep_is_digits() {
        for (value, keep) in [
            (&b"0"[..], Some(0)),
            (b"604800", Some(604_800)),
            (b"18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(parse_keep(value), keep);
        }
        for value in
            [&b""[..], b"-1", b"+1", b" 1", b"7d", b"1.5", b"18446744073709551616", b"\xff"]
        {
            assert_eq!(parse_keep(value), None, "{}", value.escape_ascii());
        }
    }
}
