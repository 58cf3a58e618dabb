use crate::volume::*;
use FsError::*;
use bytes::Bytes;
use ebb_core::namespace::{Change, Namespace, Operation, QUOTA, TRASHED, trash_name, trashed_name};
use ebb_model::*;

const DAY: u64 = 86_400;

impl Volume {
    /// Like a node's request with retention at `parent`.
    fn discard(&mut self, mutation: Mutation) -> Result<Vec<Change>, FsError> {
        let trash = TrashTarget {
            top: Ino::ROOT,
            ino: self.namespace.next_ino(Ino::ROOT.slot()).unwrap(),
            keep_secs: DAY,
        };
        self.discard_to(mutation, trash)
    }

    fn discard_to(
        &mut self,
        mutation: Mutation,
        trash: TrashTarget,
    ) -> Result<Vec<Change>, FsError> {
        let stamp = self.stamp();
        let mut changes = Vec::new();
        let done = self.namespace.mutate(
            &mutation,
            &mut Operation {
                caller: &ALICE_ALL,
                stamp,
                trash: Some(&trash),
                changes: &mut changes,
            },
        );
        assert_eq!(self.namespace.check(), Vec::<String>::new());
        done.map(|_| changes)
    }

    fn discard_file(&mut self, parent: Ino, child: &str) -> Result<Vec<Change>, FsError> {
        self.discard(Mutation::Unlink { parent, name: name(child), holders: vec![SESSION] })
    }

    fn discard_dir(&mut self, parent: Ino, child: &str) -> Result<Vec<Change>, FsError> {
        self.discard(Mutation::Rmdir { parent, name: name(child), holders: vec![SESSION] })
    }

    fn restored(&mut self, ino: Ino, to: Ino, child: &str) -> Result<(), FsError> {
        let stamp = self.stamp();
        let command = |state: &mut Namespace| {
            let mut changes = Vec::new();
            state.restore(ino, to, &name(child), stamp, &mut changes);
            assert_eq!(state.check(), Vec::<String>::new());
        };
        self.namespace.may_restore(ino, to, &name(child)).map(|()| command(&mut self.namespace))
    }

    fn purged(&mut self, ino: Ino, holders: &[SessionId]) -> bool {
        let stamp = self.stamp();
        let done = self.namespace.purge(ino, holders, stamp, &mut Vec::new());
        assert_eq!(self.namespace.check(), Vec::<String>::new());
        done
    }

    fn kept(&self) -> Vec<TrashEntry> {
        self.namespace.trashed(Ino::ROOT, Cookie::START).map(|(_, entry)| entry).collect()
    }
}

/// Root's rights with Alice's user id.
const ALICE_ALL: Caller = Caller { uid: 1000, gid: 1000, groups: Vec::new(), checked: true };

/// After the loss of its last name the inode is in the trash with path, time and user. The trash is
/// hidden, and other clients see an ordinary removal.
#[test]
fn trash_keeps_inodes_that_lose_their_last_name() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let file = volume.file(dir, "f");
    volume.link(file, Ino::ROOT, "g").unwrap();
    volume.discard_file(dir, "f").unwrap();
    assert_eq!((volume.kept(), volume.attr(file).nlink), (vec![], 1), "it has another name");
    volume.file(dir, "h");
    let root = volume.attr(Ino::ROOT);
    volume.discard_file(dir, "h").unwrap();
    assert_eq!(volume.attr(Ino::ROOT), root, "that there is a trash now is not to be seen");
    let h = volume.kept()[0].ino;
    assert!(volume.purged(h, &[]));

    let changes = volume.discard_file(Ino::ROOT, "g").unwrap();
    let trash = volume.namespace.trash_of(Ino::ROOT).unwrap();
    assert!(
        matches!(&changes[0], Change::Unlinked { parent: Ino::ROOT, ino, primary: true, .. } if *ino == file),
        "{changes:?}"
    );
    assert!(
        matches!(&changes[1], Change::Linked { parent, ino, primary: true, .. } if (*parent, *ino) == (trash, file)),
        "{changes:?}"
    );
    let trashed = Trashed {
        path: "g".into(),
        at: volume.now(),
        until_secs: volume.now().secs + DAY as i64,
        uid: 1000,
    };
    assert_eq!(
        volume.kept(),
        [TrashEntry { ino: file, kind: FileKind::Regular, size_bytes: 0, trashed }]
    );
    assert_eq!(volume.names(Ino::ROOT), [("d".to_owned(), dir)]);
    assert_eq!((volume.attr(trash).mode, volume.attr(trash).uid), (0o700, 0));
    assert_eq!(volume.namespace.list_xattr(file), Ok(vec![]));
    assert_eq!(volume.namespace.get_xattr(file, TRASHED), Err(NotSupported));
    assert_eq!(
        volume.link(file, dir, "again").unwrap_err(),
        NotFound,
        "an open trashed file gets no name"
    );
    assert_eq!(volume.namespace.holders(file).count(), 0);

    // The trash is created once.
    for child in ["l", "p"] {
        if child == "l" {
            volume.symlink(dir, child)
        } else {
            volume.fifo(dir, child)
        };
        volume.discard_file(dir, child).unwrap();
    }
    let paths: Vec<Bytes> = volume.kept().into_iter().map(|entry| entry.trashed.path).collect();
    assert_eq!(paths, ["g", "d/l", "d/p"]);
    assert_eq!(volume.namespace.trash_of(Ino::ROOT), Some(trash));
}

/// Situation: the trash is between two names in the stream of the root, which is read in pages of
/// one entry. Danger: a page holds nothing but the hidden trash, and the reader takes it for the
/// end. Expectation: each page has an entry, and the last one says that it is the last.
#[test]
fn trash_leaves_no_gap_in_a_stream() {
    let mut volume = Volume::new();
    volume.file(Ino::ROOT, "gone");
    volume.file(Ino::ROOT, "before");
    volume.discard_file(Ino::ROOT, "gone").unwrap();
    volume.file(Ino::ROOT, "behind");
    let page = |after| {
        let (entries, end) = volume.namespace.read_dir(Ino::ROOT, after, 1).unwrap();
        let [(entry, _)] = &entries[..] else { panic!("{entries:?}") };
        (entry.name.to_string(), end, entry.cookie)
    };
    let (first, end, cookie) = page(Cookie::START);
    assert_eq!((first.as_str(), end), ("before", false));
    let (last, end, _) = page(cookie);
    assert_eq!((last.as_str(), end), ("behind", true));
}

/// A directory is kept empty, gets no names in the trash, and is restored with its attributes.
#[test]
fn a_directory_is_kept_empty() {
    let mut volume = Volume::new();
    let dir = volume.make(&BOB, Ino::ROOT, "d", 0o750, Make::Directory).unwrap();
    let file = volume.file(dir, "f");
    assert_eq!(volume.discard_dir(Ino::ROOT, "d").unwrap_err(), NotEmpty);
    volume.discard_file(dir, "f").unwrap();
    volume.discard_dir(Ino::ROOT, "d").unwrap();
    assert_eq!(volume.make(&Caller::ROOT, dir, "new", 0o644, Make::Regular).unwrap_err(), NotFound);
    assert_eq!(volume.names(dir), []);
    assert_eq!(volume.restored(file, dir, "f"), Err(NotFound));
    assert_eq!(volume.restored(dir, Ino::ROOT, "d"), Ok(()));
    assert_eq!(volume.restored(file, dir, "f"), Ok(()));
    assert_eq!((volume.attr(dir).mode, volume.attr(dir).uid), (0o750, BOB.uid));
    assert_eq!(volume.path(file).as_deref(), Some("/d/f"));
    assert_eq!(volume.kept(), []);
    volume.file(dir, "new");
}

/// The target of a rename is kept; a moved or exchanged inode is not removed at all.
#[test]
fn trash_keeps_rename_targets() {
    let mut volume = Volume::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|child| volume.file(Ino::ROOT, child));
    let (empty, full) = (volume.dir(Ino::ROOT, "empty"), volume.dir(Ino::ROOT, "full"));
    let rename = |from: &str, to: &str, mode| {
        let holders = vec![SESSION];
        Mutation::Rename {
            from: Ino::ROOT,
            name: name(from),
            to: Ino::ROOT,
            new_name: name(to),
            mode,
            holders,
        }
    };
    volume.discard(rename("a", "b", RenameMode::Replace)).unwrap();
    volume.discard(rename("b", "c", RenameMode::Exchange)).unwrap();
    volume.discard(rename("d", "e", RenameMode::KeepTarget)).unwrap();
    volume.discard(rename("full", "empty", RenameMode::Replace)).unwrap();
    let kept: Vec<(Ino, Bytes)> =
        volume.kept().into_iter().map(|entry| (entry.ino, entry.trashed.path)).collect();
    assert_eq!(kept, [(b, "b".into()), (empty, "empty".into())]);
    let names = volume.names(Ino::ROOT);
    let expected =
        [("c", a), ("b", c), ("e", d), ("empty", full)].map(|(child, ino)| (child.to_owned(), ino));
    assert!(names.len() == 4 && expected.iter().all(|entry| names.contains(entry)), "{names:?}");
}

/// A restore replaces nothing, and obeys permissions and quotas.
#[test]
fn restoring_takes_nothing_away() {
    let mut volume = Volume::new();
    let (dir, file) = (volume.dir(Ino::ROOT, "d"), volume.file(Ino::ROOT, "f"));
    let other = volume.file(dir, "there");
    assert_eq!(volume.restored(file, dir, "f"), Err(NotFound), "it is not in the trash");
    volume.discard_file(Ino::ROOT, "f").unwrap();
    let trash = volume.namespace.trash_of(Ino::ROOT).unwrap();
    assert_eq!(volume.restored(file, dir, "there"), Err(Exists));
    assert_eq!(volume.restored(file, other, "f"), Err(NotDirectory));
    assert_eq!(volume.restored(file, trash, "f"), Err(AccessDenied));
    assert_eq!(volume.restored(file, dir, ".ebb.trash"), Err(AccessDenied));
    assert_eq!(volume.restored(file, dir, "elsewhere"), Ok(()));
    assert_eq!(volume.path(file).as_deref(), Some("/d/elsewhere"));
    assert_eq!(volume.restored(file, dir, "twice"), Err(NotFound));
}

/// A purge acts like an unlink: at once, or with the last holder.
#[test]
fn purged_inodes_are_gone() {
    let mut volume = Volume::new();
    let [a, b] = ["a", "b"].map(|child| volume.file(Ino::ROOT, child));
    assert!(!volume.purged(a, &[]), "it is not in the trash");
    volume.discard_file(Ino::ROOT, "a").unwrap();
    volume.discard_file(Ino::ROOT, "b").unwrap();
    assert!(volume.purged(a, &[]) && volume.purged(b, &[SESSION]));
    assert_eq!((volume.namespace.inode(a), volume.attr(b).nlink), (None, 0));
    assert!(!volume.purged(b, &[]));
    volume.namespace.release(SESSION, b, &mut Vec::new());
    assert_eq!((volume.namespace.inode(b), volume.kept()), (None, vec![]));
}

/// The name of the trash is reserved in every directory, whether a trash exists or not.
#[test]
fn the_name_of_the_trash_is_reserved() {
    let mut volume = Volume::new();
    let (dir, file) = (volume.dir(Ino::ROOT, "d"), volume.file(Ino::ROOT, "f"));
    for parent in [Ino::ROOT, dir] {
        let make = volume.make(&Caller::ROOT, parent, ".ebb.trash", 0o755, Make::Directory);
        assert_eq!(make.unwrap_err(), AccessDenied);
        assert_eq!(volume.link(file, parent, ".ebb.trash").unwrap_err(), AccessDenied);
        assert_eq!(
            volume
                .rename((Ino::ROOT, "f"), (parent, ".ebb.trash"), RenameMode::Replace)
                .unwrap_err(),
            AccessDenied
        );
    }
    volume.discard_file(Ino::ROOT, "f").unwrap();
    assert_eq!(
        volume.rmdir(&Caller::ROOT, Ino::ROOT, ".ebb.trash", &[]).unwrap_err(),
        AccessDenied
    );
    assert_eq!(
        volume.rename((Ino::ROOT, ".ebb.trash"), (dir, "mine"), RenameMode::Replace).unwrap_err(),
        AccessDenied
    );
}

/// If a file is in the way of a trash, or its id is in use, the removal is refused: nothing is lost
/// by accident.
#[test]
fn without_a_place_nothing_is_removed() {
    let mut volume = Volume::new();
    let (file, other) = (volume.file(Ino::ROOT, "f"), volume.file(Ino::ROOT, "g"));
    let unlink = || Mutation::Unlink { parent: Ino::ROOT, name: name("f"), holders: vec![] };
    for (place, refusal) in [
        ((Ino::ROOT, other), Invalid),
        ((file, Ino(77)), NotDirectory),
        ((Ino(99), Ino(77)), Stale),
    ] {
        let trash = TrashTarget { top: place.0, ino: place.1, keep_secs: DAY };
        assert_eq!(volume.discard_to(unlink(), trash).unwrap_err(), refusal);
    }
    let what = InstalledKind::Object {
        key: None,
        etag: "e".into(),
        len_bytes: 1,
        modified: Time::default(),
    };
    let found = Installed {
        name: trash_name(),
        ino: volume.namespace.next_ino(Ino::ROOT.slot()).unwrap(),
        what,
        record: None,
    };
    let stamp = volume.stamp();
    assert!(volume.namespace.install(Ino::ROOT, &found, (0, 0), stamp));
    assert_eq!(volume.discard(unlink()).unwrap_err(), Exists);
    assert_eq!(volume.names(Ino::ROOT).len(), 2);
}

/// The nearest directory with the attribute decides, and only directories can have it.
#[test]
fn the_nearest_directory_says_for_how_long() {
    let mut volume = Volume::new();
    let outer = volume.dir(Ino::ROOT, "outer");
    let inner = volume.dir(outer, "inner");
    let deep = volume.dir(inner, "deep");
    let file = volume.file(deep, "f");
    let say = |volume: &mut Volume, ino, value: &'static [u8]| {
        let mutation = Mutation::SetXattr {
            ino,
            name: Bytes::from_static(KEEP),
            value: Bytes::from_static(value),
            mode: XattrMode::Set,
        };
        volume.run(&Caller::ROOT, mutation).map(drop)
    };
    assert_eq!(volume.namespace.keep_of(deep), None);
    say(&mut volume, outer, b"3600").unwrap();
    assert_eq!(volume.namespace.keep_of(deep), Some((outer, 3600)));
    assert_eq!(volume.namespace.keep_of(Ino::ROOT), None);
    say(&mut volume, inner, b"0").unwrap();
    assert_eq!(volume.namespace.keep_of(deep), None);
    say(&mut volume, deep, b"60").unwrap();
    assert_eq!(volume.namespace.keep_of(deep), Some((deep, 60)));
    assert_eq!(say(&mut volume, deep, b"7d"), Err(Invalid));
    assert_eq!(say(&mut volume, file, b"60"), Err(Invalid));
}

/// The trash counts at its own location: a removed inode leaves its former quota and returns only
/// if there is space. A quota ends with its directory; its orphans count in the next root above.
#[test]
fn quotas_count_where_things_are() {
    let mut volume = Volume::new();
    let outer = volume.dir(Ino::ROOT, "q");
    let inner = volume.dir(outer, "in");
    let limit = |volume: &mut Volume, dir, bytes, inodes| {
        let stamp = volume.stamp();
        volume
            .namespace
            .set_quota(dir, Some(QuotaLimits { bytes, inodes }), stamp, &mut Vec::new())
            .unwrap();
    };
    limit(&mut volume, outer, Some(100), Some(3));
    limit(&mut volume, inner, Some(100), None);
    let write = |volume: &mut Volume, ino, len_bytes| {
        volume
            .run(&Caller::ROOT, Mutation::Write { ino, offset: 0, len_bytes, drop_set_id: false })
            .map(drop)
    };
    let (file, open) = (volume.file(inner, "f"), volume.file(inner, "open"));
    write(&mut volume, file, 80).unwrap();
    write(&mut volume, open, 10).unwrap();
    let used = |volume: &Volume, root| {
        volume.namespace.quota(root).map(|(_, used)| (used.bytes, used.inodes))
    };
    assert_eq!((used(&volume, outer), used(&volume, inner)), (Some((90, 3)), Some((90, 2))));
    volume.unlink(&Caller::ROOT, inner, "open", &[SESSION]).unwrap();
    volume.discard_file(inner, "f").unwrap();
    assert_eq!((used(&volume, outer), used(&volume, inner)), (Some((10, 2)), Some((10, 1))));
    volume.discard_dir(outer, "in").unwrap();
    assert_eq!(
        (used(&volume, outer), used(&volume, inner)),
        (Some((10, 1)), None),
        "an orphan counts in the root above"
    );
    assert!(!volume.namespace.inode(inner).unwrap().xattrs.contains_key(QUOTA));
    assert_eq!(
        volume.namespace.usage(),
        Usage { bytes: 90, inodes: 5 },
        "the volume has all of it, and the trash"
    );

    let others = volume.file(outer, "others");
    write(&mut volume, others, 15).unwrap();
    assert_eq!(volume.restored(file, outer, "f"), Err(QuotaExceeded));
    write(&mut volume, file, 75).unwrap();
    assert_eq!(volume.restored(file, outer, "f"), Err(QuotaExceeded), "it is as long as it was");
    volume
        .set(&Caller::ROOT, file, SetAttr { size_bytes: Some(75), ..SetAttr::default() })
        .unwrap();
    assert_eq!(volume.restored(file, outer, "f"), Ok(()));
    assert_eq!(used(&volume, outer), Some((100, 3)));
    assert_eq!(
        volume.restored(inner, outer, "in"),
        Err(QuotaExceeded),
        "there is room for no more inodes"
    );
}

/// Of the entries of a page only those in the trash keep the attribute.
#[test]
fn the_trash_comes_back_from_the_bucket() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    volume.discard_file(Ino::ROOT, "f").unwrap();
    let (kept, value) =
        (volume.kept(), volume.namespace.inode(file).unwrap().xattrs[TRASHED].clone());
    let record = InstalledRecord {
        xattrs: vec![(Bytes::from_static(TRASHED), value)],
        nlink: 1,
        ..root_record()
    };
    let stamp = volume.stamp();

    let mut cold = Volume {
        namespace: Namespace::new(IdRange::whole(IdEpoch(2)), root_record()),
        clock: volume.clock,
    };
    let install = |cold: &mut Volume, parent, child: Name, ino, what| {
        let found = Installed { name: child, ino, what, record: Some(record.clone()) };
        assert!(cold.namespace.install(parent, &found, (0, 0), stamp));
        assert_eq!(cold.namespace.check(), Vec::<String>::new());
    };
    let trash = volume.namespace.trash_of(Ino::ROOT).unwrap();
    let object = || InstalledKind::Object {
        key: None,
        etag: "e".into(),
        len_bytes: 0,
        modified: Time::default(),
    };
    install(
        &mut cold,
        Ino::ROOT,
        trash_name(),
        trash,
        InstalledKind::Directory { prefix: None, page: true },
    );
    install(&mut cold, trash, trashed_name(file), file, object());
    assert_eq!(cold.kept(), kept);
    let other = cold.namespace.next_ino(Ino::ROOT.slot()).unwrap();
    install(&mut cold, Ino::ROOT, name("elsewhere"), other, object());
    assert_eq!(cold.namespace.trashed_inode(other), None);
}

/// An inode with a path longer than PATH_MAX is not kept: no request could name it.
#[test]
fn trash_does_not_keep_paths_beyond_path_max() {
    let mut volume = Volume::new();
    let mut dir = Ino::ROOT;
    for _ in 0..16 {
        dir = volume.dir(dir, &"d".repeat(255));
    }
    let file = volume.file(dir, "f");
    volume.discard_file(dir, "f").unwrap();
    assert_eq!(volume.namespace.holders(file).count(), 1, "it is open and has no name");
    assert_eq!(volume.kept(), []);
}
