//! File names, and text for terminals.

use crate::FsError;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A valid file name: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`. Clones share the bytes,
/// since the namespace stores each name several times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Name(Arc<[u8]>);

pub const MAX_NAME_BYTES: usize = 255;

impl Name {
    pub fn new(bytes: &[u8]) -> Result<Name, FsError> {
        if bytes.len() > MAX_NAME_BYTES {
            return Err(FsError::NameTooLong);
        }
        if bytes.is_empty()
            || bytes == b"."
            || bytes == b".."
            || bytes.iter().any(|&b| b == b'/' || b == 0)
        {
            return Err(FsError::Invalid);
        }
        Ok(Name(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for Name {
    type Error = FsError;

    fn try_from(bytes: Vec<u8>) -> Result<Name, FsError> {
        Name::new(&bytes)
    }
}

impl From<Name> for Vec<u8> {
    fn from(name: Name) -> Vec<u8> {
        name.0.to_vec()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

/// Formats a path for terminals and logs. Letters of any alphabet are unchanged; invalid UTF-8,
/// control characters and line ends are escaped as in a name.
pub fn shown_path(path: &[u8]) -> String {
    let mut out = String::new();
    for chunk in path.utf8_chunks() {
        out += &shown_text(&chunk.valid().replace('\\', "\\\\"));
        out += &escaped(chunk.invalid());
    }
    out
}

/// Formats a number of bytes in powers of 1024: `512 B`, `20 GiB`, `1.5 TiB`.
pub fn shown_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || unit == 0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Formats text in one line: escapes control characters as in a path. A `\` stays unchanged, since
/// the text can be escaped already.
pub fn shown_text(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter.is_control() {
            true => out += &escaped(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            false => out.push(letter),
        }
    }
    out
}

fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_bytes_are_escaped() {
        for (path, shown) in [
            (&b"d/a file"[..], "d/a file"),
            ("d/größe 大".as_bytes(), "d/größe 大"),
            (b"evil\n  0 s  0 B  /forged", "evil\\n  0 s  0 B  /forged"),
            (b"\x1b[2J\r\t\x7f", "\\x1b[2J\\r\\t\\x7f"),
            ("\u{9b}2J".as_bytes(), "\\xc2\\x9b2J"),
            (b"w/\xff", "w/\\xff"),
            (b"w/\\xff", "w/\\\\xff"),
        ] {
            assert_eq!(shown_path(path), shown);
            assert_eq!(shown_text(shown), shown, "once is enough");
        }
        assert_eq!(shown_text("a: \n\x1b[31m größe"), "a: \\n\\x1b[31m größe");
    }
}
