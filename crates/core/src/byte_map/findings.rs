//! What a node has found on its disk and puts into commands: facts that decide about content, on
//! which all replicas agree.

use super::ByteMap;
use crate::blocks::runs;
use ebb_model::{BLOCK_BYTES, Ino, SetAttr, Version};
use std::ops::Range;

/// Runs of one finding in a command, which must stay short.
const MAX_RUNS: usize = 4096;

impl ByteMap<'_> {
    /// Whether the change of attributes truncates the file within a block that the node has.
    pub fn has_edge(self, ino: Ino, set: &SetAttr) -> bool {
        set.size_bytes.is_some_and(|len_bytes| {
            !len_bytes.is_multiple_of(BLOCK_BYTES) && self.is_present(ino, len_bytes / BLOCK_BYTES)
        })
    }

    /// Dirty blocks that an upload of `version` cannot make clean: a store through a mapping can
    /// have changed them since the upload read them. Few long runs stand for many short ones: a
    /// block that is sent again for nothing is no harm.
    pub fn changed_since(self, ino: Ino, version: Version) -> Vec<Range<u64>> {
        if !self.is_exposed(ino) {
            return Vec::new();
        }
        let void = self
            .present(ino, 0..u64::MAX)
            .filter(|(_, state)| state.dirty && state.sum.is_none() && state.version <= version);
        let mut found = runs(void.map(|(block, _)| block));
        if found.len() > MAX_RUNS {
            let end = found.last().map_or(0, |last| last.end);
            found.truncate(1);
            found[0].end = end;
        }
        found
    }

    /// Clean blocks that the node keeps of an object that is gone. They are the only copy. Beyond
    /// a number of runs that no command can hold, the rest is lost with the object.
    pub fn kept_without_object(self, ino: Ino) -> Vec<Range<u64>> {
        let clean = self.present(ino, 0..u64::MAX).filter(|(_, state)| !state.dirty);
        let mut found = runs(clean.map(|(block, _)| block));
        found.truncate(MAX_RUNS);
        found
    }
}
