//! write: the bytes are in the store file already. One command updates the attributes, and content
//! records the written blocks with their version (O-68).

use super::access::is_privileged;
use super::{Change, Namespace, Operation};
use ebb_model::*;

impl Namespace {
    /// Fails if the flags of a file forbid a change of its bytes. The caller checks before it
    /// overwrites bytes in place. `zeroes`: the bytes become zeros.
    pub fn permit_bytes(&self, ino: Ino, zeroes: bool) -> Result<(), FsError> {
        let flags = self.inode(ino).ok_or(FsError::Stale)?.flags();
        let forbidden = flags.has(InodeFlags::IMMUTABLE) || zeroes && flags.has(InodeFlags::APPEND);
        if forbidden { Err(FsError::NotPermitted) } else { Ok(()) }
    }

    /// Needs no permission check: the descriptor was checked at open, and later changes of the mode
    /// do not matter. `span` is offset and length; an empty write changes nothing.
    pub(super) fn write(
        &mut self,
        ino: Ino,
        span: (u64, u64),
        drop_set_id: bool,
        op: &mut Operation,
    ) -> Result<Attr, FsError> {
        let mut inode = self.inode(ino).ok_or(FsError::Stale)?;
        let old_bytes = inode.attr.file_bytes()?;
        let (offset, len_bytes) = span;
        let end = offset
            .checked_add(len_bytes)
            .filter(|end| *end <= MAX_FILE_BYTES)
            .ok_or(FsError::TooLarge)?;
        if len_bytes == 0 {
            return Ok(inode.attr);
        }
        self.permit_bytes(ino, false)?;
        let privileges = (inode.attr.mode, inode.xattrs.len());
        if drop_set_id || !is_privileged(op.caller) {
            inode.attr.mode = inode.without_set_id(op.caller);
        }
        inode.drop_capability();
        let dropped = privileges != (inode.attr.mode, inode.xattrs.len());
        inode.attr.size_bytes = inode.attr.size_bytes.max(end);
        let before = inode.attr.clone();
        inode.modified(op.stamp);
        if Planted::MtimeKept.is_on() {
            inode.attr.mtime = before.mtime;
        }
        if Planted::VersionKept.is_on() {
            inode.attr.version = before.version;
        }
        self.put_inode(&inode);
        op.changes.push(Change::Written { ino, offset, len_bytes, stamp: op.stamp });
        if dropped {
            op.touched(ino);
        }
        self.count_resized(ino, old_bytes);
        Ok(inode.attr)
    }

    /// `count` blocks were stored through a mapping: no permission check, and only times change.
    /// Returns false if the file is gone.
    pub(crate) fn found(
        &mut self,
        ino: Ino,
        (first, count): (u64, u64),
        stamp: Stamp,
        changes: &mut Vec<Change>,
    ) -> bool {
        if self.inode(ino).is_none_or(|inode| inode.attr.kind != FileKind::Regular) {
            return false;
        }
        self.change_inode(ino, |inode| inode.modified(stamp));
        let (offset, len_bytes) =
            (first.saturating_mul(BLOCK_BYTES), count.saturating_mul(BLOCK_BYTES));
        changes.push(Change::Written { ino, offset, len_bytes, stamp });
        true
    }
}
