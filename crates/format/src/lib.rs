//! Bytes on disk, in the bucket and on the wire, and nothing else: pure functions
//! between `ebb_model`'s values and bytes. Each module is one format; its page under
//! `docs/format/` or `docs/protocol/` is authoritative and its golden file under
//! `crates/format/golden/` keeps both honest.
//!
//! Laws of every format: it carries its version; every bit that is stored is covered by
//! a checksum; whatever bytes come in, decoding returns a value or a [`FormatError`],
//! never panics, and allocates in proportion to what it was given.

pub mod backup;
mod body;
mod checksum;
pub mod encryption;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod head;
pub mod identity;
mod json;
pub mod object;
pub mod page;
pub mod record;
pub mod rpc;
pub mod segment;
pub mod snapshot;
pub mod sums;

pub use checksum::{SUM_OF_ZEROS, crc32c, crc32c_in_block, crc32c_of_blocks, crc32c_with};
pub use error::{Format, FormatError};
