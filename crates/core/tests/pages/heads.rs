//! Heads of pages in pieces by other writers, or that arrive late.

use crate::volume::*;
use ebb_core::backing::{Listed, found_pieces, piece_key};
use ebb_model::*;

/// A page of forty names with its entries by piece, and a later page with other first two pieces.
fn two_heads() -> (PageHead, Vec<Vec<Installed>>, PageHead) {
    let mut made = Volume::new();
    for number in 1..=40 {
        made.make(Ino::ROOT, name(number), Make::Special { kind: FileKind::Fifo, rdev: 0 });
    }
    let (first, entries, _) = write_page(&mut made, 10);
    let mut late = first.clone();
    late.pieces[..2].iter_mut().for_each(|piece| piece.id += 7000);
    (first, entries, late)
}

/// Situation: the head of a lost node arrives after the one before it has been read, and after an
/// aborted write here. Danger: the next page refers to pieces of the older head; or a name loaded
/// from the older head is in no piece; or pieces leak. Expectation: the recorded list is that of
/// the head in the bucket, differing ranges are written again, and pieces of neither are deleted
/// then.
#[test]
fn a_head_that_comes_late_brings_its_own_list() {
    let (first, entries, late) = two_heads();
    let mut cold = Volume::new();
    cold.pieces_found(&first, 100);
    assert!(!cold.partition.backing().wants_pieces(Ino::ROOT, &first.pieces));
    assert!(!cold.partition.backing().is_dirty(Ino::ROOT));
    cold.install(&first, &[], entries[0].clone(), cold.epoch(), LoadProgress::Unchanged);
    cold.break_off(5);
    assert_eq!(cold.draft(10).needs(&first), vec![&first.pieces[3]]);
    assert!(cold.partition.backing().wants_pieces(Ino::ROOT, &late.pieces));
    cold.pieces_found(&late, 100);
    assert_eq!(cold.partition.backing().pieces_of(Ino::ROOT), late.pieces);
    assert_eq!(
        cold.draft(10).needs(&late),
        vec![&late.pieces[0], &late.pieces[1], &late.pieces[3]]
    );
    let left: Vec<String> = cold.partition.backing().pieces_left().collect();
    let ids = [5, first.pieces[0].id, first.pieces[1].id];
    assert_eq!(left, ids.map(|id| piece_key(Ino::ROOT, id)));
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}

/// Situation: a write was aborted here, and its head exists after all. Danger: the whole large
/// directory is written again. Expectation: only the ranges of that write are.
#[test]
fn a_head_that_was_written_here_brings_its_own_list() {
    let (first, entries, _) = two_heads();
    let mut cold = Volume::new();
    cold.pieces_found(&first, 100);
    cold.install(&first, &[], entries[0].clone(), cold.epoch(), LoadProgress::Unchanged);
    cold.break_off(5);
    let mut own = first.clone();
    own.pieces[3].id = 5;
    cold.pieces_found(&own, 100);
    assert_eq!(cold.draft(10).needs(&own), vec![&own.pieces[3]]);
    assert_eq!(
        cold.partition.backing().pieces_left().collect::<Vec<_>>(),
        [piece_key(Ino::ROOT, first.pieces[3].id)]
    );
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}

/// Situation: the head of a lost node arrives late, and nothing changed here. Danger: names loaded
/// from the older head are not in the later one, and lost with their eviction. Expectation: they
/// are written.
#[test]
fn names_of_an_older_head_are_written() {
    let (first, entries, late) = two_heads();
    let mut shorter = first.clone();
    shorter.pieces.remove(1);
    for (late, due) in [(&late, &late.pieces[..2]), (&shorter, &shorter.pieces[..1])] {
        let mut cold = Volume::new();
        cold.pieces_found(&first, 100);
        cold.install(&first, &[], entries[1].clone(), cold.epoch(), LoadProgress::Unchanged);
        cold.pieces_found(late, 100);
        assert!(cold.partition.backing().is_dirty(Ino::ROOT));
        assert_eq!(cold.draft(10).needs(late), due.iter().collect::<Vec<_>>());
        assert_eq!(cold.partition.check(), Vec::<String>::new());
    }
}

/// Situation: several records carry a later head, and between them a listing ends that used the
/// older one. Danger: the directory counts as complete with names of both, and the remaining
/// records have no effect. Expectation: the older listing is void.
#[test]
fn a_listing_of_an_older_head_is_void() {
    let (first, entries, late) = two_heads();
    let mut cold = Volume::new();
    cold.pieces_found(&first, 100);
    let epoch = cold.epoch();
    let mut found = found_pieces(Ino::ROOT, &late.pieces, 1, Time::from_secs(1)).into_iter();
    cold.apply(&Command::Backing(found.next().expect("there are pieces")));
    cold.install(&first, &[], entries.concat(), epoch, LoadProgress::Complete);
    assert!(!cold.partition.backing().is_complete(Ino::ROOT));
    for found in found {
        cold.apply(&Command::Backing(found));
    }
    assert_eq!(cold.partition.backing().pieces_of(Ino::ROOT), late.pieces);
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}

/// Situation: all loaded names of an inode with many are marked, and then more of them are loaded.
/// Danger: the inode counts as marked, and its next change is not written at the other names.
/// Expectation: the pieces of all its names are.
#[test]
fn names_that_come_later_are_marked_too() {
    const NAMES: u32 = 20;
    let mut made = Volume::new();
    let ino = made.make(Ino::ROOT, name(10), Make::Regular);
    for number in 11..10 + NAMES {
        made.mutate(Mutation::Link { ino, parent: Ino::ROOT, name: name(number) });
    }
    let sent = |version| {
        let (key, etag) = ("name-10".to_owned(), "etag".to_owned());
        let begun = BackingCommand::UploadBegun { ino, key: key.clone(), upload: None };
        [begun, BackingCommand::Uploaded { ino, key, etag, len_bytes: 0, version }]
    };
    for command in sent(made.partition.next_version()) {
        made.apply(&Command::Backing(command));
    }
    let (head, entries, _) = write_page(&mut made, 2);
    let objects = [Listed::Object {
        key: "name-10".into(),
        etag: "etag".into(),
        len_bytes: 0,
        modified: Time::from_secs(1),
    }];
    let mut cold = Volume::new();
    cold.pieces_found(&head, 100);
    let (early, late) = entries.split_at(entries.len() - 1);
    cold.install(&head, &objects, early.concat(), cold.epoch(), LoadProgress::Unchanged);
    assert!(cold.partition.namespace().inode(ino).is_some_and(|inode| inode.names > 16));
    // Its object is recorded again: a change without a client.
    for command in sent(cold.partition.next_version()) {
        cold.apply(&Command::Backing(command));
    }
    cold.install(&head, &[], late.concat(), cold.epoch(), LoadProgress::Unchanged);
    assert_eq!(cold.partition.backing().unresolved_links(ino), []);
    cold.mutate(Mutation::SetAttr {
        ino,
        set: SetAttr { mode: Some(0o600), ..SetAttr::default() },
    });
    assert_eq!(cold.draft(2).needs(&head), head.pieces.iter().collect::<Vec<_>>());
}
