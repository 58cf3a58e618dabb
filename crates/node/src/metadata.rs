//! The bound of the memory that metadata takes. It is asked where something new is to come in,
//! before anything of it is done; a command that is in the log is applied whatever the bound is.
//!
//! What comes in at one time may go beyond the bound together: that is a page of a listing or an
//! attribute for each request.

use crate::Node;
use ebb_model::*;
use std::rc::Rc;
use std::time::Duration;

/// How often it is looked whether there is room again.
const METADATA_POLL: Duration = Duration::from_secs(1);

impl Node {
    /// Whether a client may make what it asks for. What makes nothing new, or less, always goes on.
    pub(crate) fn room_to_make(&self, mutation: &ClientMutation) -> Result<(), RpcError> {
        if is_new(mutation) && self.metadata_is_full() { Err(FsError::NoSpace.into()) } else { Ok(()) }
    }

    /// Whether names may come in from the bucket.
    pub(crate) fn room_to_load(&self) -> Result<(), RpcError> {
        if self.metadata_is_full() { Err(FsError::NoMemory.into()) } else { Ok(()) }
    }

    fn metadata_is_full(&self) -> bool {
        let bytes = self.replica.view().memory_bytes();
        let full = bytes >= self.options.metadata_bytes;
        if full {
            self.tell_of_metadata(bytes);
        }
        full
    }

    pub(crate) async fn watch_metadata_for_ever(self: Rc<Self>) {
        while !self.is_stopping() {
            let bytes = self.replica.view().memory_bytes();
            self.tell_of_metadata(bytes);
            self.ports.clock.sleep(METADATA_POLL).await;
        }
    }

    fn tell_of_metadata(&self, bytes: u64) {
        let limit = self.options.metadata_bytes;
        let what = (bytes >= limit).then(|| {
            format!(
                "metadata takes {bytes} of the {limit} bytes of memory that it may: nothing can be made and no names come \
                 from the bucket until something is removed, or the volume is mounted with more --metadata-memory"
            )
        });
        self.trouble("metadata", what);
    }
}

fn is_new(mutation: &ClientMutation) -> bool {
    match mutation {
        ClientMutation::Make { .. } | ClientMutation::Link { .. } | ClientMutation::Tmpfile { .. } => true,
        // Without flags a file can be removed that has them.
        ClientMutation::SetXattr { name, .. } => *name != *InodeFlags::ATTRIBUTE,
        ClientMutation::SetAcl { value, .. } => !value.is_empty(),
        ClientMutation::Unlink { .. }
        | ClientMutation::Rmdir { .. }
        | ClientMutation::Rename { .. }
        | ClientMutation::SetAttr { .. }
        | ClientMutation::RemoveXattr { .. }
        | ClientMutation::Write { .. }
        | ClientMutation::Append { .. }
        | ClientMutation::Copy { .. }
        | ClientMutation::Fallocate { .. } => false,
    }
}
