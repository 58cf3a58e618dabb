//! What every store that is reached over HTTP shares: one client, one way to read a
//! failure, one rule for credentials that run out or are rotated.
//!
//! A store adds its [`Service`]: how a request is made authentic. Nothing that changes
//! the bucket is sent twice.

pub(crate) mod base64;
pub(crate) mod client;
pub(crate) mod credentials;
pub(crate) mod encode;
pub(crate) mod etag;
pub(crate) mod fault;
pub(crate) mod json;
pub(crate) mod opening;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod proxies;
pub(crate) mod remote;
pub(crate) mod staging;
pub(crate) mod time;
pub(crate) mod transport;
pub(crate) mod trust;
pub(crate) mod xml;

/// What one answer may consist of: a page of a listing has 5,000 entries with some twenty elements
/// each.
const MAX_PARTS: usize = 1 << 18;

#[cfg(test)]
pub(crate) mod script;
