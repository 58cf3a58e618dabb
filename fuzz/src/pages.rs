//! Arbitrary directory pages and listings from a bucket: the partition rejects them, or installs
//! them and keeps every law.

use crate::seeds::root;
use ebb_core::backing::{Interpreted, Listed, Listing, Scope, found_pieces};
use ebb_core::partition::{Partition, SnapshotItem};
use ebb_format::page;
use ebb_model::*;
use serde::{Deserialize, Serialize};

/// Longer sequences find no more bugs.
const MOST_STEPS: usize = 16;

/// Pieces per record, low enough for the small directories here to exceed it.
const RECORD_PIECES: usize = 2;

#[derive(Serialize, Deserialize)]
enum Step {
    /// Loads a directory, or one name of it.
    Load {
        dir: Ino,
        page: Option<Box<Page>>,
        keys: Vec<Key>,
        name: Option<Name>,
        progress: LoadProgress,
    },
    /// Lists the directory again.
    Revalidate {
        dir: Ino,
    },
    /// The bucket holds another object than the partition recorded, or none.
    Replaced {
        ino: Ino,
        etag: String,
        len_bytes: u64,
    },
    RolledBack {
        ino: Ino,
        etag: String,
        len_bytes: u64,
    },
    Vanished {
        parent: Ino,
        name: Name,
    },
    Forget {
        dir: Ino,
        inos: Vec<Ino>,
    },
    /// Concurrent changes by clients.
    Make {
        parent: Ino,
        name: Name,
        what: Make,
    },
    Rename {
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Name,
    },
    Unlink {
        parent: Ino,
        name: Name,
    },
    Rmdir {
        parent: Ino,
        name: Name,
    },
    Truncate {
        ino: Ino,
        size_bytes: u64,
    },
}

/// A page with pieces: those that it names, and others.
type Page = (PageHead, Vec<PieceBody>);

/// An entry of a listing: an object, or a prefix.
#[derive(Serialize, Deserialize)]
struct Key {
    key: String,
    object: Option<(String, u64)>,
}

pub fn run(bytes: &[u8]) {
    let Ok(steps) = postcard::from_bytes::<Vec<Step>>(bytes) else { return };
    let mut volume = Volume::new();
    for step in steps.into_iter().take(MOST_STEPS) {
        volume.step(step);
        let problems = volume.partition.check();
        assert!(problems.is_empty(), "{problems:?}");
    }
    let items: Vec<SnapshotItem> = volume.partition.items().collect();
    let again = Partition::from_items(items)
        .expect("a partition that keeps the laws can be written and read");
    assert!(
        again.items().eq(volume.partition.items()),
        "a partition was not read as it was written"
    );
}

struct Volume {
    partition: Partition,
    sequence: u64,
}

const SESSION: SessionId = SessionId(1);
const NOW: Time = Time::from_secs(2);

impl Volume {
    fn new() -> Volume {
        let mut volume = Volume {
            partition: Partition::new(IdRange::whole(IdEpoch(1)), root(), true),
            sequence: 0,
        };
        volume.apply(Command::SessionOpen {
            session: SESSION,
            client: "client".into(),
            replaces: None,
        });
        volume
    }

    fn step(&mut self, step: Step) {
        let stamp = Stamp { time: NOW, version: self.partition.next_version() };
        let modified = NOW;
        match step {
            Step::Load { dir, page, keys, name, progress } => {
                self.load(dir, page, keys, name.as_ref(), progress)
            }
            Step::Revalidate { dir } => self.tell(BackingCommand::Revalidating { dir }),
            Step::Replaced { ino, etag, len_bytes } => {
                self.tell(BackingCommand::Replaced { ino, etag, len_bytes, modified, stamp })
            }
            Step::RolledBack { ino, etag, len_bytes } => {
                self.tell(BackingCommand::RolledBack { ino, etag, len_bytes, modified, stamp })
            }
            Step::Vanished { parent, name } => {
                // The node reports only a name without a dentry, or a name that the bucket fully
                // covers.
                let (backing, namespace) = (self.partition.backing(), self.partition.namespace());
                if namespace.lookup(parent, &name).is_err()
                    || backing.standing(namespace, parent, &name).is_some()
                {
                    self.tell(BackingCommand::Vanished { parent, name, stamp });
                }
            }
            Step::Forget { dir, inos } => self.tell(BackingCommand::Forget { dir, inos }),
            Step::Make { parent, name, what } => {
                let ino =
                    self.partition.namespace().next_ino(parent.slot()).expect("an id is left");
                self.change(Mutation::Make { parent, name, ino, mode: 0o644, what });
            }
            Step::Rename { from, name, to, new_name, mode } => {
                let mode = match mode {
                    RenameMode::Whiteout { keep_target, .. } => RenameMode::Whiteout {
                        keep_target,
                        ino: self.partition.namespace().next_ino(from.slot()),
                    },
                    mode => mode,
                };
                self.change(Mutation::Rename { from, name, to, new_name, mode, holders: vec![] });
            }
            Step::Link { ino, parent, name } => self.change(Mutation::Link { ino, parent, name }),
            Step::Unlink { parent, name } => {
                self.change(Mutation::Unlink { parent, name, holders: vec![] })
            }
            Step::Rmdir { parent, name } => {
                self.change(Mutation::Rmdir { parent, name, holders: vec![] })
            }
            Step::Truncate { ino, size_bytes } => {
                let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
                self.change(Mutation::SetAttr { ino, set });
            }
        }
    }

    /// Loads like the node: rejects an invalid page; a valid page can name pieces.
    fn load(
        &mut self,
        dir: Ino,
        page: Option<Box<Page>>,
        keys: Vec<Key>,
        name: Option<&Name>,
        progress: LoadProgress,
    ) {
        let page = match page {
            None => None,
            Some(page) => {
                let (head, pieces) = *page;
                let Ok(head) = page::encode(&head).and_then(|bytes| page::decode(&bytes)) else {
                    return;
                };
                let Some(entries) = entries_of(&head, pieces) else { return };
                for found in found_pieces(dir, &head.pieces, RECORD_PIECES, NOW) {
                    self.tell(found);
                }
                let page = DirectoryPage { entries, ..head.page };
                Some(PageHead { page, pieces: head.pieces, moved: vec![] })
            }
        };
        let mut entries: Vec<Listed> = keys.into_iter().map(listed).collect();
        entries.sort_by(|a, b| a.key().cmp(b.key()));
        entries.dedup_by(|a, b| a.key() == b.key());
        let Some(epoch) = self.partition.backing().load_epoch(dir) else { return };
        let scope = name.map_or(Scope::First, Scope::Name);
        let listing = Listing { dir, entries: &entries, page: page.as_ref(), scope, after: None };
        let namespace = self.partition.namespace();
        let mut draw = namespace.draw_ids(0);
        let Interpreted { entries, hidden, .. } =
            self.partition
                .backing()
                .interpret(namespace, &listing, |_| draw.draw(dir.slot()).expect("an id is left"));
        let progress = if name.is_some() { LoadProgress::Unchanged } else { progress };
        let stamp = Stamp { time: NOW, version: self.partition.next_version() };
        self.tell(BackingCommand::Install {
            dir,
            epoch,
            entries,
            hidden,
            owner: (0, 0),
            progress,
            stamp,
        });
    }

    fn tell(&mut self, told: BackingCommand) {
        self.apply(Command::Backing(told));
    }

    fn change(&mut self, mutation: Mutation) {
        self.sequence += 1;
        let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
        let stamp = Stamp { time: NOW, version: self.partition.next_version() };
        self.apply(Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
    }

    fn apply(&mut self, command: Command) {
        self.partition.apply(LogIndex(self.partition.applied().0 + 1), &command);
    }
}

/// `None` if a piece is missing or invalid.
fn entries_of(head: &PageHead, pieces: Vec<PieceBody>) -> Option<Vec<Installed>> {
    if head.pieces.is_empty() {
        return Some(head.page.entries.clone());
    }
    let piece = |named: &PagePiece| {
        let piece =
            pieces.iter().find(|piece| (piece.dir, piece.id) == (head.page.dir, named.id))?;
        page::decode_piece(&page::encode_piece(piece).ok()?).ok()
    };
    let pieces: Option<Vec<PieceBody>> = head.pieces.iter().map(piece).collect();
    Some(pieces?.into_iter().flat_map(|piece| piece.entries).collect())
}

fn listed(Key { key, object }: Key) -> Listed {
    match object {
        Some((etag, len_bytes)) => Listed::Object { key, etag, len_bytes, modified: NOW },
        None => Listed::Prefix { key: format!("{}/", key.trim_end_matches('/')) },
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let object = |key: &str| Key { key: key.into(), object: Some(("e".into(), 5)) };
    let prefix = |key: &str| Key { key: key.into(), object: None };
    let (file, dir, link, shared) = (Ino(2 << 20), Ino(3 << 20), Ino(4 << 20), Ino(5 << 20));
    let entry = |text: &str, ino, what, links| Installed {
        name: name(text),
        ino,
        what,
        record: Some(InstalledRecord { nlink: 1, links, ..root() }),
    };
    let content = |key: Option<&str>| InstalledKind::Object {
        key: key.map(str::to_owned),
        etag: "e".into(),
        len_bytes: 5,
        modified: NOW,
    };
    let links = vec![(Ino::ROOT, name("m")), (Ino::ROOT, name("n"))];
    let entries = vec![
        entry("a", file, content(None), vec![]),
        entry(
            "d",
            dir,
            InstalledKind::Directory { prefix: Some("old/".into()), page: true },
            vec![],
        ),
        entry(
            "l",
            link,
            InstalledKind::Recorded(Make::Symlink { target: bytes::Bytes::from_static(b"a") }),
            vec![],
        ),
        entry("m", shared, content(None), links.clone()),
        entry("n", shared, content(Some("m")), links),
    ];
    let page = DirectoryPage {
        dir: Ino::ROOT,
        parent: None,
        record: root(),
        hidden: vec!["old".into()],
        entries: entries.clone(),
    };
    let first = Name::new(&[1]).expect("a name");
    let in_pieces = PageHead {
        page: DirectoryPage { entries: vec![], ..page.clone() },
        pieces: vec![
            PagePiece { first, id: 1, entries: 2 },
            PagePiece { first: name("l"), id: 2, entries: 3 },
        ],
        moved: vec![name("n")],
    };
    let piece =
        |id, entries: &[Installed]| PieceBody { dir: Ino::ROOT, id, entries: entries.to_vec() };
    let pieces = vec![piece(1, &entries[..2]), piece(2, &entries[2..])];
    let keys =
        || vec![object("a"), object("m"), object("x"), prefix("d"), prefix("old"), prefix("y")];
    let told = |head: PageHead, pieces| Some(Box::new((head, pieces)));
    let load =
        |page, name, progress| Step::Load { dir: Ino::ROOT, page, keys: keys(), name, progress };
    let histories = [
        vec![
            load(told(page.into(), vec![]), None, LoadProgress::UpTo("a".into())),
            Step::Make { parent: Ino::ROOT, name: name("new"), what: Make::Regular },
            load(None, None, LoadProgress::Complete),
            Step::Revalidate { dir: Ino::ROOT },
            Step::Rename {
                from: Ino::ROOT,
                name: name("a"),
                to: dir,
                new_name: name("b"),
                mode: RenameMode::Replace,
            },
            load(None, None, LoadProgress::Complete),
            Step::Replaced { ino: shared, etag: "f".into(), len_bytes: 9 },
            Step::Unlink { parent: Ino::ROOT, name: name("n") },
            Step::Vanished { parent: Ino::ROOT, name: name("x") },
        ],
        vec![
            load(told(in_pieces.clone(), pieces.clone()), Some(name("n")), LoadProgress::Unchanged),
            load(told(in_pieces, pieces), None, LoadProgress::Complete),
            Step::Truncate { ino: file, size_bytes: 1 },
            Step::RolledBack { ino: file, etag: "e".into(), len_bytes: 5 },
            Step::Forget { dir: Ino::ROOT, inos: vec![file, link] },
            Step::Link { ino: file, parent: Ino::ROOT, name: name("o") },
            Step::Rmdir { parent: Ino::ROOT, name: name("d") },
        ],
    ];
    histories
        .iter()
        .map(|steps| postcard::to_stdvec(steps).expect("steps have an encoding"))
        .collect()
}
