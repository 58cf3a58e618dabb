use super::*;

/// Blocks are verified in any order, some of them twice; the result is the blocks that were never
/// verified.
#[test]
fn unverified_blocks_are_tracked_per_file() {
    let (file, other) = (Ino(7), Ino(8));
    let grants = PassthroughGrants::default();
    let unverified =
        |ino, blocks| grants.unverified(ino, 0..blocks).into_iter().flatten().collect::<Vec<u64>>();
    assert_eq!(unverified(file, 3), [0, 1, 2]);
    for blocks in [7..8, 2..5, 3..4, 5..5] {
        grants.verified(file, blocks);
    }
    grants.verified(other, 0..10);
    assert_eq!(unverified(file, 10), [0, 1, 5, 6, 8, 9]);
    assert_eq!(unverified(file, 3), [0, 1]);
    assert!(unverified(file, 0).is_empty());
    grants.verified(file, 0..10);
    assert!(unverified(file, 10).is_empty());
    assert_eq!(unverified(file, 11), [10]);
    grants.forget(file);
    assert_eq!(unverified(file, 2), [0, 1]);
    assert!(unverified(other, 10).is_empty());
}
