//! What pages and messages cite is to be there, and to be one thing.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn clauses_have_numbers_of_their_own() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/semantics.md");
    let page = std::fs::read_to_string(page).expect("read docs/semantics.md");
    let numbers = page.lines().filter_map(|line| line.split_once(". ")?.0.parse::<u32>().ok());
    let mut seen = BTreeSet::new();
    let twice: Vec<u32> = numbers.filter(|&number| !seen.insert(number)).collect();
    assert!(!seen.is_empty(), "docs/semantics.md has no clauses");
    assert_eq!(twice, [], "clauses of docs/semantics.md that have another's number");
}
