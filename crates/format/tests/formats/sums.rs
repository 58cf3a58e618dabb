use ebb_format::crc32c_in_block;
use ebb_format::sums::{Sums, TAG};
use ebb_model::BLOCK_BYTES;
use proptest::prelude::*;
use std::iter::repeat;

const BLOCK: usize = BLOCK_BYTES as usize;

fn tags(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn tagged(sums: &Sums, others: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut tags = tags(others);
    tags.insert(0, (TAG.into(), sums.encode(&tags)));
    tags
}

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The example bytes of `docs/format/bucket.md`.
#[test]
fn the_published_example() {
    let sums = Sums::of(b"123456789").unwrap();
    assert_eq!(sums.encode(&tags(&[("uid", "0"), ("mode", "33188")])), "BK7WaADjBpKD");
}

#[test]
fn they_are_read_whatever_the_order_of_the_tags() {
    let sums = Sums::of(&content(3 * BLOCK + 5)).unwrap();
    let mut tags = tagged(&sums, &[("b", "2"), ("a", "1")]);
    assert_eq!(Sums::decode(&tags, 3 * BLOCK_BYTES + 5), Some(sums.clone()));
    tags.sort();
    assert_eq!(Sums::decode(&tags, 3 * BLOCK_BYTES + 5), Some(sums));
}

/// A tool has replaced the body and kept some of the tags.
#[test]
fn they_are_of_one_length_and_one_set_of_tags() {
    let sums = Sums::of(&content(100)).unwrap();
    let good = tagged(&sums, &[("mtime", "7")]);
    assert_eq!(Sums::decode(&good, 101), None);
    assert_eq!(Sums::decode(&good[..1], 100), None);
    let mut newer = good.clone();
    newer[1].1 = "8".into();
    assert_eq!(Sums::decode(&newer, 100), None);
    let mut more = good.clone();
    more.push(("uid".into(), "0".into()));
    assert_eq!(Sums::decode(&more, 100), None);
    assert_eq!(Sums::decode(&good[1..], 100), None);
}

#[test]
fn a_tag_has_room_for_256_and_the_spans_are_as_long_as_that_needs() {
    for (len, spans, first) in [
        (BLOCK_BYTES, 1, 1),
        (256 * BLOCK_BYTES, 256, 1),
        (256 * BLOCK_BYTES + 1, 129, 2),
        (64 << 30, 256, 4096),
    ] {
        let sums = Sums::of_blocks(len, repeat(Some(7))).unwrap();
        let all: Vec<_> = sums.spans_of(0..len).map(|(span, _)| span).collect();
        assert_eq!(
            (all.len(), all[0].clone(), all.last().unwrap().end),
            (spans, 0..first * BLOCK_BYTES, len)
        );
        assert!(all.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!(sums.encode(&[]).len(), 6 * (1 + spans));
        assert_eq!(Sums::decode(&tagged(&sums, &[]), len), Some(sums));
    }
    assert_eq!(Sums::of_blocks((64 << 30) + 1, repeat(Some(7))), None);
}

#[test]
fn what_blocks_have_gives_what_the_content_has() {
    for len in [0, 1, BLOCK, 2 * BLOCK + 5, 257 * BLOCK, 300 * BLOCK + 77] {
        let bytes = content(len);
        let blocks = bytes.chunks(BLOCK).map(|block| Some(crc32c_in_block(0, block)));
        assert_eq!(Sums::of_blocks(len as u64, blocks), Sums::of(&bytes), "{len}");
    }
}

#[test]
fn what_is_the_same_is_taken_over() {
    let before = Sums::of(&content(258 * BLOCK)).unwrap();
    let unknown = Sums::of_blocks(259 * BLOCK_BYTES + 5, repeat(None)).unwrap();
    let span = 2 * BLOCK_BYTES;
    let mut now = unknown.clone();
    now.take_over(&before, |range, _| range.start != 3 * span && range.end <= 257 * BLOCK_BYTES);
    let starts: Vec<u64> = now.spans_of(0..u64::MAX).map(|(range, _)| range.start / span).collect();
    assert_eq!(starts, (0..128).filter(|at| *at != 3).collect::<Vec<_>>());
    assert_eq!(now.damage(0, &content(256 * BLOCK)), None);
    let mut longer = Sums::of_blocks(600 * BLOCK_BYTES, repeat(None)).unwrap();
    longer.take_over(&before, |_, _| true);
    assert!(!longer.is_any_known(), "its spans are others");
}

/// A block without a checksum leaves its span without one.
#[test]
fn what_is_not_known_is_not_checked() {
    let mut bytes = content(258 * BLOCK);
    let blocks = (0..)
        .zip(bytes.chunks(BLOCK))
        .map(|(at, block)| (at != 3).then(|| crc32c_in_block(0, block)));
    let sums = Sums::of_blocks(258 * BLOCK_BYTES, blocks).unwrap();
    let all = Sums::of(&bytes).unwrap();
    assert!(sums.are_in(&all) && sums.are_in(&sums) && !all.are_in(&sums));
    assert_eq!(sums.encode(&[])[12..18], *"______");
    assert_eq!(
        Sums::decode(&tagged(&sums, &[("uid", "0")]), 258 * BLOCK_BYTES),
        Some(sums.clone())
    );
    assert_eq!(
        sums.spans_of(0..5 * BLOCK_BYTES).map(|(span, _)| span.start).collect::<Vec<_>>(),
        [0, 4 * BLOCK_BYTES]
    );
    bytes[2 * BLOCK] ^= 1;
    assert_eq!(sums.damage(0, &bytes), None);
    bytes[BLOCK] ^= 1;
    assert_eq!(sums.damage(0, &bytes), Some(0..2 * BLOCK_BYTES));
    assert!(!sums.are_all_known() && all.are_all_known());
}

/// A range that starts or ends within a block does not verify that block.
#[test]
fn damage_is_found_in_whole_blocks() {
    let mut bytes = content(2 * BLOCK + 100);
    let sums = Sums::of(&bytes).unwrap();
    assert_eq!(sums.damage(0, &bytes), None);
    bytes[BLOCK + 7] ^= 1;
    assert_eq!(sums.damage(0, &bytes), Some(BLOCK_BYTES..2 * BLOCK_BYTES));
    assert_eq!(sums.damage(BLOCK_BYTES, &bytes[BLOCK..]), Some(BLOCK_BYTES..2 * BLOCK_BYTES));
    assert_eq!(sums.damage(BLOCK_BYTES + 1, &bytes[BLOCK + 1..]), None);
    assert_eq!(sums.damage(0, &bytes[..2 * BLOCK - 1]), None);
    assert_eq!(sums.damage(0, &bytes[..BLOCK]), None);
    bytes[2 * BLOCK + 99] ^= 0x80;
    assert_eq!(
        sums.damage(2 * BLOCK_BYTES, &bytes[2 * BLOCK..]),
        Some(2 * BLOCK_BYTES..2 * BLOCK_BYTES + 100)
    );
    assert_eq!(sums.damage(2 * BLOCK_BYTES, &bytes[2 * BLOCK..2 * BLOCK + 99]), None);
    assert_eq!(sums.damage(u64::from(u32::MAX), b"beyond"), None);
}

proptest! {
    /// Any value of the tag decodes to checksums or to none.
    #[test]
    fn hostile_values_are_no_checksums(value in "\\PC*", len in 0u64..1 << 40) {
        Sums::decode(&[(TAG.into(), value)], len);
    }

    #[test]
    fn a_changed_digit_is_found(len in 0usize..3 * BLOCK, at: prop::sample::Index, digit in "[A-Za-z0-9_-]") {
        let sums = Sums::of(&content(len)).unwrap();
        let mut tags = tagged(&sums, &[("uid", "0")]);
        let at = at.index(tags[0].1.len());
        tags[0].1.replace_range(at..=at, &digit);
        let read = Sums::decode(&tags, len as u64);
        prop_assert!(read.is_none() || read == Some(sums));
    }
}
