//! Facts about this node's disk that decide about content, which is replicated.
//!
//! With several nodes they cannot stay: each moves to the node's own record in the log in the next
//! step, and the node reports a finding as a command of its own.
//!
//! Two more such facts are read outside this module:
//! - [`Backing::is_whole`](crate::backing::Backing::is_whole): an object that the bucket lost is
//!   sent again only if this node has every byte.
//! - `Absent` of a clean block whose object is gone: a reader sees zeros afterwards.

use super::ByteMap;
use crate::blocks::runs;
use crate::content::UploadFacts;
use ebb_model::{BLOCK_BYTES, Ino, Version};
use std::ops::Range;

impl ByteMap<'_> {
    /// Which blocks an upload of `version` does not make clean as the content alone would have it:
    ///
    /// - A dirty block of an exposed file whose checksum is void stays dirty: a store through a
    ///   mapping can have changed it since the upload read it. (In other files it ends with the
    ///   upload in any case: [`Extents::cleaned`](crate::extent::Extents) drops it, because only
    ///   the object has its bytes for certain.)
    /// - A clean block whose object is gone was sent with the file. It does not become a hole.
    pub(super) fn upload_facts(self, ino: Ino, version: Version) -> UploadFacts {
        let is_exposed = self.extents.is_exposed(ino);
        let void = || {
            self.present(ino, 0..u64::MAX)
                .filter(|(_, state)| state.dirty && state.sum.is_none() && state.version <= version)
        };
        UploadFacts {
            still_dirty: if is_exposed { runs(void().map(|(at, _)| at)) } else { Vec::new() },
            nonzero: self.extents.orphaned_runs(ino),
        }
    }

    /// Whether a truncation makes the block dirty that keeps only its first bytes. An absent one
    /// stays clean, since the valid part of the object ends with the file. A present one, clean or
    /// dirty, has lost its checksum, and only a dirty block can be without.
    pub(super) fn is_boundary_dirtied(self, ino: Ino, len_bytes: u64) -> bool {
        !len_bytes.is_multiple_of(BLOCK_BYTES) && self.is_present(ino, len_bytes / BLOCK_BYTES)
    }

    /// The blocks that become dirty because the bucket has lost the object: all present ones. The
    /// caller has found that every other block is zeros.
    pub(super) fn blocks_to_send_again(self, ino: Ino) -> Vec<Range<u64>> {
        self.resident_runs(ino, 0..u64::MAX)
    }
}
