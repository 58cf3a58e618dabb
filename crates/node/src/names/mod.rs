//! Names and attributes: loaded from the bucket, revalidated, evicted, counted, and kept in a
//! trash.

pub(crate) mod external_changes;
pub(crate) mod forget;
pub(crate) mod listings;
pub(crate) mod load;
pub(crate) mod metadata;
pub(crate) mod not_shown;
pub(crate) mod pages;
pub(crate) mod quota;
pub(crate) mod recent_deletes;
pub(crate) mod refresh;
pub(crate) mod revalidate;
pub(crate) mod trash;

use ebb_core::state::State;
use ebb_model::*;
use ebb_store::{Guard, Latches, Mode};
use forget::Forgetting;
use listings::Listings;
use metadata::Metadata;
use not_shown::NotShown;
use pages::Pages;
use quota::Quotas;
use recent_deletes::RecentDeletes;
use revalidate::Revalidation;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

/// State about names that is not in the partition: loads and listings under way, the bucket's last
/// answers, and the names that clients use. Only this folder changes it. All of it may be lost at
/// any time: names are loaded, listed and counted anew.
pub(crate) struct Names {
    /// One load of a directory at a time.
    loads: Latches<Ino>,
    listings: Listings,
    pages: Pages,
    revalidation: Revalidation,
    not_shown: NotShown,
    recent_deletes: RecentDeletes,
    forgetting: Forgetting,
    metadata: Metadata,
    quotas: Quotas,
    /// The last command that gave ids to entries found in the bucket.
    found: Cell<LogIndex>,
}

impl Names {
    /// With the names of a recovered state, and room for so many bytes of metadata.
    pub fn new(state: &State, metadata_bytes: u64) -> Names {
        Names {
            loads: Latches::default(),
            listings: Listings::default(),
            pages: Pages::default(),
            revalidation: Revalidation::after(state.backing().known_dirs()),
            not_shown: NotShown::default(),
            recent_deletes: RecentDeletes::default(),
            forgetting: Forgetting::default(),
            metadata: Metadata::new(metadata_bytes),
            quotas: Quotas::default(),
            found: Cell::new(LogIndex(0)),
        }
    }

    /// Whether a directory is being loaded.
    pub fn is_loading(&self, dir: Ino) -> bool {
        self.loads.is_taken(&dir)
    }

    /// The right to load a directory, unless another task has it.
    pub fn begin_load(&self, dir: Ino) -> Option<Guard<Ino>> {
        self.loads.try_hold(dir, Mode::Exclusive)
    }

    /// Drops the cached page of a directory.
    pub fn forget_page(&self, dir: Ino) {
        self.pages.forget(dir);
    }

    /// Names of the directory have been used.
    pub fn used(&self, dir: Ino) {
        self.forgetting.used(dir);
    }

    /// Notes the inodes in an answer. False if the answer must not be given, because it has an
    /// inode that is being evicted.
    pub fn may_tell(&self, reply: &Reply) -> bool {
        self.forgetting.may_tell(reply)
    }

    /// A client has answered a reference query.
    pub fn references(&self, session: SessionId, query: u64, held: &BTreeSet<Ino>) {
        self.forgetting.answered(session, query, held);
    }

    /// The last command that gave ids to entries found in the bucket.
    pub fn found(&self) -> LogIndex {
        self.found.get()
    }

    /// This node has deleted a key.
    pub fn deleted(&self, key: &str, now: Duration) {
        self.recent_deletes.note(key, now);
    }

    /// How many keys of a directory cannot be names, and the first of them.
    pub fn not_shown_in(&self, dir: Ino) -> (u64, Vec<String>) {
        self.not_shown.of(dir)
    }

    /// Whether a directory has keys that cannot be names.
    pub fn has_not_shown(&self, dir: Ino) -> bool {
        self.not_shown.has(dir)
    }

    pub fn not_shown_troubles(&self, state: &State) -> Vec<Trouble> {
        self.not_shown.troubles(state)
    }

    /// No directory is revalidated before this time.
    pub fn revalidation_rests_until(&self) -> Duration {
        self.revalidation.rests_until()
    }

    /// The innermost quota that an inode counts in.
    pub fn innermost_quota(&self, state: &State, ino: Ino) -> Option<QuotaStatus> {
        self.quotas.innermost(state.namespace(), ino)
    }

    /// How many parts of listings may be loaded together without a request.
    pub fn parts_to_spare(&self, state: &State) -> usize {
        self.metadata.parts_to_spare(state.memory_bytes())
    }
}
