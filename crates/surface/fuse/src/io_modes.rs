//! How the kernel reads and writes each file that is open: from its pages, by requests alone, or
//! from a file that the node lends (decisions 8, 18).
//!
//! Not every mode goes with every other on one inode:
//! - While one open goes to a lent file the kernel refuses every new one that does not, and lets
//!   none begin to while another reads from its pages or has the file mapped. Who only writes by
//!   requests alone is in nobody's way.
//! - Who writes by requests alone has the kernel drop the pages that it writes to. Whoever is
//!   reading from such a page at that moment would see zeros behind what was the file's end.
//!
//! What is written down here is written between the decision and the reply, with nothing awaited in
//! between. The kernel forgets an open before it says RELEASE, so its idea of what is open is never
//! ahead of this. It can be behind, as long as whoever has opened the file has not come to run.

use crate::{Negotiated, OpenFlags, Passthrough, PassthroughId, Registered};
use ebb_client::{Grant, GrantHandle};
use ebb_model::Ino;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct IoModes {
    passthrough: Option<Passthrough>,
    /// The kernel drops pages that are filled while they are written past.
    drops_pages: bool,
    /// No other mount can have the volume.
    exclusive: bool,
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
    /// From the lent file.
    Native(PassthroughId),
}

/// An open file, or one that is to be open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opener {
    /// Of this open alone.
    pub number: u64,
    pub flags: OpenFlags,
    /// The kernel may keep pages of the file.
    pub cacheable: bool,
    /// It has made the file, of which no other mount can know.
    pub made: bool,
    /// Which thread opens it, if that is known.
    pub thread: Option<u32>,
    pub at: Instant,
}

/// How a file is open, as its handle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From pages, or from the lent file.
    Cached,
    /// By requests alone, to read too: it can be mapped.
    Direct,
    /// By requests alone, to write alone.
    Writer,
}

/// What of an inode is open.
#[derive(Default)]
struct Open {
    cached: u64,
    direct: u64,
    writers: u64,
    /// Writers that the kernel may still have to open.
    unheard: BTreeMap<u64, Unheard>,
    native: Option<Native>,
}

/// A writer that has its answer, or is about to, and may not have come to run since.
struct Unheard {
    thread: Option<u32>,
    since: Instant,
}

struct Native {
    // Dropped in this order: the file is given back when the kernel does not have it any more.
    registered: Registered,
    _held: Option<GrantHandle>,
    count: u64,
}

/// What an earlier process has left open of an inode.
#[derive(Default)]
pub(crate) struct Left {
    cached: u64,
    direct: u64,
    writers: Vec<u64>,
    pub registration: Option<i32>,
}

impl Left {
    pub fn add(&mut self, number: u64, way: Way) {
        match way {
            Way::Cached => self.cached += 1,
            Way::Direct => self.direct += 1,
            Way::Writer => self.writers.push(number),
        }
    }
}

impl IoModes {
    /// Without `passthrough` nothing is lent.
    pub fn new(passthrough: Option<Passthrough>, kernel: Negotiated, exclusive: bool) -> IoModes {
        let drops_pages = kernel.drops_pages_behind_writes();
        IoModes {
            passthrough,
            drops_pages,
            exclusive,
            files: RefCell::default(),
            refused: Cell::new(false),
        }
    }

    /// An inode that is open since before. Whether or not it is lent once more, the node takes
    /// nothing away that the kernel has.
    pub fn left(&self, ino: Ino, left: Left, grant: Option<Grant>) {
        let Left { cached, direct, writers, registration } = left;
        let unheard = writers
            .iter()
            .map(|&number| (number, Unheard { thread: None, since: Instant::now() }))
            .collect();
        let writers = writers.len() as u64;
        let registered = registration
            .zip(self.passthrough.as_ref())
            .map(|(id, passthrough)| passthrough.left(id));
        let open = match registered {
            Some(registered) => {
                let native =
                    Native { registered, _held: grant.map(|grant| grant.held), count: cached };
                Open { direct, writers, unheard, native: Some(native), ..Open::default() }
            }
            None => Open { cached: cached, direct, writers, unheard, ..Open::default() },
        };
        self.files.borrow_mut().insert(ino, open);
    }

    /// By which number the kernel knows what it reads by itself.
    pub fn registration(&self, ino: Ino) -> Option<i32> {
        self.files.borrow().get(&ino)?.native.as_ref().map(|native| native.registered.id().0)
    }

    /// Whether the next open of the inode can go to the file that is lent, if one is.
    pub fn wants(&self, ino: Ino) -> bool {
        let can_begin = self.can_lend();
        self.files.borrow().get(&ino).map_or(can_begin, |open| {
            open.native.is_some() || can_begin && open.can_begin(self.exclusive)
        })
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

    /// Whether the kernel may fill pages of it: for who reads from them, maps the file, or calls
    /// sendfile(2).
    pub fn fills_pages(&self, ino: Ino) -> bool {
        self.files.borrow().get(&ino).is_some_and(|open| open.cached + open.direct > 0)
    }

    /// Whether somebody reads it from the kernel's pages.
    pub fn reads_pages(&self, ino: Ino) -> bool {
        self.files.borrow().get(&ino).is_some_and(|open| open.cached > 0)
    }

    /// Somebody writes by requests alone, to whom that is to matter: where other mounts can have
    /// the volume nobody's pages are kept, or everybody's.
    pub fn is_written_past(&self, ino: Ino) -> bool {
        self.exclusive && self.files.borrow().get(&ino).is_some_and(|open| open.writers > 0)
    }

    /// One more open. It goes to `grant` if others do, or can begin to. Else it is from the
    /// kernel's pages only where these may be kept and nobody has it open who writes past them.
    pub fn open(&self, ino: Ino, by: Opener, grant: Option<Grant>) -> IoMode {
        let mut files = self.files.borrow_mut();
        let open = files.entry(ino).or_default();
        if open.can_begin(self.exclusive)
            && let Some((registered, held)) = grant.and_then(|grant| self.register(ino, grant))
        {
            open.native = Some(Native { registered, _held: Some(held), count: 0 });
        }
        if let Some(native) = &mut open.native {
            native.count += 1;
            return IoMode::Native(native.registered.id());
        }
        let only_writes = by.flags.writes() && !by.flags.reads();
        // What grows record by record is followed by others, who would have to be lent it.
        let past_pages = self.exclusive
            && by.made
            && only_writes
            && !by.flags.appends()
            && self.drops_pages
            && self.can_lend();
        let may_keep_pages = open.cached > 0 || open.direct + open.writers == 0 && !past_pages;
        if by.cacheable && may_keep_pages {
            open.cached += 1;
            return IoMode::Cached;
        }
        if only_writes {
            open.writers += 1;
            open.unheard.insert(by.number, Unheard { thread: by.thread, since: by.at });
        } else {
            open.direct += 1;
        }
        IoMode::Direct
    }

    /// Whether it is worth waiting until the kernel has it open for all who write by requests
    /// alone, for a thread that wants to be lent it. `is_elsewhere` says of another one that it
    /// sleeps for something else. Who has come to run is waited for no more.
    pub fn is_awaited(
        &self,
        ino: Ino,
        by: u32,
        now: Instant,
        is_elsewhere: impl Fn(u32) -> bool,
    ) -> bool {
        let mut files = self.files.borrow_mut();
        let Some(open) = files.get_mut(&ino) else { return false };
        open.unheard.retain(|_, &mut Unheard { thread, since }| {
            let age = now.saturating_duration_since(since);
            let has_run =
                thread == Some(by) || age >= LONGEST_WAIT && thread.is_some_and(&is_elsewhere);
            !has_run && age < LONGEST_OPEN
        });
        !open.unheard.is_empty()
            && open.unheard.values().all(|unheard| now < unheard.since + LONGEST_WAIT)
    }

    /// The kernel has the file open that it was told to write to by requests alone.
    pub fn heard(&self, ino: Ino, number: u64) {
        if let Some(open) = self.files.borrow_mut().get_mut(&ino) {
            open.unheard.remove(&number);
        }
    }

    /// One that was opened is closed.
    pub fn release(&self, ino: Ino, number: u64, way: Way) {
        let mut files = self.files.borrow_mut();
        let Some(open) = files.get_mut(&ino) else { return };
        open.unheard.remove(&number);
        let count = match (way, &mut open.native) {
            (Way::Writer, _) => &mut open.writers,
            (Way::Direct, _) => &mut open.direct,
            (Way::Cached, Some(native)) => &mut native.count,
            (Way::Cached, None) => &mut open.cached,
        };
        *count = count.saturating_sub(1);
        open.native.take_if(|native| native.count == 0);
        if open.native.is_none() && open.cached + open.direct + open.writers == 0 {
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
                // Not root, or a disk that is stacked on another: neither changes.
                tracing::info!(%ino, %error, "the kernel does not read files by itself here");
                self.refused.set(true);
                None
            }
        }
    }
}

impl Open {
    /// Nobody has pages of it, and who writes past them is known to the kernel. Where other mounts
    /// can have the volume writes go side by side, and one of these keeps the kernel from another
    /// lent file after all readers have gone.
    fn can_begin(&self, exclusive: bool) -> bool {
        self.native.is_none()
            && self.cached + self.direct == 0
            && self.unheard.is_empty()
            && (exclusive || self.writers == 0)
    }
}

/// Most who have their answer to an open have come to run by then, and are heard of.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// All have, also those of whom nothing is known.
const LONGEST_OPEN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
