use crate::volume::*;
use FsError::*;
use RenameMode::*;
use ebb_core::namespace::Change;
use ebb_model::*;

/// The whiteout gets the next id.
fn whiteout(volume: &Volume, from: Ino, keep_target: bool) -> RenameMode {
    Whiteout { keep_target, ino: volume.namespace.next_ino(from.slot()) }
}

/// Every kind over every kind, in every mode; `None` for success.
#[test]
fn the_matrix() {
    const SOURCES: [&str; 5] = ["file", "link", "fifo", "empty", "full"];
    let refusal = |source: &str, target: Option<&str>, mode| match (mode, target) {
        (Exchange, None) => Some(NotFound),
        (KeepTarget | Whiteout { keep_target: true, .. }, Some(_)) => Some(Exists),
        (Replace | Whiteout { .. }, Some(target)) => {
            match (["empty", "full"].contains(&source), target) {
                (true, "empty") => None,
                (true, "full") => Some(NotEmpty),
                (true, _) => Some(NotDirectory),
                (false, "empty" | "full") => Some(IsDirectory),
                (false, _) => None,
            }
        }
        _ => None,
    };
    for source in SOURCES {
        for target in SOURCES.iter().copied().map(Some).chain([None]) {
            for mode in [
                Replace,
                KeepTarget,
                Exchange,
                Whiteout { keep_target: false, ino: None },
                Whiteout { keep_target: true, ino: None },
            ] {
                for same_parent in [true, false] {
                    let mut volume = Volume::new();
                    let from = volume.dir(Ino::ROOT, "from");
                    let to = if same_parent { from } else { volume.dir(Ino::ROOT, "to") };
                    let moved = populate(&mut volume, from, "source", source);
                    let replaced = target.map(|kind| populate(&mut volume, to, "target", kind));
                    let refusal = refusal(source, target, mode);
                    let mode = match mode {
                        Whiteout { keep_target, .. } => whiteout(&volume, from, keep_target),
                        mode => mode,
                    };
                    let case =
                        format!("{source} over {target:?}, {mode:?}, same parent: {same_parent}");
                    let outcome = volume.rename((from, "source"), (to, "target"), mode);
                    assert_eq!(outcome.err(), refusal, "{case}");
                    if refusal.is_some() {
                        assert_eq!(
                            volume.namespace.dentry(from, &name("source")).map(|dentry| dentry.ino),
                            Some(moved),
                            "{case}"
                        );
                        continue;
                    }
                    assert_eq!(
                        volume.namespace.dentry(to, &name("target")).map(|dentry| dentry.ino),
                        Some(moved),
                        "{case}"
                    );
                    let left =
                        volume.namespace.dentry(from, &name("source")).map(|dentry| dentry.ino);
                    let expected = match mode {
                        Exchange => replaced,
                        Whiteout { ino, .. } => ino,
                        Replace | KeepTarget => None,
                    };
                    assert_eq!(left, expected, "{case}");
                    for changed in [from, to] {
                        assert_eq!(
                            (volume.attr(changed).mtime, volume.attr(changed).ctime),
                            (volume.now(), volume.now()),
                            "{case}"
                        );
                    }
                    assert_eq!(volume.attr(moved).ctime, volume.now(), "{case}");
                    assert_ne!(volume.attr(moved).mtime, volume.now(), "{case}");
                }
            }
        }
    }
}

fn populate(volume: &mut Volume, parent: Ino, name: &str, kind: &str) -> Ino {
    match kind {
        "file" => volume.file(parent, name),
        "link" => volume.symlink(parent, name),
        "fifo" => volume.fifo(parent, name),
        _ => {
            let dir = volume.dir(parent, name);
            if kind == "full" {
                volume.file(dir, "inside");
            }
            dir
        }
    }
}

/// A directory moves neither below itself nor over a directory above it.
#[test]
fn a_directory_does_not_leave_the_tree() {
    let mut volume = Volume::new();
    let a = volume.dir(Ino::ROOT, "a");
    let b = volume.dir(a, "b");
    let c = volume.dir(b, "c");
    volume.file(b, "f");
    for to in [a, b, c] {
        assert_eq!(volume.rename((Ino::ROOT, "a"), (to, "x"), Replace), Err(Invalid));
    }
    assert_eq!(volume.rename((b, "c"), (Ino::ROOT, "a"), Replace), Err(NotEmpty));
    assert_eq!(volume.rename((b, "f"), (Ino::ROOT, "a"), Replace), Err(NotEmpty));
    assert_eq!(volume.rename((b, "c"), (Ino::ROOT, "a"), Exchange), Err(Invalid));
    assert_eq!(volume.rename((Ino::ROOT, "a"), (b, "c"), Exchange), Err(Invalid));
    assert_eq!(volume.rename((a, "b"), (a, "b"), Replace), Ok(vec![]));
}

/// A rename between two names of one inode does nothing and removes neither.
#[test]
fn names_of_one_inode_stay() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    volume.link(file, Ino::ROOT, "g").unwrap();
    let before = volume.attr(file);
    for mode in [Replace, Exchange] {
        assert_eq!(volume.rename((Ino::ROOT, "f"), (Ino::ROOT, "g"), mode), Ok(vec![]));
    }
    assert_eq!(volume.rename((Ino::ROOT, "f"), (Ino::ROOT, "g"), KeepTarget), Err(Exists));
    assert_eq!(volume.attr(file), before);
}

/// Link counts of directories follow `..`.
#[test]
fn moved_directories_count_in_their_new_parent() {
    let mut volume = Volume::new();
    let (a, b) = (volume.dir(Ino::ROOT, "a"), volume.dir(Ino::ROOT, "b"));
    let dir = volume.dir(a, "d");
    volume.rename((a, "d"), (b, "d"), Replace).unwrap();
    assert_eq!((volume.attr(a).nlink, volume.attr(b).nlink), (2, 3));
    assert_eq!(volume.namespace.parent_of(dir), Some(b));
    volume.file(a, "f");
    volume.rename((b, "d"), (a, "f"), Exchange).unwrap();
    assert_eq!((volume.attr(a).nlink, volume.attr(b).nlink), (3, 2));
    let other = volume.dir(a, "e");
    volume.rename((a, "e"), (a, "f"), Replace).unwrap();
    assert_eq!(volume.attr(a).nlink, 3);
    assert_eq!(volume.path(other).unwrap(), "/a/f");
    assert_eq!(volume.namespace.attr(dir), Err(Stale));
}

/// Order of the changes: the target is removed, then the old name, then the new one is added. A
/// renamed primary name stays primary.
#[test]
fn changes_come_in_order() {
    let mut volume = Volume::new();
    let (source, target) = (volume.file(Ino::ROOT, "s"), volume.file(Ino::ROOT, "t"));
    volume.link(source, Ino::ROOT, "other").unwrap();
    let changes = volume.rename((Ino::ROOT, "s"), (Ino::ROOT, "t"), Replace).unwrap();
    let [
        Change::Unlinked { ino: unlinked, primary: true, .. },
        Change::Gone { ino: gone, .. },
        Change::Unlinked { ino: from, primary: true, .. },
        Change::Linked { ino: to, primary: true, .. },
    ] = changes[..]
    else {
        panic!("{changes:?}");
    };
    assert_eq!((unlinked, gone, from, to), (target, target, source, source));
    assert_eq!(volume.path(source).unwrap(), "/t");
}

/// A replaced open file is removed with its last close; so is a replaced directory.
#[test]
fn rename_over_open_target_keeps_it_until_close() {
    let mut volume = Volume::new();
    let (source, target) = (volume.dir(Ino::ROOT, "s"), volume.dir(Ino::ROOT, "t"));
    let holders = vec![SESSION];
    let mutation = Mutation::Rename {
        from: Ino::ROOT,
        name: name("s"),
        to: Ino::ROOT,
        new_name: name("t"),
        mode: Replace,
        holders,
    };
    volume.run(&Caller::ROOT, mutation).unwrap();
    assert_eq!((volume.attr(target).nlink, volume.namespace.parent_of(target)), (0, None));
    assert_eq!(volume.attr(Ino::ROOT).nlink, 3);
    assert_eq!(volume.rename((Ino::ROOT, "t"), (target, "x"), Replace), Err(NotFound));
    let mut changes = Vec::new();
    volume.namespace.release_all(SESSION, &mut changes);
    assert!(matches!(&changes[..], [Change::Gone { ino, .. }] if *ino == target), "{changes:?}");
    assert_eq!(volume.path(source).unwrap(), "/t");
}

/// A directory that gets another parent must be writable, since its `..` changes.
#[test]
fn a_directory_that_is_not_writable_keeps_its_parent() {
    let mut volume = Volume::new();
    let (a, b) = (volume.dir(Ino::ROOT, "a"), volume.dir(Ino::ROOT, "b"));
    volume.chown(a, &ALICE);
    volume.chown(b, &ALICE);
    let dir = volume.make(&BOB, Ino::ROOT, "d", 0o755, Make::Directory).unwrap();
    volume.rename((Ino::ROOT, "d"), (a, "d"), Replace).unwrap();
    assert_eq!(volume.rename_by(&ALICE, (a, "d"), (b, "d"), Replace), Err(AccessDenied));
    assert!(volume.rename_by(&ALICE, (a, "d"), (a, "e"), Replace).is_ok());
    volume.make(&ALICE, b, "f", 0o644, Make::Regular).unwrap();
    assert_eq!(volume.rename_by(&ALICE, (b, "f"), (a, "e"), Exchange), Err(AccessDenied));
    volume.chmod(dir, 0o777);
    assert!(volume.rename_by(&ALICE, (b, "f"), (a, "e"), Exchange).is_ok());
}

/// The whiteout is a device 0:0 without permissions, owned by the caller, at the old position in
/// the listing.
#[test]
fn a_whiteout_stands_where_the_name_was() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "dir");
    volume.chown(dir, &ALICE);
    let [a, b] =
        ["a", "b"].map(|name| volume.make(&ALICE, dir, name, 0o644, Make::Regular).unwrap());
    let mode = whiteout(&volume, dir, false);
    let left = volume.namespace.next_ino(dir.slot()).unwrap();
    let changes =
        volume.rename_by(&ALICE, (dir, "a"), (dir, "moved"), mode).expect("everybody may");
    assert_eq!(volume.names(dir), [("a".into(), left), ("b".into(), b), ("moved".into(), a)]);
    let attr = volume.attr(left);
    assert_eq!((attr.kind, attr.rdev, attr.mode, attr.nlink), (FileKind::CharDevice, 0, 0, 1));
    assert_eq!((attr.uid, attr.gid, attr.mtime), (ALICE.uid, ALICE.gid, volume.now()));
    let made = |change: &&Change| matches!(change, Change::Linked { ino, primary: true, .. } if *ino == left);
    assert_eq!(changes.iter().filter(made).count(), 1);
    // A rename over another name of the same inode does nothing and leaves no whiteout.
    volume.link(a, dir, "other").unwrap();
    let mode = whiteout(&volume, dir, false);
    assert_eq!(volume.rename((dir, "moved"), (dir, "other"), mode), Ok(vec![]));
    assert_eq!(volume.names(dir).len(), 4);
}

#[test]
fn a_whiteout_needs_an_id_of_its_own() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "a");
    for (ino, refusal) in
        [(None, Invalid), (Some(file), Exists), (Some(Ino::new(IdEpoch(9), Slot(0), 1)), Invalid)]
    {
        let mode = Whiteout { keep_target: false, ino };
        assert_eq!(volume.rename((Ino::ROOT, "a"), (Ino::ROOT, "b"), mode), Err(refusal));
    }
    assert_eq!(volume.names(Ino::ROOT), [("a".into(), file)]);
}
