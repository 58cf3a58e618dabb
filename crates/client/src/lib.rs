//! The client library: sessions, retries, replay, caching rules.
