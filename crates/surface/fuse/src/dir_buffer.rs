//! Directory entries in the kernel's layout, as many as its buffer holds.

use crate::reply::{entry_out, file_type};
use crate::{EntryReply, abi};
use ebb_model::{Cookie, FileKind, Ino, Name, Planted};
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
    /// The entry is not in the buffer; the kernel will request it again.
    Full,
}

impl DirBuffer {
    pub(crate) fn new(limit_bytes: u32, plus: bool) -> DirBuffer {
        DirBuffer {
            bytes: Vec::new(),
            limit_bytes: limit_bytes as usize,
            plus,
            holds_entries: false,
        }
    }

    /// Pushes `.` and `..` if the stream is still before them, and returns the position from which
    /// the file system continues; `None` if not even these fit.
    pub(crate) fn begin(&mut self, dir: Ino, position: u64) -> Option<Cookie> {
        let dots: [(&[u8], u64, u64); 2] = [(b".", dir.0, 1), (b"..", abi::UNKNOWN_INO, 2)];
        for (name, ino, after) in dots {
            if position < after && !self.encode(name, ino, after, FileKind::Directory, None) {
                return None;
            }
        }
        let skips = Planted::DirOffsetSkipped.is_on() && position > DOTS;
        Some(Cookie(position.saturating_sub(DOTS) + u64::from(skips)))
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
        match self.encode(
            name.as_bytes(),
            attr.ino.0,
            cookie.0.saturating_add(DOTS),
            attr.kind,
            Some(entry),
        ) {
            true => {
                self.holds_entries = true;
                Pushed::Added { referenced: self.plus }
            }
            false => Pushed::Full,
        }
    }

    fn encode(
        &mut self,
        name: &[u8],
        ino: u64,
        position: u64,
        kind: FileKind,
        entry: Option<&EntryReply>,
    ) -> bool {
        let end = self.bytes.len() + self.record_bytes(name.len());
        if end > self.limit_bytes {
            return false;
        }
        if self.plus {
            // Without an entry the node id stays 0: the kernel takes the name and looks up nothing.
            let entry = entry.map(entry_out).unwrap_or_default();
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = abi::Dirent {
            ino,
            off: position,
            namelen: name.len() as u32,
            kind: file_type(kind) >> 12,
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::{Attr, Time, Version};
    use std::time::Duration;
    use zerocopy::FromBytes;

    fn entry(ino: u64) -> EntryReply {
        let time = Time::default();
        let attr = Attr {
            ino: Ino(ino),
            kind: FileKind::Symlink,
            mode: 0o777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size_bytes: 0,
            hole_bytes: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version: Version::default(),
        };
        EntryReply { attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO }
    }

    /// Reads as the kernel does: (node id, inode, position, name).
    fn decode(buffer: DirBuffer) -> Vec<(u64, u64, u64, Vec<u8>)> {
        let plus = buffer.plus;
        let bytes = buffer.into_bytes();
        assert_eq!(bytes.len() % 8, 0);
        let mut rest = &bytes[..];
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let start = rest.len();
            let mut node = 0;
            if plus {
                let (entry, after) = abi::EntryOut::read_from_prefix(rest).unwrap();
                (node, rest) = (entry.nodeid, after);
            }
            let (dirent, after) = abi::Dirent::read_from_prefix(rest).unwrap();
            let (name, after) = after.split_at(dirent.namelen as usize);
            entries.push((node, dirent.ino, dirent.off, name.to_vec()));
            let padding = (start - after.len()).next_multiple_of(8) - (start - after.len());
            rest = &after[padding..];
        }
        entries
    }

    fn name(len: usize) -> Name {
        Name::new(&vec![b'n'; len]).unwrap()
    }

    #[test]
    fn entries_of_every_length_until_it_is_full() {
        for plus in [false, true] {
            for limit in 0..3000 {
                let mut buffer = DirBuffer::new(limit, plus);
                let Some(after) = buffer.begin(Ino(7), 0) else {
                    assert!(limit < 400);
                    continue;
                };
                assert_eq!(after, Cookie::START);
                let mut pushed = 0;
                while pushed < 255 {
                    let next = pushed + 1;
                    match buffer.push(&name(next), Cookie(next as u64), &entry(100 + next as u64)) {
                        Pushed::Added { referenced } => assert_eq!(referenced, plus),
                        Pushed::Full => break,
                    }
                    pushed = next;
                }
                assert_eq!(buffer.holds_entries(), pushed > 0);
                let entries = decode(buffer);
                assert_eq!(entries.len(), pushed + 2);
                assert_eq!(entries[0], (0, 7, 1, b".".to_vec()));
                assert_eq!(entries[1], (0, abi::UNKNOWN_INO, 2, b"..".to_vec()));
                for (i, found) in entries[2..].iter().enumerate() {
                    let ino = 101 + i as u64;
                    assert_eq!(
                        *found,
                        (if plus { ino } else { 0 }, ino, i as u64 + 3, vec![b'n'; i + 1])
                    );
                }
            }
        }
    }

    #[test]
    fn the_stream_goes_on_where_it_was() {
        for (position, dots, after) in
            [(0, 2, 0), (1, 1, 0), (2, 0, 0), (3, 0, 1), (u64::MAX, 0, u64::MAX - 2)]
        {
            let mut buffer = DirBuffer::new(4096, false);
            assert_eq!(buffer.begin(Ino(7), position), Some(Cookie(after)));
            assert_eq!(decode(buffer).len(), dots);
        }
        assert_eq!(DirBuffer::new(10, false).begin(Ino(7), 0), None);
        assert_eq!(DirBuffer::new(10, false).room(), 0);
    }
}
