//! Pages and pieces to which no loaded state refers.

use crate::volume::*;
use ebb_core::backing::{Object, Reserved, page_key, piece_key};
use ebb_core::partition::Remains;
use ebb_model::*;
use std::collections::BTreeMap;

/// Situation: a directory was created by this node, and evicted with its names. Danger: its page
/// counts as unreferenced and is deleted. Expectation: its owner is undecided.
#[test]
fn page_of_an_evicted_directory_is_not_left_over() {
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
        assert_eq!(
            backing.reserved(volume.partition.namespace(), &key, backing.is_loaded()),
            Reserved::Undecided,
            "{key}"
        );
    }
}

/// Situation: a backup contains a directory of another writer without a record, which has got a
/// page in pieces since. Danger: the backup cannot be restored; or the pieces leak, or count as
/// files' objects. Expectation: the page is written again, and the pieces are deleted then.
#[test]
fn a_backup_of_before_the_pieces_is_restored() {
    let mut volume = Volume::new();
    let name = |text: &str| Name::new(text.as_bytes()).expect("it is a name");
    let (dir, file) =
        (Ino::new(IdEpoch(1), Ino::ROOT.slot(), 70), Ino::new(IdEpoch(1), Ino::ROOT.slot(), 71));
    let found = |name, ino, what| Installed { name, ino, what, record: None };
    let (etag, modified) = ("f".to_owned(), Time::from_secs(1));
    let installs = [
        (Ino::ROOT, found(name("d"), dir, InstalledKind::Directory { prefix: None, page: false })),
        (
            dir,
            found(
                name("f"),
                file,
                InstalledKind::Object { key: None, etag: etag.clone(), len_bytes: 1, modified },
            ),
        ),
    ];
    for (dir, entry) in installs {
        let (progress, epoch) = (
            LoadProgress::Complete,
            volume.partition.backing().load_epoch(dir).expect("it is there"),
        );
        let stamp = Stamp { time: Time::from_secs(1), version: volume.partition.next_version() };
        let install = BackingCommand::Install {
            dir,
            epoch,
            entries: vec![entry],
            hidden: vec![],
            owner: (0, 0),
            progress,
            stamp,
        };
        volume.apply(&Command::Backing(install));
    }
    let keys = ["d/f".to_owned(), page_key(dir), piece_key(dir, 5), piece_key(dir, 6)];
    let objects: BTreeMap<String, Object> = keys
        .into_iter()
        .map(|key| (key, Object { etag: etag.clone(), len_bytes: 1, modified }))
        .collect();
    let remains = Remains {
        ids: IdRange::whole(IdEpoch(2)),
        now: Time::from_secs(9),
        objects: &objects,
        moved: &BTreeMap::new(),
        new_slot: &|| Slot(7),
        owner: (0, 0),
    };
    let rebuilt = volume.partition.clone().rebuilt(&remains).expect("it can be restored");
    assert_eq!(rebuilt.others, Vec::<String>::new());
    volume.partition = rebuilt.partition;
    assert!(volume.partition.backing().is_dirty(dir));
    volume.apply(&Command::Backing(BackingCommand::UploadBegun {
        ino: dir,
        key: page_key(dir),
        upload: None,
    }));
    let version = volume.partition.next_version();
    volume.apply(&Command::Backing(BackingCommand::PageWritten {
        dir,
        version,
        etag: "new".into(),
    }));
    let deletes: Vec<String> =
        volume.partition.backing().deletes().map(|(key, _)| key.to_string()).collect();
    assert_eq!(deletes, [piece_key(dir, 5), piece_key(dir, 6)]);
    assert_eq!(volume.partition.check(), Vec::<String>::new());
}
