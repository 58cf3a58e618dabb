use crate::volume::*;
use ebb_core::namespace::Change;
use ebb_model::*;

/// Last name, no holder: the inode is removed with it.
#[test]
fn the_last_name_takes_the_inode_along() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let changes = volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[]).unwrap();
    let [Change::Unlinked { primary: true, .. }, Change::Gone { ino, attr: Attr { nlink: 0, .. } }] =
        &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert_eq!(*ino, file);
    assert_eq!(volume.namespace.attr(file), Err(FsError::Stale));
}

/// When the first of two names is removed, the second one determines the object's key.
#[test]
fn the_next_name_becomes_primary() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    volume.link(file, Ino::ROOT, "g").unwrap();
    let changes = volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[]).unwrap();
    assert!(matches!(&changes[..], [Change::Unlinked { primary: true, .. }]));
    assert_eq!(volume.path(file).unwrap(), "/g");
    assert_eq!((volume.attr(file).nlink, volume.attr(file).ctime), (1, volume.now()));
}

/// An unlinked file that two sessions have open is usable until both have closed it.
#[test]
fn an_open_file_outlives_its_name() {
    let mut volume = Volume::new();
    let file = volume.file(Ino::ROOT, "f");
    let other = SessionId(8);
    let changes = volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[SESSION, other]).unwrap();
    assert!(matches!(&changes[..], [Change::Unlinked { .. }]));
    assert_eq!((volume.attr(file).nlink, volume.path(file)), (0, None));
    let truncated = volume
        .set(&Caller::ROOT, file, SetAttr { size_bytes: Some(9), ..SetAttr::default() })
        .unwrap();
    assert_eq!(truncated.size_bytes, 9);
    let mut changes = Vec::new();
    volume.namespace.release(SESSION, file, &mut changes);
    volume.namespace.release(SESSION, file, &mut changes);
    volume.namespace.release(SESSION, Ino::ROOT, &mut changes);
    assert_eq!(changes, []);
    volume.namespace.release_all(other, &mut changes);
    assert!(matches!(&changes[..], [Change::Gone { ino, .. }] if *ino == file), "{changes:?}");
    assert_eq!(volume.namespace.check(), Vec::<String>::new());
}

#[test]
fn kinds_are_not_mixed_up() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let file = volume.file(dir, "f");
    assert_eq!(volume.unlink(&Caller::ROOT, Ino::ROOT, "d", &[]), Err(FsError::IsDirectory));
    assert_eq!(volume.rmdir(&Caller::ROOT, dir, "f", &[]), Err(FsError::NotDirectory));
    assert_eq!(volume.rmdir(&Caller::ROOT, Ino::ROOT, "d", &[]), Err(FsError::NotEmpty));
    assert_eq!(volume.unlink(&Caller::ROOT, dir, "none", &[]), Err(FsError::NotFound));
    assert_eq!(volume.unlink(&Caller::ROOT, file, "f", &[]), Err(FsError::NotDirectory));
    assert_eq!(volume.unlink(&Caller::ROOT, Ino(77), "f", &[]), Err(FsError::Stale));
}

/// In a sticky directory a file can be removed by its owner, by the directory's owner and by root.
#[test]
fn sticky_directories_protect_files_of_others() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "tmp");
    volume.chmod(dir, 0o1777);
    volume.chown(dir, &BOB);
    volume.chmod(dir, 0o1777);
    let carol = Caller { uid: 1002, gid: 1002, ..ALICE };
    for name in ["a", "b", "c", "d"] {
        volume.make(&ALICE, dir, name, 0o666, Make::Regular).unwrap();
    }
    assert_eq!(volume.unlink(&carol, dir, "a", &[]), Err(FsError::NotPermitted));
    assert_eq!(
        volume.rename_by(&carol, (dir, "a"), (dir, "z"), RenameMode::Replace),
        Err(FsError::NotPermitted)
    );
    volume.make(&carol, dir, "mine", 0o666, Make::Regular).unwrap();
    assert_eq!(
        volume.rename_by(&carol, (dir, "mine"), (dir, "a"), RenameMode::Replace),
        Err(FsError::NotPermitted)
    );
    assert!(volume.unlink(&ALICE, dir, "a", &[]).is_ok());
    assert!(volume.unlink(&BOB, dir, "b", &[]).is_ok());
    assert!(volume.unlink(&Caller { checked: false, ..Caller::ROOT }, dir, "c", &[]).is_ok());
    assert!(volume.unlink(&Caller { checked: true, ..carol }, dir, "d", &[]).is_ok());
}

/// Without write permission on the directory nothing is removed; without search permission lookups
/// fail.
#[test]
fn removal_asks_the_directory() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume.file(dir, "f");
    assert_eq!(volume.unlink(&ALICE, dir, "f", &[]), Err(FsError::AccessDenied));
    assert_eq!(volume.unlink(&ALICE, dir, "none", &[]), Err(FsError::NotFound));
    volume.chmod(dir, 0o766);
    assert_eq!(volume.unlink(&ALICE, dir, "none", &[]), Err(FsError::AccessDenied));
}
