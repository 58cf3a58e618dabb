use std::fmt;
use thiserror::Error;

/// What is wrong with bytes, where, and so what a caller can do about it. Offsets count
/// from the beginning of the bytes or of the stream that was handed in.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatError {
    /// The end came too early: an interrupted write or transfer. Read or send it again;
    /// if it stays, the rest is lost.
    #[error("{format}: ends at byte {offset}, in the middle of {what}")]
    Truncated { format: Format, offset: u64, what: &'static str },
    /// Another kind of bytes altogether: the wrong file or peer. Nothing in it is ours.
    #[error("not {format}")]
    Foreign { format: Format },
    /// Written or spoken by another version of ebb. The bytes are good: leave them alone
    /// and use a version that knows them.
    #[error(
        "{format}: version {found} is not known here (known: {known}); it takes another version of \
         ebb"
    )]
    Version { format: Format, found: u8, known: u8 },
    /// The bytes are not those that were written. Use another copy.
    #[error("{format}: damaged at byte {offset}: checksum of {what} does not match")]
    Checksum { format: Format, offset: u64, what: &'static str },
    /// The bytes arrived as they were written and say what cannot be: a bug of the
    /// writer, or a hostile one. Repeating does not help.
    #[error("{format}: invalid at byte {offset}: {what}")]
    Invalid { format: Format, offset: u64, what: String },
    /// The value is larger than the format allows. Split it.
    #[error("{format}: {len_bytes} bytes are more than the {max_bytes} that it can hold")]
    TooLong { format: Format, len_bytes: u64, max_bytes: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Record,
    Segment,
    Snapshot,
    Message,
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
