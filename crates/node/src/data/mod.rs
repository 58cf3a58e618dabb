//! Bytes of files: their places on the node's disk, how they come and go, and the operations that
//! read and change them.

pub(crate) mod cache;
pub(crate) mod copy;
pub(crate) mod exposed;
pub(crate) mod fallocate;
pub(crate) mod fetch;
pub(crate) mod packs;
pub(crate) mod passthrough;
pub(crate) mod read;
pub(crate) mod scrub;
pub(crate) mod seek;
pub(crate) mod sums;
pub(crate) mod warm;

use crate::Options;
use ebb_core::state::State;
use ebb_model::{Ino, ScrubStatus};
use ebb_ports::Clock;
use ebb_store::{Cache, Exposures, Holes, Latches, PassthroughGrants, Pending};
use fetch::Downloads;
use scrub::Scrub;
use std::ops::Range;
use std::rc::Rc;

/// State about the bytes of files that is neither in the partition nor in the store: latches, the
/// order of eviction, downloads and grants. Only this folder changes it.
pub(crate) struct Data {
    /// Bytes of a file: readers share, a task that changes or fills them excludes.
    latches: Latches<Ino>,
    cache: Cache,
    downloads: Downloads,
    holes: Holes,
    grants: PassthroughGrants,
    exposures: Exposures,
    scrub: Scrub,
    /// A file larger than the node's disk or the bucket could take is refused at once.
    max_file_bytes: u64,
}

impl Data {
    /// For a volume over so many buckets.
    pub fn new(
        buckets: usize,
        options: &Options,
        clock: &Rc<dyn Clock>,
        is_disk_small: bool,
        max_file_bytes: u64,
    ) -> Data {
        Data {
            latches: Latches::default(),
            cache: Cache::new(options.eviction, options.read_ahead_bytes, is_disk_small),
            downloads: Downloads::new(buckets, options.download_buffer_bytes(), clock),
            holes: Holes::default(),
            grants: PassthroughGrants::default(),
            exposures: Exposures::default(),
            scrub: Scrub::default(),
            max_file_bytes,
        }
    }

    /// Keeps tasks apart that read or change the bytes of one file.
    pub fn latches(&self) -> &Latches<Ino> {
        &self.latches
    }

    /// The file is removed, or evicted from memory.
    pub fn forget(&self, ino: Ino) {
        self.cache.forget(ino);
        self.grants.forget(ino);
    }

    /// Adds every clean chunk to the order of eviction after a start.
    pub fn fill_cache_order(&self, state: &State) {
        self.cache.fill(state.extents());
    }

    /// Blocks have become clean: they can be evicted.
    pub fn note_clean(&self, state: &State, ino: Ino, blocks: Range<u64>) {
        self.cache.note_clean(state.extents(), ino, blocks);
    }

    /// Lasts from the moment at which a command is applied until the range that it punches is a
    /// hole.
    pub fn begin_holes(&self) -> Pending<'_> {
        self.holes.begin()
    }

    /// Completes when all holes begun before the call are made.
    pub fn holes_made(&self) -> impl Future<Output = ()> {
        self.holes.made()
    }

    /// These blocks have their written bytes.
    pub fn verified(&self, ino: Ino, blocks: Range<u64>) {
        self.grants.verified(ino, blocks);
    }

    pub fn scrub_status(&self) -> ScrubStatus {
        self.scrub.status()
    }

    /// A larger file is refused at once.
    pub fn max_file_bytes(&self) -> u64 {
        self.max_file_bytes
    }
}
