//! Fuzz targets: every parser of outside bytes gets arbitrary bytes.
//!
//! A target panics on an error: a panic inside, a value that does not survive encode and decode, or
//! a broken law. `cargo xtask fuzz` searches guided by coverage. The tests run every target over
//! its seeds, mutated in many ways, and over every input that a search has found (`found/`).

mod file;
mod formats;
mod handover;
mod pages;
mod replies;
mod requests;
mod seeds;
mod state;
mod storage;
mod surfaces;

pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Initial inputs of a search.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Maximum length of an input that a search generates.
    pub most_bytes: usize,
}

const fn target_of(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, run, seeds, most_bytes: 4 << 10 }
}

/// A target whose seeds are a golden file of `ebb-format`.
macro_rules! golden {
    ($name:literal, $run:expr) => {
        target_of($name, $run, || {
            seeds::golden(include_str!(concat!("../../crates/format/golden/", $name, ".txt")))
        })
    };
}

pub const TARGETS: &[Target] = &[
    golden!("record", formats::record),
    Target { most_bytes: 8 << 10, ..golden!("segment", formats::segment) },
    target_of("snapshot", formats::snapshot, seeds::snapshots),
    golden!("page", formats::page),
    golden!("page-piece", formats::page_piece),
    golden!("head", formats::head),
    golden!("identity", formats::identity),
    golden!("backup", formats::backup),
    golden!("wrapped-key", formats::wrapped_key),
    Target { most_bytes: 256, ..golden!("encrypted-file", formats::encrypted_file) },
    golden!("rpc", formats::rpc),
    Target { most_bytes: 128, ..golden!("versions", formats::versions) },
    target_of("message", formats::message, seeds::messages),
    target_of("state", state::run, state::seeds),
    target_of("pages", pages::run, pages::seeds),
    target_of("requests", requests::run, requests::seeds),
    target_of("replies", replies::run, replies::seeds),
    target_of("listing", ebb_bucket::fuzz::listing, seeds::listings),
    target_of("answers", ebb_bucket::fuzz::answers, seeds::answers),
    target_of("credentials", storage::credentials, seeds::credentials),
    Target { most_bytes: 1 << 10, ..target_of("metadata", storage::metadata, seeds::metadata) },
    target_of("fuse", surfaces::fuse, seeds::fuse),
    Target { most_bytes: 512, ..target_of("arguments", surfaces::arguments, seeds::arguments) },
    Target { most_bytes: 1 << 10, ..target_of("config", surfaces::config, seeds::configs) },
    Target { most_bytes: 1 << 10, ..target_of("machine", surfaces::machine, seeds::machine) },
    target_of("frames", surfaces::frames, seeds::frames),
    target_of("estate", handover::run, handover::seeds),
];

pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
