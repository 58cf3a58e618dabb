//! Passthrough grants: store files that the kernel of this machine reads by itself, past the node
//! (decision 8).
//!
//! Laws:
//! - A file is granted only where all of it is in its store file, and every block that has a
//!   checksum was compared with it by this run or came in during it.
//! - As long as a granted file may be in use, it is as long as its store file, changes are made in
//!   place, and no block of it is evicted. So a reader past the node reads the same bytes as
//!   through it.
//! - The node does not know the users of a granted file: mappings outlive their opens, and opens
//!   the node. So the kernel is asked before bytes are taken away.

use crate::Node;
use crate::data::fetch::MAX_ATTEMPTS;
use ebb_core::byte_map::ByteOrigin;
use ebb_model::*;
use ebb_store::{Mode, StoreLocation};
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Below this size a passthrough open costs more than it saves: all of the file is one request, and
/// then in the page cache.
const LEAST_BYTES: u64 = 128 << 10;

impl Node {
    /// Returns the store file of an inode, for the kernel to read by itself; to be given back by
    /// [`Node::take_back`]. `None` where the file must be read through the node: that read brings
    /// in or verifies the missing blocks.
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
            // Whether or not the grant succeeds, the file keeps its visible content.
            self.data.grants.resume(ino);
        }
        // A reader that has just read a file opens it again.
        self.data.downloads.filled(|other| other == ino).await;
        for _ in 0..MAX_ATTEMPTS {
            let guard = self.data.latches.hold(ino, Mode::Shared).await;
            let size = self.file_size(ino)?;
            let is_granted = self.is_exposed(ino)
                || self.data.grants.is_granted(ino)
                    && (request == GrantRequest::Resume || !self.end_grant(ino));
            let is_wanted =
                is_granted || request == GrantRequest::Begin || self.is_in_use(ino).await?;
            let may_be = is_granted
                || is_wanted
                    && size >= LEAST_BYTES
                    && self.is_apart(ino)
                    && self.is_whole(ino, size)
                    && self.data.grants.make_room(&self.store, size, self.options.cache_bytes);
            if !may_be {
                return Ok(None);
            }
            // The kernel needs all opens of one inode to be of one kind: a grant in use is
            // repeated.
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
                self.data.exposures.granted(ino);
                self.data.grants.begin(ino, size);
            }
            return Ok(granted);
        }
        Err(self.fetched_in_vain(ino))
    }

    /// Whether a client should request a grant.
    pub(crate) fn may_be_granted(&self, ino: Ino) -> bool {
        self.file_size(ino).is_ok_and(|size| size >= LEAST_BYTES)
            && self.is_apart(ino)
            && self.held_elsewhere(ino).is_none()
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
        // Grants of an earlier run are resumed before new ones are given.
        let awaits = self.attachments.awaits(session) || self.lacks_bytes(ino);
        if self.is_stopping() || !resumes && awaits {
            return Err(RpcError::Retry);
        }
        if request == GrantRequest::Begin {
            self.walk_ahead(ino);
        }
        let granted = self.grant_now(ino, request).await?;
        if granted.is_some() && self.is_stopping() {
            // No node would send bytes that are stored later.
            self.take_back(ino);
            return Err(RpcError::Retry);
        }
        Ok(granted)
    }

    /// A grant has been closed.
    pub fn take_back(&self, ino: Ino) {
        let Some(closed) = self.data.grants.close(ino) else { return };
        // Reads past the node were not recorded.
        self.data.cache.touch(ino, &(0..closed.size_bytes));
        if closed.is_last {
            self.end_grant(ino);
        }
    }

    /// Whether the store file is in use past the node: through a grant of this run, or of an
    /// earlier one with a dead mount.
    pub(crate) async fn is_in_use(&self, ino: Ino) -> Result<bool, RpcError> {
        let is_doubtful = self.data.grants.is_doubtful(ino);
        if self.data.grants.is_granted(ino) && !is_doubtful && !self.end_grant(ino) {
            return Ok(true);
        }
        let is_held =
            self.store.is_held(ino).await.map_err(|error| self.disk_failed(ino, error))?;
        if is_doubtful && !is_held {
            self.data.grants.drop_doubtful(ino);
        }
        Ok(is_held)
    }

    /// Brings the store file of a granted inode up to date for its readers: missing blocks are
    /// fetched, and it gets its expected length.
    pub(crate) fn refresh_granted(self: &Rc<Self>, ino: Ino) {
        if !self.data.grants.is_granted(ino) {
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

    /// The store file may be read or stored into past the node.
    pub(crate) fn is_seen(&self, ino: Ino) -> bool {
        self.data.grants.is_granted(ino) || self.is_exposed(ino)
    }

    /// A file has become longer: its length seen past the node grows too, and a client that stores
    /// there may force it without telling the node. The inode's latch is held exclusively.
    pub(crate) async fn show_length(&self, ino: Ino) -> Result<(), RpcError> {
        // Called between a command and its answer, which backing updates must not delay. A file
        // that has gone is not looked at.
        let is_exposed = self.replica.view_without_backing().extents().is_exposed(ino);
        if !is_exposed && !self.data.grants.is_granted(ino) {
            return Ok(());
        }
        self.store
            .show_length(&self.location(ino))
            .await
            .map_err(|error| self.disk_failed(ino, error))?;
        if self.is_exposed(ino) { self.force_log().await.map(drop) } else { Ok(()) }
    }

    /// The object of a file was replaced externally. Blocks that it had `before` and that are now
    /// zeros become zeros in the store file too. The inode's latch is held exclusively.
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

    /// How many leading bytes of a fill go into the store file. The zeros that are added to the
    /// last block are only for the node, and a granted file ends at its own length: so nothing has
    /// to be overwritten behind that.
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

    /// Ends the grant if the file is not in use. Returns whether it has ended.
    fn end_grant(&self, ino: Ino) -> bool {
        self.data.grants.end(ino, &self.store)
    }

    /// All of the file is in its store file, with the written bytes.
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
                || !self
                    .data
                    .grants
                    .unverified(ino, 0..blocks)
                    .into_iter()
                    .flatten()
                    .any(is_unknown))
    }

    /// A block has its written bytes, as far as this run knows: it has put it there itself, or
    /// compared it.
    pub(crate) fn is_verified(&self, ino: Ino, block: u64) -> bool {
        self.store.is_never_synced(ino)
            || self.data.grants.unverified(ino, block..block + 1).is_empty()
    }

    /// Its bytes are in a store file of its own.
    fn is_apart(&self, ino: Ino) -> bool {
        self.location(ino).packed.is_none() && self.store.has_standalone(ino)
    }

    /// The ranges of a file that are only in the bucket.
    fn missing(&self, ino: Ino, size_bytes: u64) -> Vec<Range<u64>> {
        let plan = self.replica.view().extents().plan_read(ino, 0..size_bytes, size_bytes);
        plan.into_iter()
            .filter(|part| part.origin == ByteOrigin::Remote)
            .map(|part| part.range)
            .collect()
    }

    /// The limit of cached bytes.
    pub(crate) fn cache_budget(&self) -> u64 {
        let state = self.replica.view();
        let granted: BTreeSet<Ino> =
            self.data.grants.files().into_iter().chain(state.extents().exposed()).collect();
        let kept_bytes: u64 =
            granted.into_iter().map(|ino| state.extents().resident_bytes_of(ino)).sum();
        self.data.grants.cache_budget(self.options.cache_bytes, kept_bytes)
    }
}
