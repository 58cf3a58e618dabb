//! The error of every decoder and encoder, and the names of the formats.

use std::fmt;
use thiserror::Error;

/// A decoding or encoding failure. The variant decides the caller's remedy. Offsets count from the
/// beginning of the bytes or of the stream that the caller passed in.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatError {
    /// The input ends early: an interrupted write or transfer. Read or send it again; if the error
    /// stays, the tail is lost.
    #[error("{format}: ends at byte {offset}, in the middle of {what}")]
    Truncated { format: Format, offset: u64, what: &'static str },
    /// The magic number differs: the wrong file or peer. Never modify such bytes.
    #[error("not {format}")]
    Foreign { format: Format },
    /// Another version of ebb wrote the bytes. They are intact: leave them alone and use a version
    /// that reads them.
    #[error(
        "{format}: version {found} is not supported (supported: {known}); use another version of \
         ebb"
    )]
    Version { format: Format, found: u8, known: u8 },
    /// The bytes differ from those that were written. Use another copy.
    #[error("{format}: damaged at byte {offset}: checksum of {what} does not match")]
    Checksum { format: Format, offset: u64, what: &'static str },
    /// The checksum matches and the value is impossible: a bug of the writer, or a hostile writer.
    /// A retry does not help.
    #[error("{format}: invalid at byte {offset}: {what}")]
    Invalid { format: Format, offset: u64, what: String },
    /// The value exceeds the limit of the format. Split it.
    #[error("{format}: {len_bytes} bytes are more than the {max_bytes} that it can hold")]
    TooLong { format: Format, len_bytes: u64, max_bytes: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Record,
    Segment,
    Snapshot,
    Message,
    Versions,
    Page,
    PagePiece,
    Head,
    Identity,
    WrappedKey,
    EncryptedFile,
    Backup,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Record => "log record",
            Format::Segment => "log segment",
            Format::Snapshot => "snapshot",
            Format::Message => "message",
            Format::Versions => "protocol versions of a peer",
            Format::Page => "directory page",
            Format::PagePiece => "piece of a directory page",
            Format::Head => "volume head",
            Format::Identity => "node identity",
            Format::WrappedKey => "wrapped key",
            Format::EncryptedFile => "encrypted file",
            Format::Backup => "backup",
        })
    }
}
