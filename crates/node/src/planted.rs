//! Bugs of the kind that a change could bring in, there to show that the simulation finds
//! them. They do nothing unless the feature `planted` is on, which no release has.

use crate::Node;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// An fsync is answered that forced nothing.
    SkippedFsync,
    /// Snapshots leave out the session table.
    LostSession,
    /// The end of an upload cleans also what was written while it was on its way.
    EarlyClean,
}

impl Node {
    pub(crate) fn has(&self, bug: Planted) -> bool {
        cfg!(feature = "planted") && self.options.planted == Some(bug)
    }
}
