//! The laws that join content and extents, each broken on purpose, and the bytes of a snapshot.

use super::*;
use ebb_model::{LocalCommand, PACK_UNIT_BYTES, PackId, Stamp};

fn stamp(version: u64) -> Stamp {
    Stamp { time: Time::default(), version: Version(version) }
}

/// A write of which this node has no bytes.
fn write_elsewhere(maps: &mut Maps, offset: u64, version: u64) {
    let (len_bytes, stamp) = (1, stamp(version));
    maps.observe(&Change::Written { ino: INO, offset, len_bytes, stamp });
}

/// Bytes on this disk without a write.
fn stage(maps: &mut Maps, first: u64, version: u64) {
    let (version, sums, range) = (Version(version), vec![None], None);
    maps.apply(&LocalCommand::Staged { ino: INO, version, first, sums, range });
}

/// Changes content without the extents.
fn change_content(maps: &mut Maps, change: impl FnOnce(&mut ContentMut)) {
    change(&mut ContentMut::new(&mut maps.content, &mut Vec::new()));
}

/// An object of four blocks: one is cached, one dirty, one a hole.
fn maps() -> Maps {
    let mut maps = Maps::default();
    maps.change(|content| content.set_object(INO, "one", 4 * BLOCK_BYTES));
    let (etag, sums) = ("one".into(), vec![9]);
    maps.apply(&LocalCommand::Present { ino: INO, etag, first: 0, sums });
    maps.write((BLOCK_BYTES, BLOCK_BYTES), vec![Some(0x0102_0304)], None, stamp(5));
    let (range, edges) = (2 * BLOCK_BYTES..3 * BLOCK_BYTES, vec![]);
    maps.zero(range, edges, stamp(6));
    assert_eq!(maps.check(), Vec::<String>::new());
    maps
}

#[test]
fn check_finds_content_and_extents_that_differ() {
    let problem = |damage: &dyn Fn(&mut Maps)| {
        let mut maps = maps();
        damage(&mut maps);
        let problems = maps.check();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.concat()
    };
    let lost = problem(&|maps| write_elsewhere(maps, 3 * BLOCK_BYTES, 7));
    assert!(lost.contains("only 0 of the dirty blocks 3..4"), "{lost}");
    let outdated = problem(&|maps| stage(maps, 1, 4));
    assert!(outdated.contains("dirty block 1 is outdated"), "{outdated}");
    let unknown = problem(&|maps| stage(maps, 3, 7));
    assert!(unknown.contains("block 3 is dirty on the disk"), "{unknown}");
    let replaced = problem(&|maps| change_content(maps, |content| content.moved(INO, "two")));
    assert!(replaced.contains("block 0 is of another object"), "{replaced}");
    let filled = problem(&|maps| {
        let object = maps.content.object_mark(INO);
        maps.extents.fetched(INO, object, 2, &[9], |_| false)
    });
    assert!(filled.contains("a block in the hole 2..3 is present"), "{filled}");
}

/// Situation: the extents lag behind the content, as those of a node that missed a change.
/// Expectation: a clean block of another object counts as absent.
#[test]
fn clean_block_of_another_object_is_absent() {
    let mut maps = maps();
    assert!(maps.view().block(INO, 0).is_some());
    change_content(&mut maps, |content| content.replaced(INO, "two", 4 * BLOCK_BYTES, true));
    assert_eq!(maps.view().block(INO, 0), None);
    assert_eq!(maps.view().resident_runs(INO, 0..4), vec![Range { start: 1, end: 2 }]);
    let origins: Vec<ByteOrigin> = maps
        .view()
        .plan_read(INO, 0..4 * BLOCK_BYTES, 4 * BLOCK_BYTES)
        .iter()
        .map(|segment| segment.origin)
        .collect();
    use ByteOrigin::*;
    assert_eq!(origins, [Remote, Local, Zero, Remote]);
}

#[test]
#[should_panic(expected = "the bytes of dirty block 3 are lost")]
fn dirty_block_without_bytes_asserts() {
    let mut maps = maps();
    write_elsewhere(&mut maps, 3 * BLOCK_BYTES, 7);
    maps.view().plan_read(INO, 0..4 * BLOCK_BYTES, 4 * BLOCK_BYTES);
}

/// Expectation: a snapshot of an older version, with facts of both in one item, is read.
#[test]
fn joined_items_of_older_snapshots_are_read() {
    let mut maps = maps();
    maps.change(|content| content.upload_begun(INO, Version(6)));
    maps.apply(&LocalCommand::Exposed { ino: INO, exposed: true });
    let len_bytes = 33 * PACK_UNIT_BYTES;
    let range = PackRange { pack: PackId(2), start: 3 * PACK_UNIT_BYTES, len_bytes };
    maps.apply(&LocalCommand::Packed { ino: INO, range: Some(range) });
    let file = "000701036f6e658080100101068080100201";
    let packed = "030702806080a008";
    let blocks = "010700020000010905010184868808";
    let (hole, exposed) = ("02070203", "0407");
    let mut older = Maps::default();
    for hex in [file, packed, blocks, hole, exposed] {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let item = postcard::from_bytes(&bytes).expect("an item");
        restore(&mut older.content, &mut older.extents, item);
    }
    assert_eq!(older.items(), maps.items());
}
