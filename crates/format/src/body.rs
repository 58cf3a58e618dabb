//! postcard encoding with [`FormatError`] as its error.

use crate::{Format, FormatError};
use serde::{Deserialize, Serialize};

/// Appends the encoding of `value` to `out`. On error `out` has an unspecified tail.
pub(crate) fn append<T: Serialize + ?Sized>(
    format: Format,
    value: &T,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let offset = out.len() as u64;
    postcard::to_io(value, out).map(drop).map_err(|error| FormatError::Invalid {
        format,
        offset,
        what: error.to_string(),
    })
}

/// Decodes a value that fills `bytes` exactly. `offset` is the position of `bytes` in the caller's
/// input, for errors.
///
/// postcard rejects lengths beyond the remaining input before it allocates for them.
pub(crate) fn read<'a, T: Deserialize<'a>>(
    format: Format,
    offset: u64,
    bytes: &'a [u8],
) -> Result<T, FormatError> {
    let invalid = |what: String| FormatError::Invalid { format, offset, what };
    let (value, rest) =
        postcard::take_from_bytes(bytes).map_err(|error| invalid(error.to_string()))?;
    if !rest.is_empty() {
        return Err(invalid(format!("{} bytes follow the value", rest.len())));
    }
    Ok(value)
}

/// The `N` bytes at offset `at`. The caller checks the length first.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}
