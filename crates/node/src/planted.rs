//! Bugs of the kind that a change could bring in, there to show that the simulation and the tests
//! of real processes find them. They do nothing unless the feature `planted` is on, which no
//! release has.

use crate::{Node, Options};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// An fsync is answered that forced nothing.
    SkippedFsync,
    /// A change is answered before its record of the log is written, which is only when the next
    /// one comes.
    LateRecord,
    /// Snapshots leave out the session table.
    LostSession,
    /// The end of an upload cleans also what was written while it was on its way.
    EarlyClean,
}

impl Node {
    pub(crate) fn has(&self, bug: Planted) -> bool {
        self.options.has(bug)
    }
}

impl Options {
    pub(crate) fn has(&self, bug: Planted) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}
