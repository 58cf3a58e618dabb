//! Files that are opened and closed.

use super::{DIRECT, FLAG_BITS, UNNOTED, Volume, WRITES, thread};
use crate::io_modes::{IoMode, LONGEST_WAIT, Opener, Way};
use crate::pages::Found;
use crate::{Caching, Context, Errno, Handle, OpenFlags, OpenReply};
use ebb_client::Grant;
use ebb_model::{FsError, GrantRequest, Ino};
use std::time::Duration;
use tokio::time::Instant;

impl Volume {
    /// What a file that is being opened is now, where the kernel may have pages of what it was:
    /// others may change it here, or in the bucket without the node being told in time.
    pub(super) async fn find(&self, ino: Ino, flags: OpenFlags) -> Result<Option<Found>, FsError> {
        if self.is_told() || !self.may_cache_pages(flags) {
            return Ok(None);
        }
        let era = self.pages.era();
        Ok(Some(Found { version: self.client.getattr(ino).await?.version, era }))
    }

    /// What the kernel may read by itself, if this open can be one of those that do.
    pub(super) async fn grant(&self, ino: Ino, flags: OpenFlags) -> Result<Option<Grant>, FsError> {
        let is_native = self.io_modes.is_native(ino);
        if !is_native && !self.io_modes.wants(ino) {
            return Ok(None);
        }
        // Where others can have the volume who writes only joins: what other mounts read natively
        // is nothing to this one.
        if !is_native && flags.writes() && !self.client.is_exclusive() {
            return Ok(None);
        }
        let is_written_past = self.io_modes.is_written_past(ino);
        let request = match (flags.reads(), flags.writes()) {
            (true, true) => GrantRequest::Expose,
            (false, _) => GrantRequest::Join,
            _ if is_written_past => GrantRequest::Follow,
            _ if flags.is_direct() => GrantRequest::Join,
            _ => GrantRequest::Begin,
        };
        // Before it can be exposed it is to be lent.
        let _followed = match request == GrantRequest::Expose && !is_native && is_written_past {
            true => self.client.grant(ino, GrantRequest::Follow).await.unwrap_or(None),
            false => None,
        };
        match self.client.grant(ino, request).await {
            // Others that have it open go on reading past the node what this one would not get.
            Err(error) if self.io_modes.is_native(ino) => Err(error),
            granted => Ok(granted.unwrap_or(None)),
        }
    }

    /// What it takes to open a file that is open at the node.
    pub(super) async fn made_ready(
        &self,
        cx: &Context,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<(Option<Found>, Option<Grant>), FsError> {
        if flags.reads() {
            self.wait_until_heard(cx, ino).await;
        }
        // Others can begin to read it natively meanwhile, or end: who can store into it is to be
        // known as such.
        let mut found = None;
        for _ in 0..MOST_GRANTS {
            found = self.find(ino, flags).await?;
            let grant = self.grant(ino, flags).await?;
            let is_to_be_lent = self.io_modes.is_native(ino)
                || self.io_modes.is_written_past(ino) && self.io_modes.wants(ino);
            if !(stores(flags) && is_to_be_lent && grant.is_none()) {
                return Ok((found, grant));
            }
        }
        // It would be mapped all the same.
        if self.io_modes.is_native(ino) { Err(FsError::Io) } else { Ok((found, None)) }
    }

    /// Of a file that others write past the kernel's pages these are not to be filled, and less so
    /// stored into: the writers would not see that. Who could do that is to be lent the file, for
    /// which the kernel is to have it open for the writers. Of one that is not heard of in time it
    /// is not lent.
    async fn wait_until_heard(&self, cx: &Context, ino: Ino) {
        let mut now = Instant::now();
        let until = now + LONGEST_WAIT;
        // Looked at to the last: who sleeps elsewhere by then is waited for no more.
        while self.client.is_exclusive()
            && self.io_modes.is_awaited(ino, cx.pid, now, thread::is_elsewhere)
            && now < until
        {
            tokio::time::sleep(LOOK_AGAIN).await;
            now = Instant::now();
        }
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
        self.opened_as(cx, ino, flags, false, found, grant)
    }

    /// The same of a file that was made by that.
    pub(super) fn opened_new(
        &self,
        cx: &Context,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<OpenReply, Errno> {
        self.opened_as(cx, ino, flags, true, None, None)
    }

    fn opened_as(
        &self,
        cx: &Context,
        ino: Ino,
        flags: OpenFlags,
        is_new: bool,
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
        let thread = (cx.pid != 0).then_some(cx.pid);
        let by = Opener {
            number,
            flags,
            cacheable: self.may_cache_pages(flags),
            made: is_new,
            thread,
            at: Instant::now(),
        };
        let mode = self.io_modes.open(ino, by, grant);
        let direct = if mode == IoMode::Direct { DIRECT } else { 0 };
        let writes = if flags.writes() { WRITES } else { 0 };
        let unnoted = if noted { 0 } else { UNNOTED };
        let handle = Handle(number << FLAG_BITS | unnoted | writes | direct);
        // Of a lent file too: sendfile(2) and others have the kernel fill pages.
        let keep = mode != IoMode::Direct
            && (self.pages.opened(ino, handle, found) || self.is_told())
            && !unread;
        let caching = match mode {
            IoMode::Cached if keep => Caching::Keep,
            IoMode::Cached => Caching::Fresh,
            IoMode::Direct => Caching::Direct { parallel: !self.may_cache() },
            // Only what the node sees does it log.
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

    /// The kernel has done what it was told when that was opened.
    pub(super) fn heard(&self, ino: Ino, handle: Option<Handle>) {
        if let Some(handle) = handle.filter(|handle| handle.0 & DIRECT != 0) {
            self.io_modes.heard(ino, handle.0 >> FLAG_BITS);
        }
    }

    /// An open file is closed for good. `ino` is the kernel's number.
    pub(super) fn let_go(&self, ino: Ino, handle: Handle, mappable: bool) {
        self.io_modes.release(ino, handle.0 >> FLAG_BITS, way(handle, mappable));
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

/// How a file is open by that handle.
pub(super) fn way(handle: Handle, mappable: bool) -> Way {
    match handle.0 & DIRECT != 0 {
        false => Way::Cached,
        true if handle.0 & WRITES != 0 && !mappable => Way::Writer,
        true => Way::Direct,
    }
}

/// What cannot be lent by then cannot be.
const MOST_GRANTS: u32 = 10;

const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// It can be mapped to store into the file.
fn stores(flags: OpenFlags) -> bool {
    flags.reads() && flags.writes()
}
