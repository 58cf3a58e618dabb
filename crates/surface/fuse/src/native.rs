//! Which open files the kernel reads by itself, from files that the node lends (decision 8).
//!
//! The kernel has one mode per inode as long as it is open: either all its opens go to the lent
//! file or none does ([`Passthrough`]). So the first open decides, and what is written down here
//! is written between the decision and the reply, with nothing awaited in between. The kernel
//! forgets an open before it says RELEASE, so its idea of what is open is never ahead of this.

use crate::{Caching, Passthrough, Registered};
use ebb_client::{Held, Loan};
use ebb_model::Ino;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

pub(crate) struct Native {
    passthrough: Passthrough,
    open: RefCell<BTreeMap<Ino, Open>>,
    /// The kernel takes no file of this disk, or none of this process.
    refused: Cell<bool>,
}

/// An inode that is open.
enum Open {
    Ordinary { count: u64 },
    // Dropped in this order: the file is given back when the kernel does not have it any more.
    Native { registered: Registered, _held: Option<Held>, count: u64 },
}

impl Native {
    pub fn new(passthrough: Passthrough) -> Native {
        Native { passthrough, open: RefCell::default(), refused: Cell::new(false) }
    }

    /// An inode that an earlier process has left open, natively by that registration. Whether or not
    /// it is lent once more, the node takes nothing away that the kernel has.
    pub fn left(&self, ino: Ino, count: u64, registration: Option<i32>, loan: Option<Loan>) {
        let open = match registration {
            None => Open::Ordinary { count },
            Some(id) => Open::Native { registered: self.passthrough.left(id), _held: loan.map(|loan| loan.held), count },
        };
        self.open.borrow_mut().insert(ino, open);
    }

    /// By which number the kernel knows what it reads by itself.
    pub fn registration(&self, ino: Ino) -> Option<i32> {
        match self.open.borrow().get(&ino) {
            Some(Open::Native { registered, .. }) => Some(registered.id().0),
            Some(Open::Ordinary { .. }) | None => None,
        }
    }

    /// Whether the next open of the inode can go to the file that is lent, if one is.
    pub fn wants(&self, ino: Ino) -> bool {
        match self.open.borrow().get(&ino) {
            Some(Open::Ordinary { .. }) => false,
            Some(Open::Native { .. }) => true,
            None => !self.refused.get(),
        }
    }

    pub fn is_native(&self, ino: Ino) -> bool {
        matches!(self.open.borrow().get(&ino), Some(Open::Native { .. }))
    }

    /// One more open, which is answered with what this gives: `ordinary` unless the inode is open
    /// natively, or is not open and lent. `direct`: the node is to read.
    pub fn open(&self, ino: Ino, loan: Option<Loan>, ordinary: Caching, direct: bool) -> Caching {
        let mut open = self.open.borrow_mut();
        let opened = open.entry(ino).or_insert_with(|| match loan.and_then(|loan| self.register(ino, loan)) {
            Some((registered, held)) => Open::Native { registered, _held: Some(held), count: 0 },
            None => Open::Ordinary { count: 0 },
        });
        match opened {
            Open::Ordinary { count } => {
                *count += 1;
                ordinary
            }
            Open::Native { registered, count, .. } => {
                *count += 1;
                if direct { Caching::PassthroughDirect(registered.id()) } else { Caching::Passthrough(registered.id()) }
            }
        }
    }

    pub fn release(&self, ino: Ino) {
        let mut open = self.open.borrow_mut();
        let Some(Open::Ordinary { count } | Open::Native { count, .. }) = open.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            open.remove(&ino);
        }
    }

    fn register(&self, ino: Ino, Loan { file, held }: Loan) -> Option<(Registered, Held)> {
        match self.passthrough.register(file.as_fd()) {
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
