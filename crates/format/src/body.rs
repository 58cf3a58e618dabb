//! postcard, with our errors.

use crate::{Format, FormatError};
use serde::{Deserialize, Serialize};

/// Appends `value` to `out`. After an error `out` holds an unspecified tail.
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

/// Reads a value that fills `bytes` to the end. `offset` is where `bytes` begin in what the caller
/// was given.
///
/// postcard refuses lengths beyond what is left of the bytes before it allocates for them.
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

/// The `N` bytes at `at`; the caller has checked the length.
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
