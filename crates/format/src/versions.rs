//! The first message of a connection, in both directions: the protocol versions that its sender
//! speaks (`docs/protocol/rpc.md`). Its encoding never changes: it is read before a version is
//! agreed on.

use crate::body::u32_at;
use crate::rpc::VERSION;
use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
use std::fmt;

/// A range of protocol versions. Law: `1 <= lowest <= highest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    lowest: u8,
    highest: u8,
}

impl Versions {
    /// Those of this build.
    pub const OWN: Versions = Versions { lowest: VERSION, highest: VERSION };

    /// `None` if the law does not hold.
    pub fn new(lowest: u8, highest: u8) -> Option<Versions> {
        (1 <= lowest && lowest <= highest).then_some(Versions { lowest, highest })
    }

    /// The version that two peers use: the highest that both speak.
    pub fn common(self, peer: Versions) -> Option<u8> {
        let highest = self.highest.min(peer.highest);
        (highest >= self.lowest.max(peer.lowest)).then_some(highest)
    }

    pub fn encode(self) -> Bytes {
        let mut out = [MAGIC, &[self.lowest, self.highest]].concat();
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.into()
    }

    /// Fails with [`FormatError::Version`] for a message of a peer that sends no versions: release
    /// 0.1.0. Bytes behind the checksum are left to later releases.
    pub fn decode(frame: &[u8]) -> Result<Versions, FormatError> {
        let format = Format::Versions;
        let truncated = |what| FormatError::Truncated { format, offset: frame.len() as u64, what };
        match frame.first() {
            None => return Err(truncated("the magic number")),
            Some(0) => {}
            Some(&VERSION) => {
                let what = "a message comes before the versions".into();
                return Err(FormatError::Invalid { format, offset: 0, what });
            }
            Some(&found) => return Err(FormatError::Version { format, found, known: VERSION }),
        }
        if !frame.starts_with(&MAGIC[..MAGIC.len().min(frame.len())]) {
            return Err(FormatError::Foreign { format });
        }
        if frame.len() < LEN_BYTES {
            return Err(truncated("the versions"));
        }
        if frame.len() > MAX_BYTES {
            return Err(FormatError::TooLong {
                format,
                len_bytes: frame.len() as u64,
                max_bytes: MAX_BYTES as u64,
            });
        }
        if crc32c(&frame[..CRC_AT]) != u32_at(frame, CRC_AT) {
            return Err(FormatError::Checksum { format, offset: 0, what: "the versions" });
        }
        let (lowest, highest) = (frame[MAGIC.len()], frame[MAGIC.len() + 1]);
        Versions::new(lowest, highest).ok_or_else(|| FormatError::Invalid {
            format,
            offset: MAGIC.len() as u64,
            what: format!("versions {lowest} to {highest} are no range"),
        })
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Versions { lowest, highest } = self;
        if lowest == highest { write!(f, "{lowest}") } else { write!(f, "{lowest} to {highest}") }
    }
}

/// The message to a user whose peer has no version in common with this build.
pub fn no_common_version(peer: Versions) -> String {
    format!(
        "the peer speaks protocol version {peer}, and this ebb {}: install the same release of ebb \
         on both machines",
        Versions::OWN
    )
}

/// Begins with 0, which no version of the protocol has.
const MAGIC: &[u8] = b"\0EBBRPC";

const CRC_AT: usize = MAGIC.len() + 2;
pub(crate) const LEN_BYTES: usize = CRC_AT + 4;

/// Longest message, of this and later releases.
pub const MAX_BYTES: usize = 64;
