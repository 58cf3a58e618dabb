//! Bytes on disk and on the wire, and nothing else.
