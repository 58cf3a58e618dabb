//! Detects sequential access to bytes and names, and fetches the next ones ahead.

pub(crate) mod streams;
pub(crate) mod traversals;
pub(crate) mod tree;
pub(crate) mod walks;
