use crate::{FileKind, Ino, Time};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// For how many seconds what is removed at or below the directory with this extended attribute is
/// kept, in decimal digits; 0 for not at all, whatever directories above say.
pub const KEEP: &[u8] = b"trusted.ebb.trash";

/// The directory at the root of each bucket of a volume in which what was removed is kept. No
/// directory shows this name, and nobody can make, remove or rename it.
pub const TRASH: &[u8] = b".ebb.trash";

/// Reads what [`KEEP`] is set to.
pub fn parse_keep(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Where what a removal removes goes, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrashTarget {
    /// The directory that has the trash, or gets it.
    pub top: Ino,
    /// What the trash is to be if it has to be made, chosen by the leader.
    pub ino: Ino,
    pub keep_secs: u64,
}

/// How something came into the trash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trashed {
    /// Where it was, from the root of the volume.
    pub path: Bytes,
    pub at: Time,
    /// The second from which on it is no longer kept.
    pub until_secs: i64,
    /// Who removed it.
    pub uid: u32,
}

/// What is in the trash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrashEntry {
    pub ino: Ino,
    pub kind: FileKind,
    pub size_bytes: u64,
    pub trashed: Trashed,
}

/// How far the trash of a volume has been gone through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrashPoint {
    /// Which bucket's.
    pub bucket: u32,
    /// Behind the entry with this cookie.
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
