//! How old what the kernel has cached of a file can be, where others may change the file: an open
//! must not show what was there before another's close (O-50).
//!
//! An open that finds the file at another version is answered so that the kernel drops its pages.
//! It does so once it has the answer, and until then another open could still find the old pages:
//! so they count as dropped only when that open reads, which the kernel lets nobody do before.

use crate::Handle;
use ebb_model::{Ino, Version};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The pages of all files that the kernel knows.
#[derive(Default)]
pub(crate) struct Pages {
    files: RefCell<BTreeMap<Ino, Known>>,
    /// Grows whenever everything is dropped because what was known of versions is not so any more:
    /// a node that was without power gives them once more, to other bytes.
    era: Cell<u64>,
}

/// A file of which the kernel may have pages.
#[derive(Default)]
struct Known {
    /// No page is older.
    since: Option<Version>,
    /// The last open that was told to drop them, and what the file was when it was opened.
    dropping: Option<(Handle, Version)>,
}

/// The version at which an open has found a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub version: Version,
    pub era: u64,
}

impl Pages {
    /// To be taken before the file's version is asked for.
    pub fn era(&self) -> u64 {
        self.era.get()
    }

    /// A file is open as `handle` and reads through the kernel's cache. Gives whether the kernel
    /// may keep what it has, for an open that has `found` the file at some version; else it drops
    /// that.
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

    /// The kernel asks for bytes of a file that it has opened.
    pub fn read(&self, ino: Ino, by: Handle) {
        if let Some(known) = self.files.borrow_mut().get_mut(&ino)
            && let Some((_, version)) = known.dropping.take_if(|(handle, _)| *handle == by)
        {
            known.since = Some(version);
        }
    }

    /// Whether the kernel may have pages of it.
    pub fn of(&self, ino: Ino) -> bool {
        self.files.borrow().contains_key(&ino)
    }

    /// Whatever version the file is found at, the next open drops its pages.
    pub fn distrust(&self, ino: Ino) {
        if let Some(known) = self.files.borrow_mut().get_mut(&ino) {
            *known = Known::default();
        }
    }

    /// Nothing of what was known of versions counts any more. Whoever has a file open may still
    /// fill the kernel's cache.
    pub fn distrust_all(&self) {
        self.era.set(self.era.get() + 1);
        self.files.borrow_mut().values_mut().for_each(|known| *known = Known::default());
    }

    /// The kernel has forgotten the inode, and its pages with it.
    pub fn forget(&self, ino: Ino) {
        self.files.borrow_mut().remove(&ino);
    }
}

#[cfg(test)]
mod tests;
