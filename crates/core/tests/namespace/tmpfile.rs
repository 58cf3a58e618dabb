use crate::volume::*;
use ebb_core::namespace::Change;
use ebb_model::*;

fn tmpfile(volume: &mut Volume, caller: &Caller, parent: Ino, mode: u16) -> Result<Ino, FsError> {
    let ino = volume.namespace.next_ino(parent.slot()).unwrap();
    volume.run(caller, Mutation::Tmpfile { parent, ino, mode, holder: SESSION }).map(|_| ino)
}

/// It is not visible, does not change the directory, and is removed with its holder.
#[test]
fn a_file_without_a_name_goes_with_its_holder() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    let before = volume.attr(dir);
    let ino = tmpfile(&mut volume, &ALICE, dir, 0o640).unwrap_err();
    assert_eq!(ino, FsError::AccessDenied, "the directory's permissions decide");
    let ino = tmpfile(&mut volume, &Caller::ROOT, dir, 0o640).unwrap();
    let attr = volume.attr(ino);
    assert_eq!(
        (attr.nlink, attr.mode, attr.kind, attr.btime),
        (0, 0o640, FileKind::Regular, volume.now())
    );
    assert_eq!((volume.attr(dir), volume.names(dir)), (before, vec![]));
    let mut changes = Vec::new();
    volume.namespace.release_all(SESSION, &mut changes);
    assert!(
        matches!(&changes[..], [Change::Gone { ino: gone, .. }] if *gone == ino),
        "{changes:?}"
    );
    assert!(volume.namespace.check().is_empty());
}

/// With its first name it is an ordinary file, which its holder does not keep. Without that name it
/// cannot get another one.
#[test]
fn it_gets_a_name_once() {
    let mut volume = Volume::new();
    let ino = tmpfile(&mut volume, &Caller::ROOT, Ino::ROOT, 0o600).unwrap();
    let changes = volume.link(ino, Ino::ROOT, "f").unwrap();
    assert!(
        matches!(&changes[..], [Change::Linked { primary: true, ino: linked, .. }] if *linked == ino)
    );
    assert_eq!((volume.attr(ino).nlink, volume.path(ino).unwrap().as_str()), (1, "/f"));
    let mut changes = Vec::new();
    volume.namespace.release_all(SESSION, &mut changes);
    assert_eq!(changes, []);
    assert!(volume.link(ino, Ino::ROOT, "g").is_ok());
    volume.unlink(&Caller::ROOT, Ino::ROOT, "f", &[SESSION]).unwrap();
    volume.unlink(&Caller::ROOT, Ino::ROOT, "g", &[SESSION]).unwrap();
    assert_eq!(volume.link(ino, Ino::ROOT, "f"), Err(FsError::NotFound));
    assert!(volume.namespace.check().is_empty());
}

/// It inherits like a named file.
#[test]
fn the_directory_gives_its_group() {
    let mut volume = Volume::new();
    let dir = volume.dir(Ino::ROOT, "d");
    volume
        .set(
            &Caller::ROOT,
            dir,
            SetAttr { gid: Some(77), mode: Some(0o2777), ..SetAttr::default() },
        )
        .unwrap();
    let ino = tmpfile(&mut volume, &ALICE, dir, 0o644).unwrap();
    assert_eq!(volume.attr(ino).gid, 77);
}
