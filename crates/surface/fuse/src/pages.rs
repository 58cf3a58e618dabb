//! Validity of the kernel's cached pages where other mounts may change a file: an open must not
//! show data older than another mount's last close (O-50).
//!
//! An open that finds another version is answered so that the kernel drops its pages. The kernel
//! does that after it receives the reply; until then another open could still use the old pages. So
//! pages count as dropped only at the first read of that open, which the kernel sends after the
//! drop.

use crate::Handle;
use ebb_model::{Ino, Version};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Cached pages of all files that the kernel knows.
#[derive(Default)]
pub(crate) struct Pages {
    files: RefCell<BTreeMap<Ino, Cached>>,
    /// Grows whenever all pages are dropped because recorded versions are no longer valid: a node
    /// that lost power reuses version numbers for other contents.
    era: Cell<u64>,
}

/// A file with possibly cached pages.
#[derive(Default)]
struct Cached {
    /// No page is older.
    since: Option<Version>,
    /// The last open that drops the pages, and the file's version at that open.
    dropping: Option<(Handle, Version)>,
}

/// The version at which an open has found a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub version: Version,
    pub era: u64,
}

impl Pages {
    /// Read this before the request for the file's version.
    pub fn era(&self) -> u64 {
        self.era.get()
    }

    /// Records an open as `handle` through the page cache. Returns whether the kernel may keep its
    /// pages, for an open that `found` the file at some version; otherwise the kernel drops them.
    pub fn opened(&self, ino: Ino, handle: Handle, found: Option<Found>) -> bool {
        let mut files = self.files.borrow_mut();
        let known = files.entry(ino).or_default();
        let found = found.filter(|found| found.era == self.era.get()).map(|found| found.version);
        let keep = found.is_some() && known.since == found;
        if !keep {
            known.dropping = found.map(|version| (handle, version)).or(known.dropping);
        }
        keep
    }

    /// Records a READ of an open file.
    pub fn read(&self, ino: Ino, by: Handle) {
        if let Some(known) = self.files.borrow_mut().get_mut(&ino)
            && let Some((_, version)) = known.dropping.take_if(|(handle, _)| *handle == by)
        {
            known.since = Some(version);
        }
    }

    /// Whether the kernel may have pages of the file.
    pub fn of(&self, ino: Ino) -> bool {
        self.files.borrow().contains_key(&ino)
    }

    /// The next open drops the file's pages, at any version.
    pub fn distrust(&self, ino: Ino) {
        if let Some(known) = self.files.borrow_mut().get_mut(&ino) {
            *known = Cached::default();
        }
    }

    /// Invalidates all recorded versions. Open files may still fill the page cache.
    pub fn distrust_all(&self) {
        self.era.set(self.era.get() + 1);
        self.files.borrow_mut().values_mut().for_each(|known| *known = Cached::default());
    }

    /// The kernel has forgotten the inode, and its pages with it.
    pub fn forget(&self, ino: Ino) {
        self.files.borrow_mut().remove(&ino);
    }
}

#[cfg(test)]
mod tests;
