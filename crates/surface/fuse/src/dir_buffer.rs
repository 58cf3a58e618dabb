//! Directory entries in the kernel's layout, as many as its buffer holds.

use crate::reply::{entry_out, file_type};
use crate::{EntryReply, abi};
use ebb_model::{Cookie, FileKind, Ino, Name};
use std::mem::size_of;
use zerocopy::IntoBytes;

/// The answer to READDIR or READDIRPLUS while it is filled.
///
/// Positions in the kernel's stream are 0 for the start, 1 after `.`, 2 after `..`, and an
/// entry's cookie plus 2 after that entry.
pub struct DirBuffer {
    bytes: Vec<u8>,
    limit_bytes: usize,
    plus: bool,
    holds_entries: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Pushed {
    /// The entry is in. Of READDIRPLUS, the kernel has taken a reference to its inode.
    Added { referenced: bool },
    /// The entry is not in; it will be asked for again.
    Full,
}

impl DirBuffer {
    pub(crate) fn new(limit_bytes: u32, plus: bool) -> DirBuffer {
        DirBuffer { bytes: Vec::new(), limit_bytes: limit_bytes as usize, plus, holds_entries: false }
    }

    /// Pushes `.` and `..` where the stream is still before them, and gives the position
    /// from which the file system goes on; `None` where not even these fit.
    pub(crate) fn begin(&mut self, dir: Ino, position: u64) -> Option<Cookie> {
        let dots: [(&[u8], u64, u64); 2] = [(b".", dir.0, 1), (b"..", abi::UNKNOWN_INO, 2)];
        for (name, ino, after) in dots {
            if position < after && !self.encode(name, ino, after, FileKind::Directory, None) {
                return None;
            }
        }
        Some(Cookie(position.saturating_sub(DOTS)))
    }

    /// Attributes are wanted: an entry pushed becomes known to the kernel.
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// How many entries may still fit, at most.
    pub fn room(&self) -> usize {
        (self.limit_bytes - self.bytes.len()) / self.record_bytes(1)
    }

    /// `cookie` is the position after this entry.
    pub fn push(&mut self, name: &Name, cookie: Cookie, entry: &EntryReply) -> Pushed {
        let attr = &entry.attr;
        match self.encode(name.as_bytes(), attr.ino.0, cookie.0.saturating_add(DOTS), attr.kind, Some(entry)) {
            true => {
                self.holds_entries = true;
                Pushed::Added { referenced: self.plus }
            }
            false => Pushed::Full,
        }
    }

    fn encode(&mut self, name: &[u8], ino: u64, position: u64, kind: FileKind, entry: Option<&EntryReply>) -> bool {
        let end = self.bytes.len() + self.record_bytes(name.len());
        if end > self.limit_bytes {
            return false;
        }
        if self.plus {
            // Without an entry the node id stays 0: the kernel takes the name and looks up nothing.
            let entry = entry.map(entry_out).unwrap_or_default();
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = abi::Dirent { ino, off: position, namelen: name.len() as u32, kind: file_type(kind) >> 12 };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    fn record_bytes(&self, name_len: usize) -> usize {
        let entry = if self.plus { size_of::<abi::EntryOut>() } else { 0 };
        (entry + size_of::<abi::Dirent>() + name_len).next_multiple_of(8)
    }

    pub(crate) fn holds_entries(&self) -> bool {
        self.holds_entries
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Entries that every directory begins with and the model does not have.
const DOTS: u64 = 2;
