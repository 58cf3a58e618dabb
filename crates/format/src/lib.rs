//! Formats of the bytes on disk, in the bucket and on the wire: pure functions between
//! `ebb_model`'s values and bytes. Each module is one format. Its page under `docs/format/` or
//! `docs/protocol/` is authoritative, and a golden file under `crates/format/golden/` checks both.
//!
//! Laws of every format:
//! - It carries its version.
//! - A checksum covers every stored bit.
//! - For any input, decoding returns a value or a [`FormatError`] and never panics.
//! - Decoding allocates in proportion to the length of the input.

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
pub mod replica;
pub mod rpc;
pub mod segment;
pub mod snapshot;
pub mod sums;
pub mod versions;

pub use checksum::{SUM_OF_ZEROS, crc32c, crc32c_in_block, crc32c_of_blocks, crc32c_with};
pub use error::{Format, FormatError};
