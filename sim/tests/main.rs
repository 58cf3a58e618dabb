//! The stories of the simulated world. One binary for all: each would link the whole of ebb anew.

mod backup;
mod bucket;
mod bucket_view;
mod buffers;
mod cluster;
mod counted;
mod damaged;
mod detached;
mod disk;
mod encrypted;
mod executor;
mod exposed;
mod forgetting;
mod found;
mod fsck;
mod ids;
mod lines;
mod locks;
mod metadata;
mod nested;
mod net;
mod oracle;
mod out_of_reach;
mod outsiders;
mod ownership;
mod paced;
mod packs;
mod pages;
mod pieces;
mod planted;
mod power;
mod quota;
mod reading;
mod renamed;
mod restarts;
mod room;
mod side_by_side;
mod smoke;
mod succession;
mod sums;
mod trash;
mod traversals;
mod troubles;
mod unguarded;
mod uploads;
mod versions;
mod warm;
mod world;

#[test]
fn every_file_of_stories_is_listed() {
    for entry in std::fs::read_dir("tests").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        let listed = include_str!("main.rs").contains(&format!("\nmod {module};\n"));
        assert!(module == "main" || listed, "tests/{name} is not in tests/main.rs");
    }
}
