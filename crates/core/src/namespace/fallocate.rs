//! fallocate(2): reserves a range of a file, or zeros it.

use super::access::is_privileged;
use super::{Change, Namespace, Operation};
use ebb_model::*;
use std::ops::Range;

impl Namespace {
    /// Needs no permission check: the descriptor was checked at open, as for a write. `span` is
    /// offset and length, `how` is the operation and whether the size stays.
    pub(super) fn fallocate(
        &mut self,
        ino: Ino,
        span: (u64, u64),
        how: (Allocation, bool),
        edges: &[u64],
        drop_set_id: bool,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        let old_bytes = inode.attr.file_bytes()?;
        let ((offset, len_bytes), (what, keep_size)) = (span, how);
        if len_bytes == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset
            .checked_add(len_bytes)
            .filter(|end| *end <= MAX_FILE_BYTES)
            .ok_or(FsError::TooLarge)?;
        self.permit_bytes(ino, what == Allocation::Zero)?;

        if drop_set_id || !is_privileged(op.caller) {
            inode.attr.mode = inode.without_set_id(op.caller);
        }
        inode.drop_capability();
        if !keep_size {
            inode.attr.size_bytes = old_bytes.max(end);
        }
        inode.modified(op.stamp);
        self.put_inode(&inode);
        let new = inode.attr;
        if what == Allocation::Zero && offset < old_bytes {
            let range = zero_span(offset, len_bytes, old_bytes);
            op.changes.push(Change::Zeroed { ino, range, edges: edges.to_vec(), stamp: op.stamp });
        }
        if new.size_bytes != old_bytes {
            op.changes.push(Change::Resized {
                ino,
                old_bytes,
                new_bytes: new.size_bytes,
                has_edge: false,
                stamp: op.stamp,
            });
        }
        op.touched(ino);
        self.count_resized(ino, old_bytes);
        Ok(new)
    }
}

/// The range that becomes zeros. Bytes behind the end are zeros already, so a range that reaches
/// the end of the file is extended to the end of its last block.
pub fn zero_span(offset: u64, len_bytes: u64, size_bytes: u64) -> Range<u64> {
    let end = offset.saturating_add(len_bytes);
    let end = if end < size_bytes { end } else { size_bytes.next_multiple_of(BLOCK_BYTES) };
    offset..end.max(offset)
}
