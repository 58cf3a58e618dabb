//! The cleartext of an encrypted data directory: its wrapped data key, and the header of each of
//! its files (`docs/format/encryption.md`).

use crate::body::{bytes_at, u32_at};
use crate::json;
use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The data key of a data directory, encrypted (wrapped) with the owner's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrappedKey(pub [u8; WRAPPED_KEY_BYTES]);

/// Two keys of 32 bytes, and 8 bytes by which unwrapping detects a wrong owner's key.
pub const WRAPPED_KEY_BYTES: usize = 72;

const FORMAT: u8 = 1;

/// Cipher of the files. Another cipher gets another name.
const CIPHER: &str = "xts-aes-256";

#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    format: u8,
    cipher: String,
    wrapped_key: String,
}

pub fn encode_key(key: &WrappedKey) -> Bytes {
    let wrapped_key = key.0.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
        hex
    });
    json::seal(&Content { format: FORMAT, cipher: CIPHER.into(), wrapped_key })
}

pub fn decode_key(bytes: &[u8]) -> Result<WrappedKey, FormatError> {
    let format = Format::WrappedKey;
    let content: Content = json::unseal(format, FORMAT..=FORMAT, bytes)?;
    let invalid = |what: String| FormatError::Invalid { format, offset: 0, what };
    if content.cipher != CIPHER {
        return Err(invalid(format!("{:?} is not a supported cipher", content.cipher)));
    }
    if content.wrapped_key.len() != 2 * WRAPPED_KEY_BYTES {
        return Err(invalid(format!("no wrapped key has {} digits", content.wrapped_key.len())));
    }
    let mut key = [0; WRAPPED_KEY_BYTES];
    for (byte, digits) in key.iter_mut().zip(content.wrapped_key.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        *byte = json::from_hex(format, "byte of a key", digits, 2)? as u8;
    }
    Ok(WrappedKey(key))
}

/// Header of an encrypted file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// Number of the file's first data unit, drawn at random from 128 bits, so no two units of a
    /// data directory share a number (XTS must not encrypt two units under one number).
    pub first_unit: u128,
}

/// One cache line, so a power cut never tears a header.
pub const FILE_HEADER_BYTES: usize = 64;

pub fn encode_header(header: &FileHeader) -> [u8; FILE_HEADER_BYTES] {
    let mut out = [0; FILE_HEADER_BYTES];
    out[..MAGIC.len()].copy_from_slice(MAGIC);
    out[VERSION_AT] = VERSION;
    out[FIRST_UNIT_AT..][..16].copy_from_slice(&header.first_unit.to_le_bytes());
    let crc = crc32c(&out[..CRC_AT]);
    out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes the first [`FILE_HEADER_BYTES`] of a file; more bytes can follow.
pub fn decode_header(bytes: &[u8]) -> Result<FileHeader, FormatError> {
    let format = Format::EncryptedFile;
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
        return Err(FormatError::Foreign { format });
    }
    let Some(header) = bytes.get(..FILE_HEADER_BYTES) else {
        return Err(FormatError::Truncated {
            format,
            offset: bytes.len() as u64,
            what: "the header",
        });
    };
    if crc32c(&header[..CRC_AT]) != u32_at(header, CRC_AT) {
        return Err(FormatError::Checksum { format, offset: 0, what: "the header" });
    }
    if header[VERSION_AT] != VERSION {
        return Err(FormatError::Version { format, found: header[VERSION_AT], known: VERSION });
    }
    Ok(FileHeader { first_unit: u128::from_le_bytes(bytes_at(header, FIRST_UNIT_AT)) })
}

/// `magic 8 | version u8 | zeros 7 | first unit u128 | zeros 28 | crc32c u32`
const MAGIC: &[u8; 8] = b"EBBENC\0\x01";
const VERSION: u8 = 1;
const VERSION_AT: usize = 8;
const FIRST_UNIT_AT: usize = 16;
pub(crate) const CRC_AT: usize = FILE_HEADER_BYTES - 4;
