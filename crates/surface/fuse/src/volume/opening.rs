//! Files that are opened and closed.

use super::{DIRECT, FLAG_BITS, UNNOTED, Volume, WRITES};
use crate::io_modes::{IoMode, Way};
use crate::pages::Found;
use crate::{Caching, Context, Errno, Handle, OpenFlags, OpenReply};
use ebb_client::Grant;
use ebb_model::{FsError, GrantRequest, Ino};

impl Volume {
    /// The current version of a file that is being opened, if the kernel may have older pages:
    /// others may change it here, or in the bucket without a timely notification of the node.
    pub(super) async fn find(&self, ino: Ino, flags: OpenFlags) -> Result<Option<Found>, FsError> {
        if self.is_told() || !self.may_cache_pages(flags) {
            return Ok(None);
        }
        let era = self.pages.era();
        Ok(Some(Found { version: self.client.getattr(ino).await?.version, era }))
    }

    /// The file that the kernel can use by passthrough, if this open can be such an open.
    pub(super) async fn grant(&self, ino: Ino, flags: OpenFlags) -> Result<Option<Grant>, FsError> {
        let is_native = self.io_modes.is_native(ino);
        if !is_native && !self.io_modes.wants(ino) {
            return Ok(None);
        }
        // On a volume that others can mount, a writer only joins existing passthrough opens of this
        // mount: passthrough reads of other mounts do not concern it.
        if !is_native && flags.writes() && !self.client.is_exclusive() {
            return Ok(None);
        }
        let request = match (flags.reads(), flags.writes()) {
            (true, true) => GrantRequest::Expose,
            (false, _) => GrantRequest::Join,
            _ if flags.is_direct() => GrantRequest::Join,
            _ => GrantRequest::Begin,
        };
        match self.client.grant(ino, request).await {
            // Other opens continue with passthrough to the file that this one was refused, so it
            // must fail.
            Err(error) if self.io_modes.is_native(ino) => Err(error),
            granted => Ok(granted.unwrap_or(None)),
        }
    }

    /// The version and the grant that are needed to open a file that is open at the node.
    pub(super) async fn made_ready(
        &self,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<(Option<Found>, Option<Grant>), FsError> {
        // Passthrough reads of others can begin or end in between: the node must know every open
        // that can store into the file.
        for _ in 0..MOST_GRANTS {
            let found = self.find(ino, flags).await?;
            let grant = self.grant(ino, flags).await?;
            if !(stores(flags) && self.io_modes.is_native(ino) && grant.is_none()) {
                return Ok((found, grant));
            }
        }
        // A mapping would still be possible.
        Err(FsError::Io)
    }

    /// A file is open at the node. If this fails it is no longer.
    pub(super) fn opened(
        &self,
        cx: &Context,
        ino: Ino,
        flags: OpenFlags,
        found: Option<Found>,
        grant: Option<Grant>,
    ) -> Result<OpenReply, Errno> {
        let mappable = stores(flags);
        if mappable {
            *self.mappable.borrow_mut().entry(ino).or_insert(0) += 1;
        }
        let number = self.next_number();
        let noted = flags.reads() && flags.bits & libc::O_NOATIME == 0;
        let unread = noted && self.readings.opened(ino, None);
        let mode = self.io_modes.open(ino, self.may_cache_pages(flags), grant);
        let direct = if mode == IoMode::Direct { DIRECT } else { 0 };
        let writes = if flags.writes() { WRITES } else { 0 };
        let unnoted = if noted { 0 } else { UNNOTED };
        let handle = Handle(number << FLAG_BITS | unnoted | writes | direct);
        // Of a granted file too: sendfile(2) and others make the kernel fill pages.
        let keep = mode != IoMode::Direct
            && (self.pages.opened(ino, handle, found) || self.is_told())
            && !unread;
        let caching = match mode {
            IoMode::Cached if keep => Caching::Keep,
            IoMode::Cached => Caching::Fresh,
            IoMode::Direct => Caching::Direct { parallel: !self.may_cache() },
            // The node logs only changes that it sees.
            IoMode::Native(file) if flags.is_direct() || flags.writes() => {
                Caching::PassthroughDirect(file)
            }
            IoMode::Native(file) => Caching::Passthrough(file),
        };
        self.leave(cx, ino, handle, mappable)?;
        Ok(OpenReply { handle, caching })
    }

    pub(super) fn next_number(&self) -> u64 {
        self.opens.set(self.opens.get() + 1);
        self.opens.get()
    }

    /// An open file is closed for good. `ino` is the kernel's number.
    pub(super) fn let_go(&self, ino: Ino, handle: Handle, mappable: bool) {
        self.io_modes.release(ino, way(handle));
        self.client.close(self.volume_ino(ino));
        if mappable {
            let mut mappable = self.mappable.borrow_mut();
            if let Some(opens) = mappable.get_mut(&ino) {
                *opens = opens.saturating_sub(1);
                if *opens == 0 {
                    mappable.remove(&ino);
                }
            }
        }
    }
}

/// The mode of the open with that handle.
pub(super) fn way(handle: Handle) -> Way {
    if handle.0 & DIRECT == 0 { Way::Cached } else { Way::Direct }
}

/// After so many attempts the file cannot be granted.
const MOST_GRANTS: u32 = 10;

/// Whether a mapping of the open can store into the file.
fn stores(flags: OpenFlags) -> bool {
    flags.reads() && flags.writes()
}
