//! One object read in requests of several sizes (evaluated in the Objcache paper).

use super::bucket;
use super::curl;
use super::data::LARGE_BYTES;
use super::place::{Column, Places};
use crate::Outcome;

/// How many requests are in what one reader is run ahead by.
const REQUESTS_AHEAD: u64 = 8;

/// From the beginning to the end, with nothing on the node: MB/s. `ebb` has no setting for the size
/// of a request, which is an eighth of the read-ahead once a reader has gone on for long enough.
pub fn read<const KIB: u64>(places: &mut Places, column: Column) -> Outcome<f64> {
    let ahead = format!("{}K", REQUESTS_AHEAD * KIB);
    bucket::sequential_with(places, column, &["--read-ahead", &ahead], |key| {
        curl::ranges(key, LARGE_BYTES, KIB << 10)
    })
}
