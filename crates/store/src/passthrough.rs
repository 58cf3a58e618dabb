//! Store files that the kernel of this machine reads by itself, past the node (decision 8), and the
//! blocks that this run has verified.
//!
//! The node does not know the users of a granted file: mappings outlive their opens, and opens the
//! node. So a grant ends only when the kernel reports that the file is not in use.

use crate::Store;
use ebb_core::blocks::BlockRuns;
use ebb_model::Ino;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Each has descriptors of its own; a process has 1,024 as a rule.
const MAX_FILES: usize = 128;

/// Granted bytes cannot be evicted, so they are at most 1 / this of the cache.
const CACHE_SHARE: u64 = 2;

#[derive(Default)]
pub struct PassthroughGrants {
    table: RefCell<BTreeMap<Ino, Grant>>,
    /// Blocks that this run has compared with their checksums, or put there itself.
    verified: RefCell<BlockRuns>,
}

#[derive(Default)]
struct Grant {
    /// Grants not closed yet. Mappings may remain even at 0.
    count: u64,
    size_bytes: u64,
    /// The kernel has it from an earlier run, and it is not granted anew yet.
    is_doubtful: bool,
}

/// A grant was closed.
pub struct Closed {
    /// The size of the file when it was granted last.
    pub size_bytes: u64,
    /// No other grant of the file is left.
    pub is_last: bool,
}

impl PassthroughGrants {
    pub fn forget(&self, ino: Ino) {
        self.table.borrow_mut().remove(&ino);
        self.verified.borrow_mut().remove(ino, 0..u64::MAX);
    }

    /// The blocks agree with their checksums.
    pub fn verified(&self, ino: Ino, blocks: Range<u64>) {
        let mut verified = self.verified.borrow_mut();
        let is_known = || {
            verified
                .next(ino, blocks.start)
                .is_some_and(|run| run.start <= blocks.start && run.end >= blocks.end)
        };
        if !blocks.is_empty() && !is_known() {
            verified.insert(ino, blocks);
        }
    }

    pub fn is_granted(&self, ino: Ino) -> bool {
        self.table.borrow().contains_key(&ino)
    }

    /// Runs of blocks that were not verified.
    pub fn unverified(&self, ino: Ino, blocks: Range<u64>) -> Vec<Range<u64>> {
        let verified = self.verified.borrow();
        let (mut at, mut unknown) = (blocks.start, Vec::new());
        while at < blocks.end {
            let run = verified.next(ino, at).unwrap_or(blocks.end..blocks.end);
            if run.start > at {
                unknown.push(at..run.start.min(blocks.end));
            }
            at = run.end;
        }
        unknown
    }

    /// A client had a grant of an earlier run. Until the file is granted anew, or is not in use, it
    /// keeps its visible content.
    pub fn resume(&self, ino: Ino) {
        self.table
            .borrow_mut()
            .entry(ino)
            .or_insert(Grant { is_doubtful: true, ..Grant::default() });
    }

    /// The file is granted once more, with this size.
    pub fn begin(&self, ino: Ino, size_bytes: u64) {
        let mut table = self.table.borrow_mut();
        let grant = table.entry(ino).or_default();
        grant.count += 1;
        (grant.size_bytes, grant.is_doubtful) = (size_bytes, false);
    }

    /// A grant of the file is closed. `None` if it is not granted.
    pub fn close(&self, ino: Ino) -> Option<Closed> {
        let mut table = self.table.borrow_mut();
        let grant = table.get_mut(&ino)?;
        grant.count = grant.count.saturating_sub(1);
        Some(Closed { size_bytes: grant.size_bytes, is_last: grant.count == 0 })
    }

    /// The kernel has the file from an earlier run, and it was not granted anew.
    pub fn is_doubtful(&self, ino: Ino) -> bool {
        self.table.borrow().get(&ino).is_some_and(|grant| grant.is_doubtful)
    }

    /// A doubtful file is not in use.
    pub fn drop_doubtful(&self, ino: Ino) {
        self.table.borrow_mut().remove(&ino);
    }

    /// Ends the grant if the file is not in use. Returns whether it has ended.
    pub fn end(&self, ino: Ino, store: &Store) -> bool {
        let mut table = self.table.borrow_mut();
        let over = table.get(&ino).is_none_or(|grant| grant.count == 0 && !grant.is_doubtful)
            && store.take_back(ino);
        if over {
            table.remove(&ino);
        }
        over
    }

    pub fn files(&self) -> Vec<Ino> {
        self.table.borrow().keys().copied().collect()
    }

    /// The limit of cached bytes, of which granted files keep `kept_bytes`. They may grow, and
    /// cannot be evicted: the other files get the part that grants never take at first.
    pub fn cache_budget(&self, cache_bytes: u64, kept_bytes: u64) -> u64 {
        cache_bytes.max(kept_bytes + cache_bytes / CACHE_SHARE)
    }

    /// Whether there is room for another one. Grants with ended mappings are removed here.
    pub fn make_room(&self, store: &Store, size_bytes: u64, cache_bytes: u64) -> bool {
        let has_room = || {
            let table = self.table.borrow();
            let lent_bytes = table.values().map(|grant| grant.size_bytes).sum::<u64>();
            table.len() < MAX_FILES
                && lent_bytes.saturating_add(size_bytes) <= cache_bytes / CACHE_SHARE
        };
        if has_room() {
            return true;
        }
        let returned: Vec<Ino> = self
            .table
            .borrow()
            .iter()
            .filter(|(_, grant)| grant.count == 0)
            .map(|(ino, _)| *ino)
            .collect();
        for ino in returned {
            self.end(ino, store);
        }
        has_room()
    }
}

#[cfg(test)]
mod tests;
