//! Checksummed JSON: readable text in which every change of a member is detected.

use crate::{Format, FormatError, crc32c};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    #[serde(flatten)]
    content: T,
    crc32c: String,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u8,
}

const ALWAYS_JSON: &str = "strings, numbers and booleans are always JSON";

/// Encodes `content`, which has a member `format`, with a member `crc32c` behind it.
pub fn seal<T: Serialize>(content: &T) -> Bytes {
    let crc32c = checksum(content);
    let mut json = serde_json::to_vec_pretty(&Sealed { content, crc32c }).expect(ALWAYS_JSON);
    json.push(b'\n');
    json.into()
}

/// A sealed text with one member more, which the checksum does not cover.
pub fn remark(sealed: &Bytes, name: &str, value: &str) -> Bytes {
    let open = sealed.strip_suffix(b"\n}\n").expect("a sealed text ends with its last member");
    let value = serde_json::to_string(value).expect(ALWAYS_JSON);
    [open, format!(",\n  \"{name}\": {value}\n}}\n").as_bytes()].concat().into()
}

/// Recomputes the checksum; `None` if a member is missing.
#[cfg(feature = "fuzz")]
pub fn resealed<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Bytes> {
    let Sealed::<T> { content, .. } = serde_json::from_slice(bytes).ok()?;
    Some(seal(&content))
}

/// Skips unknown members: an incompatible version has another `format`.
pub fn unseal<T: Serialize + DeserializeOwned>(
    format: Format,
    known: RangeInclusive<u8>,
    bytes: &[u8],
) -> Result<T, FormatError> {
    let FormatOnly { format: found } = parse(format, bytes)?;
    if !known.contains(&found) {
        return Err(FormatError::Version { format, found, known: *known.end() });
    }
    let Sealed { content, crc32c } = parse(format, bytes)?;
    if checksum(&content) != crc32c {
        return Err(FormatError::Checksum { format, offset: 0, what: "the members" });
    }
    Ok(content)
}

/// Parses exactly `digits` hexadecimal digits.
pub fn from_hex(
    format: Format,
    what: &str,
    text: &str,
    digits: usize,
) -> Result<u128, FormatError> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.ok_or_else(|| FormatError::Invalid {
        format,
        offset: 0,
        what: format!("{text:?} is no {what}"),
    })
}

/// CRC-32C of the members as JSON without white space, in declaration order. It does not depend on
/// the layout of the text.
fn checksum<T: Serialize>(content: &T) -> String {
    format!("{:08x}", crc32c(&serde_json::to_vec(content).expect(ALWAYS_JSON)))
}

fn parse<'a, T: Deserialize<'a>>(format: Format, bytes: &'a [u8]) -> Result<T, FormatError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let line_start: usize = bytes
            .split_inclusive(|&byte| byte == b'\n')
            .take(error.line().saturating_sub(1))
            .map(<[u8]>::len)
            .sum();
        let offset = (line_start + error.column().saturating_sub(1)) as u64;
        if error.is_eof() {
            FormatError::Truncated { format, offset: bytes.len() as u64, what: "the JSON text" }
        } else {
            FormatError::Invalid { format, offset, what: error.to_string() }
        }
    })
}
