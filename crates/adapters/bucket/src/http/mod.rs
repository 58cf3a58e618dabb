//! The common part of all stores that are reached over HTTP: one client, one way to read a failure,
//! one rule for credentials that expire or are rotated.
//!
//! A store adds its [`Service`], which authenticates requests. No request that changes the bucket
//! is sent twice.

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

/// Limit of elements in one answer: a page of a listing has 5,000 entries with some twenty elements
/// each.
const MAX_PARTS: usize = 1 << 18;

#[cfg(test)]
pub(crate) mod script;
