//! What the bucket's objects cannot say about a directory, as the object `.ebb/d/<inode>`
//! has it (`docs/format/bucket.md`).

use crate::body::{self, u32_at};
use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
pub use ebb_model::DirectoryPage as Page;

/// Entries that are not sorted by name, or have one name twice, are invalid.
pub fn encode(page: &Page) -> Result<Bytes, FormatError> {
    check_order(page)?;
    let mut out = Vec::with_capacity(CONTENT_AT + page.entries.len() * TYPICAL_ENTRY_BYTES);
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    body::append(Format::Page, page, &mut out)?;
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(out.into())
}

/// `bytes` are the whole object.
pub fn decode(bytes: &[u8]) -> Result<Page, FormatError> {
    let format = Format::Page;
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
        return Err(FormatError::Foreign { format });
    }
    if bytes.len() < CONTENT_AT + CRC_BYTES {
        return Err(FormatError::Truncated { format, offset: bytes.len() as u64, what: "the header" });
    }
    let (content, crc) = bytes.split_at(bytes.len() - CRC_BYTES);
    if crc32c(content) != u32_at(crc, 0) {
        return Err(FormatError::Checksum { format, offset: 0, what: "the page" });
    }
    // In version 1 every entry of an inode tells all its names, which reads as well.
    if !(1..=VERSION).contains(&content[VERSION_AT]) {
        return Err(FormatError::Version { format, found: content[VERSION_AT], known: VERSION });
    }
    let page = body::read(format, CONTENT_AT as u64, &content[CONTENT_AT..])?;
    check_order(&page)?;
    Ok(page)
}

/// `magic 8 | version u8 | postcard of Page | crc32c u32 of all before it`
const MAGIC: &[u8; 8] = b"EBBDIR\0\x01";
const VERSION: u8 = 2;
const VERSION_AT: usize = 8;
const CONTENT_AT: usize = 9;
const CRC_BYTES: usize = 4;

const TYPICAL_ENTRY_BYTES: usize = 96;

fn check_order(page: &Page) -> Result<(), FormatError> {
    match page.entries.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        None => Ok(()),
        Some(pair) => {
            let what = format!("entry {} does not sort behind {}", pair[1].name, pair[0].name);
            Err(FormatError::Invalid { format: Format::Page, offset: CONTENT_AT as u64, what })
        }
    }
}
