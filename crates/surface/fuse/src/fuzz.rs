//! Entry points of the fuzz targets.

use crate::mountinfo::{self, DeviceId};
use crate::{DirBuffer, EntryReply, Pushed};
use ebb_model::{Cookie, Ino, Name};

/// A mount table from the kernel: paths may contain any bytes, and the input may be hostile.
pub fn mountinfo(table: &[u8]) {
    for line in table.split(|byte| *byte == b'\n') {
        if let Some(mounted) = mountinfo::parse(line) {
            assert_eq!(DeviceId::of_number(mounted.device.number()), mounted.device);
        }
    }
}

/// The reply to READDIR for these entries, no longer than requested.
pub fn listed(
    dir: Ino,
    position: u64,
    limit_bytes: u32,
    plus: bool,
    entries: &[(Name, EntryReply)],
) {
    let mut buffer = DirBuffer::new(limit_bytes, plus);
    let Some(Cookie(after)) = buffer.begin(dir, position) else { return };
    for (at, (name, entry)) in entries.iter().enumerate() {
        if buffer.push(name, Cookie(after.saturating_add(at as u64)), entry) == Pushed::Full {
            break;
        }
        buffer.room();
    }
    let bytes = buffer.into_bytes();
    assert!(
        bytes.len() <= limit_bytes as usize && bytes.len().is_multiple_of(8),
        "{} of {limit_bytes}",
        bytes.len()
    );
}
