//! Which pieces of a page are written, and written again.

use crate::volume::*;
use ebb_core::backing::{Drafted, page_key};
use ebb_model::*;
use std::collections::BTreeMap;

/// Situation: a page is cut into more pieces than the search collects names for at one time; then
/// entries change and most of them are removed. Danger: names are lost or repeated where the search
/// restarts; an unchanged piece is written, or a changed one is not; a small page has many pieces.
/// Expectation: all entries once, then only the changed pieces, then one object.
#[test]
fn a_page_is_cut_into_pieces() {
    const NAMES: u32 = 1000;
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let inos: Vec<Ino> =
        (1..=NAMES).map(|number| volume.make(Ino::ROOT, name(number), fifo())).collect();
    let whole = volume
        .partition
        .backing()
        .page(volume.partition.namespace(), Ino::ROOT, None)
        .expect("the root has a page");
    let (head, written, _) = write_page(&mut volume, 2);
    assert_eq!(written.concat(), whole.entries);
    assert!(
        head.page.entries.is_empty() && written.iter().all(|piece| (1..=2).contains(&piece.len()))
    );
    for (piece, entries) in head.pieces.iter().zip(&written) {
        assert!(entries.iter().all(|entry| head.piece_of(&entry.name) == Some(piece)));
    }

    let deletes = |volume: &Volume| volume.partition.backing().deletes().count();
    assert_eq!(deletes(&volume), 0);
    volume.mutate(Mutation::SetAttr {
        ino: inos[500],
        set: SetAttr { mode: Some(0o600), ..SetAttr::default() },
    });
    let (head, written, parts) = write_page(&mut volume, 2);
    assert_eq!((parts.gone.len(), parts.written.len(), deletes(&volume)), (1, 1, 1));
    assert!(written[0].iter().any(|entry| entry.ino == inos[500]));
    assert_eq!(head.pieces.iter().map(|piece| piece.entries).sum::<u32>(), NAMES);

    for number in 2..=NAMES {
        volume.mutate(Mutation::Unlink { parent: Ino::ROOT, name: name(number), holders: vec![] });
    }
    let (head, _, _) = write_page(&mut volume, 2);
    assert_eq!((head.pieces.len(), head.page.entries.len()), (0, 1));
    assert_eq!(
        volume.partition.backing().deletes().filter(|(key, _)| key.starts_with(".ebb/e/")).count(),
        deletes(&volume)
    );
}

/// Situation: entries change while their page is being written. Danger: a change that missed its
/// piece counts as written. Expectation: exactly the pieces of these changes are written again.
#[test]
fn changes_during_a_page_write_are_written_again() {
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let inos: Vec<Ino> =
        (1..=100).map(|number| volume.make(Ino::ROOT, name(number), fifo())).collect();
    write_page(&mut volume, 10);
    let touch =
        |ino| Mutation::SetAttr { ino, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } };
    volume.mutate(touch(inos[10]));
    volume.mutate(touch(inos[90]));
    volume.apply(&Command::Backing(BackingCommand::UploadBegun {
        ino: Ino::ROOT,
        key: page_key(Ino::ROOT),
        upload: None,
    }));
    let before = volume.partition.clone();
    volume.mutate(touch(inos[90]));
    volume.mutate(touch(inos[50]));
    let (backing, namespace) = (before.backing(), before.namespace());
    let mut draft = backing.draft_page(namespace, Ino::ROOT, 10).expect("the root has a page");
    let mut id = 0;
    while let drafted @ (Drafted::More | Drafted::Piece(..)) =
        backing.draft_on(namespace, &mut draft, 10)
    {
        let Drafted::Piece(first, entries) = drafted else { continue };
        id += 1;
        draft.wrote(PagePiece { first, id, entries: entries.len() as u32 });
    }
    let (_, parts) = backing.finish_page(namespace, draft, None).expect("the root is there");
    assert_eq!(parts.gone.len(), 2);
    volume.pieces_written(before.next_version(), "late", &parts);
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    let (_, written, parts) = write_page(&mut volume, 10);
    assert_eq!(parts.gone.len(), 2);
    for at in [90, 50] {
        assert!(written.iter().flatten().any(|entry| entry.ino == inos[at]));
    }
    assert!(!written.iter().flatten().any(|entry| entry.ino == inos[10]));
}

/// Situation: all names of one range are removed, and while the page without them is being written
/// a new one is created there. Danger: the range has no piece any more, and the mark of the new
/// name is lost with it. Expectation: the next page has the name.
#[test]
fn names_new_in_an_emptied_range_are_written() {
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let text = |text: &str| Name::new(text.as_bytes()).expect("it is a name");
    for letter in ["a", "b"] {
        for at in 0..40 {
            volume.make(Ino::ROOT, text(&format!("{letter}{at:02}")), fifo());
        }
    }
    let (head, ..) = write_page(&mut volume, 10);
    let of_b: Vec<&PagePiece> =
        head.pieces.iter().filter(|piece| piece.first >= text("b")).collect();
    assert!(of_b.len() > 1);
    for at in 0..40 {
        volume.mutate(Mutation::Unlink {
            parent: Ino::ROOT,
            name: text(&format!("b{at:02}")),
            holders: vec![],
        });
    }
    volume.apply(&Command::Backing(BackingCommand::UploadBegun {
        ino: Ino::ROOT,
        key: page_key(Ino::ROOT),
        upload: None,
    }));
    let before = volume.partition.clone();
    let late = volume.make(Ino::ROOT, text("b99"), fifo());
    let (backing, namespace) = (before.backing(), before.namespace());
    let mut draft = backing.draft_page(namespace, Ino::ROOT, 10).expect("the root has a page");
    let mut id = 0;
    while let drafted @ (Drafted::More | Drafted::Piece(..)) =
        backing.draft_on(namespace, &mut draft, 10)
    {
        let Drafted::Piece(first, entries) = drafted else { continue };
        id += 1;
        draft.wrote(PagePiece { first, id, entries: entries.len() as u32 });
    }
    let (_, parts) = backing.finish_page(namespace, draft, None).expect("the root is there");
    assert!(
        parts.written.iter().all(|piece| piece.first < text("b"))
            && parts.gone.len() > parts.written.len()
    );
    volume.pieces_written(before.next_version(), "late", &parts);
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    let (_, written, _) = write_page(&mut volume, 10);
    assert!(written.iter().flatten().any(|entry| entry.ino == late));
}

/// Situation: several records carry the changes of a page, and the log ends after any of them.
/// Danger: a name counts as recorded in a piece that does not have it. Expectation: the next page
/// has every name, in the piece of its range.
#[test]
fn partly_logged_page_writes_are_written_again() {
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let number = |at: u32| Name::new(format!("{at:03}").as_bytes()).expect("it is a name");
    let inos: Vec<Ino> = (0..100).map(|at| volume.make(Ino::ROOT, number(at), fifo())).collect();
    let mut objects = BTreeMap::new();
    let mut keep = |pieces: &[PagePiece], written: Vec<Vec<Installed>>| {
        objects.extend(pieces.iter().map(|piece| piece.id).zip(written));
        objects.clone()
    };
    let (_, written, parts) = write_page(&mut volume, 10);
    keep(&parts.written, written);
    for at in (20..50).chain(60..70) {
        volume.mutate(Mutation::Unlink { parent: Ino::ROOT, name: number(at), holders: vec![] });
    }
    for at in (0..20).chain(50..60) {
        volume.mutate(Mutation::SetAttr {
            ino: inos[at],
            set: SetAttr { mode: Some(0o600), ..SetAttr::default() },
        });
    }
    let before = volume.partition.clone();
    let (_, written, parts) = write_page(&mut volume, 7);
    keep(&parts.written, written);
    let records = parts.replaced(Ino::ROOT, 1);
    assert!(records.len() > 5);
    for told in 0..=records.len() {
        let mut volume = Volume { partition: before.clone(), sequence: volume.sequence };
        volume.apply(&Command::Backing(BackingCommand::UploadBegun {
            ino: Ino::ROOT,
            key: page_key(Ino::ROOT),
            upload: None,
        }));
        for record in &records[..told] {
            volume.apply(&Command::Backing(record.clone()));
            assert_eq!(volume.partition.check(), Vec::<String>::new());
        }
        volume.apply(&Command::Backing(BackingCommand::UploadAborted { ino: Ino::ROOT }));
        volume.make(Ino::ROOT, number(65), fifo());
        let (head, written, parts) = write_page(&mut volume, 10);
        let objects = keep(&parts.written, written);
        let mut names = Vec::new();
        for piece in &head.pieces {
            for entry in &objects[&piece.id] {
                assert_eq!(head.piece_of(&entry.name), Some(piece), "{told}: {}", entry.name);
                names.push(entry.name.clone());
            }
        }
        let expected: Vec<Name> =
            (0..20).chain(50..60).chain([65]).chain(70..100).map(number).collect();
        assert_eq!(names, expected, "{told} of {} records", records.len());
    }
}

/// Situation: a file was moved from a subdirectory to a large directory, and its object was not.
/// Danger: a node with only the bucket sees the object at its key, as a file of that name.
/// Expectation: the head lists these names, wherever the objects are.
#[test]
fn a_head_tells_of_objects_that_are_elsewhere() {
    let mut volume = Volume::new();
    let text = |text: &str| Name::new(text.as_bytes()).expect("it is a name");
    for number in 1..=40 {
        volume.make(Ino::ROOT, name(number), Make::Special { kind: FileKind::Fifo, rdev: 0 });
    }
    let sub = volume.make(Ino::ROOT, text("sub"), Make::Directory);
    let ino = volume.make(sub, text("x"), Make::Regular);
    let version = volume.partition.next_version();
    let begun = BackingCommand::UploadBegun { ino, key: "sub/x".into(), upload: None };
    let uploaded = BackingCommand::Uploaded {
        ino,
        key: "sub/x".into(),
        etag: "x".into(),
        len_bytes: 0,
        version,
    };
    for command in [begun, uploaded] {
        volume.apply(&Command::Backing(command));
    }
    let (new_name, mode) = (text("zzz"), RenameMode::Replace);
    volume.mutate(Mutation::Rename {
        from: sub,
        name: text("x"),
        to: Ino::ROOT,
        new_name,
        mode,
        holders: vec![],
    });
    let (head, ..) = write_page(&mut volume, 10);
    assert!(head.pieces.len() > 2);
    assert_eq!(head.moved, vec![text("zzz")]);
}
