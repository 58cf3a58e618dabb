//! One object read in requests of several sizes (evaluated in the Objcache paper).

use super::bucket;
use super::curl;
use super::data::LARGE_BYTES;
use super::place::{Column, Places};
use crate::Outcome;

/// Requests in one read-ahead window.
const REQUESTS_AHEAD: u64 = 8;

/// Sequential read with a cold cache: MB/s. ebb has no setting for the request size; it is an
/// eighth of the read-ahead window once the window has reached its limit.
pub fn read<const KIB: u64>(places: &mut Places, column: Column) -> Outcome<f64> {
    let ahead = format!("{}K", REQUESTS_AHEAD * KIB);
    bucket::sequential_with(places, column, &["--read-ahead", &ahead], |key| {
        curl::ranges(key, LARGE_BYTES, KIB << 10)
    })
}
