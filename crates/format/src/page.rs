//! Directory pages: the attributes and names that the bucket's objects cannot represent. A page is
//! the object `.ebb/d/<inode>`; the pieces of a large directory are `.ebb/e/<inode>-<id>`
//! (`docs/format/bucket.md`).
//!
//! Laws, checked on encode and decode:
//! - Entries are sorted by name and each name occurs once.
//! - Pieces are sorted by their first name; the first piece starts at the lowest possible name.
//!
//! Decoding also rejects a head with pieces that has entries.

use crate::body::{self, u32_at};
use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
use ebb_model::{Installed, PagePiece};
pub use ebb_model::{PageHead as Head, PieceBody as Piece};
use serde::{Deserialize, Serialize};

/// Encodes a page as one object, or the head of a page in pieces.
pub fn encode(head: &Head) -> Result<Bytes, FormatError> {
    check(head)?;
    match head.pieces.is_empty() {
        true => seal(&HEAD, WHOLE, &head.page, head.page.entries.len() * TYPICAL_ENTRY_BYTES),
        false => seal(&HEAD, IN_PIECES, head, head.pieces.len() * TYPICAL_PIECE_BYTES),
    }
}

/// Decodes a whole object.
pub fn decode(bytes: &[u8]) -> Result<Head, FormatError> {
    let head = match unseal(&HEAD, bytes)? {
        (IN_PIECES, content) => read::<Head>(&HEAD, content).and_then(in_pieces)?,
        // Version 1 repeats all names of an inode in each of its entries. It has the same layout.
        (_, content) => read::<ebb_model::DirectoryPage>(&HEAD, content)?.into(),
    };
    check(&head)?;
    Ok(head)
}

pub fn encode_piece(piece: &Piece) -> Result<Bytes, FormatError> {
    check_entries(&PIECE, &piece.entries)?;
    seal(&PIECE, PIECE.version, piece, piece.entries.len() * TYPICAL_ENTRY_BYTES)
}

/// Decodes a whole object.
pub fn decode_piece(bytes: &[u8]) -> Result<Piece, FormatError> {
    let piece: Piece = read(&PIECE, unseal(&PIECE, bytes)?.1)?;
    check_entries(&PIECE, &piece.entries)?;
    Ok(piece)
}

/// `magic 8 | version u8 | postcard of the value | crc32c u32 of all before it`
struct Kind {
    format: Format,
    magic: &'static [u8; 8],
    /// The latest supported version. All versions before it are supported.
    version: u8,
    what: &'static str,
}

const HEAD: Kind =
    Kind { format: Format::Page, magic: b"EBBDIR\0\x01", version: IN_PIECES, what: "the page" };
const PIECE: Kind =
    Kind { format: Format::PagePiece, magic: b"EBBDIRE\x01", version: 1, what: "the piece" };

/// Version of a page that is one object.
const WHOLE: u8 = 2;
const IN_PIECES: u8 = 3;

const VERSION_AT: usize = 8;
const CONTENT_AT: usize = 9;
pub(crate) const CRC_BYTES: usize = 4;

const TYPICAL_ENTRY_BYTES: usize = 96;
const TYPICAL_PIECE_BYTES: usize = 32;

fn seal<T: Serialize>(
    kind: &Kind,
    version: u8,
    value: &T,
    typical_bytes: usize,
) -> Result<Bytes, FormatError> {
    let mut out = Vec::with_capacity(CONTENT_AT + typical_bytes);
    out.extend_from_slice(kind.magic);
    out.push(version);
    body::append(kind.format, value, &mut out)?;
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(out.into())
}

/// Returns the version and the encoded value.
fn unseal<'a>(kind: &Kind, bytes: &'a [u8]) -> Result<(u8, &'a [u8]), FormatError> {
    let &Kind { format, magic, version, what } = kind;
    if !bytes.starts_with(&magic[..bytes.len().min(magic.len())]) {
        return Err(FormatError::Foreign { format });
    }
    if bytes.len() < CONTENT_AT + CRC_BYTES {
        return Err(FormatError::Truncated {
            format,
            offset: bytes.len() as u64,
            what: "the header",
        });
    }
    let (content, crc) = bytes.split_at(bytes.len() - CRC_BYTES);
    if crc32c(content) != u32_at(crc, 0) {
        return Err(FormatError::Checksum { format, offset: 0, what });
    }
    if !(1..=version).contains(&content[VERSION_AT]) {
        return Err(FormatError::Version { format, found: content[VERSION_AT], known: version });
    }
    Ok((content[VERSION_AT], &content[CONTENT_AT..]))
}

fn read<'a, T: Deserialize<'a>>(kind: &Kind, content: &'a [u8]) -> Result<T, FormatError> {
    body::read(kind.format, CONTENT_AT as u64, content)
}

fn check(head: &Head) -> Result<(), FormatError> {
    check_entries(&HEAD, &head.page.entries)?;
    check_pieces(&head.pieces)?;
    match head.moved.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => invalid(&HEAD, format!("{} does not sort behind {}", pair[1], pair[0])),
        None => Ok(()),
    }
}

fn in_pieces(head: Head) -> Result<Head, FormatError> {
    match head.pieces.is_empty() || !head.page.entries.is_empty() {
        true => invalid(&HEAD, "it is of a page in pieces and has none, or entries".into()),
        false => Ok(head),
    }
}

fn check_pieces(pieces: &[PagePiece]) -> Result<(), FormatError> {
    if pieces.first().is_some_and(|piece| piece.first.as_bytes() != [1]) {
        return invalid(&HEAD, "names are in front of the first piece".into());
    }
    match pieces.windows(2).find(|pair| pair[0].first >= pair[1].first) {
        Some(pair) => invalid(
            &HEAD,
            format!("piece {} does not sort behind {}", pair[1].first, pair[0].first),
        ),
        None => Ok(()),
    }
}

fn check_entries(kind: &Kind, entries: &[Installed]) -> Result<(), FormatError> {
    match entries.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        Some(pair) => {
            invalid(kind, format!("entry {} does not sort behind {}", pair[1].name, pair[0].name))
        }
        None => Ok(()),
    }
}

fn invalid<T>(kind: &Kind, what: String) -> Result<T, FormatError> {
    Err(FormatError::Invalid { format: kind.format, offset: CONTENT_AT as u64, what })
}
