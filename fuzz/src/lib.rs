//! Fuzz targets: everything that reads bytes from outside is given any bytes at all.
//!
//! A target panics where something is wrong: a panic inside, a value that is not written as
//! it was read, a broken law. `cargo xtask fuzz` searches with coverage as its guide; the
//! tests run every target over its seeds, damaged in many ways, and over everything that
//! was ever found (`found/`).

mod formats;
mod requests;
mod seeds;
mod state;
mod surfaces;

pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Where a search begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: &[Target] = &[
    Target { name: "record", run: formats::record, seeds: || seeds::golden(include_str!("../../crates/format/golden/record.txt")) },
    Target { name: "segment", run: formats::segment, seeds: || seeds::golden(include_str!("../../crates/format/golden/segment.txt")) },
    Target { name: "snapshot", run: formats::snapshot, seeds: || seeds::golden(include_str!("../../crates/format/golden/snapshot.txt")) },
    Target { name: "page", run: formats::page, seeds: || seeds::golden(include_str!("../../crates/format/golden/page.txt")) },
    Target {
        name: "page-piece",
        run: formats::page_piece,
        seeds: || seeds::golden(include_str!("../../crates/format/golden/page-piece.txt")),
    },
    Target { name: "head", run: formats::head, seeds: || seeds::golden(include_str!("../../crates/format/golden/head.txt")) },
    Target { name: "identity", run: formats::identity, seeds: || seeds::golden(include_str!("../../crates/format/golden/identity.txt")) },
    Target { name: "backup", run: formats::backup, seeds: || seeds::golden(include_str!("../../crates/format/golden/backup.txt")) },
    Target {
        name: "wrapped-key",
        run: formats::wrapped_key,
        seeds: || seeds::golden(include_str!("../../crates/format/golden/wrapped-key.txt")),
    },
    Target {
        name: "encrypted-file",
        run: formats::encrypted_file,
        seeds: || seeds::golden(include_str!("../../crates/format/golden/encrypted-file.txt")),
    },
    Target { name: "sums", run: formats::sums, seeds: || vec![b"BK7WaADjBpKD".to_vec()] },
    Target { name: "rpc", run: formats::rpc, seeds: || seeds::golden(include_str!("../../crates/format/golden/rpc.txt")) },
    Target { name: "message", run: formats::message, seeds: seeds::messages },
    Target { name: "state", run: state::run, seeds: state::seeds },
    Target { name: "requests", run: requests::run, seeds: requests::seeds },
    Target { name: "listing", run: ebb_bucket::fuzz::listing, seeds: seeds::listings },
    Target { name: "fuse", run: surfaces::fuse, seeds: seeds::fuse },
    Target { name: "arguments", run: surfaces::arguments, seeds: seeds::arguments },
];

pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
