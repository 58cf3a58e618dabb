//! What pages and messages cite is to be there, and to be one thing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn of_project(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path))
        .expect(path)
}

#[test]
fn clauses_have_numbers_of_their_own() {
    let page = of_project("docs/semantics.md");
    let numbers = page.lines().filter_map(|line| line.split_once(". ")?.0.parse::<u32>().ok());
    let mut seen = BTreeSet::new();
    let twice: Vec<u32> = numbers.filter(|&number| !seen.insert(number)).collect();
    assert!(!seen.is_empty(), "docs/semantics.md has no clauses");
    assert_eq!(twice, [], "clauses of docs/semantics.md that have another's number");
}

/// Messages name these pages, and who has a release has no other copy.
#[test]
fn a_release_has_the_pages_for_its_users() {
    let release = of_project("packaging/release");
    for page in ["docs/configuration.md", "docs/operation.md", "docs/semantics.md"] {
        assert!(
            release.split_whitespace().any(|packed| packed == page),
            "{page} is not in a release"
        );
    }
}
