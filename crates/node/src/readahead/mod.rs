//! Detects sequential access to bytes and names, and fetches the next ones ahead.

pub(crate) mod streams;
pub(crate) mod traversals;
pub(crate) mod tree;
pub(crate) mod walks;

use ebb_core::state::State;
use ebb_model::Ino;
use std::cell::RefCell;
use std::ops::Range;
use streams::Streams;
use traversals::Traversals;
use tree::Tree;
use walks::Walks;

/// The recent reads and directory look-ups of clients. Only this folder changes it. It chooses the
/// ranges and directories to request next; its caller requests them. All of it may be lost at any
/// time.
#[derive(Default)]
pub(crate) struct Readahead {
    streams: RefCell<Streams>,
    walks: RefCell<Walks>,
    traversals: RefCell<Traversals>,
}

impl Readahead {
    /// The inode is removed, or evicted from memory.
    pub fn forget(&self, ino: Ino) {
        self.streams.borrow_mut().forget(ino);
    }

    /// The size of one request for bytes of a file.
    pub fn request_bytes(&self, ino: Ino) -> u64 {
        self.streams.borrow().request_bytes(ino)
    }

    /// Notes a read of a file with `valid_bytes` in the bucket. Returns the ranges to fetch ahead
    /// of it, at most `most_bytes`.
    pub fn read(
        &self,
        ino: Ino,
        wanted: &Range<u64>,
        valid_bytes: u64,
        most_bytes: u64,
    ) -> Vec<Range<u64>> {
        self.walks.borrow_mut().read(ino, wanted.end, wanted.end >= valid_bytes);
        self.streams.borrow_mut().read(ino, wanted, most_bytes)
    }

    /// A client opens a file to read it. The open does not wait for the search for a walk: that
    /// runs with the next one at the latest.
    pub fn opened(&self, file: Ino) {
        self.walks.borrow_mut().opened(file);
    }

    /// The file opened last, if it has not been looked at.
    pub fn take_opened(&self) -> Option<Ino> {
        self.walks.borrow_mut().take_opened()
    }

    /// A client begins to read a file. Returns the files that a reader of all files of its
    /// directory, or of several, will want next, and how many bytes of each: at most `most_bytes`.
    pub fn walk(&self, file: Ino, state: &State, most_bytes: u64) -> Vec<(Ino, u64)> {
        self.walks.borrow_mut().begin(file, &Tree { state }, most_bytes)
    }

    /// Whether a directory was listed ahead of a traversal.
    pub fn is_ahead(&self, dir: Ino) -> bool {
        self.traversals.borrow().is_ahead(dir)
    }
}
