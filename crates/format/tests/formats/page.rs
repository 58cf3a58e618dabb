use crate::samples::Draw;
use ebb_format::FormatError;
use ebb_format::page::{self, Head, Piece};
use ebb_model::{DirectoryPage, Installed, Name, PagePiece};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn entries(draw: &mut Draw) -> Vec<Installed> {
    let mut by_name = BTreeMap::new();
    for what in draw.installed_kinds() {
        let entry: Installed = draw.installed(what);
        by_name.insert(entry.name.clone(), entry);
    }
    by_name.into_values().collect()
}

fn sample(draw: &mut Draw) -> Head {
    let entries = entries(draw);
    let parent = draw.option(|draw| (draw.ino(), draw.name()));
    DirectoryPage {
        dir: draw.ino(),
        parent,
        record: draw.record(),
        hidden: draw.list(Draw::text),
        entries,
    }
    .into()
}

fn in_pieces(draw: &mut Draw) -> Head {
    let mut head = sample(draw);
    head.page.entries.clear();
    let names: BTreeSet<Name> =
        draw.list(Draw::name).into_iter().chain([Name::new(&[1]).expect("it is a name")]).collect();
    head.pieces = names
        .into_iter()
        .map(|first| PagePiece { first, id: draw.u64(), entries: draw.u32() })
        .collect();
    head.moved = draw.list(Draw::name).into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    head
}

fn piece(draw: &mut Draw) -> Piece {
    Piece { dir: draw.ino(), id: draw.u64(), entries: entries(draw) }
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    let page = sample(&mut Draw(3));
    let empty = Head::from(DirectoryPage { entries: Vec::new(), ..page.page.clone() });
    // A limit of 1 GiB and none of inodes.
    let value = [&[1][..], &(1u64 << 30).to_le_bytes(), &[0xff; 8]].concat();
    let mut quota = empty.clone();
    quota.page.record.xattrs = vec![("ebb.quota".into(), value.into())];
    let pieces = in_pieces(&mut Draw(4));
    [("empty", empty), ("all-kinds", page), ("quota", quota), ("pieces", pieces)]
        .map(|(name, page)| (name.into(), page::encode(&page).expect("it is sorted").to_vec()))
        .into()
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let head = page::decode(bytes).ok()?;
    let meaning =
        if head.pieces.is_empty() { format!("{:?}", head.page) } else { format!("{head:?}") };
    Some((meaning, page::encode(&head).ok()?.to_vec()))
}

pub fn golden_piece() -> Vec<(String, Vec<u8>)> {
    vec![(
        "all-kinds".into(),
        page::encode_piece(&piece(&mut Draw(3))).expect("it is sorted").to_vec(),
    )]
}

pub fn reread_piece(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let piece = page::decode_piece(bytes).ok()?;
    Some((format!("{piece:?}"), page::encode_piece(&piece).ok()?.to_vec()))
}

/// Heads of both kinds, and pieces.
fn all(seed: u64) -> Vec<Vec<u8>> {
    let heads =
        [sample(&mut Draw(seed)), in_pieces(&mut Draw(seed))].map(|head| page::encode(&head));
    let piece = page::encode_piece(&piece(&mut Draw(seed)));
    heads.into_iter().chain([piece]).map(|bytes| bytes.expect("it is sorted").to_vec()).collect()
}

fn is_read(bytes: &[u8]) -> bool {
    page::decode(bytes).is_ok() || page::decode_piece(bytes).is_ok()
}

proptest! {
    #[test]
    fn a_page_is_read_as_it_was_written(seed: u64) {
        for head in [sample(&mut Draw(seed)), in_pieces(&mut Draw(seed))] {
            prop_assert_eq!(page::decode(&page::encode(&head).expect("it is sorted")), Ok(head));
        }
        let piece = piece(&mut Draw(seed));
        prop_assert_eq!(page::decode_piece(&page::encode_piece(&piece).expect("it is sorted")), Ok(piece));
    }

    #[test]
    fn a_flipped_bit_is_noticed(seed: u64, bit: prop::sample::Index) {
        for mut bytes in all(seed) {
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_read(&bytes));
        }
    }

    #[test]
    fn a_short_page_is_noticed(seed: u64, cut: prop::sample::Index) {
        for bytes in all(seed) {
            prop_assert!(!is_read(&bytes[..cut.index(bytes.len())]));
        }
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!is_read(&bytes));
    }
}

/// Situation: a page whose entries are out of order or repeat a name. Danger: of two inodes with
/// one name, one is silently lost. Expectation: encode and decode reject it.
#[test]
fn order_is_checked() {
    let mut page = sample(&mut Draw(5));
    page.page.entries.swap(0, 1);
    assert!(matches!(page::encode(&page), Err(FormatError::Invalid { .. })));

    let mut bytes = b"EBBDIR\0\x01\x01".to_vec();
    bytes.extend(postcard::to_allocvec(&page.page).expect("it can be written"));
    bytes.extend(ebb_format::crc32c(&bytes).to_le_bytes());
    assert!(matches!(page::decode(&bytes), Err(FormatError::Invalid { .. })));

    page.page.entries.truncate(1);
    page.page.entries.push(page.page.entries[0].clone());
    assert!(matches!(page::encode(&page), Err(FormatError::Invalid { .. })));
}

/// Situation: the ranges of pieces overlap, or a name is in no range. Danger: a lookup reads a
/// piece without the name. Expectation: encode and decode reject it.
#[test]
fn ranges_are_checked() {
    let whole = in_pieces(&mut Draw(5));
    let twice = Head { pieces: [&whole.pieces[..], &whole.pieces[..1]].concat(), ..whole.clone() };
    let headless = Head {
        pieces: vec![PagePiece {
            first: Name::new(b"a").expect("it is a name"),
            id: 1,
            entries: 1,
        }],
        ..whole.clone()
    };
    let mixed = Head { page: sample(&mut Draw(5)).page, ..whole.clone() };
    for head in [&twice, &headless, &mixed] {
        let mut bytes = b"EBBDIR\0\x01\x03".to_vec();
        bytes.extend(postcard::to_allocvec(head).expect("it can be written"));
        bytes.extend(ebb_format::crc32c(&bytes).to_le_bytes());
        assert!(matches!(page::decode(&bytes), Err(FormatError::Invalid { .. })));
    }
    for head in [twice, headless] {
        assert!(matches!(page::encode(&head), Err(FormatError::Invalid { .. })));
    }
}

/// Pages of version 1 differ in which names they repeat, not in layout.
#[test]
fn pages_of_before_are_read() {
    let page = sample(&mut Draw(6));
    let mut bytes = page::encode(&page).expect("it is sorted").to_vec();
    bytes.truncate(bytes.len() - 4);
    for (version, known) in [(0, false), (1, true), (2, true), (4, false)] {
        bytes[8] = version;
        let sealed = [&bytes[..], &ebb_format::crc32c(&bytes).to_le_bytes()].concat();
        assert_eq!(page::decode(&sealed).ok(), known.then(|| page.clone()), "version {version}");
    }
}

/// Situation: a foreign object is at the key of a page. Expectation: `Foreign`, not damage.
#[test]
fn a_foreign_object_is_named() {
    assert!(matches!(page::decode(b"<html></html>"), Err(FormatError::Foreign { .. })));
    assert!(matches!(page::decode(b""), Err(FormatError::Truncated { offset: 0, .. })));
}
