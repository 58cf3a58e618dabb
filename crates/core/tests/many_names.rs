//! As many names as a file can have, in one directory over a bucket. What one of them costs does
//! not grow with how many there are, or this takes minutes.

use ebb_core::backing::{Drafted, Listed, Listing, Object, PageDraft, PageParts, Reserved, Scope, found_pieces, page_key, piece_key};
use ebb_core::partition::{Partition, Remains};
use ebb_model::*;
use std::collections::BTreeMap;

const SESSION: SessionId = SessionId(1);

struct Volume {
    partition: Partition,
    sequence: u64,
}

impl Volume {
    fn new() -> Volume {
        let time = Time::from_secs(1);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let root = InstalledRecord { mode: 0o755, nlink: 2, uid: 0, gid: 0, atime, mtime, ctime, btime, xattrs: vec![], links: vec![] };
        let mut volume = Volume { partition: Partition::new(Incarnation(1), root, true), sequence: 0 };
        volume.apply(&Command::SessionOpen { session: SESSION, client: "test".into(), replaces: None });
        volume
    }

    fn apply(&mut self, command: &Command) -> Option<Result<Mutated, RpcError>> {
        let next = LogIndex(self.partition.applied().0 + 1);
        self.partition.apply(next, command).answer
    }

    fn mutate(&mut self, mutation: Mutation) -> Mutated {
        self.sequence += 1;
        let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
        let stamp = Stamp { time: Time::from_secs(self.sequence as i64), version: self.partition.next_version() };
        let command = Command::Client { tx, caller: Caller::ROOT, stamp, mutation };
        self.apply(&command).expect("a mutation is answered").expect("nothing is wrong with it")
    }

    fn make(&mut self, parent: Ino, name: Name, what: Make) -> Ino {
        let ino = self.partition.namespace().next_ino(parent);
        self.mutate(Mutation::Make { parent, name, ino, mode: 0o755, what });
        ino
    }

    /// The page of the root is there, in pieces.
    fn pieces_written(&mut self, version: Version, etag: &str, parts: &PageParts) {
        let (dir, etag) = (Ino::ROOT, etag.to_owned());
        for command in parts.clone().replaced(dir, 1024).into_iter().chain([BackingCommand::PiecesWritten { dir, version, etag }]) {
            self.apply(&Command::Backing(command));
        }
    }
}

fn name(number: u32) -> Name {
    Name::new(format!("name-{number}").as_bytes()).expect("a good name")
}

#[test]
fn no_name_costs_as_much_as_all_before() {
    let mut volume = Volume::new();
    let dir = volume.make(Ino::ROOT, name(0), Make::Directory);
    let ino = volume.make(dir, name(1), Make::Regular);
    for number in 2..=MAX_LINKS {
        volume.mutate(Mutation::Link { ino, parent: dir, name: name(number) });
    }
    assert_eq!(volume.partition.namespace().attr(ino).map(|attr| attr.nlink), Ok(MAX_LINKS));
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    for number in 1..=MAX_LINKS {
        volume.mutate(Mutation::Unlink { parent: dir, name: name(number), holders: vec![] });
    }
    assert_eq!(volume.partition.namespace().attr(ino), Err(FsError::Stale));
    assert_eq!(volume.partition.check(), Vec::<String>::new());
}

/// Situation: a node that has nothing but the bucket loads many names of one inode, in pieces.
/// Danger: the page is as long as the square of what it is about. Expectation: it tells all names
/// once, and all of them are found.
#[test]
fn a_page_tells_all_names_once() {
    const NAMES: u32 = 10_000;
    const PIECE: usize = 3000;
    let mut volume = Volume::new();
    let ino = volume.make(Ino::ROOT, name(1), Make::Special { kind: FileKind::Fifo, rdev: 0 });
    for number in 2..=NAMES {
        volume.mutate(Mutation::Link { ino, parent: Ino::ROOT, name: name(number) });
    }
    let page = volume.partition.backing().page(volume.partition.namespace(), Ino::ROOT, None).expect("the root has a page");
    assert_eq!(page.entries.len(), NAMES as usize);
    let links = |entry: &Installed| entry.record.as_ref().map_or(0, |record| record.links.len());
    assert_eq!(page.entries.iter().map(links).sum::<usize>(), NAMES as usize + (NAMES as usize - 1));

    let page = PageHead::from(page);
    let mut cold = Volume::new();
    let mut after: Option<Name> = None;
    loop {
        let (backing, namespace) = (cold.partition.backing(), cold.partition.namespace());
        let epoch = backing.load_epoch(Ino::ROOT).expect("it is a directory of the bucket");
        let listing = Listing { dir: Ino::ROOT, entries: &[], page: Some(&page), scope: Scope::First, after: after.as_ref() };
        let mut entries = backing.interpret(namespace, &listing, || unreachable!("its id is on record")).entries;
        let more = entries.len() > PIECE;
        entries.truncate(PIECE);
        after = entries.last().map(|entry| entry.name.clone());
        let progress = if more { LoadProgress::Unchanged } else { LoadProgress::Complete };
        let stamp = Stamp { time: Time::from_secs(1), version: cold.partition.next_version() };
        let install = BackingCommand::Install { dir: Ino::ROOT, epoch, entries, hidden: vec![], owner: (0, 0), progress, stamp };
        assert_eq!(cold.apply(&Command::Backing(install)), None);
        if !more {
            break;
        }
        // Nobody changes the inode before all its names are here.
        assert!(!cold.partition.backing().unseen_names(ino).is_empty());
    }
    let (backing, namespace) = (cold.partition.backing(), cold.partition.namespace());
    assert_eq!(backing.unseen_names(ino), []);
    assert_eq!(namespace.attr(ino).map(|attr| attr.nlink), Ok(NAMES));
    assert_eq!(namespace.primary_name(ino), Some((Ino::ROOT, name(1))));
    assert!((1..=NAMES).all(|number| namespace.dentry(Ino::ROOT, &name(number)).is_some_and(|dentry| dentry.ino == ino)));
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}

/// Puts the page of the root together a few names at a time, and says that it was written.
fn write_page(volume: &mut Volume, piece_entries: usize) -> (PageHead, Vec<Vec<Installed>>, PageParts) {
    let begun = BackingCommand::UploadBegun { ino: Ino::ROOT, key: page_key(Ino::ROOT), upload: None };
    volume.apply(&Command::Backing(begun));
    let (backing, namespace) = (volume.partition.backing(), volume.partition.namespace());
    let mut draft = backing.draft_page(namespace, Ino::ROOT, piece_entries).expect("the root has a page");
    let mut written = Vec::new();
    loop {
        match backing.draft_on(namespace, &mut draft, 100) {
            Drafted::More => {}
            Drafted::Piece(first, entries) => {
                let id = volume.sequence * 100_000 + written.len() as u64;
                draft.wrote(PagePiece { first, id, entries: entries.len() as u32 });
                written.push(entries);
            }
            Drafted::All => break,
        }
    }
    let (head, parts) = backing.finish_page(namespace, draft, None).expect("the root is there");
    let (dir, version, etag) = (Ino::ROOT, volume.partition.next_version(), volume.sequence.to_string());
    match head.pieces.is_empty() {
        true => drop(volume.apply(&Command::Backing(BackingCommand::PageWritten { dir, version, etag }))),
        false => volume.pieces_written(version, &etag, &parts),
    }
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    (head, written, parts)
}

/// Situation: a page is cut into more pieces than names are collected for at one time, and then entries change and
/// most of them go. Danger: names are left out or told twice where the search begins anew; what has not changed is
/// written, or what has is not; a page of little is in many pieces. Expectation: all entries once, then the
/// pieces in which something has changed, then one object.
#[test]
fn a_page_is_cut_into_pieces() {
    const NAMES: u32 = 1000;
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let inos: Vec<Ino> = (1..=NAMES).map(|number| volume.make(Ino::ROOT, name(number), fifo())).collect();
    let whole = volume.partition.backing().page(volume.partition.namespace(), Ino::ROOT, None).expect("the root has a page");
    let (head, written, _) = write_page(&mut volume, 2);
    assert_eq!(written.concat(), whole.entries);
    assert!(head.page.entries.is_empty() && written.iter().all(|piece| (1..=2).contains(&piece.len())));
    for (piece, entries) in head.pieces.iter().zip(&written) {
        assert!(entries.iter().all(|entry| head.piece_of(&entry.name) == Some(piece)));
    }

    let deletes = |volume: &Volume| volume.partition.backing().deletes().count();
    assert_eq!(deletes(&volume), 0);
    volume.mutate(Mutation::SetAttr { ino: inos[500], set: SetAttr { mode: Some(0o600), ..SetAttr::default() } });
    let (head, written, parts) = write_page(&mut volume, 2);
    assert_eq!((parts.gone.len(), parts.written.len(), deletes(&volume)), (1, 1, 1));
    assert!(written[0].iter().any(|entry| entry.ino == inos[500]));
    assert_eq!(head.pieces.iter().map(|piece| piece.entries).sum::<u32>(), NAMES);

    for number in 2..=NAMES {
        volume.mutate(Mutation::Unlink { parent: Ino::ROOT, name: name(number), holders: vec![] });
    }
    let (head, _, _) = write_page(&mut volume, 2);
    assert_eq!((head.pieces.len(), head.page.entries.len()), (0, 1));
    assert_eq!(volume.partition.backing().deletes().filter(|(key, _)| key.starts_with(".ebb/e/")).count(), deletes(&volume));
}

/// Situation: entries change while their page is on its way. Danger: what came too late for the pieces that were
/// written is taken for written. Expectation: just the pieces that it belongs to are written again.
#[test]
fn what_changes_while_a_page_is_written_is_written_again() {
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let inos: Vec<Ino> = (1..=100).map(|number| volume.make(Ino::ROOT, name(number), fifo())).collect();
    write_page(&mut volume, 10);
    let touch = |ino| Mutation::SetAttr { ino, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } };
    volume.mutate(touch(inos[10]));
    volume.mutate(touch(inos[90]));
    volume.apply(&Command::Backing(BackingCommand::UploadBegun { ino: Ino::ROOT, key: page_key(Ino::ROOT), upload: None }));
    let before = volume.partition.clone();
    volume.mutate(touch(inos[90]));
    volume.mutate(touch(inos[50]));
    let (backing, namespace) = (before.backing(), before.namespace());
    let mut draft = backing.draft_page(namespace, Ino::ROOT, 10).expect("the root has a page");
    let mut id = 0;
    while let drafted @ (Drafted::More | Drafted::Piece(..)) = backing.draft_on(namespace, &mut draft, 10) {
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

/// Situation: all names of one range go, and while the page without them is on its way a new one comes there. Danger: the
/// range has no piece any more, and with it the mark of what came too late. Expectation: the next page has the name.
#[test]
fn what_comes_into_a_range_that_was_emptied_is_written() {
    let mut volume = Volume::new();
    let fifo = || Make::Special { kind: FileKind::Fifo, rdev: 0 };
    let text = |text: &str| Name::new(text.as_bytes()).expect("it is a name");
    for letter in ["a", "b"] {
        for at in 0..40 {
            volume.make(Ino::ROOT, text(&format!("{letter}{at:02}")), fifo());
        }
    }
    let (head, ..) = write_page(&mut volume, 10);
    let of_b: Vec<&PagePiece> = head.pieces.iter().filter(|piece| piece.first >= text("b")).collect();
    assert!(of_b.len() > 1);
    for at in 0..40 {
        volume.mutate(Mutation::Unlink { parent: Ino::ROOT, name: text(&format!("b{at:02}")), holders: vec![] });
    }
    volume.apply(&Command::Backing(BackingCommand::UploadBegun { ino: Ino::ROOT, key: page_key(Ino::ROOT), upload: None }));
    let before = volume.partition.clone();
    let late = volume.make(Ino::ROOT, text("b99"), fifo());
    let (backing, namespace) = (before.backing(), before.namespace());
    let mut draft = backing.draft_page(namespace, Ino::ROOT, 10).expect("the root has a page");
    let mut id = 0;
    while let drafted @ (Drafted::More | Drafted::Piece(..)) = backing.draft_on(namespace, &mut draft, 10) {
        let Drafted::Piece(first, entries) = drafted else { continue };
        id += 1;
        draft.wrote(PagePiece { first, id, entries: entries.len() as u32 });
    }
    let (_, parts) = backing.finish_page(namespace, draft, None).expect("the root is there");
    assert!(parts.written.iter().all(|piece| piece.first < text("b")) && parts.gone.len() > parts.written.len());
    volume.pieces_written(before.next_version(), "late", &parts);
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    let (_, written, _) = write_page(&mut volume, 10);
    assert!(written.iter().flatten().any(|entry| entry.ino == late));
}

/// Situation: what has become of a page takes several records, and the log ends behind any of them. Danger: a name counts
/// as told in a piece that does not have it. Expectation: the next page has every name, in the piece of its range.
#[test]
fn what_is_told_in_part_is_written_again() {
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
        volume.mutate(Mutation::SetAttr { ino: inos[at], set: SetAttr { mode: Some(0o600), ..SetAttr::default() } });
    }
    let before = volume.partition.clone();
    let (_, written, parts) = write_page(&mut volume, 7);
    keep(&parts.written, written);
    let records = parts.replaced(Ino::ROOT, 1);
    assert!(records.len() > 5);
    for told in 0..=records.len() {
        let mut volume = Volume { partition: before.clone(), sequence: volume.sequence };
        volume.apply(&Command::Backing(BackingCommand::UploadBegun { ino: Ino::ROOT, key: page_key(Ino::ROOT), upload: None }));
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
        let expected: Vec<Name> = (0..20).chain(50..60).chain([65]).chain(70..100).map(number).collect();
        assert_eq!(names, expected, "{told} of {} records", records.len());
    }
}

impl Volume {
    fn pieces_found(&mut self, head: &PageHead, most: usize) {
        for found in found_pieces(Ino::ROOT, &head.pieces, most, Time::from_secs(1)) {
            self.apply(&Command::Backing(found));
        }
    }

    /// Installs these entries of a page in pieces, as they were found in this epoch.
    fn install(&mut self, head: &PageHead, objects: &[Listed], entries: Vec<Installed>, epoch: u64, progress: LoadProgress) -> Vec<Ino> {
        let page = PageHead { page: DirectoryPage { entries, ..head.page.clone() }, ..head.clone() };
        let (dir, scope) = (Ino::ROOT, Scope::First);
        let listing = Listing { dir, entries: objects, page: Some(&page), scope, after: None };
        let (backing, namespace) = (self.partition.backing(), self.partition.namespace());
        let entries = backing.interpret(namespace, &listing, || unreachable!("its id is on record")).entries;
        let inos = entries.iter().map(|entry| entry.ino).collect();
        let stamp = Stamp { time: Time::from_secs(1), version: self.partition.next_version() };
        let install = BackingCommand::Install { dir, epoch, entries, hidden: vec![], owner: (0, 0), progress, stamp };
        self.apply(&Command::Backing(install));
        inos
    }

    /// Makes a name, and breaks the write of the page with it off once a piece was begun.
    fn break_off(&mut self, piece: u64) {
        self.make(Ino::ROOT, Name::new(b"new").expect("it is a name"), Make::Special { kind: FileKind::Fifo, rdev: 0 });
        let (ino, dir) = (Ino::ROOT, Ino::ROOT);
        let begun = BackingCommand::UploadBegun { ino, key: page_key(dir), upload: None };
        for command in [begun, BackingCommand::PiecesBegun { dir, ids: vec![piece] }, BackingCommand::UploadAborted { ino }] {
            self.apply(&Command::Backing(command));
        }
    }

    fn epoch(&self) -> u64 {
        self.partition.backing().load_epoch(Ino::ROOT).expect("it is a directory of the bucket")
    }

    fn draft(&self, piece_entries: usize) -> PageDraft {
        self.partition.backing().draft_page(self.partition.namespace(), Ino::ROOT, piece_entries).expect("the root has a page")
    }
}

/// A page of forty names, its entries piece by piece, and a later one in which the first two pieces are others.
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

/// Situation: the head of a node that is no more arrives after the one before it has been read, and after a write here
/// was broken off. Danger: what is written next names pieces of the older one; or a name that is known here from the older
/// one is in no piece; or pieces stay for ever. Expectation: the list is the one of the head that is there, ranges in
/// which it differs are written anew, and what is of neither goes then.
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
    assert_eq!(cold.draft(10).needs(&late), vec![&late.pieces[0], &late.pieces[1], &late.pieces[3]]);
    let left: Vec<String> = cold.partition.backing().pieces_left().collect();
    let ids = [5, first.pieces[0].id, first.pieces[1].id];
    assert_eq!(left, ids.map(|id| piece_key(Ino::ROOT, id)));
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}

/// Situation: a write was broken off here, and its head is there after all. Danger: all of a large directory is written
/// again. Expectation: only what that write was about is.
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
    assert_eq!(cold.partition.backing().pieces_left().collect::<Vec<_>>(), [piece_key(Ino::ROOT, first.pieces[3].id)]);
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}

/// Situation: the head of a node that is no more arrives late, and nothing was changed here. Danger: what it knows from the older head is not in
/// the later one, and gone when it is forgotten. Expectation: it is written.
#[test]
fn what_is_known_from_an_older_head_is_written() {
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

/// Situation: a later head is told of in several records, and between them a listing ends that was made with the
/// older one. Danger: the directory counts as complete with names of both, and the rest is told of in vain. Expectation:
/// what was listed before is void.
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

/// Situation: all known names of an inode with many are marked, and then more of them come to be known. Danger: it counts
/// as marked, and what becomes of it next is not written at the others. Expectation: the pieces of all its names are.
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
    let objects = [Listed::Object { key: "name-10".into(), etag: "etag".into(), len_bytes: 0, modified: Time::from_secs(1) }];
    let mut cold = Volume::new();
    cold.pieces_found(&head, 100);
    let (early, late) = entries.split_at(entries.len() - 1);
    cold.install(&head, &objects, early.concat(), cold.epoch(), LoadProgress::Unchanged);
    assert!(cold.partition.namespace().inode(ino).is_some_and(|inode| inode.names > 16));
    // Its object is told of once more: a change of it that no client has made.
    for command in sent(cold.partition.next_version()) {
        cold.apply(&Command::Backing(command));
    }
    cold.install(&head, &[], late.concat(), cold.epoch(), LoadProgress::Unchanged);
    assert_eq!(cold.partition.backing().unseen_names(ino), []);
    cold.mutate(Mutation::SetAttr { ino, set: SetAttr { mode: Some(0o600), ..SetAttr::default() } });
    assert_eq!(cold.draft(2).needs(&head), head.pieces.iter().collect::<Vec<_>>());
}

/// Situation: a file has left a directory below for a large one, and its object has not followed. Danger: whoever has
/// nothing but the bucket sees the object where it is, as a file of that name. Expectation: the head says of what names
/// that may be, wherever the object is.
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
    let uploaded = BackingCommand::Uploaded { ino, key: "sub/x".into(), etag: "x".into(), len_bytes: 0, version };
    for command in [begun, uploaded] {
        volume.apply(&Command::Backing(command));
    }
    let (new_name, mode) = (text("zzz"), RenameMode::Replace);
    volume.mutate(Mutation::Rename { from: sub, name: text("x"), to: Ino::ROOT, new_name, mode, holders: vec![] });
    let (head, ..) = write_page(&mut volume, 10);
    assert!(head.pieces.len() > 2);
    assert_eq!(head.moved, vec![text("zzz")]);
}

/// Situation: a directory was made by this node, and forgotten with its names. Danger: nothing known refers to its page,
/// which is taken for left over and deleted. Expectation: nobody can tell whose it is.
#[test]
fn the_page_of_what_was_forgotten_is_not_left_over() {
    let mut volume = Volume::new();
    let dir = volume.make(Ino::ROOT, Name::new(b"dir").expect("it is a name"), Make::Directory);
    let version = volume.partition.next_version();
    let begun = BackingCommand::UploadBegun { ino: dir, key: page_key(dir), upload: None };
    for command in [begun, BackingCommand::PageWritten { dir, version, etag: "page".into() }] {
        volume.apply(&Command::Backing(command));
    }
    write_page(&mut volume, 10);
    volume.apply(&Command::Backing(BackingCommand::Forget { dir: Ino::ROOT, inos: vec![dir] }));
    assert!(volume.partition.namespace().inode(dir).is_none(), "it was forgotten");
    let backing = volume.partition.backing();
    for key in [page_key(dir), piece_key(dir, 7)] {
        assert_eq!(backing.reserved(volume.partition.namespace(), &key, backing.is_loaded()), Reserved::Undecided, "{key}");
    }
}

/// Situation: a backup knows a directory that others have made, of which nothing was on record, and which has got a page
/// in pieces since. Danger: the backup cannot be restored; or the pieces stay in the bucket for ever, or are taken for files'
/// objects. Expectation: the page is written anew, and the pieces go then.
#[test]
fn a_backup_of_before_the_pieces_is_restored() {
    let mut volume = Volume::new();
    let name = |text: &str| Name::new(text.as_bytes()).expect("it is a name");
    let (dir, file) = (Ino::new(Incarnation(1), Ino::ROOT.slot(), 70), Ino::new(Incarnation(1), Ino::ROOT.slot(), 71));
    let found = |name, ino, what| Installed { name, ino, what, record: None };
    let (etag, modified) = ("f".to_owned(), Time::from_secs(1));
    let installs = [
        (Ino::ROOT, found(name("d"), dir, InstalledKind::Directory { prefix: None, page: false })),
        (dir, found(name("f"), file, InstalledKind::Object { key: None, etag: etag.clone(), len_bytes: 1, modified })),
    ];
    for (dir, entry) in installs {
        let (progress, epoch) = (LoadProgress::Complete, volume.partition.backing().load_epoch(dir).expect("it is there"));
        let stamp = Stamp { time: Time::from_secs(1), version: volume.partition.next_version() };
        let install = BackingCommand::Install { dir, epoch, entries: vec![entry], hidden: vec![], owner: (0, 0), progress, stamp };
        volume.apply(&Command::Backing(install));
    }
    let keys = ["d/f".to_owned(), page_key(dir), piece_key(dir, 5), piece_key(dir, 6)];
    let objects: BTreeMap<String, Object> =
        keys.into_iter().map(|key| (key, Object { etag: etag.clone(), len_bytes: 1, modified })).collect();
    let remains =
        Remains { incarnation: Incarnation(2), now: Time::from_secs(9), objects: &objects, moved: &BTreeMap::new(), owner: (0, 0) };
    let rebuilt = volume.partition.clone().rebuilt(&remains).expect("it can be restored");
    assert_eq!(rebuilt.others, Vec::<String>::new());
    volume.partition = rebuilt.partition;
    assert!(volume.partition.backing().is_dirty(dir));
    volume.apply(&Command::Backing(BackingCommand::UploadBegun { ino: dir, key: page_key(dir), upload: None }));
    let version = volume.partition.next_version();
    volume.apply(&Command::Backing(BackingCommand::PageWritten { dir, version, etag: "new".into() }));
    let deletes: Vec<String> = volume.partition.backing().deletes().map(|(key, _)| key.to_string()).collect();
    assert_eq!(deletes, [piece_key(dir, 5), piece_key(dir, 6)]);
    assert_eq!(volume.partition.check(), Vec::<String>::new());
}
