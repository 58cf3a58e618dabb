//! The I/O mode of each open file: through the kernel's page cache, by requests alone, or by
//! passthrough to a file that the node grants (decision 8).
//!
//! The kernel has one mode for each inode while it is open. While one open uses passthrough, the
//! kernel refuses every open that does not. It refuses the first such open while another open uses
//! the page cache or has the file mapped.
//!
//! A decision is recorded here before its reply, with nothing awaited in between. The kernel closes
//! an open before it sends RELEASE, so this record never has fewer opens than the kernel.

use crate::{Passthrough, PassthroughId, Registered};
use ebb_client::{Grant, GrantHandle};
use ebb_model::Ino;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

pub(crate) struct IoModes {
    passthrough: Option<Passthrough>,
    files: RefCell<BTreeMap<Ino, Open>>,
    /// The kernel takes no file of this disk, or none of this process.
    refused: Cell<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoMode {
    /// From the kernel's pages.
    Cached,
    /// By requests alone.
    Direct,
    /// From the granted file.
    Native(PassthroughId),
}

/// How a file is open, as recorded in its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From pages, or from the granted file.
    Cached,
    /// By requests alone.
    Direct,
}

/// The opens of an inode, by mode.
#[derive(Default)]
struct Open {
    cached: u64,
    direct: u64,
    native: Option<Native>,
}

struct Native {
    // Dropped in this order: the grant is returned when the kernel no longer has the file.
    registered: Registered,
    _held: Option<GrantHandle>,
    count: u64,
}

/// The opens of an inode that an earlier process has left.
#[derive(Default)]
pub(crate) struct Left {
    cached: u64,
    direct: u64,
    pub registration: Option<i32>,
}

impl Left {
    pub fn add(&mut self, way: Way) {
        match way {
            Way::Cached => self.cached += 1,
            Way::Direct => self.direct += 1,
        }
    }
}

impl IoModes {
    /// Without `passthrough` no file is granted.
    pub fn new(passthrough: Option<Passthrough>) -> IoModes {
        IoModes { passthrough, files: RefCell::default(), refused: Cell::new(false) }
    }

    /// An inode that an earlier process has left open. With or without a new grant, the node keeps
    /// the file that the kernel has.
    pub fn left(&self, ino: Ino, left: Left, grant: Option<Grant>) {
        let Left { cached, direct, registration } = left;
        let registered = registration
            .zip(self.passthrough.as_ref())
            .map(|(id, passthrough)| passthrough.left(id));
        let open = match registered {
            Some(registered) => {
                let native =
                    Native { registered, _held: grant.map(|grant| grant.held), count: cached };
                Open { direct, native: Some(native), ..Open::default() }
            }
            None => Open { cached, direct, ..Open::default() },
        };
        self.files.borrow_mut().insert(ino, open);
    }

    /// The kernel's registration number of the file that it reads by passthrough.
    pub fn registration(&self, ino: Ino) -> Option<i32> {
        self.files.borrow().get(&ino)?.native.as_ref().map(|native| native.registered.id().0)
    }

    /// Whether the next open of the inode can use the granted file, if there is one.
    pub fn wants(&self, ino: Ino) -> bool {
        let can_begin = self.can_lend();
        self.files
            .borrow()
            .get(&ino)
            .map_or(can_begin, |open| open.native.is_some() || can_begin && open.can_begin())
    }

    fn can_lend(&self) -> bool {
        self.passthrough.is_some() && !self.refused.get()
    }

    pub fn is_open(&self, ino: Ino) -> bool {
        self.files.borrow().contains_key(&ino)
    }

    pub fn is_native(&self, ino: Ino) -> bool {
        self.files.borrow().get(&ino).is_some_and(|open| open.native.is_some())
    }

    /// Whether the kernel may fill pages of it: for readers of pages, mappings or sendfile(2).
    pub fn fills_pages(&self, ino: Ino) -> bool {
        self.files.borrow().get(&ino).is_some_and(|open| open.cached + open.direct > 0)
    }

    /// Whether there is an open that reads the inode from the kernel's pages.
    pub fn reads_pages(&self, ino: Ino) -> bool {
        self.files.borrow().get(&ino).is_some_and(|open| open.cached > 0)
    }

    /// Adds an open. It goes to `grant` if the inode's opens do, or if it can be the first.
    /// Otherwise it uses the page cache, if the kernel can keep pages of it and no open of the
    /// inode bypasses them.
    pub fn open(&self, ino: Ino, cacheable: bool, grant: Option<Grant>) -> IoMode {
        let mut files = self.files.borrow_mut();
        let open = files.entry(ino).or_default();
        if open.can_begin()
            && let Some((registered, held)) = grant.and_then(|grant| self.register(ino, grant))
        {
            open.native = Some(Native { registered, _held: Some(held), count: 0 });
        }
        if let Some(native) = &mut open.native {
            native.count += 1;
            return IoMode::Native(native.registered.id());
        }
        if cacheable && (open.cached > 0 || open.direct == 0) {
            open.cached += 1;
            return IoMode::Cached;
        }
        open.direct += 1;
        IoMode::Direct
    }

    /// Removes an open.
    pub fn release(&self, ino: Ino, way: Way) {
        let mut files = self.files.borrow_mut();
        let Some(open) = files.get_mut(&ino) else { return };
        let count = match (way, &mut open.native) {
            (Way::Direct, _) => &mut open.direct,
            (Way::Cached, Some(native)) => &mut native.count,
            (Way::Cached, None) => &mut open.cached,
        };
        *count = count.saturating_sub(1);
        open.native.take_if(|native| native.count == 0);
        if open.native.is_none() && open.cached + open.direct == 0 {
            files.remove(&ino);
        }
    }

    fn register(
        &self,
        ino: Ino,
        Grant { file, held, .. }: Grant,
    ) -> Option<(Registered, GrantHandle)> {
        match self.passthrough.as_ref()?.register(file.as_fd()) {
            Ok(registered) => Some((registered, held)),
            Err(error) => {
                // The process is not root, or the disk is stacked on another: neither changes.
                tracing::info!(%ino, %error, "the kernel does not read files by itself here");
                self.refused.set(true);
                None
            }
        }
    }
}

impl Open {
    /// A direct open prevents a grant as well. It can be mapped, and while a write of it is in
    /// progress the kernel refuses a second passthrough file for the inode.
    fn can_begin(&self) -> bool {
        self.native.is_none() && self.cached + self.direct == 0
    }
}

#[cfg(test)]
mod tests;
