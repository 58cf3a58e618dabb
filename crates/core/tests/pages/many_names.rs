//! As many names as a file can have, in one directory over a bucket. The cost per name must not
//! grow with their number, or this test takes minutes.

use crate::volume::*;
use ebb_core::backing::{Listing, Scope};
use ebb_model::*;

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

/// Situation: a node with only the bucket loads many names of one inode, in pieces. Danger: the
/// page grows with the square of the names. Expectation: it lists all names once, and all of them
/// are loaded.
#[test]
fn a_page_tells_all_names_once() {
    const NAMES: u32 = 10_000;
    const PIECE: usize = 3000;
    let mut volume = Volume::new();
    let ino = volume.make(Ino::ROOT, name(1), Make::Special { kind: FileKind::Fifo, rdev: 0 });
    for number in 2..=NAMES {
        volume.mutate(Mutation::Link { ino, parent: Ino::ROOT, name: name(number) });
    }
    let page = volume
        .partition
        .backing()
        .page(volume.partition.namespace(), Ino::ROOT, None)
        .expect("the root has a page");
    assert_eq!(page.entries.len(), NAMES as usize);
    let links = |entry: &Installed| entry.record.as_ref().map_or(0, |record| record.links.len());
    assert_eq!(
        page.entries.iter().map(links).sum::<usize>(),
        NAMES as usize + (NAMES as usize - 1)
    );

    let page = PageHead::from(page);
    let mut cold = Volume::new();
    let mut after: Option<Name> = None;
    loop {
        let (backing, namespace) = (cold.partition.backing(), cold.partition.namespace());
        let epoch = backing.load_epoch(Ino::ROOT).expect("it is a directory of the bucket");
        let listing = Listing {
            dir: Ino::ROOT,
            entries: &[],
            page: Some(&page),
            scope: Scope::First,
            after: after.as_ref(),
        };
        let mut entries =
            backing.interpret(namespace, &listing, |_| unreachable!("its id is on record")).entries;
        let more = entries.len() > PIECE;
        entries.truncate(PIECE);
        after = entries.last().map(|entry| entry.name.clone());
        let progress = if more { LoadProgress::Unchanged } else { LoadProgress::Complete };
        let stamp = Stamp { time: Time::from_secs(1), version: cold.partition.next_version() };
        let install = BackingCommand::Install {
            dir: Ino::ROOT,
            epoch,
            entries,
            hidden: vec![],
            owner: (0, 0),
            progress,
            stamp,
        };
        assert_eq!(cold.apply(&Command::Backing(install)), None);
        if !more {
            break;
        }
        // The inode must not change before all its names are loaded.
        assert!(!cold.partition.backing().unresolved_links(ino).is_empty());
    }
    let (backing, namespace) = (cold.partition.backing(), cold.partition.namespace());
    assert_eq!(backing.unresolved_links(ino), []);
    assert_eq!(namespace.attr(ino).map(|attr| attr.nlink), Ok(NAMES));
    assert_eq!(namespace.primary_name(ino), Some((Ino::ROOT, name(1))));
    assert!((1..=NAMES).all(|number| {
        namespace.dentry(Ino::ROOT, &name(number)).is_some_and(|dentry| dentry.ino == ino)
    }));
    assert_eq!(cold.partition.check(), Vec::<String>::new());
}
