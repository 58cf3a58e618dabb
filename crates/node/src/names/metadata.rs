//! The bound of the memory for metadata. It is checked before new metadata comes in, and before any
//! of it is applied; a command in the log is applied without a check. Near the bound names are
//! evicted that the bucket has.
//!
//! Concurrent requests may exceed the bound together: by a part of a listing or an attribute for
//! each request of a client. Unrequested metadata is loaded only if all of it has room.

use crate::Node;
use crate::names::listings::LIST_LIMIT;
use ebb_model::*;
use ebb_ports::Signal;
use futures_util::future::select;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How often the memory of metadata is checked.
const METADATA_POLL: Duration = Duration::from_secs(1);

/// If all directories together have fewer evictable names, the rest is in use.
const LEAST: usize = 64;

/// The most bytes of an inode, its name and its place in a directory, without the text of the name.
const MOST_OF_INODE_BYTES: u64 = 1024;

/// The usual bytes of the same for an object in a listing.
const USUAL_INODE_BYTES: u64 = 256;

/// The pause after an eviction that found too little.
const REST: Duration = Duration::from_secs(5);

/// Above this part of the bound names are evicted.
const TENTHS_FULL: u64 = 9;

/// Eviction ends at this part.
const TENTHS_LEFT: u64 = 8;

pub struct Metadata {
    limit_bytes: u64,
    /// A request waits for room.
    urged: Signal,
    /// No eviction begins before this time.
    not_before: Cell<Duration>,
}

impl Metadata {
    pub fn new(limit_bytes: u64) -> Metadata {
        Metadata { limit_bytes, urged: Signal::default(), not_before: Cell::default() }
    }

    fn is_full(&self, memory_bytes: u64) -> bool {
        memory_bytes.saturating_add(MOST_OF_INODE_BYTES) >= self.limit_bytes
    }

    /// How many parts of listings may be loaded together without a request.
    pub fn parts_to_spare(&self, memory_bytes: u64) -> usize {
        let spare = (self.limit_bytes / 10 * TENTHS_FULL).saturating_sub(memory_bytes);
        (spare / (LIST_LIMIT as u64 * USUAL_INODE_BYTES)) as usize
    }
}

impl Node {
    /// Whether there is room for a client's mutation. One that adds nothing, or removes, always
    /// passes.
    pub(crate) fn room_to_make(&self, mutation: &ClientMutation) -> Result<(), RpcError> {
        let Some(added) = most_added_bytes(mutation) else { return Ok(()) };
        if self.replica.view().memory_bytes().saturating_add(added)
            <= self.names.metadata.limit_bytes
        {
            return Ok(());
        }
        self.names.metadata.urged.raise();
        self.tell_of_metadata();
        Err(FsError::NoSpace.into())
    }

    /// Whether names may come in from the bucket: not yet while others may be evicted for them.
    pub(crate) fn room_to_load(&self) -> Result<(), RpcError> {
        if !self.names.metadata.is_full(self.replica.view().memory_bytes()) {
            return Ok(());
        }
        if self.ports.clock.monotonic() >= self.names.metadata.not_before.get() {
            self.names.metadata.urged.raise();
            return Err(RpcError::Retry);
        }
        // Nothing can be forgotten before all clients have said what they refer to.
        if self.attachments.awaits_any() {
            return Err(RpcError::Retry);
        }
        self.tell_of_metadata();
        Err(FsError::NoMemory.into())
    }

    pub(crate) async fn bound_metadata_for_ever(self: Rc<Self>) {
        let limit = self.names.metadata.limit_bytes;
        while !self.is_stopping() {
            let urged = self.names.metadata.urged.wait();
            let now = self.ports.clock.monotonic();
            let is_due = self.replica.view().memory_bytes() >= limit / 10 * TENTHS_FULL
                && now >= self.names.metadata.not_before.get();
            if is_due {
                let gone =
                    self.forget_until(limit / 10 * TENTHS_LEFT).await.unwrap_or_else(|error| {
                        tracing::warn!(%error, "names could not be forgotten");
                        0
                    });
                if gone < LEAST {
                    self.names.metadata.not_before.set(self.ports.clock.monotonic() + REST);
                }
            }
            // While names are being evicted there is no trouble to report.
            if !self.names.metadata.is_full(self.replica.view().memory_bytes())
                || self.ports.clock.monotonic() < self.names.metadata.not_before.get()
            {
                self.tell_of_metadata();
            }
            select(pin!(urged), self.ports.clock.sleep(METADATA_POLL)).await;
        }
    }

    fn tell_of_metadata(&self) {
        let (bytes, limit) = (self.replica.view().memory_bytes(), self.names.metadata.limit_bytes);
        let what = (bytes.saturating_add(most_of_named_bytes(MAX_NAME_BYTES)) >= limit).then(|| {
            format!(
                "metadata takes {bytes} of the {limit} bytes of memory that it may: nothing can be \
                 made and no names come \
                 from the bucket until something is removed, or the volume is mounted with more \
                 --metadata-memory"
            )
        });
        self.trouble("metadata", what);
    }
}

/// The most bytes of an inode with a name of this length.
fn most_of_named_bytes(len: usize) -> u64 {
    MOST_OF_INODE_BYTES + len as u64
}

/// The most bytes that a mutation can add, if it adds any.
fn most_added_bytes(mutation: &ClientMutation) -> Option<u64> {
    let named = |len: usize| Some(most_of_named_bytes(len));
    let len = |name: &Name| name.as_bytes().len();
    match mutation {
        ClientMutation::Make { name, what: Make::Symlink { target }, .. } => {
            named(len(name) + target.len())
        }
        ClientMutation::Make { name, .. } | ClientMutation::Link { name, .. } => named(len(name)),
        ClientMutation::Tmpfile { .. } => named(0),
        // Without its flags a file can be removed: clearing them always passes.
        ClientMutation::SetXattr { name, value, .. } => {
            (*name != *InodeFlags::ATTRIBUTE).then(|| named(name.len() + value.len()))?
        }
        ClientMutation::SetAcl { value, .. } => (!value.is_empty()).then(|| named(value.len()))?,
        ClientMutation::Rename { mode, new_name, .. } if mode.makes() => named(len(new_name)),
        ClientMutation::Rename { name, new_name, .. } => {
            (len(new_name) > len(name)).then_some(len(new_name) as u64)
        }
        ClientMutation::Unlink { .. }
        | ClientMutation::Rmdir { .. }
        | ClientMutation::SetAttr { .. }
        | ClientMutation::RemoveXattr { .. }
        | ClientMutation::Write { .. }
        | ClientMutation::Append { .. }
        | ClientMutation::Copy { .. }
        | ClientMutation::Fallocate { .. } => None,
    }
}
