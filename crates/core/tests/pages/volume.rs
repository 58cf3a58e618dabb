use ebb_core::backing::{
    Drafted, Listed, Listing, PageChanges, PageDraft, Scope, found_pieces, page_key,
};
use ebb_core::partition::Partition;
use ebb_model::*;

const SESSION: SessionId = SessionId(1);

pub struct Volume {
    pub partition: Partition,
    pub sequence: u64,
}

impl Volume {
    pub fn new() -> Volume {
        let time = Time::from_secs(1);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let root = InstalledRecord {
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            atime,
            mtime,
            ctime,
            btime,
            xattrs: vec![],
            links: vec![],
        };
        let mut volume = Volume {
            partition: Partition::new(IdRange::whole(IdEpoch(1)), root, true),
            sequence: 0,
        };
        volume.apply(&Command::SessionOpen {
            session: SESSION,
            client: "test".into(),
            replaces: None,
        });
        volume
    }

    pub fn apply(&mut self, command: &Command) -> Option<Result<Mutated, RpcError>> {
        let next = LogIndex(self.partition.applied().0 + 1);
        self.partition.apply(next, command).answer
    }

    pub fn mutate(&mut self, mutation: Mutation) -> Mutated {
        self.sequence += 1;
        let tx = TxId { session: SESSION, slot: 0, sequence: self.sequence };
        let stamp = Stamp {
            time: Time::from_secs(self.sequence as i64),
            version: self.partition.next_version(),
        };
        let command = Command::Client { tx, caller: Caller::ROOT, stamp, mutation };
        self.apply(&command).expect("a mutation is answered").expect("nothing is wrong with it")
    }

    pub fn make(&mut self, parent: Ino, name: Name, what: Make) -> Ino {
        let ino = self.partition.namespace().next_ino(parent.slot()).unwrap();
        self.mutate(Mutation::Make { parent, name, ino, mode: 0o755, what });
        ino
    }

    /// The page of the root was written, in pieces.
    pub fn pieces_written(&mut self, version: Version, etag: &str, parts: &PageChanges) {
        let (dir, etag) = (Ino::ROOT, etag.to_owned());
        for command in parts
            .clone()
            .replaced(dir, 1024)
            .into_iter()
            .chain([BackingCommand::PiecesWritten { dir, version, etag }])
        {
            self.apply(&Command::Backing(command));
        }
    }

    pub fn pieces_found(&mut self, head: &PageHead, most: usize) {
        for found in found_pieces(Ino::ROOT, &head.pieces, most, Time::from_secs(1)) {
            self.apply(&Command::Backing(found));
        }
    }

    /// Installs these entries of a page in pieces, as listed in this epoch.
    pub fn install(
        &mut self,
        head: &PageHead,
        objects: &[Listed],
        entries: Vec<Installed>,
        epoch: u64,
        progress: LoadProgress,
    ) -> Vec<Ino> {
        let page =
            PageHead { page: DirectoryPage { entries, ..head.page.clone() }, ..head.clone() };
        let (dir, scope) = (Ino::ROOT, Scope::First);
        let listing = Listing { dir, entries: objects, page: Some(&page), scope, after: None };
        let (backing, namespace) = (self.partition.backing(), self.partition.namespace());
        let entries =
            backing.interpret(namespace, &listing, |_| unreachable!("its id is on record")).entries;
        let inos = entries.iter().map(|entry| entry.ino).collect();
        let stamp = Stamp { time: Time::from_secs(1), version: self.partition.next_version() };
        let install = BackingCommand::Install {
            dir,
            epoch,
            entries,
            hidden: vec![],
            owner: (0, 0),
            progress,
            stamp,
        };
        self.apply(&Command::Backing(install));
        inos
    }

    /// Creates a name, and aborts the write of its page after a piece was begun.
    pub fn break_off(&mut self, piece: u64) {
        self.make(
            Ino::ROOT,
            Name::new(b"new").expect("it is a name"),
            Make::Special { kind: FileKind::Fifo, rdev: 0 },
        );
        let (ino, dir) = (Ino::ROOT, Ino::ROOT);
        let begun = BackingCommand::UploadBegun { ino, key: page_key(dir), upload: None };
        for command in [
            begun,
            BackingCommand::PiecesBegun { dir, ids: vec![piece] },
            BackingCommand::UploadAborted { ino },
        ] {
            self.apply(&Command::Backing(command));
        }
    }

    pub fn epoch(&self) -> u64 {
        self.partition.backing().load_epoch(Ino::ROOT).expect("it is a directory of the bucket")
    }

    pub fn draft(&self, piece_entries: usize) -> PageDraft {
        self.partition
            .backing()
            .draft_page(self.partition.namespace(), Ino::ROOT, piece_entries)
            .expect("the root has a page")
    }
}

pub fn name(number: u32) -> Name {
    Name::new(format!("name-{number}").as_bytes()).expect("a good name")
}

/// Builds the page of the root a few names at a time, and records it as written.
pub fn write_page(
    volume: &mut Volume,
    piece_entries: usize,
) -> (PageHead, Vec<Vec<Installed>>, PageChanges) {
    let begun =
        BackingCommand::UploadBegun { ino: Ino::ROOT, key: page_key(Ino::ROOT), upload: None };
    volume.apply(&Command::Backing(begun));
    let (backing, namespace) = (volume.partition.backing(), volume.partition.namespace());
    let mut draft =
        backing.draft_page(namespace, Ino::ROOT, piece_entries).expect("the root has a page");
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
    let (dir, version, etag) =
        (Ino::ROOT, volume.partition.next_version(), volume.sequence.to_string());
    match head.pieces.is_empty() {
        true => drop(volume.apply(&Command::Backing(BackingCommand::PageWritten {
            dir,
            version,
            etag,
        }))),
        false => volume.pieces_written(version, &etag, &parts),
    }
    assert_eq!(volume.partition.check(), Vec::<String>::new());
    (head, written, parts)
}
