//! The laws that join content and extents, each broken on purpose, and the bytes of a snapshot.

use super::*;
use ebb_model::{ExtentCommand, PACK_UNIT_BYTES, PackId, Stamp};

fn written(offset: u64, len_bytes: u64, version: u64) -> Change {
    let sums = vec![Some(0x0102_0304)];
    let stamp = Stamp { time: Time::default(), version: Version(version) };
    Change::Written { ino: INO, offset, len_bytes, sums, packed: None, stamp }
}

/// An object of four blocks: one is cached, one dirty, one a hole.
fn maps() -> Maps {
    let mut maps = Maps::default();
    maps.change().set_object(INO, "one", 4 * BLOCK_BYTES);
    let (etag, sums) = ("one".into(), vec![9]);
    maps.change().apply(&ExtentCommand::Present { ino: INO, etag, first: 0, sums });
    maps.change().observe(&written(BLOCK_BYTES, BLOCK_BYTES, 5));
    let (range, edges) = (2 * BLOCK_BYTES..3 * BLOCK_BYTES, vec![]);
    let stamp = Stamp { time: Time::default(), version: Version(6) };
    maps.change().observe(&Change::Zeroed { ino: INO, range, edges, stamp });
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
    let write = |maps: &mut Maps, block, version| {
        maps.extents.written(INO, block..block + 1, &[None], None, Version(version))
    };
    let lost = problem(&|maps| maps.content.observe(&written(3 * BLOCK_BYTES, 1, 7), false));
    assert!(lost.contains("only 0 of the dirty blocks 3..4"), "{lost}");
    let outdated = problem(&|maps| write(maps, 1, 4));
    assert!(outdated.contains("only 0 of the dirty blocks 1..2"), "{outdated}");
    let unknown = problem(&|maps| write(maps, 3, 7));
    assert!(unknown.contains("block 3 is dirty on the disk"), "{unknown}");
    let replaced = problem(&|maps| maps.content.moved(INO, "two"));
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
    maps.content.replaced(INO, "two", 4 * BLOCK_BYTES, true);
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
    maps.content.observe(&written(3 * BLOCK_BYTES, 1, 7), false);
    maps.view().plan_read(INO, 0..4 * BLOCK_BYTES, 4 * BLOCK_BYTES);
}

/// Expectation: the bytes are those that the node wrote before content and extents were separate.
#[test]
fn snapshot_items_keep_their_bytes() {
    let mut maps = maps();
    maps.change().upload_begun(INO, Version(6));
    maps.change().apply(&ExtentCommand::Exposed { ino: INO, exposed: true });
    let len_bytes = 33 * PACK_UNIT_BYTES;
    let range = PackRange { pack: PackId(2), start: 3 * PACK_UNIT_BYTES, len_bytes };
    maps.change().apply(&ExtentCommand::Packed { ino: INO, range: Some(range) });
    let bytes: Vec<u8> = maps
        .items()
        .iter()
        .flat_map(|item| postcard::to_allocvec(item).expect("encoding to memory cannot fail"))
        .collect();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = "000701036f6e658080100101068080100201";
    let packed = "030702806080a008";
    let blocks = "010700020000010905010184868808";
    let (hole, exposed) = ("02070203", "0407");
    assert_eq!(hex, [file, packed, blocks, hole, exposed].concat());
}
