//! Lending: store files that the kernel of this machine reads by itself, past the node (decision
//! 8).
//!
//! Laws:
//! - A file is lent only where all of it is in its store file, and every block that has a checksum
//!   was compared with it by this run or came in during it.
//! - As long as anybody has a file that was lent, it is as long as its store file, what changes is
//!   changed in place, and no block of it is evicted. So who reads past the node reads what the
//!   node would give.
//! - Who has one is not the node's to know: mappings outlive their opens, and opens the node. So
//!   before bytes are taken away the system is asked.

use crate::Node;
use crate::data::fetch::MAX_ATTEMPTS;
use crate::data::store::StoreLocation;
use crate::latches::Mode;
use ebb_core::extent::{BlockRuns, ByteOrigin};
use ebb_model::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Below this size a passthrough open costs more than it saves: all of the file is one request, and
/// then in the page cache.
const LEAST_BYTES: u64 = 128 << 10;

/// Each has descriptors of its own, of which a process has 1,024 as a rule.
const MAX_FILES: usize = 128;

/// What is lent cannot be evicted, so it is at most 1 / this of the cache.
const CACHE_SHARE: u64 = 2;

#[derive(Default)]
pub struct PassthroughGrants {
    table: RefCell<BTreeMap<Ino, Grant>>,
    /// Blocks that this run has compared with their checksums, or put there itself.
    verified: RefCell<BlockRuns>,
}

#[derive(Default)]
struct Grant {
    /// Given out and not given back. A mapping may be left even if there is none.
    count: u64,
    size_bytes: u64,
    /// The kernel has it from an earlier run, and it is not lent anew yet.
    is_doubtful: bool,
}

impl PassthroughGrants {
    pub fn forget(&self, ino: Ino) {
        self.table.borrow_mut().remove(&ino);
        self.verified.borrow_mut().remove(ino, 0..u64::MAX);
    }

    /// The blocks are what their checksums say.
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

    /// Runs of blocks that nothing is known of.
    fn unverified(&self, ino: Ino, blocks: Range<u64>) -> Vec<Range<u64>> {
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
}

impl Node {
    /// The store file of a file, for the kernel to read by itself; to be given back by
    /// [`Node::take_back`]. `None` where the file is to be read through the node: what of it is
    /// not here, or was not verified yet, comes in by that.
    pub async fn grant(
        self: &Rc<Self>,
        ino: Ino,
        request: GrantRequest,
    ) -> Result<Option<OwnedFd>, RpcError> {
        if request == GrantRequest::Begin {
            self.opens_to_read(ino);
        }
        self.grant_now(ino, request).await
    }

    async fn grant_now(
        self: &Rc<Self>,
        ino: Ino,
        request: GrantRequest,
    ) -> Result<Option<OwnedFd>, RpcError> {
        if request == GrantRequest::Resume {
            self.file_size(ino)?;
            // Whatever comes of this, it is to be kept as it is to be seen.
            self.grants
                .table
                .borrow_mut()
                .entry(ino)
                .or_insert(Grant { is_doubtful: true, ..Grant::default() });
        }
        // Who has just read a file opens it again.
        self.filled(|other| other == ino).await;
        for _ in 0..MAX_ATTEMPTS {
            let guard = self.latches.hold(ino, Mode::Shared).await;
            let size = self.file_size(ino)?;
            let is_granted = self.is_exposed(ino)
                || self.grants.is_granted(ino)
                    && (request == GrantRequest::Resume || !self.end_grant(ino));
            let is_wanted =
                is_granted || request == GrantRequest::Begin || self.is_in_use(ino).await?;
            let may_be = is_granted
                || is_wanted
                    && size >= LEAST_BYTES
                    && self.is_apart(ino)
                    && self.is_whole(ino, size)
                    && self.may_grant(size);
            if !may_be {
                return Ok(None);
            }
            // Whoever has it already has others open it in the same way.
            let missing = if is_granted { self.missing(ino, size) } else { Vec::new() };
            if !missing.is_empty() {
                drop(guard);
                self.fetch(ino, &missing).await?;
                continue;
            }
            let granted =
                self.store.grant(ino, size).await.map_err(|error| self.disk_failed(ino, error))?;
            if granted.is_some() {
                if request == GrantRequest::Expose {
                    self.expose(ino).await?;
                }
                self.exposures.granted(ino);
                let mut table = self.grants.table.borrow_mut();
                let grant = table.entry(ino).or_default();
                grant.count += 1;
                (grant.size_bytes, grant.is_doubtful) = (size, false);
            }
            return Ok(granted);
        }
        Err(self.fetched_in_vain(ino))
    }

    /// Whether it is worth asking.
    pub(crate) fn may_be_granted(&self, ino: Ino) -> bool {
        self.file_size(ino).is_ok_and(|size| size >= LEAST_BYTES) && self.is_apart(ino)
    }

    /// As [`Node::grant`], to a client in another process of this machine.
    pub async fn grant_to(
        self: &Rc<Self>,
        session: SessionId,
        ino: Ino,
        request: GrantRequest,
    ) -> Result<Option<OwnedFd>, RpcError> {
        self.expect_attached(session)?;
        let resumes = request == GrantRequest::Resume;
        if !self.attachments.holds(session, ino)
            || request == GrantRequest::Expose && self.attachments.read_only(session)
        {
            return Err(FsError::AccessDenied.into());
        }
        // What was read past an earlier run comes before what is new.
        if self.is_stopping() || !resumes && self.attachments.awaits_any() {
            return Err(RpcError::Retry);
        }
        if request == GrantRequest::Begin {
            self.walk_ahead(ino);
        }
        let granted = self.grant_now(ino, request).await?;
        if granted.is_some() && self.is_stopping() {
            // What would be stored from now on nobody here would send.
            self.take_back(ino);
            return Err(RpcError::Retry);
        }
        Ok(granted)
    }

    /// One that was lent has been closed.
    pub fn take_back(&self, ino: Ino) {
        let over = match self.grants.table.borrow_mut().get_mut(&ino) {
            Some(grant) => {
                grant.count = grant.count.saturating_sub(1);
                // Its readers were not seen.
                self.cache.touch(ino, &(0..grant.size_bytes));
                grant.count == 0
            }
            None => false,
        };
        if over {
            self.end_grant(ino);
        }
    }

    /// Whether somebody reads the store file past the node: has it from this run, or from one
    /// whose mount has died.
    pub(crate) async fn is_in_use(&self, ino: Ino) -> Result<bool, RpcError> {
        let is_doubtful =
            self.grants.table.borrow().get(&ino).is_some_and(|grant| grant.is_doubtful);
        if self.grants.is_granted(ino) && !is_doubtful && !self.end_grant(ino) {
            return Ok(true);
        }
        let is_held =
            self.store.is_held(ino).await.map_err(|error| self.disk_failed(ino, error))?;
        if is_doubtful && !is_held {
            self.grants.table.borrow_mut().remove(&ino);
        }
        Ok(is_held)
    }

    /// Files that somebody reads past the node, and may have lost sight of: what they lack by now
    /// comes in, and they get the length that they are to have.
    pub(crate) fn refresh_granted(self: &Rc<Self>, ino: Ino) {
        if !self.grants.is_granted(ino) {
            return;
        }
        let node = self.clone();
        self.ports.spawn.spawn(Box::pin(async move {
            match node.grant(ino, GrantRequest::Join).await {
                Ok(Some(_)) => node.take_back(ino),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%ino, %error, "who has the file open sees what it was")
                }
            }
        }));
    }

    /// Somebody may see the store file, or may have stored into it.
    pub(crate) fn is_seen(&self, ino: Ino) -> bool {
        self.grants.is_granted(ino) || self.is_exposed(ino)
    }

    /// A file has become longer: so does what is seen of it past the node, and who stores there may
    /// force it without a word to the node. The inode's latch is held exclusively.
    pub(crate) async fn show_length(&self, ino: Ino) -> Result<(), RpcError> {
        // Asked between a command and its answer, which the bucket's side is not to keep waiting.
        // Of a file that has gone meanwhile nothing is shown.
        let is_exposed = self.replica.view_without_backing().extents().is_exposed(ino);
        if !is_exposed && !self.grants.is_granted(ino) {
            return Ok(());
        }
        self.store
            .show_length(&self.location(ino))
            .await
            .map_err(|error| self.disk_failed(ino, error))?;
        if self.is_exposed(ino) { self.force_log().await.map(drop) } else { Ok(()) }
    }

    /// Others have replaced the object of a file. Blocks that it had `before` and that are zeros by
    /// now are seen as such. The inode's latch is held exclusively.
    pub(crate) async fn hide_dropped(
        &self,
        ino: Ino,
        before: Vec<Range<u64>>,
    ) -> Result<(), RpcError> {
        if !self.is_seen(ino) {
            return Ok(());
        }
        for block in before.into_iter().flatten() {
            if self.replica.view().extents().is_zero(ino, block) {
                let hidden =
                    self.store.hole(&self.location(ino), block * BLOCK_BYTES, BLOCK_BYTES).await;
                hidden.map_err(|error| self.disk_failed(ino, error))?;
            }
        }
        Ok(())
    }

    /// How many leading bytes of what is filled in go into the store file. The zeros that are
    /// added to the last block are only for the node to see, and a file that somebody has ends
    /// where it is to end: nothing has to be overwritten behind that.
    pub(crate) async fn visible_bytes(
        &self,
        location: &StoreLocation,
        offset: u64,
        len_bytes: usize,
    ) -> Result<usize, RpcError> {
        let ino = location.ino;
        let is_seen = self.is_seen(ino)
            || self.store.is_held(ino).await.map_err(|error| self.disk_failed(ino, error))?;
        let end = if is_seen { location.size_bytes } else { location.end() };
        Ok(len_bytes.min(end.saturating_sub(offset) as usize))
    }

    /// True if nobody has the file.
    fn end_grant(&self, ino: Ino) -> bool {
        let mut table = self.grants.table.borrow_mut();
        let over = table.get(&ino).is_none_or(|grant| grant.count == 0 && !grant.is_doubtful)
            && self.store.take_back(ino);
        if over {
            table.remove(&ino);
        }
        over
    }

    /// All of the file is in its store file, and as it was written.
    fn is_whole(&self, ino: Ino, size_bytes: u64) -> bool {
        let state = self.replica.view();
        let blocks = size_bytes.div_ceil(BLOCK_BYTES);
        if state.extents().resident_bytes_of(ino) != blocks * BLOCK_BYTES {
            return false;
        }
        let is_unknown =
            |block| state.extents().block(ino, block).is_none_or(|block| block.sum.is_some());
        self.damaged_blocks(ino).is_empty()
            && (self.store.is_never_synced(ino)
                || !self.grants.unverified(ino, 0..blocks).into_iter().flatten().any(is_unknown))
    }

    /// A block is as it was written, as far as this run knows: it has put it there itself, or
    /// compared it.
    pub(crate) fn is_verified(&self, ino: Ino, block: u64) -> bool {
        self.store.is_never_synced(ino) || self.grants.unverified(ino, block..block + 1).is_empty()
    }

    /// Its bytes are in a store file of its own.
    fn is_apart(&self, ino: Ino) -> bool {
        self.location(ino).packed.is_none() && self.store.has_standalone(ino)
    }

    /// What of a file is only in the bucket.
    fn missing(&self, ino: Ino, size_bytes: u64) -> Vec<Range<u64>> {
        let plan = self.replica.view().extents().plan_read(ino, 0..size_bytes, size_bytes);
        plan.into_iter()
            .filter(|part| part.origin == ByteOrigin::Remote)
            .map(|part| part.range)
            .collect()
    }

    /// How much may be cached. Files that are lent may grow, and cannot be evicted: to the others
    /// is left what those never take at first.
    pub(crate) fn cache_budget(&self) -> u64 {
        let state = self.replica.view();
        let granted: BTreeSet<Ino> =
            self.grants.table.borrow().keys().copied().chain(state.extents().exposed()).collect();
        let kept_bytes: u64 =
            granted.into_iter().map(|ino| state.extents().resident_bytes_of(ino)).sum();
        self.options.cache_bytes.max(kept_bytes + self.options.cache_bytes / CACHE_SHARE)
    }

    /// Whether there is room for another one. Mappings that are gone by now are found out here.
    fn may_grant(&self, size_bytes: u64) -> bool {
        let has_room = || {
            let table = self.grants.table.borrow();
            let lent_bytes = table.values().map(|grant| grant.size_bytes).sum::<u64>();
            table.len() < MAX_FILES
                && lent_bytes.saturating_add(size_bytes) <= self.options.cache_bytes / CACHE_SHARE
        };
        if has_room() {
            return true;
        }
        let returned: Vec<Ino> = self
            .grants
            .table
            .borrow()
            .iter()
            .filter(|(_, grant)| grant.count == 0)
            .map(|(ino, _)| *ino)
            .collect();
        for ino in returned {
            self.end_grant(ino);
        }
        has_room()
    }
}

#[cfg(test)]
mod tests;
