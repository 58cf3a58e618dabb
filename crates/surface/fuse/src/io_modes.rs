//! How the kernel reads and writes each file that is open: from its pages, by requests alone, or from a
//! file that the node lends (decisions 8, 18).
//!
//! An inode has one such mode as long as it is open, because neither goes with another:
//! - while one open goes to a lent file the kernel refuses every open that does not;
//! - who writes by requests alone has the kernel drop the pages that it writes to, but whoever is reading
//!   from such a page at that moment would see zeros behind what was the file's end.
//!
//! So the first open decides. What is written down here is written between the decision and the reply, with
//! nothing awaited in between. The kernel forgets an open before it says RELEASE, so its idea of
//! what is open is never ahead of this.

use crate::{Negotiated, OpenFlags, Passthrough, PassthroughId, Registered};
use ebb_client::{Held, Loan};
use ebb_model::Ino;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

pub(crate) struct IoModes {
    passthrough: Option<Passthrough>,
    /// The kernel drops pages that are filled while they are written past.
    drops_pages: bool,
    open: RefCell<BTreeMap<Ino, Open>>,
    /// The kernel takes no file of this disk, or none of this process.
    refused: Cell<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoMode {
    /// From the kernel's pages.
    Cached,
    /// By requests alone.
    Direct,
    /// From the lent file.
    Native(PassthroughId),
}

/// An inode that is open.
enum Open {
    Cached {
        count: u64,
    },
    /// `read`: some of these opens can read, and may be mapped.
    Direct {
        count: u64,
        read: bool,
    },
    // Dropped in this order: the file is given back when the kernel does not have it any more.
    Native {
        registered: Registered,
        _held: Option<Held>,
        count: u64,
    },
}

/// What an earlier process has left open of an inode.
#[derive(Default)]
pub(crate) struct Left {
    pub count: u64,
    pub read: bool,
    pub cached: bool,
    pub registration: Option<i32>,
}

impl IoModes {
    /// Without `passthrough` nothing is lent.
    pub fn new(passthrough: Option<Passthrough>, kernel: Negotiated) -> IoModes {
        let drops_pages = kernel.drops_pages_behind_writes();
        IoModes { passthrough, drops_pages, open: RefCell::default(), refused: Cell::new(false) }
    }

    /// An inode that is open since before. Whether or not it is lent once more, the node takes nothing away
    /// that the kernel has.
    pub fn left(&self, ino: Ino, left: Left, loan: Option<Loan>) {
        let Left { count, read, cached, registration } = left;
        let open = match (registration, &self.passthrough) {
            (Some(id), Some(passthrough)) => Open::Native { registered: passthrough.left(id), _held: loan.map(|loan| loan.held), count },
            _ if cached => Open::Cached { count },
            _ => Open::Direct { count, read },
        };
        self.open.borrow_mut().insert(ino, open);
    }

    /// By which number the kernel knows what it reads by itself.
    pub fn registration(&self, ino: Ino) -> Option<i32> {
        match self.open.borrow().get(&ino) {
            Some(Open::Native { registered, .. }) => Some(registered.id().0),
            Some(Open::Cached { .. } | Open::Direct { .. }) | None => None,
        }
    }

    /// Whether the next open of the inode can go to the file that is lent, if one is.
    pub fn wants(&self, ino: Ino) -> bool {
        match self.open.borrow().get(&ino) {
            Some(Open::Native { .. }) => true,
            Some(Open::Cached { .. } | Open::Direct { read: true, .. }) => false,
            Some(Open::Direct { read: false, .. }) | None => self.can_lend(),
        }
    }

    fn can_lend(&self) -> bool {
        self.passthrough.is_some() && !self.refused.get()
    }

    pub fn is_native(&self, ino: Ino) -> bool {
        matches!(self.open.borrow().get(&ino), Some(Open::Native { .. }))
    }

    /// Whether the kernel may fill pages of it: for who reads from them, maps the file, or calls sendfile(2).
    pub fn fills_pages(&self, ino: Ino) -> bool {
        matches!(self.open.borrow().get(&ino), Some(Open::Cached { .. } | Open::Direct { read: true, .. }))
    }

    /// Somebody writes past the kernel's pages, and nobody reads.
    pub fn is_only_written(&self, ino: Ino) -> bool {
        matches!(self.open.borrow().get(&ino), Some(Open::Direct { read: false, .. }))
    }

    /// One more open. It goes to `loan` if the inode's mode is that, or can become it. Else it is from
    /// the kernel's pages only where these may be kept (`cacheable`) and nobody has it open who writes past them.
    pub fn open(&self, ino: Ino, flags: OpenFlags, loan: Option<Loan>, cacheable: bool) -> IoMode {
        let mut all = self.open.borrow_mut();
        let before = match all.get(&ino) {
            None => Some(0),
            Some(Open::Direct { count, read: false }) => Some(*count),
            Some(Open::Cached { .. } | Open::Direct { .. } | Open::Native { .. }) => None,
        };
        if let Some(count) = before
            && let Some((registered, held)) = loan.and_then(|loan| self.register(ino, loan))
        {
            all.insert(ino, Open::Native { registered, _held: Some(held), count });
        }
        // What grows record by record is followed by others.
        let writes_past = flags.writes() && !flags.reads() && !flags.appends() && self.drops_pages && self.can_lend();
        let first = || match cacheable && !writes_past {
            true => Open::Cached { count: 0 },
            false => Open::Direct { count: 0, read: false },
        };
        match all.entry(ino).or_insert_with(first) {
            Open::Cached { count } => {
                *count += 1;
                if cacheable { IoMode::Cached } else { IoMode::Direct }
            }
            Open::Direct { count, read } => {
                *count += 1;
                *read |= flags.reads();
                IoMode::Direct
            }
            Open::Native { registered, count, .. } => {
                *count += 1;
                IoMode::Native(registered.id())
            }
        }
    }

    pub fn release(&self, ino: Ino) {
        let mut open = self.open.borrow_mut();
        let Some(Open::Cached { count } | Open::Direct { count, .. } | Open::Native { count, .. }) = open.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            open.remove(&ino);
        }
    }

    fn register(&self, ino: Ino, Loan { file, held }: Loan) -> Option<(Registered, Held)> {
        match self.passthrough.as_ref()?.register(file.as_fd()) {
            Ok(registered) => Some((registered, held)),
            Err(error) => {
                // Not root, or a disk that is stacked on another: neither changes.
                tracing::info!(%ino, %error, "the kernel does not read files by itself here");
                self.refused.set(true);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
