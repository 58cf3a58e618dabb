use crate::samples::Draw;
use ebb_format::FormatError;
use ebb_format::page::{self, Page};
use ebb_model::Installed;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn sample(draw: &mut Draw) -> Page {
    let mut by_name = BTreeMap::new();
    for what in draw.installed_kinds() {
        let entry: Installed = draw.installed(what);
        by_name.insert(entry.name.clone(), entry);
    }
    let parent = draw.option(|draw| (draw.ino(), draw.name()));
    let entries = by_name.into_values().collect();
    Page { dir: draw.ino(), parent, record: draw.record(), hidden: draw.list(Draw::text), entries }
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    let page = sample(&mut Draw(3));
    let empty = Page { entries: Vec::new(), ..page.clone() };
    // A limit of 1 GiB and none of inodes.
    let value = [&[1][..], &(1u64 << 30).to_le_bytes(), &[0xff; 8]].concat();
    let mut quota = empty.clone();
    quota.record.xattrs = vec![("ebb.quota".into(), value.into())];
    [("empty", empty), ("all-kinds", page), ("quota", quota)]
        .map(|(name, page)| (name.into(), page::encode(&page).expect("it is sorted").to_vec()))
        .into()
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let page = page::decode(bytes).ok()?;
    Some((format!("{page:?}"), page::encode(&page).ok()?.to_vec()))
}

proptest! {
    #[test]
    fn a_page_is_read_as_it_was_written(seed: u64) {
        let page = sample(&mut Draw(seed));
        prop_assert_eq!(page::decode(&page::encode(&page).expect("it is sorted")), Ok(page));
    }

    #[test]
    fn a_flipped_bit_is_noticed(seed: u64, bit: prop::sample::Index) {
        let mut bytes = page::encode(&sample(&mut Draw(seed))).expect("it is sorted").to_vec();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(page::decode(&bytes).is_err());
    }

    #[test]
    fn a_short_page_is_noticed(seed: u64, cut: prop::sample::Index) {
        let bytes = page::encode(&sample(&mut Draw(seed))).expect("it is sorted");
        prop_assert!(page::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(page::decode(&bytes).is_err());
    }
}

/// Situation: a page whose entries are out of order or have one name twice. Danger: of
/// two inodes with one name, one is silently lost. Expectation: refused on both sides.
#[test]
fn order_is_checked() {
    let mut page = sample(&mut Draw(5));
    page.entries.swap(0, 1);
    assert!(matches!(page::encode(&page), Err(FormatError::Invalid { .. })));

    let mut bytes = b"EBBDIR\0\x01\x01".to_vec();
    bytes.extend(postcard::to_allocvec(&page).expect("it can be written"));
    bytes.extend(ebb_format::crc32c(&bytes).to_le_bytes());
    assert!(matches!(page::decode(&bytes), Err(FormatError::Invalid { .. })));

    page.entries.truncate(1);
    page.entries.push(page.entries[0].clone());
    assert!(matches!(page::encode(&page), Err(FormatError::Invalid { .. })));
}

/// Pages of version 1 differ in what they say twice, not in how.
#[test]
fn pages_of_before_are_read() {
    let page = sample(&mut Draw(6));
    let mut bytes = page::encode(&page).expect("it is sorted").to_vec();
    bytes.truncate(bytes.len() - 4);
    for (version, known) in [(0, false), (1, true), (2, true), (3, false)] {
        bytes[8] = version;
        let sealed = [&bytes[..], &ebb_format::crc32c(&bytes).to_le_bytes()].concat();
        assert_eq!(page::decode(&sealed).ok(), known.then(|| page.clone()), "version {version}");
    }
}

/// Situation: somebody put an object of their own there. Expectation: told apart from damage.
#[test]
fn a_foreign_object_is_named() {
    assert!(matches!(page::decode(b"<html></html>"), Err(FormatError::Foreign { .. })));
    assert!(matches!(page::decode(b""), Err(FormatError::Truncated { offset: 0, .. })));
}
