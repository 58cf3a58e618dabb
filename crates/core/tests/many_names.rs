//! As many names as a file can have, in one directory over a bucket. What one of them costs does
//! not grow with how many there are, or this takes minutes.

use ebb_core::backing::{Drafted, Listing, PageParts, Scope, page_key};
use ebb_core::partition::Partition;
use ebb_model::*;

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
    let (gone, pieces) = (parts.gone.clone(), parts.written.clone());
    volume.apply(&Command::Backing(match head.pieces.is_empty() {
        true => BackingCommand::PageWritten { dir, version, etag },
        false => BackingCommand::PiecesWritten { dir, version, etag, gone, pieces },
    }));
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
    let (_, PageParts { gone, written: pieces, .. }) = backing.finish_page(namespace, draft, None).expect("the root is there");
    assert_eq!(gone.len(), 2);
    let (dir, version, etag) = (Ino::ROOT, before.next_version(), "late".to_string());
    volume.apply(&Command::Backing(BackingCommand::PiecesWritten { dir, version, etag, gone, pieces }));
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    let (_, written, parts) = write_page(&mut volume, 10);
    assert_eq!(parts.gone.len(), 2);
    for at in [90, 50] {
        assert!(written.iter().flatten().any(|entry| entry.ino == inos[at]));
    }
    assert!(!written.iter().flatten().any(|entry| entry.ino == inos[10]));
}
