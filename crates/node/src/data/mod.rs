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
