//! Who comes to bytes and names one after the other, and what is fetched before it is asked for.

pub(crate) mod streams;
pub(crate) mod traversals;
pub(crate) mod tree;
pub(crate) mod walks;
